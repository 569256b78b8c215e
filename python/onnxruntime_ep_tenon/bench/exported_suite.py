"""The table of models that exporters wrote: each right, whole, and no slower than without Tenon."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .. import console
from ..report import readable, shortened
from .exported_cases import ExportedCase, exported_cases
from .exported_meter import MOST, PLANNED_FOR, Claim, ExportedMeter, MeasuredExport
from .measuring_process import measure_in_turn
from .rows import none_for_nan

_LEFT_SHOWN = 3
_MOST_SESSION_SECONDS = 0.2  # of CPU time, which small networks should open in


@dataclass(frozen=True)
class ExportedRow:
    case: str
    stamp: list[int]
    measured: MeasuredExport
    crash: str = ""

    @property
    def verdict(self) -> str:
        """The worst that is to be said; empty: as it should be."""
        found = self.measured
        if self.crash:
            return "CRASHED"
        if found.wrong:
            return "WRONG"
        if found.peer_refused:
            return "neither" if found.refused else ""  # nothing to compare with
        if found.refused:
            return "REFUSED"
        if found.ratio > MOST:
            return "SLOW"
        if found.plan_refused and not found.planned.left:
            return "NOT PLANNED"
        return "" if found.planned.is_whole else "cut"

    def note(self) -> str:
        found = self.measured
        if text := self.crash or found.wrong or (found.refused and f"Tenon: {found.refused}"):
            return text
        left = sorted(found.planned.left.items(), key=lambda item: -item[1][0])
        told = [f"{op} {count}: {_brief(op, reason)}" for op, (count, reason) in left[:_LEFT_SHOWN]]
        if found.peer_refused:
            told.insert(0, f"the CPU provider: {shortened(found.peer_refused, 80)}")
        if not math.isnan(found.stored):
            told.insert(0, f"{found.stored:.4f} from the stored outputs, its file {found.file:.4f}")
        if found.plan_refused and not left:
            told.append(found.plan_refused)
        return "; ".join(told) + (" …" if len(left) > _LEFT_SHOWN else "")

    def as_json(self) -> dict:
        measured = none_for_nan(asdict(self.measured))
        return {"case": self.case, "stamp": self.stamp, "verdict": self.verdict,
                "ratio": none_for_nan({"": self.measured.ratio})[""], "crash": self.crash,
                "measured": measured}  # fmt: skip

    @staticmethod
    def from_json(row: dict) -> ExportedRow:
        measured = row["measured"]
        told = {f.name: measured[f.name] for f in fields(MeasuredExport) if f.name in measured}
        for name in ("claim", "planned"):
            told[name] = Claim(**told[name])
        told = {name: math.nan if value is None else value for name, value in told.items()}
        return ExportedRow(row["case"], row["stamp"], MeasuredExport(**told), row["crash"])


def run_exported_suite(args, meter=None) -> int:
    cases = exported_cases(args.models_dir, args.only)
    rows = _kept(args.resume, cases)
    left = [case for case in cases if case.name not in rows]
    say = (lambda *_: None) if args.json else console.say
    device = "cpu" if args.device == "auto" else args.device
    meter = meter or ExportedMeter(device, args.seed, dict(args.option))
    try:
        for case, measured, problem, spent in measure_in_turn(left, meter, args.limit):
            row = ExportedRow(case.name, case.stamp, measured or MeasuredExport(), problem)
            rows[case.name] = row
            say(f"{len(rows)}/{len(cases)} {case.name}: {_summary(row)} ({spent:.1f} s)")
            _write(args, meter, rows)
    finally:
        meter.close()
    ordered = [rows[case.name] for case in cases]
    if args.json:
        console.print_json(_result(args, meter, ordered))
    else:
        _print(ordered, meter.machine.onnxruntime)
    faults = {"CRASHED", "WRONG", "REFUSED", "SLOW", "NOT PLANNED"}
    return 1 if any(row.verdict in faults for row in ordered) else 0


def _kept(path: str | None, cases: list[ExportedCase]) -> dict[str, ExportedRow]:
    """What an earlier run measured of files that are the same still; what crashed runs again."""
    if not path or not Path(path).is_file():
        return {}
    stamps = {case.name: case.stamp for case in cases}
    rows = [ExportedRow.from_json(row) for row in json.loads(Path(path).read_text())["rows"]]
    return {r.case: r for r in rows if stamps.get(r.case) == r.stamp and not r.crash}


def _result(args, meter, rows) -> dict:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "runtime": meter.machine.onnxruntime,
        "options": dict(args.option),
        "rows": [row.as_json() for row in rows],
    }


def _write(args, meter, rows: dict[str, ExportedRow]) -> None:
    """After each model: a run that is cut short leaves what it has, for --resume."""
    if not args.out:
        return
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_result(args, meter, list(rows.values())), indent=1)
    (folder / "bench.json").write_text(text + "\n")


def _summary(row: ExportedRow) -> str:
    found = row.measured
    ratio = "" if math.isnan(found.ratio) else f", {found.ratio:.3f} of the CPU provider's time"
    told = f"{found.claim} claimed, {found.planned} for {PLANNED_FOR}{ratio}"
    return f"{told}{', ' if row.verdict else ''}{row.verdict}"


def _print(rows: list[ExportedRow], runtime: str) -> None:
    console.heading(f"Exported models on the host, onnxruntime {runtime}, CPU time of one thread")
    columns = ["model", "claimed", PLANNED_FOR, "difference", "session", "other", "tenon", "other",
               "ratio", "", "note"]  # fmt: skip
    console.table(columns, [_cells(row) for row in rows], right=range(1, 9))
    console.say(_closing(rows))


def _cells(row: ExportedRow) -> tuple:
    found = row.measured
    times = (found.session, found.peer_session, found.tenon, found.peer)
    return (
        row.case,
        str(found.claim),
        str(found.planned),
        "" if math.isnan(found.difference) else f"{found.difference:.1e}",
        *("" if math.isnan(seconds) else console.duration(seconds) for seconds in times),
        "" if math.isnan(found.ratio) else f"{found.ratio:.3f}",
        row.verdict,
        row.note(),
    )


def _closing(rows: list[ExportedRow]) -> str:
    def count(*verdicts: str) -> int:
        return sum(row.verdict in verdicts for row in rows)

    compared = [row.measured for row in rows if not row.measured.peer_refused]
    cut = sum(not found.planned.is_whole for found in compared)
    refused = sum(bool(row.measured.peer_refused) for row in rows)
    ratios = sorted(row.measured.ratio for row in rows if not math.isnan(row.measured.ratio))
    long = sum(row.measured.session > _MOST_SESSION_SECONDS for row in rows)
    spread = f"; ratios from {ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else ""
    return (
        f"{len(rows)} models: {count('CRASHED')} crashed, {count('WRONG')} wrong, "
        f"{count('REFUSED')} refused, {count('SLOW')} above {MOST}, {count('NOT PLANNED')} not "
        f"planned, {cut} not whole for {PLANNED_FOR}, {refused} refused by the CPU provider, "
        f"{long} sessions above {_MOST_SESSION_SECONDS} s{spread}"
    )


def _brief(op: str, reason: str) -> str:
    return shortened(readable(reason.removeprefix(f"{op}: ")), 90)
