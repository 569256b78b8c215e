"""Six faults of one rank, each several times in the same processes: an error on all others, soon,
which says whose fault it is; and then they open a session together that works.

TENON_FAULT_ROUNDS says how often each (3 by default)."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_ranks import KNOWN, free_port, needs_gloo

pytestmark = pytest.mark.plugin

HERE = Path(__file__).parent
ROUNDS = int(os.environ.get("TENON_FAULT_ROUNDS", "3"))
SIZE = 3
DEADLINE_MS = 6000
BOUND_S = 10  # whatever happens, on a machine that others use as well
SOON_S = 5  # what needs no deadline

# Fault -> what every other rank is told. Of a fault in a Run also how far all came.
TOLD = {
    "dies": ("rank 2 (pid", "is lost"),
    "stops": ("rank 2 (pid", "is lost: nothing was heard of it for 3000 ms"),
    "throws": ("rank 2 (pid", "failed:", "index"),
    "other shapes": (
        "at Run 3 of tenon_0, the ranks differ in the shapes of inputs: i [2], x [2,8] on rank",
        "i [3], x [3,8] on rank 2",
    ),
    "other file": ("the ranks differ in the model: tenon_0:", "on rank 2"),
    "other options": ("the ranks differ in the options:", "claim=all"),
    "other number of ranks": ("rank 2 (pid", "was started as one of 4 ranks, rank 0 as one of 3"),
}
IN_A_RUN = ("dies", "stops", "throws", "other shapes")
KILLING = ("dies", "stops")


def write_model(path: Path, table: np.ndarray) -> Path:
    """Rows of a table, which a wrong index ends before the sum over ranks."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Add", ["rows", "x"], ["a"]),
        helper.make_node("AllReduce", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    i = helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])
    graph = helper.make_graph(nodes, "g", [x, i], [y], [numpy_helper.from_array(table, "table")])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


class Scene:
    """Some ranks; the last of them, the culprit, is one process or, where it ends, several."""

    def __init__(
        self, fault: str, folder: Path, size=SIZE, address="", prefix=lambda _: (),
        deadline_ms=DEADLINE_MS, backend="auto",
    ):  # fmt: skip
        table = np.arange(32, dtype=np.float32).reshape(4, 8)
        self.fault, self.prefix, self.culprit = fault, prefix, size - 1
        self.task = {
            "fault": fault, "size": size, "address": address or f"127.0.0.1:{free_port()}",
            "deadline_ms": deadline_ms, "backend": backend, "good": ROUNDS,
            "model": str(write_model(folder / "model.onnx", table)),
            "other_model": str(write_model(folder / "other.onnx", table + 1)),
        }  # fmt: skip
        self.others = [self.start(rank, 0, ROUNDS + 1) for rank in range(size - 1)]
        if fault in KILLING:
            self.culprits = [self.start(self.culprit, number, number + 1) for number in range(2)]
        else:
            self.culprits = [self.start(self.culprit, 0, ROUNDS + 1)]

    def start(self, rank: int, first: int, end: int) -> subprocess.Popen:
        task = self.task | {"rank": rank, "culprit": rank == self.culprit, "rounds": [first, end]}
        known = {key: value for key, value in os.environ.items() if key not in KNOWN}
        return subprocess.Popen(
            [*self.prefix(rank), sys.executable, HERE / "fault_process.py", json.dumps(task)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=known | {"TENON_COLLECTIVE_OPS": "1"},
        )  # fmt: skip

    def ranks(self, number: int) -> list[subprocess.Popen]:
        return [*self.others, self.culprits[number if self.fault in KILLING else 0]]

    def begin(self, number: int) -> None:
        for process in self.ranks(number):
            process.stdin.write("go\n")
            process.stdin.flush()
        if self.fault in KILLING and number + 2 <= ROUNDS:  # one is ready ahead
            self.culprits.append(self.start(self.culprit, number + 2, number + 3))

    def end(self) -> None:
        for process in self.others + self.culprits:
            process.kill()
            process.communicate()


def wait_for(process: subprocess.Popen, number: int, key: str) -> dict:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"round {number}: the rank ended before its '{key}'")
        word = json.loads(line)
        if key in word:
            assert word["round"] == number
            return word
    raise AssertionError(f"round {number}: no '{key}'")


def check_round(scene: Scene, number: int) -> None:
    fault = scene.fault
    happened = time.time()
    scene.begin(number)
    *others, culprit = scene.ranks(number)
    if fault in IN_A_RUN:
        happened = wait_for(culprit, number, "fault")["time"]
    told = [wait_for(process, number, "error") for process in others]
    if fault not in KILLING:
        told.append(wait_for(culprit, number, "error"))
    for word in told:
        for part in TOLD[fault]:
            assert part in word["error"]
        assert word["time"] - happened < (BOUND_S if fault == "stops" else SOON_S), word["error"]
        if fault in IN_A_RUN:
            for rank in range(SIZE - 1):
                assert (
                    f"rank {rank} is in all_reduce #3 of f32[16] (sum), last finished "
                    in word["error"]
                )
            assert "last finished all_reduce #2 of f32[16] (sum)" in word["error"]


def cases() -> list:
    """All faults through shared memory, those inside of a Run through Gloo as well."""
    shared = [pytest.param(fault, "shm", id=f"{fault}, shm") for fault in TOLD]
    return shared + [
        pytest.param(fault, "gloo", id=f"{fault}, gloo", marks=needs_gloo) for fault in IN_A_RUN
    ]


@pytest.mark.parametrize("fault, backend", cases())
def test_a_fault_of_one_rank_ends_all(tmp_path, fault, backend):
    scene = Scene(fault, tmp_path, backend=backend)
    try:
        for number in range(ROUNDS):
            check_round(scene, number)
        scene.begin(ROUNDS)
        for process in scene.ranks(ROUNDS):
            result = wait_for(process, ROUNDS, "result")["result"]
            np.testing.assert_array_equal(result, -3.0 * np.arange(8, 16) * np.ones((2, 1)))
    finally:
        scene.end()
