"""tune=on: a session on the stub's GPU that measures, and what contradicts it."""

import json

import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.tuning_records import read_records
from test_gpu import run_script

pytestmark = pytest.mark.plugin


@pytest.fixture
def model(tmp_path):
    """Of five rows: the stub interprets kernels, and each range of open ones has its own."""
    quantized, _ = quantize_model(linear(k=128, n=64), "int4")
    for value in (*quantized.graph.input, *quantized.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 5
    return saved(quantized, tmp_path)


def open_session(model, device, **options) -> str:
    """What a session on it says, and its numbers beside those of a session without these."""
    return run_script(
        f"""
        import numpy as np
        import onnxruntime_ep_tenon as tenon
        x = np.random.default_rng(3).standard_normal((5, 128)).astype(np.float32)
        plain = tenon.create_session({str(model)!r}, {device!r})
        expected = plain.run(None, {{plain.get_inputs()[0].name: x}})[0]
        try:
            session = tenon.create_session({str(model)!r}, {device!r}, **{options!r})
            (got,) = session.run(None, {{session.get_inputs()[0].name: x}})
            print("largest difference", np.abs(got - expected).max() / np.abs(expected).max())
        except Exception as error:
            print(error)
        """
    )


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_session_measures_and_the_next_one_uses_what_it_found(model, tmp_path):
    file, log = tmp_path / "records.textproto", tmp_path / "log.jsonl"
    said = open_session(model, "gpu", tune="on", tune_file=str(file), tune_log=str(log))
    assert float(said.split()[-1]) < 1e-3, said
    records = read_records(file)
    assert records.records and not records.problems
    begin, *_, end = lines(log)
    assert begin["event"] == "begin" and end["event"] == "end"
    assert begin["ranges"] == len(records.records) == end["records"]
    before = file.read_text()
    said = open_session(model, "gpu", tune_file=str(file), require_tuned=1)
    assert float(said.split()[-1]) < 1e-3, said
    open_session(model, "gpu", tune="on", tune_file=str(file), tune_log=str(log))
    assert lines(log)[-2]["plans"] == 0
    assert file.read_text() == before


def test_what_contradicts_tuning_says_so(model, tmp_path):
    file = str(tmp_path / "records.textproto")
    assert "needs a file for its records" in open_session(model, "gpu", tune="on")
    assert "on the CPU" in open_session(model, "cpu", tune="on", tune_file=file)
    assert "deterministic=1 forbids" in open_session(
        model, "gpu", tune="on", tune_file=file, deterministic=1
    )
    assert "tune where that is" in open_session(
        model, "gpu", tune="on", tune_file=file, target_arch="sm_80"
    )
    assert "tune_log is written by tune=on" in open_session(model, "gpu", tune_log=file)
    assert "tune_plans is what tune=on measures" in open_session(model, "gpu", tune_plans=9)
    assert "tune_plans='0' is not valid; it takes: a number of configs" in open_session(
        model, "gpu", tune="on", tune_file=file, tune_plans=0
    )
    assert "cannot be written" in open_session(
        model, "gpu", tune="on", tune_file=file, tune_log="/nowhere/log"
    )


def test_ranks_are_tuned_alone_and_share_the_file(model, tmp_path):
    file = tmp_path / "records.textproto"
    ranks = {"tune": "on", "tune_file": str(file), "tensor_parallel_size": 2}
    assert "tune one alone" in open_session(model, "gpu", **ranks, tensor_parallel_rank=0)
    open_session(model, "gpu", **ranks, tensor_parallel_rank=0, tensor_parallel_plan=1)
    assert read_records(file).records


def test_deterministic_sessions_read_no_records(model, tmp_path):
    assert "difference 0" in open_session(
        model, "gpu", tune_file=str(tmp_path / "absent"), deterministic=1
    )
