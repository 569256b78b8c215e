"""What a node in the middle of a graph costs a session on a GPU when the CPU runs it.

    python scripts/measure_cuts.py [--seconds 0.5]

A chain of products on the GPU, with and without a Reshape between them that is left to the CPU
(exclude_nodes), where it costs nothing itself: two copies and the wait for them remain. Inputs and
outputs stay on the GPU. A straight line through the sizes gives the two constants of
provider/cut_cost.cc.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnxruntime_ep_tenon as tenon
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.bindings import bind

WIDTH = 256
ROWS = (16, 256, 1024, 4096, 16384, 65536)


def chain(rows: int) -> bytes:
    """y = (x w) w, with the left product's result turned to another shape and back."""
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Reshape", ["h", "same"], ["g"], name="between"),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, WIDTH])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.array([rows, WIDTH]), "same"),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    ).SerializeToString()


def microseconds(rows: int, seconds: float, **options) -> float:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    # A Reshape to the same shape would be dropped before anybody is asked.
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = tenon.create_session(chain(rows), "gpu", settings, **options)
    x = np.zeros((rows, WIDTH), np.float32)
    inputs = {"x": tensors.to_value(x, session.tenon_gpu)}
    outputs = {"y": tensors.to_value(x, session.tenon_gpu)}
    binding = bind(session, inputs, outputs)
    for _ in range(5):
        session.run_with_iobinding(binding)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="per size and side")
    seconds = parser.parse_args().seconds
    sizes, costs = [], []
    print(f"{'bytes':>10} {'whole us':>10} {'cut us':>10} {'cost us':>10}")
    for rows in ROWS:
        whole = microseconds(rows, seconds)
        cut = microseconds(rows, seconds, exclude_nodes="between")
        sizes.append(rows * WIDTH * 4)
        costs.append(cut - whole)
        print(f"{sizes[-1]:>10} {whole:>10.1f} {cut:>10.1f} {costs[-1]:>10.1f}")
    slope, start = np.polyfit(sizes, costs, 1)
    print(f"a copy: {start / 2:.1f} us, and {2 / slope:.0f} bytes in each further one")


if __name__ == "__main__":
    main()
