"""Predicted steps: sizes in texts, collectives by hand, kernels by rows."""

import pytest
from onnxruntime_ep_tenon.report import Report
from onnxruntime_ep_tenon.step_prediction import Link, Step, collective_us, kernels_us, link_of
from onnxruntime_ep_tenon.symbolic_sizes import bytes_of, evaluate, operands

SIZES = {"b": 2, "s": 3, "past + 1": 5}


LINK = {"name": "NVLink", "base_us": 6.0, "step_us": 1.0, "gigabytes_per_second": 450.0}


def gpu(fusions=()) -> Report:
    device = {"kind": "gpu", "kernel_us": 2.0, "memory_bytes_per_us": 1000.0, "link": LINK}
    graphs = [{"partitions": [{"fusions": list(fusions)}]}]
    return Report({"device": device, "graphs": graphs})


def fusion(kind: str, problem: str, configs=()) -> dict:
    timed = [{"problem": rows, "config": {"microseconds": us}} for rows, us in configs]
    return {"kind": f"tenon::{kind}", "problem": problem, "configs": timed, "launches": []}


@pytest.mark.parametrize(
    "text, size",
    [
        ("512*b*s", 3072),
        ("'past + 1'*2", 10),
        ("-1+b", 1),
        ("max(b,s)+1", 4),
        ("floordiv(s,2)", 1),
        ("ceildiv(s,2)", 2),
        ("mod(s,2)", 1),
        ("product(b+1,s)", 9),
        ("broadcast(1,s)", 3),
        ("unlessone(b)*s", 3),
        ("unknown", 1),
    ],
)
def test_sizes_are_computed(text, size):
    assert evaluate(text, SIZES) == size


@pytest.mark.parametrize("text", ["", "a b", "max(", "max(a", "2+", "$", "a)"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        evaluate(text, SIZES)


def test_operands_of_a_problem():
    found = operands("(f16[b,max(s,2),'past + 1'], f4e2m1[64,256], -, f32[], i64[?])", SIZES)
    assert found == [("f16", [2, 3, 5], True), ("f4e2m1", [64, 256], False), ("f32", [], False)]
    assert [bytes_of(kind, shape) for kind, shape, _ in found] == [60, 8192, 4]
    assert bytes_of("bool", [3]) == 3


def test_collectives_take_what_the_formula_says():
    link = link_of(gpu())
    # Twice 2 steps of a tree of 4, and 2 * 3 / 4 of the bytes.
    expected = 6 + 2 * 2 * 1 + 1.5 * 8192 / 450e3
    assert collective_us("AllReduce", 8192, 4, link) == pytest.approx(expected)
    size = 256 << 20
    expected = 6 + 3 * 1 + 7 / 8 * size / 450e3
    assert collective_us("AllGather", size, 8, link) == pytest.approx(expected)
    assert collective_us("Broadcast", size, 3, link) == pytest.approx(6 + 2 + size / 450e3)


def test_sums_of_little_are_one_exchange_between_gpus_that_reach_each_other():
    link = Link(**LINK, direct_us=2.5)
    assert collective_us("AllReduce", 8192, 4, link) == pytest.approx(2.5 + 2 * 3 * 8192 / 450e3)
    for op, size, ranks in (
        ("AllReduce", 256 << 10, 4),
        ("AllReduce", 8192, 9),
        ("AllGather", 8192, 4),
    ):
        assert collective_us(op, size, ranks, link) == collective_us(op, size, ranks, Link(**LINK))


def test_host_processes_take_what_was_measured():
    host = link_of(Report({"device": {"kind": "cpu", "name": "a CPU"}}))
    assert collective_us("AllReduce", 229_376, 2, host) == pytest.approx(20.4, rel=0.05)
    assert collective_us("AllReduce", 3584, 2, host) == pytest.approx(1.0, rel=0.05)
    # Four exchange whole inputs where these are small, else parts: twice 3 / 4 of the bytes.
    assert collective_us("AllReduce", 3600, 4, host) == pytest.approx(0.7 + 3 * 3.6 / 12)
    assert collective_us("AllReduce", 4_000_000, 4, host) == pytest.approx(1.4 + 6000 / 12)


def test_products_take_the_config_of_their_rows():
    problem = "(f16[1,s,64], f4e2m1[128,64]) -> (f16[1,s,128])"
    report = gpu(fusions=[fusion("ScaledDot", problem, [("rows <= 8", 3.0), ("rows > 8", 9.0)])])
    assert kernels_us(report, Step(1, {"s": 1})) == 3.0
    assert kernels_us(report, Step(9, {"s": 9})) == 9.0
    assert kernels_us(report, Step(90, {"s": 90})) == pytest.approx(90.0)


def test_other_kernels_take_their_bytes_and_collectives_none():
    added = fusion("Loop", "(f16[s,1000], f16[s,1000]) -> (f16[s,1000])")
    rows_of_a_table = fusion("Loop", "(i64[s], f16[50000,500]) -> (f16[s,500])")
    summed = fusion("AllReduce", "(f16[s,1000]) -> (f16[s,1000])")
    step = Step(2, {"s": 2})
    assert kernels_us(gpu(fusions=[added, summed]), step) == pytest.approx(2 + 12)
    assert kernels_us(gpu(fusions=[rows_of_a_table]), step) == pytest.approx(2 + 4.016)


def test_attention_reads_its_caches_once():
    problem = "(f16[1,4,8], f16[1,4,past,8]) -> (f16[1,4,8], f16[1,4,past+1,8])"
    report = gpu(fusions=[fusion("Attention", problem)])
    expected = 2 + (64 + 4 * 100 * 8 * 2 + 64) / 1000
    assert kernels_us(report, Step(1, {"past": 100})) == pytest.approx(expected)
