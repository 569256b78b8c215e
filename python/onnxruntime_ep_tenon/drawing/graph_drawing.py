"""Draws a model's graph as SVG, and tells a page's script what each part of the drawing is."""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import dataclass

from ..report import Report, shortened
from .drawn_graph import (
    DISSOLVED,
    LEFT_OUT,
    REWRITTEN,
    TERMINAL,
    Box,
    DrawnGraph,
    colour_of,
    drawn_graph,
    meaning_of,
)
from .graph_layout import BOX_HEIGHT, BOX_WIDTH, MARGIN, TITLE, Frame, place

_LEGEND_LINE = 20
_LABEL = 24  # characters that fit a box
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def escaped(text: str) -> str:
    """For XML and HTML, of which a model's names know nothing."""
    return html.escape(_NOT_XML.sub("\ufffd", text))


@dataclass(frozen=True)
class LegendEntry:
    key: str  # of the boxes: a kind, or a partition's name
    text: str
    fill: str
    edge: str = "#666666"


class Drawing:
    """One model, placed once, drawn as a document of its own or as a part of a page."""

    def __init__(self, model, report: Report):
        self.graph = drawn_graph(model, report)
        self.frame = place(self.graph)
        self._graphs = list(self.graph.with_bodies())
        self._boxes = [box for graph in self._graphs for box in graph.boxes]
        self._numbers = {box: number for number, box in enumerate(self._boxes)}
        tensors = [tensor for graph in self._graphs for tensor in graph.tensors.values()]
        self._tensors = tensors
        self._tensor_numbers = {tensor: number for number, tensor in enumerate(tensors)}

    @property
    def nodes(self) -> int:
        """Of the file, in bodies as well."""
        return sum(box.verdict.kind != TERMINAL for box in self._boxes)

    def legend(self) -> list[LegendEntry]:
        """Fills, then borders; only what the drawing has."""
        counts = Counter(box.verdict.kind for box in self._boxes)
        others = (DISSOLVED, LEFT_OUT, REWRITTEN, TERMINAL)
        kinds = sorted(counts.keys() - set(others)) + [kind for kind in others if counts[kind]]
        lines = [
            LegendEntry(kind, f"{kind} ({counts[kind]}): {meaning_of(kind)}", colour_of(kind))
            for kind in kinds
        ]
        parts = Counter(b.verdict.partition for b in self._boxes if b.verdict.partition)
        edges = {b.verdict.partition: b.verdict.edge for b in self._boxes}
        return lines + [
            LegendEntry(name, f"border: {name}, {count} nodes of the file", "#ffffff", edges[name])
            for name, count in sorted(parts.items())
        ]

    def document(self, title: str) -> str:
        """An SVG file with its own title and legend."""
        legend = self.legend()
        top = 48 + _LEGEND_LINE * len(legend)
        parts = [f'<text x="{MARGIN}" y="28" font-size="15">{escaped(title)}</text>']
        for number, entry in enumerate(legend):
            y = 42 + _LEGEND_LINE * number
            parts.append(
                f'<rect x="{MARGIN}" y="{y}" width="26" height="14" fill="{entry.fill}" '
                f'stroke="{entry.edge}"/><text x="{MARGIN + 34}" y="{y + 11}">'
                f"{escaped(entry.text)}</text>"
            )
        return self._svg(parts, top, least_width=640)

    def picture(self) -> str:
        """The SVG element for a page, which has title and legend already."""
        return self._svg([], 0, least_width=0)

    def _svg(self, front: list[str], top: float, least_width: float) -> str:
        right, low = self.frame.extent()
        width, height = max(right + 2, least_width), low + top + 2  # with the frames' lines
        frames = self.frame.all()
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="11">',
            f'<rect class="canvas" width="{width:.0f}" height="{height:.0f}" fill="white"/>',
            *front,
            f'<g transform="translate(1 {top + 1:.0f})">',
        ]
        for number, frame in enumerate(frames):
            parts += self._frame(number, frame)
        parts.append("<g>")
        for frame in frames:
            parts += self._edges(frame)
        parts.append("</g><g>")
        for frame in frames:
            parts += [self._box(box, *frame.at(box)) for box in frame.graph.boxes]
        parts.append("</g></g></svg>")
        return "\n".join(parts)

    def _frame(self, number: int, frame: Frame) -> list[str]:
        parts = [
            f'<g class="frame" data-graph="{number}"><rect x="{frame.x:.0f}" y="{frame.y:.0f}" '
            f'width="{frame.width:.0f}" height="{frame.height:.0f}" rx="8" fill="none" '
            f'stroke="#bbbbbb"/><text x="{frame.x + MARGIN:.0f}" y="{frame.y + TITLE - 6:.0f}" '
            f'font-size="13">{escaped(shortened(frame.graph.title, 70))}</text></g>'
        ]
        if frame.owner and frame.owner_frame:
            x, y = frame.owner_frame.at(frame.owner)
            parts.append(
                f'<path class="to-body" d="M{x + BOX_WIDTH:.0f} {y + BOX_HEIGHT / 2:.0f}'
                f'L{frame.x:.0f} {frame.y + TITLE / 2:.0f}" fill="none" stroke="#777777" '
                'stroke-dasharray="5 4"/>'
            )
        return parts

    def _edges(self, frame: Frame) -> list[str]:
        parts = []
        for source, target, tensor in frame.graph.edges():
            (x1, y1), (x2, y2) = frame.at(source), frame.at(target)
            x1, x2, y1 = x1 + BOX_WIDTH / 2, x2 + BOX_WIDTH / 2, y1 + BOX_HEIGHT
            bend = min((y2 - y1) / 2, 60)
            line = (
                f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} "
                f"{x2:.0f} {y2:.0f}"
            )
            number = self._tensor_numbers[tensor]
            tip = escaped(f"{tensor.name}\n{shortened(tensor.type) or 'type unknown'}")
            parts.append(
                f'<g class="edge" data-tensor="{number}" data-to="{self._numbers[target]}">'
                f"<title>{tip}</title>"
                f'<path class="line" d="{line}" fill="none" stroke="#a8a8a8"/>'
                f'<path d="{line}" fill="none" stroke="transparent" stroke-width="9"/></g>'
            )
        return parts

    def _box(self, box: Box, x: float, y: float) -> str:
        verdict, middle = box.verdict, x + BOX_WIDTH / 2
        tip = escaped(f"{box.op} {box.name}\n{verdict.note}".strip())
        corner = BOX_HEIGHT / 2 if verdict.kind == TERMINAL else 4
        lines = [
            f'<text x="{middle:.0f}" y="{y + 13:.0f}" text-anchor="middle" fill="#1c1c1c">'
            f"{escaped(_tail(box.op, 20))}{' ▸' if box.bodies else ''}</text>",
            f'<text class="name" x="{middle:.0f}" y="{y + 25:.0f}" text-anchor="middle" '
            f'font-size="9" fill="#4a4a4a">{escaped(_tail(box.name, _LABEL))}</text>',
        ]
        if box.outputs and box.outputs[0].type:
            lines.append(
                f'<text class="type" x="{middle + 4:.0f}" y="{y + BOX_HEIGHT + 10:.0f}" '
                f'font-size="8" fill="#777777" stroke="white" stroke-width="3" '
                f'paint-order="stroke">{escaped(shortened(box.outputs[0].type, 28))}</text>'
            )
        return (
            f'<g class="box" data-box="{self._numbers[box]}"><title>{tip}</title>'
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            f'rx="{corner:.0f}" fill="{colour_of(verdict.kind)}" stroke="{verdict.edge}" '
            f'stroke-width="{1.6 if verdict.partition else 1}"/>{"".join(lines)}</g>'
        )

    def data(self) -> dict:
        """What the page's script shows and searches; places in lists are the data-… numbers."""
        numbers, tensors = self._numbers, self._tensor_numbers
        owners = {body: box for box in self._boxes for body in box.bodies}
        graphs = {graph: number for number, graph in enumerate(self._frame_order())}
        return {
            "graphs": [
                {"title": graph.title, "owner": numbers.get(owners.get(graph), -1)}
                for graph in graphs
            ],
            "boxes": [
                {
                    "name": box.name,
                    "op": box.op,
                    "kind": box.verdict.kind,
                    "partition": box.verdict.partition,
                    "note": box.verdict.note,
                    "inputs": [tensors[tensor] for tensor in box.inputs],
                    "captured": [tensors[tensor] for tensor in box.captured],
                    "outputs": [tensors[tensor] for tensor in box.outputs],
                    "attributes": box.attributes,
                    "bodies": [graphs[body] for body in box.bodies],
                }
                for box in self._boxes
            ],
            "tensors": [
                {
                    "name": tensor.name,
                    "type": tensor.type,
                    "origin": tensor.origin,
                    "source": numbers.get(tensor.source, -1),
                    "readers": [numbers[box] for box in tensor.readers],
                }
                for tensor in self._tensors
            ],
        }

    def _frame_order(self) -> list[DrawnGraph]:
        return [frame.graph for frame in self.frame.all()]


def _tail(text: str, most: int) -> str:
    """The end of a name tells more than its beginning, which many share."""
    return text if len(text) <= most else "…" + text[1 - most :]
