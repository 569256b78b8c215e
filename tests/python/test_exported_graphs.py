"""Graphs of other people's exporters: the stock provider's results, and no more left to others.

All that scripts/export_models makes takes `tenon bench --suite exported`; these are a few of them
as text, with weights drawn anew. A change that claims more of one lowers the numbers
in its file (TENON_UPDATE_GOLDEN=1).
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

import onnxruntime
import pytest
from conftest import runtime_at_least
from graph_text import GraphText, read_text, write_text
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.inputs import make_inputs
from onnxruntime_ep_tenon.models import tolerances, validate
from onnxruntime_ep_tenon.provider_sessions import session_options
from onnxruntime_ep_tenon.report import SessionError, session_with_report

FOLDER = Path(__file__).with_name("exported")
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
MOST_BYTES = 20_000
# What an older runtime's own provider has no kernel for.
RUNS_SINCE = {"flux.dynamo18": ("1.31.0", "Sin and Cos of float64")}
pytestmark = pytest.mark.parametrize("name", NAMES)


@cache
def graph(name: str) -> GraphText:
    return read_text((FOLDER / f"{name}.txt").read_text())


@cache
def expected(name: str):
    """Inputs, and what the stock provider makes of them."""
    version, ops = RUNS_SINCE.get(name, ("0", ""))
    if not runtime_at_least(version):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no {ops}")
    session = onnxruntime.InferenceSession(
        graph(name).model.SerializeToString(), session_options(1),
        providers=["CPUExecutionProvider"],
    )  # fmt: skip
    feed = make_inputs(session, graph(name).sizes).arrays
    return feed, tensors.run(session, feed)


def left_of(report) -> Counter:
    return Counter(node["op"] for node in report.left_out)


def write_left(name: str, left: Counter) -> None:
    """Behind the first line, which says what the graph is."""
    file = FOLDER / f"{name}.txt"
    first, *lines = file.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("left ")]
    counts = " ".join(f"{op} {count}" for op, count in sorted(left.items()))
    file.write_text("\n".join([first, *([f"left {counts}"] if left else []), *kept]) + "\n")


@pytest.mark.plugin
@pytest.mark.parametrize("options", [{}, {"claim": "all"}], ids=["gainful", "all"])
def test_results_are_those_of_the_stock_provider(name, options):
    model = graph(name).model
    session, _ = session_with_report(model, "cpu", session_options(1), **options)
    feed, references = expected(name)
    names = [output.name for output in model.graph.output]
    bound = tolerances.against_a_provider(model)
    verdicts = validate.compare_rounded(names, tensors.run(session, feed), references, bound)
    assert [verdict.problem for verdict in verdicts if not verdict.ok] == []


@pytest.mark.plugin
def test_nothing_more_is_left_to_others_on_a_gpu(name):
    options = {"target_arch": "sm_90a", "cache_dir": "", "claim": "all"}
    try:
        _, report = session_with_report(graph(name).model, "cpu", session_options(1), **options)
    except SessionError as error:  # what is left has no kernel in an older runtime
        report = error.report
    left = left_of(report)
    if os.environ.get("TENON_UPDATE_GOLDEN"):
        return write_left(name, left)
    more = left - graph(name).left
    reasons = [reason for reason in report.reasons() if reason[0] in more]
    assert not more, f"left to others, and were not before: {reasons}"


def test_the_text_is_short_and_comes_back(name):
    text = (FOLDER / f"{name}.txt").read_text()
    assert len(text) < MOST_BYTES
    again = read_text(write_text(read_text(text).model)).model
    assert [n.op_type for n in again.graph.node] == [
        n.op_type for n in graph(name).model.graph.node
    ]
