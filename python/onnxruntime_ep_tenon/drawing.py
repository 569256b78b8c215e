"""Draws a model's graph as SVG: who claimed each node, in which fusion, and why not otherwise.

A small layered layout: a node's row is its longest way from the inputs, then pushed down
towards its readers; its column is the mean of its neighbours', moved apart where boxes meet.
"""

from __future__ import annotations

import html
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

from .report import fusion_kind

ROW, COLUMN, BOX_WIDTH, BOX_HEIGHT, MARGIN = 34, 122, 108, 20, 40
_SWEEPS = 6

# Fill colours by kind of fusion; other kinds take a colour from their name.
_KIND_COLOURS = {
    "scaled_dot": "#7fb3e6",
    "attention": "#f2a65e",
    "loop": "#9bd18b",
    "reduce": "#cdb4e8",
    "gather": "#e8d37a",
    "host": "#d9d9c3",
}
_LEFT_OUT, _DISSOLVED, _REWRITTEN = "#c9c9c9", "#dfe8f0", "#f4f4f4"
_PARTITION_EDGES = ("#1f4e79", "#7b3f00", "#2e6b2e", "#6a3d9a", "#a1282d", "#00696b")


@dataclass
class Box:
    """One node of the drawing."""

    name: str
    op: str
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    fill: str = _REWRITTEN
    edge: str = "#999999"
    note: str = ""
    row: int = 0
    column: float = 0.0


def boxes_of(model, report) -> list[Box]:
    """The nodes of the model's main graph with what the report says about each."""
    verdicts = _verdicts(report)
    boxes, producer = [], {}
    for index, node in enumerate(model.graph.node):
        box = Box(node.name or f"{node.op_type}#{index}", node.op_type)
        _colour(box, verdicts)
        box.inputs = sorted({producer[name] for name in node.input if name in producer})
        for name in node.output:
            producer[name] = index
        boxes.append(box)
    for index, box in enumerate(boxes):
        for source in box.inputs:
            boxes[source].outputs.append(index)
    return boxes


def _verdicts(report) -> dict[str, tuple[str, str, str]]:
    """Node name to (fill, edge, note)."""
    result = {}
    for number, partition in enumerate(report.partitions):
        edge = _PARTITION_EDGES[number % len(_PARTITION_EDGES)]
        for name in partition.get("nodes", []):
            note = f"{partition['name']}, dissolved into its neighbours"
            result[name] = (_DISSOLVED, edge, note)
        for fusion in partition.get("fusions", []):
            note = (
                f"{partition['name']}, {fusion_kind(fusion)} {fusion['name']}\n"
                f"{fusion.get('problem', '')}\nkernel: {fusion.get('chosen', '')}"
            )
            for name in fusion.get("nodes", []):
                result[name] = (colour_of(fusion_kind(fusion)), edge, note)
    for node in report.left_out:
        result[node["node"]] = (_LEFT_OUT, "#777777", f"left out: {node['reason']}")
    return result


def colour_of(kind: str) -> str:
    if kind in _KIND_COLOURS:
        return _KIND_COLOURS[kind]
    return f"hsl({zlib.crc32(kind.encode()) % 360}, 45%, 75%)"


def _colour(box: Box, verdicts: dict) -> None:
    found = verdicts.get(box.name)
    if found is None:
        # ONNX Runtime renames a node when it merges others into it: "x" becomes "x/Fusion".
        longer = [name for name in verdicts if name.startswith((box.name + "/", box.name + "_"))]
        found = verdicts[min(longer, key=len)] if longer else None
    if found:
        box.fill, box.edge, box.note = found
    else:
        box.note = "folded or merged into a neighbour by ONNX Runtime before providers are asked"


def lay_out(boxes: list[Box]) -> None:
    for box in boxes:
        box.row = max((boxes[i].row + 1 for i in box.inputs), default=0)
    for box in reversed(boxes):
        if box.outputs:
            box.row = max(box.row, min(boxes[i].row for i in box.outputs) - 1)
    rows = defaultdict(list)
    for index, box in enumerate(boxes):
        rows[box.row].append(index)
    for members in rows.values():
        for place, index in enumerate(members):
            boxes[index].column = place - (len(members) - 1) / 2
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in sorted(rows, reverse=not down):
            _settle_row(boxes, rows[row], down)


def _settle_row(boxes: list[Box], members: list[int], down: bool) -> None:
    wanted = {}
    for index in members:
        near = boxes[index].inputs if down else boxes[index].outputs
        columns = [boxes[i].column for i in near]
        wanted[index] = sum(columns) / len(columns) if columns else boxes[index].column
    members.sort(key=lambda index: (wanted[index], index))
    last = None
    for index in members:
        column = wanted[index] if last is None else max(wanted[index], last + 1)
        boxes[index].column = last = column
    # Moving boxes apart pushes the row to the right: bring its middle back.
    shift = sum(wanted[i] - boxes[i].column for i in members) / len(members)
    for index in members:
        boxes[index].column += shift


def svg(model, report, title: str) -> str:
    """The whole drawing as one SVG document."""
    boxes = boxes_of(model, report)
    lay_out(boxes)
    left = min((box.column for box in boxes), default=0)
    right = max((box.column for box in boxes), default=0)
    legend = _legend(report)
    top = MARGIN + 26 + 20 * len(legend)
    width = max(560, (right - left) * COLUMN + BOX_WIDTH + 2 * MARGIN)
    height = (max((box.row for box in boxes), default=0) + 1) * ROW + top + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="{MARGIN}" y="28" font-size="15">{html.escape(title)}</text>',
    ]
    for number, (colour, text) in enumerate(legend):
        y = 44 + 20 * number
        parts.append(
            f'<rect x="{MARGIN}" y="{y}" width="26" height="14" fill="{colour}" '
            f'stroke="#666"/><text x="{MARGIN + 34}" y="{y + 11}">{html.escape(text)}</text>'
        )

    def at(box: Box) -> tuple[float, float]:
        return MARGIN + (box.column - left) * COLUMN, top + box.row * ROW

    for box in boxes:
        parts += [_edge(at(boxes[i]), at(box)) for i in box.inputs]
    parts += [_box(box, *at(box)) for box in boxes]
    parts.append("</svg>")
    return "\n".join(parts)


def _legend(report) -> list[tuple[str, str]]:
    kinds = defaultdict(int)
    for fusion in report.fusions:
        kinds[fusion_kind(fusion)] += 1
    lines = [(colour_of(kind), f"{kind}: {count} fusions") for kind, count in sorted(kinds.items())]
    if report.left_out:
        lines.append((_LEFT_OUT, f"left to other providers: {len(report.left_out)} nodes"))
    lines.append((_DISSOLVED, "claimed and dissolved into its neighbours: needs no kernel"))
    lines.append((_REWRITTEN, "folded or merged by ONNX Runtime before providers are asked"))
    return lines


def _edge(source: tuple[float, float], target: tuple[float, float]) -> str:
    x1, y1 = source[0] + BOX_WIDTH / 2, source[1] + BOX_HEIGHT
    x2, y2 = target[0] + BOX_WIDTH / 2, target[1]
    middle = (y1 + y2) / 2
    return (
        f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} '
        f'{x2:.0f} {y2:.0f}" fill="none" stroke="#b5b5b5"/>'
    )


def _box(box: Box, x: float, y: float) -> str:
    label = box.op if len(box.op) <= 16 else box.op[:15] + "…"
    tip = html.escape(f"{box.op} {box.name}\n{box.note}")
    return (
        f'<g><title>{tip}</title><rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="4" fill="{box.fill}" stroke="{box.edge}"/>'
        f'<text x="{x + BOX_WIDTH / 2:.0f}" y="{y + 14:.0f}" text-anchor="middle">'
        f"{html.escape(label)}</text></g>"
    )
