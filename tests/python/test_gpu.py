"""Sessions and the command on a GPU that the stub driver plays, each in a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto, helper
from onnxruntime_ep_tenon import cuda
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot

pytestmark = pytest.mark.plugin


def stub_driver() -> Path:
    """Built beside the plugin."""
    path = Path(tenon.get_library_path()).with_name("libtenon_stub_driver.so")
    if not path.is_file():
        pytest.skip("the stub driver is not built")
    return path


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "TENON_DRIVER_LIBRARY": str(stub_driver()), **environment},
    )  # fmt: skip


def run_script(text: str, **environment) -> str:
    result = python("-c", textwrap.dedent(text), **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def command(*arguments, **environment) -> str:
    result = python("-m", "onnxruntime_ep_tenon", *arguments, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> Path:
    """A chain that compiles quickly for the stub."""
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["h"], name="scale"),
        helper.make_node("Softmax", ["h"], ["p"], name="soften"),
        helper.make_node("Add", ["p", "x"], ["y"], name="sum"),
    ]
    row = ["N", 64]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, row)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, row)],
        [helper.make_tensor("gain", TensorProto.FLOAT, [64], np.linspace(-1, 1, 64))],
    )
    path = tmp_path_factory.mktemp("model") / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def test_gpus_come_first_and_are_chosen_by_name(chain):
    text = f"""
        import onnxruntime_ep_tenon as tenon
        print([d.device.type.name for d in tenon.devices()])
        for device in ("auto", "gpu", "gpu:1", "cpu", 2):
            print(tenon.create_session({str(chain)!r}, device).tenon_gpu)
        try:
            tenon.create_session({str(chain)!r}, "gpu:2")
        except ValueError as error:
            print(error)
    """
    lines = run_script(text, TENON_STUB_SCRIPT="devices 2").splitlines()
    assert lines[:6] == ["['GPU', 'GPU', 'CPU']", "0", "0", "1", "None", "None"]
    assert "'gpu:2' is not there" in lines[6]


def test_without_a_gpu_the_error_names_the_doctor(chain):
    text = f"""
        import onnxruntime_ep_tenon as tenon
        assert tenon.create_session({str(chain)!r}).tenon_gpu is None
        try:
            tenon.create_session({str(chain)!r}, "gpu")
        except ValueError as error:
            print(error)
    """
    assert "tenon doctor" in run_script(text, TENON_DRIVER_LIBRARY="no driver")


def test_compiling_for_a_gpu_needs_none(chain):
    text = f"""
        import numpy, onnxruntime_ep_tenon as tenon
        session = tenon.create_session({str(chain)!r}, "gpu", claim="all", target_arch="sm_80")
        try:
            session.run(None, {{"x": numpy.ones((1, 64), numpy.float32)}})
        except Exception as error:
            print(error)
    """
    assert "not in this machine" in run_script(text, TENON_DRIVER_LIBRARY="no driver")


def test_bound_gpu_memory_gives_what_the_cpu_gives(chain):
    text = f"""
        import numpy, onnxruntime_ep_tenon as tenon
        from onnxruntime_ep_tenon import tensors
        x = numpy.random.default_rng(0).standard_normal((5, 64)).astype(numpy.float32)
        expected = tenon.create_session({str(chain)!r}, "cpu", claim="all").run(None, {{"x": x}})[0]
        session = tenon.create_session({str(chain)!r}, "gpu", claim="all")
        value = tensors.to_gpu_value(x, 0)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", tensors.gpu_value_like(value, 0))
        session.run_with_iobinding(binding)
        numpy.testing.assert_allclose(binding.get_outputs()[0].numpy(), expected, rtol=1e-5)
        by_pointer = session.io_binding()
        by_pointer.bind_input("x", "cuda", 0, numpy.float32, x.shape, value.data_ptr())
        by_pointer.bind_output("y")
        session.run_with_iobinding(by_pointer)
        numpy.testing.assert_array_equal(
            by_pointer.get_outputs()[0].numpy(), binding.get_outputs()[0].numpy()
        )
    """
    run_script(text)


def test_doctor_tells_what_a_driver_lacks():
    def gpu_checks(**environment) -> dict:
        checks = json.loads(command("doctor", "--json", **environment))["checks"]
        return {check["what"]: check for check in checks}

    absent = gpu_checks(TENON_DRIVER_LIBRARY="no driver")["NVIDIA driver"]
    assert absent["state"] == "note" and "install NVIDIA's driver" in absent["advice"]
    old = gpu_checks(TENON_STUB_SCRIPT="driver_version 11040")["NVIDIA driver"]
    assert "CUDA 11.4" in old["found"] and "too old" in old["advice"]
    empty = gpu_checks(TENON_STUB_SCRIPT="devices 0")["NVIDIA driver"]
    assert "sees no GPU" in empty["found"] and "CUDA_VISIBLE_DEVICES" in empty["advice"]


def test_the_driver_is_described_without_a_session():
    text = """
        from onnxruntime_ep_tenon import cuda
        driver = cuda.find_driver()
        print(driver.cuda, len(driver.gpus), repr(driver.problem))
    """
    script = "devices 2; driver_version 12040"
    assert run_script(text, TENON_STUB_SCRIPT=script).split() == ["12.4", "2", "''"]


def test_bench_keeps_inputs_on_the_gpu_and_says_who_is_absent(chain):
    arguments = ("--providers", "tenon,cuda,cpu", "--device", "gpu", "--option", "claim=all")
    options = ("--seconds", 0.1, "--json")
    done = python("-m", "onnxruntime_ep_tenon", "bench", chain, *arguments, *options)
    result = json.loads(done.stdout)
    names = {timing["name"] for timing in result["timings"]}
    assert {"tenon", "cpu"} <= names and result["tenon_over_cpu"] > 0
    # One that was asked for by name and is absent is a failure.
    assert done.returncode == (0 if "cuda" in names else 1), done.stderr
    assert "cuda" in names or "onnxruntime-gpu" in result["failures"]["cuda"]


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_run_traces_launches_with_their_nodes(chain, tmp_path, device):
    target = tmp_path / "trace.json"
    command("run", chain, "--device", device, "--option", "claim=all", "--trace", target)
    events = json.loads(target.read_text())["traceEvents"]
    runs = [event for event in events if event["name"] == "model_run"]
    assert len(runs) == 2
    if not runtime_at_least("1.25.0"):
        pytest.skip("plugins add events to a profile from onnxruntime 1.25 on")
    launches = [event for event in events if event["cat"] == "Kernel"]
    assert {node for event in launches for node in event["args"]["onnx_nodes"]} == {
        "scale", "soften", "sum",
    }  # fmt: skip
    begin, end = runs[0]["ts"], runs[-1]["ts"] + runs[-1]["dur"]
    assert all(begin <= event["ts"] <= end for event in launches)


def test_a_trace_needs_a_folder(chain, tmp_path):
    result = python(
        "-m", "onnxruntime_ep_tenon", "run", chain, "--trace", tmp_path / "no" / "trace.json"
    )
    assert result.returncode != 0 and "no such folder" in result.stderr


def test_folders_of_wheels_follow_those_of_the_user(monkeypatch, tmp_path):
    wheel = tmp_path / "nvidia" / "nvjitlink" / "lib"
    wheel.mkdir(parents=True)
    monkeypatch.setattr(cuda.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setenv(cuda.FOLDERS_VARIABLE, "/mine")
    cuda.point_to_libraries()
    folders = os.environ[cuda.FOLDERS_VARIABLE].split(":")
    assert folders[0] == "/mine" and str(wheel) in folders
    cuda.point_to_libraries()
    assert os.environ[cuda.FOLDERS_VARIABLE].split(":") == folders


@pytest.fixture(scope="module")
def product(tmp_path_factory) -> Path:
    """An NVFP4 product of f16 rows, their number open."""
    path = tmp_path_factory.mktemp("model") / "product.onnx"
    problem = Problem(n=256, k=512, activations=TensorProto.FLOAT16)
    onnx.save(build_scaled_dot("nvfp4_gemm", problem), path)
    return path


def explain_absent(model, *arguments) -> str:
    """Compiles for an H200 on a machine that has no driver."""
    return command(
        "explain", model, "--device", "gpu", "--option", "target_arch=sm_90a", *arguments,
        TENON_DRIVER_LIBRARY="no driver",
    )  # fmt: skip


def test_explain_prints_configs_and_what_came_next(product):
    lines = explain_absent(product, "--kernels").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("rows <= 8"))
    ranks = [line.removeprefix("rows <= 8").split()[0] for line in lines[first : first + 3]]
    assert ranks == ["1", "2", "3"]
    assert all("K/stage" in line and "us expected" in line for line in lines[first : first + 3])
    assert any(line.startswith("rows > ") for line in lines)
    on_cpu = command("explain", product, "--device", "cpu", "--kernels")
    assert "dot_rows" in on_cpu and "rows <= 8" not in on_cpu


def test_explain_names_the_configs_of_tf32_products(tmp_path):
    path = tmp_path / "plain.onnx"
    onnx.save(build_scaled_dot("plain", Problem(n=256, k=512)), path)
    exact = json.loads(explain_absent(path, "--json"))
    tf32 = json.loads(explain_absent(path, "--json", "--option", "precision_mode=tf32"))
    fusions = [report["graphs"][0]["partitions"][0]["fusions"][0] for report in (exact, tf32)]
    assert [fusion["chosen"] for fusion in fusions] == ["mma_strided", "pipelined"]
    assert not fusions[0].get("configs")
    printed = explain_absent(path, "--kernels", "--option", "precision_mode=tf32")
    for config in fusions[1]["configs"]:
        assert "K/stage " in config["chosen"] and config["chosen"] in printed


def test_the_report_ranks_configs_by_what_they_should_take(product):
    report = json.loads(explain_absent(product, "--json"))
    (fusion,) = report["graphs"][0]["partitions"][0]["fusions"]
    assert fusion["chosen"] == "pipelined"
    assert len(fusion["configs"]) > 3
    for config in fusion["configs"]:
        ranked = [config["chosen"], *config["others"]]
        assert len(set(ranked)) == 3
        times = [float(text.split(", ")[-1].split()[0]) for text in ranked]
        assert times == sorted(times), config
