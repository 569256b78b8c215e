"""Cases measured one by one in a process of its own.

A kernel that faults or hangs takes its case along, not the table.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .machine import Machine

_MEMORY_FOLDER = Path("/dev/shm")
_SPACE_NEEDED = 8 << 30


class WrongResultError(RuntimeError):
    """A result is not what float64 says; the GPU itself is well."""


class MeasuringProcess:
    """Hands cases to a bench in another process, and replaces it when a case has failed in it.

    make_bench(folder, seed) makes, in that process, what has machine() -> Machine,
    measure(case) and clean_up().
    """

    seconds_per_case = 90  # and the process that measures is taken for hung

    def __init__(self, make_bench: Callable, seed: int = 0):
        fast = _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > _SPACE_NEEDED
        self._folder = tempfile.TemporaryDirectory(
            prefix="tenon-", dir=_MEMORY_FOLDER if fast else None
        )
        self._make_bench, self._seed = make_bench, seed
        self._process = self._pipe = None
        self.machine: Machine = self._start()

    def measure(self, case):
        if self._process is None:
            self._start()
        self._pipe.send(case)
        answer = self._answer()
        if not isinstance(answer, Exception):
            return answer
        if not isinstance(answer, WrongResultError):
            self._stop()
        raise answer

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _start(self) -> Machine:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._make_bench, self._folder.name, self._seed)
        self._process = context.Process(target=_measure_for_parent, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        told = self._answer()
        if isinstance(told, Exception):
            self._stop()
            raise told
        return told

    def _answer(self):
        try:
            if self._pipe.poll(self.seconds_per_case):
                return self._pipe.recv()
            return RuntimeError(f"no answer within {self.seconds_per_case} s: a kernel may hang")
        except EOFError:
            self._process.join()
            return RuntimeError(f"the measuring process ended with {self._process.exitcode}")

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _measure_for_parent(pipe, make_bench: Callable, folder: str, seed: int) -> None:
    """The measuring process: says what it runs on, then answers case after case."""
    try:
        bench = make_bench(Path(folder), seed)
        pipe.send(bench.machine())
    except Exception as error:
        pipe.send(RuntimeError(str(error)))
        return
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(bench.measure(case))
        except WrongResultError as error:
            pipe.send(error)
        except Exception as error:
            # Errors of ONNX Runtime cannot be pickled.
            pipe.send(RuntimeError(str(error) or type(error).__name__))
        bench.clean_up()


def measure_in_turn(
    cases: Sequence, meter, most_seconds: float
) -> Iterator[tuple[object, object, str, float]]:
    """Each case, what was measured or None, the problem or nothing, and the seconds it took."""
    begin = time.perf_counter()
    for case in cases:
        started = time.perf_counter()
        measured, problem = None, ""
        if started - begin > most_seconds:
            problem = f"not begun: {most_seconds:.0f} s were over"
        else:
            try:
                measured = meter.measure(case)
            except Exception as error:
                problem = " ".join(str(error).split())[:400]
        yield case, measured, problem, time.perf_counter() - started
