"""What NVIDIA Model Optimizer writes: whole nets, and each form of TensorRT's quantisers alone."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.mending import MendedModelWarning
from onnxruntime_ep_tenon.models import modelopt_forms, reference
from onnxruntime_ep_tenon.report import SessionError, fusion_kind, session_with_report
from test_fp8_attention import without_transposes
from test_session import quiet

pytestmark = pytest.mark.plugin

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
FP8, BYTE = TensorProto.FLOAT8E4M3FN, TensorProto.UINT8
NUMPY = {FLOAT: np.float32, HALF: np.float16, BFLOAT: ml_dtypes.bfloat16}
FORMS = sorted(modelopt_forms.FORMS)
# The runtime folds no quantiser of bfloat16 weights.
NETS = [*itertools.product(FORMS, (FLOAT, HALF)), ("fp8", BFLOAT), ("int8", BFLOAT)]
CODES = {"int8": "i8", "int4": "i4", "nvfp4": "f4e2m1"}  # of weights; the others have FP8
FP8_BLOCKS = list(itertools.product(["fp8", "fp8_torch"], (FLOAT, HALF)))


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    tensor = model.graph.input[0].type.tensor_type
    dims = [dim.dim_value for dim in tensor.shape.dim]
    values = np.random.default_rng(7).normal(size=dims)
    return {"x": values.astype(NUMPY[tensor.elem_type])}


def as_written() -> onnxruntime.SessionOptions:
    """Without the runtime's optimisers: an older one makes wrong numbers of the nets in ONNX's ops.

    And its optimiser of transposes fails, as without_transposes tells.
    """
    options = quiet()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def claimed_whole(model: onnx.ModelProto, device="cpu", **options):
    options = {"claim": "all", "require_full_claim": True} | options
    return session_with_report(model.SerializeToString(), device, as_written(), **options)


# ------------------------------------------------------------------------------------- whole nets
@pytest.mark.parametrize("form", FORMS)
def test_a_net_is_claimed_whole_and_right(form):
    model = modelopt_forms.residual_block(form)
    session, report = claimed_whole(model, claim="gainful")
    assert [fusion_kind(fusion) for fusion in report.fusions].count("scaled_dot") == 3
    x = drawn(model)
    (expected,) = reference.evaluate(model, x)
    apart = np.abs(session.run(None, x)[0] - expected)
    # A number between two codes ends at one or the other: that moves its row, and few are.
    assert np.mean(apart.max(-1) > 1e-4) < 0.1
    assert apart.max() < 0.3


@pytest.mark.parametrize(("form", "element"), [net for net in NETS if net[1] == HALF])
def test_a_net_of_float16_rounds_as_its_nodes_do(form, element):
    """Roundings of each node to 16 bits flip codes; the error is of their size, not more."""
    model = modelopt_forms.residual_block(form, element)
    session, _ = claimed_whole(model)
    x = drawn(model)
    (exact,) = reference.evaluate(model, x)
    (rounded,) = reference.evaluate(model, x, rounded_to=np.float16)
    error = np.abs(session.run(None, x)[0] - exact).mean()
    assert error < 2 * np.abs(rounded - exact).mean() + 1e-3


@pytest.mark.parametrize(("form", "element"), NETS)
def test_a_net_is_planned_whole_for_a_gpu(form, element):
    model = modelopt_forms.residual_block(form, element)
    _, report = claimed_whole(model, "gpu", target_arch="sm_90a", cache_dir="", claim="gainful")
    kinds = [fusion_kind(fusion) for fusion in report.fusions]
    assert kinds.count("scaled_dot") == 3
    codes = next((code for name, code in CODES.items() if form.startswith(name)), "f8e4m3fn")
    for fusion in report.fusions:
        if fusion_kind(fusion) == "scaled_dot":
            assert codes in fusion["problem"]


def as_onnx_has_it(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same net in ONNX's own ops: no domain, no declarations, blocks from opset 21 on."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for node in copy.graph.node:
        node.domain = ""
    del copy.graph.value_info[:]
    copy.opset_import[0].version = 21
    return copy


@pytest.mark.parametrize("form", ["fp8", "int4", "int4_awq"])
def test_onnx_ops_give_the_same_bits(form):
    model = modelopt_forms.residual_block(form)
    x = drawn(model)
    results = [claimed_whole(m)[0].run(None, x)[0] for m in (model, as_onnx_has_it(model))]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(("form", "element"), FP8_BLOCKS)
def test_an_attention_block_is_one_attention(form, element):
    model = modelopt_forms.attention_block(form, element)
    options = {"require_full_claim": True, "claim": "all"}
    bytes_ = model.SerializeToString()
    session, report = session_with_report(bytes_, "cpu", without_transposes(), **options)
    assert [fusion_kind(fusion) for fusion in report.fusions].count("attention") == 1
    x = drawn(model)
    (exact,) = reference.evaluate(model, x)
    (rounded,) = reference.evaluate(model, x, rounded_to=NUMPY[element])
    error = np.abs(session.run(None, x)[0] - exact).mean()
    assert error < 2 * np.abs(rounded - exact).mean() + 1e-4


@pytest.mark.parametrize("claim", ["gainful", "all"])
@pytest.mark.parametrize(("form", "element"), FP8_BLOCKS)
def test_quantisers_beside_a_convolution_of_others_run_here(form, element, claim):
    """No other provider has kernels for TensorRT's ops, and here is none for Conv on the CPU.

    With all: biases as well, which the runtime quantises by a product of scales of 16 bits.
    """
    model = modelopt_forms.convolution_block(form, element)
    bytes_ = model.SerializeToString()
    session, report = session_with_report(bytes_, "cpu", quiet(), claim=claim)
    left_out = {left["op"] for left in report.left_out}
    assert "Conv" in left_out
    assert not any(op.startswith("trt::") for op in left_out), left_out
    x = drawn(model)
    (expected,) = reference.evaluate(model, x, rounded_to=NUMPY[element])
    apart = np.abs(session.run(None, x)[0] - expected)
    assert np.mean(apart > 5e-3) < 0.1
    assert apart.max() < 0.3


# -------------------------------------------------------------------------------- one op of a form
class Forms:
    """A graph of one float type with TensorRT's quantisers in it."""

    def __init__(self, element=FLOAT, dims=(6, 8)):
        self.element, self.dims = element, list(dims)
        self.nodes, self.constants, self.declared = [], [], []

    def constant(self, name: str, value) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, inputs, output: str, domain="trt", **attributes) -> str:
        node = helper.make_node(kind, inputs, [output], name=output, domain=domain, **attributes)
        self.nodes.append(node)
        return output

    def declare(self, name: str, element: int) -> str:
        self.declared.append(helper.make_tensor_value_info(name, element, self.dims))
        return name

    def model(self, y: str, y_type: int) -> onnx.ModelProto:
        tensor = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "forms",
            [tensor("x", self.element, self.dims)],
            [tensor(y, y_type, self.dims)],
            self.constants,
            value_info=self.declared,
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("trt", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def ran(model: onnx.ModelProto) -> np.ndarray:
    session, _ = claimed_whole(model)
    return session.run(None, drawn(model))[0]


# name, zero point, codes' numpy type, largest and smallest
QUANTIZERS = {
    "fp8": ("QuantizeLinear", "DequantizeLinear", ml_dtypes.float8_e4m3fn, True),
    "int8": ("QuantizeLinear", "DequantizeLinear", np.int8, True),
    "uint8": ("QuantizeLinear", "DequantizeLinear", np.uint8, True),
    "int4": ("QuantizeLinear", "DequantizeLinear", ml_dtypes.int4, True),
    "uint4": ("QuantizeLinear", "DequantizeLinear", ml_dtypes.uint4, True),
    "fp8_named": ("TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear", None, False),
    "int8_named": ("TRT_INT8QuantizeLinear", "TRT_INT8DequantizeLinear", None, False),
    "int4_named": ("TRT_INT4QuantizeLinear", "TRT_INT4DequantizeLinear", None, False),
}
SCALES = {"scalar": (), "per_axis": (8,), "blocked": (3, 8)}


@pytest.mark.parametrize("x_type", [FLOAT, HALF])
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("form", QUANTIZERS)
def test_a_pair_rounds_as_numpy_does(form, scales, x_type):
    quantizer, dequantizer, zero_type, has_zero = QUANTIZERS[form]
    random = np.random.default_rng(len(form))
    net = Forms(x_type)
    shape = SCALES[scales]
    steps = (0.1 + np.abs(random.normal(size=shape)) / 4).astype(NUMPY[x_type])
    attributes = {"axis": 0, "block_size": 2} if scales == "blocked" else {}
    parameters = [net.constant("scale", steps)]
    if has_zero:
        is_integer = zero_type != ml_dtypes.float8_e4m3fn
        zero = random.integers(0, 7, shape) if is_integer else np.zeros(shape)
        parameters.append(net.constant("zero", zero.astype(np.int8).astype(zero_type)))
    codes = net.op(quantizer, ["x", *parameters], "codes", **attributes)
    y = net.op(dequantizer, [codes, *parameters], "y", **attributes)
    model = net.model(y, x_type)
    (expected,) = reference.evaluate(model, drawn(model))
    np.testing.assert_array_equal(ran(model), expected.astype(NUMPY[x_type]))


@pytest.mark.parametrize(("x_type", "scale_type"), [(HALF, FLOAT), (FLOAT, HALF)])
def test_x_and_its_scale_may_differ(x_type, scale_type):
    """What is left of an exporter's conversion to float16; the result has the scale's type."""
    net = Forms(x_type)
    scale = net.constant("scale", np.asarray(0.0625, NUMPY[scale_type]))
    zero = net.constant("zero", np.zeros(1, ml_dtypes.float8_e4m3fn))
    codes = net.declare(net.op("QuantizeLinear", ["x", scale, zero], "codes"), BYTE)
    model = net.model(net.op("DequantizeLinear", [codes, scale], "y"), scale_type)
    (expected,) = reference.evaluate(model, drawn(model))
    y = ran(model)
    assert y.dtype == NUMPY[scale_type]
    np.testing.assert_array_equal(y, expected.astype(y.dtype))


@pytest.mark.parametrize("output_dtype", [FLOAT, HALF])
def test_output_dtype_names_the_result(output_dtype):
    net = Forms()
    scale = net.constant("scale", np.float32(0.5))
    codes = net.op("TRT_INT8QuantizeLinear", ["x", scale], "codes")
    y = net.op("TRT_INT8DequantizeLinear", [codes, scale], "y", output_dtype=output_dtype)
    assert ran(net.model(y, output_dtype)).dtype == NUMPY[output_dtype]


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("quantizer", ["QuantizeLinear", "TRT_FP8QuantizeLinear"])
def test_fp8_codes_leave_as_bytes_and_are_fp8_to_every_reader(quantizer, declares):
    net = Forms()
    scale = net.constant("scale", np.float32(0.01))
    zero = [net.constant("zero", np.zeros((), ml_dtypes.float8_e4m3fn))]
    inputs = ["x", scale, *(zero if quantizer == "QuantizeLinear" else [])]
    codes = net.op(quantizer, inputs, "codes")
    if declares:
        net.declare(codes, BYTE)
    # ONNX's own op takes uint8 for integers; these are not.
    model = net.model(net.op("DequantizeLinear", [codes, scale], "y", domain=""), FLOAT)
    x = drawn(model)
    model.graph.output.append(helper.make_tensor_value_info("codes", BYTE, net.dims))
    if declares:
        del model.graph.value_info[:]
    session, _ = claimed_whole(model)
    y, made = session.run(None, x)
    expected = (x["x"] / np.float32(0.01)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(made, expected.view(np.uint8))
    np.testing.assert_array_equal(y, expected.astype(np.float32) * np.float32(0.01))


def test_fp8_codes_stay_fp8_where_they_are_moved():
    net = Forms(dims=(4, 6))
    scale = net.constant("scale", np.float32(0.01))
    codes = net.op("TRT_FP8QuantizeLinear", ["x", scale], "codes")
    turned = net.op("Transpose", [codes], "turned", domain="", perm=[1, 0])
    sizes = net.constant("sizes", np.array([4, 6]))
    apart = net.op("Reshape", [turned, sizes], "apart", domain="")
    model = net.model(net.op("DequantizeLinear", [apart, scale], "y"), FLOAT)
    codes = (drawn(model)["x"] / np.float32(0.01)).astype(ml_dtypes.float8_e4m3fn)
    expected = codes.T.reshape(4, 6).astype(np.float32) * np.float32(0.01)
    np.testing.assert_array_equal(ran(model), expected)


def test_fp8_weights_may_be_stored_as_bytes():
    net = Forms()
    codes = np.random.default_rng(5).normal(size=net.dims).astype(ml_dtypes.float8_e4m3fn)
    inputs = [net.constant("codes", codes.view(np.uint8)), net.constant("scale", np.float32(0.5))]
    weight = net.op("TRT_FP8DequantizeLinear", inputs, "weight")
    model = net.model(net.op("Add", ["x", weight], "y", domain=""), FLOAT)
    expected = drawn(model)["x"] + codes.astype(np.float32) / 2
    np.testing.assert_array_equal(ran(model), expected)


def test_blocks_of_4_bit_weights_follow_from_the_shapes():
    """Model Optimizer writes them so where it calibrates for TensorRT alone."""
    net = Forms(dims=(8, 6))
    scale = np.random.default_rng(2).uniform(0.1, 0.4, (2, 6)).astype(np.float32)
    parameters = [net.constant("scale", scale)]
    parameters.append(net.constant("zero", np.zeros((2, 6), np.int8).astype(ml_dtypes.int4)))
    codes = net.op("TRT_INT4QuantizeLinear", ["x", *parameters], "codes")
    model = net.model(net.op("TRT_INT4DequantizeLinear", [codes, *parameters], "y"), FLOAT)
    x, steps = drawn(model)["x"], np.repeat(scale, 4, axis=0)
    np.testing.assert_array_equal(ran(model), np.clip(np.rint(x / steps), -8, 7) * steps)


def same_codes(y: np.ndarray, expected: np.ndarray):
    """Two roundings of a code times its scale; another code would be a sixth apart or more."""
    limits = np.finfo(y.dtype)
    atol = float(limits.smallest_subnormal)
    np.testing.assert_allclose(y.astype(np.float64), expected, 2 * float(limits.eps), atol)


@pytest.mark.parametrize("element", [FLOAT, HALF])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("holds", ["numbers", "zeros", "tiny_blocks"])
def test_a_weight_behind_a_fake_quantiser_of_fp4_is_packed(holds, block, element):
    net = Forms(element, dims=(6, 64))
    values = np.random.default_rng(block).normal(size=net.dims)
    # Scales below the smallest e4m3 are kept at it, those of blocks of zeros at 1.
    factor = {"numbers": 1, "zeros": 0, "tiny_blocks": np.geomspace(1, 1e-7, 6)[:, None]}[holds]
    weight = net.constant("weight", (values * factor).astype(NUMPY[element]))
    restored = net.op("TRT_FP4QDQ", [weight], "restored", block_size=block)
    model = net.model(net.op("Add", ["x", restored], "y", domain=""), element)
    session, _ = claimed_whole(model)
    x = {"x": np.zeros(net.dims, NUMPY[element])}
    (expected,) = reference.evaluate(model, x)
    same_codes(session.run(None, x)[0], expected)


@pytest.mark.parametrize("element", [FLOAT, HALF])
def test_a_fake_quantiser_of_fp4_takes_what_is_made_at_run(element):
    net = Forms(element, dims=(6, 64))
    model = net.model(net.op("TRT_FP4QDQ", ["x"], "y", block_size=16), element)
    (expected,) = reference.evaluate(model, drawn(model))
    same_codes(ran(model), expected)


def fake_quantised(block: int) -> onnx.ModelProto:
    net = Forms(dims=(4, 24))
    return net.model(net.op("TRT_FP4QDQ", ["x"], "y", block_size=block), FLOAT)


def dynamic_pair(**attributes) -> onnx.ModelProto:
    net = Forms(dims=(4, 32))
    overall = net.constant("overall", np.float32(0.001))
    node = helper.make_node(
        "TRT_FP4DynamicQuantize", ["x", overall], ["codes", "scales"], domain="trt", **attributes
    )
    net.nodes.append(node)
    steps = net.op("DequantizeLinear", ["scales", overall], "steps", domain="")
    y = net.op("DequantizeLinear", ["codes", steps], "y", domain="", axis=-1, block_size=16)
    model = net.model(y, FLOAT)
    model.opset_import[0].version = 23
    model.ir_version = 11
    return model


def ambiguous_bytes() -> onnx.ModelProto:
    net = Forms()
    codes = net.constant("codes", np.zeros(net.dims, np.uint8))
    weight = net.op("DequantizeLinear", [codes, net.constant("scale", np.float32(1))], "weight")
    return net.model(net.op("Add", ["x", weight], "y", domain=""), FLOAT)


def pair_with(quantizer: dict, dequantizer: dict | None = None) -> onnx.ModelProto:
    net = Forms()
    parameters = [net.constant("scale", np.float32(1)), net.constant("zero", np.uint8(3))]
    codes = net.op("QuantizeLinear", ["x", *parameters], "codes", **quantizer)
    parameters = parameters[: None if not quantizer else 1]
    return net.model(
        net.op("DequantizeLinear", [codes, *parameters], "y", **(dequantizer or {})), FLOAT
    )


def test_blocks_of_a_dynamic_quantiser_are_16_where_nothing_tells():
    model = dynamic_pair()
    (expected,) = reference.evaluate(model, drawn(model))
    np.testing.assert_allclose(ran(model), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (dynamic_pair(axis=-1, block_size=16, scale_type=24), "attribute 'scale_type'"),
        (dynamic_pair(axis=-1, block_size=16, rounding=1), "attribute 'rounding'"),
        (fake_quantised(16), "its last axis of 24 is no multiple of block_size 16"),
        (ambiguous_bytes(), "integers or FP8 codes"),
        (pair_with({"output_dtype": TensorProto.INT8}), "its zero point is of u8"),
        (pair_with({"output_dtype": TensorProto.FLOAT8E5M2}), "attribute 'output_dtype'"),
        (pair_with({}, {"output_dtype": TensorProto.DOUBLE}), "attribute 'output_dtype'"),
    ],
)
def test_an_unknown_form_is_refused_with_its_name(model, reason):
    with pytest.raises(SessionError) as refused:
        session_with_report(model.SerializeToString(), "cpu", quiet(), claim="all")
    assert any(reason in left["reason"] for left in refused.value.report.left_out)


def test_a_declaration_of_fp8_codes_as_anything_else_is_mended():
    net = Forms()
    codes = net.op("TRT_FP8QuantizeLinear", ["x", net.constant("scale", np.float32(1))], "codes")
    net.declare(codes, FP8)
    model = net.model(net.op("TRT_FP8DequantizeLinear", [codes, "scale"], "y"), FLOAT)
    with pytest.warns(MendedModelWarning, match=r"'codes' \(float8e4m3fn, is uint8\)"):
        claimed_whole(model)


def test_a_plain_session_takes_them(tmp_path):
    model = modelopt_forms.residual_block("fp8")
    onnx.save(model, tmp_path / "model.onnx")
    import onnxruntime_ep_tenon as tenon

    tenon.register()
    options = quiet()
    device = next(
        found
        for found in onnxruntime.get_ep_devices()
        if found.ep_name == tenon.get_ep_name() and "CPU" in str(found.device.type)
    )
    options.add_provider_for_devices([device], {})
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options, enable_fallback=0)
    (y,) = session.run(None, drawn(model))
    np.testing.assert_array_equal(y, ran(model))
