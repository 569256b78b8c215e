"""Other people's models, everything claimed that can be: no crash, the stock provider's results."""

from __future__ import annotations

import pytest

from . import outcome
from .campaign import device
from .other_models import all_models
from .plugin import needs_plugin
from .pool import Answer, judge_all

SECONDS_PER_MODEL = 120
MODELS = all_models()
WORKERS = 2

# Where a result may differ from the stock provider's, and why.
ALLOWED = {
    "node/test_attention_4d_diff_heads_mask4d_padded_kv": (
        "a mask shorter than the keys: ONNX hides the rest, and so do we; stock refuses"
    ),
}
# Whole networks: they must run, and Tenon must run parts of them.
NETWORKS = ("light", "magika", "rapidocr-onnxruntime", "silero-vad")


@pytest.fixture(scope="module")
def answers(request) -> dict[str, Answer]:
    """All chosen models at once, in workers: the tests below only read their verdicts."""
    mine = [item for item in request.session.items if item.module is request.module]
    chosen = {item.callspec.params["number"] for item in mine if hasattr(item, "callspec")}
    cpu = device()

    def judge(number: int, entering_tenon) -> dict:
        case = MODELS[number].case(number)
        if case is None:
            return outcome.Outcome(outcome.UNJUDGED, "no plain tensors, or random").as_dict()
        return outcome.judge_case(case, cpu, entering_tenon).as_dict()

    found = judge_all(iter(sorted(chosen)), judge, WORKERS, SECONDS_PER_MODEL)
    return {answer.case: answer for answer in found}


@needs_plugin
@pytest.mark.parametrize("number", range(len(MODELS)), ids=[model.name for model in MODELS])
def test_model(number, answers):
    answer = answers[number]
    assert answer.result is not None or not answer.in_tenon, f"with Tenon: {answer.how}"
    if answer.result is None:
        pytest.skip(f"the stock provider: {answer.how}")
    state, text = answer.result["state"], answer.result["text"]
    if MODELS[number].name in ALLOWED:
        return
    assert state in (
        outcome.SAME, outcome.BOTH_REFUSE, outcome.UNJUDGED, outcome.STOCK_IS_OFF,
    ), f"{state} in Run {answer.result['run']}: {text}"  # fmt: skip
    if MODELS[number].name.startswith(NETWORKS):
        assert state in (outcome.SAME, outcome.STOCK_IS_OFF), text
        assert answer.result["claimed"], "no part of it was claimed"


def test_there_are_models():
    groups = {model.name.split("/")[0] for model in MODELS}
    assert {"light", "node", "pytorch-converted", "pytorch-operator", "simple"} <= groups
