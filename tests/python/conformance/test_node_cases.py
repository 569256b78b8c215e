"""ONNX's backend node cases with Tenon in front of the CPU provider.

Nothing that stock ONNX Runtime passes may fail, and what consists of Tenon's own operators
is claimed whole and passes, whether stock ONNX Runtime can run it or not.
"""

import pytest

from . import outcome
from .node_cases import all_cases, family_of

pytestmark = pytest.mark.plugin


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_node_case(case):
    stock = outcome.on_stock(case)
    ours = outcome.on_tenon(case)
    if stock.state == outcome.PASSED:
        assert ours.state == outcome.PASSED, ours.text
    family = family_of(case.model)
    if family is None or stock.state == outcome.UNREACHABLE:
        return
    assert ours.state == outcome.PASSED, f"{family}: {ours.text}"
    assert ours.whole, f"{family}: {ours.report.left_out}"
