"""Sizes of many steps, and sizes near the end of 64 bits: as stock, on a small stack.

What takes more steps than Tenon follows is left to kernels that compute it at Run.
"""

import threading

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.plugin

STACK = 512 << 10  # what ONNX Runtime itself runs on, too

# A step from %s{i} to %s{i+1}: each nests a function around the size before it.
STEPS = {
    "remainders": lambda i: [
        ("Mod", [f"s{i}", "d"], f"q{i}"),
        ("Add", [f"q{i}", "d"], f"s{i + 1}"),
    ],
    "quotients": lambda i: [("Div", ["k", f"s{i}"], f"q{i}"), ("Add", ["k", f"q{i}"], f"s{i + 1}")],
    "maxima": lambda i: [("Max", [f"s{i}", "d"], f"q{i}"), ("Sub", [f"q{i}", "e"], f"s{i + 1}")],
    "choices": lambda i: [
        ("Greater", [f"s{i}", "d"], f"g{i}"),
        ("Where", [f"g{i}", f"s{i}", "d"], f"w{i}"),
        ("Add", ["e", f"w{i}"], f"s{i + 1}"),
    ],
}


def on_small_stack(work):
    results = []
    before = threading.stack_size(STACK)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert results, "the thread ended with an error"
    return results[0]


def both(model, feeds):
    data = model.SerializeToString()
    stock = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    expected = stock.run(None, feeds)
    got = on_small_stack(lambda: tenon.create_session(data, "cpu", claim="all").run(None, feeds))
    return expected, got


def made(nodes, inputs, outputs, constants):
    graph = helper.make_graph(nodes, "deep", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


@pytest.mark.parametrize("steps", [20, 400])
@pytest.mark.parametrize("kind", STEPS)
def test_sizes_of_many_steps(kind, steps):
    nodes = [helper.make_node("Shape", ["x"], ["s0"]), helper.make_node("Shape", ["z"], ["d"])]
    for i in range(steps):
        nodes += [helper.make_node(op, ins, [out]) for op, ins, out in STEPS[kind](i)]
    nodes += [
        helper.make_node("Min", [f"s{steps}", "k"], ["most"]),
        helper.make_node("Max", ["most", "e"], ["last"]),
        helper.make_node("Expand", ["one", "last"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([3, 5], np.int64), "k"),
        numpy_helper.from_array(np.array([1, 1], np.int64), "e"),
        numpy_helper.from_array(np.array([1], np.float32), "one"),
    ]
    inputs = [
        value("x", TensorProto.FLOAT, ["a", "b"]),
        value("z", TensorProto.FLOAT, ["c", "d"]),
    ]
    outputs = [value("y", TensorProto.FLOAT, None), value(f"s{steps}", TensorProto.INT64, [2])]
    feeds = {"x": np.zeros((4, 6), np.float32), "z": np.zeros((3, 2), np.float32)}
    expected, got = both(made(nodes, inputs, outputs, constants), feeds)
    for wanted, ours in zip(expected, got, strict=True):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("doublings", [58, 62, 100])
def test_sizes_that_64_bits_do_not_count(doublings):
    """Only an empty tensor can be doubled so often; the session opens and runs all the same."""
    nodes = [
        helper.make_node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0)
        for i in range(doublings)
    ]
    model = made(
        nodes,
        [value("v0", TensorProto.FLOAT, ["m", 1])],
        [value(f"v{doublings}", TensorProto.FLOAT, [None, 1])],
        [],
    )
    expected, got = both(model, {"v0": np.zeros((0, 1), np.float32)})
    assert got[0].shape == expected[0].shape == (0, 1)
