"""The table of tuning: sessions measured on the host with records in place of a tuner, and rows
judged by hand."""

import json
import math
from argparse import Namespace

import pytest
from conftest import runtime_at_least
from fake_meter import FakeMeter
from onnxruntime_ep_tenon.bench import tuning_meter, tuning_suite
from onnxruntime_ep_tenon.bench.attention_cases import AttentionCase
from onnxruntime_ep_tenon.bench.decoder_meter import DecoderPlan
from onnxruntime_ep_tenon.bench.measuring_process import WrongResultError
from onnxruntime_ep_tenon.bench.product_cases import Case
from onnxruntime_ep_tenon.bench.tuning_cases import DecoderCase, product_cases, table_cases
from onnxruntime_ep_tenon.bench.tuning_meter import MeasuredTuning, TuningBench, program_of
from onnxruntime_ep_tenon.report import Report
from test_command import failed
from test_command import tenon as command
from test_gpu import run_script

PRODUCT = Case("nvfp4", 96, 256, 5, drawn=True, run_bytes=1)
ATTENTION = AttentionCase(2, 1, 40, heads=4, kv_heads=2, head_size=32)
DECODER = DecoderCase(DecoderPlan("tiny-llama", "cpu", ("int4",), (1,), past=8))


def test_the_table_has_the_cases_of_the_bars():
    cases = table_cases("llama-8b", "gpu")
    assert len({case.name for case in cases}) == len(cases) == 1 + 40 + 10
    products = product_cases()
    assert products == product_cases()
    assert {case.format for case in products} == {"nvfp4", "int4", "mxfp8", "f16"}
    assert all(1 <= case.m <= 4096 and case.k % 32 == 0 for case in products)
    assert min(case.m for case in products) == 1 and max(case.m for case in products) > 1000
    assert cases[0].name == "llama-8b nvfp4 step of 1 after 512"


@pytest.fixture
def records_alone(monkeypatch):
    """No tuner: a file without records, and the log that a tuner would have written."""
    events = [
        {"event": "begin", "ranges": 1, "plans": 2},
        {"event": "plan", "status": "ok"},
        {"event": "plan", "status": "refused", "reason": "r"},
        {"event": "range", "chosen": {"config": "a"}, "untuned": {"config": "b"}},
        {"event": "end", "seconds": 1.5},
    ]

    def options(records, log, plans):
        records.write_text("form: 1\n")
        log.write_text("".join(json.dumps(event) + "\n" for event in events))
        return {"tune": "cached", "tune_file": records}

    monkeypatch.setattr(tuning_meter, "tuning_options", options)


@pytest.mark.plugin
@pytest.mark.parametrize("case", [PRODUCT, ATTENTION, DECODER], ids=lambda case: case.name)
def test_a_case_is_timed_both_ways_and_right(case, records_alone, tmp_path):
    if case is PRODUCT and not runtime_at_least("1.25"):
        pytest.skip("float4 loads from onnxruntime 1.25 on")
    measured = TuningBench(tmp_path, 3, "cpu").measure(case)
    assert measured.tuned > 0 and measured.untuned > 0 and math.isnan(measured.wrong)
    assert measured.tuning == 1.5
    same = "tuned and untuned run the same kernels"  # which the records say nothing of
    assert measured.notes == ["tuned: 1 ranges, 1 changed, plans: 1 ok, 1 refused", same]
    assert measured.tuned == measured.untuned


@pytest.mark.plugin
def test_factors_reach_the_session_that_tunes_with_them_alone(records_alone, tmp_path, monkeypatch):
    seen = []
    opened = tuning_meter.session_with_report

    def recorded(*args, **options):
        seen.append((options["tune"], tuning_meter.os.environ.get("TENON_COST_FACTORS")))
        return opened(*args, **options)

    monkeypatch.setattr(tuning_meter, "session_with_report", recorded)
    measured = TuningBench(tmp_path, 3, "cpu", factor_seed=7).measure(ATTENTION)
    tuning, timing = [("cached", None), ("cached", "7")], [("off", None), *[("cached", None)] * 2]
    # One program, which all sides run.
    assert seen == tuning + timing + (tuning_meter._SESSIONS_OF_KERNELS - 3) * [("cached", None)]
    assert measured.wrong > 0 and measured.tuning_wrong == 1.5
    # On the host no constant is multiplied, and that is told.
    assert "the session did not see TENON_COST_FACTORS" in measured.notes


def test_a_program_is_its_kernels_and_how_they_are_cut():
    def report(kernel: str, **config) -> Report:
        fusion = {
            "nodes": ["n"], "launches": [{"kernel": kernel}], "configs": [{"config": config}],
        }  # fmt: skip
        return Report({"graphs": [{"partitions": [{"fusions": [fusion]}]}]})

    one = program_of(report("gemm", tile_n=8, microseconds=1.5))
    assert one == program_of(report("gemm", tile_n=8, microseconds=2.5))
    assert one != program_of(report("gemm", tile_n=16, microseconds=1.5))
    assert one != program_of(report("skinny_gemm", tile_n=8, microseconds=1.5))


@pytest.mark.plugin
def test_a_wrong_result_of_a_tuned_session_is_told(records_alone, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_meter, "_LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(WrongResultError, match="logits differ"):
        TuningBench(tmp_path, 3, "cpu").measure(DECODER)


@pytest.mark.plugin
def test_a_case_is_tuned_on_a_gpu_that_the_stub_driver_plays():
    text = """
        from pathlib import Path
        from tempfile import TemporaryDirectory
        from onnxruntime_ep_tenon.bench.product_cases import Case
        from onnxruntime_ep_tenon.bench.tuning_meter import TuningBench

        with TemporaryDirectory() as folder:
            case = Case("int4", 64, 128, 5, drawn=True, run_bytes=1)
            measured = TuningBench(Path(folder), 0, "gpu").measure(case)
            print(min(measured.tuned, measured.untuned, measured.tuning) > 0, *measured.notes)
    """
    assert run_script(text).startswith("True tuned: 1 ranges, ")


def arguments(**given) -> Namespace:
    usual = {"json": False, "out": None, "seed": 0, "device": "gpu", "only": None, "preset": None}
    usual |= {"limit": math.inf, "constants_factor_seed": None, "resume": None}
    usual |= {"tune_plans": None}
    return Namespace(**{**usual, **given})


def rows_of(tmp_path, answers, **given):
    meter = FakeMeter(answers)
    status = tuning_suite.run_tuning_suite(arguments(out=str(tmp_path), **given), meter)
    assert meter.closed
    return status, json.loads((tmp_path / "bench.json").read_text())


def test_rows_means_and_verdicts(tmp_path, monkeypatch, capsys):
    step, first, second, third = cases = table_cases("llama-8b", "gpu")[:4]
    monkeypatch.setattr(tuning_suite, "table_cases", lambda *_: cases)
    answers = {
        step.name: MeasuredTuning(1.5e-3, 1.4e-3, tuning=200.0),
        first.name: MeasuredTuning(10e-6, 10.4e-6, tuning=1.0),
        second.name: MeasuredTuning(10e-6, 10.3e-6, tuning=1.0),
        third.name: RuntimeError("no\nanswer"),
    }
    status, written = rows_of(tmp_path, answers)
    assert status == 1 and written["problems"] == {third.name: "no answer"}
    rows = written["rows"]
    assert [row["met"] for row in rows] == [True, False, True, True, False]
    assert rows[3]["case"] == "geometric mean of 3"
    mean = (1.4 / 1.5 * 1.04 * 1.03) ** (1 / 3)
    assert rows[3]["ratio"] == pytest.approx(mean) and rows[3]["bar"] == "<= 1.01"
    assert rows[4]["case"] == "llama-8b: tuning from nothing" and rows[4]["bar"] == "<= 180 s"
    assert written["measured"][first.name]["wrong"] is None
    printed = capsys.readouterr().out
    assert f"{first.name}: 10.4 us, untuned 10.0 us, tuned in 1.0 s" in printed
    assert f"FAILED  {third.name}: no answer" in printed and "nan" not in printed


def test_wrong_constants_have_bars_of_their_own(tmp_path, monkeypatch):
    _, first, second = table_cases("llama-8b", "gpu")[:3]
    monkeypatch.setattr(tuning_suite, "table_cases", lambda *_: [first, second])
    answers = {
        first.name: MeasuredTuning(10e-6, 10e-6, 10.6e-6, 1.0, 2.0),
        second.name: MeasuredTuning(10e-6, 10e-6, 9.9e-6, 1.0, 2.0),
    }
    status, written = rows_of(tmp_path, answers, constants_factor_seed=3)
    assert status == 0 and written["constants_factor_seed"] == 3
    wrong = [row for row in written["rows"] if row["case"].startswith("wrong constants")]
    assert [row["bar"] for row in wrong] == ["<= 1.05", "<= 1.05", "<= 1.02"]
    assert [row["met"] for row in wrong] == [False, True, False]
    assert wrong[2]["ratio"] == pytest.approx(math.sqrt(1.06 * 0.99))


def test_a_run_that_was_cut_short_goes_on(tmp_path, monkeypatch, capsys):
    cases = table_cases("llama-8b", "gpu")[1:4]
    names = [case.name for case in cases]
    monkeypatch.setattr(tuning_suite, "table_cases", lambda *_: cases)
    fast, slow = MeasuredTuning(10e-6, 9e-6, tuning=1.0), MeasuredTuning(10e-6, 11e-6, tuning=1.0)
    status, written = rows_of(tmp_path, {names[0]: fast, names[1]: RuntimeError("gone")})
    assert status == 1 and set(written["problems"]) == set(names[1:])
    resume = str(tmp_path / "bench.json")
    # What is known is not asked for again.
    status, written = rows_of(tmp_path, {names[1]: slow, names[2]: fast}, resume=resume)
    assert status == 0 and list(written["measured"]) == names
    assert [row["case"] for row in written["rows"]] == [*names, "geometric mean of 3"]
    assert "1 cases are measured already" in capsys.readouterr().out
    meter = FakeMeter({})
    with pytest.raises(ValueError, match="with --constants-factor-seed None, this is"):
        tuning_suite.run_tuning_suite(arguments(resume=resume, constants_factor_seed=3), meter)
    (tmp_path / "bench.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="not a bench.json of this suite"):
        tuning_suite.run_tuning_suite(arguments(resume=resume), meter)


def test_what_there_is_no_time_for_is_told(tmp_path, monkeypatch):
    cases = table_cases("llama-8b", "gpu")[1:3]
    monkeypatch.setattr(tuning_suite, "table_cases", lambda *_: cases)
    status, written = rows_of(tmp_path, {}, limit=-1.0)
    assert status == 1 and written["rows"] == []
    assert set(written["problems"]) == {case.name for case in cases}


def test_bad_arguments_are_refused():
    suite = ("bench", "--suite", "tuning")
    assert "first GPU only, not on 'cpu'" in failed(command(*suite, "--device", "cpu"))
    assert "no case is named 'x'" in failed(command(*suite, "--only", "x"))
    assert "unknown preset 'x'" in failed(command(*suite, "--preset", "x"))
