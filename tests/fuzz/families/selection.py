"""Gathers, scatters and what picks by value: OneHot, TopK, Trilu, Compress, NonZero, Where."""

from __future__ import annotations

import numpy as np

from ..graph import BOOL, F16, F32, F64, I32, I64, Graph

_TYPES = (F32, F32, F32, F16, F64, I32, I64)


def _finish(g: Graph, y: str, dtype) -> None:
    if g.chance(0.3) and np.dtype(dtype).kind == "f":
        g.keep(y, dtype)
        y = g.node(g.pick(("Relu", "Neg")), [y])
    g.output(y, dtype)


def _bounds(g: Graph, size: int | str):
    """Usually the whole range that ONNX allows, negative indices too."""
    if isinstance(size, str):
        return g.pick((0, f"-{size}")), size
    return g.pick((0, -size)), size


def gather(g: Graph) -> None:
    dims = g.dims(g.between(1, 4))
    dtype = g.pick(_TYPES)
    data = g.input(dtype, dims) if g.chance(0.6) else g.constant(g.numbers(g.concrete(dims), dtype))
    axis = g.between(0, len(dims) - 1)
    kind = g.pick((I64, I64, I32))
    low, high = _bounds(g, dims[axis])
    rank = g.between(0, 2)
    if g.chance(0.4):
        size = g.concrete(dims)[axis]
        shape = tuple(g.between(1, 4) for _ in range(rank))
        indices = g.constant(g.integers(-size if low else 0, size, shape, kind))
    else:
        indices = g.indices(kind, g.dims(rank), low, high)
    y = g.node("Gather", [data, indices], axis=g.wild(axis, axis - len(dims), 9))
    _finish(g, y, dtype)


def embedding(g: Graph) -> None:
    """Rows of a table by tokens, a projection and a norm or softmax behind."""
    rows, width = g.pick((7, 50, 300)), g.pick((8, 16, 33, 64))
    table = g.weight(rows, width)
    tokens = g.indices(I64, [g.label(), g.label()], 0, rows)
    x = g.keep(g.node("Gather", [table, tokens]))
    if g.chance(0.5):
        x = g.keep(g.node("MatMul", [x, g.weight(width, g.pick((4, 16, 40)))]))
    _finish(g, g.node(g.pick(("Softmax", "Relu", "Identity")), [x]), F32)


def gather_elements(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    dtype = g.pick(_TYPES)
    axis = g.between(0, len(dims) - 1)
    shape = [d if g.chance(0.7) else g.label(g.wild(g.concrete([d])[0], 1, 2, 40)) for d in dims]
    shape[axis] = g.label()
    low, high = _bounds(g, dims[axis])
    indices = g.indices(g.pick((I64, I32)), shape, low, high)
    y = g.node(
        "GatherElements", [g.input(dtype, dims), indices], axis=g.wild(axis, axis - len(dims))
    )
    _finish(g, y, dtype)


def _tuples(g: Graph, dims, depth: int, lead: list):
    """Indices whose last axis holds `depth` coordinates."""
    bound = min((g.concrete([d])[0] for d in dims[:depth]), default=1)
    return g.indices(I64, [*lead, depth], 0, max(bound, 1))


def gather_nd(g: Graph) -> None:
    dims = g.dims(g.between(1, 4))
    dtype = g.pick(_TYPES)
    batch = g.between(0, 1) if len(dims) > 1 else 0
    depth = g.wild(g.between(1, len(dims) - batch), len(dims) + 1)
    lead = [g.wild(d, g.label()) for d in dims[:batch]] + g.dims(g.between(0, 2))
    indices = _tuples(g, dims[batch:], depth, lead)
    y = g.node("GatherND", [g.input(dtype, dims), indices], batch_dims=batch or None)
    _finish(g, y, dtype)


def scatter_elements(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    dtype = g.pick((F32, F32, F16, I32, I64))
    axis = g.between(0, len(dims) - 1)
    shape = [g.label(g.wild(max(s - g.between(0, 1), 0), s + 1, s + 40)) for s in g.concrete(dims)]
    updates = [g.wild(d, g.label()) for d in shape]
    low, high = _bounds(g, dims[axis])
    reduction = g.pick((None, None, "add", "mul", "max", "min")) if g.opset >= 18 else None
    inputs = [g.input(dtype, dims), g.indices(I64, shape, low, high), g.input(dtype, updates)]
    y = g.node("ScatterElements", inputs, axis=g.wild(axis, axis - len(dims)), reduction=reduction)
    _finish(g, y, dtype)


def scatter_nd(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    dtype = g.pick((F32, F32, F16, I32, I64))
    depth = g.between(1, len(dims))
    lead = g.dims(g.between(0, 2))
    indices = _tuples(g, dims, depth, lead)
    updates = [g.wild(d, g.label()) for d in [*lead, *dims[depth:]]]
    reduction = g.pick((None, None, "add", "mul", "max", "min")) if g.opset >= 18 else None
    inputs = [g.input(dtype, dims), indices, g.input(dtype, updates)]
    _finish(g, g.node("ScatterND", inputs, reduction=reduction), dtype)


def tensor_scatter(g: Graph) -> None:
    g.opset = 24
    batch, heads, width = g.label(), g.between(1, 3), g.pick((1, 4, 8))
    most, new = g.label(g.between(1, 20)), g.label(g.wild(1, 2, 3, 25))
    cache = g.input(F32, [batch, heads, most, width])
    update = g.input(F32, [batch, heads, new, width])
    places = g.indices(I64, [batch], 0, max(g.sizes[most] - g.sizes[new], 0) + 1)
    y = g.node(
        "TensorScatter",
        [cache, update, places if g.chance(0.7) else ""],
        axis=g.wild(2, -2, 1, 3),
        mode=g.pick((None, "linear", "circular")),
    )
    _finish(g, y, F32)


def one_hot(g: Graph) -> None:
    depth = g.between(1, 6)
    kind = g.pick((I64, I64, I32, F32))
    dims = g.dims(g.between(0, 2))

    def make(g: Graph, shape):
        values = g.integers(-depth, depth, shape, I64).astype(kind)
        return values + np.float32(g.pick((0, 0, 0.3, -0.3))) if kind is F32 else values

    indices = g.input(kind, dims, make)
    values = g.constant(np.asarray([g.between(-1, 1), g.between(1, 3)], g.pick((F32, I64))))
    dtype = F32
    if values in g.constants:
        dtype = {1: F32, 7: I64}[g.constants[values].data_type]
    else:
        values = g.constant(np.asarray([0, 1], F32))
    inputs = [indices, g.constant(np.asarray(depth, g.pick((I64, I64, F32)))), values]
    _finish(g, g.node("OneHot", inputs, axis=g.wild(-1, 0, len(dims), 9)), dtype)


def top_k(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    axis = g.between(0, len(dims) - 1)
    size = g.concrete(dims)[axis]
    dtype = g.pick((F32, F32, I64, F64))
    k = g.wild(min(g.between(1, 4), size), size + 1, 0, -1, size)
    values, places = g.node(
        "TopK",
        [g.input(dtype, dims), g.ints(k)],
        2,
        axis=axis,
        largest=g.pick((None, 0, 1)),
        sorted=None,
    )
    g.output(values, dtype)
    if g.chance(0.5):
        g.output(places, I64)


def arg_max(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    dtype = g.pick((F32, F32, I32, F64))
    y = g.node(
        g.pick(("ArgMax", "ArgMin")),
        [g.input(dtype, dims)],
        axis=g.axis(len(dims)),
        keepdims=g.pick((0, 1, None)),
        select_last_index=g.pick((None, 1)),
    )
    g.output(y, I64)


def trilu(g: Graph) -> None:
    dims = g.dims(g.between(2, 4))
    dtype = g.pick((F32, F32, F64, I64))
    k = (
        g.constant(np.asarray(g.wild(g.between(-3, 3), -70, 70, 2**40), I64))
        if g.chance(0.7)
        else ""
    )
    _finish(g, g.node("Trilu", [g.input(dtype, dims), k], upper=g.pick((0, 1, None))), dtype)


def cum_sum(g: Graph) -> None:
    dims = g.dims(g.between(1, 3))
    dtype = g.pick((F32, F32, F64, I32, I64))
    axis = g.constant(
        np.asarray(g.axis(len(dims)), g.pick((I64, I64, I32)) if not g.wildness else I64)
    )
    y = g.node(
        "CumSum",
        [g.input(dtype, dims), axis],
        exclusive=g.pick((None, 1)),
        reverse=g.pick((None, 1)),
    )
    _finish(g, y, dtype)


def where(g: Graph) -> None:
    dims = g.dims(g.between(0, 3))
    dtype = g.pick(_TYPES)
    ones = [d if g.chance(0.6) else 1 for d in dims]
    other = [g.wild(d, g.label()) if g.chance(0.7) else 1 for d in dims]
    inputs = [g.input(BOOL, ones), g.input(dtype, dims), g.input(dtype, other[g.between(0, 1) :])]
    _finish(g, g.node("Where", inputs), dtype)


def compress(g: Graph) -> None:
    """Sizes that only the Run's values tell: others must run them, or we must be right."""
    dims = g.dims(g.between(1, 3))
    x = g.input(F32, dims)
    kind = g.pick(("Compress", "NonZero", "Unique"))
    if kind == "Compress":
        axis = g.between(0, len(dims) - 1)
        y = g.node("Compress", [x, g.input(BOOL, [dims[axis]])], axis=axis)
    elif kind == "NonZero":
        y = g.node("Cast", [g.node("NonZero", [x])], to=1)
    else:
        y = g.node("Unique", [x])
    y = g.keep(y)
    _finish(g, g.node(g.pick(("Relu", "Neg", "Exp")), [y]), F32)


def reverse_sequence(g: Graph) -> None:
    time, batch = g.label(), g.label()
    dims = [time, batch, *g.dims(g.between(0, 1))]
    lengths = g.indices(I64, [batch], 0, f"{time}")
    y = g.node(
        "ReverseSequence",
        [g.input(F32, dims), lengths],
        time_axis=g.wild(0, 1),
        batch_axis=g.wild(1, 0),
    )
    _finish(g, y, F32)


GRAPHS = (
    gather,
    gather,
    embedding,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    tensor_scatter,
    one_hot,
    top_k,
    arg_max,
    trilu,
    cum_sum,
    where,
    compress,
    reverse_sequence,
)
