"""What a session with `tune=on` tells of its work: the lines of tune_log, as they come and after.

A line that is not whole yet is read when it is; one that is no JSON
is counted and left out.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from .tuning_records import rows_text as _rows_text


@dataclass
class TuneLog:
    """The events of one tuning, of all its partitions."""

    machine: dict = field(default_factory=dict)
    partitions: int = 0
    ended: int = 0
    expected_ranges: int = 0
    trying: dict | None = None  # the plan that runs now
    plans: list[dict] = field(default_factory=list)
    ranges: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    unreadable: int = 0

    def take(self, line: str) -> dict | None:
        """Adds a line; the event, or nothing where it is none."""
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            self.unreadable += 1
            return None
        if kind == "begin":
            self.partitions += 1
            self.machine = event.get("machine", {})
            self.expected_ranges += event.get("ranges", 0)
        elif kind == "trying":
            self.trying = event
        elif kind == "plan":
            self.trying = None
            self.plans.append(event)
        elif kind == "range":
            self._decide(event)
        elif kind == "end":
            self.ended += 1
            self.seconds += event.get("seconds", 0.0)
        return event

    def _decide(self, event: dict) -> None:
        """The whole partition may decide once more what a range's own times had decided."""

        def key(one: dict) -> tuple:
            return one.get("fingerprint"), str(one.get("rows"))

        places = [i for i, one in enumerate(self.ranges) if key(one) == key(event)]
        if places and event.get("decided_by") == "partition":
            self.ranges[places[0]] = event
        else:
            self.ranges.append(event)

    @property
    def complete(self) -> bool:
        return self.ended == self.partitions

    def statuses(self) -> dict[str, int]:
        """How many plans came to what, the most frequent first."""
        return dict(Counter(plan.get("status", "?") for plan in self.plans).most_common())

    def reasons(self) -> list[tuple[str, str, int]]:
        """Why plans were not measured or not taken for right: status, reason, how many."""
        counts = Counter(
            (plan.get("status", "?"), plan.get("reason", ""))
            for plan in self.plans
            if plan.get("status") != "ok"
        )
        return [(*key, count) for key, count in counts.most_common()]

    def total(self, side: str) -> float:
        """Microseconds of all ranges that have both times, each once."""
        both = [one for one in self.ranges if not math.isnan(gain_of(one))]
        return sum(microseconds_of(one, side) for one in both)


class Tail:
    """What is written to a file after now, line by line."""

    def __init__(self, path: Path):
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def lines(self) -> list[str]:
        """Whole lines that came since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
        except FileNotFoundError:
            return []
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return [line.decode(errors="replace") for line in whole if line.strip()]


def microseconds_of(event: dict, side: str) -> float:
    """Of a range: side is `chosen` or `untuned`; NaN where that one was not measured."""
    return (event.get(side) or {}).get("us") or math.nan


def gain_of(event: dict) -> float:
    """How many times as long the range takes untuned."""
    return microseconds_of(event, "untuned") / microseconds_of(event, "chosen")


def kernel_of(event: dict, side: str = "chosen") -> str:
    kernel = event.get(side) or {}
    return ": ".join(part for part in (kernel.get("candidate"), kernel.get("config")) if part)


@dataclass(frozen=True)
class _Rows:
    first: int
    last: int


def range_text(told: dict) -> str:
    """Of an event of the log, or of a note of a report: which rows it is about."""
    rows = told.get("rows")
    rows = rows if isinstance(rows, dict) else told
    return _rows_text(_Rows(rows.get("first", 0), rows.get("last", 0)))
