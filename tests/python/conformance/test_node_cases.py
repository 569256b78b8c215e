"""ONNX's backend node cases with Tenon in front of the CPU provider.

Nothing that stock ONNX Runtime passes may fail, and what consists of Tenon's own operators
is claimed whole and passes, whether stock ONNX Runtime can run it or not.
"""

import pytest
from conftest import runtime_at_least

from .judge import judge_all
from .node_cases import all_cases, newer_attention_cases
from .outcome import PASSED, UNREACHABLE

pytestmark = pytest.mark.plugin

# Of onnx 1.23.2's 186; no stock runtime loads Attention 25's windows, of which there are 11.
LOADABLE_ATTENTION_CASES = 175


@pytest.fixture(scope="module")
def outcomes(request):
    """All selected cases at once, in workers: the tests below only read their verdicts."""
    mine = [item for item in request.session.items if item.module is request.module]
    chosen = [item.callspec.params["case"].name for item in mine if hasattr(item, "callspec")]
    return judge_all(chosen)


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_node_case(case, outcomes):
    result = outcomes[case.name]
    assert result["tenon"] != "crashed", result["text"]
    if result["stock"] == PASSED:
        assert result["tenon"] == PASSED, result["text"]
    if result["family"] is None or result["stock"] == UNREACHABLE:
        return
    assert result["tenon"] == PASSED, f"{result['family']}: {result['text']}"
    assert result["claimed"] == result["nodes"], f"{result['family']}: {result['left_out']}"


def test_all_attention_cases_that_load_are_claimed_whole_and_pass(outcomes):
    names = {case.name for case in newer_attention_cases()}
    if not names or not names <= outcomes.keys():
        pytest.skip("not all of them were chosen, or the newer onnx is absent")
    if not runtime_at_least("1.31"):
        pytest.skip("older runtimes load fewer of them")
    # Three that stock onnxruntime cannot type are typed once Tenon is asked.
    judged = [
        result
        for result in (outcomes[name] for name in names)
        if result["stock"] != UNREACHABLE or result["tenon"] == PASSED
    ]
    failed = [result["name"] for result in judged if result["tenon"] != PASSED]
    parted = [result["name"] for result in judged if result["claimed"] != result["nodes"]]
    assert (failed, parted) == ([], [])
    assert len(judged) == LOADABLE_ATTENTION_CASES
