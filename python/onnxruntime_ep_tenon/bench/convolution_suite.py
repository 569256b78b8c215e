"""The table of networks of convolutions: Tenon, and ONNX Runtime's own provider on the same file.

ResNet-50 with random weights, and the networks of PP-OCR as their package ships them.
"""

from __future__ import annotations

import fnmatch
import math
import time
from dataclasses import asdict
from pathlib import Path

from .. import console
from ..session import devices
from .convolution_cases import ConvolutionCase, host_cases, table_cases
from .convolution_meter import ConvolutionMeter, MeasuredConvolution
from .machine import absent_peer_text
from .measuring_process import measure_in_turn
from .rows import VERDICT, Row, none_for_nan, print_rows, write_rows

_MOST_SECONDS = 300.0  # no further case is begun after this


def run_convolution_suite(args, meter=None) -> int:
    device = _device(args.device)
    cases = _cases(args, device)
    meter = meter or ConvolutionMeter(device, args.seed, args.models_dir, dict(args.option))
    say = (lambda *_: None) if args.json else console.say
    rows: list[Row] = []
    problems: dict[str, str] = {}
    if not meter.machine.has_peer:
        say(absent_peer_text())
    try:
        for case, measured, problem, spent in measure_in_turn(cases, meter, _MOST_SECONDS):
            if problem:
                problems[case.name] = problem
            rows.append(_row(case, measured or MeasuredConvolution(), problem))
            say(f"{case.name}: {_summary(rows[-1])} ({spent:.1f} s)")
            if args.out:
                # A run that is cut short leaves what it has.
                write_rows(Path(args.out), _result(meter.machine, rows, problems, args), [])
    finally:
        meter.close()
    result = _result(meter.machine, rows, problems, args)
    if args.out:
        compared = [row for row in rows if not math.isnan(row.other)]
        write_rows(Path(args.out), result, compared)
    if args.json:
        console.print_json(result)
    else:
        machine = meter.machine
        other = "the CUDA provider" if machine.gpu else "the CPU provider"
        where = machine.gpu or "the host"
        print_rows(rows, f"Convolutions on {where}, onnxruntime {machine.onnxruntime}; {other}")
    return 1 if problems else 0


def _device(wanted: str) -> str:
    if wanted == "auto":
        return devices()[0].device.type.name.lower()
    if wanted not in ("cpu", "gpu", "gpu:0"):
        raise ValueError(
            f"the suite of convolutions runs on the first GPU or on the cpu, not '{wanted}'"
        )
    return wanted


def _cases(args, device: str) -> list[ConvolutionCase]:
    cases = host_cases() if device == "cpu" else table_cases()
    chosen = [case for case in cases if fnmatch.fnmatch(case.name, args.only or "*")]
    if not chosen:
        names = ", ".join(case.name for case in cases)
        raise ValueError(f"no case is named '{args.only}'; there are: {names}")
    return chosen


def _row(case: ConvolutionCase, measured: MeasuredConvolution, problem: str) -> Row:
    bar = f"<= {case.bar}" if case.bar else ""
    if problem:
        return Row(case.name, math.nan, math.nan, bar, False, f"FAILED: {problem}")
    met = None
    if case.bar and not math.isnan(measured.peer):
        met = measured.tenon <= case.bar * measured.peer
    notes = [*measured.notes, f"error {measured.error:.1e}"]
    return Row(case.name, measured.tenon, measured.peer, bar, met, "; ".join(notes))


def _summary(row: Row) -> str:
    if math.isnan(row.tenon):
        return row.note
    other = "" if math.isnan(row.other) else f", other {console.duration(row.other)}"
    verdict = f", {VERDICT[row.met]}" if row.met is not None else ""
    return f"{console.duration(row.tenon)}{other}{verdict}; {row.note}"


def _result(machine, rows: list[Row], problems: dict[str, str], args) -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": none_for_nan(asdict(machine)),
        "options": dict(args.option),
        "rows": [row.as_json() for row in rows],
        "problems": problems,
    }
