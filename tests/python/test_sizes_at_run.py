"""Sizes at Run are checked, declared shapes are not believed: stock's results, or its refusal.

The models are in size_cases.py, declared_cases.py, empty_cases.py and form_cases.py; each runs in a
process of its own, as guarded_runs.py says.
"""

import declared_cases  # noqa: F401 - each adds to CASES
import empty_cases  # noqa: F401
import form_cases  # noqa: F401
import numpy as np
import pytest
import size_cases  # noqa: F401
from conftest import runtime_at_least
from guarded_runs import run_all
from size_models import ALLOWED_ERRORS, ALLOWED_RESULTS, CASES, LEFT_TO_STOCK

pytestmark = pytest.mark.plugin


@pytest.fixture(scope="module")
def outcomes():
    return run_all(list(CASES.values()))


def test_guarded_temporaries_change_nothing(outcomes):
    """Every buffer of ours ends at an unreadable page, too."""
    some = [CASES[name] for name in list(CASES)[::4]]
    guarded = run_all(some, {"TENON_GUARD_PAGES": "1"})
    for made in some:
        plain, told = outcomes[made.name][1], guarded[made.name][1]
        assert not told.died, f"{made.name}: {told.died}"
        for expected, got in zip(plain.runs, told.runs, strict=True):
            assert is_error(expected) == is_error(got), made.name
            if not is_error(expected):
                for one, other in zip(expected, got, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=made.name)


def is_error(run) -> bool:
    return isinstance(run, str)


@pytest.mark.parametrize("name", CASES)
def test_as_stock(outcomes, name):
    stock, tenon = outcomes[name]
    assert not tenon.died, tenon.died
    if stock.died and not runtime_at_least("1.31"):
        pytest.skip(f"this stock runtime dies of it: {stock.died}")
    assert not stock.died, f"stock: {stock.died}"
    for expected, ours in zip(stock.runs, tenon.runs, strict=True):
        if is_error(expected):
            assert is_error(ours) or name in ALLOWED_RESULTS, f"stock says {expected}"
        elif is_error(ours):
            assert name in ALLOWED_ERRORS, ours
        else:
            for wanted, got in zip(expected, ours, strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_claimed_or_left_to_stock(outcomes, name):
    """Otherwise stock would be compared with itself."""
    tenon = outcomes[name][1]
    assert (tenon.claimed == 0) == (name in LEFT_TO_STOCK), f"{tenon.claimed} nodes"


@pytest.mark.parametrize(
    "name", [n for n in CASES if n not in LEFT_TO_STOCK and not CASES[n].bound]
)
def test_an_error_names_the_node(outcomes, name):
    if name in LEFT_TO_STOCK or CASES[name].bound:
        return  # the error is the runtime's own
    for run in outcomes[name][1].runs:
        if is_error(run) and "Tenon" in run:
            assert "the_" in run or "input '" in run, run
