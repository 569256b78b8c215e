"""The table of two host processes beside one."""

import json

import pytest
from test_command import failed, succeeded
from test_command import tenon as command

ARGUMENTS = ("bench", "--suite", "ranks", "--preset", "tiny-llama", "--past", "16")


@pytest.mark.plugin
def test_ranks_beside_one_process_and_their_sums_alone(tmp_path):
    succeeded(command(*ARGUMENTS, "--device", "cpu", "--seconds", "0.2", "--out", tmp_path))
    rows = json.loads((tmp_path / "bench.json").read_text())["rows"]
    cases = [row["case"] for row in rows]
    assert cases == [
        "one token after 16, 2 ranks", "one token after 16, its collectives alone",
        "a prompt of 64, 2 ranks", "a prompt of 64, its collectives alone",
    ]  # fmt: skip
    for ranks, sums in zip(rows[::2], rows[1::2], strict=True):
        assert ranks["met"] == (ranks["ratio"] <= float(ranks["bar"].removeprefix("<= ")))
        assert sums["tenon"] > 0 and sums["other"] is None
        assert "AllReduce of" in sums["note"]


@pytest.mark.plugin
def test_an_unknown_preset_is_named():
    told = failed(command(*ARGUMENTS, "--device", "cpu", "--preset", "none"))
    assert "none" in told and "qwen2-0.5b" in told
