"""Sizes that do not fit, that broadcast, or that are 0."""

import numpy as np
from size_models import FLOAT, INT32, case, indices, integers, node, numbers, tail

# --- products ---

for options in ({}, {"claim": "gainful"}):
    label = options.get("claim", "all")
    case(
        f"MatMul by a constant, {label}",
        [node("MatMul", "a w", "r"), node("Relu", "r", "p"), *tail("p")],
        {"a": ["m", "k"]},
        {"a": numbers(2, 2)},
        {"a": numbers(2, 64)},
        constants={"w": numbers(64, 48)},
        options=options,
    )
    case(
        f"MatMulNBits, {label}",
        node("ms.MatMulNBits", "a b s", K=64, N=48, bits=4, block_size=32),
        {"a": ["m", "k"]},
        {"a": numbers(2, 2)},
        {"a": numbers(3, 64)},
        constants={"b": np.zeros((48, 2, 16), np.uint8), "s": numbers(48 * 2)},
        options=options,
    )
case(
    "Gemm, another K",
    node("Gemm", "a w c", transB=1),
    {"a": ["m", "k"]},
    {"a": numbers(2, 2)},
    {"a": numbers(2, 64)},
    constants={"w": numbers(48, 64), "c": numbers(48)},
)
case(
    "Gemm, another bias",
    node("Gemm", "a b c"),
    {"a": ["m", "k"], "b": ["k", "n"], "c": ["p", "q"]},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(3, 5)},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(1, 5)},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(2, 5)},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(3, 400)},
    {"a": numbers(1, 4), "b": numbers(4, 5), "c": numbers(400, 5)},
    left_to_stock=True,
)
case(
    "Gemm, a bias of one row",
    node("Gemm", "a b c"),
    {"a": ["m", "k"], "b": ["k", 5], "c": ["q"]},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(5)},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(1)},
    {"a": numbers(3, 4), "b": numbers(4, 5), "c": numbers(4)},
    left_to_stock=True,
)
case(
    "MatMul of two inputs",
    node("MatMul", "a b"),
    {"a": ["m", "k"], "b": ["j", "n"]},
    {"a": numbers(4, 4), "b": numbers(4, 5)},
    {"a": numbers(4, 4000), "b": numbers(4, 5)},
    {"a": numbers(4, 4), "b": numbers(4000, 5)},
    {"a": numbers(4, 0), "b": numbers(0, 5)},
)
case(
    "MatMul, vectors",
    node("MatMul", "a b"),
    {"a": ["k"], "b": ["j", "n"]},
    {"a": numbers(4), "b": numbers(4, 5)},
    {"a": numbers(4000), "b": numbers(4, 5)},
)
case(
    "MatMul, batch dims",
    node("MatMul", "a b"),
    {"a": ["p", "m", "k"], "b": ["q", "k", "n"]},
    {"a": numbers(3, 2, 2), "b": numbers(3, 2, 2)},
    {"a": numbers(1, 2, 2), "b": numbers(3, 2, 2)},
    {"a": numbers(3, 2, 2), "b": numbers(1, 2, 2)},
    {"a": numbers(2000, 2, 2), "b": numbers(3, 2, 2)},
    {"a": numbers(0, 2, 2), "b": numbers(1, 2, 2)},
)
case(
    "FusedMatMul, transposed",
    node("ms.FusedMatMul", "a b", transB=1),
    {"a": ["m", "k"], "b": ["n", "j"]},
    {"a": numbers(4, 4), "b": numbers(3, 4)},
    {"a": numbers(4, 4), "b": numbers(3, 4000)},
)
case(
    "MatMulInteger",
    [node("MatMulInteger", "a b", "s"), node("Cast", "s", to=FLOAT)],
    {"a": ["m", "k"], "b": ["j", "n"]},
    {"a": np.ones((4, 4), np.uint8), "b": np.ones((4, 3), np.uint8)},
    {"a": np.ones((4, 4000), np.uint8), "b": np.ones((4, 3), np.uint8)},
)

# --- views ---

for shape, *sizes in (
    ([1000000], 4),
    ([8], 4, 8),
    ([-1, 3], 4, 6, 0),
    ([2, -1], 5, 6),
    ([0, 2], 4),
):
    case(
        f"Reshape to {shape}",
        [node("Reshape", "x s", "r"), node("Relu", "r")],
        {"x": ["n"]},
        *({"x": numbers(size)} for size in sizes),
        constants={"s": integers(*shape)},
    )
case(
    "Reshape by an attribute, its result declared otherwise",
    node("Reshape", "x", shape=[-1, 3]),
    {"x": ["n"]},
    {"x": numbers(6)},
    {"x": numbers(7)},
    outputs={"y": [4, 3]},
    opset=4,
)
case(
    "Reshape to the shape of another",
    [node("Shape", "z", "s"), node("Reshape", "x s", "r"), node("Neg", "r")],
    {"x": ["n"], "z": ["a", "b"]},
    {"x": numbers(6), "z": numbers(2, 3)},
    {"x": numbers(4), "z": numbers(30, 4000)},
    {"x": numbers(0), "z": numbers(0, 3)},
    {"x": numbers(0), "z": numbers(2, 0)},
)
case(
    "Reshape to a size that is 0 at Run and copies another",
    [node("Shape", "z", "s"), node("Reshape", "x s", "r"), node("Neg", "r")],
    {"x": ["n", "m"], "z": ["a", "b"]},
    {"x": numbers(3, 0), "z": numbers(0, 2)},
    {"x": numbers(3, 0), "z": numbers(0, 0)},
    allowed_error="stock keeps the input's 3 for the 0 that was computed",
)
case(
    "Reshape by values",
    [node("Reshape", "x s", "r"), node("Neg", "r")],
    {"x": ["n"], "s": [2]},
    {"x": numbers(6), "s": integers(2, 3)},
    outputs={"y": [3, 2]},
)
case(
    "Squeeze",
    node("Squeeze", "x s"),
    {"x": ["n", "m"]},
    {"x": numbers(4, 1)},
    {"x": numbers(4, 3)},
    {"x": numbers(4, 0)},
    constants={"s": integers(1)},
)
case(
    "DepthToSpace",
    node("DepthToSpace", "x", blocksize=2),
    {"x": ["n", "c", "h", "w"]},
    {"x": numbers(1, 4, 2, 2)},
    {"x": numbers(1, 5, 2, 2)},
)
case(
    "SpaceToDepth",
    node("SpaceToDepth", "x", blocksize=2),
    {"x": ["n", "c", "h", "w"]},
    {"x": numbers(1, 4, 2, 2)},
    {"x": numbers(1, 4, 3, 2)},
    {"x": numbers(1, 4, 2, 5)},
)
case(
    "Reshape before a norm and a product",
    [
        node("Reshape", "x s", "r"),
        node("LayerNormalization", "r w", "l"),
        node("MatMul", "l v", "p"),
        *tail("p"),
    ],
    {"x": ["n", "m"]},
    {"x": numbers(1, 8)},
    constants={"s": integers(4, 256, 1024), "w": numbers(1024), "v": numbers(1024, 64)},
)

# --- joining and cutting ---

case(
    "Concat",
    node("Concat", "a b", axis=1),
    {"a": ["m", 3], "b": ["j", 3]},
    {"a": numbers(4, 3), "b": numbers(4, 3)},
    {"a": numbers(4000, 3), "b": numbers(4, 3)},
    {"a": numbers(4, 3), "b": numbers(4000, 3)},
    {"a": numbers(0, 3), "b": numbers(0, 3)},
)
case(
    "Concat into a bound buffer",
    node("Concat", "a b", axis=1),
    {"a": ["m", 3], "b": ["j", 3]},
    {"a": numbers(4, 3), "b": numbers(5, 3)},
    {"a": numbers(4, 3), "b": numbers(4, 3)},
    outputs={"y": ["m", 6]},
    bound=[(4, 6)],
)
case(
    "Concat before a product",
    [
        node("Concat", "a b", "c", axis=1),
        node("MatMul", "c w", "r"),
        node("Softmax", "r", "p"),
        *tail("p"),
    ],
    {"a": ["m", 512], "b": ["j", 512]},
    {"a": numbers(4, 512), "b": numbers(4, 512)},
    {"a": numbers(4, 512), "b": numbers(1000, 512)},
    constants={"w": numbers(1024, 32)},
)
case(
    "Split by sizes",
    node("Split", "a s", "y z", axis=0),
    {"a": ["m", "k"]},
    {"a": numbers(7, 2)},
    {"a": numbers(4, 2)},
    {"a": numbers(8, 2)},
    outputs={"y": None, "z": None},
    constants={"s": integers(3, 4)},
)
case(
    "Split in equal parts",
    node("Split", "a", "y z w", axis=0),
    {"a": ["m", "k"]},
    {"a": numbers(6, 2)},
    {"a": numbers(7, 2)},
    outputs={"y": None, "z": None, "w": None},
    opset=13,
)
case(
    "Split in parts, the last smaller",
    node("Split", "a", "y z w", axis=0, num_outputs=3),
    {"a": ["m", "k"]},
    {"a": numbers(6, 2)},
    {"a": numbers(8, 2)},
    {"a": numbers(2, 2)},
    {"a": numbers(4, 2)},
    outputs={"y": None, "z": None, "w": None},
)
case(
    "Slice backwards",
    node("Slice", "x s e a t"),
    {"x": ["n", "k"]},
    {"x": numbers(3, 2)},
    {"x": numbers(0, 2)},
    {"x": numbers(1, 2)},
    constants={"s": integers(-1), "e": integers(-(2**62)), "a": integers(0), "t": integers(-1)},
)
for start, end, step in (
    (-2, -(2**62), -2),
    (5, 0, -1),
    (2**62, -(2**63), -3),
    (0, 2**62, 2**63 - 1),
    (2**63 - 1, 2**63 - 1, 1),
    (-1, -(2**62), -(2**63)),
    (-(2**63), 2**63 - 1, 2),
    (1, 3, 1),
    (0, 2**63 - 1, -1),  # these two are the end of the walk to stock, and any other one is not
    (4, 2**31 - 1, -2),
    (4, 2**31, -2),
):
    case(
        f"Slice [{start}:{end}:{step}]",
        node("Slice", "x s e a t"),
        {"x": ["n"]},
        *({"x": numbers(size)} for size in (3, 0, 1, 7)),
        constants={
            "s": integers(start),
            "e": integers(end),
            "a": integers(0),
            "t": integers(step),
        },
        left_to_stock=abs(step) > 2**31,
    )

# --- sizes that are computed ---

case(
    "a size in 32 bits",
    [
        node("Shape", "x", "s"),
        node("Cast", "s", "n", to=INT32),
        node("Mul", "n b", "p"),
        node("Cast", "p", to=FLOAT),
    ],
    {"x": ["n"]},
    {"x": numbers(1)},
    {"x": numbers(3)},
    constants={"b": np.array([2**30], np.int32)},
    allowed_error="stock's size is a negative one",
)

case(
    "a size and the largest integer",
    [
        node("Shape", "x", "s"),
        node("Add", "s b", "p"),
        node("Min", "p c", "q"),
        node("Cast", "q", to=FLOAT),
    ],
    {"x": ["n"]},
    {"x": numbers(1)},
    {"x": numbers(3)},
    constants={"b": integers(2**63 - 1), "c": integers(2)},
)

# --- positions ---

for op, inputs, opset in (
    ("ms.RotaryEmbedding", "x p c s", 21),
    ("RotaryEmbedding", "x c s p", 23),
):
    case(
        f"{op}, more tokens than angles",
        node(op, inputs, num_heads=2),
        {"x": ["b", "t", 8], "p": ["b", "t"]},
        {"x": numbers(2, 4, 8), "p": indices(2, 4)},
        {"x": numbers(2, 5, 8), "p": indices(2, 5)},
        constants={"c": numbers(4, 2), "s": numbers(4, 2)},
        opset=opset,
    )
    case(
        f"{op} at a position below 0",
        node(op, inputs, num_heads=2),
        {"x": ["b", "t", 8], "p": ["b", "t"]},
        {"x": numbers(1, 2, 8), "p": integers(3, -1).reshape(1, 2)},
        constants={"c": numbers(4, 2), "s": numbers(4, 2)},
        opset=opset,
        allowed_error="older runtimes read before the table",
    )

for width in (3, 7, 9):
    case(
        f"Attention of 7 keys with a mask of {width}",
        node("Attention", "q k k m"),
        {"q": [1, 2, "s", 8], "k": [1, 2, "t", 8], "m": ["r", "w"]},
        {"q": numbers(1, 2, 3, 8), "k": numbers(1, 2, 7, 8), "m": numbers(3, width)},
        opset=24,
        allowed_result="ONNX hides the keys beyond it" if width == 3 else "",
    )

case(
    "MultiHeadAttention, its bias stretched",
    node("ms.MultiHeadAttention", "q k k _ _ b", num_heads=2),
    {"q": ["n", "s", 8], "k": ["n", "t", 8], "b": ["a", "h", "u", "v"]},
    {"q": numbers(2, 3, 8), "k": numbers(2, 5, 8), "b": numbers(2, 2, 3, 5)},
    {"q": numbers(2, 3, 8), "k": numbers(2, 5, 8), "b": numbers(1, 1, 3, 5)},
    {"q": numbers(2, 3, 8), "k": numbers(2, 5, 8), "b": numbers(2, 2, 1, 5)},
    {"q": numbers(2, 3, 8), "k": numbers(2, 5, 8), "b": numbers(2, 2, 3, 1)},
)

case(
    "GroupQueryAttention over more keys than it was given",
    node("ms.GroupQueryAttention", "q k k p p l t", "y nk nv", num_heads=2, kv_num_heads=1),
    {"q": [1, "s", 16], "k": [1, "s", 8], "p": [1, 1, "r", 8], "l": [1], "t": [1]},
    *(
        {
            "q": numbers(1, 1, 16),
            "k": numbers(1, 1, 8),
            "p": numbers(1, 1, rows, 8),
            "l": np.array([7], np.int32),
            "t": np.array([8], np.int32),
        }
        for rows in (8, 7, 3)
    ),
    outputs={"y": None, "nk": [1, 1, 8, 8], "nv": [1, 1, 8, 8]},
)

# --- gathers and scatters ---

case(
    "ScatterElements, static, indices longer than data",
    node("ScatterElements", "a i u", axis=1),
    {"a": [2, 3], "i": [4000, 3], "u": [4000, 3]},
    {"a": numbers(2, 3), "i": indices(4000, 3), "u": numbers(4000, 3)},
    left_to_stock=True,
)
case(
    "ScatterElements",
    node("ScatterElements", "a i u", axis=1),
    {"a": ["m", 3], "i": ["n", 3], "u": ["p", 3]},
    {"a": numbers(20, 3), "i": indices(20, 3), "u": numbers(20, 3)},
    {"a": numbers(20, 3), "i": indices(10, 3), "u": numbers(10, 3)},
    {"a": numbers(2000, 3), "i": indices(2000, 3), "u": numbers(1, 3)},
    {"a": numbers(2, 3), "i": indices(2000, 3), "u": numbers(2000, 3)},
)
case(
    "GatherElements, static",
    node("GatherElements", "a i", axis=1),
    {"a": [2, 3], "i": [40000, 3]},
    {"a": numbers(2, 3), "i": indices(40000, 3)},
    left_to_stock=True,
)
case(
    "GatherElements",
    node("GatherElements", "a i", axis=1),
    {"a": ["m", 3], "i": ["n", "q"]},
    {"a": numbers(4, 3), "i": indices(4, 9)},
    {"a": numbers(4, 3), "i": indices(2, 9)},
    {"a": numbers(2, 3), "i": indices(4000, 3)},
)
case(
    "GatherND, batch_dims=1",
    node("GatherND", "a i", batch_dims=1),
    {"a": ["b", "m"], "i": ["c", "n", 1]},
    {"a": numbers(2, 3), "i": indices(2, 2, 1)},
    {"a": numbers(2, 3), "i": indices(2001, 2, 1)},
    {"a": numbers(2, 3), "i": indices(1, 2, 1)},
    allowed_error="stock does not compare the batch axes, and reads past its data",
)
case(
    "ScatterND",
    node("ScatterND", "a i u"),
    {"a": ["m", "k"], "i": ["n", 1], "u": ["p", "q"]},
    {"a": numbers(7, 3), "i": indices(2, 1), "u": numbers(2, 3)},
    {"a": numbers(7, 3), "i": indices(100000, 1), "u": numbers(1, 3)},
    {"a": numbers(7, 3), "i": indices(2, 1), "u": numbers(2, 4)},
)
for at in (2**63 - 1, -(2**63), 8, -9, 7, -8):
    case(
        f"Gather at {at}",
        node("Gather", "a i"),
        {"a": ["n", 16]},
        {"a": numbers(8, 16)},
        constants={"i": integers(at, 0)},
        left_to_stock=abs(at) > 2**62,
    )

# --- elementwise, norms, quantised ---

case(
    "Add",
    node("Add", "a b"),
    {"a": ["m", "k"], "b": ["n", "j"]},
    {"a": numbers(3, 4), "b": numbers(3, 4)},
    {"a": numbers(3, 1), "b": numbers(1, 4)},
    {"a": numbers(3, 4), "b": numbers(2, 4)},
    {"a": numbers(3, 4), "b": numbers(3, 4000)},
    {"a": numbers(0, 4), "b": numbers(1, 4)},
)
case(
    "Where",
    node("Where", "c a b"),
    {"c": ["p"], "a": ["m", "k"], "b": ["n", "j"]},
    {"c": np.ones(4, bool), "a": numbers(3, 4), "b": numbers(3, 4)},
    {"c": np.ones(4, bool), "a": numbers(3, 1), "b": numbers(1, 1)},
    {"c": np.ones(400, bool), "a": numbers(3, 4), "b": numbers(3, 4)},
)
case(
    "Expand",
    node("Expand", "x s"),
    {"x": ["n", "m"]},
    {"x": numbers(1, 4)},
    {"x": numbers(3, 1)},
    {"x": numbers(2, 4)},
    {"x": numbers(3, 4000)},
    constants={"s": integers(3, 4)},
)
case(
    "PRelu",
    node("PRelu", "x s"),
    {"x": ["n", "m"], "s": ["k"]},
    {"x": numbers(3, 4), "s": numbers(4)},
    {"x": numbers(3, 4), "s": numbers(1)},
    {"x": numbers(3, 4), "s": numbers(3)},
)
for norm, extra in (("LayerNormalization", "s c"), ("LayerNormalization", "s")):
    case(
        f"{norm} of {extra}",
        node(norm, f"x {extra}"),
        {"x": ["n", "m"], "s": ["k"]},
        {"x": numbers(3, 4), "s": numbers(4)},
        {"x": numbers(3, 4), "s": numbers(3)},
        {"x": numbers(3, 4000), "s": numbers(4)},
        constants={"c": numbers(4)} if "c" in extra else None,
    )
case(
    "SkipLayerNormalization",
    node("ms.SkipLayerNormalization", "x s g b"),
    {"x": ["n", "t", 8], "s": ["m", "u", 8], "g": ["k"], "b": [8]},
    {"x": numbers(2, 3, 8), "s": numbers(2, 3, 8), "g": numbers(8), "b": numbers(8)},
    {"x": numbers(2, 3, 8), "s": numbers(1, 3, 8), "g": numbers(8), "b": numbers(8)},
    {"x": numbers(2, 3, 8), "s": numbers(2, 2, 8), "g": numbers(8), "b": numbers(8)},
    {"x": numbers(2, 3, 8), "s": numbers(2, 1, 8), "g": numbers(8), "b": numbers(8)},
    {"x": numbers(2, 300, 8), "s": numbers(2, 3, 8), "g": numbers(8), "b": numbers(8)},
    {"x": numbers(2, 3, 8), "s": numbers(2, 3, 8), "g": numbers(7), "b": numbers(8)},
)
for norm, weights in (("InstanceNormalization", "s c"), ("BatchNormalization", "s c d e")):
    case(
        norm,
        node(norm, f"x {weights}"),
        {"x": ["n", "c0", "h"], "s": ["k"]},
        {"x": numbers(2, 4, 5), "s": numbers(4)},
        {"x": numbers(2, 4, 5), "s": numbers(3)},
        {"x": numbers(2, 4000, 5), "s": numbers(4)},
        constants={n: np.abs(numbers(4)) + 1 for n in weights.split()[1:]},
    )
case(
    "BiasGelu",
    node("ms.BiasGelu", "x b"),
    {"x": ["n", "m"], "b": ["k"]},
    {"x": numbers(3, 4), "b": numbers(4)},
    {"x": numbers(3, 4000), "b": numbers(4)},
)
case(
    "DequantizeLinear along an axis",
    node("DequantizeLinear", "x s", axis=0),
    {"x": ["n", "m"]},
    {"x": np.ones((3, 4), np.uint8)},
    {"x": np.ones((300, 4), np.uint8)},
    constants={"s": numbers(3)},
    left_to_stock=True,
)
case(
    "Tile",
    node("Tile", "x r"),
    {"x": ["n", "m"]},
    {"x": numbers(3, 4)},
    {"x": numbers(0, 4)},
    constants={"r": integers(2, 3)},
)

# --- Einsum: a label of size 1 broadcasts ---

case(
    "Einsum j,j->",
    node("Einsum", "a b", equation="j,j->"),
    {"a": ["n"], "b": [1]},
    {"a": numbers(3), "b": numbers(1)},
)
case(
    "Einsum ij,jk->ik",
    node("Einsum", "a b", equation="ij,jk->ik"),
    {"a": ["i", "j"], "b": ["l", "k"]},
    {"a": numbers(3, 1), "b": numbers(4, 5)},
    {"a": numbers(3, 4), "b": numbers(4, 5)},
    {"a": numbers(3, 4), "b": numbers(1, 5)},
    {"a": numbers(3, 4000), "b": numbers(4, 5)},
)
case(
    "Einsum ji,ij->i, static",
    node("Einsum", "a b", equation="ji,ij->i"),
    {"a": [7, 1], "b": [7, 7]},
    {"a": numbers(7, 1), "b": numbers(7, 7)},
)
case(
    "Einsum lmj,jl->lmj",
    node("Einsum", "a b", equation="lmj,jl->lmj"),
    {"a": [1, "m", 24], "b": [24, "l"]},
    {"a": numbers(1, 24, 24), "b": numbers(24, 63)},
    {"a": numbers(1, 3, 24), "b": numbers(24, 1)},
)
case(
    "Einsum bhid,bhjd->bhij",
    node("Einsum", "a b", equation="bhid,bhjd->bhij"),
    {"a": ["b", 2, "i", 8], "b": ["c", 2, "j", 8]},
    {"a": numbers(3, 2, 4, 8), "b": numbers(3, 2, 5, 8)},
    {"a": numbers(3, 2, 4, 8), "b": numbers(1, 2, 5, 8)},
    {"a": numbers(1, 2, 4, 8), "b": numbers(3, 2, 5, 8)},
    {"a": numbers(2, 2, 4, 8), "b": numbers(3, 2, 5, 8)},
)
