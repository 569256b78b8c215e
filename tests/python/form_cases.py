"""Sizes as exporters compute them: each case runs at several of them, and at those that no model
means, where stock refuses the Run or gives something else than a formula would."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from size_models import FLOAT, INT64, case, integers, node, numbers, tail

SIZES = {"zero": integers(0), "one": integers(1)}

# --- rows of a table, as many as there are ---

case(
    "Positions cut to the rows of a table",
    [
        node("Shape", "x", "b", start=0, end=1),
        node("Shape", "x", "s", start=1, end=2),
        node("Slice", "table zero s zero", "p"),
        node("Add", "x p", "a"),
        node("Concat", "b s heads", "shape", axis=0),
        node("Reshape", "a shape", "r"),
        node("Transpose", "r", "t", perm=[0, 2, 1, 3]),
        node("Softmax", "t", axis=-1),
    ],
    {"x": ["batch", "seq", 8]},
    *({"x": numbers(batch, rows, 8)} for batch, rows in ((2, 3), (1, 1), (2, 6), (2, 0), (0, 3))),
    {"x": numbers(2, 7, 8)},
    constants={**SIZES, "table": numbers(6, 8), "heads": integers(-1, 4)},
    allowed_result="of an empty batch or sequence stock finds no number for the -1",
)
case(
    "A table of one row is stretched",
    [
        node("Shape", "x", "s", start=0, end=1),
        node("Slice", "table zero s zero", "p"),
        node("Add", "x p", "a"),
        *tail("a"),
    ],
    {"x": ["seq", 8]},
    *({"x": numbers(rows, 8)} for rows in (0, 1, 5)),
    constants={**SIZES, "table": numbers(1, 8)},
)
case(
    "As many rows as another tensor has, of none",
    [
        node("Shape", "z", "s"),
        node("Slice", "x zero s zero", "p"),
        node("Add", "x p", "a"),
        *tail("a"),
    ],
    {"x": ["n", 4], "z": ["m"]},
    *({"x": numbers(n, 4), "z": numbers(m)} for n, m in ((3, 3), (3, 1), (1, 0), (3, 2), (0, 2))),
    constants=SIZES,
)

# --- int64 arithmetic that truncates ---

halved = [
    node("Shape", "x", "n0"),
    node("Sub", "n0 less", "n1"),
    node("Div", "n1 by", "n2"),
    node("Add", "n2 more", "n3"),
    node("Expand", "one_number n3", "e"),
]
for less, by in ((1, 2), (3, 2), (7, 3), (14, 14)):
    case(
        f"(n - {less}) / {by} + 5",
        [*halved, *tail("e")],
        {"x": ["n"]},
        *({"x": numbers(n)} for n in (0, 1, 2, 3, 6, 13, 14, 40)),
        constants={
            "less": integers(less),
            "by": integers(by),
            "more": integers(5),
            "one_number": numbers(1),
        },
    )

# --- GroupNorm as a view of three dims ---

case(
    "GroupNorm of all but one, and back",
    [
        node("Pad", "x pads", "c"),
        node("Shape", "c", "shape"),
        node("Reshape", "c groups", "g"),
        node("InstanceNormalization", "g scale bias", "i"),
        node("Reshape", "i shape", "k"),
        node("Mul", "k k", "l"),
        *tail("l"),
    ],
    {"x": ["batch", 6, "length"]},
    *({"x": numbers(batch, 6, length)} for batch, length in ((2, 9), (1, 5), (3, 17), (1, 0))),
    constants={
        "pads": integers(0, 0, 0, 0, 0, -1),
        "groups": integers(0, 3, -1),
        "scale": numbers(3),
        "bias": numbers(3),
    },
)

# --- parts by computed sizes ---

sizes_of_two = [node("Shape", name, f"n{name}", start=1, end=2) for name in ("t", "x")]
for axis in (1, -2):
    case(
        f"Split by two lengths, axis {axis}",
        [
            *sizes_of_two,
            node("Concat", "nt nx", "sizes", axis=0),
            node("Concat", "t x", "c", axis=1),
            node("Sigmoid", "c", "m"),
            node("Split", "m sizes", "y z", axis=axis),
        ],
        {"t": ["batch", "text", 4], "x": ["batch", "image", 4]},
        *(
            {"t": numbers(2, text, 4), "x": numbers(2, image, 4)}
            for text, image in ((3, 5), (1, 1), (0, 4), (4, 0))
        ),
        outputs={"y": None, "z": None},
    )
case(
    "Split by what is left",
    [
        node("Shape", "t", "nt"),
        node("Shape", "x", "nx"),
        node("Sub", "nx nt", "rest"),
        node("Concat", "nt rest", "sizes", axis=0),
        node("Sigmoid", "x", "m"),
        node("Split", "m sizes", "y z", axis=0),
    ],
    {"t": ["text"], "x": ["total"]},
    *(
        {"t": numbers(text), "x": numbers(total)}
        for text, total in ((2, 5), (5, 5), (0, 3), (6, 5))
    ),
    outputs={"y": None, "z": None},
)
case(
    "Split into three, one of them fixed",
    [
        node("Shape", "t", "nt"),
        node("Shape", "x", "nx"),
        node("Sub", "nx nt", "rest"),
        node("Sub", "rest two", "last"),
        node("Concat", "nt two last", "sizes", axis=0),
        node("Sigmoid", "x", "m"),
        node("Split", "m sizes", "y z w", axis=0),
    ],
    {"t": ["text"], "x": ["total"]},
    *({"t": numbers(text), "x": numbers(total)} for text, total in ((2, 9), (1, 3), (2, 3))),
    outputs={"y": None, "z": None, "w": None},
    constants={"two": integers(2)},
)

# --- zero points ---


def codes(dtype, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).integers(
        limits.min, limits.max, shape, dtype, endpoint=True
    )


for a_type, b_type in (
    (np.uint8, np.int8),
    (np.uint8, np.uint8),
    (np.int8, np.int8),
    (np.int8, np.uint8),
):
    for form, zero in (("[N]", (7,)), ("[1,N]", (1, 7)), ("zeros [N]", None)):
        zeros = np.zeros(7, b_type) if zero is None else codes(b_type, *zero)
        case(
            f"MatMulInteger of {a_type.__name__} and {b_type.__name__}, zero points {form}",
            [node("MatMulInteger", "a b u v", "i"), node("Cast", "i", "f", to=FLOAT), *tail("f")],
            {"a": ["m", "k"]},
            *({"a": codes(a_type, rows, 33)} for rows in (1, 5, 0)),
            constants={"b": codes(b_type, 33, 7), "u": codes(a_type), "v": zeros},
        )

# --- positions as floats ---

for element in (FLOAT, TensorProto.DOUBLE):
    kind = helper.tensor_dtype_to_np_dtype(element)
    case(
        f"Positions of {kind.name}, as many as there are",
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape last", "n", axis=0),
            node("Cast", "n", "f", to=element),
            node("Range", "none f one", "p"),
            node("Cast", "p", "q", to=FLOAT),
            node("Add", "x q", "a"),
            *tail("a"),
        ],
        {"x": ["m", "n"]},
        *({"x": numbers(*size)} for size in ((2, 5), (3, 1), (1, 0), (0, 4))),
        constants={"last": np.array(1), "none": np.array(0, kind), "one": np.array(1, kind)},
    )
for start, step in ((1.5, 1), (2, 3), (7, -2), (0, 0.5)):
    case(
        f"A Range of floats from {start} by {step}",
        [
            node("Shape", "x", "n", start=0, end=1),
            node("Squeeze", "n", "s"),
            node("Cast", "s", "f", to=FLOAT),
            node("Range", "from f by", "p"),
            *tail("p"),
        ],
        {"x": ["n"]},
        *({"x": numbers(size)} for size in (0, 1, 2, 5, 8)),
        constants={"from": np.array(start, np.float32), "by": np.array(step, np.float32)},
    )

# --- resizing by named axes ---

for mode in ("nearest", "linear", "cubic"):
    case(
        f"Resize {mode} of two axes to sizes",
        [
            node("Shape", "z", "sizes", start=2, end=4),
            node("Resize", "x _ _ sizes", "r", axes=[2, 3], mode=mode),
            *tail("r"),
        ],
        {"x": [1, 3, "h", "w"], "z": [1, 3, "height", "width"]},
        *(
            {"x": numbers(1, 3, 4, 5), "z": numbers(1, 3, *size)}
            for size in ((4, 5), (7, 3), (1, 1), (8, 10))
        ),
    )
    for scale in (0.5, 1.25, 2.0):
        case(
            f"Resize {mode} of two axes by {scale}",
            [node("Resize", "x _ scales", "r", axes=[-1, 2], mode=mode), *tail("r")],
            {"x": [1, 3, "h", "w"]},
            *({"x": numbers(1, 3, *size)} for size in ((4, 5), (7, 2), (9, 16))),
            constants={"scales": np.array([scale, scale], np.float32)},
            allowed_result="the CPU kernel of older runtimes takes no axes",
        )
case(
    "Behind a Resize that nobody here runs",
    [
        node("Shape", "z", "sizes", start=2, end=4),
        node("Resize", "x _ _ sizes", "r", axes=[2, 3], mode="linear", antialias=1),
        node("Shape", "z", "shape", start=2, end=4),
        node("Concat", "three shape", "to", axis=0),
        node("Reshape", "r to", "v"),
        *tail("v"),
    ],
    {"x": [1, 3, "h", "w"], "z": [1, 3, "height", "width"]},
    *({"x": numbers(1, 3, 4, 5), "z": numbers(1, 3, *size)} for size in ((7, 3), (8, 10))),
    constants={"three": integers(3)},
)
# An audio codec pads by what it computes in floats, in the order in which the exporter turns it.
for stride, kernel in ((1, 7), (2, 4), (5, 10), (3, 3)):
    case(
        f"Pads that are computed in floats, stride {stride}",
        [
            node("Shape", "x", "n", start=2, end=3),
            node("Sub", "n gap", "m"),
            node("Cast", "m", "f", to=FLOAT),
            node("Div", "f stride", "d"),
            node("Add", "d one", "a"),
            node("Ceil", "a", "u"),
            node("Cast", "u", "frames", to=INT64),
            node("Sub", "frames unit", "less"),
            node("Mul", "less step", "walked"),
            node("Sub", "walked m", "more"),
            node("Concat", "left more none", "pairs", axis=0),
            node("Reshape", "pairs by_two", "rows"),
            node("Slice", "rows last first zero last", "turned"),
            node("Transpose", "turned", "sides", perm=[1, 0]),
            node("Reshape", "sides last", "pads"),
            node("Pad", "x pads", "p", mode="reflect"),
            node("Conv", "p w", "c", strides=[stride]),
            *tail("c"),
        ],
        {"x": [1, 2, "n"]},
        *({"x": numbers(1, 2, size)} for size in (*range(11, 27), 1000, 4099)),
        constants={
            "gap": integers(kernel - stride), "stride": np.float32(stride), "one": np.float32(1),
            "unit": integers(1), "step": integers(stride), "left": integers(kernel - stride),
            "none": integers(0, 0, 0, 0), "by_two": integers(-1, 2), "last": integers(-1),
            "first": integers(-(2**63) + 1), "zero": integers(0), "w": numbers(2, 2, kernel),
        },
    )  # fmt: skip
