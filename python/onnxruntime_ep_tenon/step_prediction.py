"""How long a step of one rank takes, predicted: its kernels, one after another, and collectives.

Nothing here is measured. docs/sharding.md says where the figures come from.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .report import Report, fusion_kind
from .symbolic_sizes import bytes_of, evaluate, operands

COLLECTIVES = ("AllReduce", "AllGather", "AllToAll", "Broadcast", "Permute", "ReduceScatter")


@dataclass(frozen=True)
class Link:
    """What connects ranks: microseconds to begin a collective and for each of its steps."""

    name: str
    base_us: float
    step_us: float
    gigabytes_per_second: float  # of one rank, one way
    direct_us: float = 0  # of an AllReduce in one exchange (peer memory); 0: there is none

    def __str__(self) -> str:
        return f"{self.name}, {self.gigabytes_per_second:g} GB/s"


# Between two processes of a Neoverse V1: 1 us for 3.5 KB, 20.4 us for 224 KiB.
_SHARED_MEMORY = Link("shared memory", 0.7, 0, 12)
_REDUCED_BY_ALL = 16 << 10  # bytes of an AllReduce, at most
_MOST_DIRECT_BYTES, _MOST_DIRECT_RANKS = 512 << 10, 8


def link_of(report: Report) -> Link:
    """Of GPUs as the provider knows them (kernels/planning/gpu_link.h)."""
    told = report.data["device"].get("link")
    return Link(**told) if told else _SHARED_MEMORY


def collective_us(op: str, size: float, ranks: int, link: Link) -> float:
    """`size`: bytes of the larger side, what all ranks have together or each has afterwards.

    As kernels/planning/link_model.h has it: steps of a tree, the bytes of a ring.
    """
    direct = link.direct_us and ranks <= _MOST_DIRECT_RANKS and ranks * size <= _MOST_DIRECT_BYTES
    if op == "AllReduce" and direct:  # a number travels beside each value
        return link.direct_us + 2 * size * (ranks - 1) / (link.gigabytes_per_second * 1e3)
    passes = 2 if op == "AllReduce" else 1  # reduce-scatter, then all-gather
    sent = size if op in ("Broadcast", "Permute") else passes * size * (ranks - 1) / ranks
    if link is _SHARED_MEMORY and op == "AllReduce" and size <= _REDUCED_BY_ALL:
        passes, sent = 1, size * (ranks - 1)
    begin = passes * link.base_us if link is _SHARED_MEMORY else link.base_us
    steps = passes * math.ceil(math.log2(ranks)) * link.step_us
    return begin + steps + sent / (link.gigabytes_per_second * 1e3)


@dataclass(frozen=True)
class Step:
    """Tokens that are fed at once behind a past, and what the model's symbols are then."""

    tokens: int
    sizes: dict[str, int]


def kernels_us(report: Report, step: Step) -> float:
    """Of all fusions but collectives; on a GPU by the report's cost model, else by its launches."""
    fusions = [f for f in report.fusions if f["kind"].split("::")[-1] not in COLLECTIVES]
    device = report.data["device"]
    if device["kind"] == "gpu":
        return sum(_on_gpu(fusion, step, device) for fusion in fusions)
    return sum(_on_host(fusion, step) for fusion in fusions)


def _on_host(fusion: dict, step: Step) -> float:
    """Products have work for the rows asked for; others are estimated at one token."""
    total = 0.0
    for launch in fusion["launches"]:
        multiplies = any("rows" in work for work in launch["work"])
        for work in launch["work"]:
            expected = work.get("expected_us", work["compute_us"])
            if not multiplies:
                total += expected * step.tokens
            elif work["rows"] == step.tokens:
                total += expected
    return total


def _on_gpu(fusion: dict, step: Step, device: dict) -> float:
    inputs, _, outputs = fusion["problem"].partition(" -> ")
    read, written = operands(inputs, step.sizes), operands(outputs, step.sizes)
    if fusion["configs"] and written:
        rows = math.prod(written[0][1][:-1])
        if (known := _by_rows(fusion["configs"], rows)) is not None:
            return known
    if fusion_kind(fusion) == "attention":
        written = written[:1]  # caches are read, and what is new is little
    return device["kernel_us"] + _bytes(read, written) / device["memory_bytes_per_us"]


_ROWS = re.compile(r"rows (<=|>) (\d+)")


def _by_rows(configs: list[dict], rows: int) -> float | None:
    """The config that takes so many rows; beyond the last bound time grows with them."""
    for config in configs:
        time = config["config"].get("microseconds")
        bound = _ROWS.search(config["problem"])
        if time is None:
            return None
        if bound is None or (bound[1] == "<=" and rows <= int(bound[2])):
            return time
        if bound[1] == ">":
            return time * rows / (int(bound[2]) + 1)
    return None


def _bytes(read: list, written: list) -> float:
    """Of a table of fixed size that rows are taken from no more is read than rows are made."""
    most = max((math.prod(shape) for _, shape, open_ in read + written if open_), default=0)
    total = sum(bytes_of(kind, shape) for kind, shape, _ in written)
    for kind, shape, is_open in read:
        whole = bytes_of(kind, shape)
        fixed = most and not is_open and math.prod(shape) > most
        total += whole * most / math.prod(shape) if fixed else whole
    return total


def exchanged_bytes(exchange: dict, step: Step) -> int:
    return evaluate(exchange["bytes"], step.sizes)


def add_expected_times(report: Report, bandwidth: float) -> None:
    """What reading the weights takes at `bandwidth` bytes per second, and the longer of both."""
    report.data["read_bandwidth_bytes_s"] = bandwidth
    for fusion in report.fusions:
        for launch in fusion.get("launches", []):
            for work in launch["work"]:
                work["read_us"] = launch.get("weight_bytes", 0) / bandwidth * 1e6
                work["expected_us"] = max(work["read_us"], work["compute_us"])
