"""What is claimed in the bodies of Loop, Scan and If, by where their weights come from.

Weights that are constants anywhere above a body are packed once, and the cell is claimed whole.
Weights that a Run brings, or that a loop carries along, would be packed at every step: their
products are left to stock kernels, and what is around them is claimed.
"""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

BATCH, WIDTH, STEPS = 2, 64, 3
SHAPES = {"W": [WIDTH, 4 * WIDTH], "R": [WIDTH, 4 * WIDTH], "B": [4 * WIDTH]}


def value(name, shape, element=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def states(*names):
    return [value(name, [BATCH, WIDTH]) for name in names]


def weights():
    random = np.random.default_rng(0)
    return [
        numpy_helper.from_array(random.normal(0, 0.1, shape).astype(np.float32), name)
        for name, shape in SHAPES.items()
    ]


def lstm_cell(weight="W", recurrent="R", bias="B"):
    node = helper.make_node
    return [
        node("MatMul", ["x_t", weight], ["xw"]),
        node("MatMul", ["h_in", recurrent], ["hr"]),
        node("Add", ["xw", "hr"], ["sum"]),
        node("Add", ["sum", bias], ["gates"]),
        node("Split", ["gates"], ["i", "f", "g", "o"], axis=1, num_outputs=4),
        node("Sigmoid", ["i"], ["si"]),
        node("Sigmoid", ["f"], ["sf"]),
        node("Sigmoid", ["o"], ["so"]),
        node("Tanh", ["g"], ["tg"]),
        node("Mul", ["sf", "c_in"], ["kept"]),
        node("Mul", ["si", "tg"], ["new"]),
        node("Add", ["kept", "new"], ["c_out"]),
        node("Tanh", ["c_out"], ["tc"]),
        node("Mul", ["so", "tc"], ["h_out"]),
    ]


def loop_model(origin):
    carried = SHAPES if origin == "carried" else {}
    names = [f"{name}_in" for name in SHAPES] if carried else list(SHAPES)
    nodes = [helper.make_node("Gather", ["x", "step"], ["x_t"], axis=0), *lstm_cell(*names)]
    nodes.append(helper.make_node("Identity", ["go_in"], ["go_out"]))
    nodes += [helper.make_node("Identity", [f"{name}_in"], [f"{name}_out"]) for name in carried]
    scalar = [value("step", [], TensorProto.INT64), value("go_in", [], TensorProto.BOOL)]
    inputs = scalar + states("h_in", "c_in")
    inputs += [value(f"{name}_in", shape) for name, shape in carried.items()]
    outputs = [value("go_out", [], TensorProto.BOOL), *states("h_out", "c_out")]
    outputs += [value(f"{name}_out", shape) for name, shape in carried.items()]
    body = helper.make_graph(nodes, "body", inputs, outputs, weights() if origin == "body" else [])
    loop = helper.make_node(
        "Loop",
        ["steps", "go", "h0", "c0", *carried],
        ["h", "c", *[f"{name}_end" for name in carried]],
        body=body,
    )
    control = [
        numpy_helper.from_array(np.array(STEPS), "steps"),
        numpy_helper.from_array(np.array(True), "go"),
    ]
    return model_around(loop, [value("x", [STEPS, BATCH, WIDTH])], origin, control)


def scan_model(origin):
    body = helper.make_graph(
        lstm_cell(),
        "body",
        states("h_in", "c_in", "x_t"),
        states("h_out", "c_out"),
        weights() if origin == "body" else [],
    )
    scan = helper.make_node("Scan", ["h0", "c0", "x"], ["h", "c"], body=body, num_scan_inputs=1)
    return model_around(scan, [value("x", [STEPS, BATCH, WIDTH])], origin)


def if_model(origin):
    nodes = [
        helper.make_node("Identity", [outer], [inner])
        for outer, inner in (("x", "x_t"), ("h0", "h_in"), ("c0", "c_in"))
    ]
    then = helper.make_graph(
        nodes + lstm_cell(),
        "body",
        [],
        states("h_out", "c_out"),
        weights() if origin == "body" else [],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", [f"{state}0"], [f"{state}_same"]) for state in "hc"],
        "other",
        [],
        states("h_same", "c_same"),
    )
    branch = helper.make_node("If", ["p"], ["h", "c"], then_branch=then, else_branch=other)
    inputs = [value("x", [BATCH, WIDTH]), value("p", [], TensorProto.BOOL)]
    return model_around(branch, inputs, origin)


def model_around(node, inputs, origin, initializers=()):
    inputs = inputs + states("h0", "c0")
    if origin == "input":
        inputs += [value(name, shape) for name, shape in SHAPES.items()]
    held = weights() if origin in ("main", "carried") else []
    graph = helper.make_graph([node], "main", inputs, states("h", "c"), [*held, *initializers])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


MODELS = {"Loop": loop_model, "Scan": scan_model, "If": if_model}


def feeds_for(session):
    random = np.random.default_rng(1)
    return {
        entry.name: np.array(True)
        if entry.type == "tensor(bool)"
        else random.normal(0, 0.1, entry.shape).astype(np.float32)
        for entry in session.get_inputs()
    }


def body_report(model):
    session, report = session_with_report(model, "cpu")
    (body,) = [graph for graph in report.graphs if graph["name"] == "body"]
    stock = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = feeds_for(session)
    for got, expected in zip(session.run(None, feeds), stock.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    return body


@pytest.mark.parametrize("owner", MODELS)
@pytest.mark.parametrize("origin", ["main", "body"])
def test_a_cell_of_constant_weights_is_claimed_whole(owner, origin):
    body = body_report(MODELS[owner](origin))
    assert body["left_out"] == []
    assert len(body["partitions"]) == 1
    # Packed once, when the session was made, not read as operands of the partition.
    assert not {"W", "R"} & set(body["partitions"][0]["inputs"])


@pytest.mark.parametrize(
    ("owner", "origin"),
    [("Loop", "input"), ("Loop", "carried"), ("Scan", "input"), ("If", "input")],
)
def test_products_of_weights_at_run_are_left_and_the_rest_is_claimed(owner, origin):
    body = body_report(MODELS[owner](origin))
    at_run = [left["op"] for left in body["left_out"] if "arrive at Run" in left["reason"]]
    # The runtime makes one Gemm of the second product and the sum behind it.
    assert sorted(at_run) == ["Gemm", "MatMul"]
    assert any("Sigmoid" in name for part in body["partitions"] for name in part["nodes"])
