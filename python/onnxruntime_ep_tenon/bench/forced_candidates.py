"""Sessions whose fusions run with another candidate than the one that was chosen, by records.

A record that was not measured does it: it names a kernel, and whoever offers that kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..report import Report
from ..tuning_records import TuningRecords, message_class, record_text, write_records


def no_records(folder: Path) -> Path:
    """A file without records: with it a report tells all the ways that there are."""
    path = folder / "none.textproto"
    write_records(TuningRecords(), path)
    return path


def forcing_records(
    report: Report, is_wanted: Callable[[str], bool], folder: Path
) -> tuple[Path | None, str]:
    """A file that asks for a wanted candidate's first way wherever there is one, and its name.

    Without a file: why there is none; nothing where no such candidate was asked.
    """
    made, names = TuningRecords(), set()
    for fusion in report.fusions:
        for note in fusion.get("tuning", []):
            ways = [way for way in note["ways"] if is_wanted(way["candidate"])]
            if ways:
                record = _record(report, fusion, note, ways[0])
                made.add(record, record_text(record))
                names.add(ways[0]["candidate"])
    if not names:
        reasons = sorted(_reasons(report, is_wanted))
        return None, "; ".join(reasons)
    path = folder / "forced.textproto"
    write_records(made, path)
    return path, ", ".join(sorted(names))


def _reasons(report: Report, is_wanted: Callable[[str], bool]) -> set[str]:
    return {
        f"{candidate['name']}: {candidate.get('reason') or 'no other way for these rows'}"
        for fusion in report.fusions
        for candidate in fusion.get("candidates", [])
        if is_wanted(candidate["name"])
    }


def _record(report: Report, fusion: dict, note: dict, way: dict):
    tuning = report.data["tuning"]
    record = message_class("Record")(
        fusion=fusion.get("problem", ""),
        fingerprint=fusion["fingerprint"],
        microseconds=way["microseconds"],
        machine=tuning["machine"],
        versions=tuning["versions"],
    )
    record.rows.first, record.rows.last = note["first"], note["last"]
    record.kernel.candidate, record.kernel.skeleton = way["candidate"], way["skeleton"]
    for name, value in way["knobs"].items():
        record.kernel.knob.add(name=name, value=value)
    return record
