"""What tuning gains, what it costs, and whether it needs good estimates to begin with.

Products of random shapes, attentions and a step of a decoder, each untuned and tuned in turns in
one process; with --constants-factor-seed also tuned with wrong constants of the cost model.
"""

from __future__ import annotations

import fnmatch
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from .. import console, cuda
from .measuring_process import measure_in_turn
from .rows import Row, none_for_nan, print_rows, write_rows
from .tuning_cases import (
    MOST_EACH,
    MOST_EACH_WRONG,
    MOST_MEAN,
    MOST_MEAN_WRONG,
    MOST_SECONDS,
    DecoderCase,
    TuningCase,
    table_cases,
)
from .tuning_meter import MeasuredTuning, TuningMeter

_BARRED_PRESET = "llama-8b"


def run_tuning_suite(args, meter=None) -> int:
    cases = _cases(args)
    if meter is None:
        _require_gpu(args.device)
        logs = Path(args.out) / "logs" if args.out else None
        given = {"factor_seed": args.constants_factor_seed, "plans": args.tune_plans, "logs": logs}
        meter = TuningMeter("gpu", args.seed, **given)
    say = (lambda *_: None) if args.json else console.say
    problems: dict[str, str] = {}
    try:
        found = _measured_before(cases, meter.machine, args)
        known = {case.name for case, _ in found}
        if known:
            say(f"{len(known)} cases are measured already: {args.resume}")
        cases = [case for case in cases if case.name not in known]
        for case, measured, problem, spent in measure_in_turn(cases, meter, args.limit):
            if problem:
                problems[case.name] = problem
            else:
                found.append((case, measured))
            say(f"{case.name}: {problem or _summary(measured)} ({spent:.1f} s)")
            if args.out:
                # A run that is cut short leaves what it has.
                write_rows(Path(args.out), _result(meter.machine, found, problems, args), [])
    finally:
        meter.close()
    result, rows = _result(meter.machine, found, problems, args), _rows(found)
    if args.out:
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    if args.json:
        console.print_json(result)
    else:
        heading = f"Tuning on {meter.machine.gpu or 'the host'}"
        print_rows(rows, heading, ("tuned", "untuned, or as is said"))
        for name, problem in problems.items():
            console.say(f"FAILED  {name}: {problem}")
    return 1 if problems else 0


def _measured_before(
    cases: list[TuningCase], machine, args
) -> list[tuple[TuningCase, MeasuredTuning]]:
    """Cases that an earlier run wrote, which was cut short or had other cases."""
    if not args.resume:
        return []
    path = Path(args.resume)
    try:
        told = json.loads(path.read_text())
        measured = {
            name: MeasuredTuning(**{k: math.nan if v is None else v for k, v in fields.items()})
            for name, fields in told["measured"].items()
        }
        before = (told["machine"]["gpu"], told["constants_factor_seed"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--resume {path}: not a bench.json of this suite: {error}") from error
    now = (machine.gpu, args.constants_factor_seed)
    if before != now:
        raise ValueError(
            f"--resume {path}: measured on {before[0]!r} with --constants-factor-seed {before[1]}, "
            f"this is {now[0]!r} with {now[1]}"
        )
    return [(case, measured[case.name]) for case in cases if case.name in measured]


def _require_gpu(device: str) -> None:
    if device not in ("auto", "gpu", "gpu:0"):
        raise ValueError(f"the suite of tuning runs on the first GPU only, not on '{device}'")
    driver = cuda.find_driver()
    if driver.problem:
        raise RuntimeError(
            f"the suite of tuning needs a GPU, but the driver {driver.path} cannot be used: "
            f"{driver.problem}. `tenon doctor` says more."
        )


def _cases(args) -> list[TuningCase]:
    from ..models.decoder_config import PRESETS

    preset = args.preset or _BARRED_PRESET
    if preset not in PRESETS:
        raise ValueError(f"unknown preset '{preset}'; one of: {', '.join(PRESETS)}")
    cases = table_cases(preset, "gpu")
    chosen = [case for case in cases if fnmatch.fnmatch(case.name, args.only or "*")]
    if not chosen:
        names = ", ".join(case.name for case in cases)
        raise ValueError(f"no case is named '{args.only}'; there are: {names}")
    return chosen


def _summary(measured: MeasuredTuning) -> str:
    wrong = ""
    if not math.isnan(measured.wrong):
        wrong = f", with wrong constants {console.duration(measured.wrong)}"
    return (
        f"{console.duration(measured.tuned)}, untuned {console.duration(measured.untuned)}{wrong}, "
        f"tuned in {measured.tuning:.1f} s"
    )


def _rows(found: list[tuple[TuningCase, MeasuredTuning]]) -> list[Row]:
    """Every case, the geometric mean, and how long a decoder took to tune; then wrong constants."""
    rows = _compared(found, "", lambda m: (m.tuned, m.untuned, m.tuning), MOST_EACH, MOST_MEAN)
    for case, measured in found:
        if isinstance(case, DecoderCase):
            barred = case.plan.preset == _BARRED_PRESET
            rows.append(
                Row(
                    f"{case.plan.preset}: tuning from nothing",
                    measured.tuning,
                    math.nan,
                    f"<= {MOST_SECONDS:.0f} s" if barred else "",
                    measured.tuning <= MOST_SECONDS if barred else None,
                )  # fmt: skip
            )
    again = [(case, measured) for case, measured in found if not math.isnan(measured.wrong)]
    return rows + _compared(
        again, "wrong constants over true ones, ", lambda m: (m.wrong, m.tuned, m.tuning_wrong),
        MOST_EACH_WRONG, MOST_MEAN_WRONG,
    )  # fmt: skip


def _compared(
    found: list, prefix: str, sides: Callable, most_each: float, most_mean: float
) -> list[Row]:
    if not found:
        return []
    rows = []
    for case, measured in found:
        ours, other, seconds = sides(measured)
        notes = [f"tuned in {seconds:.1f} s", *measured.notes]
        bar = f"<= {most_each}"
        name = f"{prefix}{case.name}"
        rows.append(Row(name, ours, other, bar, ours <= most_each * other, "; ".join(notes)))
    ours, other = (_geometric_mean([getattr(row, side) for row in rows]) for side in _SIDES)
    name = f"{prefix}geometric mean of {len(rows)}"
    rows.append(Row(name, ours, other, f"<= {most_mean}", ours <= most_mean * other))
    return rows


_SIDES = ("tenon", "other")


def _geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _result(machine, found: list, problems: dict[str, str], args) -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": none_for_nan(asdict(machine)),
        "constants_factor_seed": args.constants_factor_seed,
        "rows": [row.as_json() for row in _rows(found)],
        "measured": {case.name: none_for_nan(asdict(measured)) for case, measured in found},
        "problems": problems,
    }
