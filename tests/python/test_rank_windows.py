"""Two ranks of one process on two GPUs that the stub driver plays, through the stub of NCCL: the
memory that their sums are on is registered by both, and given back."""

import json
from pathlib import Path

import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper
from test_gpu import run_script
from test_ranks import free_port

pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(not runtime_at_least("1.31"), reason="sessions are made one by one"),
]

SCRIPT = """
    import ctypes, json, os, threading
    import numpy as np
    import onnxruntime as ort
    import onnxruntime_ep_tenon as tenon

    task = json.loads(os.environ["TASK"])
    stub = ctypes.CDLL(os.environ["TENON_NCCL_LIBRARY"])
    stub.stubNcclFail.argtypes = [ctypes.c_char_p, ctypes.c_int]
    tenon.register()
    gpus = [d for d in ort.get_ep_devices() if d.device.type == ort.OrtHardwareDeviceType.GPU]
    barrier = threading.Barrier(2)
    told = {}

    def rank(number):
        options = {"tensor_parallel_size": "2", "tensor_parallel_rank": str(number),
                   "collective_address": task["address"], "claim": "all", **task["options"]}
        session_options = ort.SessionOptions()
        session_options.add_provider_for_devices([gpus[number]], options)
        session = ort.InferenceSession(task["model"], session_options)
        barrier.wait()
        said = [stub.stubNcclWindows()]
        for rows in task["rows"]:
            x = np.full((rows, 8), number + 1, np.float32)
            y = session.run(None, {"x": x})[0]
            assert (y == 4).all(), y  # 1 + 2 + 1
            barrier.wait()
            said.append(stub.stubNcclWindows())
            barrier.wait()
        told[number] = said
        del session

    stub.stubNcclSetVersion(task["version"])
    if task["fault"]:
        stub.stubNcclFail(task["fault"].encode(), 1)
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[0] == told[1]
    print(stub.stubNcclGraphUsageMode())
    print(json.dumps(told[0] + [stub.stubNcclWindows(), stub.stubNcclMemory()]))
"""


def run_ranks(folder: Path, rows, size, options, fault="", version=22809) -> list[str]:
    """What the script prints."""
    library = Path(tenon.get_library_path()).with_name("libtenon_stub_nccl.so")
    if not library.exists():
        pytest.skip("the stub of NCCL is not built")
    nodes = [
        helper.make_node("Add", ["x", "half"], ["a"]),
        helper.make_node("AllReduce", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Abs", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [size, 8]) for n in "xy")
    half = helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "g", [x], [y], [half])
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    task = {
        "model": str(path), "rows": rows, "options": options, "fault": fault, "version": version,
        "address": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    out = run_script(
        SCRIPT, TASK=json.dumps(task), TENON_NCCL_LIBRARY=str(library), TENON_COLLECTIVE_OPS="1",
        TENON_STUB_SCRIPT="devices 2",
    )  # fmt: skip
    return out.splitlines()


def windows(*arguments) -> list[int]:
    """How many are there behind the start, each Run and the end; then memory that is left."""
    return json.loads(run_ranks(*arguments)[-1])


def test_open_sizes_register_when_memory_grows(tmp_path):
    options = {"collective_windows": "1"}
    assert windows(tmp_path, [2, 2, 1, 99, 2], "n", options) == [0, 2, 2, 2, 2, 2, 0, 0]


def test_known_sizes_register_before_the_first_run(tmp_path):
    assert windows(tmp_path, [4, 4], 4, {"collective_windows": "1"}) == [2, 2, 2, 0, 0]


def test_nothing_is_registered_unless_asked_for(tmp_path):
    assert windows(tmp_path, [2], "n", {}) == [0, 0, 0, 0]


@pytest.mark.parametrize("function", ["ncclMemAlloc", "ncclCommWindowRegister"])
def test_what_one_rank_cannot_register_is_plain_on_both(tmp_path, function):
    options = {"collective_windows": "1", "collective_deadline_ms": "8000"}
    assert windows(tmp_path, [2, 2], "n", options, function) == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("graphs", "version", "mode"),
    [("1", 22902, 1), ("0", 22902, -(2**31)), ("1", 22809, -(2**31))],
)
def test_sessions_that_capture_say_that_graphs_do_not_mix(tmp_path, graphs, version, mode):
    """From NCCL 2.29 on. No Run: the stub would not sum again when a graph is replayed."""
    options = {"enable_cuda_graph": graphs}
    assert run_ranks(tmp_path, [], 4, options, "", version)[-2] == str(mode)
