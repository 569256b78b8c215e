"""The table of how long sessions take to open."""

import json
import subprocess
import sys

import pytest
from onnxruntime_ep_tenon.bench.open_session import one_node_model
from test_command import succeeded
from test_command import tenon as command


@pytest.mark.plugin
def test_on_the_host_a_context_beside_its_model(tmp_path):
    succeeded(
        command(
            "bench",
            "--suite",
            "sessions",
            "--device",
            "cpu",
            "--preset",
            "tiny-llama",
            "--weights",
            "nvfp4",
            "--out",
            tmp_path,
        )  # fmt: skip
    )
    (row,) = json.loads((tmp_path / "bench.json").read_text())["rows"]
    assert row["case"] == "nvfp4, from a context"
    assert row["tenon"] > 0 and row["other"] > 0
    assert row["met"] == (row["tenon"] <= 0.6 * row["other"])
    assert "opening" in row["note"]  # no fusions, no lowering


def test_a_model_that_is_not_there_is_named(tmp_path):
    told = subprocess.run(
        [sys.executable, "-m", "onnxruntime_ep_tenon.bench.open_session", "tenon",
         str(tmp_path / "none.onnx"), "device=cpu"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode != 0 and "none.onnx" in told.stderr


@pytest.mark.plugin
@pytest.mark.parametrize("provider, options", [("cpu", []), ("tenon", ["device=cpu"])])
def test_a_process_tells_what_its_session_took(provider, options, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(one_node_model())
    told = subprocess.run(
        [sys.executable, "-m", "onnxruntime_ep_tenon.bench.open_session", provider, str(model)]
        + options,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(told.stdout)
    assert answer["seconds"] > 0
    assert answer["cpu_seconds"] > 0
