"""Pointwise and reduction chains of any shape and type, and random graphs grown node by node."""

from __future__ import annotations

import numpy as np

from ..graph import BOOL, F16, F32, F64, I8, I32, I64, U8, Graph

# Operators by the oldest opset that has them.
UNARY = """Relu:6 Tanh:6 Sigmoid:6 Abs:13 Neg:13 Erf:13 Softplus:1 HardSwish:14 Floor:13 Ceil:13
Sin:7 Cos:7 Exp:13 Sqrt:13 Log:13 Elu:6 Selu:6 LeakyRelu:6 HardSigmoid:6 Softsign:1 Reciprocal:13
Round:11 Sign:13 Atan:7 Sinh:9 Cosh:9 Asinh:9 ThresholdedRelu:10 Celu:12 Mish:18 Gelu:20
Identity:13 Shrink:9""".split()
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu")
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
REDUCTIONS = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "ReduceLogSum",
)


def _unary(g: Graph, dtype) -> str:
    names = [op.split(":")[0] for op in UNARY if int(op.split(":")[1]) <= g.opset]
    # Stock's 1/6 in HardSwish is a float32.
    return g.pick([name for name in names if name != "HardSwish" or dtype != F64])


def reduced(g: Graph, x: str, axes: list[int] | None, keep: int | None, op: str = "") -> str:
    """Axes as an input or as an attribute, whichever the opset has."""
    op = op or g.pick(REDUCTIONS)
    since = 13 if op == "ReduceSum" else 18
    if g.opset >= since:
        empty = g.wild(None, 1) if axes is None else None
        inputs = [x, "" if axes is None else g.ints(*axes)]
        return g.node(op, inputs, keepdims=keep, noop_with_empty_axes=empty)
    return g.node(op, [x], axes=axes, keepdims=keep)


def pointwise(g: Graph) -> None:
    """Broadcasting between inputs whose sizes have different names."""
    dtype = g.pick((F32, F32, F32, F16, F64))
    dims = g.dims(g.between(0, 4))
    values = [g.input(dtype, dims)]
    for _ in range(g.between(0, 2)):
        own = [
            d if g.chance(0.7) else g.wild(1, g.label(), g.label(g.concrete([d])[0])) for d in dims
        ]
        values.append(g.input(dtype, own[g.between(0, len(own)) :] if own else []))
    for _ in range(g.between(1, 6)):
        choice = g.random.random()
        a, b = g.pick(values), g.pick(values[-3:])
        if choice < 0.45:
            y = g.node(_unary(g, dtype), [a])
        elif choice < 0.8:
            if g.chance(0.4):
                b = g.constant(g.numbers(g.wild((), (1,), (3,), (1, 1)), dtype))
            y = g.node(g.pick(BINARY), [a, b] if g.chance(0.7) else [b, a])
        elif choice < 0.9:
            y = g.node("Where", [g.node(g.pick(COMPARISONS), [a, b]), a, b])
        else:
            low, high = (g.constant(np.asarray(v, dtype)) for v in (-0.5, 0.7))
            y = g.node("Clip", [a, low if g.chance(0.8) else "", high])
        values.append(g.keep(y, dtype))
    g.output(values[-1], dtype)
    if g.chance(0.3):
        g.output(g.pick(values), dtype)


def integers(g: Graph) -> None:
    dtype = g.pick((I32, I64, I64, U8, I8, np.uint32, np.uint64, np.int16))
    dims = g.dims(g.between(0, 3))
    a, b = g.input(dtype, dims), g.input(dtype, [g.wild(d, 1) for d in dims])
    op = g.pick(
        (
            "Add",
            "Sub",
            "Mul",
            "Max",
            "Min",
            "Mod",
            "Equal",
            "Less",
            "Greater",
            "BitwiseAnd",
            "BitwiseXor",
            "Abs",
            "Neg",
            "Sign",
            "Cast",
            "Pow",
        )
    )
    if op in ("Abs", "Neg", "Sign"):
        g.output(g.node(op, [a]), dtype)
    elif op == "Cast":
        g.output(g.node("Cast", [a], to=g.pick((1,))), F32)
    elif op == "Mod":
        ones = g.node(
            "Add",
            [
                g.node("Abs", [b]) if np.dtype(dtype).kind == "i" else b,
                g.constant(np.asarray(1, dtype)),
            ],
        )
        g.output(g.node("Mod", [a, ones], fmod=g.pick((None, 0))), dtype)
    else:
        boolean = op in ("Equal", "Less", "Greater")
        if op == "Pow" and np.dtype(dtype).kind == "i":
            b = g.node("Abs", [b])  # 0 to a negative power is no integer
        y = g.node(op, [a, b])
        g.output(g.node("Not", [y]) if boolean and g.chance(0.3) else y, BOOL if boolean else dtype)


def casts(g: Graph) -> None:
    """Among types in which the values are exact or in range; the rest ONNX leaves open."""
    start = g.pick((F32, F32, F16, F64, I32, I64, U8, BOOL))
    y, dtype = g.input(start, g.dims(g.between(0, 3))), start
    for _ in range(g.between(1, 3)):
        if np.dtype(dtype).kind == "f" and g.chance(0.3):
            y = g.node("Clip", [y, *(g.constant(np.asarray(v, dtype)) for v in (0, 100))])
            # NaN among the numbers has no integer.
            dtype = g.pick((F32, F16, F64))
        elif np.dtype(dtype).kind == "f":
            dtype = g.pick((F32, F16, F64, BOOL))
        else:
            dtype = g.pick((F32, F16, F64, I32, I64, BOOL))
        y = g.keep(
            g.node("Cast", [y], to={F32: 1, F16: 10, F64: 11, I32: 6, I64: 7, BOOL: 9}[dtype]),
            dtype,
        )
    g.output(y, dtype)


def reductions(g: Graph) -> None:
    if g.chance(0.2):
        g.opset = 11  # axes are attributes
    dtype = g.pick((F32, F32, F32, F64, F16, I32, I64))
    dims = g.dims(g.between(1, 4))
    x = g.input(dtype, dims)
    if np.dtype(dtype).kind == "f" and g.chance(0.5):
        x = g.keep(g.node(_unary(g, dtype), [x]), dtype)
    axes = None
    if g.chance(0.8):
        axes = g.random.permutation(len(dims))[: g.between(1, len(dims))].tolist()
        axes = [g.wild(a, a - len(dims), 9, 0) for a in axes]
    op = g.pick(
        REDUCTIONS if np.dtype(dtype).kind == "f" else ("ReduceSum", "ReduceMax", "ReduceMin")
    )
    y = reduced(g, x, axes, g.pick((None, 0, 1)), op)
    if np.dtype(dtype).kind == "f" and g.chance(0.4):
        y = g.node(g.pick(("Sub", "Div", "Add", "Mul")), [x, g.keep(y, dtype)])
    g.output(y, dtype)


def variadic(g: Graph) -> None:
    dtype = g.pick((F32, F32, F64))
    dims = g.dims(g.between(0, 3))
    inputs = [
        g.input(dtype, [g.wild(d, 1) for d in dims][g.between(0, len(dims)) :] if dims else [])
        for _ in range(g.between(1, 4))
    ]
    g.output(g.node(g.pick(("Sum", "Mean", "Max", "Min")), inputs), dtype)


def quantized(g: Graph) -> None:
    """QuantizeLinear and back."""
    dims = g.dims(g.between(1, 3))
    code = g.pick((U8, I8))
    x = g.input(F32, dims)
    if g.chance(0.5):
        scale, zero, axis = np.asarray(0.1, F32), np.asarray(3, code), None
    else:
        axis = g.between(0, len(dims) - 1)
        count = g.wild(g.concrete(dims)[axis], g.concrete(dims)[axis] + 1)
        scale = (g.random.random(count) + 0.05).astype(F32)
        zero = g.numbers((count,), code)
    inputs = [g.constant(scale), g.constant(zero)]
    q = g.keep(g.node("QuantizeLinear", [x, *inputs], axis=axis), code)
    if g.chance(0.3):
        g.output(q, code)
    g.output(g.node("DequantizeLinear", [q, *inputs], axis=axis))


def normalised_sums(g: Graph) -> None:
    """x / sum(x) and the like: a reduction between pointwise parts, also over two axes."""
    dims = g.dims(g.between(2, 4))
    x = g.input(F32, dims)
    e = g.keep(g.node(g.pick(("Exp", "Abs", "Sigmoid")), [x]))
    axis = g.between(-len(dims), len(dims) - 1)
    total = reduced(g, e, [axis], 1, g.pick(("ReduceSum", "ReduceMax", "ReduceMean")))
    y = g.keep(g.node("Div", [e, g.node("Add", [g.keep(total), g.constant(np.asarray(1, F32))])]))
    if g.chance(0.5):
        y = reduced(g, y, [g.between(0, len(dims) - 1)], g.pick((0, 1)), "ReduceSum")
    g.output(y)


def grown(g: Graph) -> None:
    """A graph grown operator by operator; shapes are followed so that most of it is valid."""
    dims = g.dims(g.between(2, 3))
    values = [(g.input(F32, dims), dims)]
    for _ in range(g.between(3, 12)):
        x, dims = g.pick(values[-3:])
        step = g.pick(
            (
                _step_unary,
                _step_unary,
                _step_binary,
                _step_transpose,
                _step_reduce,
                _step_softmax,
                _step_product,
                _step_concat,
                _step_slice,
                _step_squeeze,
            )
        )
        made = step(g, x, dims, values)
        if made is not None:
            values.append((g.keep(made[0]), made[1]))
    g.output(values[-1][0])
    g.output(g.pick(values)[0])
    if g.chance(0.3):
        g.output(g.node("Shape", [values[-1][0]]), I64)


def _step_unary(g, x, dims, values):
    # Those that keep numbers of order one.
    return g.node(
        g.pick(("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Erf", "Softplus", "Sin")), [x]
    ), dims


def _step_binary(g, x, dims, values):
    fitting = [v for v, d in values if d == dims]
    return g.node(g.pick(("Add", "Sub", "Mul", "Max", "Min")), [x, g.pick(fitting)]), dims


def _step_transpose(g, x, dims, values):
    order = g.random.permutation(len(dims)).tolist()
    return g.node("Transpose", [x], perm=order), [dims[i] for i in order]


def _step_reduce(g, x, dims, values):
    axis = g.between(0, len(dims) - 1)
    y = reduced(g, x, [axis], 1, g.pick(("ReduceMean", "ReduceMax", "ReduceL2")))
    return y, [*dims[:axis], 1, *dims[axis + 1 :]]


def _step_softmax(g, x, dims, values):
    return g.node("Softmax", [x], axis=g.between(0, len(dims) - 1)), dims


def _step_product(g, x, dims, values):
    if not isinstance(dims[-1], int):
        return None
    width = g.pick((1, 4, 16, 33))
    return g.node("MatMul", [x, g.weight(dims[-1], width)]), [*dims[:-1], width]


def _step_concat(g, x, dims, values):
    axis = g.between(0, len(dims) - 1)
    fitting = [
        (v, d)
        for v, d in values
        if len(d) == len(dims)
        and isinstance(d[axis], int)
        and d[:axis] + d[axis + 1 :] == dims[:axis] + dims[axis + 1 :]
    ]
    if not fitting or not isinstance(dims[axis], int):
        return None
    other, own = g.pick(fitting)
    return g.node("Concat", [x, other], axis=axis), [
        *dims[:axis],
        dims[axis] + own[axis],
        *dims[axis + 1 :],
    ]


def _step_slice(g, x, dims, values):
    axis = g.between(0, len(dims) - 1)
    if not isinstance(dims[axis], int) or dims[axis] < 2 or g.opset < 10:
        return None
    end = g.between(1, dims[axis])
    y = g.node("Slice", [x, g.ints(0), g.ints(end), g.ints(axis)])
    return y, [*dims[:axis], end, *dims[axis + 1 :]]


def _step_squeeze(g, x, dims, values):
    if g.opset < 13 or len(dims) > 4:
        return None
    if 1 in dims and len(dims) > 1 and g.chance(0.6):
        axis = dims.index(1)
        return g.node("Squeeze", [x, g.ints(axis)]), [*dims[:axis], *dims[axis + 1 :]]
    axis = g.between(0, len(dims))
    return g.node("Unsqueeze", [x, g.ints(axis)]), [*dims[:axis], 1, *dims[axis:]]


GRAPHS = (
    pointwise,
    pointwise,
    integers,
    casts,
    reductions,
    reductions,
    variadic,
    quantized,
    normalised_sums,
    grown,
    grown,
    grown,
)
