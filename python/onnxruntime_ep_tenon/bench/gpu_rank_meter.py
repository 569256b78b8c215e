"""One rank of the suite of ranks on a GPU: opens what the folder holds, and tells times as JSON.

python -m onnxruntime_ep_tenon.bench.gpu_rank_meter links|decoder FOLDER; a launcher's variables say
which rank of how many it is, none that it is alone. The last line of its output is the result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import tensors
from ..bindings import bind
from ..genai_folder import GenaiFolder
from ..generation import TokenLoop
from ..provider_sessions import gpu_of, session_options
from ..report import Report
from ..session import create_session
from .gpu_runs import back_to_back, run_options
from .measure import timed

HIDDEN, LINKS = 4096, 16  # an all-reduce of one token's row is 8 KiB of float16
PAST, ROOM, BATCH = 512, 64, 1
LINK_MODELS = ("products", "all_reduces", "both")
_LINK_RUNS = {  # the chains of all-reduces first: ranks are in step then
    "all_reduces": ("all_reduces", "1"),
    "all_reduces_nccl": ("all_reduces", "0"),
    "both": ("both", "1"),
    "both_nccl": ("both", "0"),
    "products": ("products", None),
}
_SAMPLES, _RUNS, _RUNS_TO_CAPTURE = 9, 40, 4


@dataclass(frozen=True)
class Place:
    """Of this process among those that were launched."""

    rank: int
    size: int
    options: dict

    @classmethod
    def here(cls) -> Place:
        if "WORLD_SIZE" not in os.environ:
            return cls(0, 1, {})
        rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        return cls(rank, size, {"tensor_parallel_size": "auto"})


def _median(bound: Callable[[int], Callable[[], None]]) -> float:
    """Seconds of one Run among many in a row; every rank makes as many."""
    many = bound(_RUNS)
    many()
    return float(np.median([timed(many) for _ in range(_SAMPLES)])) / _RUNS


def measure_links(folder: Path, place: Place) -> dict:
    """A chain of products, one of all-reduces, and one of both in turns: seconds of a Run.

    All-reduces by what a session takes, and all by NCCL.
    """
    import onnxruntime

    row = np.random.default_rng(place.rank).standard_normal((1, HIDDEN)).astype(np.float16)
    bound, kept = {}, []
    for name, (model, peer_memory) in _LINK_RUNS.items():
        # The products alone know nothing of ranks, which would cut them.
        options = place.options | {"collective_peer_memory": peer_memory} if peer_memory else {}
        session = create_session(
            folder / f"{model}.onnx", "gpu", session_options(0), enable_cuda_graph=True, **options
        )
        gpu = gpu_of(session)
        values = [tensors.gpu_value(row.shape, 10, gpu) for _ in range(2)]
        onnxruntime.copy_tensors([tensors.to_ort_value(row)], values[:1])
        binding = bind(session, {"x": values[0]}, {"y": values[1]})
        for _ in range(_RUNS_TO_CAPTURE):
            session.run_with_iobinding(binding, run_options())
        kept.append((session, values))
        bound[name] = lambda runs, s=session, b=binding: back_to_back(s, b, runs)
    return {name: _median(bound[name]) for name in _LINK_RUNS}


def measure_decoder(folder: Path, place: Place) -> dict:
    """A step of one token behind a cache, and the logits of it."""
    report_file = folder / f"report.{place.rank}.{place.size}.json"
    opened = []
    created = timed(
        lambda: opened.append(
            create_session(
                folder / "model.onnx", "gpu", session_options(0), enable_cuda_graph=True,
                report_file=report_file, **place.options,
            )
        )
    )  # fmt: skip
    session = opened[0]
    loop = TokenLoop(
        session, GenaiFolder.load(folder), BATCH, PAST + 1 + ROOM, share_cache=True, fixed_mask=True
    )
    partition = Report.load(report_file).data["graphs"][0]["partitions"][0]
    loop.assume(PAST, _own_heads(_cache_of(folder), partition["sharding"], place))
    ids = np.array([[17]])
    binding, outputs = loop.bound_step(ids)
    for _ in range(_RUNS_TO_CAPTURE):
        session.run_with_iobinding(binding, run_options())
    logits = loop.logits(outputs)[:, -1].astype(np.float32)
    np.save(folder / f"logits.{place.rank}.{place.size}.npy", logits)
    seconds = _median(lambda runs: back_to_back(session, binding, runs))
    return {
        "created": created,
        "step": seconds,
        "packed_bytes": partition["packed_bytes"],
        "launches": [kernel["name"] for kernel in partition["kernels"]],
        "collectives": len((partition["sharding"] or {}).get("collectives", [])),
    }


def _cache_of(folder: Path) -> np.ndarray:
    """The same on every rank: every head's past."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    shape = (BATCH, config["num_key_value_heads"], PAST + 1 + ROOM, config["head_size"])
    return np.random.default_rng(3).standard_normal(shape, np.float32) * np.float32(0.5)


def _own_heads(cache: np.ndarray, sharding: dict | None, place: Place) -> np.ndarray:
    if not sharding or not sharding["caches"]:
        return cache
    heads = sharding["caches"][0]["heads"]
    first = sum(heads[: place.rank])
    return cache[:, first : first + heads[place.rank]]


def main() -> int:
    what, folder = sys.argv[1], Path(sys.argv[2])
    measure = {"links": measure_links, "decoder": measure_decoder}[what]
    print(json.dumps(measure(folder, Place.here())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
