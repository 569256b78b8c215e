"""Graphs as text: constants that sizes and masks are made of come back, weights as their like."""

import numpy as np
import onnx
import pytest
from graph_text import read_text, write_text
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)
KEPT = {
    "sizes": np.array([2, -1, 64], np.int64),
    "positions": np.arange(3, 90, dtype=np.int64),
    "one": np.ones((40, 2), np.float32),
    "scalar": np.array(0.25, np.float16),
    "nothing": np.array([0.0, -np.inf], np.float32),
    "none": np.zeros((0,), np.int64),
}
DRAWN = {
    "weight": RANDOM.normal(0.2, 0.1, (60, 50)).astype(np.float32),
    "scale": RANDOM.uniform(0.1, 0.2, 100).astype(np.float32),
    "codes": RANDOM.integers(3, 200, (9, 9)).astype(np.uint8),
    "mask": RANDOM.choice([0.0, -100.0], (20, 20)).astype(np.float32),
}


def model_of(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in weights]
    shape = helper.make_tensor("value", TensorProto.INT64, [1], [7])
    nodes.append(helper.make_node("ConstantOfShape", ["x"], ["y"], value=shape))
    nodes.append(helper.make_node("Split", ["y"], ["a", "b"], domain="other", axis=-1, mode="a b"))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n + 1"])],
        [helper.make_tensor_value_info("b", TensorProto.INT64, [None, "n"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("other", 1)]
    return helper.make_model(graph, opset_imports=opsets)


def read_back(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    graph = read_text(write_text(model_of(weights))).model.graph
    arrays = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
    return dict(zip(weights, arrays, strict=True))


def test_constants_are_kept():
    for name, array in read_back(KEPT).items():
        assert array.dtype == KEPT[name].dtype
        np.testing.assert_array_equal(array, KEPT[name], name)


def test_weights_are_drawn_alike_and_always_the_same():
    first, again = read_back(DRAWN), read_back(DRAWN)
    for name, array in first.items():
        assert (array.dtype, array.shape) == (DRAWN[name].dtype, DRAWN[name].shape)
        np.testing.assert_array_equal(array, again[name])
        low, high = np.quantile(DRAWN[name], (0.0, 1.0))
        if name != "weight":
            assert low <= array.min() and array.max() <= high
    assert first["weight"].mean() == pytest.approx(0.2, abs=0.01)
    assert first["weight"].std() == pytest.approx(0.1, abs=0.01)


def test_nodes_and_sizes_come_back():
    found = read_text(write_text(model_of({}))).model.graph
    constant, split = found.node
    assert numpy_helper.to_array(constant.attribute[0].t) == [7]
    assert (split.domain, split.op_type, list(split.output)[1]) == ("other", "Split", "b")
    attributes = {one.name: helper.get_attribute_value(one) for one in split.attribute}
    assert attributes == {"axis": -1, "mode": b"a b"}
    assert found.input[0].type.tensor_type.shape.dim[0].dim_param == "n+1"
    open_size, named = found.output[0].type.tensor_type.shape.dim
    assert not open_size.WhichOneof("value") and named.dim_param == "n"


def test_what_leads_to_a_value_is_enough():
    text = write_text(model_of(DRAWN), ["y"])
    assert [node.op_type for node in read_text(text).model.graph.node] == ["ConstantOfShape"]


def test_lines_for_the_test_are_told():
    text = "# a graph\nsize n 4\nleft TopK 2 Add 1\n" + write_text(model_of({}))
    found = read_text(text)
    assert found.sizes == {"n": 4} and found.left == {"TopK": 2, "Add": 1}
