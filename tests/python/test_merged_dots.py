"""q, k, v and gate, up as one kernel each, in a session on the GPU that the stub driver plays."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_gpu import command, run_script

pytestmark = pytest.mark.plugin

K, QUERY, KEY, HIDDEN = 64, 136, 40, 100
WIDTHS = {"q": QUERY, "k": KEY, "v": KEY, "gate": HIDDEN, "up": HIDDEN}


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    tensors = {
        name: random.standard_normal((K, width)).astype(np.float16) / 8
        for name, width in WIDTHS.items()
    }
    tensors["bias"] = random.standard_normal(QUERY).astype(np.float16)
    return tensors


def build(element: int, dtype: type) -> onnx.ModelProto:
    """What a decoder's layer multiplies: two inputs, five weights."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "q"], ["unbiased"], name="q_proj"),
        node("Add", ["unbiased", "bias"], ["query"], name="q_bias"),
        node("MatMul", ["x", "k"], ["key"], name="k_proj"),
        node("MatMul", ["x", "v"], ["value"], name="v_proj"),
        node("MatMul", ["h", "gate"], ["g"], name="gate_proj"),
        node("MatMul", ["h", "up"], ["u"], name="up_proj"),
        node("Sigmoid", ["g"], ["s"], name="sigmoid"),
        node("Mul", ["g", "s"], ["a"], name="activation"),
        node("Mul", ["a", "u"], ["y"], name="gated"),
    ]
    value = helper.make_tensor_value_info
    widths = {"query": QUERY, "key": KEY, "value": KEY, "y": HIDDEN}
    graph = helper.make_graph(
        nodes,
        "block",
        [value(name, element, ["M", K]) for name in ("x", "h")],
        [value(name, element, ["M", width]) for name, width in widths.items()],
        [numpy_helper.from_array(tensor.astype(dtype), name) for name, tensor in weights().items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "block.onnx"
    onnx.save(build(TensorProto.FLOAT16, np.float16), path)
    return path


def expected(x: np.ndarray, h: np.ndarray) -> list[np.ndarray]:
    exact = {name: tensor.astype(np.float64) for name, tensor in weights().items()}
    gate, up = h @ exact["gate"], h @ exact["up"]
    activated = gate / (1 + np.exp(-gate)) * up
    return [x @ exact["q"] + exact["bias"], x @ exact["k"], x @ exact["v"], activated]


@pytest.mark.parametrize("rows", [1, 9])
def test_results_are_those_of_separate_products(block, rows, tmp_path):
    random = np.random.default_rng(rows)
    feeds = {name: random.standard_normal((rows, K)).astype(np.float16) for name in ("x", "h")}
    np.savez(tmp_path / "feeds.npz", **feeds)
    run_script(f"""
        import numpy, onnxruntime_ep_tenon as tenon
        session = tenon.create_session({str(block)!r}, "gpu")
        feeds = dict(numpy.load({str(tmp_path / "feeds.npz")!r}))
        numpy.savez({str(tmp_path / "results.npz")!r}, *session.run(None, feeds))
    """)
    results = list(np.load(tmp_path / "results.npz").values())
    wanted = expected(feeds["x"].astype(np.float64), feeds["h"].astype(np.float64))
    for result, exact in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, exact, rtol=4e-3, atol=4e-3)


def test_explain_shows_the_merged_products(block):
    told = command("explain", block, "--device", "gpu")
    assert told.count("merged_dots") == 2
    assert "scaled_dot" not in told


def test_a_cpu_keeps_them_apart(block):
    told = command("explain", block, "--device", "cpu", "--option", "claim=all")
    assert "merged_dots" not in told
    assert "scaled_dot" in told


def test_explain_tells_why_products_stay_apart(tmp_path):
    path = tmp_path / "block.onnx"
    onnx.save(build(TensorProto.FLOAT, np.float32), path)
    told = command("explain", path, "--device", "gpu")
    assert "merged_dots" not in told
    assert "run apart because" in told
    assert "no packed layout for f32 weights with f32 activations" in told


def build_packed() -> onnx.ModelProto:
    """The same weights, as exporters pack them: one product, then a split."""
    tensors = {name: tensor.astype(np.float16) for name, tensor in weights().items()}
    qkv = np.concatenate([tensors[name].T for name in ("q", "k", "v")])
    gate_up = np.concatenate([tensors[name].T for name in ("gate", "up")])
    node = helper.make_node
    nodes = [
        node("Gemm", ["x", "qkv"], ["xw"], name="qkv_proj", transB=1),
        node("Split", ["xw", "widths"], ["query", "key", "value"], name="split_qkv", axis=1),
        node("Gemm", ["h", "gate_up"], ["hw"], name="gate_up_proj", transB=1),
        node("Split", ["hw"], ["g", "u"], name="split_mlp", axis=1, num_outputs=2),
        node("Sigmoid", ["g"], ["s"], name="sigmoid"),
        node("Mul", ["g", "s"], ["a"], name="activation"),
        node("Mul", ["a", "u"], ["y"], name="gated"),
    ]
    value = helper.make_tensor_value_info
    widths = {"query": QUERY, "key": KEY, "value": KEY, "y": HIDDEN}
    graph = helper.make_graph(
        nodes,
        "packed",
        [value(name, TensorProto.FLOAT16, ["M", K]) for name in ("x", "h")],
        [value(name, TensorProto.FLOAT16, ["M", width]) for name, width in widths.items()],
        [
            numpy_helper.from_array(qkv, "qkv"),
            numpy_helper.from_array(gate_up, "gate_up"),
            numpy_helper.from_array(np.array([QUERY, KEY, KEY]), "widths"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def test_packed_weights_come_apart_without_a_split(tmp_path):
    path = tmp_path / "packed.onnx"
    onnx.save(build_packed(), path)
    told = command("explain", path, "--device", "gpu")
    assert told.count("merged_dots") == 2
    assert "loop" not in told
    random = np.random.default_rng(3)
    feeds = {name: random.standard_normal((5, K)).astype(np.float16) for name in ("x", "h")}
    np.savez(tmp_path / "feeds.npz", **feeds)
    run_script(f"""
        import numpy, onnxruntime_ep_tenon as tenon
        session = tenon.create_session({str(path)!r}, "gpu")
        feeds = dict(numpy.load({str(tmp_path / "feeds.npz")!r}))
        numpy.savez({str(tmp_path / "results.npz")!r}, *session.run(None, feeds))
    """)
    wanted = expected(feeds["x"].astype(np.float64), feeds["h"].astype(np.float64))
    wanted[0] -= weights()["bias"]
    for result, exact in zip(np.load(tmp_path / "results.npz").values(), wanted, strict=True):
        np.testing.assert_allclose(result, exact, rtol=4e-3, atol=4e-3)
