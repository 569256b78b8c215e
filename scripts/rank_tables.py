#!/usr/bin/env python3
"""The tables of docs/sharding.md: what ranks hold of models of real sizes, and predicted steps.

The sharding pass plans models of one and of two layers whose other sizes are the real ones; what a
layer adds is counted for each layer of the model. Embedding, last product and norms are included.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onnxruntime_ep_tenon.bench.measure import read_bandwidth
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import PRESETS, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import DrawnWeights
from onnxruntime_ep_tenon.models.rank_files import write_rank_file
from onnxruntime_ep_tenon.provider_sessions import session_options
from onnxruntime_ep_tenon.rank_plans import plan_ranks
from onnxruntime_ep_tenon.report import session_with_report

MODELS = ("llama-8b", "qwen2-7b", "gpt-oss-20b-dense")
RANKS = (2, 3, 4, 8)
CONTEXT = 4096


def planned_bytes(model: Path, ranks: int) -> list[float]:
    """Of all constants, then of each rank's."""
    options = {"tensor_parallel_size": ranks, "tensor_parallel_rank": 0, "tensor_parallel_plan": 1}
    _, report = session_with_report(model, "cpu", session_options(0), **options)
    shardings = [part["sharding"] for part in report.partitions]
    counts = [[sharding["constant_bytes"], *sharding["bytes_by_rank"]] for sharding in shardings]
    return [sum(count) for count in zip(*counts, strict=True)]


def planned_steps(model: Path, ranks: int, arch: str) -> list[float]:
    """Microseconds of a token alone, and with ranks; the same of a prompt."""

    def open_session(options: dict) -> tuple:
        return session_with_report(model, "cpu", session_options(0), target_arch=arch, **options)

    plans = plan_ranks(open_session, ranks, CONTEXT, read_bandwidth)
    return [step.total for steps in zip(plans.alone, plans.slowest, strict=True) for step in steps]


def for_all_layers(name: str, weights: str, folder: Path, plan: Callable) -> list[list[float]]:
    """What `plan` tells of a model and each number of ranks, as if it had all of its layers."""
    config, spelling = PRESETS[name], Spelling("genai", weights, "f16")
    by_layers = []
    for layers in (1, 2):
        some = replace(config, layers=layers)
        path = decoder.write_decoder(folder / f"{name}-{layers}", some, spelling, DrawnWeights())
        made = write_rank_file(path, folder / f"{name}-{layers}-ranks", link=True).path
        by_layers.append([plan(made, ranks) for ranks in RANKS])
        for file in (path.with_name("model.onnx.data"), made.with_name("model.onnx.data")):
            file.unlink()
    return [
        [a + (config.layers - 1) * (b - a) for a, b in zip(one, two, strict=True)]
        for one, two in zip(*by_layers, strict=True)
    ]


def share_cells(name: str, args, folder: Path) -> list[str]:
    """The largest part of all that any rank holds."""
    found = for_all_layers(name, args.weights, folder, planned_bytes)
    return [f"{max(parts) / whole:.3f}" for whole, *parts in found]


def step_cells(name: str, args, folder: Path) -> list[str]:
    """Milliseconds of a token and of a prompt: alone, then for each number of ranks."""

    def plan(model: Path, ranks: int) -> list[float]:
        return planned_steps(model, ranks, args.steps)

    found = for_all_layers(name, args.weights, folder, plan)
    alone = f"{found[0][0] / 1e3:.2f}, {found[0][2] / 1e3:.1f}"
    return [alone, *(f"{token / 1e3:.2f}, {prompt / 1e3:.1f}" for _, token, _, prompt in found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="nvfp4", help="nvfp4, int4, … (default: nvfp4)")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=sorted(PRESETS))
    parser.add_argument("--steps", metavar="ARCH", help="predicted steps on such GPUs instead")
    args = parser.parse_args()
    columns = [f"{ranks} ranks" for ranks in RANKS]
    columns = ["alone", *columns] if args.steps else columns
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    with tempfile.TemporaryDirectory(prefix="tenon-tables-") as folder:
        for name in args.models:
            cells = (step_cells if args.steps else share_cells)(name, args, Path(folder))
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
