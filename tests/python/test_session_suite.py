"""The table of how long sessions take to open."""

import json
import subprocess
import sys

import pytest
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
