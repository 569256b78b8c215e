"""What each kernel of a Run adds to it on a GPU, as the profiler of torch sees it.

Launches overlap: one that begins early fetches its weights while others still compute. So a kernel
counts from the end of the one that ended before it to its own end, and all of them add up to the
Run.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .. import console
from ..requirements import has

_ON_THE_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class KernelTime:
    name: str
    ctas: int
    shared_bytes: int
    launches: float  # of a Run
    microseconds: float  # that one of them adds

    @property
    def of_a_run(self) -> float:
        return self.launches * self.microseconds


@dataclass(frozen=True)
class KernelTimes:
    """Told beside the row of a case."""

    case: str
    kernels: list[KernelTime]

    def print(self) -> None:
        console.heading(f"{self.case}: what each kernel adds")
        console.table(
            ("kernel", "CTAs", "shared bytes", "launches", "us each", "us of a Run"),
            [
                (k.name, k.ctas, k.shared_bytes, f"{k.launches:.0f}",
                 f"{k.microseconds:.2f}", f"{k.of_a_run:.1f}")
                for k in self.kernels
            ],
            right=range(1, 6),
        )  # fmt: skip


def is_available() -> bool:
    return has("torch")


def profile(call: Callable[[], None], runs: int) -> list[KernelTime]:
    """Of a call that makes so many Runs and waits for the last; those that take most come first."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    torch.zeros(1, device="cuda")  # the profiler looks at GPUs that torch has opened
    with recording(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return by_kernel(json.loads(path.read_text())["traceEvents"], runs)


def by_kernel(events: Iterable[dict], runs: int) -> list[KernelTime]:
    seen = [event for event in events if event.get("cat") in _ON_THE_GPU]
    seen.sort(key=_end)
    added: dict[tuple, list[float]] = defaultdict(list)
    for before, event in zip(seen, seen[1:], strict=False):
        arguments = event.get("args", {})
        ctas = arguments.get("grid", [1])[0]
        key = (event["name"], ctas, arguments.get("shared memory", 0))
        added[key].append(_end(event) - _end(before))
    times = [
        KernelTime(*key, round(len(each) / runs) or len(each) / runs, median(each))
        for key, each in added.items()
    ]
    return sorted(times, key=lambda time: -time.of_a_run)


def _end(event: dict) -> float:
    return event["ts"] + event["dur"]
