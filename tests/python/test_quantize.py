"""The quantiser on whole models: spelling, skips, types, files."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.models import encoder, quantize, reference, rewrite
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.number_formats import FORMATS

SMALL = encoder.SMALL
TOKENS = encoder.random_tokens(3, 11, SMALL.vocabulary)


@pytest.fixture(scope="module")
def small_encoder():
    return encoder.build_encoder(shape=SMALL)


def linear(k=64, n=48, transposed=False, opset=17) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    g = GraphBuilder("linear", opset)
    x = g.input("x", FLOAT, ["M", k])
    shape = (n, k) if transposed else (k, n)
    weight = g.parameter("W", random.standard_normal(shape).astype(np.float32))
    if transposed:
        weight = g.node("Transpose", [weight], perm=[1, 0])
    g.node("MatMul", [x, weight], outputs=["y"])
    g.output("y", FLOAT, ["M", n])
    return g.model()


@pytest.mark.parametrize("activations", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", FORMATS)
def test_an_encoder_becomes_a_valid_model_with_small_error(small_encoder, name, activations):
    model, report = quantize.quantize_model(small_encoder, name, activations)
    onnx.checker.check_model(model, full_check=True)
    assert len(report.quantized_layers) == 6 * SMALL.layers
    exact = reference.evaluate(small_encoder, TOKENS)[0]
    vectors = reference.evaluate(model, TOKENS)[0]
    assert np.min(np.sum(exact * vectors, axis=1)) > 0.9


def test_the_model_given_is_not_changed(small_encoder):
    before = small_encoder.SerializeToString()
    quantize.quantize_model(small_encoder, "nvfp4", "f16")
    assert small_encoder.SerializeToString() == before


def test_nvfp4_is_the_chain_of_two_dequantize_nodes():
    model, _ = quantize.quantize_model(linear(), "nvfp4")
    ops = [node.op_type for node in model.graph.node]
    assert ops == ["DequantizeLinear", "DequantizeLinear", "Transpose", "MatMul"]
    types = {t.name: (t.data_type, list(t.dims)) for t in model.graph.initializer}
    assert types["W/codes"] == (TensorProto.FLOAT4E2M1, [48, 64])
    assert types["W/scale"] == (TensorProto.FLOAT8E4M3FN, [48, 4])
    assert types["W/global_scale"] == (TensorProto.FLOAT, [])
    assert rewrite.default_opset(model) == 23 and model.ir_version == 11


def test_mx_scales_are_e8m0_and_say_their_output_type():
    model, _ = quantize.quantize_model(linear(), "mxfp8", "f16")
    node = next(n for n in model.graph.node if n.op_type == "DequantizeLinear")
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes == {"axis": -1, "block_size": 32, "output_dtype": TensorProto.FLOAT16}
    types = {t.name: t.data_type for t in model.graph.initializer}
    assert types["W/scale"] == TensorProto.FLOAT8E8M0
    assert rewrite.default_opset(model) == 24 and model.ir_version == 12


def test_int4_runs_in_stock_onnxruntime_with_k_major_blocks():
    plain = linear()
    model, _ = quantize.quantize_model(plain, "int4")
    assert [n.op_type for n in model.graph.node] == ["DequantizeLinear", "MatMul"]
    scale = next(t for t in model.graph.initializer if t.name == "W/scale")
    assert list(scale.dims) == [2, 48]
    x = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (result,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, x)
    np.testing.assert_allclose(result, reference.evaluate(model, x)[0], rtol=1e-4, atol=1e-5)


def test_a_transpose_before_the_product_is_absorbed():
    model, report = quantize.quantize_model(linear(transposed=True), "nvfp4")
    assert len(report.quantized_layers) == 1
    assert [n.op_type for n in model.graph.node].count("Transpose") == 1


def test_weights_of_constant_nodes_are_found():
    plain = linear()
    tensor = plain.graph.initializer.pop()
    plain.graph.node.insert(0, helper.make_node("Constant", [], ["W"], value=tensor))
    model, report = quantize.quantize_model(plain, "nvfp4")
    assert len(report.quantized_layers) == 1
    assert "Constant" not in [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("name", ["nvfp4", "int4"])
def test_gemm_keeps_its_meaning(name, trans_b):
    random = np.random.default_rng(0)
    g = GraphBuilder("gemm", 21)
    x = g.input("x", FLOAT, ["M", 64])
    weights = random.standard_normal((32, 64) if trans_b else (64, 32)).astype(np.float32)
    bias = random.standard_normal(32).astype(np.float32)
    g.node(
        "Gemm", [x, g.parameter("W", weights), g.parameter("b", bias)], outputs=["y"],
        transB=trans_b, alpha=0.5,
    )  # fmt: skip
    g.output("y", FLOAT, ["M", 32])
    plain = g.model()
    model, report = quantize.quantize_model(plain, name)
    assert len(report.quantized_layers) == 1
    inputs = {"x": random.standard_normal((3, 64)).astype(np.float32)}
    exact, rounded = (reference.evaluate(m, inputs)[0] for m in (plain, model))
    assert np.sqrt(np.mean((exact - rounded) ** 2)) < 0.15 * np.sqrt(np.mean(exact**2))


def test_layers_that_do_not_fit_are_left_with_a_reason():
    model, report = quantize.quantize_model(linear(k=40), "nvfp4")
    assert report.quantized_layers == []
    assert report.layers[0].reason == "K=40 is not divisible by the block of 16"
    assert [n.op_type for n in model.graph.node] == ["MatMul"]


def test_weights_with_nan_are_left_with_a_reason():
    plain = linear()
    values = numpy_helper.to_array(plain.graph.initializer[0]).copy()
    values[0, 0] = np.nan
    plain.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "W"))
    _, report = quantize.quantize_model(plain, "nvfp4")
    assert "NaN or Inf" in report.layers[0].reason


def test_nodes_can_be_excluded_by_name(small_encoder):
    _, report = quantize.quantize_model(small_encoder, "int4", exclude=["*feed_forward*"])
    left = [layer for layer in report.layers if not layer.quantized]
    assert len(left) == 2 * SMALL.layers
    assert {layer.reason for layer in left} == {"excluded by name"}


def test_large_embedding_tables_are_quantised_on_request():
    shape = encoder.EncoderShape(
        layers=1, hidden=64, heads=4, feed_forward=64, vocabulary=20000, positions=16
    )
    plain = encoder.build_encoder(shape=shape)
    model, report = quantize.quantize_model(plain, "nvfp4", embeddings=True)
    tables = {layer.weight: layer for layer in report.layers if layer.op == "Gather"}
    assert tables["embeddings.word_embeddings.weight"].quantized
    assert sum(layer.quantized for layer in tables.values()) == 1
    tokens = encoder.random_tokens(2, 7, shape.vocabulary)
    exact, rounded = (reference.evaluate(m, tokens)[0] for m in (plain, model))
    assert np.min(np.sum(exact * rounded, axis=1)) > 0.9


def test_a_shared_weight_is_stored_once():
    g = GraphBuilder("tied", 21)
    x = g.input("x", FLOAT, ["M", 64])
    w = g.parameter("W", np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    g.node("MatMul", [g.node("MatMul", [x, w]), w], outputs=["y"])
    g.output("y", FLOAT, ["M", 64])
    model, report = quantize.quantize_model(g.model(), "nvfp4")
    assert len(report.quantized_layers) == 2
    assert [t.name for t in model.graph.initializer].count("W/codes") == 1
    assert "W" not in [t.name for t in model.graph.initializer]


def test_weights_in_another_file_stay_in_another_file(tmp_path, small_encoder):
    source = tmp_path / "model.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(small_encoder)
    onnx.save(copy, source, save_as_external_data=True, location="model.bin", size_threshold=64)
    for activations in ("f32", "f16"):
        target = tmp_path / f"{activations}.onnx"
        report = quantize.quantize_file(source, target, "int4", activations)
        assert report.files == [str(target), str(target) + ".data"]
        expected, _ = quantize.quantize_model(small_encoder, "int4", activations)
        np.testing.assert_array_equal(
            reference.evaluate(onnx.load(target), TOKENS)[0],
            reference.evaluate(expected, TOKENS)[0],
        )
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no model"), (b"\x00not a model at all", "is not an ONNX model")],
)
def test_a_bad_file_gives_a_clear_error(tmp_path, content, message):
    source = tmp_path / "model.onnx"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(rewrite.RewriteError, match=message):
        quantize.quantize_file(source, tmp_path / "out.onnx", "int4")
    assert not (tmp_path / "out.onnx").exists()


def test_unknown_formats_are_listed():
    with pytest.raises(rewrite.RewriteError, match="nvfp4, mxfp8, mxfp4, int4, fp8"):
        quantize.quantize_model(linear(), "int3")


def test_an_operator_without_bfloat16_is_named():
    g = GraphBuilder("no_bf16", 21)
    x = g.input("x", FLOAT, ["M", 64])
    w = g.parameter("W", np.ones((64, 64), np.float32))
    g.node("Acos", [g.node("MatMul", [x, w])], outputs=["y"])
    g.output("y", FLOAT, ["M", 64])
    with pytest.raises(rewrite.RewriteError, match="bfloat16"):
        quantize.quantize_model(g.model(), "int4", "bf16")


def test_reductions_and_split_of_older_opsets_are_rewritten():
    g = GraphBuilder("older", 17)
    x = g.input("x", FLOAT, ["M", 64])
    y = g.node("MatMul", [x, g.parameter("W", np.eye(64, dtype=np.float32))])
    first, second = g.node("Split", [y], outputs=2, axis=1)
    g.node("ReduceMax", [g.node("Add", [first, second])], outputs=["y"], axes=[1], keepdims=0)
    g.output("y", FLOAT, ["M"])
    plain = g.model()
    model, _ = quantize.quantize_model(plain, "nvfp4")
    onnx.checker.check_model(model, full_check=True)
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)}
    exact, rounded = (reference.evaluate(m, inputs)[0] for m in (plain, model))
    np.testing.assert_allclose(rounded, exact, atol=0.05)


def test_the_model_s_own_weights_are_never_replaced(tmp_path):
    """The result's data would get the name of the file that the model keeps its weights in."""
    path, target = tmp_path / "model.onnx", tmp_path / "small.onnx"
    onnx.save(
        linear(), path, save_as_external_data=True, location="small.onnx.data", size_threshold=0
    )
    before = (tmp_path / "small.onnx.data").read_bytes()
    with pytest.raises(rewrite.RewriteError, match="give another name"):
        rewrite.save_model(rewrite.load_without_data(path), target, tmp_path)
    assert (tmp_path / "small.onnx.data").read_bytes() == before and not target.exists()


def test_weights_of_bodies_move_with_the_model(tmp_path):
    path, other = tmp_path / "model.onnx", tmp_path / "other"
    other.mkdir()
    body = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["t"])], "body", [],
        [helper.make_tensor_value_info("t", FLOAT, [4])],
        [numpy_helper.from_array(np.arange(4, dtype=np.float32), "w")],
    )  # fmt: skip
    nodes = [helper.make_node("If", ["b"], ["y"], then_branch=body, else_branch=body)]
    ends = [
        [
            helper.make_tensor_value_info("x", FLOAT, [4]),
            helper.make_tensor_value_info("b", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [4])],
    ]
    graph = helper.make_graph(nodes, "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    for inner in rewrite.graphs_of(model.graph):
        for tensor in inner.initializer:
            onnx.external_data_helper.set_external_data(tensor, "weights.bin", 0, 16)
            tensor.ClearField("raw_data")
    (tmp_path / "weights.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    onnx.save(model, path)
    rewrite.save_model(rewrite.load_without_data(path), other / "model.onnx", tmp_path)
    (tmp_path / "weights.bin").unlink()
    moved = [
        rewrite.read_tensor(tensor, other)
        for inner in rewrite.graphs_of(rewrite.load_without_data(other / "model.onnx").graph)
        for tensor in inner.initializer
    ]
    assert len(moved) == 2 and all((array == np.arange(4)).all() for array in moved)


def test_threads_change_nothing(monkeypatch):
    """Weights that several nodes read, and one that cannot be rounded, are not asked for twice."""
    g = GraphBuilder("many", 21)
    x, random = g.input("x", FLOAT, ["rows", 64]), np.random.default_rng(0)
    weights = [g.parameter(f"w{i}", random.standard_normal((64, 64), np.float32)) for i in range(9)]
    bad = g.parameter("bad", np.full((64, 64), np.nan, np.float32))
    for name in [*weights, bad, *weights[::2], bad]:
        x = g.node("MatMul", [x, name])
    g.node("Identity", [x], outputs=["y"])
    g.output("y", FLOAT, ["rows", 64])
    made = []
    for threads in (1, 4):
        monkeypatch.setattr(quantize, "_MOST_THREADS", threads)
        model, report = quantize.quantize_model(g.model(), "int4")
        left = [layer.weight for layer in report.layers if not layer.quantized]
        assert left == ["bad", "bad"] and len(report.layers) == 16
        made.append(model.SerializeToString(deterministic=True))
    assert made[0] == made[1]
