"""Quantised nets on the CPU: what the CPU provider runs on 8-bit integers stays its own.

It makes one QLinearConv of DequantizeLinear, Conv and QuantizeLinear, if nobody claims a part.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

CHANNELS, SIZE = 16, 4


class QuantisedNet:
    """Residual blocks as onnxruntime.quantization writes them."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.nodes = []
        self.constants = {
            "scale": np.float32(0.02),
            "zero": np.uint8(0),
            "weight_scale": np.full(CHANNELS, 0.01, np.float32),
            "weight_zero": np.zeros(CHANNELS, np.int8),
            "bias_scale": np.full(CHANNELS, 0.0002, np.float32),
        }

    def node(self, op, inputs, result, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [result], name=result, **attributes))
        return result

    def quantised(self, x, name):
        codes = self.node("QuantizeLinear", [x, "scale", "zero"], f"{name}_q")
        return self.node("DequantizeLinear", [codes, "scale", "zero"], f"{name}_dq")

    def weight(self, name, array, kind):
        self.constants[name] = array
        names = [name, f"{kind}_scale"] + (["weight_zero"] if kind == "weight" else [])
        return self.node("DequantizeLinear", names, f"{name}_dq", axis=0)

    def convolution(self, x, name):
        shape = (CHANNELS, CHANNELS, 3, 3)
        w = self.weight(f"{name}_w", self.random.integers(-20, 21, shape).astype(np.int8), "weight")
        bias = self.random.integers(-100, 100, CHANNELS).astype(np.int32)
        b = self.weight(f"{name}_b", bias, "bias")
        return self.node("Conv", [x, w, b], name, kernel_shape=[3, 3], pads=[1] * 4)

    def block(self, x, name):
        first = self.node("Relu", [self.convolution(x, f"{name}_first")], f"{name}_relu")
        second = self.convolution(self.quantised(first, f"{name}_mid"), f"{name}_second")
        added = self.node("Add", [self.quantised(second, f"{name}_out"), x], f"{name}_sum")
        return self.quantised(self.node("Relu", [added], f"{name}_end"), name)

    def model(self, blocks=2, tail=()):
        x = self.quantised("x", "start")
        for i in range(blocks):
            x = self.block(x, f"block{i}")
        for op in tail:
            x = self.node(op, [x], f"tail{len(self.nodes)}")
        shape = ["batch", CHANNELS, SIZE, SIZE]
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in self.constants.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made)
        return made.SerializeToString()

    def inputs(self):
        x = self.random.standard_normal((2, CHANNELS, SIZE, SIZE))
        return {"x": x.astype(np.float32)}


def stock(data, inputs):
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_a_quantised_convolution_net_is_left_whole():
    net = QuantisedNet()
    data, inputs = net.model(), net.inputs()
    session, report = session_with_report(data, "cpu")
    assert report.coverage.claimed == 0
    said = {group.reason for group in report.reason_groups()}
    assert any("Conv and QuantizeLinear as one QLinearConv" in reason for reason in said), said
    np.testing.assert_array_equal(session.run(None, inputs)[0], stock(data, inputs))


def test_what_quantises_for_a_node_of_others_is_left_with_it():
    """HardSwish has no form of integers: the chain behind the last block is weighed by itself."""
    net = QuantisedNet()
    data, inputs = net.model(tail=("HardSwish", "Neg", "Abs", "HardSwish")), net.inputs()
    session, report = session_with_report(data, "cpu")
    left = {node["op"] for node in report.left_out}
    assert left >= {"Conv", "Add", "QuantizeLinear"} and "HardSwish" not in left
    np.testing.assert_allclose(
        session.run(None, inputs)[0], stock(data, inputs), rtol=1e-5, atol=1e-6
    )


def test_all_is_claimed_by_request():
    net = QuantisedNet()
    data, inputs = net.model(), net.inputs()
    session, report = session_with_report(data, "cpu", claim="all")
    assert report.coverage.claimed > 0
    settings = onnxruntime.SessionOptions()  # sums of floats, as the file says
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(data, settings, providers=["CPUExecutionProvider"])
    # A sum that ends between two codes may be rounded to either.
    np.testing.assert_allclose(
        session.run(None, inputs)[0], plain.run(None, inputs)[0], atol=0.0201
    )


def test_a_dynamically_quantised_product_is_left_to_integers():
    random = np.random.default_rng(1)
    constants = {
        "w": random.integers(-127, 128, (64, 64)).astype(np.int8),
        "w_zero": np.int8(0),
        "w_scale": np.float32(0.01),
        "bias": random.standard_normal(64).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "q_scale", "q_zero"]),
        node("MatMulInteger", ["q", "w", "q_zero", "w_zero"], ["product"]),
        node("Cast", ["product"], ["cast"], to=TensorProto.FLOAT),
        node("Mul", ["q_scale", "w_scale"], ["both"]),
        node("Mul", ["cast", "both"], ["scaled"]),
        node("Add", ["scaled", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 64])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    data = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    session, report = session_with_report(data, "cpu")
    assert report.coverage.claimed == 0
    inputs = {"x": random.standard_normal((5, 64)).astype(np.float32)}
    np.testing.assert_array_equal(session.run(None, inputs)[0], stock(data, inputs))
