"""Runs models in processes of their own, with inputs that end at an unreadable page.

An access past the end of an input is a dead process then, and not somebody else's memory. Each case
runs in stock ONNX Runtime and with Tenon in front; what comes back is arrays, or the error's text.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DEADLINE_S = 60
READ_WRITE, PRIVATE_ANONYMOUS = 3, 0x22


@dataclass(frozen=True)
class Case:
    name: str
    model: bytes
    feeds: list[dict[str, np.ndarray]]
    options: dict[str, str] = field(default_factory=dict)
    # Shapes of buffers that the caller binds for the outputs; none: the runtime makes them.
    bound: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    runs: list  # per feed: a list of arrays, or the error as text
    claimed: int = 0  # nodes
    died: str = ""  # of what the process died, if it did


def guarded(array: np.ndarray) -> np.ndarray:
    """A copy of `array` that ends where a page begins that may be neither read nor written."""
    if array.nbytes == 0:
        return array
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = os.sysconf("SC_PAGESIZE")
    size = -(-array.nbytes // page) * page
    base = libc.mmap(None, size + page, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0)
    libc.mprotect(base + size, page, 0)
    place = (ctypes.c_char * array.nbytes).from_address(base + size - array.nbytes)
    copy = np.frombuffer(place, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def run_bound(session, feed: dict, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    outputs = []
    for described, shape in zip(session.get_outputs(), shapes, strict=True):
        outputs.append(guarded(np.zeros(shape, np.float32)))
        place = outputs[-1].ctypes.data
        binding.bind_output(described.name, "cpu", 0, np.float32, shape, place)
    session.run_with_iobinding(binding)
    return [output.copy() for output in outputs]


def run_session(session, case: Case) -> list:
    runs = []
    for feed in case.feeds:
        held = {name: guarded(array) for name, array in feed.items()}
        try:
            runs.append(
                run_bound(session, held, case.bound) if case.bound else session.run(None, held)
            )
        except Exception as error:
            runs.append(str(error))
    return runs


def run_stock(case: Case) -> Outcome:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            case.model, settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        return Outcome([str(error)] * len(case.feeds))
    return Outcome(run_session(session, case))


def run_tenon(case: Case) -> Outcome:
    import onnxruntime
    from onnxruntime_ep_tenon.report import session_with_report

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    options = {"claim": "all", **case.options}
    try:
        session, report = session_with_report(case.model, session_options=settings, **options)
    except Exception as error:
        return Outcome([str(error)] * len(case.feeds))
    return Outcome(run_session(session, case), report.coverage.claimed)


def in_child(run, case: Case) -> Outcome:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE_S)
        os.close(read_end)
        with os.fdopen(write_end, "wb") as pipe:
            pickle.dump(run(case), pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        told = pipe.read()
    status = os.waitpid(child, 0)[1]
    if told:
        return pickle.loads(told)
    died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "no answer"
    return Outcome([], died=died)


def run_all(cases: list[Case], environment: dict[str, str] | None = None) -> dict[str, tuple]:
    """(stock, Tenon) by name. One fresh process makes the children: this one may have threads."""
    done = subprocess.run(
        [sys.executable, Path(__file__)],
        input=pickle.dumps([vars(case) for case in cases]),
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        check=True,
    )
    answers = pickle.loads(done.stdout)
    return {name: (Outcome(**stock), Outcome(**tenon)) for name, (stock, tenon) in answers.items()}


def main() -> None:
    # What libraries print must not end up in the answer.
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers = {}
    for told in pickle.load(sys.stdin.buffer):
        case = Case(**told)
        outcomes = in_child(run_stock, case), in_child(run_tenon, case)
        answers[case.name] = tuple(vars(outcome) for outcome in outcomes)
    with answer_to:
        pickle.dump(answers, answer_to)


if __name__ == "__main__":
    main()
