"""Attention over caches, lengths, heads and masks that do not fit: an error, or what is defined.

A length beyond the cache counts as the cache's own; one below the new tokens leaves them at the
cache's beginning. Whatever it is, nothing outside of a tensor is written.
"""

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from attention_inputs import CACHE, Step, check_rows, grouped_attention
from onnxruntime_ep_tenon.library import version_tuple
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import run_script

pytestmark = pytest.mark.plugin

LARGEST, SMALLEST = 2**31 - 1, -(2**31)


def quiet():
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return settings


@pytest.fixture(scope="module")
def session():
    options = {"claim": "all", "require_full_claim": True}
    return tenon.create_session(grouped_attention(), "cpu", quiet(), **options)


@pytest.mark.parametrize("shared", ["kv", "k", "v", ""])
@pytest.mark.parametrize("tokens", [1, 3])
def test_caches_that_are_shared_whole_half_or_not(session, shared, tokens):
    step = Step([CACHE - 1, 6], tokens, shared=shared)
    check_rows(step, step.run(session), (0, 1))


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("length", [CACHE, CACHE + 100, -1, -5, LARGEST, SMALLEST, LARGEST - 1])
def test_lengths_out_of_range_harm_no_other_row(session, length, tokens):
    step = Step([length, 6], tokens)
    check_rows(step, step.run(session), (1,))


@pytest.mark.parametrize("length", [CACHE, CACHE + 100])
def test_a_length_beyond_the_cache_is_the_caches_own(session, length):
    wrong, right = Step([length, 6]), Step([CACHE - 1, 6])
    found = wrong.run(session)
    for name, value in right.run(session).items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("length", [CACHE, CACHE + 7, LARGEST - 1])
def test_with_rotary_a_length_without_angles_is_an_error(length):
    model = grouped_attention(rotary=True)
    session = tenon.create_session(model, "cpu", quiet(), claim="all", require_full_claim=True)
    Step([CACHE - 1, 6]).run(session)
    with pytest.raises(Exception, match="GroupQueryAttention_0"):
        Step([length, 6]).run(session)


@pytest.mark.parametrize(("cache", "tokens"), [(16, 20), (0, 4), (3, 4)])
def test_a_cache_without_room_for_the_new_tokens_is_an_error(session, cache, tokens):
    step = Step([tokens - 1] * 2, tokens, cache)
    with pytest.raises(Exception, match=rf"{tokens} \(S\) and {cache} \(P\) do not fit"):
        step.run(session)


@pytest.mark.parametrize("total", [LARGEST, SMALLEST, -3])
def test_a_total_out_of_range_changes_nothing(session, total):
    step = Step([CACHE - 1, 6], total=total)
    check_rows(step, step.run(session), (0, 1))


@pytest.mark.parametrize("shift", [1, 32, -32, 16 * 32])
def test_past_and_present_that_overlap_are_refused(session, shift):
    with pytest.raises(Exception, match="GroupQueryAttention_0.*share part of their memory"):
        Step([CACHE - 1, 6], shift=shift).run(session)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 4, "kv_heads": 3},
        {"heads": 2, "kv_heads": 4},
        {"heads": 4, "kv_heads": 0},
        {"heads": 0, "kv_heads": 2},
        {"key_width": 48},
    ],
    ids=str,
)
def test_heads_that_do_not_divide_are_refused_or_left_to_the_runtime(wrong):
    """Never claimed; what the runtime then says is its own."""
    try:
        _, report = session_with_report(grouped_attention(**wrong), "cpu", quiet(), claim="all")
    except Exception as error:
        assert str(error)
        return
    assert report.fusions == []
    (left,) = report.left_out
    assert left["reason"]


def masked(mask_shape):
    g = GraphBuilder("masked", 23)
    values = [
        g.input(name, FLOAT, ["B", 2, length, 16])
        for name, length in zip("qkv", "STT", strict=True)
    ]
    mask = g.input("mask", FLOAT, mask_shape)
    g.node("Attention", [*values, mask], outputs=["y"])
    g.output("y", FLOAT, ["B", 2, "S", 16])
    return g.model(check=False)


def masked_inputs(mask_shape):
    random = np.random.default_rng(0)
    shapes = {"q": (2, 2, 5, 16), "k": (2, 2, 7, 16), "v": (2, 2, 7, 16), "mask": mask_shape}
    return {n: random.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


@pytest.mark.parametrize(
    "shape", [(5, 6), (5, 8), (4, 7), (3, 1, 5, 7), (2, 3, 5, 7), (2, 2, 5, 0), (6, 1)], ids=str
)
def test_masks_of_the_wrong_shape_are_errors(shape):
    symbols = [f"m{axis}" for axis in range(len(shape))]
    session = tenon.create_session(masked(symbols), "cpu", quiet(), claim="all")
    good = masked_inputs((5, 7) if len(shape) == 2 else (2, 1, 5, 7))
    assert np.isfinite(session.run(None, good)[0]).all()
    with pytest.raises(Exception, match=r"(?i)(broadcast|mask|attention|shape)"):
        session.run(None, masked_inputs(shape))


ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    import onnxruntime_ep_tenon as tenon
    from attention_inputs import CACHE, Step, check_rows, grouped_attention

    session = tenon.create_session(grouped_attention(), "gpu", claim="all", require_full_claim=True)
    for length in (6, CACHE, CACHE + 100, -1, -5, 2**31 - 1, -(2**31)):
        for tokens in (1, 3):
            for shared in ("kv", "k", ""):
                step = Step([length, 6], tokens, shared=shared)
                results = step.run(session)
                check_rows(step, results, (0, 1) if length == 6 else (1,))
    for step in (Step([19, 19], 20), Step([3, 3], 4, cache=0), Step([15, 6], shift=32)):
        try:
            step.run(session)
        except Exception as error:
            print("share part" in str(error) or "do not fit" in str(error))
"""


@pytest.mark.skipif(
    version_tuple(onnxruntime.__version__) < (1, 31),
    reason="1.24 hands a plugin copies of what is bound on a GPU: nothing is shared",
)
def test_lengths_and_caches_on_a_gpu_that_the_stub_driver_plays(request):
    text = ON_A_GPU.format(folder=str(request.path.parent))
    assert run_script(text).splitlines() == ["True"] * 3
