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
class Protocol:
    """One way to send: microseconds to begin and for each hop, share of the bandwidth."""

    base: float
    hop: float
    share: float


@dataclass(frozen=True)
class Link:
    name: str
    bytes_per_us: float  # of one GPU, one way
    protocols: tuple[Protocol, ...]


# NCCL's own tables (its tuning.cc, 2026): LL sends a flag with every word, Simple whole chunks.
_NVLINK = (Protocol(6.6, 0.6, 0.5), Protocol(8.4, 3.4, 1.0))
_PCIE = (Protocol(6.6, 1.0, 0.5), Protocol(8.4, 5.7, 1.0))
# One way, from data sheets: half of what they print for both.
_LINKS = {
    "sm_80": Link("NVLink 3, 300 GB/s", 300e3, _NVLINK),
    "sm_90": Link("NVLink 4, 450 GB/s", 450e3, _NVLINK),
    "sm_100": Link("NVLink 5, 900 GB/s", 900e3, _NVLINK),
    "sm_103": Link("NVLink 5, 900 GB/s", 900e3, _NVLINK),
    "sm_86": Link("PCIe 4 x16, 32 GB/s", 32e3, _PCIE),
    "sm_89": Link("PCIe 4 x16, 32 GB/s", 32e3, _PCIE),
}
_OTHER_GPU = Link("PCIe 5 x16, 64 GB/s", 64e3, _PCIE)
# Between two processes of a Neoverse V1: 56 us for 3.5 KB, 3.1 ms for 4 MB.
_GLOO = Link("Gloo, 1.3 GB/s", 1.3e3, (Protocol(53, 0, 1.0),))
_GLOO_EXCHANGES_WHOLE = 64 << 10


def link_of(report: Report) -> Link:
    arch = report.data["device"].get("arch", "")
    return _LINKS.get(arch.rstrip("a"), _OTHER_GPU) if arch else _GLOO


def collective_us(op: str, size: float, ranks: int, link: Link) -> float:
    """`size`: bytes that every rank has afterwards. The faster of the protocols, as a ring."""
    rounds = 2 if op == "AllReduce" else 1
    hops = rounds * (ranks - 1)
    sent = size * (ranks - 1) if op == "ReduceScatter" else size * hops / ranks
    if link is _GLOO:
        if op == "AllReduce" and (ranks == 2 or (ranks - 1) * size - sent <= _GLOO_EXCHANGES_WHOLE):
            rounds, sent = 1, size * (ranks - 1)
        return rounds * link.protocols[0].base + sent / link.bytes_per_us
    return min(
        way.base + hops * way.hop + sent / (link.bytes_per_us * way.share) for way in link.protocols
    )


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
