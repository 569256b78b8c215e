"""Data movement: views, slices, concatenations, splits, pads, and loops of them."""

from __future__ import annotations

import numpy as np

from ..graph import BOOL, F16, F32, F64, I8, I32, I64, LEAST, MOST, U8, Graph

_TYPES = (F32, F32, F32, F16, F64, I32, I64, U8, I8, BOOL)


def _data(g: Graph, low=1, high=4):
    """An input of some type and rank."""
    dims = g.dims(g.between(low, high))
    dtype = g.pick(_TYPES)
    return g.input(dtype, dims), dtype, dims


def _finish(g: Graph, y: str, dtype) -> None:
    """The value itself, or through a pointwise operator as a kernel of ours would read it."""
    if g.chance(0.4) and np.dtype(dtype).kind == "f":
        g.keep(y, dtype)
        y = g.node(g.pick(("Relu", "Neg", "Abs", "Sigmoid")), [y])
    g.output(y, dtype)


def _factors(g: Graph, count: int) -> list[int]:
    """Some numbers whose product is `count`."""
    factors = []
    for _ in range(g.between(0, 3)):
        divisors = [d for d in range(1, min(count, 64) + 1) if count % d == 0] or [1]
        factors.append(g.pick(divisors))
        count //= max(factors[-1], 1)
    factors.append(count)
    g.random.shuffle(factors)
    return [int(f) for f in factors]


def reshape(g: Graph) -> None:
    x, dtype, dims = _data(g, 0, 4)
    shape = g.concrete(dims)
    target = _factors(g, int(np.prod(shape)))
    if g.chance(0.5) and target:
        target[g.between(0, len(target) - 1)] = -1
    if g.chance(0.2) and target and len(target) <= len(shape):
        at = g.between(0, len(target) - 1)
        target[at] = 0
    if g.chance(g.wildness) and target:
        target[g.between(0, len(target) - 1)] = g.pick((-2, 7, 1000000, 0, MOST, 2**32, 3))
    y = g.node("Reshape", [x, g.ints(*target)], allowzero=g.wild(None, 1, 0))
    _finish(g, y, dtype)


def reshape_like(g: Graph) -> None:
    """The target is another input's shape, or put together from sizes."""
    x, dtype, dims = _data(g, 1, 3)
    other = g.input(F32, g.wild(dims[::-1], [g.label(), *dims], dims[:1]))
    shape = g.node("Shape", [other], start=g.wild(None, 0, 1, -1), end=g.wild(None, 1, -1))
    y = g.node("Reshape", [x, shape])
    if g.chance(0.5):
        y = g.node("Transpose", [g.keep(y, dtype)])
    _finish(g, y, dtype)


def squeeze(g: Graph) -> None:
    dims = [1 if g.chance(0.5) else d for d in g.dims(g.between(1, 4))]
    dtype = g.pick(_TYPES)
    x = g.input(dtype, dims)
    ones = [i for i, d in enumerate(g.concrete(dims)) if d == 1]
    if g.chance(0.5):
        axes = [g.wild(a, a - len(dims), 0, 5, LEAST) for a in ones] if not g.chance(0.2) else None
        y = g.node("Squeeze", [x, g.ints(*axes) if axes else ""])
    else:
        count = g.between(1, 2)
        axes = g.random.permutation(len(dims) + count)[:count].tolist()
        axes = [g.wild(a, a - len(dims) - count, 9, -9, 0) for a in axes]
        y = g.node("Unsqueeze", [x, g.ints(*axes)])
    _finish(g, y, dtype)


def flatten(g: Graph) -> None:
    x, dtype, dims = _data(g, 0, 4)
    _finish(g, g.node("Flatten", [x], axis=g.axis(len(dims)) if dims else 0), dtype)


def transpose(g: Graph) -> None:
    x, dtype, dims = _data(g, 0, 5)
    order = g.random.permutation(len(dims)).tolist()
    if g.chance(g.wildness) and order:
        order[0] = g.pick((0, len(dims), -1))
    _finish(g, g.node("Transpose", [x], perm=g.wild(order, None)), dtype)


def expand(g: Graph) -> None:
    x, dtype, dims = _data(g, 0, 3)
    target = [d if d != 1 or g.chance(0.5) else g.size() for d in g.concrete(dims)]
    target = [g.size() for _ in range(g.between(0, 2))] + target
    target = [g.wild(t, 1, 0, t + 1, -1) for t in target]
    _finish(g, g.node("Expand", [x, g.ints(*target)]), dtype)


def tile(g: Graph) -> None:
    x, dtype, dims = _data(g, 1, 3)
    repeats = [g.wild(g.between(0, 3), 1, -1) for _ in dims]
    _finish(g, g.node("Tile", [x, g.ints(*repeats)]), dtype)


def slices(g: Graph) -> None:
    if g.chance(0.15):
        g.opset = 9  # bounds are attributes
    x, dtype, dims = _data(g, 1, 4)
    axes = g.random.permutation(len(dims))[: g.between(1, min(len(dims), 2))].tolist()
    bounds = (0, 1, -1, 2, -2, 3, 7, 100, MOST, LEAST, 2**31 - 1, -(2**31), 2**62, -(2**62))
    starts, ends = ([g.pick(bounds) for _ in axes] for _ in range(2))
    for i in range(len(axes)):
        if g.chance(0.5):
            starts[i], ends[i] = g.pick((0, 1, -3)), g.pick((MOST, 5, -1, 2**31 - 1))
    steps = [g.wild(g.pick((1, 1, 2, 3, -1, -2)), 0, MOST, LEAST, 2**32, -(2**40)) for _ in axes]
    if g.opset < 10:
        y = g.node("Slice", [x], starts=starts, ends=ends, axes=g.wild(axes, None))
    else:
        axes = [g.wild(a, a - len(dims)) for a in axes]
        kind = g.pick((I64, I64, I32))
        if kind is I32:
            limit = np.iinfo(I32)
            starts, ends, steps = (
                [max(limit.min, min(limit.max, v)) for v in values]
                for values in (starts, ends, steps)
            )
        bounds = [g.ints(*v, dtype=kind) for v in (starts, ends, axes, steps)]
        y = g.node("Slice", [x, *bounds[: g.wild(4, 4, 4, 2)]])
    _finish(g, y, dtype)


def concat(g: Graph) -> None:
    dims = g.dims(g.between(1, 4))
    dtype = g.pick(_TYPES)
    axis = g.between(0, len(dims) - 1)
    parts = []
    for _ in range(g.between(1, 4)):
        own = list(dims)
        own[axis] = g.label() if g.chance(0.5) else g.size()
        # The same size under another name: nothing but the Run tells that they agree.
        own = [
            g.label(g.concrete([d])[0]) if i != axis and g.chance(0.3) else d
            for i, d in enumerate(own)
        ]
        parts.append(g.input(dtype, own))
        if np.dtype(dtype).kind == "f" and g.chance(0.3):
            parts[-1] = g.keep(g.node(g.pick(("Relu", "Neg")), [parts[-1]]), dtype)
    if g.chance(0.2):
        parts.append(parts[0])
    _finish(g, g.node("Concat", parts, axis=g.wild(axis, axis - len(dims), 9)), dtype)


def split(g: Graph) -> None:
    x, dtype, dims = _data(g, 1, 3)
    axis = g.between(0, len(dims) - 1)
    size = g.concrete(dims)[axis]
    count = g.between(1, 4)
    if g.opset >= 13 and g.chance(0.6):
        cuts = sorted(g.between(0, size) for _ in range(count - 1))
        sizes = np.diff([0, *cuts, size]).tolist()
        sizes = [g.wild(s, s + 1, 0, -1, 50000) for s in sizes]
        parts = g.node("Split", [x, g.ints(*sizes)], count, axis=axis)
    else:
        number = g.wild(count, count + 1) if g.opset >= 18 else None
        parts = g.node("Split", [x], count, axis=g.wild(axis, axis - len(dims)), num_outputs=number)
    for part in [parts] if isinstance(parts, str) else parts:
        _finish(g, part, dtype)


def pad(g: Graph) -> None:
    dims = g.dims(g.between(1, 4))
    dtype = g.pick((F32, F32, F16, F64, I32, I64))
    x = g.input(dtype, dims)
    mode = g.pick(("constant", "constant", "reflect", "edge", "wrap"))
    if mode == "wrap" and g.opset < 19:
        mode = "edge"
    pads = [g.wild(g.pick((0, 0, 1, 2)), -1, -2, 5, 40, -100) for _ in range(2 * len(dims))]
    value = g.constant(np.asarray(g.pick((0, 1.5, -3)), dtype)) if g.chance(0.5) else ""
    inputs = [x, g.ints(*pads), value if mode == "constant" else ""]
    if g.opset >= 18 and g.chance(0.3):
        axes = g.random.permutation(len(dims))[: g.between(1, len(dims))].tolist()
        inputs[1] = g.ints(*pads[: 2 * len(axes)])
        inputs.append(g.ints(*axes))
    _finish(g, g.node("Pad", inputs, mode=mode), dtype)


def depth_to_space(g: Graph) -> None:
    block = g.between(1, 3)
    channels = g.between(1, 3) * block * block
    dtype = g.pick((F32, F32, F16, U8))
    if g.chance(0.5):
        dims = [g.label(), g.wild(channels, channels + 1, 5), g.label(), g.label()]
        mode = g.pick(("DCR", "CRD", None))
        y = g.node("DepthToSpace", [g.input(dtype, dims)], blocksize=g.wild(block, 0, 2), mode=mode)
    else:
        dims = [g.label(), g.size(), *(g.wild(block * g.between(1, 4), 5, 7) for _ in range(2))]
        y = g.node("SpaceToDepth", [g.input(dtype, dims)], blocksize=block)
    _finish(g, y, dtype)


def heads(g: Graph) -> None:
    """Split, reshape, transpose and join again, as attention's surroundings do."""
    batch, length = g.label(), g.label()
    count, width = g.between(1, 4), g.pick((1, 2, 8, 16))
    dtype = g.pick((F32, F32, F16))
    x = g.input(dtype, [batch, length, 3 * count * width])
    parts = g.node("Split", [x, g.ints(*[count * width] * 3)], 3, axis=-1)
    turned = []
    for part in parts:
        shape = g.ints(0, g.wild(0, -1), count, width)
        y = g.node("Reshape", [g.keep(part, dtype), shape])
        turned.append(g.node("Transpose", [g.keep(y, dtype)], perm=[0, 2, 1, 3]))
    y = g.node("Concat", turned[: g.between(1, 3)], axis=g.pick((0, 1, 2, 3)))
    y = g.node("Transpose", [g.keep(y, dtype)], perm=[0, 2, 1, 3])
    _finish(g, g.node("Reshape", [y, g.ints(0, 0, g.wild(-1, count * width, 7))]), dtype)


def rolled(g: Graph) -> None:
    """A chain of slices and concatenations: windows are rolled and flipped this way."""
    dims = [g.label(), g.label(), g.size()]
    x = g.input(F32, dims)
    for _ in range(g.between(1, 3)):
        axis, cut = g.between(0, 2), g.pick((1, 2, -1, 0, -3))

        def piece(start, end, axis=axis, x=x):
            return g.keep(g.node("Slice", [x, g.ints(start), g.ints(end), g.ints(axis)]))

        x = g.keep(g.node("Concat", [piece(cut, MOST), piece(0, cut)], axis=axis))
        if g.chance(0.3):
            x = g.keep(g.node("Transpose", [x], perm=[1, 0, 2]))
    _finish(g, x, F32)


GRAPHS = (
    reshape,
    reshape,
    reshape_like,
    squeeze,
    flatten,
    transpose,
    expand,
    tile,
    slices,
    slices,
    concat,
    concat,
    split,
    pad,
    depth_to_space,
    heads,
    rolled,
)
