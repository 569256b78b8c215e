"""One unsharded file over several processes on CPUs: the same logits, the same bits on each."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import plugin_is_built
from onnx import TensorProto, helper
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.report import Report

pytestmark = pytest.mark.plugin

HERE = Path(__file__).parent
SECONDS = 120
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
KNOWN = [name for names in LAUNCHERS.values() for name in names] + ["SLURM_STEP_NODELIST"]


def gloo_lacks() -> str:
    """What keeps Gloo from being loaded; "" where it can be."""
    path = Path(tenon.get_library_path()).resolve().parent / "libtenon_gloo.so"
    if not path.exists():
        return "libtenon_gloo.so is not built: no Gloo headers"
    try:
        ctypes.CDLL(str(path))
    except OSError as error:  # built, and the machine has no libgloo
        return str(error)
    return ""


GLOO_LACKS = gloo_lacks() if plugin_is_built() else ""
needs_gloo = pytest.mark.skipif(bool(GLOO_LACKS), reason=GLOO_LACKS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Job:
    """Processes that open one model together."""

    def __init__(self, model: Path, feeds: dict, folder: Path):
        self.model, self.folder = model, folder
        self.feeds = folder / "feeds.npz"
        np.savez(self.feeds, **feeds)
        self.address = f"127.0.0.1:{free_port()}"

    def start(
        self, name: str, environment: dict | None = None, prefix=(), **options
    ) -> subprocess.Popen:
        entries = [f"{key}={value}" for key, value in options.items()]
        known = {key: value for key, value in os.environ.items() if key not in KNOWN}
        known["TENON_COLLECTIVE_OPS"] = "1"
        return subprocess.Popen(
            [*prefix, sys.executable, HERE / "rank_process.py", self.model, self.feeds,
             self.out(name), *entries],
            stderr=subprocess.PIPE, text=True, env=known | (environment or {}),
        )  # fmt: skip

    def out(self, name: str) -> Path:
        return self.folder / f"out.{name}.npz"

    def ranks(self, size: int, **options) -> list[subprocess.Popen]:
        return [
            self.start(
                str(rank), tensor_parallel_size=size, tensor_parallel_rank=rank,
                collective_address=self.address,
                report_file=self.folder / f"report.{rank}.json", **options,
            )
            for rank in range(size)
        ]  # fmt: skip

    def result(self, name: str) -> dict:
        with np.load(self.out(name)) as loaded:
            return dict(loaded)


def finish(processes: list[subprocess.Popen]) -> list[str]:
    """What each said when it failed; "" for those that came through."""
    said = []
    for process in processes:
        _, text = process.communicate(timeout=SECONDS)
        lines = text.strip().splitlines()
        said.append("" if process.returncode == 0 else lines[-1] if lines else "no word")
    return said


def decoder_job(folder: Path, architecture: str, weights: str, **sizes) -> Job:
    config = replace(
        ARCHITECTURES[architecture], layers=2, hidden=256, heads=8, kv_heads=4, head_size=32,
        feed_forward=512, vocabulary=512, positions=64, **sizes,
    )  # fmt: skip
    model = decoder.build_decoder(config, Spelling("genai", weights, "f32"))
    path = folder / "model.onnx"
    onnx.save(model, path)
    rng = np.random.default_rng(7)
    feeds = {}
    for value in model.graph.input:
        dims = [
            d.dim_value or {0: 1, 1: 6}.get(i, 0)
            for i, d in enumerate(value.type.tensor_type.shape.dim)
        ]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name == "input_ids":
            feeds[value.name] = rng.integers(0, 512, dims).astype(dtype)
        elif "mask" in value.name:
            feeds[value.name] = np.ones([1, 6], dtype)
        elif "past" in value.name:
            dims[2] = 0
            feeds[value.name] = np.zeros(dims, dtype)
        else:
            feeds[value.name] = np.arange(6, dtype=dtype).reshape(dims)
    return Job(path, feeds, folder)


def sum_model(folder: Path) -> Job:
    """As tools write that shard by hand: a sum over ranks inside of the model."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("AllReduce", ["a"], ["b"], domain="com.microsoft"),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return Job(path, {"x": np.zeros((2, 8), np.float32)}, folder)


@pytest.mark.parametrize("architecture, weights", [("llama", "nvfp4"), ("qwen2", "int4")])
@pytest.mark.parametrize("size", [2, 4])
def test_the_logits_are_those_of_one_rank(tmp_path, architecture, weights, size):
    job = decoder_job(tmp_path, architecture, weights)
    assert finish([job.start("alone")]) == [""]
    assert finish(job.ranks(size)) == [""] * size
    alone = job.result("alone")
    first = job.result("0")
    for name, expected in alone.items():
        scale = np.sqrt(np.mean(np.square(expected)))
        # float32 sums in another order, two layers deep
        np.testing.assert_allclose(first[name], expected, rtol=1e-4, atol=2e-5 * scale)
    for rank in range(1, size):
        for name, values in job.result(str(rank)).items():
            assert values.tobytes() == first[name].tobytes(), f"{name} on rank {rank}"
    partition = Report.load(tmp_path / "report.1.json").data["graphs"][0]["partitions"][0]
    sharding = partition["sharding"]
    assert sharding["engine"] == "shm"
    assert sharding["ranks"] == size and sharding["collectives"]
    assert all(bytes < sharding["constant_bytes"] for bytes in sharding["bytes_by_rank"])


@needs_gloo
def test_the_bits_are_those_of_gloo(tmp_path):
    job = decoder_job(tmp_path, "qwen2", "int4")
    bits = {}
    for backend in ("shm", "gloo"):
        assert finish(job.ranks(3, collective_backend=backend)) == [""] * 3
        partition = Report.load(tmp_path / "report.2.json").data["graphs"][0]["partitions"][0]
        assert partition["sharding"]["engine"] == backend
        bits[backend] = {name: values.tobytes() for name, values in job.result("2").items()}
    assert bits["shm"] == bits["gloo"]


@needs_gloo
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root")
def test_ranks_that_cannot_share_memory_take_gloo(tmp_path):
    """In process ids of its own a rank does not find the memory of another."""
    apart = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine makes no namespaces of process ids")
    job = sum_model(tmp_path)

    def ranks(**options) -> list[subprocess.Popen]:
        common = {"tensor_parallel_size": 2, "collective_address": job.address} | options
        return [
            job.start("0", tensor_parallel_rank=0, report_file=tmp_path / "report.json", **common),
            job.start("1", prefix=apart, tensor_parallel_rank=1, **common),
        ]

    assert finish(ranks()) == ["", ""]
    partition = Report.load(tmp_path / "report.json").data["graphs"][0]["partitions"][0]
    why = "rank 1 cannot open memory that all ranks share: /proc/"
    assert partition["sharding"]["engine"].startswith(f"gloo ({why}")
    for said in finish(ranks(collective_backend="shm")):
        assert f"collective_backend=shm: {why}" in said


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_say_who_is_who(tmp_path, launcher):
    job = sum_model(tmp_path)
    host, port = job.address.split(":")
    rank_name, size_name, local_name = LAUNCHERS[launcher]
    processes = []
    for rank in range(2):
        variables = {rank_name: str(rank), size_name: "2", local_name: str(rank)}
        variables |= {"MASTER_ADDR": host, "MASTER_PORT": port} if launcher == "torchrun" else {}
        variables |= {"SLURM_STEP_NODELIST": "here"} if launcher == "Slurm" else {}
        address = {} if launcher == "torchrun" else {"collective_address": job.address}
        variables["TENON_COLLECTIVE_OPS"] = ""  # the launcher is enough
        processes.append(job.start(str(rank), variables, tensor_parallel_size="auto", **address))
    assert finish(processes) == ["", ""]
    np.testing.assert_array_equal(job.result("1")["y"], np.full((2, 8), -2.0, np.float32))


def test_a_collective_alone_has_a_reason(tmp_path):
    job = sum_model(tmp_path)
    (said,) = finish([job.start("alone", report_file=tmp_path / "report.json")])
    assert "AllReduce" in said
    left = Report.load(tmp_path / "report.json").data["graphs"][0]["left_out"]
    reasons = {node["op"]: node["reason"] for node in left}
    assert "torchrun" in reasons["com.microsoft::AllReduce"]


def test_who_does_not_come_is_named(tmp_path):
    job = sum_model(tmp_path)
    before = time.monotonic()
    common = {"collective_address": job.address, "collective_deadline_ms": 1500}
    (said,) = finish([job.start("0", tensor_parallel_size=2, tensor_parallel_rank=0, **common)])
    assert "rank 1 did not join" in said
    assert time.monotonic() - before < 30


def test_other_options_are_an_error_on_all(tmp_path):
    job = sum_model(tmp_path)
    common = {"tensor_parallel_size": 2, "collective_address": job.address}
    processes = [
        job.start("0", tensor_parallel_rank=0, **common),
        job.start("1", tensor_parallel_rank=1, claim="all", **common),
    ]
    for said in finish(processes):
        assert "the ranks differ in" in said and "claim=all" in said


@pytest.mark.parametrize("same", [True, False])
def test_ranks_compare_their_tuning_records(tmp_path, same):
    """Not where they read them from."""
    job = sum_model(tmp_path)
    sample = (HERE / "tuning_records.textproto").read_text()
    (tmp_path / "a").write_text(sample)
    (tmp_path / "b").write_text(sample if same else sample.replace("10.25", "10.5"))
    common = {"tensor_parallel_size": 2, "collective_address": job.address}
    processes = [
        job.start("0", tensor_parallel_rank=0, tune_file=tmp_path / "a", **common),
        job.start("1", tensor_parallel_rank=1, tune_file=tmp_path / "b", **common),
    ]
    for said in finish(processes):
        assert said == "" if same else "the ranks differ in the tuning records" in said


def test_a_rank_that_dies_ends_the_others(tmp_path):
    job = sum_model(tmp_path)
    common = {"tensor_parallel_size": 3, "collective_address": job.address}
    processes = [job.start(str(rank), tensor_parallel_rank=rank, **common) for rank in (0, 1)]
    dying = job.start("2", tensor_parallel_rank=2, after="die", **common)
    before = time.monotonic()
    for said in finish(processes):
        assert "rank 2" in said
    assert finish([dying]) == [""]
    assert time.monotonic() - before < 30  # not the deadline of 60 s


def test_a_rank_that_stops_ends_the_others_with_the_deadline(tmp_path):
    job = sum_model(tmp_path)
    common = {
        "tensor_parallel_size": 2, "collective_address": job.address,
        "collective_deadline_ms": 4000,
    }  # fmt: skip
    stopped = job.start("1", tensor_parallel_rank=1, after="stop", **common)
    try:
        (said,) = finish([job.start("0", tensor_parallel_rank=0, **common)])
        assert "rank 1" in said or "AllReduce" in said or "all_reduce" in said
    finally:
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.communicate()


def test_a_gpu_that_is_not_here_is_refused(tmp_path):
    job = sum_model(tmp_path)
    options = {"tensor_parallel_size": 2, "target_arch": "sm_90a"}
    (said,) = finish([job.start("0", tensor_parallel_rank=0, **options)])
    assert "only compiles it for a GPU that is not here" in said


@pytest.mark.parametrize(
    "options, words",
    [
        ({"collective_backend": "nccl"}, "exchanges memory of GPUs, and this session is on a CPU"),
        ({"collective_backend": "mpi"}, "it takes: auto | gloo | nccl | shm"),
        ({"collective_deadline_ms": 0}, "must be positive"),
        ({"collective_token": "short"}, "expected 64 hexadecimal digits"),
        # of several hosts, for all that is known: there is no secret that they have in common
        ({"collective_address": "192.0.2.1:29600"}, "collective_token=none where everybody"),
    ],
)
def test_bad_options_have_a_reason(tmp_path, options, words):
    job = sum_model(tmp_path)
    given = {"tensor_parallel_rank": 0, "collective_address": job.address} | options
    (said,) = finish([job.start("0", tensor_parallel_size=2, **given)])
    assert words in said
