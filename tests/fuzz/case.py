"""A fuzzed case: a model, the inputs of its Runs, and how its session is made."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnxruntime
from onnx import helper

from . import families
from .declarations import Declared, value_infos
from .graph import Graph, TooLarge, element_type

OPSETS = (13, 14, 15, 16, 17, 18, 18, 19, 20, 21, 21, 22, 23, 23, 24)
# Beyond this a case says nothing more and costs seconds.
MOST_BYTES = 8 << 20


@dataclass
class Case:
    seed: int
    number: int
    family: str
    model: bytes
    feeds: list[dict[str, np.ndarray]]
    options: dict[str, str]
    optimised: bool  # by the runtime, before and after providers are asked
    depth: int  # of the graph, at most: roundings add up along it
    stale: bool = False  # values are declared with sizes that a Run may contradict
    notes: list[str] = field(default_factory=list)


def make_case(
    seed: int, number: int, only: str = "", honest: bool = False, probing: bool = True
) -> Case:
    """Everything follows from the two numbers; sizes that came out too large are drawn again.

    Without `probing` stock is not asked for the shapes that stale declarations are made from.
    """
    for attempt in range(20):
        try:
            return _draw(seed, number, attempt, only, honest, probing)
        except TooLarge:
            continue
    raise TooLarge(f"seed {seed}, case {number}")


def _draw(seed: int, number: int, attempt: int, only: str, honest: bool, probing: bool) -> Case:
    random = np.random.default_rng([seed, number, attempt])
    g = Graph(random)
    g.opset = g.pick(OPSETS)
    g.wildness = g.pick((0.0, 0.0, 0.03, 0.1, 0.3))
    g.loose = g.chance(0.3)
    family = families.write_random(g, only)
    g.drop_dead_nodes()
    declared = Declared.honest(g) if honest else Declared.draw(g)
    first = _checked(g.feed())
    model = g.model(value_infos(g, declared, lambda: _true_shapes(g, first) if probing else {}))
    feeds = [first, *_later_feeds(g, declared)]
    if g.chance(g.wildness):
        feeds[0] = _stretched(g, feeds[0])
    feeds = [_without_defaults(g, feed) for feed in feeds]
    options = {} if g.chance(0.1) else {"claim": "all"}
    notes = [f"inputs {declared.inputs}, outputs {declared.outputs}, inner {declared.inner}"]
    return Case(
        seed,
        number,
        family,
        model.SerializeToString(),
        feeds,
        options,
        g.chance(0.5),
        len(g.nodes),
        declared.needs_shapes,
        notes,
    )


def _checked(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if sum(value.nbytes for value in feed.values()) > MOST_BYTES:
        raise TooLarge
    return feed


def _later_feeds(g: Graph, declared: Declared) -> list[dict[str, np.ndarray]]:
    """Runs after the first: other contents, other sizes, or sizes that do not fit together."""
    feeds = []
    for _ in range(g.pick((0, 1, 1, 2))):
        manner = g.pick(("contents", "sizes", "sizes", "misfit"))
        before = dict(g.sizes)
        if manner == "sizes" and not declared.fixed:
            for label in g.sizes:
                if g.chance(0.6):
                    g.sizes[label] = g.size()
        feed = g.feed()
        g.sizes.update(before)
        if manner == "misfit":
            feed = _stretched(g, feed)
        if sum(value.nbytes for value in feed.values()) <= MOST_BYTES:
            feeds.append(feed)
    return feeds


def _stretched(g: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One size of one input is another; the rest of the graph does not know."""
    names = [name for name, value in feed.items() if value.ndim]
    if not names:
        return feed
    name = g.pick(names)
    shape = list(feed[name].shape)
    at = g.between(0, len(shape) - 1)
    shape[at] = g.pick((0, 1, shape[at] + 1, shape[at] * 2, max(shape[at] - 1, 0), shape[at] + 300))
    other = np.resize(feed[name], shape) if feed[name].size else np.zeros(shape, feed[name].dtype)
    return {**feed, name: other.astype(feed[name].dtype)}


def _without_defaults(g: Graph, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """An input with a default is fed now and then."""
    has_default = {x.name for x in g.inputs if x.default is not None}
    return {k: v for k, v in feed.items() if k not in has_default or g.chance(0.6)}


def _true_shapes(g: Graph, feed: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """What the stock provider gives every value, where it runs the graph."""
    names = [*dict(g.outputs), *g.inner]
    types = {**dict(g.outputs), **g.inner}
    inputs = [
        helper.make_tensor_value_info(x.name, element_type(x.dtype), None)
        for x in g.inputs
        if x.default is None
    ]
    outputs = [helper.make_tensor_value_info(n, element_type(types[n]), None) for n in names]
    model = g.model((inputs, outputs, []))
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), session_options(False), providers=["CPUExecutionProvider"]
        )
        plain = {x.name: feed[x.name] for x in g.inputs if x.default is None}
        return {n: v.shape for n, v in zip(names, session.run(names, plain), strict=True)}
    except Exception:
        return {}  # declared shapes then say nothing


def session_options(optimised: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Every output is a block of its own: what is written past it does not go unnoticed.
    options.enable_cpu_mem_arena = False
    # A product that the runtime fuses into MatMulNBits shall not round its activations to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options
