"""A node that nobody here runs cuts the graph and nothing else.

Sizes that are made in front of it serve what stands behind it: the graph is claimed but for that
node, gives stock's numbers at every size, and refuses sizes that contradict what it was told.
"""

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.context_models import compile_model
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
WIDTH, LAYERS = 64, 2


def quiet():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 0.2, shape).astype(np.float32)


def value(name, shape, element=FLOAT):
    return helper.make_tensor_value_info(name, element, shape)


def model(nodes, inputs, outputs, constants, told=()):
    graph = helper.make_graph(
        nodes,
        "cut",
        inputs,
        outputs,
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
        value_info=list(told),
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def shared_sizes():
    """Shape -> Concat in front of a TopK, read on both sides of it."""
    node = helper.make_node
    constants = {
        **{f"w{i}": numbers(WIDTH, WIDTH, seed=i) for i in range(3)},
        "k": np.array([WIDTH]),
        "flat": np.array([-1, WIDTH]),
        "width": np.array([WIDTH]),
        "heads": np.array([2, 32]),
    }
    nodes = [
        node("Shape", ["x"], ["b"], start=0, end=1),
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Concat", ["b", "s", "heads"], ["split"], axis=0),
        node("Concat", ["b", "s", "width"], ["joined"], axis=0),
        node("MatMul", ["x", "w0"], ["q"]),
        node("Reshape", ["q", "split"], ["q4"]),
        node("Softmax", ["q4"], ["q5"]),
        node("Reshape", ["q5", "flat"], ["t"]),
        node("MatMul", ["t", "w1"], ["t1"]),
        node("TopK", ["t1", "k"], ["v", "i"], name="router"),
        node("Reshape", ["v", "joined"], ["z"]),
        node("MatMul", ["z", "w2"], ["mm"]),
        node("Sigmoid", ["mm"], ["sg"]),
        node("Mul", ["mm", "sg"], ["m2"]),
        node("Add", ["m2", "x"], ["y"]),
    ]
    return model(nodes, [value("x", ["batch", "seq", WIDTH])], [value("y", None)], constants)


def attention_behind_experts():
    """As onnxruntime-genai's builder writes it: one total_sequence_length for all layers. TopK
    stands where a mixture of experts does."""
    node = helper.make_node
    constants = {
        "one": np.array([1]),
        "i1": np.array(1),
        "k": np.array([128]),
        "cos": numbers(64, 16),
        "sin": numbers(64, 16, seed=1),
    }
    nodes = [
        node("ReduceSum", ["mask", "one"], ["rs"], keepdims=1),
        node("Sub", ["rs", "one"], ["sl"]),
        node("Cast", ["sl"], ["seqlens"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["ms"]),
        node("Gather", ["ms", "i1"], ["ml"]),
        node("Cast", ["ml"], ["total"], to=TensorProto.INT32),
    ]
    inputs = [value("x", ["batch", "seq", 128]), value("mask", ["batch", "total"], INT64)]
    outputs, x = [], "x"
    for i in range(LAYERS):
        constants[f"wq{i}"] = numbers(128, 192, seed=10 + i)
        constants[f"wo{i}"] = numbers(128, 128, seed=20 + i)
        past = [f"past_k{i}", f"past_v{i}"]
        present = [f"present_k{i}", f"present_v{i}"]
        nodes += [
            node("MatMul", [x, f"wq{i}"], [f"qkv{i}"]),
            node(
                "GroupQueryAttention",
                [f"qkv{i}", "", "", *past, "seqlens", "total", "cos", "sin"],
                [f"a{i}", *present],
                domain="com.microsoft",
                num_heads=4,
                kv_num_heads=1,
                do_rotary=1,
                name=f"attention{i}",
            ),
            node("MatMul", [f"a{i}", f"wo{i}"], [f"o{i}"]),
            node("Add", [x, f"o{i}"], [f"r{i}"]),
            node("TopK", [f"r{i}", "k"], [f"m{i}", f"mi{i}"], name=f"experts{i}"),
            node("Add", [f"r{i}", f"m{i}"], [f"x{i}"]),
        ]
        x = f"x{i}"
        inputs += [value(name, ["batch", 1, "past", 32]) for name in past]
        outputs += [value(name, ["batch", 1, "total", 32]) for name in present]
    return model(nodes, inputs, [value(x, None), *outputs], constants)


def attention_feeds(batch, tokens, past):
    random = np.random.default_rng(batch + tokens + past)
    feeds = {
        "x": random.standard_normal((batch, tokens, 128)).astype(np.float32),
        "mask": np.ones((batch, past + tokens), np.int64),
    }
    for i in range(LAYERS):
        for part in ("past_k", "past_v"):
            feeds[f"{part}{i}"] = random.standard_normal((batch, 1, past, 32)).astype(np.float32)
    return feeds


def assert_only_topk_is_left(report):
    assert {node["op"] for node in report.left_out} == {"TopK"}, report.reasons()


def assert_as_stock(data, session, feeds_of_runs):
    stock = onnxruntime.InferenceSession(data, quiet(), providers=["CPUExecutionProvider"])
    for feeds in feeds_of_runs:
        for expected, got in zip(stock.run(None, feeds), session.run(None, feeds), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


SHAPES = [(1, 1), (2, 3), (3, 2), (1, 7), (6, 1), (2, 3)]


def test_sizes_serve_what_stands_behind_a_left_out_node():
    data = shared_sizes()
    session, report = session_with_report(data, "cpu", quiet(), claim="all")
    assert_only_topk_is_left(report)
    assert len(report.partitions) == 2
    feeds = [{"x": numbers(*shape, WIDTH, seed=5)} for shape in SHAPES]
    assert_as_stock(data, session, feeds)


STEPS = [(1, 5, 0), (1, 1, 5), (1, 3, 4), (2, 1, 7), (3, 4, 0), (1, 1, 6)]


def test_attention_behind_a_left_out_node_knows_the_length_of_its_cache():
    data = attention_behind_experts()
    session, report = session_with_report(data, "cpu", quiet(), claim="all")
    assert_only_topk_is_left(report)
    assert len(report.partitions) == LAYERS + 1
    assert_as_stock(data, session, [attention_feeds(*step) for step in STEPS])


@pytest.mark.parametrize("make", [shared_sizes, attention_behind_experts])
def test_planned_for_a_gpu_as_on_the_host(make):
    _, report = session_with_report(
        make(), "gpu", quiet(), claim="all", target_arch="sm_90a", cache_dir=""
    )
    assert_only_topk_is_left(report)


@pytest.mark.parametrize(
    ("make", "feeds_of_runs"),
    [
        (shared_sizes, [{"x": numbers(*shape, WIDTH)} for shape in SHAPES[:3]]),
        (attention_behind_experts, [attention_feeds(*step) for step in STEPS[:3]]),
    ],
)
def test_context_models_hold_what_partitions_were_told(tmp_path, make, feeds_of_runs):
    data = make()
    path, context = tmp_path / "model.onnx", tmp_path / "context.onnx"
    path.write_bytes(data)
    compile_model(path, context, "cpu", claim="all")
    session, report = session_with_report(context, "cpu", quiet())
    assert {node["op"] for node in report.left_out} == {"TopK"}
    assert_as_stock(data, session, feeds_of_runs)


def from_data(declared, target):
    """What a Reshape by `target`, an input, gives is only declared."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Relu", ["x"], ["x1"]),
        node("Reshape", ["x1", "target"], ["z"], name="by_data"),
        node("Neg", ["z"], ["z1"]),
        node("Reshape", ["z1", "sizes"], ["y"]),
    ]
    inputs = [value("x", ["batch", "seq", 4]), value("target", [3], INT64)]
    data = model(nodes, inputs, [value("y", None)], {}, [value("z", declared)])
    session, report = session_with_report(data, "cpu", quiet(), claim="all")
    assert [node["node"] for node in report.left_out] == ["by_data"]
    return session, {"x": numbers(2, 3, 4), "target": np.array(target)}


def test_a_shape_that_was_told_is_compared():
    session, feeds = from_data(["batch", "seq", 4], [2, 3, 4])
    np.testing.assert_array_equal(session.run(None, feeds)[0], -np.maximum(feeds["x"], 0))
    feeds["target"] = np.array([4, 3, 2])
    with pytest.raises(Exception, match=r"input 'z' has shape \[4,3,2\].*expects \[batch,seq,4\]"):
        session.run(None, feeds)


def test_sizes_that_were_told_are_compared():
    session, feeds = from_data(["batch", "seq", 4], [2, 3, 4])
    feeds["target"] = np.array([3, 2, 4])
    with pytest.raises(Exception, match=r"input 'sizes' holds \[2,3,4\].*is \[3,2,4\]"):
        session.run(None, feeds)


def branch(heads):
    """Bodies use the same names for values of other sizes."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["sizes"], start=0, end=2),
        node("Concat", ["sizes", f"heads{heads}"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["split"]),
        node("Softmax", ["split"], ["soft"]),
        node("Reshape", ["soft", "flat"], ["rows"]),
        node("TopK", ["rows", "four"], ["best", "places"], name="router"),
        node("Reshape", ["best", "target"], ["again"]),
        node("Softmax", ["again"], ["softer"]),
        node("Reshape", ["softer", "flat"], [f"y{heads}"]),
    ]
    return helper.make_graph(nodes, f"branch{heads}", [], [value(f"y{heads}", ["rows", 4])])


def test_bodies_of_one_node_are_told_their_own_sizes():
    nodes = [
        helper.make_node("If", ["go"], ["y"], then_branch=branch(2), else_branch=branch(4)),
    ]
    constants = {
        "heads2": np.array([2, 2]),
        "heads4": np.array([4, 1]),
        "flat": np.array([-1, 4]),
        "four": np.array([4]),
    }
    inputs = [value("x", ["batch", "seq", 4]), value("go", [], TensorProto.BOOL)]
    data = model(nodes, inputs, [value("y", ["rows", 4])], constants)
    session, report = session_with_report(data, "cpu", quiet(), claim="all")
    assert sorted(node["op"] for node in report.left_out) == ["If", "TopK", "TopK"]
    feeds = [
        {"x": numbers(batch, seq, 4), "go": np.array(go)}
        for batch, seq, go in [(2, 3, True), (2, 3, False), (3, 1, False), (3, 1, True)]
    ]
    assert_as_stock(data, session, feeds)


def test_names_of_sizes_are_told_as_the_model_has_them():
    node = helper.make_node("Relu", ["x"], ["y"])
    data = model([node], [value("x", ["min(8, n)", 4])], [value("y", None)], {})
    session, _ = session_with_report(data, "cpu", quiet(), claim="all")
    first = session.run(None, {"x": numbers(3, 4)})[0]
    np.testing.assert_array_equal(first, np.maximum(numbers(3, 4), 0))
    two = model(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["z"], ["w"])],
        [value("x", ["min(8, n)"]), value("z", ["min(8, n)"])],
        [value("y", None), value("w", None)],
        {},
    )
    session, _ = session_with_report(two, "cpu", quiet(), claim="all")
    with pytest.raises(Exception, match=r"expects \['min\(8, n\)'\]"):
        session.run(None, {"x": numbers(3), "z": numbers(4)})


def test_what_follows_from_a_left_out_node_names_it():
    """Nobody tells the rank of what comes out of a sequence."""
    node = helper.make_node
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["both"], name="pairs"),
        node("ConcatFromSequence", ["both"], ["joined"], axis=0, name="joins"),
        node("Relu", ["joined"], ["a"]),
        node("Reshape", ["a", "target"], ["b"], name="by_data"),
        node("Neg", ["b"], ["c"]),
        node("Exp", ["c"], ["y"]),
    ]
    inputs = [value("x", ["n"]), onnx.helper.make_tensor_value_info("target", INT64, ["rank"])]
    data = model(nodes, inputs, [value("y", None)], {})
    _, report = session_with_report(data, "cpu", quiet(), claim="all")
    reasons = {node["op"]: node["reason"] for node in report.left_out}
    started = "because 'pairs' (SequenceConstruct) before it is left to others: "
    for behind in ("Relu", "Neg", "Exp"):
        assert reasons[behind].startswith(started), reasons[behind]


# Operands that are no input of the model are constants.
OTHERS = [
    ("Conv", ["image", "filter"], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    ("MaxPool", ["image"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("ConvTranspose", ["image", "filter_t"], {"strides": [2, 2]}),
    ("RoiAlign", ["image", "rois", "owners"], {"output_height": 3, "output_width": 2}),
    ("MaxRoiPool", ["image", "five"], {"pooled_shape": [2, 3]}),
    ("Col2Im", ["columns", "size_6_6", "size_2_2"], {"strides": [2, 2]}),
    ("Det", ["square"], {}),
    ("TopK", ["rows", "two"], {}),
    ("LSTM", ["steps", "lstm_w", "lstm_r"], {"hidden_size": 4}),
    ("GRU", ["steps", "gru_w", "gru_r"], {"hidden_size": 4}),
    ("Multinomial", ["rows"], {"sample_size": 5}),
    ("RandomNormalLike", ["rows"], {}),
    ("RandomUniform", [], {"shape": [2, 3]}),
    ("NonZero", ["rows"], {}),
    ("Compress", ["rows", "which"], {"axis": 1}),
    ("Unique", ["rows"], {}),
    (
        "com.microsoft.QLinearAdd",
        ["bytes", "one", "zero", "bytes", "one", "zero", "one", "zero"],
        {},
    ),
    (
        "com.microsoft.QLinearConcat",
        ["one", "zero", "bytes", "one", "zero", "bytes", "one", "zero"],
        {"axis": 1},
    ),
    ("com.microsoft.QLinearGlobalAveragePool", ["pixels", "one", "zero", "one", "zero"], {}),
    ("com.microsoft.QLinearSigmoid", ["bytes", "one", "zero", "one", "zero"], {}),
    ("com.microsoft.Inverse", ["square"], {}),
    ("com.microsoft.MoE", ["wide", "scores", "fc1", "", "fc2"], {"k": 2}),
]
if runtime_at_least("1.31"):
    OTHERS.append(("DeformConv", ["image", "filter", "offsets"], {"pads": [1, 1, 1, 1]}))


def feeds_of_others(n, h, w):
    image = numbers(n, 3, h, w)
    return {
        "image": image,
        "pixels": np.abs(image * 100).astype(np.uint8),
        "offsets": numbers(n, 18, h, w),
        "rois": np.array([[0, 0, 3, 3]] * (n + 1), np.float32),
        "owners": np.zeros(n + 1, np.int64),
        "five": np.array([[0, 0, 0, 3, 3]] * (n + 1), np.float32),
        "columns": numbers(n, 12, 9),
        "square": numbers(n, 3, 3) + 2 * np.eye(3, dtype=np.float32),
        "rows": np.abs(numbers(n + 1, h)),
        "bytes": np.arange(n * h, dtype=np.uint8).reshape(n, h),
        "steps": numbers(h, n, 3),
        "wide": numbers(h, 8),
        "scores": numbers(h, 4),
    }


DIMS_OF_OTHERS = {
    "image": ["n", 3, "h", "w"],
    "pixels": ["n", 3, "h", "w"],
    "offsets": ["n", 18, "h", "w"],
    "rois": ["regions", 4],
    "owners": ["regions"],
    "five": ["regions", 5],
    "columns": ["n", 12, 9],
    "square": ["n", 3, 3],
    "rows": ["regions", "h"],
    "bytes": ["n", "h"],
    "steps": ["h", "n", 3],
    "wide": ["h", 8],
    "scores": ["h", 4],
}


def every_other_op():
    """Behind each of them a node that is ours: it is held to the size that was told."""
    constants = {
        "one": np.float32(0.1),
        "zero": np.uint8(3),
        "filter": numbers(5, 3, 3, 3),
        "filter_t": numbers(3, 5, 2, 2),
        "size_6_6": np.array([6, 6]),
        "size_2_2": np.array([2, 2]),
        "two": np.array([2]),
        "which": np.array([True, False, True]),
        "lstm_w": numbers(1, 16, 3),
        "lstm_r": numbers(1, 16, 4),
        "gru_w": numbers(1, 12, 3),
        "gru_r": numbers(1, 12, 4),
        "fc1": numbers(4, 16, 8),
        "fc2": numbers(4, 8, 16),
    }
    nodes, outputs = [], []
    for op, operands, attributes in OTHERS:
        domain, _, name = op.rpartition(".")
        made = [f"{name}_y", f"{name}_i"] if name == "TopK" else [f"{name}_y"]
        nodes.append(helper.make_node(name, operands, made, domain=domain, **attributes))
        if name in ("NonZero", "Multinomial") or name.startswith("QLinear"):
            nodes.append(helper.make_node("Cast", [made[0]], [f"{name}_f"], to=FLOAT))
            made = [f"{name}_f"]
        nodes.append(helper.make_node("Neg", [made[0]], [name]))
        outputs.append(value(name, None))
    first = feeds_of_others(2, 6, 6)
    inputs = [
        value(name, dims, helper.np_dtype_to_tensor_dtype(first[name].dtype))
        for name, dims in DIMS_OF_OTHERS.items()
    ]
    return model(nodes, inputs, outputs, constants), {op.rpartition(".")[2] for op, *_ in OTHERS}


def test_the_size_behind_every_op_of_others_is_told_and_right():
    data, ops = every_other_op()
    session, report = session_with_report(data, "cpu", quiet(), claim="all")
    left = {node["op"].removeprefix("com.microsoft::") for node in report.left_out}
    assert left == ops, report.reasons()
    stock = onnxruntime.InferenceSession(data, quiet(), providers=["CPUExecutionProvider"])
    names = [output.name for output in stock.get_outputs()]
    for sizes in [(2, 6, 6), (1, 4, 9), (3, 7, 5)]:
        feeds = feeds_of_others(*sizes)
        for name, expected, got in zip(
            names, stock.run(None, feeds), session.run(None, feeds), strict=True
        ):
            assert got.shape == expected.shape, name
            if not name.startswith(("Random", "Multinomial")):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)
