"""Convolutional networks on a GPU through cuDNN, weights from seeds, against the CPU provider."""

import os

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon import cuda
from onnxruntime_ep_tenon.context_models import compile_model
from onnxruntime_ep_tenon.report import session_with_report
from test_session import quiet

pytestmark = pytest.mark.plugin

TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}
# Of the largest result; f16 rounds between nodes, each time by 2^-11.
TOLERANCES = {"f32": 1e-5, "f16": 1e-2}


@pytest.fixture(scope="module", autouse=True)
def gpu():
    if tenon.devices()[0].device.type.name != "GPU":
        pytest.skip("the driver offers no GPU")
    if not os.environ.get("TENON_CUDNN_LIBRARY") and not cuda.find_library("cudnn", ("9",)):
        pytest.skip("cuDNN is not installed")


class Network:
    """Nodes one after the other, with weights that keep the size of activations."""

    def __init__(self):
        self.random, self.nodes, self.weights = np.random.default_rng(11), [], []

    def node(self, op: str, inputs: list[str], **attributes) -> str:
        result = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [result], **attributes))
        return result

    def weight(self, *dims: int) -> str:
        name = f"w{len(self.weights)}"
        scale = np.sqrt(2 / max(1, np.prod(dims[1:])))
        values = self.random.standard_normal(dims) * scale
        self.weights.append((name, values.astype(np.float16)))
        return name

    def conv(self, x: str, given: int, made: int, size: int, stride=1, groups=1) -> str:
        weights = [self.weight(made, given // groups, size, size), self.weight(made)]
        pads, strides = [size // 2] * 4, [stride, stride]
        return self.node("Conv", [x, *weights], pads=pads, strides=strides, group=groups)

    def bottleneck(self, x: str, given: int, made: int, stride: int) -> str:
        y = self.node("Relu", [self.conv(x, given, made // 4, 1)])
        y = self.node("Relu", [self.conv(y, made // 4, made // 4, 3, stride)])
        y = self.conv(y, made // 4, made, 1)
        if stride != 1 or given != made:
            x = self.conv(x, given, made, 1, stride)
        return self.node("Relu", [self.node("Add", [y, x])])

    def squeezed(self, x: str, channels: int) -> str:
        """A depthwise block with squeeze and excitation, as in nets for phones."""
        y = self.node("HardSwish", [self.conv(x, channels, channels, 5, groups=channels)])
        s = self.node("GlobalAveragePool", [y])
        s = self.node("Relu", [self.conv(s, channels, channels // 4, 1)])
        s = self.node("HardSigmoid", [self.conv(s, channels // 4, channels, 1)])
        return self.node("Mul", [y, s])

    def model(self, output: str, element: int) -> onnx.ModelProto:
        kind = np.float32 if element == TensorProto.FLOAT else np.float16
        constants = [numpy_helper.from_array(v.astype(kind), name) for name, v in self.weights]
        image = helper.make_tensor_value_info("x", element, ["batch", 3, 64, 64])
        result = helper.make_tensor_value_info(output, element, ["batch", 64, 1, 1])
        graph = helper.make_graph(self.nodes, "net", [image], [result], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual_network(element: int) -> onnx.ModelProto:
    net = Network()
    y = net.node("Relu", [net.conv("x", 3, 16, 7, 2)])
    y = net.node("MaxPool", [y], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    y = net.bottleneck(y, 16, 32, 1)
    y = net.bottleneck(y, 32, 32, 1)
    y = net.squeezed(y, 32)
    y = net.bottleneck(y, 32, 64, 2)
    y = net.node("AveragePool", [y], kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.node("GlobalAveragePool", [y]), element)


@pytest.mark.parametrize("activations", TYPES)
def test_residual_network_is_one_partition(activations):
    on_stub = "TENON_DRIVER_LIBRARY" in os.environ  # whose cuDNN computes when it is called
    options = {} if on_stub else {"enable_cuda_graph": True}
    session, report = session_with_report(
        residual_network(TYPES[activations]), "gpu", quiet(), require_full_claim=True, **options
    )
    assert report.coverage.partitions == 1
    exact = residual_network(TensorProto.FLOAT).SerializeToString()
    stock = onnxruntime.InferenceSession(exact, quiet(), providers=["CPUExecutionProvider"])
    for batch in (1, 3, 1):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 64, 64)).astype(np.float16)
        wanted = stock.run(None, {"x": x.astype(np.float32)})[0]
        given = x.astype(np.float32) if activations == "f32" else x
        runs = [session.run(None, {"x": given})[0] for _ in range(4)]
        furthest = np.abs(runs[0].astype(np.float32) - wanted).max()
        assert furthest <= TOLERANCES[activations] * np.abs(wanted).max()
        for again in runs[1:]:
            np.testing.assert_array_equal(again, runs[0])


@pytest.mark.parametrize("activations", TYPES)
def test_a_context_gives_the_same_bits(activations, tmp_path):
    """Plans of cuDNN are in no context: they are made where it opens, for the engines it names."""
    path = tmp_path / "net.onnx"
    onnx.save(residual_network(TYPES[activations]), path)
    written, _ = compile_model(path, tmp_path / "c.onnx", "gpu", session_options=quiet())
    assert written.cudnn, "the context does not call cuDNN"
    x = np.random.default_rng(5).standard_normal((2, 3, 64, 64))
    x = x.astype(np.float32 if activations == "f32" else np.float16)
    results = []
    for model in (path, written.path):
        session, report = session_with_report(model, "gpu", quiet(), require_full_claim=True)
        results.append(session.run(None, {"x": x})[0])
    (context,) = (partition["context"] for partition in report.partitions)
    assert context["recompiled"] == ""
    np.testing.assert_array_equal(*results)
