"""Operators at the edges of their definition.

Where ONNX or the CPU provider says what comes out, that comes out, or an error where it refuses.
Where they leave it open, docs/conformance.md ("Differences that are allowed") says what Tenon does,
and the second half of this file holds it to that.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

FLOAT, INT32, INT64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
SEVEN = np.arange(7, dtype=np.float32)


def settings():
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    return quiet


def model(nodes, inputs: dict, outputs: dict, constants: dict | None = None, opset=21) -> bytes:
    """Inputs and outputs: a name, its element type and dims (None: unknown)."""

    def infos(values):
        return [helper.make_tensor_value_info(name, *what) for name, what in values.items()]

    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "edges", infos(inputs), infos(outputs), tensors)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def node_model(op, inputs, output, constants=None, **attributes) -> bytes:
    names = [*inputs, *(constants or {})]
    node = helper.make_node(op, names, ["y"], **attributes)
    return model([node], inputs, {"y": (output, None)}, constants)


def run_stock(data: bytes, feeds):
    session = onnxruntime.InferenceSession(data, settings(), ["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_tenon(data: bytes, feeds):
    return tenon.create_session(data, "cpu", settings(), claim="all").run(None, feeds)


def assert_both(data: bytes, feeds):
    for found, expected in zip(run_tenon(data, feeds), run_stock(data, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("index", [-0.3, 1.5, -1.0, 2.0, 3.0, -3.5, np.nan])
def test_a_fraction_is_no_index_of_one_hot(index):
    constants = {"depth": np.array(3), "values": np.array([0, 1])}
    data = node_model("OneHot", {"x": (FLOAT, ["n"])}, INT64, constants, axis=0)
    assert_both(data, {"x": np.array([index, 1], np.float32)})


def shape_arithmetic(factor: int) -> bytes:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Cast", ["size"], ["narrow"], to=INT32),
        helper.make_node("Mul", ["narrow", "factor"], ["once"]),
        helper.make_node("Mul", ["once", "factor"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["y"], to=INT64),
    ]
    constants = {"factor": np.array([factor], np.int32)}
    return model(nodes, {"x": (FLOAT, ["n"])}, {"y": (INT64, None)}, constants)


@pytest.mark.parametrize("factor", [3, 70000, -70000])
def test_arithmetic_of_sizes_in_32_bits_wraps(factor):
    assert_both(shape_arithmetic(factor), {"x": np.zeros(5, np.float32)})


@pytest.mark.parametrize("count", [4, 14, 40])
def test_a_product_of_many_sums_of_sizes(count):
    """Multiplied out it would have 2**count terms."""
    nodes, product, inputs, feeds = [], "one", {}, {}
    for i in range(count):
        inputs[f"x{i}"] = (FLOAT, [f"a{i}", f"b{i}"])
        feeds[f"x{i}"] = np.zeros((1, i % 3), np.float32)
        nodes += [
            helper.make_node("Shape", [f"x{i}"], [f"shape{i}"]),
            helper.make_node("ReduceSum", [f"shape{i}"], [f"sum{i}"], keepdims=1),
            helper.make_node("Mul", [product, f"sum{i}"], [f"product{i}"]),
        ]
        product = f"product{i}"
    nodes += [
        helper.make_node("Mod", [product, "modulus"], ["rest"]),
        helper.make_node("ConstantOfShape", ["rest"], ["zeros"]),
        helper.make_node("Concat", [product, product], ["y"], axis=0),
    ]
    outputs = {"y": (INT64, None), "zeros": (FLOAT, None)}
    constants = {"one": np.array([1]), "modulus": np.array([7])}
    data = model(nodes, inputs, outputs, constants)
    assert_both(data, feeds)


@pytest.mark.parametrize("step", [-(2**63), -(2**63) + 1, -1, 2**63 - 1])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_range_by_any_step(step, size):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Squeeze", ["shape"], ["limit"]),
        helper.make_node("Range", ["start", "limit", "step"], ["y"]),
    ]
    constants = {"start": np.array(0), "step": np.array(step)}
    data = model(nodes, {"x": (FLOAT, ["n"])}, {"y": (INT64, None)}, constants)
    assert_both(data, {"x": np.zeros(size, np.float32)})


PADS = [(-2, 3), (3, -2), (-1, -2), (2, 2), (0, 6), (-4, 2), (2, -4)]


def padded(mode: str, pads, size="n") -> bytes:
    return node_model("Pad", {"x": (FLOAT, [size])}, FLOAT, {"pads": np.array(pads)}, mode=mode)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", PADS, ids=str)
@pytest.mark.parametrize("size", ["n", 7])
def test_negative_pads_cut_before_others_are_filled(mode, pads, size):
    if mode == "reflect" and pads == (-4, 2):
        pads = (-4, 1)  # three elements are left
    assert_both(padded(mode, pads, size), {"x": SEVEN})


@pytest.mark.skipif(
    not runtime_at_least("1.31"), reason="the stock provider of older runtimes reads past the input"
)
@pytest.mark.parametrize("pads", [(8, 3), (0, 15), (15, 0)], ids=str)
def test_wrapped_pads_may_go_round_more_than_once(pads):
    assert_both(padded("wrap", pads), {"x": SEVEN})


@pytest.mark.skipif(
    not runtime_at_least("1.31"), reason="the stock provider of older runtimes reads past the input"
)
@pytest.mark.parametrize("size", ["n", None])
@pytest.mark.parametrize(
    ("mode", "pads", "length"),
    [
        ("reflect", (3, 2), 2),
        ("reflect", (2, 0), 2),
        ("reflect", (0, 2), 2),
        ("reflect", (1, 0), 1),
        ("reflect", (7, 0), 7),
        ("reflect", (-5, 2), 7),
        ("reflect", (1, 0), 0),
        ("edge", (1, 0), 0),
        ("edge", (-9, 5), 7),
        ("wrap", (0, 1), 0),
        ("wrap", (-7, 5), 7),
    ],
)
def test_pads_beyond_what_is_there_are_refused_by_name(size, mode, pads, length):
    data, feeds = padded(mode, pads, size or length), {"x": SEVEN[:length]}
    with pytest.raises(Exception, match=r"."):
        run_stock(data, feeds)
    with pytest.raises(Exception, match=r"(?i)pad"):
        run_tenon(data, feeds)


# What is left open: docs/conformance.md, "Differences that are allowed".

WILD = [np.inf, -np.inf, np.nan, 3e9, -3e9, 1e20, -1, 300.7, -2.5, 1e10]
LEAST32, LEAST64 = -(2**31), -(2**63)
CASTS = {
    "int32": [LEAST32] * 6 + [-1, 300, -2, LEAST32],
    "int64": [LEAST64] * 3 + [3000000000, -3000000000, LEAST64, -1, 300, -2, 10**10],
    "int8": [0] * 6 + [-1, 44, -2, 0],
    "uint8": [0] * 6 + [255, 44, 254, 0],
    "uint32": [0, 0, 0, 3000000000, 1294967296, 0, 2**32 - 1, 300, 2**32 - 2, 1410065408],
    "uint64": [2**63] * 3 + [3 * 10**9, 2**64 - 3 * 10**9, 2**63]
              + [2**64 - 1, 300, 2**64 - 2, 10**10],
}  # fmt: skip


@pytest.mark.parametrize("to", CASTS)
def test_casts_out_of_range_give_what_x86_gives_on_every_machine(to):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    data = node_model("Cast", {"x": (FLOAT, ["n"])}, element, to=element)
    assert run_tenon(data, {"x": np.array(WILD, np.float32)})[0].tolist() == CASTS[to]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize(("op", "whole"), [("Div", 3), ("Mod", 1)])
def test_an_integer_by_zero_is_zero(dtype, op, whole):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    data = node_model(op, {"a": (element, ["n"]), "b": (element, ["n"])}, element)
    feeds = {"a": np.array([5, 7, 0], dtype), "b": np.array([0, 2, 0], dtype)}
    assert run_tenon(data, feeds)[0].tolist() == [0, whole, 0]


def test_dropout_in_training_is_left_to_others():
    constants = {"ratio": np.float32(0.5), "training": np.array(True)}
    data = node_model("Dropout", {"x": (FLOAT, ["n"])}, FLOAT, constants)
    _, report = session_with_report(data, "cpu", settings(), claim="all")
    assert [left["op"] for left in report.left_out] == ["Dropout"]


def test_dropout_before_opset_7_trains_unless_told_that_it_does_not():
    feeds = {"x": np.ones(4, np.float32)}
    for trains, attributes in ((False, {"is_test": 1}), (True, {"is_test": 0}), (True, {})):
        node = helper.make_node("Dropout", ["x"], ["y"], **attributes)
        data = model([node], {"x": (FLOAT, ["n"])}, {"y": (FLOAT, ["n"])}, opset=6)
        if trains:
            with pytest.raises(Exception, match="Dropout"):
                run_tenon(data, feeds)
        else:
            assert run_tenon(data, feeds)[0].tolist() == [1, 1, 1, 1]


def test_halves_round_to_even():
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5], np.float32)
    assert_both(node_model("Round", {"x": (FLOAT, ["n"])}, FLOAT), {"x": halves})
    constants = {"scale": np.float32(1), "zero": np.array(0, np.int8)}
    data = node_model("QuantizeLinear", {"x": (FLOAT, ["n"])}, TensorProto.INT8, constants)
    assert_both(data, {"x": halves})


def test_a_cast_to_a_narrower_float_rounds_ties_to_even():
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 2**-25, 3 * 2**-25], np.float32)
    half = TensorProto.FLOAT16
    assert_both(node_model("Cast", {"x": (FLOAT, ["n"])}, half, to=half), {"x": ties})


def test_of_equal_elements_the_first_is_taken():
    x, row = np.array([[1, 3, 3, 2, 3, 1]], np.float32), (FLOAT, ["n", 6])
    for op in ("ArgMax", "ArgMin"):
        assert_both(node_model(op, {"x": row}, INT64, axis=1), {"x": x})
    node = helper.make_node("TopK", ["x", "k"], ["values", "y"])
    outputs = {"values": (FLOAT, None), "y": (INT64, None)}
    data = model([node], {"x": row}, outputs, {"k": np.array([2])})
    assert_both(data, {"x": x})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_smallest_integer_by_minus_one_is_itself(dtype):
    element, least = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), np.iinfo(dtype).min
    data = node_model("Div", {"a": (element, ["n"]), "b": (element, ["n"])}, element)
    feeds = {"a": np.array([least, 6], dtype), "b": np.array([-1, -1], dtype)}
    assert run_tenon(data, feeds)[0].tolist() == [least, -6]


def test_a_half_is_divided_by_its_scale_in_its_own_type():
    """122.53 is 122.5 in f16, a tie, and so 122; the CPU provider divides in f32 and has 123."""
    constants = {"scale": np.float16(0.1), "zero": np.array(0, np.int8)}
    half = TensorProto.FLOAT16
    data = node_model("QuantizeLinear", {"x": (half, ["n"])}, TensorProto.INT8, constants)
    feeds = {"x": np.array([12.25, 1.0], np.float16)}
    assert (feeds["x"] / constants["scale"]).tolist() == [122.5, 10.0]
    assert run_tenon(data, feeds)[0].tolist() == [122, 10]


@pytest.mark.parametrize("index", [3, -4, 2**40, -(2**63)])
def test_an_index_out_of_bounds_fails_the_run_by_name(index):
    data = node_model("Gather", {"x": (FLOAT, ["n"]), "i": (INT64, ["k"])}, FLOAT)
    with pytest.raises(Exception, match=r"Gather.*outside \[-3, 3\)"):
        run_tenon(data, {"x": SEVEN[:3], "i": np.array([0, index])})


@pytest.mark.parametrize("op", ["Softplus", "Mish"])
def test_small_results_keep_their_digits(op):
    """1 + exp(-12) has room for three of them."""
    x = np.linspace(-40, 10, 501).astype(np.float32)
    wide = x.astype(np.float64)
    expected = np.log1p(np.exp(wide))
    expected = wide * np.tanh(expected) if op == "Mish" else expected
    (y,) = run_tenon(node_model(op, {"x": (FLOAT, ["n"])}, FLOAT), {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize(("to", "sign"), [(TensorProto.INT4, 1), (TensorProto.UINT4, 0)])
def test_a_cast_to_four_bits_drops_the_fraction(to, sign):
    """The CPU provider rounds."""
    codes = [helper.make_node("Cast", ["x"], ["c"], to=to)]
    codes.append(helper.make_node("Cast", ["c"], ["y"], to=FLOAT))
    x = np.array([0.5, 1.5, 2.7, 6.99, 0.0, 3.0, -0.7, -1.5 * sign, -7.9 * sign], np.float32)
    data = model(codes, {"x": (FLOAT, ["n"])}, {"y": (FLOAT, None)})
    assert run_tenon(data, {"x": x})[0].tolist() == np.trunc(x).tolist()


def multi_head(queries: int, keys: int):
    """Of one head of size 4, and what the last query sees when it stands at the last key."""
    random = np.random.default_rng(queries)
    q, k, v = (random.standard_normal((2, n, 4)).astype(np.float32) for n in (queries, keys, keys))
    scores = q @ k.transpose(0, 2, 1) / 2
    last = np.arange(queries)[:, None] + max(keys - queries, 0)
    scores = np.where(np.arange(keys) <= last, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return {"q": q, "k": k, "v": v}, weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("dims", [("s", "t"), (None, None)])
def test_unidirectional_queries_end_at_the_last_key(dims):
    """As both providers for one query, fewer keys and as many; else as the CUDA provider."""
    names = [(FLOAT, [2, length, 4]) for length in (dims[0], dims[1], dims[1])]
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=1,
        unidirectional=1,
    )  # fmt: skip
    for queries, keys in ((1, 5), (3, 3), (4, 2), (3, 5), (2, 9)):
        shapes = names
        if dims[0] is None:  # sizes that the model fixes
            shapes = [(FLOAT, [2, n, 4]) for n in (queries, keys, keys)]
        inputs = dict(zip("qkv", shapes, strict=True))
        graph = onnx_model_of(node, inputs)
        feeds, expected = multi_head(queries, keys)
        np.testing.assert_allclose(run_tenon(graph, feeds)[0], expected, rtol=1e-4, atol=1e-6)
        if queries == 1 or queries >= keys:
            np.testing.assert_allclose(run_stock(graph, feeds)[0], expected, rtol=1e-4, atol=1e-6)


def onnx_model_of(node, inputs) -> bytes:
    """One node of com.microsoft."""
    infos = [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()]
    graph = helper.make_graph(
        [node], "edges", infos, [helper.make_tensor_value_info("y", FLOAT, None)]
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
