"""Times steps of a decoder in one process, which may be one of several ranks, when it is told to.

python -m onnxruntime_ep_tenon.bench.host_rank_meter JSON, with what Metered has. Each line on
standard input is [case, runs]; the answer is a line with the seconds of each Run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..genai_folder import GenaiFolder
from ..generation import TokenLoop
from ..kv_heads import local_kv_heads
from ..provider_sessions import session_options
from ..report import Report
from ..session import create_session
from .measure import timed

_ROOM = 64  # positions of the cache behind the past


@dataclass(frozen=True)
class Metered:
    folder: str  # of the decoder
    ranks: int  # 1: a process alone
    threads: int
    past: int  # tokens before the step
    prompt: int  # tokens
    options: dict[str, str]  # of the provider; with ranks a report_file, too


@dataclass(frozen=True)
class Exchange:
    """A collective of the decoder: of so many elements for a token, of all ranks together."""

    op: str
    columns: int


def steps_of(plan: Metered) -> tuple[dict[str, Callable[[], object]], list[Exchange]]:
    """What can be run, and the collectives of a step."""
    folder = GenaiFolder.load(plan.folder)
    session = _opened(plan, folder.model)
    steps = {"decode": _step(session, folder, plan.past, 1)}
    steps["prompt"] = _step(session, folder, 0, plan.prompt)
    if plan.ranks == 1:
        return steps, []
    exchanges = _exchanges(Path(plan.options["report_file"]))
    alone = _opened(plan, _exchange_model(exchanges, plan.ranks))
    for name, rows in (("decode", 1), ("prompt", plan.prompt)):
        feeds = {
            value.name: np.zeros((rows, value.shape[1]), np.float32) for value in alone.get_inputs()
        }
        steps[f"{name} exchange"] = lambda feeds=feeds: alone.run(None, feeds)
    return steps, exchanges


def _opened(plan: Metered, model):
    return create_session(model, "cpu", session_options(plan.threads), **plan.options)


def _exchanges(report: Path) -> list[Exchange]:
    partitions = Report.load(report).partitions
    found = [e for part in partitions if part["sharding"] for e in part["sharding"]["collectives"]]
    return [Exchange(e["op"], int(e["elements"].split("*")[0])) for e in found]


def _step(session, folder: GenaiFolder, past: int, count: int) -> Callable[[], object]:
    """The same step again and again: what it writes behind the past is written anew."""
    length = past + max(count, _ROOM)
    loop = TokenLoop(session, folder, 1, length, share_cache=True)
    heads = next(iter(local_kv_heads(session).values()))
    random = np.random.default_rng(1)
    caches = random.standard_normal((1, heads, length, folder.head_size)).astype(np.float32)
    loop.assume(past, caches)
    binding, outputs = loop.bound_step(random.integers(1, 64, (1, count)))

    def step(kept=(loop, outputs)) -> None:  # a binding knows addresses only
        session.run_with_iobinding(binding)

    return step


def _exchange_model(exchanges: list[Exchange], ranks: int):
    """The collectives alone: sums of one size in a chain, each gather by itself."""
    from onnx import TensorProto, helper

    inputs, nodes, outputs, last = {}, [], [], {}
    for number, exchange in enumerate(exchanges):
        gathers = exchange.op == "AllGather"
        columns = exchange.columns // ranks if gathers else exchange.columns
        x, y = f"{exchange.op}_{columns}", f"v{number}"
        inputs[x] = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["rows", columns])
        given = {"axis": 0, "group_size": ranks} if gathers else {}
        source = x if gathers else last.get(x, x)
        nodes.append(helper.make_node(exchange.op, [source], [y], domain="com.microsoft", **given))
        if gathers:
            outputs.append(y)
        else:
            last[x] = y
    made = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in [*outputs, *last.values()]
    ]
    graph = helper.make_graph(nodes, "exchange", list(inputs.values()), made)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def main() -> None:
    plan = Metered(**json.loads(sys.argv[1]))
    steps, exchanges = steps_of(plan)
    print(json.dumps([asdict(exchange) for exchange in exchanges]), flush=True)
    for line in sys.stdin:
        case, runs = json.loads(line)
        print(json.dumps([timed(steps[case]) for _ in range(runs)]), flush=True)


if __name__ == "__main__":
    main()
