"""How much memory of the host a piece of work took at its peak, as Linux counts it."""

from __future__ import annotations

import contextlib
import re
import resource
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEMORY = Path("/proc/meminfo")
_RESET_PEAK = "5"


def _status(key: str) -> int:
    """A line of this process's status; the peak since its start where there is none such."""
    found = re.search(rf"^{key}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


class PeakMemory:
    """with PeakMemory() as memory: ...; then memory.grown: resident bytes at most, over before.

    What is mapped from files counts as soon as it was read.
    """

    def __enter__(self) -> PeakMemory:
        with contextlib.suppress(OSError):  # some sandboxes do not let it be reset
            _CLEAR.write_text(_RESET_PEAK)
        self._before = _status("VmRSS")
        return self

    def __exit__(self, *_) -> None:
        self.grown = _status("VmHWM") - self._before


def available_memory() -> int:
    """Bytes that a process could still take without the machine swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMORY.read_text(), re.MULTILINE)
    return int(found[1]) * 1024
