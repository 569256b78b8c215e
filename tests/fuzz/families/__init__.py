"""One module per family of graphs; each writes a graph into the `Graph` that it is given."""

from __future__ import annotations

from ..graph import Graph
from . import attention, chains, movement, norms, products, selection, shapes, windows

MODULES = (products, attention, norms, movement, selection, chains, windows, shapes)
FAMILIES = {module.__name__.rsplit(".", 1)[-1]: module.GRAPHS for module in MODULES}
_SHARES = {
    "products": 17,
    "attention": 12,
    "norms": 8,
    "movement": 17,
    "selection": 14,
    "chains": 16,
    "windows": 8,
    "shapes": 8,
}


def write_random(g: Graph, only: str = "") -> str:
    """Writes a graph of a random family, or of the one named `family` or `family.graph`."""
    names = [f"{family}.{write.__name__}" for family in _SHARES for write in FAMILIES[family]]
    chosen = [name for name in names if name.startswith(only)]
    weights = [_SHARES[n.split(".")[0]] / len(FAMILIES[n.split(".")[0]]) for n in chosen]
    total = sum(weights)
    name = chosen[int(g.random.choice(len(chosen), p=[w / total for w in weights]))]
    family, graph = name.split(".")
    next(write for write in FAMILIES[family] if write.__name__ == graph)(g)
    return name
