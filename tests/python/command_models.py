"""Small models that the tests of the command write to files."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder

_NUMPY = {FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def weight(*shape, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def linear(dtype: int = FLOAT, k: int = 64, n: int = 48) -> onnx.ModelProto:
    """x [rows, k] times a constant, and a Relu."""
    g = GraphBuilder("linear", 21)
    x = g.input("x", dtype, ["rows", k])
    w = g.parameter("W", weight(k, n, dtype=_NUMPY[dtype]))
    g.node("Relu", [g.node("MatMul", [x, w])], outputs=["y"])
    g.output("y", dtype, ["rows", n])
    return g.model()


def mixed_types() -> onnx.ModelProto:
    """A float16 product between float32 ones."""
    g = GraphBuilder("mixed", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    first = g.node("MatMul", [x, g.parameter("A", weight(64, 64))])
    half = g.node("Cast", [first], to=TensorProto.FLOAT16)
    second = g.node("MatMul", [half, g.parameter("B", weight(64, 64, dtype=np.float16))])
    g.node("Cast", [second], outputs=["y"], to=FLOAT)
    g.output("y", FLOAT, ["rows", 64])
    return g.model()


def behind_nonzero() -> onnx.ModelProto:
    """A product of as many rows as NonZero finds, which only a Run tells."""
    g = GraphBuilder("behind_nonzero", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    found = g.node("Transpose", [g.node("NonZero", [x])], perm=[1, 0])
    shape = g.parameter("shape", np.array([-1, 64], np.int64))
    rows = g.node("Reshape", [g.node("GatherND", [x, found]), shape])
    w = g.parameter("W", weight(64, 64))
    g.node("MatMul", [rows, w], outputs=["y"])
    g.output("y", FLOAT, ["found", 64])
    return g.model()


def classifier() -> onnx.ModelProto:
    """A product whose result is a sequence of maps, as scikit-learn's exporter writes classes."""
    g = GraphBuilder("classifier", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    scores = g.node("Softmax", [g.node("MatMul", [x, g.parameter("W", weight(64, 4))])])
    model = g.model()
    zip_map = helper.make_node(
        "ZipMap", [scores], ["z"], "zip", "", "ai.onnx.ml", classlabels_int64s=[3, 5, 7, 9]
    )
    model.graph.node.append(zip_map)
    number = helper.make_tensor_type_proto(FLOAT, [])
    table = helper.make_map_type_proto(TensorProto.INT64, number)
    sequence = helper.make_sequence_type_proto(table)
    model.graph.output.append(helper.make_value_info("z", sequence))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    return model


def shared_with_loop() -> onnx.ModelProto:
    """One weight that a product and the body of a Loop read, and one that only a product reads."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_on"]),
            helper.make_node("MatMul", ["state", "W"], ["next"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go_in", TensorProto.BOOL, [1]),
            value("state", FLOAT, ["rows", 64]),
        ],
        [value("go_on", TensorProto.BOOL, [1]), value("next", FLOAT, ["rows", 64])],
    )
    g = GraphBuilder("shared", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    first = g.node("MatMul", [x, g.parameter("V", weight(64, 64))])
    second = g.node("MatMul", [first, g.parameter("W", weight(64, 64) / 64)])
    times = g.parameter("times", np.array([2], np.int64))
    go = g.parameter("go", np.array([True]))
    g.node("Loop", [times, go, second], outputs=["y"], body=body)
    g.output("y", FLOAT, ["rows", 64])
    return g.model()


def rounded_activations() -> onnx.ModelProto:
    """Activations become 8 bits with scales of the data, between two products."""
    g = GraphBuilder("rounded", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    first = g.node("MatMul", [x, g.parameter("A", weight(64, 64))])
    codes, scale, zero = "codes", "scale", "zero"
    g.node("DynamicQuantizeLinear", [first], outputs=[codes, scale, zero])
    back = g.node("DequantizeLinear", [codes, scale, zero])
    g.node("MatMul", [back, g.parameter("B", weight(64, 64))], outputs=["y"])
    g.output("y", FLOAT, ["rows", 64])
    return g.model()


def unsorted() -> onnx.ModelProto:
    """The reader stands before the producer, as some converters leave casts that they add."""
    model = linear()
    product, relu = model.graph.node
    nodes = [relu, product]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


def saved(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(model, path)
    return path
