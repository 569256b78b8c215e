"""Workers that judge cases one after the other; one that dies or hangs is replaced.

Workers are forked from a process that has loaded everything and made no session, so that a new one
costs milliseconds. A worker says when the stock provider is done with a case: what dies afterwards
died with Tenon, unless an earlier case of that worker left broken memory behind. Before a worker
leaves it has the heap checked, so that what the last cases broke is seen too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

SECONDS_PER_CASE = 20
# Memory that sessions leave behind goes with its worker.
CASES_PER_WORKER = 1500
BROKEN = "the fuzzer is broken"
_EMPTY = {"state": "", "text": "", "family": "", "claimed": False, "run": -1}


@dataclass
class Answer:
    case: int
    result: dict | None  # None: the worker died or hung
    how: str = ""  # how it ended
    in_tenon: bool = False
    what: str = ""  # what the worker called the case as it entered Tenon
    before: tuple[int, ...] = ()  # what the same worker had judged, newest last
    leaving: bool = False  # all cases were answered, and then the worker died


class Worker:
    def __init__(self, judge: Callable[[int, Callable[[str], None]], dict], others: list[Worker]):
        ask_read, self._ask = os.pipe()
        self.answers, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for other in others:
                other.close()
            os.close(self._ask)
            os.close(self.answers)
            _serve(ask_read, answer_write, judge)
        os.close(ask_read)
        os.close(answer_write)
        self.case = -1
        self.since = 0.0
        self.judged: list[int] = []
        self._received = b""

    def ask(self, case: int) -> None:
        self.case, self.since, self._received = case, time.monotonic(), b""
        self.judged.append(case)
        os.write(self._ask, f"{case}\n".encode())

    def read(self) -> Answer | None:
        """An answer once it is whole."""
        data = os.read(self.answers, 1 << 16)
        self._received += data
        if not data:
            return self._ended(self._wait() or "exit")
        if not self._received.endswith(b"}\n"):
            return None
        return Answer(self.case, json.loads(self._received.splitlines()[-1]))

    def expired(self, seconds: float) -> Answer | None:
        if time.monotonic() - self.since < seconds:
            return None
        os.kill(self.pid, signal.SIGKILL)
        self._wait()
        return self._ended("hang")

    def _ended(self, how: str) -> Answer:
        lines = self._received.decode().splitlines()
        before = tuple(self.judged[:-1])
        return Answer(self.case, None, how, bool(lines), lines[0] if lines else "", before)

    def _wait(self) -> str:
        """How it ended; empty where all was well."""
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status):
            return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        return f"status {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""

    def end(self) -> Answer | None:
        """An idle worker leaves when nobody asks any more; an answer where it dies of that."""
        self.close()
        how = self._wait()
        if not how:
            return None
        return Answer(self.case, None, how, True, "", tuple(self.judged[:-1]), leaving=True)

    def close(self) -> None:
        os.close(self._ask)
        os.close(self.answers)


def _serve(asked: int, answers: int, judge) -> None:
    """A worker's whole life; it never returns to the code that forked it."""
    faulthandler.disable()  # pytest's would print a page for each time that stock dies
    status = 1
    try:
        with os.fdopen(asked) as lines:
            for line in lines:
                try:
                    result = judge(int(line), lambda what: os.write(answers, f"{what}\n".encode()))
                except Exception:
                    result = {"state": BROKEN, "text": traceback.format_exc(limit=-3)}
                result = {**_EMPTY, **result}
                os.write(answers, json.dumps(result).encode() + b"\n")
        check_heap()
        status = 0
    finally:
        os._exit(status)


def check_heap() -> None:
    """Ends the process where the allocator's lists of free blocks are broken."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    # glibc looks at a free block as it hands it out: more of each size than are cached.
    taken = [libc.malloc(size) for size in range(16, 2048, 16) for _ in range(16)]
    for block in taken:
        libc.free(block)
    libc.malloc_trim(0)


def in_child(work: Callable[[], None]) -> None:
    """Done in a process of its own, whatever becomes of it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def judge_all(
    cases: Iterator[int], judge, count: int, seconds: float = SECONDS_PER_CASE
) -> Iterator[Answer]:
    """Answers as they come, in no order; `cases` may end early."""
    workers: list[Worker] = []
    try:
        for case in islice(cases, count):
            workers.append(Worker(judge, workers))
            workers[-1].ask(case)
        while workers:
            for worker, answer in _answers(workers, seconds):
                if answer.result is None:
                    worker.close()
                    workers.remove(worker)
                yield answer
                case = next(cases, None)
                if worker not in workers:
                    pass
                elif case is None or len(worker.judged) >= CASES_PER_WORKER:
                    workers.remove(worker)
                    if (died := worker.end()) is not None:
                        yield died
                if case is None:
                    continue
                if worker not in workers:
                    worker = Worker(judge, workers)
                    workers.append(worker)
                worker.ask(case)
    finally:
        for worker in workers:
            worker.close()
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)


def _answers(workers: list[Worker], seconds: float) -> list[tuple[Worker, Answer]]:
    ready, _, _ = select.select([w.answers for w in workers], [], [], 0.5)
    found = []
    for worker in list(workers):
        answer = worker.read() if worker.answers in ready else worker.expired(seconds)
        if answer is not None:
            found.append((worker, answer))
    return found
