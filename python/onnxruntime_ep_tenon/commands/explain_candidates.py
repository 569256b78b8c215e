"""`tenon explain --candidates`: every kernel that was asked to run a fusion, with what is known.

Of those that could: every way to run each range of rows, with its estimate, and which one was
taken, by estimate or by a record's measurement. Of those that could not: the reason.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import console
from ..report import Report, fusion_kind, readable, shortened
from ..tune_log import range_text

_DEFAULTS = {"tune": "cached", "tune_file": "", "require_tuned": "0"}
COLUMNS = ["rows", "candidate", "kernel", "expected us", ""]


def report_with_ways(open_report: Callable, options: dict) -> tuple[Report, str]:
    """The report of a session with these options; its fusions tell of every way to run them.

    Ways are told of what no record chose: the session that tells them has a file without records.
    open_report(options) -> the report, and what the runtime said where it made no session.
    """
    with _no_records() as file:
        asked = {**options, **_DEFAULTS, "tune_file": file}
        asked.pop("tune_log", None)
        if options.get("tune_file") and options.get("tune") != "off":
            report, problem = open_report(options)
            ways = open_report(asked)[0]
        else:
            report, problem = open_report(asked)
            ways = report
    told = [fusion.get("tuning", []) for fusion in ways.fusions]
    names = [fusion.get("name") for fusion in ways.fusions]
    for place, fusion in enumerate(report.fusions):
        same = place < len(names) and names[place] == fusion.get("name")
        fusion["ranges"] = told[place] if same else []
    if ways is report:
        _without_the_file(report, options)
    return report, problem


@contextmanager
def _no_records() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        file = Path(folder) / "none.textproto"
        file.write_text("form: 1\n")
        yield str(file)


def _without_the_file(report: Report, options: dict) -> None:
    """A file that only served to ask is none of the user's."""
    report.data["tuning"] = None
    if "options" in report.data:
        given = {name: options[name] for name in _DEFAULTS if name in options}
        report.data["options"] |= _DEFAULTS | given
    for fusion in report.fusions:
        fusion["tuning"] = []


def print_candidates(report: Report) -> None:
    console.heading("Candidates")
    seen: dict[tuple, int] = {}
    for fusion in report.fusions:
        key = (fusion_kind(fusion), fusion.get("problem", ""), tuple(candidate_rows(fusion)))
        seen[key] = seen.get(key, 0) + 1
    for (kind, problem, rows), count in seen.items():
        console.say(f"{count} x {kind} {shortened(readable(problem), 120)}")
        console.table(COLUMNS, rows, right=(3,))
        console.say()


def candidate_rows(fusion: dict) -> list[tuple]:
    """By ranges of rows, the ways in the order in which they are asked; then who has none."""
    rows = []
    for note in fusion.get("ranges", []):
        taken = _taken(fusion, note)
        for way in note["ways"]:
            verdict = taken[1] if way is taken[0] else ""
            rows.append(
                (range_text(note), way["candidate"], _kernel_text(way), _time(way), verdict)
            )
    have_ways = {row[1] for row in rows}
    chosen = {name for name, _ in _chosen_parts(fusion)}
    for candidate in fusion.get("candidates", []):
        name = candidate["name"]
        if not candidate["ok"]:
            rows.append(("", name, "", "", f"no: {readable(candidate.get('reason', ''))}"))
        elif name in chosen - have_ways:
            rows.append(("", name, "", _time(fusion), "chosen"))
        elif name not in have_ways:
            rows.append(("", name, "", "", "possible"))
    return rows


def _kernel_text(way: dict) -> str:
    knobs = ", ".join(f"{name} {value}" for name, value in way["knobs"].items())
    return f"{way['skeleton']} ({knobs})" if knobs else way["skeleton"]


def _time(told: dict) -> str:
    return f"{told['microseconds']:.1f}" if told.get("microseconds") else ""


def _taken(fusion: dict, note: dict) -> tuple[dict | None, str]:
    """Which way runs these rows, and whether a record or the estimate says so."""
    bounds = note["first"], note["last"] or math.inf
    for record in fusion.get("tuning", []):
        if record["tuned"] and _overlap((record["first"], record["last"] or math.inf), bounds):
            own = [way for way in note["ways"] for used in record["ways"] if _same(used, way)]
            return (own or [None])[0], f"tuned: {record['text']}"
    parts = [name for name, rows in _chosen_parts(fusion) if _overlap(rows, bounds)]
    # A candidate ranks its own ways.
    firsts = [way for way in note["ways"] if way["candidate"] in parts]
    return (firsts or [None])[0], "chosen"


def _same(one: dict, other: dict) -> bool:
    return all(one[key] == other[key] for key in ("candidate", "skeleton", "knobs"))


def _chosen_parts(fusion: dict) -> list[tuple[str, tuple]]:
    """Candidates and their rows: 'mma' is for all, 'mma (rows <= 4), gemm (rows > 4)' for some."""
    parts = re.findall(r"(\w+)(?: \(([^)]*)\))?", fusion.get("chosen", ""))
    return [(name, _bounds(rows)) for name, rows in parts]


def _bounds(text: str) -> tuple[float, float]:
    """The first and the last of some rows, or queries, as reports write them."""
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    if not numbers:
        return 0, math.inf
    if "<=" in text:
        return 0, numbers[0]
    return (numbers[0] + 1, math.inf) if ">" in text else (numbers[0], numbers[-1])


def _overlap(one: tuple, other: tuple) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
