"""Whole decoders: decode after some past, and prefill, against another provider.

Each format is measured in a process of its own, so that the memory it took can be told and a
crash costs only its own rows. What is there is written after every row: a run that is cut short
leaves it.
"""

from __future__ import annotations

import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import console, cuda
from ..provider_sessions import has_cuda_provider
from ..session import devices
from . import kernel_times
from .decoder_meter import Begun, DecoderPlan, Problem, file_bytes, measure_format, write_model
from .kernel_times import KernelTimes
from .machine import absent_peer_text
from .rows import Row, print_rows, write_rows

_MEMORY_FOLDER = Path("/dev/shm")
_SECONDS_TO_START = 60.0  # the measuring process


def plan_of(args) -> DecoderPlan:
    from ..models.decoder_config import PRESETS, WEIGHT_FORMATS

    device = args.device
    if device == "auto":
        device = devices()[0].device.type.name.lower()
    preset = args.preset or ("llama-8b" if device.startswith("gpu") else "qwen2-0.5b")
    if preset not in PRESETS:
        raise ValueError(f"unknown preset '{preset}'; one of: {', '.join(PRESETS)}")
    formats = tuple(args.weights.split(","))
    if unknown := [name for name in formats if name not in WEIGHT_FORMATS]:
        raise ValueError(f"unknown weights '{unknown[0]}'; one of: {', '.join(WEIGHT_FORMATS)}")
    batches = tuple(int(batch) for batch in args.batch.split(","))
    if args.kernels and not device.startswith("gpu"):
        raise ValueError("--kernels tells what kernels of a GPU take; give --device gpu")
    if args.kernels and not kernel_times.is_available():
        raise ValueError("--kernels needs the profiler of torch: pip install torch")
    return DecoderPlan(
        preset, device, formats, batches, args.past, args.prefill, args.seconds, args.threads,
        args.kernels,
    )  # fmt: skip


def run_decoder_suite(args) -> int:
    plan = plan_of(args)
    table = _Table(plan, args)
    if plan.on_gpu and not has_cuda_provider():
        table.say(absent_peer_text())
    for format in plan.formats:
        if table.spent > args.limit:
            table.take(format, Problem(f"not begun: {args.limit:.0f} s were over"))
            continue
        try:
            _measure(plan, format, table, args.limit)
        except Exception as error:
            table.take(format, Problem((str(error).strip() or type(error).__name__)[:500]))
    table.close()
    return 1 if table.problems else 0


class _Table:
    """What came so far: told line by line, written after every row."""

    def __init__(self, plan: DecoderPlan, args):
        self._plan, self._json = plan, args.json
        self._out = Path(args.out) if args.out else None
        self._begin = time.perf_counter()
        self._gpu = cuda.find_driver().gpus[0] if plan.on_gpu else ""
        self._rows: list[Row] = []
        self._kernels: list[KernelTimes] = []
        self.problems: list[str] = []

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._begin

    def take(self, format: str, told: Begun | Row | Problem | KernelTimes) -> None:
        if isinstance(told, Begun):
            self.say(f"{format}: {told.part} ...")
            return
        if isinstance(told, KernelTimes):
            self._kernels.append(told)
        elif isinstance(told, Row):
            self._rows.append(told)
            other = "" if math.isnan(told.other) else f", other {console.duration(told.other)}"
            self.say(f"{told.case}: {console.duration(told.tenon)}{other}; {told.note}")
        else:
            self.problems.append(f"{format}: {told.text}")
            self.say(f"FAILED  {self.problems[-1]}")
        if self._out:
            write_rows(self._out, self._result(), [])

    def close(self) -> None:
        if self._out:
            compared = [row for row in self._rows if not math.isnan(row.other)]
            write_rows(self._out, self._result(), compared)
        if self._json:
            console.print_json(self._result())
            return
        peer = "the CUDA provider" if self._plan.on_gpu else "the CPU provider on INT4"
        print_rows(
            self._rows, f"{self._plan.preset} on {self._gpu or 'the host'}, {peer} beside it"
        )
        for times in self._kernels:
            times.print()
        for text in self.problems:
            console.say(f"FAILED  {text}")

    def say(self, text: str) -> None:
        if not self._json:
            console.say(f"[{self.spent:6.1f} s] {text}")

    def _result(self) -> dict:
        import onnxruntime

        return {
            "date": time.strftime("%Y-%m-%d"),
            "gpu": self._gpu,
            "onnxruntime": onnxruntime.__version__,
            "preset": self._plan.preset,
            "rows": [row.as_json() for row in self._rows],
            "kernels": {t.case: [vars(k) for k in t.kernels] for t in self._kernels},
            "problems": self.problems,
        }


def _measure(plan: DecoderPlan, format: str, table: _Table, limit: float) -> None:
    with tempfile.TemporaryDirectory(prefix="tenon-", dir=folder_for(plan, format)) as folder:
        table.take(format, Begun(f"writing {plan.preset}", math.inf))
        ours = write_model(plan, format, Path(folder) / format)
        theirs = ours
        if not plan.on_gpu and format != "int4":
            theirs = write_model(plan, "int4", Path(folder) / "int4")
        for told in in_a_process_of_its_own(
            plan, format, ours, theirs, lambda: limit - table.spent
        ):
            table.take(format, told)


def folder_for(plan: DecoderPlan, format: str) -> Path | None:
    """In memory where there is room: writing and reading gigabytes is not what is measured."""
    needed = file_bytes(plan, format) + (0 if plan.on_gpu else file_bytes(plan, "int4"))
    fast = _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > 1.5 * needed
    return _MEMORY_FOLDER if fast else None


def in_a_process_of_its_own(
    plan: DecoderPlan, format: str, ours: Path, theirs: Path, left: Callable[[], float]
) -> Iterator[Begun | Row | Problem | KernelTimes]:
    """What the measuring process tells; it is ended when a part takes too long."""
    context = multiprocessing.get_context("spawn")
    pipe, writing_end = context.Pipe()
    arguments = (writing_end, plan, format, ours, theirs)
    process = context.Process(target=_measure_for_parent, args=arguments, daemon=True)
    process.start()
    writing_end.close()
    part, limit = "starting", _SECONDS_TO_START
    try:
        while True:
            limit = max(0.0, min(limit, left()))
            if not pipe.poll(limit):
                yield Problem(f"{part}: given up after {limit:.0f} s")
                break
            told = pipe.recv()
            if told is None:
                break
            if isinstance(told, Begun):
                part, limit = told.part, told.limit
            yield told
    except EOFError:
        process.join()
        yield Problem(f"{part}: the measuring process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _measure_for_parent(pipe, plan: DecoderPlan, format: str, ours: Path, theirs: Path) -> None:
    try:
        for told in measure_format(plan, format, ours, theirs):
            pipe.send(told)
    except Exception as error:
        pipe.send(Problem((str(error).strip() or type(error).__name__)[:500]))
    pipe.send(None)
