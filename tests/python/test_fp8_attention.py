"""Attention with fp8 operands, in the two spellings that Model Optimizer writes."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.report import fusion_kind, session_with_report
from test_gpu import run_script
from test_session import quiet

pytestmark = pytest.mark.plugin

HEADS, DEPTH = 4, 32
WIDTH = HEADS * DEPTH
FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
SCALES = {"q": 0.01, "k": 0.01, "p": 1 / 448, "v": 0.02}


class Block:
    """x ── q, k, v ── attention between roundings ── projection ── y."""

    def __init__(self, element: int):
        self.element = element
        self.nodes, self.constants = [], []
        zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [1], b"\0", raw=True)
        self.constants.append(zero)

    def constant(self, name: str, value) -> str:
        dtype = None if name in ("split", "joined") else FLOATS[self.element]
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def op(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def rounded(self, x: str, operand: str) -> str:
        scale = self.constant(f"{operand}_scale", SCALES[operand])
        codes = self.op("QuantizeLinear", [x, scale, "zero"], f"{x}_codes", saturate=1)
        return self.op("DequantizeLinear", [codes, scale], f"{x}_rounded")

    def heads(self, name: str) -> str:
        weight = np.random.default_rng(ord(name)).normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
        made = self.op("MatMul", ["x", self.constant(f"w_{name}", 1.5 * weight)], f"{name}_made")
        apart = self.op("Reshape", [made, "split"], f"{name}_apart")
        return self.op("Transpose", [apart], f"{name}_heads", perm=[0, 2, 1, 3])

    def products(self) -> str:
        root = self.constant("root", DEPTH**-0.25)
        query = self.op("Mul", [self.heads("q"), root], "query")
        turned = self.op("Transpose", [self.heads("k")], "turned", perm=[0, 1, 3, 2])
        key = self.op("Mul", [turned, root], "key")
        scores = self.op("MatMul", [self.rounded(query, "q"), self.rounded(key, "k")], "scores")
        share = self.op("Softmax", [scores], "share", axis=-1)
        value = self.rounded(self.heads("v"), "v")
        return self.op("MatMul", [self.rounded(share, "p"), value], "summed")

    def model(self) -> onnx.ModelProto:
        self.constant("split", np.array([0, 0, HEADS, DEPTH]))
        self.constant("joined", np.array([0, 0, WIDTH]))
        apart = self.op("Transpose", [self.products()], "apart", perm=[0, 2, 1, 3])
        flat = self.op("Reshape", [apart, "joined"], "flat")
        weight = np.random.default_rng(0).normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
        self.op("MatMul", [flat, self.constant("w_o", weight)], "y")
        tensor = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "fp8",
            [tensor("x", self.element, ["batch", "tokens", WIDTH])],
            [tensor("y", self.element, ["batch", "tokens", WIDTH])],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("trt", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


class RenamedBlock(Block):
    """ONNX's names in TensorRT's domain: what the exporter makes of torch's graph."""

    def op(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        if kind.lower().endswith("quantizelinear"):
            attributes["domain"] = "trt"
        return super().op(kind, inputs, output, **attributes)


class TorchBlock(Block):
    """TensorRT's own quantisers, and products in f32 between Casts."""

    def rounded(self, x: str, operand: str) -> str:
        scale = self.constant(f"{operand}_scale", SCALES[operand])
        quantise = {"domain": "trt"}
        codes = self.op("TRT_FP8QuantizeLinear", [x, scale], f"{x}_codes", **quantise)
        back = self.op("TRT_FP8DequantizeLinear", [codes, scale], f"{x}_rounded", **quantise)
        return self.op("Cast", [back], f"{x}_wide", to=TensorProto.FLOAT)

    def op(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        if output not in ("scores", "summed"):
            return super().op(kind, inputs, output, **attributes)
        wide = super().op(kind, inputs, f"{output}_wide", **attributes)
        return super().op("Cast", [wide], output, to=self.element)


def drawn(element: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(2, 40, WIDTH)).astype(FLOATS[element])


def test_agrees_with_the_graph_node_by_node():
    model = Block(TensorProto.FLOAT).model().SerializeToString()
    session, report = session_with_report(model, "cpu", quiet())
    assert report.left_out == []
    assert [fusion_kind(f) for f in report.fusions].count("attention") == 1
    plain = quiet()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    peer = onnxruntime.InferenceSession(model, plain, providers=["CPUExecutionProvider"])
    x = {"x": drawn(TensorProto.FLOAT)}
    apart = np.abs(session.run(None, x)[0] - peer.run(None, x)[0]).max(axis=-1)
    # A number between two codes may end at either, and moves what follows from it.
    assert np.mean(apart > 1e-5) < 0.05
    assert apart.max() < 0.2


def without_transposes() -> onnxruntime.SessionOptions:
    """ONNX Runtime's optimiser of transposes fails at a Transpose in front of trt::QuantizeLinear.

    It would put a pair of quantisers in front of both, and knows them in its own domains only.
    """
    options = quiet()
    key = "optimization.disable_specified_optimizers"
    options.add_session_config_entry(key, "TransposeOptimizer")
    return options


def test_both_spellings_give_the_same():
    x = {"x": drawn(TensorProto.FLOAT16)}
    results = []
    for block in (RenamedBlock, TorchBlock):
        model = block(TensorProto.FLOAT16).model().SerializeToString()
        session, report = session_with_report(model, "cpu", without_transposes(), claim="all")
        assert report.left_out == []
        results.append(session.run(None, x)[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("block", [Block, RenamedBlock, TorchBlock])
def test_three_kernels_on_a_gpu(block):
    """q, k and v, rounded where they are made; attention; its projection."""
    model = block(TensorProto.FLOAT16).model().SerializeToString()
    _, report = session_with_report(model, "gpu", without_transposes(), target_arch="sm_90a")
    kinds = [fusion_kind(fusion) for fusion in report.fusions]
    assert kinds == ["merged_dots", "attention", "scaled_dot"]


def test_a_gpu_that_the_stub_driver_plays_rounds_alike(tmp_path):
    model = Block(TensorProto.FLOAT).model()
    onnx.save(model, tmp_path / "model.onnx")
    x = drawn(TensorProto.FLOAT)
    np.save(tmp_path / "x.npy", x)
    run_script(f"""
        import numpy, onnxruntime_ep_tenon as tenon
        session = tenon.create_session({str(tmp_path / "model.onnx")!r}, "gpu")
        y = session.run(None, {{"x": numpy.load({str(tmp_path / "x.npy")!r})}})[0]
        numpy.save({str(tmp_path / "y.npy")!r}, y)
    """)
    session, _ = session_with_report(model.SerializeToString(), "cpu", quiet())
    apart = np.abs(session.run(None, {"x": x})[0] - np.load(tmp_path / "y.npy")).max(axis=-1)
    assert np.mean(apart > 1e-5) < 0.05
    assert apart.max() < 0.2
