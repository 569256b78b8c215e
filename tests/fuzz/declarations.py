"""What a fuzzed model declares about its values: the truth, less than it, or something stale.

ONNX Runtime believes run-time shapes, not declarations; a model exported at one length and fed
another is common. `Declared` draws one manner for the inputs, one for outputs and inner values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import helper

from .graph import Graph, element_type

# Pairs that differ, and yet become one where a name is made an identifier carelessly.
CLASHING = (
    "a-b",
    "a b",
    "a_b",
    "seq.1",
    "seq_1",
    "seq",
    "N",
    "1",
    "d0",
    "batch size",
    "x0_d0",
    "é",
)

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Declared:
    inputs: str
    outputs: str
    inner: str

    @staticmethod
    def draw(g: Graph) -> Declared:
        def draw(**shares: float) -> str:
            names = list(shares)
            weights = np.array([shares[n] for n in names])
            return names[int(g.random.choice(len(names), p=weights / weights.sum()))]

        return Declared(
            draw(labels=45, numbers=20, names=15, unnamed=5, clashing=8, rankless=4),
            draw(nothing=50, truth=14, stale=26, names=10),
            draw(nothing=62, truth=10, stale=28),
        )

    @staticmethod
    def honest(g: Graph) -> Declared:
        """Nothing is declared that is not so."""
        return Declared(g.pick(("labels", "labels", "numbers")), "nothing", "nothing")

    @property
    def fixed(self) -> bool:
        """The runtime itself refuses another size."""
        return self.inputs == "numbers"

    @property
    def needs_shapes(self) -> bool:
        return {self.outputs, self.inner} & {"truth", "stale"} != set()


def value_infos(g: Graph, declared: Declared, probe: Callable[[], Shapes]):
    """Inputs, outputs and inner values, declared so; `probe` says what shapes there really are."""
    shapes = probe() if declared.needs_shapes else {}
    inputs = [
        _info(value.name, value.dtype, _input_dims(g, declared.inputs, value)) for value in g.inputs
    ]
    outputs = [
        _info(name, dtype, _result_dims(g, declared.outputs, shapes.get(name)))
        for name, dtype in g.outputs
    ]
    inner = []
    for name, dtype in g.inner.items():
        dims = _result_dims(g, declared.inner, shapes.get(name))
        if dims is not None and name not in {o for o, _ in g.outputs}:
            inner.append(_info(name, dtype, dims))
    return inputs, outputs, inner


def _info(name: str, dtype, dims):
    return helper.make_tensor_value_info(name, element_type(dtype), dims)


def _input_dims(g: Graph, manner: str, value):
    if value.default is not None:
        return list(value.dims)
    if manner == "labels":
        return list(value.dims)
    if manner == "numbers":
        return list(g.concrete(value.dims))
    if manner == "names":
        return [f"{value.name}_{i}" for i in range(len(value.dims))]
    if manner == "unnamed":
        return [None] * len(value.dims)
    if manner == "clashing":
        return [d if isinstance(d, int) else g.pick(CLASHING) for d in value.dims]
    return None


def _result_dims(g: Graph, manner: str, shape: tuple[int, ...] | None):
    if manner == "names" and shape is None:
        return None
    if shape is None or manner == "nothing":
        return None
    dims: list = list(shape)
    if manner == "stale" and dims:
        at = int(g.random.integers(len(dims)))
        size = dims[at]
        dims[at] = g.pick((size * 2, size + 1, max(size - 1, 0), 1, 0, 128, 4000, 2**40))
        if g.chance(0.4):
            dims = [d if i == at else f"o{i}" for i, d in enumerate(dims)]
    if manner == "names":
        dims = [g.pick(CLASHING) if g.chance(0.5) else f"o{i}" for i in range(len(dims))]
    return dims
