"""The table of attentions: measured on the host and on the stub GPU, its rows judged by hand."""

import json
import math
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from onnxruntime_ep_tenon.bench import attention_suite
from onnxruntime_ep_tenon.bench.attention_cases import AttentionCase, host_cases, table_cases
from onnxruntime_ep_tenon.bench.attention_meter import (
    AttentionBench,
    MeasuredAttention,
    cpu_provider_writes_in_place,
)
from onnxruntime_ep_tenon.bench.machine import Limits, Machine
from onnxruntime_ep_tenon.bench.measuring_process import WrongResultError
from onnxruntime_ep_tenon.models.attention_stack import AttentionStack
from test_command import failed, succeeded
from test_command import tenon as command
from test_gpu import run_script

H200 = Machine("NVIDIA H200", "13.0", "1.31.1", "", True, 4.2e12)
DECODE = AttentionCase(2, 1, 40, heads=4, kv_heads=2, head_size=32)
PREFILL = AttentionCase(2, 24, 24, heads=4, kv_heads=2, head_size=32)


@pytest.mark.plugin
@pytest.mark.parametrize("case", [DECODE, PREFILL, replace(DECODE, element="bf16")], ids=str)
def test_attention_is_right_and_writes_in_place_on_the_host(case, tmp_path):
    measured = AttentionBench(tmp_path, 3, "cpu").measure(case)
    assert measured.tenon > 0 and 0 < measured.error <= 1
    assert case.element == "bf16" or measured.peer > 0 or not cpu_provider_writes_in_place()


@pytest.mark.plugin
def test_attention_on_a_gpu_that_the_stub_driver_plays():
    text = f"""
        from pathlib import Path
        from tempfile import TemporaryDirectory
        from onnxruntime_ep_tenon.bench.attention_cases import AttentionCase
        from onnxruntime_ep_tenon.bench.attention_meter import AttentionBench

        with TemporaryDirectory() as folder:
            bench = AttentionBench(Path(folder), 0, "gpu")
            print(bench.machine().gpu)
            for case in ({DECODE!r}, {PREFILL!r}):
                print(0 < bench.measure(case).error <= 1)
    """
    assert run_script(text).splitlines() == ["Stub GPU 0", "True", "True"]


@pytest.mark.plugin
def test_the_table_on_the_host(tmp_path):
    ran = command(
        "bench", "--suite", "attention", "--device", "cpu", "--only", "decode b1 64*", "--out",
        tmp_path,
    )  # fmt: skip
    assert "CPU provider us" in succeeded(ran)
    (row,) = json.loads((tmp_path / "attention.json").read_text())["rows"]
    assert row["tenon_us"] > 0 and row["limit_us"] is None
    assert not cpu_provider_writes_in_place() or row["peer_us"] > 0
    assert all((tmp_path / f"attention_decode.{kind}").is_file() for kind in ("png", "svg"))


def expected_row(stack, caches, batch, head, query):
    """Softmax by hand, a loop over keys."""
    c = stack.case
    q = stack.fresh("q").reshape(c.batch, c.queries, c.heads, c.head_size)[batch, query, head]
    group, total, y = head // (c.heads // c.kv_heads), 0.0, np.zeros(c.head_size)
    for key in range(c.keys - c.queries + query + 1):
        score = float(
            np.dot(q.astype(np.float64), caches["k"][batch, group, key].astype(np.float64))
        )
        weight = math.exp(score / math.sqrt(c.head_size))
        total += weight
        y += weight * caches["v"][batch, group, key].astype(np.float64)
    return y / total


@pytest.mark.parametrize("case", [DECODE, PREFILL], ids=str)
def test_one_lost_key_is_seen(case):
    stack = AttentionStack(case)
    caches = {name: stack.present(name, 1) for name in "kv"}
    assert not np.isnan(caches["k"].astype(np.float32)).any()
    row = (1, 3, case.queries - 1)
    y = np.zeros((case.batch, case.queries, case.heads, case.head_size), np.float16)
    y[1, case.queries - 1, 3] = expected_row(stack, caches, *row)
    assert stack.error_over_bound(caches, y, [row]) <= 1
    caches["v"][1, 1, 7] = 0
    assert stack.error_over_bound(caches, y, [row]) > 1
    y[1, case.queries - 1, 3, 0] = np.nan
    assert stack.error_over_bound(caches, y, [row]) == math.inf


def test_caches_rotate_past_the_gpus_own_and_runs_are_long():
    for case in table_cases():
        assert case.copies * case.bytes >= 240e6
    assert [case.copies for case in table_cases(quick=True)] == [30, 8, 2, 2, 2]


def test_the_table_has_every_case_once():
    names = [case.name for case in table_cases()]
    assert len(set(names)) == len(names) == 24
    assert names[:5] == [
        "decode b1 8k f16 d128", "decode b1 32k f16 d128", "decode b32 8k f16 d128",
        "prefill b4 4096 f16 d128", "prefill b1 16384 f16 d128",
    ]  # fmt: skip
    assert [case.bar for case in table_cases()][:6] == [0.52, 0.76, 0.98, 0.7, 0.82, None]
    assert all(case.keys <= 256 for case in host_cases())


class FakeMeter:
    machine = H200

    def __init__(self, answers):
        self.answers, self.closed = answers, False

    def measure(self, case):
        answer = self.answers[case]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        self.closed = True


def test_rows_and_verdicts(tmp_path, monkeypatch, capsys):
    small, long, batch, prefill, longest = table_cases(quick=True)
    answers = {
        small: MeasuredAttention(12e-6, 24e-6, "flash_decode"),
        long: MeasuredAttention(40e-6, 47e-6),
        batch: MeasuredAttention(250e-6),
        prefill: MeasuredAttention(1000e-6, 1500e-6, notes=["the CUDA provider captures no graph"]),
        longest: WrongResultError("WRONG: attention 0\nis off"),
    }
    args = Namespace(json=False, out=str(tmp_path), seed=0, device="gpu", quick=True, only=None)
    meter = FakeMeter(answers)
    assert attention_suite.run_attention_suite(args, meter) == 1 and meter.closed
    rows = json.loads((tmp_path / "attention.json").read_text())["rows"]
    assert [row["met"] for row in rows] == [True, False, None, True, False]
    assert rows[0]["tenon_over_peer"] == pytest.approx(0.5)
    assert rows[0]["tenon_rate"] == pytest.approx((2 * 8 * 8192 + 2 * 32) * 256 / 12e-6 / 1e12)
    assert rows[3]["tenon_rate"] == pytest.approx(4 * 4 * 32 * 4096**2 * 128 / 2 / 1e-3 / 1e12)
    assert rows[2]["peer_us"] is None and rows[2]["tenon_over_peer"] is None
    assert rows[4]["problem"] == "WRONG: attention 0 is off"
    printed = capsys.readouterr().out
    assert "[1/5] decode b1 8k f16 d128: 12.0 us, other 24.0, met" in printed
    assert "FAILED  prefill b1 16384 f16 d128: WRONG: attention 0 is off" in printed
    assert sorted(p.name for p in tmp_path.glob("*.png")) == [
        "attention_decode.png", "attention_prefill.png",
    ]  # fmt: skip


def test_the_best_of_both_backends_is_held_to_the_bar():
    *_, prefill, longest = table_cases(quick=True)
    limits = Limits.of(H200)

    def met(case, **times):
        seconds = {name: time * 1e-6 for name, time in times.items()}
        row = attention_suite.AttentionRow(case, limits, MeasuredAttention(**seconds))
        return row.met, row.as_json()

    # cuDNN is better by more than is allowed; better by less; and what was chosen is better.
    assert met(prefill, tenon=680, peer=1000, cudnn=650)[0] is False
    verdict, told = met(prefill, tenon=660, peer=1000, cudnn=650)
    assert verdict is True and told["cudnn_us"] == pytest.approx(650) and told["own_us"] is None
    assert told["best_over_peer"] == pytest.approx(0.65)
    assert told["tenon_over_best"] == pytest.approx(660 / 650)
    assert met(longest, tenon=815, peer=1000, own=900)[0] is True
    assert met(longest, tenon=830, peer=1000, own=900)[0] is False
    assert met(longest, tenon=830, own=900)[0] is None


def test_a_missing_peer_is_told_first(monkeypatch, capsys):
    (case, *_) = table_cases(quick=True)
    monkeypatch.setattr(attention_suite, "_cases", lambda *_: [case])
    meter = FakeMeter({case: MeasuredAttention(12e-6)})
    meter.machine = replace(H200, has_peer=False)
    args = Namespace(json=False, out=None, seed=0, device="gpu", quick=True, only=None)
    assert attention_suite.run_attention_suite(args, meter) == 0
    assert "has no CUDA provider, only Tenon is timed" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.plugin
def test_bad_arguments_are_refused():
    suite = ("bench", "--suite", "attention", "--device")
    assert "not 'gpu:3'" in failed(command(*suite, "gpu:3"))
    assert "no case is named 'x'" in failed(command(*suite, "cpu", "--only", "x"))
