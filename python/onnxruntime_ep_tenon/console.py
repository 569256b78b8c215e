"""What the command prints: tables for eyes, JSON for programs, a progress bar."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import contextmanager

from .requirements import has


def say(text: str = "") -> None:
    print(text, flush=True)


def heading(text: str) -> None:
    say()
    say(text)
    say("-" * len(text))


def table(columns: Sequence[str], rows: Sequence[Sequence], right: Sequence[int] = ()) -> None:
    """Prints rows under column names; `right` lists the columns of numbers."""
    texts = [[str(cell) for cell in row] for row in rows]
    if has("rich") and sys.stdout.isatty():
        _rich_table(columns, texts, right)
        return
    widths = [max(len(line[i]) for line in [list(columns), *texts]) for i in range(len(columns))]

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


def _rich_table(columns, rows, right) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        drawn.add_column(column, justify="right" if index in right else "left")
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
