"""The table of whole decoders: measured on the host, on the stub GPU, and judged by hand."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from onnxruntime_ep_tenon import decoder_suite
from onnxruntime_ep_tenon.decoder_suite import DecoderPlan
from test_command import failed, succeeded
from test_command import tenon as command
from test_gpu import stub_driver

SMALL = (
    "bench", "--suite", "decoder", "--preset", "tiny-llama", "--batch", "1,2", "--past", 16,
    "--prefill", 24, "--seconds", 0.02,
)  # fmt: skip
PLAN = DecoderPlan("tiny-llama", "cpu", batches=(2,), past=16, prefill=24, seconds=0.02)


@pytest.mark.plugin
def test_on_the_host_beside_the_cpu_provider(tmp_path):
    succeeded(command(*SMALL, "--weights", "int4", "--device", "cpu", "--out", tmp_path))
    told = json.loads((tmp_path / "bench.json").read_text())
    assert told["problems"] == {}
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
    rows = list(decoder_suite.measure_format(PLAN, "nvfp4", tmp_path))
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
def test_different_logits_are_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(decoder_suite, "_LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(RuntimeError, match=r"WRONG: decode, batch 2: logits differ by"):
        list(decoder_suite.measure_format(PLAN, "int4", tmp_path))


def test_differences_are_relative_and_nan_is_infinite():
    theirs = np.full((1, 100), 2.0)
    assert decoder_suite._difference(theirs * 1.01, theirs) == pytest.approx(0.01)
    assert decoder_suite._difference(theirs * np.nan, theirs) == math.inf


@pytest.mark.plugin
def test_a_format_that_fails_costs_only_its_own_rows():
    rows, problem = decoder_suite._in_a_process_of_its_own(replace(PLAN, device="gpu:9"), "int4")
    assert rows == []
    assert "gpu:9" in problem


@pytest.mark.parametrize("format", ["nvfp4", "mxfp8", "f32"])
def test_the_size_of_a_file_is_foreseen(format, tmp_path):
    folder = decoder_suite._write(replace(PLAN, preset="tiny-qwen3"), format, tmp_path)
    written = sum(file.stat().st_size for file in folder.glob("model.onnx.data"))
    foreseen = decoder_suite._file_bytes(replace(PLAN, preset="tiny-qwen3"), format)
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

    peer = decoder_suite._Peer(replace(PLAN, device="gpu"), tmp_path)
    monkeypatch.setattr(peer, "_open", lambda captures: Capturing() if captures else Plain())
    assert peer.bind(0, None, None, None) == "bound"
    assert peer.take_notes() == ["the other with CUDA graphs: cannot capture"]
    assert peer.bind(1, None, None, None) == "bound"
    assert peer.take_notes() == []
