"""Two ranks on GPUs: what an all-reduce adds to a captured step, and a whole decoder over them.

On a machine with one GPU both ranks share it: NCCL 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1,
under MPS (`./run --nccl` of the bundle starts it). Then a step's time says nothing about two GPUs;
what an all-reduce adds does.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from .. import console, cuda
from .decoder_meter import DecoderPlan, write_model
from .decoder_suite import folder_for, plan_of
from .gpu_rank_meter import HIDDEN, LINK_MODELS, LINKS
from .rows import Row, print_rows, write_rows

RANKS = 2
_SECONDS = 150  # of a process
_ADDED_BAR = 1.2  # of all-reduces in a row
_SIZE_ONE_BAR = 1.01
_LARGEST_DIFFERENCE = 0.01  # rms of the logits' difference over the rms of the logits


def run_gpu_rank_suite(args) -> int:
    plan = plan_of(args)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        console.say(f"chains of products and all-reduces of {HIDDEN} elements ...")
        rows += _link_rows(Path(folder))
    for name in plan.formats:
        with tempfile.TemporaryDirectory(prefix="tenon-", dir=folder_for(plan, name)) as folder:
            console.say(f"{name}: writing {plan.preset} ...")
            rows += _decoder_rows(plan, name, Path(folder))
    print_rows(rows, f"{RANKS} ranks on {cuda.find_driver().gpus[0]}")
    if args.out:
        result = {"date": time.strftime("%Y-%m-%d"), "rows": [row.as_json() for row in rows]}
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    return 1 if any(row.met is False for row in rows) else 0


def _link_rows(folder: Path) -> list[Row]:
    for name in LINK_MODELS:
        _write_links(folder / f"{name}.onnx", name)
    times = max(launch(RANKS, "links", folder), key=lambda told: told["both"])
    in_a_row, of_nccl = times["all_reduces"] / LINKS, times["all_reduces_nccl"] / LINKS
    added, by_nccl = ((times[both] - times["products"]) / LINKS for both in ("both", "both_nccl"))
    size = f"an all-reduce of {HIDDEN * 2 // 1024} KiB"
    note = f"a Run of {LINKS} products and as many all-reduces takes {times['both'] * 1e6:.0f} us"
    met = added <= _ADDED_BAR * of_nccl
    return [
        Row(f"added by {size} | NCCL's in a row", added, of_nccl, f"<= {_ADDED_BAR}", met, note),
        Row(f"{size}, in a row | NCCL's in a row", in_a_row, of_nccl, "", None, ""),
        Row(f"added by {size}, NCCL's | in a row", by_nccl, of_nccl, "", None, ""),
    ]


def _write_links(path: Path, name: str) -> None:
    """The product is one weight again and again: what is between products is measured."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(1).standard_normal((HIDDEN, HIDDEN)).astype(np.float16)
    nodes, value = [], "x"
    for link in range(LINKS):
        if name != "all_reduces":
            nodes.append(helper.make_node("MatMul", [value, "w"], [f"p{link}"]))
            value = f"p{link}"
        if name != "products":
            nodes.append(
                helper.make_node("AllReduce", [value], [f"r{link}"], domain="com.microsoft")
            )
            value = f"r{link}"
    nodes.append(helper.make_node("Neg", [value], ["y"]))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, HIDDEN]) for n in "xy"]
    # Sums of two ranks, and sums over the row, keep their size.
    scaled = weight * np.float16(0.5 / math.sqrt(HIDDEN))
    constants = [] if name == "all_reduces" else [numpy_helper.from_array(scaled, "w")]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)


def _decoder_rows(plan: DecoderPlan, name: str, folder: Path) -> list[Row]:
    from ..models.rank_files import write_rank_file

    write_model(plan, name, folder / "whole")
    write_rank_file(folder / "whole" / "model.onnx", folder / "ranks", link=True)
    ours = folder / "ranks"
    (alone,) = launch(1, "decoder", ours)
    (asked,) = launch(1, "decoder", ours, {"RANK": "0", "WORLD_SIZE": "1"})
    ranks = launch(RANKS, "decoder", ours)
    logits = [np.load(ours / f"logits.{rank}.{RANKS}.npy") for rank in range(RANKS)]
    difference = _difference(logits[0], np.load(ours / "logits.0.1.npy"))
    same = all(other.tobytes() == logits[0].tobytes() for other in logits[1:])
    share = max(told["packed_bytes"] for told in ranks) / alone["packed_bytes"]
    step = max(told["step"] for told in ranks)
    return [
        Row(
            f"{name} step, one rank that was launched | not launched",
            asked["step"], alone["step"], f"<= {_SIZE_ONE_BAR}",
            asked["step"] <= _SIZE_ONE_BAR * alone["step"]
            and asked["launches"] == alone["launches"],
            f"{len(alone['launches'])} kernels, "
            + ("the same" if asked["launches"] == alone["launches"] else "NOT the same"),
        ),
        Row(
            f"{name} step, {RANKS} ranks | one", step, alone["step"], "logits",
            same and difference <= _LARGEST_DIFFERENCE,
            f"logits within {difference:.2%}, {'the same' if same else 'NOT the same'} bits on all "
            f"ranks; {share:.3f} of the weights; {ranks[0]['collectives']} collectives; sessions "
            f"open in {max(told['created'] for told in ranks):.1f} s",
        ),
    ]  # fmt: skip


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    size = np.sqrt(np.mean(np.square(theirs, dtype=np.float64)))
    found = float(np.sqrt(np.mean(np.square(ours - theirs, dtype=np.float64))) / size)
    return math.inf if math.isnan(found) else found


def launch(size: int, what: str, folder: Path, variables: dict | None = None) -> list[dict]:
    """What every rank of so many tells; one alone is launched by nobody."""
    processes = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank in range(size):
        own = dict(variables or {})
        if size > 1:
            own |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
        command = [sys.executable, "-m", "onnxruntime_ep_tenon.bench.gpu_rank_meter", what, folder]
        processes.append(
            subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
        )
    told = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=_SECONDS)
            if process.returncode != 0:
                raise RuntimeError(f"a rank ended with {process.returncode}: {output[-300:]}")
            told.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return told
