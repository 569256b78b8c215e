"""The float64 judge, checked against stock ONNX Runtime wherever that can run the model."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper
from onnxruntime_ep_tenon.models import attention, decoder, encoder, mlp, reference, validate
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.scaled_dot import FORMS, Problem, build_scaled_dot, form_names
from onnxruntime_ep_tenon.models.tolerances import Tolerance, dot_bound

# No CPU kernel, or a stock optimiser that breaks on it: only a plugin runs these.
WITHOUT_CPU_KERNEL = {
    "nvfp4", "mxfp8", "mxfp4", "nvfp4_weights_as_inputs", "nvfp4_gemm", "nvfp4_contrib",
    "nvfp4_dynamic", "mxfp8_tensorrt", "mxfp8_dynamic", "fp8_contrib", "fp8_with_activations",
}  # fmt: skip
# Stock ONNX Runtime turns these into products with int8 activations unless told not to.
LOSSY = {"matmul_4bits_int8"}


def stock(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def agree(model, inputs):
    for verdict in validate.compare_all(
        [value.name for value in model.graph.output],
        stock(model, inputs),
        reference.evaluate(model, inputs),
    ):
        assert verdict.ok, verdict


@pytest.mark.parametrize("form", sorted(set(form_names()) - WITHOUT_CPU_KERNEL - LOSSY))
def test_products_agree_with_stock(form):
    if form == "matmul_2bits" and not runtime_at_least("1.25.0"):
        pytest.skip("this runtime's MatMulNBits has no 2-bit weights")
    problem = Problem(bias=True)
    agree(build_scaled_dot(form, problem), problem.inputs(5))


@pytest.mark.parametrize("form", sorted(form_names()))
def test_every_form_is_near_the_float_product(form):
    allowed = FORMS[form].activations if form in FORMS else (1,)
    problem = Problem(n=32, k=64, activations=allowed[0])
    inputs = problem.inputs(4)
    exact = inputs["x"].astype(np.float64) @ problem.weights().T.astype(np.float64)
    if form == "int4_pre_scaled":
        exact = (inputs["x"] * (1 + np.arange(64) % 3 / 4)) @ problem.weights().T
    result = reference.evaluate(build_scaled_dot(form, problem), inputs)[0]
    error = np.sqrt(np.mean((result - exact) ** 2) / np.mean(exact**2))
    assert error < (0.75 if form == "matmul_2bits" else 0.25)


@pytest.mark.parametrize("form", attention.FORMS)
def test_attention_agrees_with_stock(form):
    model = attention.build_attention(form)
    agree(model, attention.inputs_for(model, queries=4, keys=4))


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
def test_gated_mlp_agrees_with_stock(activation):
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    agree(mlp.build_gated_mlp(activation=activation), {"x": x})


@pytest.mark.parametrize(("sequence", "past"), [(1, 7), (5, 0), (1, 0)])
def test_decoder_agrees_with_stock(sequence, past):
    config = DecoderConfig()
    agree(decoder.build_decoder(config), decoder.inputs_for(config, None, 1, sequence, past))


def test_encoder_agrees_with_stock():
    agree(encoder.build_encoder(shape=encoder.SMALL), encoder.random_tokens(3, 9, 200))


def test_an_output_without_a_name_is_no_input_without_one():
    """GenAI's builder leaves outputs of norms out, and behind them inputs of attentions."""
    g = GraphBuilder("unnamed", 21, ("com.microsoft",))
    x = g.input("x", FLOAT, ["rows", 4])
    ones = g.parameter("s", np.ones(4, "f4"))
    outputs = ["normed", "", "", "sum"]
    norm = "SkipSimplifiedLayerNormalization"
    g.node(norm, [x, x, ones], outputs=outputs, domain="com.microsoft")
    g.node("Clip", ["normed", "", g.parameter("most", np.float32(0.5))], outputs=["y"])
    g.output("y", FLOAT, ["rows", 4])
    x = np.array([[-1, 2, 3, 4]], np.float32)
    assert reference.evaluate(g.model(), {"x": x})[0].min() < 0


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("with_zero", [False, True])
def test_tables_of_codes_agree_with_stock(bits, with_zero):
    random = np.random.default_rng(bits)
    g = GraphBuilder("table", 21, ("com.microsoft",))
    codes = g.parameter("codes", random.integers(0, 256, (10, 64 * bits // 8), np.uint8))
    scales = g.parameter("scales", random.uniform(0.5, 1, (10, 4)).astype(np.float32))
    zero = random.integers(0, 256, (10, 4 * bits // 8), np.uint8)
    zeros = [g.parameter("zero", zero)] if with_zero else []
    ids = g.input("ids", TensorProto.INT64, ["rows"])
    g.node(
        "GatherBlockQuantized", [codes, ids, scales, *zeros], outputs=["y"],
        domain="com.microsoft", bits=bits, block_size=16, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    g.output("y", FLOAT, ["rows", 64])
    agree(g.model(check=False), {"ids": np.array([3, 0, 9])})


@pytest.mark.parametrize("optional", [0, 1, 2])
def test_norms_of_sums_agree_with_stock(optional):
    random = np.random.default_rng(optional)
    g = GraphBuilder("norm", 21, ("com.microsoft",))
    names = ["x", "skip", "gamma", "beta", "bias"][: 3 + optional]
    shapes = [["b", "s", 64]] * 2 + [[64]] * 3
    inputs = [g.input(name, FLOAT, shape) for name, shape in zip(names, shapes, strict=False)]
    outputs = ["y", "", "", "sum"]
    g.node("SkipLayerNormalization", inputs, outputs=outputs, domain="com.microsoft", epsilon=1e-5)
    for name in ("y", "sum"):
        g.output(name, FLOAT, ["b", "s", 64])
    sizes = [(2, 3, 64)] * 2 + [(64,)] * 3
    feed = {n: random.standard_normal(s, np.float32) for n, s in zip(names, sizes, strict=False)}
    agree(g.model(check=False), feed)


def test_rounding_after_each_node_is_that_of_the_type():
    graph = onnx.parser.parse_graph(
        "g (float16[2] x) => (float16[2] y) { s = Add(x, x) d = Sub(s, x) y = Sub(d, x) }"
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    inputs = {"x": np.array([40000.0, 1.5], np.float16)}
    assert reference.evaluate(model, inputs)[0].tolist() == [0, 0]
    assert reference.evaluate(model, inputs, np.float16)[0].tolist() == [np.inf, 0]


def test_a_wrong_element_is_found():
    good = np.linspace(-1, 1, 100)
    bad = good.astype(np.float32)
    assert validate.compare("y", bad, good).ok
    bad[50] += 1e-3
    verdict = validate.compare("y", bad, good)
    assert not verdict.ok and "1 of 100" in verdict.problem


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_nan_and_inf_must_be_where_they_belong(special):
    reference_values = np.array([1.0, special, 3.0])
    assert validate.compare("y", reference_values.copy(), reference_values).ok
    assert not validate.compare("y", np.array([1.0, 2.0, 3.0]), reference_values).ok
    assert not validate.compare("y", reference_values, np.array([1.0, 2.0, 3.0])).ok


def test_shapes_must_be_equal():
    assert "shape" in validate.compare("y", np.zeros((2, 3)), np.zeros((3, 2))).problem


def test_integers_must_be_equal():
    assert validate.compare("y", np.array([1, 2]), np.array([1, 2])).ok
    assert not validate.compare("y", np.array([1, 2]), np.array([1, 3])).ok


def test_the_rms_gate_finds_many_small_errors():
    tolerance = Tolerance(1e-2, 0, 1e-4, "for this test")
    good = np.ones(100)
    one = good.copy()
    one[0] += 0.009
    assert validate.compare("y", one, good, tolerance).ok
    verdict = validate.compare("y", good + 0.009, good, tolerance)
    assert not verdict.ok and "rms" in verdict.problem


def test_the_dot_bound_scales_with_the_magnitudes():
    x, w = np.ones((1, 64)), np.ones((64, 1))
    assert dot_bound(10 * x, w, np.float32) == pytest.approx(10 * dot_bound(x, w, np.float32))
    assert dot_bound(x, w, np.float16) > dot_bound(x, w, np.float32)


def one_node(op, inputs, element, opset=20, **attributes):
    types = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in inputs.values()]
    infos = [
        helper.make_tensor_value_info(name, kind, array.shape)
        for (name, array), kind in zip(inputs.items(), types, strict=True)
    ]
    node = helper.make_node(op, list(inputs), ["y"], **attributes)
    graph = helper.make_graph(
        [node], "one", infos, [helper.make_tensor_value_info("y", element, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("approximate", ["", "none", "tanh"])
def test_erf_and_gelu_have_the_digits_of_float64(approximate):
    x = np.linspace(-3, 3, 13)
    op, attributes = ("Gelu", {"approximate": approximate}) if approximate else ("Erf", {})
    model = one_node(op, {"x": x}, TensorProto.DOUBLE, **attributes)
    erf = np.array([math.erf(v) for v in x])
    halves = np.array([math.erf(v / math.sqrt(2)) for v in x])
    bent = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    expected = {"": erf, "none": x / 2 * (1 + halves), "tanh": x / 2 * (1 + bent)}[approximate]
    np.testing.assert_allclose(reference.evaluate(model, {"x": x})[0], expected, rtol=1e-14)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_agrees_with_stock_outside_of_its_range(axis):
    inputs = {
        "x": np.array([[-4, -3, -1], [2, 3, 1000]]),
        "depth": np.array(3),
        "values": np.array([0.5, 2], np.float32),
    }
    agree(one_node("OneHot", inputs, TensorProto.FLOAT, axis=axis), inputs)
