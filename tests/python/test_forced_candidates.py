"""Sessions that run with another candidate than the chosen one, by records made for that."""

import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.bench.forced_candidates import forcing_records, no_records
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.report import session_with_report
from onnxruntime_ep_tenon.tuning_records import read_records

pytestmark = pytest.mark.plugin


@pytest.fixture
def model(tmp_path):
    return saved(quantize_model(linear(k=128, n=64), "int4")[0], tmp_path)


def chosen(report) -> set[str]:
    return {fusion["chosen"] for fusion in report.fusions if fusion["fingerprint"]}


def test_a_candidate_is_forced(model, tmp_path):
    _, report = session_with_report(model, "cpu", tune_file=no_records(tmp_path))
    assert chosen(report) == {"packed"}
    records, name = forcing_records(report, lambda candidate: candidate == "plain", tmp_path)
    assert name == "plain" and read_records(records).problems == []
    _, forced = session_with_report(model, "cpu", tune_file=records, require_tuned=1)
    assert chosen(forced) == {"plain"}


def test_who_cannot_be_forced_says_why(model, tmp_path):
    _, report = session_with_report(model, "cpu", tune_file=no_records(tmp_path))
    records, reason = forcing_records(report, lambda candidate: candidate == "int8", tmp_path)
    assert records is None and reason.startswith("int8: int8 activations need precision_mode=int8")
    records, reason = forcing_records(report, lambda candidate: candidate == "x", tmp_path)
    assert records is None and reason == ""
