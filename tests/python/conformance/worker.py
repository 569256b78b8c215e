"""Judges node cases named on standard input, one line each; answers with one line of JSON each.

A process of its own, so that a crash in a kernel costs one case and not the whole run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance import outcome  # noqa: E402
from conformance.node_cases import all_cases, family_of  # noqa: E402


def judge(case) -> dict:
    stock, ours = outcome.on_stock(case), outcome.on_tenon(case)
    report = ours.report
    # Only what stock ONNX Runtime cannot load either is out of a provider's reach.
    loads = stock.state != outcome.UNREACHABLE
    state = outcome.REFUSED if loads and ours.state == outcome.UNREACHABLE else ours.state
    return {
        "name": case.name,
        "family": family_of(case.model),
        "stock": stock.state,
        "stock_text": stock.text,
        "tenon": state,
        "text": ours.text,
        "nodes": report.coverage.nodes if report else 0,
        "claimed": report.coverage.claimed if report else 0,
        "left_out": report.reasons() if report else [],
    }


def main() -> None:
    cases = {case.name: case for case in all_cases()}
    # The runtime prints to descriptor 1 and 2 as it likes: keep the answers apart from that.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(judge(cases[line.strip()])), file=answers, flush=True)


if __name__ == "__main__":
    main()
