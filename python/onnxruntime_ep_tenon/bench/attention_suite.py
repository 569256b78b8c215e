"""The table of attentions: Tenon, ONNX Runtime's own provider on the same file, and the limit."""

from __future__ import annotations

import fnmatch
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import console
from ..drawing import plots
from ..drawing.bar_drawing import bars_svg
from ..requirements import has
from ..session import devices
from .attention_cases import AttentionCase, host_cases, table_cases
from .attention_meter import AttentionMeter, MeasuredAttention
from .machine import Limits, Machine, absent_peer_text
from .measuring_process import measure_in_turn
from .rows import VERDICT, SuiteRow, microseconds, none_for_nan

_MOST_OVER_BEST = 1.02  # what was chosen, of the best of Tenon's kernel and cuDNN's
_MOST_SECONDS = 240.0  # no further case is begun after this


@dataclass(frozen=True)
class AttentionRow(SuiteRow):
    case: AttentionCase
    limits: Limits
    measured: MeasuredAttention | None = None

    @property
    def met(self) -> bool | None:
        """None: no bar, or nothing to compare with."""
        if self.measured is None:
            return False
        if self.case.bar is None or math.isnan(self.ratio):
            return None
        best = self.best
        return best <= self.case.bar * self.seconds("peer") and (
            self.seconds("tenon") <= _MOST_OVER_BEST * best
        )

    @property
    def best(self) -> float:
        """Of the kernel that was chosen and of the other backend's, where there is one."""
        sides = [self.seconds(side) for side in ("tenon", "own", "cudnn")]
        return min((time for time in sides if not math.isnan(time)), default=math.nan)

    def rate(self, side: str) -> float:
        """TB/s for decode, TFLOP/s for prefill."""
        work = self.case.bytes if self.case.kind == "decode" else self.case.flops
        return work / self.seconds(side) / 1e12

    @property
    def unit(self) -> str:
        return "TB/s" if self.case.kind == "decode" else "TFLOP/s"

    def as_json(self) -> dict:
        figures = {
            "tenon_us": self.seconds("tenon") * 1e6,
            "peer_us": self.seconds("peer") * 1e6,
            "own_us": self.seconds("own") * 1e6,
            "cudnn_us": self.seconds("cudnn") * 1e6,
            "best_over_peer": self.best / self.seconds("peer"),
            "tenon_over_best": self.seconds("tenon") / self.best,
            "limit_us": self.limits.seconds(self.case) * 1e6,
            "tenon_over_peer": self.ratio,
            "tenon_rate": self.rate("tenon"),
            "peer_rate": self.rate("peer"),
            "error_over_bound": self.seconds("error"),
            "created_s": self.seconds("created"),
        }
        return {
            "case": self.case.name,
            **asdict(self.case),
            "copies": self.case.copies,
            "rate_unit": self.unit,
            **none_for_nan(figures),
            "met": self.met,
            "kernel": self.measured.kernel if self.measured else "",
            "notes": self.measured.notes if self.measured else [],
            "problem": self.problem,
        }


def run_attention_suite(args, meter=None) -> int:
    device = _device(args.device)
    cases = _cases(args, device)
    meter = meter or AttentionMeter(device, args.seed)
    say = (lambda *_: None) if args.json else console.say
    try:
        rows = _measure_all(cases, meter, say, args)
    finally:
        meter.close()
    result = _result(rows, meter.machine, args)
    if args.out:
        _write(Path(args.out), result)
        _plot(Path(args.out), rows)
    if args.json:
        console.print_json(result)
    else:
        _print(rows, meter.machine)
    return 1 if any(row.problem for row in rows) else 0


def _device(wanted: str) -> str:
    if wanted == "auto":
        return devices()[0].device.type.name.lower()
    if wanted not in ("cpu", "gpu", "gpu:0"):
        raise ValueError(
            f"the suite of attentions runs on the first GPU or on the cpu, not '{wanted}'"
        )
    return wanted


def _cases(args, device: str) -> list[AttentionCase]:
    cases = host_cases() if device == "cpu" else table_cases(args.quick)
    chosen = [case for case in cases if fnmatch.fnmatch(case.name, args.only or "*")]
    if not chosen:
        names = ", ".join(case.name for case in cases)
        raise ValueError(f"no case is named '{args.only}'; there are: {names}")
    return chosen


def _measure_all(cases: list[AttentionCase], meter, say, args) -> list[AttentionRow]:
    limits = Limits.of(meter.machine)
    if not meter.machine.has_peer:
        say(absent_peer_text())
    rows: list[AttentionRow] = []
    for case, measured, problem, spent in measure_in_turn(cases, meter, _MOST_SECONDS):
        rows.append(AttentionRow(case, limits, measured, problem))
        say(f"[{len(rows)}/{len(cases)}] {case.name}: {_summary(rows[-1])} ({spent:.1f} s)")
        if args.out:
            # A run that is cut short leaves what it has.
            _write(Path(args.out), _result(rows, meter.machine, args))
    return rows


def _summary(row: AttentionRow) -> str:
    if row.problem:
        return f"FAILED: {row.problem}"
    sides = {"other": "peer", "own": "own", "cuDNN": "cudnn"}
    times = {name: microseconds(row.seconds(side)) for name, side in sides.items()}
    others = "".join(f", {name} {time}" for name, time in times.items() if time)
    verdict = {True: ", met", False: ", MISSED", None: ""}[row.met]
    return f"{microseconds(row.seconds('tenon'))} us{others}{verdict}"


def _result(rows: list[AttentionRow], machine: Machine, args) -> dict:
    limits = Limits.of(machine)
    told = {
        **asdict(machine),
        "read_limit_bytes_s": limits.read,
        "flop_limit_s": limits.flops,
    }
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": none_for_nan(told),
        "limits": limits.source,
        "seed": args.seed,
        "rows": [row.as_json() for row in rows],
    }


def _write(folder: Path, result: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "attention.json").write_text(json.dumps(result, indent=2) + "\n")


def _plot(folder: Path, rows: list[AttentionRow]) -> None:
    """One plot of decode and one of prefill, in the unit that bounds each."""
    for kind in ("decode", "prefill"):
        members = [row for row in rows if row.measured and row.case.kind == kind]
        if not members:
            continue
        rates = {
            label: [0.0 if math.isnan(row.rate(side)) else row.rate(side) for row in members]
            for label, side in (("Tenon", "tenon"), (_peer_name(rows), "peer"))
        }
        shown = {label: values for label, values in rates.items() if any(values)}
        labels = [row.case.name.removeprefix(f"{kind} ").replace(" ", "\n") for row in members]
        title, path = f"attention, {kind}: {members[0].unit}", folder / f"attention_{kind}"
        path.with_suffix(".svg").write_text(bars_svg(title, labels, shown))
        if has("matplotlib"):
            plots.bars(path.with_suffix(".png"), title, members[0].unit, labels, shown)


def _peer_name(rows: list[AttentionRow]) -> str:
    return "CPU provider" if math.isnan(rows[0].limits.read) else "CUDA provider"


def _print(rows: list[AttentionRow], machine: Machine) -> None:
    limits = Limits.of(machine)
    console.heading(f"Attention on {machine.gpu or 'the host'}, onnxruntime {machine.onnxruntime}")
    if machine.gpu:
        console.say(f"read limit {limits.read / 1e12:.2f} TB/s ({limits.source})")
    columns = ["case", "tenon us", f"{_peer_name(rows)} us", "ratio", "own us", "cuDNN us"]
    columns += ["limit us", "tenon", "other", "unit", "bar", "", "kernel", "note"]
    console.table(columns, [_cells(row) for row in rows], right=range(1, 9))
    for row in rows:
        if row.problem:
            console.say(f"FAILED  {row.case.name}: {row.problem}")


def _cells(row: AttentionRow) -> tuple:
    def figure(value: float) -> str:
        return "" if math.isnan(value) else f"{value:.2f}" if value < 10 else f"{value:.0f}"

    return (
        row.case.name,
        *(microseconds(row.seconds(side)) for side in ("tenon", "peer")),
        figure(row.ratio),
        *(microseconds(row.seconds(side)) for side in ("own", "cudnn")),
        microseconds(row.limits.seconds(row.case)),
        *(figure(row.rate(side)) for side in ("tenon", "peer")),
        row.unit,
        f"<= {row.case.bar}" if row.case.bar else "",
        "FAILED" if row.problem else VERDICT[row.met],
        row.measured.kernel if row.measured else "",
        "; ".join(row.measured.notes) if row.measured else "see below",
    )
