"""Shape arithmetic: sizes read from inputs, computed with, and used as shapes and bounds."""

from __future__ import annotations

import numpy as np

from ..graph import F32, I32, I64, LEAST, MOST, Graph


def _size_of(g: Graph, x: str, axis: int) -> str:
    shape = g.node("Shape", [x])
    return g.node("Gather", [shape, g.constant(np.asarray(axis, I64))], axis=0)


def arithmetic(g: Graph) -> None:
    """A chain over sizes whose result is an output itself."""
    dtype = g.pick((I64, I64, I32))
    x = g.input(F32, g.dims(g.between(1, 3)))
    values = [g.node("Shape", [x])]
    if dtype is I32:
        values = [g.node("Cast", [values[0]], to=6)]
    for _ in range(g.between(1, 5)):
        factors = (1, 2, 3, 7, -1, 70000, 0, 2**30) + ((2**40, MOST, LEAST) if dtype is I64 else ())
        other = (
            g.constant(np.asarray([g.pick(factors)], dtype)) if g.chance(0.7) else g.pick(values)
        )
        op = g.pick(("Add", "Sub", "Mul", "Mul", "Div", "Mod", "Max", "Min"))
        if op in ("Div", "Mod"):
            other = g.constant(np.asarray([g.pick((1, 2, 3, -2, 5))], dtype))
        values.append(g.node(op, [g.pick(values), other]))
    y = values[-1]
    if g.chance(0.3):
        y = g.node("ReduceProd", [y], keepdims=1)
        if g.opset < 18:
            g.nodes[-1].ClearField("attribute")
    if dtype is I32 and g.chance(0.5):
        y, dtype = g.node("Cast", [y], to=7), I64
    g.output(y, dtype)


def used_as_shape(g: Graph) -> None:
    """Reshape, Expand, ConstantOfShape or Slice by numbers that were computed."""
    dims = g.dims(3)
    x = g.input(F32, dims)
    rows, columns = (g.node("Unsqueeze", [_size_of(g, x, a), g.ints(0)]) for a in (0, 1))
    kind = g.pick(("merge", "expand", "fill", "cut", "half"))
    if kind == "merge":
        target = g.node(
            "Concat", [g.node("Mul", [rows, columns]), g.ints(g.wild(-1, 7, 1))], axis=0
        )
        y = g.node("Reshape", [x, target])
    elif kind == "expand":
        wide = g.input(F32, g.wild([1, dims[1], 1], [dims[1], 1], [2, 1, 1]))
        y = g.node("Add", [x, g.node("Expand", [wide, g.node("Shape", [x])])])
    elif kind == "fill":
        value = g.constant(np.asarray([1.5], F32))
        value = g.constants.get(value)
        y = g.node("ConstantOfShape", [g.node("Concat", [columns, rows], axis=0)], value=value)
        y = g.node(
            "MatMul", [y, g.node("Reshape", [x, g.node("Concat", [rows, g.ints(-1)], axis=0)])]
        )
    elif kind == "cut":
        end = g.node("Sub", [rows, g.ints(g.pick((0, 1, 2, -1)))])
        y = g.node("Slice", [x, g.ints(g.pick((0, 1, -1))), end, g.ints(0)])
    else:
        end = g.node("Div", [columns, g.ints(2)])
        first = g.node("Slice", [x, g.ints(0), end, g.ints(1)])
        second = g.node("Slice", [x, end, g.ints(MOST), g.ints(1)])
        y = g.node("Concat", [g.node("Neg", [second]), first], axis=1)
    g.output(g.node("Relu", [g.keep(y)]))


def ranges(g: Graph) -> None:
    x = g.input(F32, g.dims(2))
    count = _size_of(g, x, 0)
    start, step = (
        g.constant(np.asarray(v, I64))
        for v in (g.pick((0, 1, -5)), g.wild(g.pick((1, 2, -1)), 0, LEAST, MOST))
    )
    y = g.node("Range", [start, count, step])
    if g.chance(0.5):
        y = g.node("Unsqueeze", [g.keep(y, I64), g.ints(1)])
        y = g.node("Less", [y, g.node("Range", [start, count, step])])
        g.output(g.node("Cast", [y], to=1))
    else:
        g.output(y, I64)


def filled(g: Graph) -> None:
    """A shape that arrives at Run."""
    rank = g.between(1, 3)
    shape = g.input(
        I64, [rank], lambda g, s: np.resize([g.wild(g.size(), -1) for _ in range(rank)], s)
    )
    kind = g.pick(("fill", "reshape", "expand"))
    if kind == "fill":
        y = g.node("ConstantOfShape", [shape])
    elif kind == "expand":
        y = g.node("Expand", [g.input(F32, [1]), shape])
    else:
        y = g.node("Reshape", [g.input(F32, g.dims(2)), shape])
    g.output(g.node("Exp", [g.keep(y)]) if g.chance(0.7) else y)


def many_sums(g: Graph) -> None:
    """A product of sums of sizes has many terms."""
    product = None
    for _ in range(g.between(2, 6)):
        x = g.input(F32, [g.label(g.between(0, 5)), g.label(g.between(0, 5))])
        total = g.node("ReduceSum", [g.node("Shape", [x])], keepdims=1)
        if g.opset < 13:
            g.nodes[-1].ClearField("attribute")
        product = g.node("Mul", [product, total]) if product else total
    g.output(product, I64)


def looped(g: Graph) -> None:
    """Reshape, Concat, Slice, Split in turns with a size carried along."""
    batch, length, width = g.label(), g.label(), g.pick((4, 8, 12))
    x = g.input(F32, [batch, length, width])
    for _ in range(g.between(1, 4)):
        kind = g.pick(("split", "flat", "pair", "cut"))
        if kind == "split":
            a, b = g.node("Split", [x, g.ints(width // 2, width - width // 2)], 2, axis=-1)
            x = g.node("Concat", [g.keep(b), g.keep(a)], axis=-1)
        elif kind == "flat":
            flat = g.keep(g.node("Reshape", [x, g.ints(-1, width)]))
            sizes = g.node(
                "Concat",
                [
                    g.node("Slice", [g.node("Shape", [x]), g.ints(0), g.ints(2)]),
                    g.ints(g.wild(width, -1)),
                ],
                axis=0,
            )
            x = g.node("Reshape", [g.node("Relu", [flat]), sizes])
        elif kind == "pair":
            x = g.node("Concat", [x, g.node("Neg", [x])], axis=1)
        else:
            x = g.node("Slice", [x, g.ints(g.pick((0, 1))), g.ints(MOST), g.ints(1)])
        x = g.keep(x)
    g.output(g.node("Sigmoid", [x]))


GRAPHS = (arithmetic, arithmetic, used_as_shape, used_as_shape, ranges, filled, many_sums, looped)
