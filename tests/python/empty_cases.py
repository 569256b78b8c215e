"""Tensors without elements, as the model declares them or as a Run brings them."""

from size_models import FLOAT, case, integers, node, numbers

for dims in ([5, 0, 15], [5, "n", 15]):
    case(
        f"Softmax of nothing, transposed, {dims}",
        [
            node("Transpose", "x", "t", perm=[0, 2, 1]),
            node("Softmax", "t", "s", axis=1),
            node("Neg", "s"),
        ],
        {"x": dims},
        {"x": numbers(5, 0, 15)},
    )
for dims in ([3, 5, 0], ["n", 5, 0]):
    case(
        f"Softmax of nothing behind a transposed chain, {dims}",
        [
            node("Transpose", "x", "t", perm=[2, 1, 0]),
            node("Sigmoid", "t", "s"),
            node("Softmax", "s", axis=0),
        ],
        {"x": dims},
        {"x": numbers(3, 5, 0)},
    )
case(
    "Tile of nothing by a number below 0",
    [node("Shape", "x", "s", end=1), node("Sub", "s b", "r"), node("Tile", "z r")],
    {"x": ["n"], "z": ["m"]},
    {"x": numbers(2), "z": numbers(3)},
    {"x": numbers(1), "z": numbers(3)},
    {"x": numbers(0), "z": numbers(0)},
    constants={"b": integers(1)},
    allowed_error="older runtimes give nothing",
)
case(
    "Split with fewer outputs than it says",
    [node("Split", "x", "a b", axis=0, num_outputs=3), node("Concat", "a b", axis=0)],
    {"x": ["n"]},
    {"x": numbers(2)},
    {"x": numbers(9)},
)
for op in ("Hardmax", "GlobalMaxPool"):
    case(
        f"{op} of nothing",
        node(op, "x"),
        {"x": ["n", "m", "k"]},
        {"x": numbers(2, 3, 4)},
        {"x": numbers(0, 3, 0)},
        {"x": numbers(2, 0, 0)},
        {"x": numbers(0, 3, 4)},
    )
case(
    "ArgMax",
    [node("ArgMax", "x", "a", axis=1), node("Cast", "a", to=FLOAT)],
    {"x": ["n", "m"]},
    {"x": numbers(2, 3)},
    {"x": numbers(0, 3)},
    {"x": numbers(0, 0)},
    {"x": numbers(2, 0)},
)
for shape, dims in (([4, 0], [4, 0]), ([4, 0], ["n", 0]), ([0, 4], [0, 4]), ([0, 4], ["n", 4])):
    case(
        f"Softmax of {shape}, {dims}",
        node("Softmax", "x", axis=-1),
        {"x": dims},
        {"x": numbers(*shape)},
    )
    case(
        f"LayerNormalization and a product of {shape}, {dims}",
        [node("LayerNormalization", "x g", "n"), node("MatMul", "n w")],
        {"x": dims},
        {"x": numbers(*shape)},
        constants={"g": numbers(shape[-1]), "w": numbers(shape[-1], 5)},
    )
    for op in ("ReduceSum", "ReduceMean"):
        case(
            f"{op} of {shape}, {dims}",
            node(op, "x a"),
            {"x": dims},
            {"x": numbers(*shape)},
            constants={"a": integers(1)},
        )
