"""Bars as SVG, by hand: a few kilobytes of text, small enough for documents."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd")
_GROUP, _HEIGHT, _LEFT, _TOP = 120, 200, 20, 56  # pixels; _TOP holds title and legend
_LINE = 14  # of text
_HALO = ' paint-order="stroke" stroke="white" stroke-width="3"'


def bars_svg(
    title: str,
    groups: list[str],
    series: dict[str, list[float]],
    marks: Sequence[float | None] = (),
) -> str:
    """What plots.bars draws: groups of bars, the value over each, and what each should reach."""
    top = max([v for values in series.values() for v in values] + [m or 0 for m in marks]) or 1
    floor = _TOP + _HEIGHT
    lines = max(group.count("\n") + 1 for group in groups)
    size = (2 * _LEFT + _GROUP * len(groups), floor + _LINE * lines + 12)
    parts = [_text(size[0] / 2, 18, title, 13)]
    parts += _legend([*series], any(mark is not None for mark in marks))
    width = 0.8 * _GROUP / len(series)
    numbers = []
    for number, values in enumerate(series.values()):
        for i, value in enumerate(values):
            x = _LEFT + _GROUP * (i + 0.1) + number * width
            high = _HEIGHT * value / top
            parts.append(
                f'<rect x="{x:.1f}" y="{floor - high:.1f}" width="{width:.1f}" '
                f'height="{high:.1f}" fill="{_COLOURS[number]}"/>'
            )
            numbers.append(_text(x + width / 2, floor - high - 3, f"{value:.3g}", extra=_HALO))
    for i, mark in enumerate(marks):
        if mark is not None:
            first = _LEFT + _GROUP * (i + 0.04)
            parts.append(_dashes(first, floor - _HEIGHT * mark / top, 0.92 * _GROUP))
    parts += numbers  # over the marks that they meet
    parts.append(
        f'<line x1="{_LEFT}" x2="{size[0] - _LEFT}" y1="{floor}" y2="{floor}" stroke="#333"/>'
    )
    for i, group in enumerate(groups):
        for line, text in enumerate(group.split("\n")):
            parts.append(_text(_LEFT + _GROUP * (i + 0.5), floor + _LINE * (line + 1), text))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        'font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _legend(names: list[str], has_marks: bool) -> list[str]:
    parts, x = [], _LEFT
    for number, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="28" width="12" height="9" fill="{_COLOURS[number]}"/>')
        parts.append(_text(x + 16, 36, name, anchor="start"))
        x += 34 + 6 * len(name)
    if has_marks:
        parts += [_dashes(x, 33, 16), _text(x + 20, 36, "bar", anchor="start")]
    return parts


def _text(
    x: float, y: float, text: str, size: int = 0, anchor: str = "middle", extra: str = ""
) -> str:
    extra += f' font-size="{size}"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _dashes(x: float, y: float, width: float) -> str:
    return (
        f'<line x1="{x:.1f}" x2="{x + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#333" '
        'stroke-width="1.5" stroke-dasharray="5 3"/>'
    )
