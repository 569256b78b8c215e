"""What the NVIDIA driver itself measures: copies, graphs replayed without ONNX Runtime, memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from .. import cuda

_RELAXED_CAPTURE = 2


class DriverClock:
    """The driver's functions that benchmarks need, on one GPU."""

    def __init__(self, ordinal: int = 0):
        self._cuda = ctypes.CDLL(cuda.find_driver().path)
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} failed with error {result}")

    def _made(self, name: str, *arguments) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(name, ctypes.byref(handle), *arguments)
        return handle

    def copy_rate(self, size: int, times: int = 20) -> float:
        """Bytes read and written per second by copies within the GPU's memory."""
        buffers = [self._made("cuMemAlloc_v2", ctypes.c_size_t(size)) for _ in range(2)]

        def copy() -> None:
            self._call("cuMemcpyAsync", *buffers, ctypes.c_size_t(size), None)

        rate = 2 * size / float(np.median([self.elapsed(copy, None) for _ in range(times)]))
        for buffer in buffers:
            self._call("cuMemFree_v2", buffer)
        return rate

    def elapsed(self, enqueue: Callable[[], None], stream: ctypes.c_void_p | None) -> float:
        """Seconds on the device between two events around what is enqueued."""
        begin, end = (self._made("cuEventCreate", 0) for _ in range(2))
        self._call("cuEventRecord", begin, stream)
        enqueue()
        self._call("cuEventRecord", end, stream)
        self._call("cuEventSynchronize", end)
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        for event in (begin, end):
            self._call("cuEventDestroy_v2", event)
        return milliseconds.value * 1e-3

    def stream(self) -> ctypes.c_void_p:
        return self._made("cuStreamCreate", 1)  # not ordered with the default stream

    def capture(self, enqueue: Callable[[], None], stream: ctypes.c_void_p) -> ctypes.c_void_p:
        """What is enqueued on the stream, as a graph to launch."""
        self._call("cuStreamBeginCapture_v2", stream, _RELAXED_CAPTURE)
        enqueue()
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", stream, ctypes.byref(graph))
        launchable = self._made("cuGraphInstantiateWithFlags", graph, ctypes.c_uint64(0))
        self._call("cuGraphDestroy", graph)
        return launchable

    def launch(self, graph: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        self._call("cuGraphLaunch", graph, stream)

    def synchronize(self, stream: ctypes.c_void_p) -> None:
        self._call("cuStreamSynchronize", stream)

    def free_memory(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value
