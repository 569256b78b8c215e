"""Outputs bound to memory of inputs, and of each other.

A Run gives the bits of one whose buffers are apart, or an error that says so.

Every output is bound to every input of as many bytes, at its first byte and a row beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.library import PROVIDER

from .case import Case
from .fresh_memory import BY_TENON, fill_fresh_memory
from .graph import element_type
from .judge import coarsest_of, difference
from .outcome import (
    BOTH_REFUSE,
    DIFFERS,
    PACKED,
    SAME,
    TENON_REFUSES,
    UNJUDGED,
    Judged,
    Outcome,
    Refused,
)

_ALIGNMENT = 256
_FILL = 0x5A
_OURS = ("share part of their memory", "bound to memory that overlaps")
# Whose caches are updated in place: rows that hold no key keep what was there.
_CACHED = {"Attention", "GroupQueryAttention", "MultiHeadAttention"}


@dataclass(frozen=True)
class Place:
    """A tensor in the block: its first byte, and what it is."""

    begin: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize

    @property
    def row(self) -> int:
        """Bytes of the last axis, or of one element where there is no other."""
        row = (self.shape[-1] if self.shape else 1) * self.dtype.itemsize
        return row if 0 < row < self.bytes else self.dtype.itemsize

    def at(self, begin: int) -> Place:
        return Place(begin, self.dtype, self.shape)


class Block:
    """One piece of memory, of the host or of a GPU, that all buffers of a Run are parts of."""

    def __init__(self, size: int, gpu: int | None):
        self.gpu = gpu
        self._contents = np.full(size + _ALIGNMENT, _FILL, np.uint8)
        self._memory = self._contents.copy()  # of the host
        self._value = None if gpu is None else tensors.to_gpu_value(self._contents, gpu)
        address = self._memory.ctypes.data if gpu is None else self._value.data_ptr()
        self._base = -address % _ALIGNMENT
        self._aligned = address + self._base

    def address(self, place: Place) -> int:
        return self._aligned + place.begin

    def put(self, place: Place, array: np.ndarray) -> None:
        """Into what each Run begins with."""
        self.put_at(place)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def put_at(self, place: Place) -> np.ndarray:
        """The bytes that were there when the Run began."""
        return self._bytes(self._contents, place)

    def restore(self) -> None:
        if self.gpu is None:
            self._memory[...] = self._contents
        else:
            onnxruntime.copy_tensors([tensors.to_ort_value(self._contents)], [self._value])

    def read(self, place: Place) -> np.ndarray:
        whole = self._memory if self.gpu is None else tensors.from_gpu_value(self._value)
        return self._bytes(whole, place).copy().view(place.dtype).reshape(place.shape)

    def _bytes(self, whole: np.ndarray, place: Place) -> np.ndarray:
        begin = self._base + place.begin
        return whole[begin : begin + place.bytes]


class BoundRuns:
    """A session and a block with all that goes in and out of it."""

    def __init__(self, session: Judged, feed: dict, results: list[np.ndarray], gpu: int | None):
        self.session, end = session, 0
        self.inputs: dict[str, Place] = {}
        self.outputs: dict[str, Place] = {}
        named = [*feed.items(), *zip(session.names, results, strict=True)]
        # What is bound to a tensor may begin a row before it, and end a row behind it.
        margin = max(Place(0, array.dtype, array.shape).row for _, array in named)
        for number, (name, array) in enumerate(named):
            begin = -(-(end + margin) // _ALIGNMENT) * _ALIGNMENT
            place = Place(begin, array.dtype, array.shape)
            (self.inputs if number < len(feed) else self.outputs)[name] = place
            end = begin + place.bytes + margin
        self.block = Block(end, gpu)
        for name, array in feed.items():
            self.block.put(self.inputs[name], array)

    def run(self, moved: dict[str, Place]) -> dict[str, np.ndarray] | Refused:
        """`moved`: outputs that are elsewhere than on their own."""
        outputs = {**self.outputs, **moved}
        self.block.restore()
        device = ("cpu", 0) if self.block.gpu is None else ("cuda", self.block.gpu)
        try:
            runtime = self.session.session
            binding = runtime.io_binding()
            for bind, places in (
                (binding.bind_input, self.inputs),
                (binding.bind_output, outputs),
            ):
                for name, place in places.items():
                    kind, address = element_type(place.dtype), self.block.address(place)
                    bind(name, *device, kind, place.shape, address)
            runtime.run_with_iobinding(binding)
        except Exception as error:
            return Refused(error)
        return {name: self.block.read(place) for name, place in outputs.items()}


@dataclass(frozen=True)
class Sharing:
    """An output that is put elsewhere."""

    output: str
    place: Place
    other: str
    shift: int
    with_output: bool

    def __str__(self) -> str:
        kind = "output" if self.with_output else "input"
        return f"output {self.output} at {self.shift} bytes from {kind} {self.other}"


def sharings(runs: BoundRuns) -> Iterator[Sharing]:
    for output, place in runs.outputs.items():
        for other, where in (*runs.inputs.items(), *runs.outputs.items()):
            if other == output or place.bytes != where.bytes or not place.bytes:
                continue
            for shift in (0, place.row, -place.row):
                if abs(shift) == place.bytes:
                    continue  # a single element: beside another it shares nothing
                moved = place.at(where.begin + shift)
                yield Sharing(output, moved, other, shift, other in runs.outputs)


def judge_case(case: Case, device, entering_tenon) -> Outcome:
    """Only graphs that are one partition of Tenon's.

    Between nodes of others the runtime knows of no overlap: its own kernels write over what others
    still read. Nor does it where it has folded an output to a constant, which it writes itself.
    """
    case.options["claim"] = "all"
    case.optimised = False
    feed = case.feeds[0]
    try:
        wanted = Judged(case).run(feed)
        if isinstance(wanted, Refused):
            return Outcome(BOTH_REFUSE, str(wanted), 0)
        entering_tenon(case.family)
        fill_fresh_memory(BY_TENON)
        session = Judged(case, device)
    except Refused as refused:
        return Outcome(BOTH_REFUSE, str(refused))
    parts = session.session.get_provider_graph_assignment_info()
    if [part.ep_name for part in parts] != [PROVIDER]:
        return Outcome(UNJUDGED, f"in {len(parts)} parts")
    arrays = [*feed.values(), *wanted]
    if any(a.dtype.name in PACKED or a.dtype.kind in "OSU" for a in arrays):
        return Outcome(UNJUDGED, "its elements have no addresses")
    gpu = device.device.device_id if device.device.type.name == "GPU" else None
    found = _judge_sharings(case, BoundRuns(session, feed, wanted, gpu), wanted)
    found.claimed = True
    return found


def _judge_sharings(case: Case, runs: BoundRuns, wanted: list[np.ndarray]) -> Outcome:
    apart = runs.run({})
    if isinstance(apart, Refused):
        return Outcome(UNJUDGED, f"apart: {apart}", 0)
    arrays = [*runs.inputs.values(), *runs.outputs.values()]
    coarsest = coarsest_of([place.dtype for place in arrays])
    for (name, result), expected in zip(apart.items(), wanted, strict=True):
        if problem := difference(result, expected, case.depth, coarsest):
            return Outcome(UNJUDGED, f"apart: {name}: {problem}", 0)
    cached = _CACHED & {node.op_type for node in onnx.load_from_string(case.model).graph.node}
    count = 0
    for number, sharing in enumerate(sharings(runs)):
        results = runs.run({sharing.output: sharing.place})
        if isinstance(results, Refused):
            if not any(text in str(results) for text in _OURS):
                return Outcome(TENON_REFUSES, f"{sharing}: {results}", number)
        elif sharing.with_output:
            return Outcome(DIFFERS, f"{sharing}: no error", number)
        elif problem := _problem(runs, sharing, results, apart, bool(cached)):
            return Outcome(DIFFERS, f"{sharing}: {problem}", number)
        count += 1
    return Outcome(SAME, f"{count} bindings", count)


def _problem(runs: BoundRuns, sharing: Sharing, results, apart, cached: bool) -> str:
    for name, result in results.items():
        got, expected = (np.ascontiguousarray(a).reshape(-1).view(np.uint8)
                         for a in (result, apart[name]))  # fmt: skip
        wrong = got != expected
        if cached and name == sharing.output and sharing.shift == 0:
            wrong &= got != runs.block.put_at(runs.inputs[sharing.other])
        if wrong.any():
            return f"{name}: {difference(result, apart[name], 0, 0.0) or 'other bits'}"
    return ""
