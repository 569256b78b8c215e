"""Results whose sizes are not what the model declares."""

from size_models import case, indices, integers, node, numbers, tail

case(
    "Gather, its result declared longer",
    node("Gather", "a i"),
    {"a": ["m", "k"], "i": ["n"]},
    {"a": numbers(2, 3), "i": integers(1)},
    outputs={"y": [4000, "k"]},
)
case(
    "Concat, its result declared shorter",
    node("Concat", "a a", axis=0),
    {"a": ["m", 3]},
    {"a": numbers(4000, 3)},
    outputs={"y": [4, 3]},
)
case(
    "an embedding exported at 128 tokens",
    [
        node("Gather", "w i", "r"),
        node("MatMul", "r v", "q"),
        node("Softmax", "q", "p"),
        *tail("p"),
    ],
    {"i": ["b", "s"]},
    {"i": indices(1, 16)},
    {"i": indices(2, 128)},
    {"i": indices(1, 300)},
    outputs={"y": [1, 128, 64]},
    constants={"w": numbers(1000, 512), "v": numbers(512, 64)},
    told=[("r", [1, 128, 512])],
)
case(
    "Add, its result declared enormous",
    node("Add", "x x"),
    {"x": ["n", "m"]},
    {"x": numbers(2, 3)},
    outputs={"y": [2**62, "m"]},
)
case(
    "MatMul into a bound buffer of the declared shape",
    node("MatMul", "a b"),
    {"a": ["m", "k"], "b": ["k", "n"]},
    {"a": numbers(2, 3), "b": numbers(3, 2)},
    {"a": numbers(1, 3), "b": numbers(3, 2)},
    outputs={"y": [1, "n"]},
    bound=[(1, 2)],
)
case(
    "ConstantOfShape by values",
    [node("ConstantOfShape", "s", "z"), node("Add", "z x")],
    {"s": [1], "x": [1]},
    {"s": integers(5), "x": numbers(1)},
    outputs={"y": [3]},
    told=[("z", [3])],
    allowed_error="a partition is held to the declared shape of what another provider hands it",
)
case(
    "Relu, its result declared otherwise",
    [node("Relu", "x", "r"), node("Neg", "r")],
    {"x": ["n"]},
    {"x": numbers(4000)},
    {"x": numbers(3)},
    outputs={"y": [8]},
    told=[("r", [8])],
)

for shape in ((1,), (3, 1), (2,)):
    case(
        f"Hardmax of {list(shape)} into a bound buffer",
        node("Hardmax", "x", axis=-1),
        {"x": list(shape)},
        {"x": numbers(*shape)},
        bound=[shape],
    )
