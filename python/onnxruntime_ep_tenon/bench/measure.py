"""Timing: sessions side by side in one process, turn by turn, medians."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median and the spread around it."""

    name: str
    median: float
    fast: float  # tenth percentile
    slow: float  # ninetieth percentile
    slowest: float  # 99th percentile
    mean: float
    calls: int

    @property
    def per_second(self) -> float:
        return 1 / self.mean

    def as_dict(self) -> dict:
        return {
            "name": self.name,
            "median_s": self.median,
            "p10_s": self.fast,
            "p90_s": self.slow,
            "p99_s": self.slowest,
            "per_second": self.per_second,
            "calls": self.calls,
        }


Clock = Callable[[], float]  # perf_counter, or process_time: what this process was given


def timed(call: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    begin = clock()
    call()
    return clock() - begin


def side_by_side(
    calls: dict[str, Callable[[], object]],
    seconds: float = 2.0,
    at_least: int = 5,
    clock: Clock = time.perf_counter,
) -> list[Timing]:
    """Times each call in short turns, so that a slow spell of the machine hits all alike."""
    for call in calls.values():
        for _ in range(2):
            call()
    turns = {name: max(3, int(0.02 / max(timed(call), 1e-6))) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while True:
        for name, call in calls.items():
            call()  # wakes the threads that slept through the other's turn
            samples[name] += [timed(call, clock) for _ in range(turns[name])]
        enough = min(len(times) for times in samples.values()) >= at_least
        if enough and time.perf_counter() - begin > seconds * len(calls):
            break
    return [_summarise(name, times) for name, times in samples.items()]


def _summarise(name: str, times: list[float]) -> Timing:
    fast, median, slow, slowest, mean = map(
        float, [*np.percentile(times, (10, 50, 90, 99)), np.mean(times)]
    )
    return Timing(name, median, fast, slow, slowest, mean, len(times))


def speed_text(ours: Timing, other: str, theirs: Timing) -> str:
    """Two medians as people compare them: 'is 1.22x faster than …'; and whether that means much."""
    ratio = theirs.median / ours.median
    if 0.99 < ratio < 1.01:
        return f"is as fast as {other}"
    told = f"is {ratio:.2f}x faster" if ratio > 1 else f"is {1 / ratio:.2f}x slower"
    alike = theirs.fast <= ours.median <= theirs.slow and ours.fast <= theirs.median <= ours.slow
    return f"{told} than {other}" + (
        ", but each median lies in the other's spread" if alike else ""
    )


def read_bandwidth(megabytes: int = 512) -> float:
    """Bytes per second that this process can read from memory, all threads together."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    count = os.cpu_count() or 1
    data = np.ones(megabytes * 1024 * 1024 // 8, np.float64)
    parts = np.array_split(data, count)
    with ThreadPoolExecutor(count) as pool:

        def read() -> float:
            return timed(lambda: list(pool.map(np.max, parts)))

        read()
        return data.nbytes / min(read() for _ in range(5))


def fma_peak(size: int = 2048) -> float:
    """Float operations per second of numpy's matrix product: what the machine can reach."""
    a = np.ones((size, size), np.float32)
    b = np.ones((size, size), np.float32)
    np.dot(a, b)
    return 2 * size**3 / min(timed(lambda: np.dot(a, b)) for _ in range(5))
