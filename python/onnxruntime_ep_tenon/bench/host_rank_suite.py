"""A decoder on two host processes of one thread each, against one process of two threads.

The sides take turns, a few Runs each, so that a slow spell of the machine hits both. Beside them
stand the collectives of a step alone: as many sums and gathers of as many bytes, in one session.
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

from .. import console
from .decoder_meter import DecoderPlan, write_model
from .decoder_suite import folder_for, plan_of
from .host_rank_meter import Exchange, Metered
from .rows import Row, print_rows, write_rows

_RANKS = 2
_PROMPT = 64
_BARS = {"decode": 1.3, "prompt": 1.15}
_RUNS = {"decode": 20, "prompt": 3}  # in a turn
_BYTES = 4  # of an element


class Side:
    """Processes that run the same steps together, and wait while it is not their turn."""

    def __init__(self, plans: list[Metered]):
        environment = {**os.environ, "TENON_COLLECTIVE_OPS": "1"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.host_rank_meter", json.dumps(asdict(plan))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for plan in plans
        ]  # fmt: skip
        ready = [self._answer(process) for process in self._processes]
        self.exchanges = [Exchange(**one) for one in ready[0]]

    def run(self, case: str, runs: int) -> list[float]:
        """Seconds of each Run, of the slower rank."""
        for process in self._processes:
            process.stdin.write(json.dumps([case, runs]) + "\n")
            process.stdin.flush()
        return [max(times) for times in zip(*map(self._answer, self._processes), strict=True)]

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait(timeout=60)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @staticmethod
    def _answer(process: subprocess.Popen):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a measuring process ended with {process.wait(timeout=60)}")
        return json.loads(line)


def run_host_rank_suite(args) -> int:
    plan = replace(plan_of(args), formats=("int4",))
    if plan.on_gpu:
        raise ValueError("--suite ranks measures processes on the host; give --device cpu")
    with tempfile.TemporaryDirectory(prefix="tenon-", dir=folder_for(plan, "int4")) as folder:
        rows = _measure(plan, Path(folder))
    print_rows(rows, f"{plan.preset} INT4, {_RANKS} processes of 1 thread")
    if args.out:
        result = {"date": time.strftime("%Y-%m-%d"), "rows": [row.as_json() for row in rows]}
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    return 0


def _measure(plan: DecoderPlan, folder: Path) -> list[Row]:
    from ..models.rank_files import write_rank_file

    console.say(f"writing {plan.preset} ...")
    whole = write_model(plan, "int4", folder / "whole")
    write_rank_file(whole / "model.onnx", folder / "ranks", link=True)
    alone = Metered(str(whole), 1, _RANKS, plan.past, _PROMPT, {})
    address = f"127.0.0.1:{_free_port()}"
    ranks = [
        replace(alone, folder=str(folder / "ranks"), ranks=_RANKS, threads=1,
                options={"tensor_parallel_size": str(_RANKS), "tensor_parallel_rank": str(rank),
                         "collective_address": address,
                         "report_file": str(folder / f"report.{rank}.json")})
        for rank in range(_RANKS)
    ]  # fmt: skip
    sides: list[Side] = []
    try:
        console.say("opening sessions ...")
        sides += [Side([alone]), Side(ranks)]
        rows = []
        for case, most in _BARS.items():
            console.say(f"{case} ...")
            rows += _rows_of(case, most, sides, plan)
        for side in sides:
            side.close()
        return rows
    finally:
        for side in sides:
            side.end()


def _rows_of(case: str, most: float, sides: list[Side], plan: DecoderPlan) -> list[Row]:
    alone, ranks = sides
    calls = {
        "alone": (alone, case),
        "ranks": (ranks, case),
        "exchange": (ranks, f"{case} exchange"),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for side, step in calls.values():
        side.run(step, 2)
    begin = time.perf_counter()
    while time.perf_counter() - begin < plan.seconds * len(calls) or len(times["alone"]) < 5:
        for name, (side, step) in calls.items():
            side.run(step, 1)  # wakes it
            times[name] += side.run(step, _RUNS[case])
    median = {name: statistics.median(values) for name, values in times.items()}
    tokens = 1 if case == "decode" else _PROMPT
    label = f"one token after {plan.past}" if case == "decode" else f"a prompt of {_PROMPT}"
    met = median["ranks"] <= most * median["alone"]
    return [
        Row(f"{label}, {_RANKS} ranks", median["ranks"], median["alone"], f"<= {most}", met,
            f"other: 1 process of {_RANKS} threads"),
        Row(f"{label}, its collectives alone", median["exchange"], math.nan, "", None,
            _exchange_text(ranks.exchanges, tokens)),
    ]  # fmt: skip


def _exchange_text(exchanges: list[Exchange], tokens: int) -> str:
    """How many of each kind and size: '49 AllReduce of 3584 bytes'."""
    return ", ".join(
        f"{count} {exchange.op} of {exchange.columns * tokens * _BYTES} bytes"
        for exchange, count in Counter(exchanges).items()
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
