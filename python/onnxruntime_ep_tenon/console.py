"""What the command prints: tables for eyes, JSON for programs, a progress bar."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Sequence
from contextlib import contextmanager

from .requirements import has

_LEAST_CELL = 20  # characters that a wrapped column keeps


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say()
    say(text)
    say("-" * len(text))


def table(
    columns: Sequence[str], rows: Sequence[Sequence], right: Sequence[int] = (), width: int = 0
) -> None:
    """Prints rows under column names; `right` lists the columns of numbers.

    `width`: where no terminal tells how wide lines may be, cells of words are wrapped to it.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    if has("rich") and sys.stdout.isatty():
        _rich_table(columns, texts, right)
        return
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]
    if width:
        widths = _shrunk(widths, width)
        texts = _wrapped(texts, widths)

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    say(line(columns))
    say("  ".join("-" * width for width in widths))
    for row in texts:
        say(line(row))


def _shrunk(widths: list[int], width: int) -> list[int]:
    """The widest columns share what the others leave."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _LEAST_CELL:
        widths[widths.index(max(widths))] -= 1
    return widths


def _wrapped(texts: list[list[str]], widths: list[int]) -> list[list[str]]:
    """What stands below in a row is a row of its own; a path that is too long stays whole."""
    rows = []
    for cells in texts:
        lines = [
            textwrap.wrap(cell, size, break_long_words=False, break_on_hyphens=False) or [""]
            for cell, size in zip(cells, widths, strict=True)
        ]
        rows += [list(row) for row in itertools.zip_longest(*lines, fillvalue="")]
    return rows


def _rich_table(columns, rows, right) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        justify = "right" if index in right else "left"
        drawn.add_column(column, justify=justify, overflow="fold")  # a cut path is of no use
    for row in rows:
        drawn.add_row(*[escape(cell) for cell in row])
    Console().print(drawn)


def print_json(value) -> None:
    say(json.dumps(value, indent=2, default=_plain))


def _plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


@contextmanager
def progress(title: str, enabled: bool = True):
    """Yields update(done, total, note); draws a bar on a terminal, one line elsewhere."""
    if not enabled:
        yield lambda done, total, note="": None
        return
    drawn = sys.stderr.isatty()

    def update(done: int, total: int, note: str = "") -> None:
        if not drawn:
            return
        filled = 30 * done // max(1, total)
        bar = "█" * filled + "·" * (30 - filled)
        sys.stderr.write(f"\r\x1b[K{title} {bar} {done}/{total} {note[-50:]}")
        sys.stderr.flush()

    try:
        yield update
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"
