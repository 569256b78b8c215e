"""Attention over caches, lengths, heads and masks that do not fit: an error, or what is defined.

A length beyond the cache or below one is refused by name, as the CPU provider does; one below the
new tokens leaves them at the cache's beginning. Nothing outside of a tensor is ever written.
"""

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from attention_inputs import CACHE, Step, check_rows, grouped_attention
from conftest import runtime_at_least
from onnxruntime_ep_tenon.models.builder import FLOAT, INT64, GraphBuilder
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import run_script

pytestmark = pytest.mark.plugin

CPU = "CPUExecutionProvider"
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
def test_lengths_out_of_range_are_refused_by_name_and_the_session_lives(session, length, tokens):
    with pytest.raises(Exception, match=rf"GroupQueryAttention_0.*outside \[1, {CACHE + 1}\)"):
        Step([length, 6], tokens).run(session)
    step = Step([CACHE - 1, 6], tokens)
    check_rows(step, step.run(session), (0, 1))


def test_a_length_below_the_new_tokens_harms_no_other_row(session):
    step = Step([0, 6], 3)
    check_rows(step, step.run(session), (1,))


def unpadded(length: int):
    g = GraphBuilder("unpadded", 24)
    values = [
        g.input(name, FLOAT, ["B", 2, size, 8]) for name, size in zip("qkv", "STT", strict=True)
    ]
    lengths = g.input("lengths", INT64, ["B"])
    g.node("Attention", [*values, "", "", "", lengths], outputs=["y"])
    g.output("y", FLOAT, ["B", 2, "S", 8])
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal((1, 2, 4, 8)).astype(np.float32) for n in "qkv"}
    return g.model(check=False), feeds | {"lengths": np.array([length], np.int64)}


@pytest.mark.skipif(not runtime_at_least("1.31"), reason="the runtime has no Attention of opset 24")
def test_numbers_of_unpadded_keys_out_of_range_are_refused_by_name():
    for length in (0, 3, 4):
        model, feeds = unpadded(length)
        stock = onnxruntime.InferenceSession(model.SerializeToString(), quiet(), [CPU])
        (y,) = tenon.create_session(model, "cpu", quiet(), claim="all").run(None, feeds)
        np.testing.assert_allclose(y, stock.run(None, feeds)[0], atol=1e-6)
    for length in (-1, 5, 2**40):
        model, feeds = unpadded(length)
        session = tenon.create_session(model, "cpu", quiet(), claim="all")
        with pytest.raises(Exception, match=r"Attention_0.*outside \[0, 5\)"):
            session.run(None, feeds)


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


@pytest.mark.parametrize("total", [LARGEST, SMALLEST, -3, CACHE + 1])
def test_a_total_out_of_range_is_refused_by_name(session, total):
    with pytest.raises(Exception, match=r"GroupQueryAttention_0.*length 0 is outside"):
        Step([CACHE - 1, 6], total=total).run(session)
    step = Step([CACHE - 1, 6], total=7)
    check_rows(step, step.run(session), (0, 1))


def test_a_declared_present_that_the_total_contradicts_is_refused_by_name():
    model = grouped_attention()
    for output in model.graph.output[1:]:
        output.type.tensor_type.shape.dim[2].dim_value = CACHE + 100
    session = tenon.create_session(model, "cpu", quiet(), claim="all", require_full_claim=True)
    step = Step([CACHE - 1, 6])
    feed = {**step.feed, "lengths": np.array(step.lengths, np.int32)}
    with pytest.raises(Exception, match=r"GroupQueryAttention_0.*length 0 is outside"):
        session.run(None, {**feed, "total": np.array([CACHE], np.int32)})
    grown = session.run(None, {**feed, "total": np.array([CACHE + 100], np.int32)})
    assert grown[1].shape[2] == CACHE + 100


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
    for length in (CACHE, CACHE + 100, -1, -5, 2**31 - 1, -(2**31)):
        for tokens in (1, 3):
            for shared in ("kv", "k", ""):
                good = Step([5, 6], tokens, shared=shared)
                check_rows(good, good.run(session), (0, 1))
                messages = []
                for step in (Step([length, 6], tokens, shared=shared), good):
                    try:
                        step.run(session)
                    except Exception as error:
                        messages.append(str(error))
                # One Run fails: this one, or the next where nobody waited for the end.
                assert len(messages) == 1 and "GroupQueryAttention_0" in messages[0], messages
    for step in (Step([19, 19], 20), Step([3, 3], 4, cache=0), Step([15, 6], shift=32)):
        try:
            step.run(session)
        except Exception as error:
            print("share part" in str(error) or "do not fit" in str(error))
"""


@pytest.mark.skipif(
    not runtime_at_least("1.31"),
    reason="1.24 hands a plugin copies of what is bound on a GPU: nothing is shared",
)
def test_lengths_and_caches_on_a_gpu_that_the_stub_driver_plays(request):
    text = ON_A_GPU.format(folder=str(request.path.parent))
    assert run_script(text).splitlines() == ["True"] * 3
