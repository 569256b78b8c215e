"""Runs node cases in worker processes; a worker that dies or hangs is replaced."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

WORKER = Path(__file__).with_name("worker.py")
SECONDS_PER_CASE = 60


class Worker:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, name: str) -> dict | None:
        """The worker's answer, or None when it died or ran past its time."""
        try:
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS_PER_CASE)
        line = self.process.stdout.readline() if ready else ""
        return json.loads(line) if line else None

    def end(self) -> str:
        """Stops the worker and says how it was found."""
        code = self.process.poll()
        self.process.kill()
        self.process.wait()
        return f"no answer in {SECONDS_PER_CASE} s" if code is None else f"exit status {code}"


def judge_all(names: list[str]) -> dict[str, dict]:
    """The outcome of each case by name; one worker per core."""
    queue: SimpleQueue[str] = SimpleQueue()
    for name in names:
        queue.put(name)
    results: dict[str, dict] = {}

    def work() -> None:
        worker = Worker()
        while True:
            try:
                name = queue.get_nowait()
            except Empty:
                break
            answer = worker.ask(name)
            if answer is None:
                # Dead workers answer with an end of file before their status can be read.
                try:
                    worker.process.wait(timeout=1)
                except subprocess.TimeoutExpired:
                    pass
                answer = crashed(name, worker.end())
                worker = Worker()
            results[name] = answer
        worker.end()

    count = min(os.cpu_count() or 1, len(names)) or 1
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(work) for _ in range(count)]:
            future.result()
    return results


def crashed(name: str, how: str) -> dict:
    return {
        "name": name,
        "family": None,
        "stock": "unknown",
        "stock_text": "",
        "tenon": "crashed",
        "text": f"the process ended: {how}",
        "nodes": 0,
        "claimed": 0,
        "left_out": [],
    }
