"""The table of whole decoders: measured on the host, on the stub GPU, and judged by hand."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from onnxruntime_ep_tenon.bench import decoder_meter, decoder_suite
from onnxruntime_ep_tenon.bench.decoder_meter import Begun, DecoderPlan, Problem, write_model
from onnxruntime_ep_tenon.bench.kernel_times import by_kernel
from onnxruntime_ep_tenon.bench.rows import Row
from onnxruntime_ep_tenon.host_memory import PeakMemory
from onnxruntime_ep_tenon.report import session_with_report
from test_command import failed, succeeded
from test_command import tenon as command
from test_gpu import stub_driver

SMALL = (
    "bench", "--suite", "decoder", "--preset", "tiny-llama", "--batch", "1,2", "--past", 16,
    "--prefill", 24, "--seconds", 0.02,
)  # fmt: skip
PLAN = DecoderPlan("tiny-llama", "cpu", batches=(2,), past=16, prefill=24, seconds=0.02)


def measured(format, tmp_path, plan=PLAN):
    """What a format tells, in this process."""
    ours = write_model(plan, format, tmp_path / format)
    theirs = ours if format == "int4" else write_model(plan, "int4", tmp_path / "int4")
    return list(decoder_meter.measure_format(plan, format, ours, theirs))


def rows_of(told):
    return [one for one in told if isinstance(one, Row)]


@pytest.mark.plugin
def test_on_the_host_beside_the_cpu_provider(tmp_path):
    succeeded(command(*SMALL, "--weights", "int4", "--device", "cpu", "--out", tmp_path))
    told = json.loads((tmp_path / "bench.json").read_text())
    assert told["problems"] == []
    creation, *rows = told["rows"]
    assert creation["case"] == "int4 session creation" and creation["other"] is None
    assert [row["case"] for row in rows] == [
        "int4 decode, batch 1, past 16",
        "int4 decode, batch 2, past 16",
        "int4 prefill, batch 1, 24 tokens",
    ]
    for row in rows:
        assert row["tenon"] > 0 and row["other"] > 0
        assert "tokens/s" in row["note"] and "logits within" in row["note"]


@pytest.mark.plugin
def test_another_format_is_compared_with_int4(tmp_path):
    rows = rows_of(measured("nvfp4", tmp_path))
    assert len(rows) == 3
    assert all("logits" not in row.note for row in rows)
    assert all(row.other > 0 for row in rows[1:])


@pytest.mark.plugin
def test_on_a_gpu_that_the_stub_driver_plays():
    driver = {"TENON_DRIVER_LIBRARY": str(stub_driver())}
    ran = command(
        *SMALL,
        "--weights",
        "int4",
        "--device",
        "gpu",
        "--json",
        environment={**os.environ, **driver},
    )
    told = json.loads(succeeded(ran))
    assert told["gpu"] == "Stub GPU 0"
    assert len(told["rows"]) == 4


@pytest.mark.plugin
def test_different_logits_are_told_beside_the_times(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_meter, "_LARGEST_DIFFERENCE", -1.0)
    told = measured("int4", tmp_path)
    assert len(rows_of(told)) == 3
    problems = [one.text for one in told if isinstance(one, Problem)]
    assert len(problems) == 2
    assert problems[0].startswith("WRONG: decode, batch 2, past 16: logits differ by")


@pytest.mark.plugin
def test_a_case_that_fails_costs_only_its_own_row(tmp_path, monkeypatch):
    bind = decoder_meter.DecoderSide.bind

    def fail_in_steps(self, number, case, *rest):
        if case.kind == "decode":
            raise RuntimeError("no such kernel\nmore")
        return bind(self, number, case, *rest)

    monkeypatch.setattr(decoder_meter.DecoderSide, "bind", fail_in_steps)
    told = measured("int4", tmp_path)
    assert [row.case for row in rows_of(told)][1:] == ["int4 prefill, batch 1, 24 tokens"]
    assert Problem("decode, batch 2, past 16: no such kernel") in told


@pytest.mark.plugin
def test_nodes_that_are_not_tenons_are_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_meter, "_open_tenon", open_without_gathers)
    told = measured("int4", tmp_path)
    assert any(isinstance(one, Problem) and "not Tenon's, first" in one.text for one in told)
    assert len(rows_of(told)) == 3


def open_without_gathers(plan, folder):
    return session_with_report(folder / "model.onnx", "cpu", exclude_ops="Gather")


def test_differences_are_relative_and_nan_is_infinite():
    theirs = np.full((1, 100), 2.0)
    assert decoder_meter._difference(theirs * 1.01, theirs) == pytest.approx(0.01)
    assert decoder_meter._difference(theirs * np.nan, theirs) == math.inf


@pytest.mark.plugin
def test_a_format_that_fails_costs_only_its_own_rows(tmp_path):
    plan = replace(PLAN, device="gpu:9")
    told = list(
        decoder_suite.in_a_process_of_its_own(plan, "int4", tmp_path, tmp_path, lambda: math.inf)
    )
    assert [type(one) for one in told] == [Begun, Problem]
    assert "gpu:9" in told[1].text


def test_a_part_that_takes_too_long_is_given_up(tmp_path):
    told = list(decoder_suite.in_a_process_of_its_own(PLAN, "int4", tmp_path, tmp_path, lambda: 0))
    assert told == [Problem("starting: given up after 0 s")]


@pytest.mark.plugin
def test_a_host_may_take_its_time(tmp_path):
    begun = [one for one in measured("int4", tmp_path) if isinstance(one, Begun)]
    assert [one.part for one in begun][1:] == [
        "decode, batch 2, past 16",
        "prefill, batch 1, 24 tokens",
    ]
    assert begun[2].limit > 600


@pytest.mark.plugin
def test_time_that_is_over_begins_no_further_format(tmp_path):
    ran = command(*SMALL, "--device", "cpu", "--limit", 1e-9, "--out", tmp_path)
    assert "nvfp4: not begun: 0 s were over" in ran.stdout
    assert ran.returncode == 1
    assert len(json.loads((tmp_path / "bench.json").read_text())["problems"]) == 2


def test_peak_memory_counts_what_was_given_back():
    # Beyond what malloc keeps for reuse, which may be 32 MiB behind other tests.
    with PeakMemory() as memory:
        np.ones(1 << 27, np.uint8).sum()
    assert 0.9 * 2**27 < memory.grown < 2**28
    with PeakMemory() as memory:
        pass
    assert memory.grown < 1 << 22


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "f32"])
def test_the_size_of_a_file_is_foreseen(format, tmp_path):
    folder = write_model(replace(PLAN, preset="tiny-qwen3"), format, tmp_path)
    written = sum(file.stat().st_size for file in folder.glob("model.onnx.data"))
    foreseen = decoder_meter.file_bytes(replace(PLAN, preset="tiny-qwen3"), format)
    # Tensors begin at whole pages, of which a small model has many.
    assert 0.5 * written < foreseen < written


def test_bars_belong_to_the_sizes_they_were_set_for():
    assert DecoderPlan("llama-8b", "gpu").bars[("nvfp4", "decode", 1)] == 0.5
    assert DecoderPlan("llama-8b", "cpu").bars == {}
    assert DecoderPlan("tiny-llama", "gpu").bars == {}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--preset", "llama-9b"), "unknown preset 'llama-9b'"),
        (("--weights", "int3"), "unknown weights 'int3'"),
    ],
)
def test_bad_sizes_are_refused(given, text):
    assert text in failed(command("bench", "--suite", "decoder", "--device", "cpu", *given))


def test_the_other_is_tried_again_without_graphs(tmp_path, monkeypatch):
    class Capturing:
        def bind(self, *_):
            raise RuntimeError("cannot capture\nmore")

    class Plain:
        logits = np.zeros(1)

        def bind(self, *_):
            return "bound"

    peer = decoder_meter._Peer(replace(PLAN, device="gpu"), tmp_path)
    monkeypatch.setattr(peer, "_open", lambda captures: Capturing() if captures else Plain())
    assert peer.bind(0, None, None, None) == "bound"
    assert peer.take_notes() == ["the other with CUDA graphs: cannot capture"]
    assert peer.bind(1, None, None, None) == "bound"
    assert peer.take_notes() == []


def test_a_kernel_counts_from_the_end_of_the_one_before_it():
    def event(name, begin, duration, ctas=1, kind="kernel"):
        arguments = {"grid": [ctas, 1, 1], "shared memory": 64}
        return {"name": name, "cat": kind, "ts": begin, "dur": duration, "args": arguments}

    # Two Runs: `late` begins before `long` has ended, and adds what is left of it.
    run = [event("first", 0, 2), event("long", 2, 10, 132), event("late", 4, 11)]
    events = [{**one, "ts": one["ts"] + begin} for begin in (0, 20) for one in run]
    noise = [event("host", 0, 50, kind="cpu_op"), {"name": "no category", "ts": 0, "dur": 1}]
    times = {time.name: time for time in by_kernel(noise + events[::-1], 2)}
    assert set(times) == {"first", "long", "late"}
    assert (times["long"].microseconds, times["long"].launches) == (10, 1)
    assert (times["late"].microseconds, times["late"].shared_bytes) == (3, 64)
    assert times["first"].microseconds == 7  # the Run before ended at 15
    assert times["long"].ctas == 132


@pytest.mark.plugin
def test_kernels_are_those_of_a_gpu():
    assert "give --device gpu" in failed(command(*SMALL, "--device", "cpu", "--kernels"))
