"""Graphs that Tenon shares with the runtime's own CUDA provider, each in a process of its own: a
crash or a hang is a failure of that one. Runs where onnxruntime-gpu and a GPU are."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnxruntime_ep_tenon import cuda


def stock_cuda_is_here() -> bool:
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers() and bool(
        cuda.find_driver().gpus
    )


pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(not stock_cuda_is_here(), reason="needs onnxruntime-gpu and a GPU"),
]

OPSET = [helper.make_opsetid("", 17)]
# The model's path, Tenon's claim and a mode: plain feeds, or buffers on the GPU that torch wrote.
# TF32 is off, so that the CUDA provider's convolutions are those of the CPU provider.
SCRIPT = textwrap.dedent("""
    import sys, threading, numpy as np, onnxruntime as ort, onnxruntime_ep_tenon as tenon
    path, claim, mode = sys.argv[1:]
    ort.register_execution_provider_library(tenon.get_ep_name(), tenon.get_library_path())
    options = ort.SessionOptions()
    options.add_session_config_entry('session.record_ep_graph_assignment_info', '1')
    shared = [(tenon.get_ep_name(), {'claim': claim, 'enable_cudnn': '0'}),
              ('CUDAExecutionProvider', {'use_tf32': '0'}), 'CPUExecutionProvider']
    session = ort.InferenceSession(path, options, providers=shared)
    stock = ort.InferenceSession(path, providers=['CPUExecutionProvider'])
    counts = {}
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    random = np.random.default_rng(5)

    def feed():
        return {i.name: random.standard_normal(i.shape).astype(np.float32)
                for i in session.get_inputs()}

    def bound(x):
        import torch
        device = {k: torch.from_numpy(v).cuda() for k, v in x.items()}
        torch.cuda.synchronize()
        binding = session.io_binding()
        for name, value in device.items():
            binding.bind_input(name, 'cuda', 0, np.float32, list(value.shape), value.data_ptr())
        for output in session.get_outputs():
            binding.bind_output(output.name, 'cuda', 0)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding.copy_outputs_to_cpu()

    def look(times):
        for _ in range(times):
            x = feed()
            got = bound(x) if mode == 'bound' else session.run(None, x)
            for a, b in zip(got, stock.run(None, x)):
                np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * max(1, np.abs(b).max()))

    failed = []

    def guarded():
        try:
            look(8)
        except BaseException as error:
            failed.append(error)

    look(6)
    threads = [threading.Thread(target=guarded) for _ in range(2 if mode == 'threads' else 0)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if failed:
        raise failed[0]
    print(sorted(counts.items()))
""")


def weight(random, name: str, *dims: int):
    scale = np.sqrt(1 / np.prod(dims[1:]))
    return numpy_helper.from_array((random.standard_normal(dims) * scale).astype(np.float32), name)


def convolutions(path, rounds: int) -> None:
    """Convolutions and pools between chains, norms and products: many edges between providers."""
    random, nodes, weights, x = np.random.default_rng(3), [], [], "x"
    for i in range(rounds):
        weights += [weight(random, f"w{i}", 16, 16, 3, 3), weight(random, f"m{i}", 20, 20)]
        nodes += [
            helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", [f"c{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"c{i}", f"s{i}"], [f"g{i}"]),
            helper.make_node("MatMul", [f"g{i}", f"m{i}"], [f"p{i}"]),
            helper.make_node("Softmax", [f"p{i}"], [f"q{i}"], axis=-1),
            helper.make_node("Add", [f"q{i}", f"g{i}"], [f"a{i}"]),
            helper.make_node(
                "MaxPool", [f"a{i}"], [f"y{i}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            ),
        ]
        x = f"y{i}"
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["y"]))
    graph = helper.make_graph(
        nodes,
        "mixed",
        [helper.make_tensor_value_info("x", 1, [2, 16, 20, 20])],
        [helper.make_tensor_value_info("y", 1, [2, 16, 1, 1])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=OPSET, ir_version=9), path)


def run(path, claim: str, mode: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), claim, mode],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("mode", ("plain", "bound", "threads"))
@pytest.mark.parametrize("claim", ("all", "gainful"))
def test_convolutions_between_the_two(tmp_path, claim, mode):
    convolutions(tmp_path / "mixed.onnx", 3)
    told = run(tmp_path / "mixed.onnx", claim, mode)
    assert "CUDAExecutionProvider" in told or claim == "all"


@pytest.mark.parametrize("mode", ("plain", "threads"))
@pytest.mark.parametrize("net", ("squeezenet", "shufflenet", "resnet50", "inception_v1"))
def test_nets_of_the_onnx_package(net, mode):
    folder = onnx.__path__[0] + "/backend/test/data/light"
    told = run(f"{folder}/light_{net}.onnx", "all", mode)
    assert "TenonExecutionProvider" in told
