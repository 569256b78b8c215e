"""ONNX's backend node cases with Tenon in front of the CPU provider.

Nothing that stock ONNX Runtime passes may fail, and what consists of Tenon's own operators
is claimed whole and passes, whether stock ONNX Runtime can run it or not.
"""

import pytest

from .judge import judge_all
from .node_cases import all_cases
from .outcome import PASSED, UNREACHABLE

pytestmark = pytest.mark.plugin


@pytest.fixture(scope="module")
def outcomes(request):
    """All selected cases at once, in workers: the tests below only read their verdicts."""
    mine = [item for item in request.session.items if item.module is request.module]
    return judge_all([item.callspec.params["case"].name for item in mine])


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
