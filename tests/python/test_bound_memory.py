"""Outputs that the caller binds to memory of inputs: the same numbers as apart, or an error.

On the host, on the GPU that the stub driver plays, and on a GPU where there is one. Graphs of the
fuzzer come here too: python -m tests.fuzz --in-place --cases 2000 --seed 1 tries more of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon import bindings, tensors
from onnxruntime_ep_tenon.models import reference
from test_gpu import run_script, stub_driver
from test_session import quiet

pytestmark = pytest.mark.plugin

TREE = Path(__file__).resolve().parents[2]
COLUMNS = 256
# What each makes of x [rows, 256]; later rows and columns need x after the first are written.
GRAPHS = {
    "x + softmax(x)": [("Softmax", ["x"], "a"), ("Add", ["a", "x"], "y")],
    "relu(x w) + x": [("MatMul", ["x", "w"], "a"), ("Relu", ["a"], "b"), ("Add", ["b", "x"], "y")],
    "tanh(x w + v) + x": [
        ("MatMul", ["x", "w"], "a"), ("Add", ["a", "v"], "b"), ("Tanh", ["b"], "c"),
        ("Add", ["c", "x"], "y"),
    ],
    "x + transposed": [("Transpose", ["x"], "a"), ("Add", ["a", "x"], "y")],
    "x + mean of rows": [("ReduceMean", ["x", "zero"], "a"), ("Add", ["a", "x"], "y")],
    "nbits(x) + x": [("MatMulNBits", ["x", "codes", "scales"], "a"), ("Add", ["a", "x"], "y")],
    "-relu(x)": [("Relu", ["x"], "a"), ("Neg", ["a"], "y")],
    "x itself": [("Identity", ["x"], "y"), ("Softmax", ["x"], "z")],
    "rows of x replaced": [("ScatterND", ["x", "at", "new"], "y")],
    "x read behind": [("ScatterND", ["x", "at", "new"], "y"), ("Softmax", ["x"], "z")],
    "rows of x moved": [("Slice", ["x", "zero", "two"], "a"), ("ScatterND", ["x", "at", "a"], "y")],
}  # fmt: skip
NBITS = {"domain": "com.microsoft", "K": COLUMNS, "N": COLUMNS, "bits": 4, "block_size": 32}


def model_of(name: str):
    random = np.random.default_rng(5)
    constants = {
        "w": random.standard_normal((COLUMNS, COLUMNS)).astype(np.float32) / 16,
        "v": random.standard_normal(COLUMNS).astype(np.float32),
        "zero": np.zeros(1, np.int64),
        "two": np.array([2]),
        "at": np.array([[1], [5]]),
        "new": random.standard_normal((2, COLUMNS)).astype(np.float32),
        "codes": random.integers(0, 256, (COLUMNS, COLUMNS // 32, 16), dtype=np.uint8),
        "scales": random.random(COLUMNS * COLUMNS // 32, np.float32) / 50,
    }
    nodes = [
        helper.make_node(op, inputs, [output], **(NBITS if op == "MatMulNBits" else {}))
        for op, inputs, output in GRAPHS[name]
    ]
    used = {value for _, inputs, _ in GRAPHS[name] for value in inputs}
    rows = ["rows", COLUMNS]
    outputs = [output for _, _, output in GRAPHS[name] if output in "yz"]
    graph = helper.make_graph(
        nodes,
        "bound",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, rows) for output in outputs],
        [numpy_helper.from_array(value, key) for key, value in constants.items() if key in used],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def numbers(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, COLUMNS)).astype(np.float32)


def check_in_place(name: str, device: str, threads: int = 2, **options) -> None:
    """Run after Run: the output's memory is the input's, and each gets what the one before gave."""
    rows = COLUMNS if "transposed" in name else 37
    model, x = model_of(name), numbers(rows)
    settings = quiet()
    settings.intra_op_num_threads = threads
    session = tenon.create_session(model, device, settings, require_full_claim=True, **options)
    gpu = None if device == "cpu" else 0
    for _ in range(2):  # the second finds other addresses
        state = tensors.to_value(x, gpu)
        others = {
            output.name: tensors.to_value(np.zeros_like(x), gpu)
            for output in model.graph.output[1:]
        }
        binding = bindings.bind(session, {"x": state}, {"y": state, **others})
        for _ in range(4):
            before = tensors.on_host(state)
            wanted = reference.evaluate(model, {"x": before})
            session.run_with_iobinding(binding)
            results = [tensors.on_host(state), *map(tensors.on_host, others.values())]
            for result, expected in zip(results, wanted, strict=True):
                np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", GRAPHS)
def test_an_output_in_an_inputs_place(name):
    check_in_place(name, "cpu", claim="all")


def test_the_default_options_too():
    check_in_place("nbits(x) + x", "cpu")


ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_bound_memory import GRAPHS, check_in_place

    for name in GRAPHS:
        for graphs in (False, True):
            check_in_place(name, "gpu", claim="all", enable_cuda_graph=graphs)
    print("right")
"""
SHARES_ON_A_GPU = pytest.mark.skipif(
    not runtime_at_least("1.31"),
    reason="1.24 hands a plugin copies of what is bound on a GPU: nothing is shared",
)


def gpu_is_there() -> bool:
    return tenon.devices()[0].device.type.name == "GPU"


@SHARES_ON_A_GPU
def test_on_a_gpu_that_the_stub_driver_plays(request):
    text = ON_A_GPU.format(folder=str(request.path.parent))
    assert run_script(text).splitlines() == ["right"]


@SHARES_ON_A_GPU
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_on_a_gpu(name, graphs):
    if not gpu_is_there():
        pytest.skip("the driver offers no GPU")
    check_in_place(name, "gpu", claim="all", enable_cuda_graph=graphs)


# Many waves of CTAs: the first have written their rows when the last begin to read.
@SHARES_ON_A_GPU
def test_many_rows_on_a_gpu():
    if not gpu_is_there():
        pytest.skip("the driver offers no GPU")
    model, x = model_of("relu(x w) + x"), numbers(20_000)
    session = tenon.create_session(model, "gpu", quiet(), require_full_claim=True)
    wanted = session.run(None, {"x": x})[0]
    state = tensors.to_value(x, 0)
    session.run_with_iobinding(bindings.bind(session, {"x": state}, {"y": state}))
    assert np.array_equal(tensors.on_host(state), wanted)


def test_two_outputs_in_one_place_are_refused_by_name():
    model = model_of("x itself")
    session = tenon.create_session(model, "cpu", quiet(), claim="all", require_full_claim=True)
    x, y = (tensors.to_value(numbers(3), None) for _ in range(2))
    binding = bindings.bind(session, {"x": x}, {"y": y, "z": y})
    message = "outputs '[yz]' and '[yz]' are bound to memory that overlaps.*bind each to memory"
    for _ in range(2):
        with pytest.raises(Exception, match=message):
            session.run_with_iobinding(binding)


def fuzz(cases: int, device: str, **environment) -> str:
    """Graphs at random with a fixed seed; says what it found."""
    paths = [str(TREE), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--in-place", "--device", device]
        + ["--cases", str(cases), "--seed", "41"],
        cwd=TREE, capture_output=True, text=True, timeout=390,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **environment},
    )  # fmt: skip
    return done.stdout[-6000:] + done.stderr[-2000:]


def test_graphs_of_the_fuzzer():
    assert " 0 findings" in fuzz(150, "cpu")


@SHARES_ON_A_GPU
def test_graphs_of_the_fuzzer_on_a_gpu_that_the_stub_driver_plays():
    assert " 0 findings" in fuzz(40, "gpu", TENON_DRIVER_LIBRARY=str(stub_driver()))


@SHARES_ON_A_GPU
def test_graphs_of_the_fuzzer_on_a_gpu():
    if not gpu_is_there():
        pytest.skip("the driver offers no GPU")
    assert " 0 findings" in fuzz(200, "gpu")
