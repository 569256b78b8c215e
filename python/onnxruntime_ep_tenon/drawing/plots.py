"""PNG plots. matplotlib is imported here only, and only when a plot is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..requirements import require


def bars(
    path: Path,
    title: str,
    unit: str,
    groups: list[str],
    series: dict[str, list[float]],
    marks: Sequence[float | None] = (),
) -> None:
    """Groups of bars side by side, one colour per series, the value over each bar.

    marks  what each group should reach, a line across it
    """
    plt = _pyplot()
    names = sum(len(name) + 6 for name in series) if len(series) > 1 else 0  # of the legend
    wide = max(1.6 + 1.9 * len(groups), 1.0 + 0.09 * names)
    figure, axes = plt.subplots(figsize=(wide, 3.8))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series.items()):
        places = [i + (number - (len(series) - 1) / 2) * width for i in range(len(groups))]
        drawn = axes.bar(places, values, width, label=name)
        for label in axes.bar_label(drawn, fmt="%.3g", fontsize=8, padding=1):
            label.set(zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    marked = [(i, mark) for i, mark in enumerate(marks) if mark is not None]
    if marked:
        where, heights = zip(*marked, strict=True)
        ends = {"xmin": [i - 0.46 for i in where], "xmax": [i + 0.46 for i in where]}
        axes.hlines(heights, **ends, colors="#333333", linestyles="dashed", label="bar")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    legends = len(series) > 1 or marked
    axes.margins(y=0.28 if legends else 0.15)  # a legend stands above all bars
    if legends:
        axes.legend(frameon=False, fontsize=9, ncols=len(series) + 1, loc="upper left")
    _save(figure, path)


def scatter(path: Path, title: str, labels: tuple[str, str], series: dict[str, tuple]) -> None:
    """Points around the diagonal: how near one set of numbers is to another."""
    figure, axes = _pyplot().subplots(figsize=(4.6, 4.4))
    for name, (across, up) in series.items():
        axes.plot(across, up, "o", markersize=5, alpha=0.75, label=name)
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], "-", color="#bbbbbb", linewidth=1, zorder=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    _save(figure, path)


def _pyplot():
    require("matplotlib", "to draw plots")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)
