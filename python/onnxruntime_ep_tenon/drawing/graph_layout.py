"""Places boxes: a box's row is its longest way from the inputs, pushed down towards its readers;
its column is the mean of its neighbours', moved apart where boxes meet. A body stands to the right
of the graph that it belongs to, no higher than the node that runs it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from .drawn_graph import Box, DrawnGraph

ROW, COLUMN, BOX_WIDTH, BOX_HEIGHT = 58, 158, 140, 32
MARGIN, TITLE, GAP = 18, 26, 70
_SWEEPS = 8


@dataclass(eq=False)
class Frame:
    """Where a graph is drawn."""

    graph: DrawnGraph
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0  # of its own boxes; bodies lie outside
    height: float = 0.0
    left: float = 0.0  # the leftmost column
    owner: Box | None = None
    owner_frame: Frame | None = None
    bodies: list[Frame] = field(default_factory=list)

    def at(self, box: Box) -> tuple[float, float]:
        """The box's upper left corner."""
        return (
            self.x + MARGIN + (box.column - self.left) * COLUMN,
            self.y + TITLE + MARGIN + box.row * ROW,
        )

    def all(self) -> list[Frame]:
        return [self, *(frame for body in self.bodies for frame in body.all())]

    def extent(self) -> tuple[float, float]:
        """The right and lower end of the frame with its bodies."""
        frames = self.all()
        return max(f.x + f.width for f in frames), max(f.y + f.height for f in frames)


def place(graph: DrawnGraph, x: float = 0.0, y: float = 0.0) -> Frame:
    lay_out(graph)
    columns = [box.column for box in graph.boxes] or [0.0]
    rows = max((box.row for box in graph.boxes), default=0) + 1
    frame = Frame(graph, x, y, left=min(columns))
    frame.width = 2 * MARGIN + (max(columns) - min(columns)) * COLUMN + BOX_WIDTH
    frame.height = TITLE + 2 * MARGIN + (rows - 1) * ROW + BOX_HEIGHT
    next_x, free_y = x + frame.width + GAP, y
    for box in sorted(graph.boxes, key=lambda box: box.row):
        for body in box.bodies:
            placed = place(body, next_x, max(free_y, frame.at(box)[1] - TITLE))
            placed.owner, placed.owner_frame = box, frame
            frame.bodies.append(placed)
            free_y = placed.extent()[1] + GAP / 2
    return frame


def lay_out(graph: DrawnGraph) -> None:
    """Gives every box of one graph its row and column."""
    sources, targets = defaultdict(list), defaultdict(list)
    for source, target, _ in graph.edges():
        sources[target].append(source)
        targets[source].append(target)
    for box in graph.boxes:
        box.row = max((source.row + 1 for source in sources[box]), default=0)
    for box in reversed(graph.boxes):
        if targets[box]:
            box.row = max(box.row, min(target.row for target in targets[box]) - 1)
    rows = defaultdict(list)
    for box in graph.boxes:
        rows[box.row].append(box)
    for members in rows.values():
        for number, box in enumerate(members):
            box.column = number - (len(members) - 1) / 2
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in sorted(rows, reverse=not down):
            _place_row(rows[row], sources if down else targets)


def _place_row(members: list[Box], neighbours: dict[Box, list[Box]]) -> None:
    wanted = {}
    for box in members:
        columns = [near.column for near in neighbours[box]]
        wanted[box] = sum(columns) / len(columns) if columns else box.column
    members.sort(key=lambda box: wanted[box])
    last = None
    for box in members:
        box.column = last = wanted[box] if last is None else max(wanted[box], last + 1)
    # Moving boxes apart pushes the row to the right: bring its middle back.
    shift = sum(wanted[box] - box.column for box in members) / len(members)
    for box in members:
        box.column += shift
