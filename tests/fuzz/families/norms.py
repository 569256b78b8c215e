"""Norms as operators and written out, with residuals, and softmax along any axis."""

from __future__ import annotations

import numpy as np

from ..graph import F16, F32, F64, I64, Graph

MS = "com.microsoft"


def _rows(g: Graph, dtype=F32, low=2, high=3):
    width = g.size()
    last = g.label(width) if g.chance(0.3) else width
    dims = [*g.dims(g.between(low, high) - 1), last]
    # Stock has paths in float64 whose squares do not overflow.
    return g.tame_input(dtype, dims), dims, width


def _vector(g: Graph, size: int, dtype=F32) -> str:
    size = g.wild(size, size + 1, 1)
    return g.constant((1 + g.numbers((size,), F32, 0.3)).astype(dtype))


def _finish(g: Graph, y: str, dtype, width: int) -> None:
    if g.chance(0.4) and width:
        y = g.node("MatMul", [g.keep(y, dtype), g.weight(width, g.pick((4, 16)), dtype=dtype)])
    g.output(y, dtype)


def layer_norm(g: Graph) -> None:
    dtype = g.pick((F32, F32, F16, F64))
    x, dims, width = _rows(g, dtype, 1, 4)
    axis = g.wild(-1, len(dims) - 1, 0, 5)
    g.opset = max(g.opset, 17)
    op = "LayerNormalization" if g.opset < 23 or g.chance(0.6) else "RMSNormalization"
    inputs = [x, _vector(g, width, dtype)]
    if op == "LayerNormalization" and g.chance(0.6):
        inputs.append(_vector(g, width, dtype))
    y = g.node(op, inputs, axis=axis, epsilon=g.wild(1e-5, 1e-12, 0.1))
    _finish(g, y, dtype, width)


def wide_norm(g: Graph) -> None:
    """Over more than the last axis."""
    g.opset = max(g.opset, 17)
    dims = g.dims(3)
    shape = g.concrete(dims)
    axis = g.between(-2, 1)
    scale = g.constant(1 + g.numbers(shape[axis:], F32, 0.3))
    g.output(g.node("LayerNormalization", [g.input(F32, dims), scale], axis=axis))


def skip_norm(g: Graph) -> None:
    dtype = g.pick((F32, F32, F16))
    x, dims, width = _rows(g, dtype, 3, 3)
    other = g.input(dtype, [g.wild(d, g.label(), 1) for d in dims])
    simple = g.chance(0.5)
    inputs = [x, other, _vector(g, width, dtype)]
    if not simple:
        inputs.append(_vector(g, width, dtype) if g.chance(0.7) else "")
    if g.chance(0.3):
        inputs.append(_vector(g, width, dtype))
    name = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    y, _, _, total = g.node(name, inputs, 4, domain=MS, epsilon=1e-5)
    g.nodes[-1].output[1] = g.nodes[-1].output[2] = ""
    if g.chance(0.5):
        g.output(total, dtype)
    else:
        g.nodes[-1].output[3] = ""
        del g.nodes[-1].output[1:]
    _finish(g, y, dtype, width)


def simplified(g: Graph) -> None:
    """SimplifiedLayerNormalization, which has no domain of its own."""
    x, _, width = _rows(g)
    y = g.node(
        "SimplifiedLayerNormalization",
        [x, _vector(g, width)],
        axis=-1,
        epsilon=1e-5,
        stash_type=g.pick((None, 1)),
    )
    _finish(g, y, F32, width)


def written_out(g: Graph) -> None:
    """x * rsqrt(mean(x^2) + eps) * w, as exporters write it; also with a mean taken off."""
    dtype = g.pick((F32, F32, F16))
    x, dims, width = _rows(g, dtype)
    wide = x
    if dtype == F16 and g.chance(0.7):
        wide = g.node("Cast", [x], to=1)
    inner = F32 if wide != x else dtype
    axes = g.wild(-1, len(dims) - 1, 0)

    def mean(v):
        if g.opset >= 18:
            return g.keep(g.node("ReduceMean", [v, g.ints(axes)], keepdims=1), inner)
        return g.keep(g.node("ReduceMean", [v], axes=[axes], keepdims=1), inner)

    if g.chance(0.4):
        wide = g.keep(g.node("Sub", [wide, mean(wide)]), inner)
    two = g.constant(np.asarray(2, inner))
    square = g.node("Pow", [wide, two]) if g.chance(0.6) else g.node("Mul", [wide, wide])
    spread = g.node(
        "Sqrt", [g.node("Add", [mean(g.keep(square, inner)), g.constant(np.asarray(1e-3, inner))])]
    )
    if g.chance(0.5):
        y = g.node("Div", [wide, spread])
    else:
        y = g.node("Mul", [wide, g.node("Reciprocal", [spread])])
    if wide != x and inner != dtype:
        y = g.node("Cast", [y], to=10)
    y = g.node("Mul", [g.keep(y, dtype), _vector(g, width, dtype)])
    _finish(g, y, dtype, width)


def softmax(g: Graph) -> None:
    if g.chance(0.15):
        g.opset = 11  # all axes from this one on
    dtype = g.pick((F32, F32, F32, F16, F64))
    dims = g.dims(g.between(1, 4))
    op, scale = g.pick(("Softmax", "Softmax", "LogSoftmax", "Hardmax")), g.pick((1.0, 10.0))
    # Which element is the largest beside a NaN, stock leaves to chance.
    x = (g.tame_input if op == "Hardmax" else g.input)(dtype, dims, scale=scale)
    y = g.node(
        op,
        [x],
        axis=g.wild(g.axis(len(dims)), None),
    )
    g.output(y, dtype)


def channel_norm(g: Graph) -> None:
    """Norms of images: batch, instance, group, LRN, Lp, mean-variance."""
    channels = g.pick((1, 2, 4, 6, 8))
    dims = [g.label(), g.wild(channels, g.label(channels)), *g.dims(g.between(1, 2))]
    x = g.input(F32, dims)

    def vector(low=0.5):
        size = g.wild(channels, channels + 1, 1)
        return g.constant((low + g.random.random(size)).astype(F32))

    kind = g.pick(("batch", "instance", "group", "lrn", "lp", "variance"))
    if kind == "batch":
        y = g.node(
            "BatchNormalization",
            [x, vector(), vector(), vector(), vector()],
            epsilon=g.wild(None, 0.1),
        )
    elif kind == "instance":
        y = g.node("InstanceNormalization", [x, vector(), vector()])
    elif kind == "group":
        g.opset = max(g.opset, 21)
        groups = g.wild(g.pick([d for d in (1, 2, 4) if channels % d == 0]), 3, 5)
        y = g.node("GroupNormalization", [x, vector(), vector()], num_groups=groups)
    elif kind == "lrn":
        y = g.node("LRN", [x], size=g.wild(3, 1, 2, 5))
    elif kind == "lp":
        y = g.node("LpNormalization", [x], axis=g.axis(len(dims)), p=g.pick((1, 2)))
    else:
        y = g.node("MeanVarianceNormalization", [x])
    g.output(y)


def gelus(g: Graph) -> None:
    x, _, width = _rows(g)
    op = g.pick(("BiasGelu", "FastGelu", "Gelu", "QuickGelu"))
    inputs = [x]
    if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5)):
        inputs.append(_vector(g, width))
    g.output(g.node(op, inputs, domain=MS))


def lengths(g: Graph) -> None:
    """A mean over the tokens that a mask shows, as sentence encoders have it."""
    batch, length = g.label(), g.label()
    x = g.input(F32, [batch, length, g.pick((4, 16))])
    mask = g.indices(I64, [batch, g.wild(length, g.label())], 0, 2)
    m = g.node("Unsqueeze", [g.node("Cast", [mask], to=1), g.ints(-1)])
    total = g.node("ReduceSum", [g.node("Mul", [x, g.keep(m)]), g.ints(1)], keepdims=0)
    count = g.node(
        "Clip", [g.node("ReduceSum", [m, g.ints(1)], keepdims=0), g.constant(np.asarray(1e-9, F32))]
    )
    g.output(g.node("Div", [g.keep(total), g.keep(count)]))


GRAPHS = (
    layer_norm,
    layer_norm,
    wide_norm,
    skip_norm,
    simplified,
    written_out,
    softmax,
    softmax,
    channel_norm,
    channel_norm,
    gelus,
    lengths,
)
