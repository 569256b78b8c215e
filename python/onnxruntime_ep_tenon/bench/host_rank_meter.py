"""Times steps of a decoder in one process, which may be one of several ranks, when it is told to.

python -m onnxruntime_ep_tenon.bench.host_rank_meter JSON, with what Metered has. Each line on
standard input is [case, runs]; the answer is a line with the seconds of each Run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..genai_folder import GenaiFolder
from ..generation import TokenLoop
from ..kv_heads import local_kv_heads
from ..provider_sessions import session_options
from ..session import create_session
from .measure import timed

_ROOM = 64  # positions of the cache behind the past


@dataclass(frozen=True)
class Metered:
    folder: str  # of the decoder
    exchange: str  # a model of the decoder's collectives alone; empty: one process
    threads: int
    past: int  # tokens before the step
    prompt: int  # tokens
    hidden: int
    options: dict[str, str]  # of the provider


def steps_of(plan: Metered) -> dict[str, Callable[[], object]]:
    def opened(model):
        return create_session(model, "cpu", session_options(plan.threads), **plan.options)

    folder = GenaiFolder.load(plan.folder)
    session = opened(folder.model)
    steps = {"decode": _step(session, folder, plan.past, 1)}
    steps["prompt"] = _step(session, folder, 0, plan.prompt)
    if plan.exchange:
        exchange = opened(plan.exchange)
        for name, rows in (("decode", 1), ("prompt", plan.prompt)):
            feeds = {"x": np.zeros((rows, plan.hidden), np.float32)}
            steps[f"{name} exchange"] = lambda feeds=feeds: exchange.run(None, feeds)
    return steps


def _step(session, folder: GenaiFolder, past: int, count: int) -> Callable[[], object]:
    """The same step again and again: what it writes behind the past is written anew."""
    length = past + max(count, _ROOM)
    loop = TokenLoop(session, folder, 1, length, share_cache=True)
    name, heads = next(iter(local_kv_heads(session).items()))
    size = next(value.shape[3] for value in session.get_inputs() if value.name == name)
    random = np.random.default_rng(1)
    loop.assume(past, random.standard_normal((1, heads, length, size)).astype(np.float32))
    binding, outputs = loop.bound_step(random.integers(1, 64, (1, count)))

    def step(kept=(loop, outputs)) -> None:  # a binding knows addresses only
        session.run_with_iobinding(binding)

    return step


def main() -> None:
    plan = Metered(**json.loads(sys.argv[1]))
    steps = steps_of(plan)
    print(json.dumps(sorted(steps)), flush=True)
    for line in sys.stdin:
        case, runs = json.loads(line)
        print(json.dumps([timed(steps[case]) for _ in range(runs)]), flush=True)


def write_exchange(path: Path, calls: int) -> None:
    """A model of so many sums over ranks, one after the other."""
    import onnx
    from onnx import TensorProto, helper

    names = [*(f"v{i}" for i in range(calls)), "y"]
    nodes = [helper.make_node("Identity", ["x"], [names[0]])] + [
        helper.make_node("AllReduce", [a], [b], domain="com.microsoft")
        for a, b in zip(names[:-1], names[1:], strict=True)
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", "hidden"]) for n in "xy")
    graph = helper.make_graph(nodes, "exchange", [x], [y])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)


if __name__ == "__main__":
    main()
