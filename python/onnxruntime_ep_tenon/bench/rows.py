"""The rows of a table: a case, the times of both sides, its bar; printed, written, drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import console
from ..drawing import plots
from ..drawing.bar_drawing import bars_svg
from ..requirements import has

VERDICT = {True: "met", False: "MISSED", None: ""}  # of a bar


@dataclass
class Row:
    case: str
    tenon: float  # seconds
    other: float
    bar: str
    met: bool | None
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.tenon / self.other

    @property
    def most(self) -> float | None:
        """The ratio that the bar allows, where it is one."""
        try:
            return float(self.bar.removeprefix("<= ")) if self.bar.startswith("<= ") else None
        except ValueError:
            return None

    def as_json(self) -> dict:
        return none_for_nan({**self.__dict__, "ratio": self.ratio})


@dataclass(frozen=True)
class SuiteRow:
    """One line of a suite's table: a case with its times, or with the reason why there are none."""

    case: object
    limits: object
    measured: object | None = None
    problem: str = ""

    def seconds(self, side: str) -> float:
        return getattr(self.measured, side) if self.measured else math.nan

    @property
    def ratio(self) -> float:
        return self.seconds("tenon") / self.seconds("peer")


def none_for_nan(fields: Mapping[str, object]) -> dict:
    """JSON knows no NaN, which is what was not measured."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }


def microseconds(seconds: float) -> str:
    return "" if math.isnan(seconds) else f"{seconds * 1e6:.1f}"


def print_rows(rows: list[Row], heading: str, sides: tuple[str, str] = ("tenon", "other")) -> None:
    console.heading(heading)
    console.table(
        ["case", *sides, "ratio", "bar", "", "note"],
        [
            (
                r.case,
                "" if math.isnan(r.tenon) else console.duration(r.tenon),
                "" if math.isnan(r.other) else console.duration(r.other),
                "" if math.isnan(r.other) else f"{r.ratio:.2f}",
                r.bar,
                VERDICT[r.met],
                r.note,
            )
            for r in rows
        ],
        right=(1, 2, 3),
    )


def write_rows(folder: Path, result: dict, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(result, indent=2) + "\n")
    if not rows:
        return
    title = "time, 1 = the other"
    names = [row.case.replace(", ", "\n") for row in rows]
    series = {"Tenon over the other": [row.ratio for row in rows]}
    marks = [row.most for row in rows]
    (folder / "bench.svg").write_text(bars_svg(title, names, series, marks))
    if has("matplotlib"):
        plots.bars(folder / "bench.png", title, "ratio", names, series, marks)
