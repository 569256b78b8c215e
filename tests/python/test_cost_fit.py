"""Constants of the cost model: fitted to logs of the tuner; what `tenon explain` says of them."""

import json
import math

import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon import cost_fit

MACHINE = {"arch": "sm_90a", "sm_count": 132, "clock_mhz": 1980, "name": "NVIDIA H200"}
BEGIN = {"event": "begin", "date": "2026-11-18T12:00:00Z", "machine": MACHINE}
# codegen/arch_spec.cc
BYTES, PER_KERNEL = 32_000, 2.0

GEMM = {"n": 4096, "k": 4096, "rows": 64, "unit_k": 64, "unit_words": 1280, "row_terms": 1}
GEMM |= {"plain": 0, "per_block": 1, "overlaps": 0, "tokens": 0, "sm_count": 132}
KNOBS = {"tile_m": 128, "tile_n": 64, "k_per_stage": 128, "stages": 4, "split_k": 2}


def line(fusion, skeleton, us, problem, knobs=None, **others):
    return {
        "event": "plan",
        "fusion": fusion,
        "fingerprint": fusion,
        "rows": {"first": 1, "last": 8},
        "candidate": skeleton,
        "skeleton": skeleton,
        "knobs": knobs or {},
        "problem": problem,
        "us": us,
        "status": "ok",
        **others,
    }


def moved(fusion, bytes_, rate=1.0, per_kernel=1.0, sm_count=132):
    """Bytes through a memory that is `rate` times as fast as the table says."""
    us = per_kernel * PER_KERNEL + bytes_ / (rate * BYTES * sm_count)
    problem = {"bytes": bytes_, "row_bytes": 0, "rows": 1, "sm_count": sm_count}
    return line(fusion, "loop", us, problem)


def written(path, *lines):
    path.write_text(
        "".join(f"{text if isinstance(text, str) else json.dumps(text)}\n" for text in lines)
    )
    return path


@pytest.mark.plugin
def test_fit_finds_the_constants_that_made_the_times(command, tmp_path):
    plans = [moved(f"f{i}", int(2.0**i), 0.6, 1.7) for i in range(12, 34)]
    log = written(tmp_path / "a.jsonl", BEGIN, *plans)
    told = command("tune", "--fit", log, "--json")
    assert told.status == 0 and told.err == "", told.err
    answer = json.loads(told.out)
    assert answer["plans"] == len(plans) and answer["warnings"] == []
    assert answer["before"]["all"]["median"] > 0.4
    assert answer["after"]["all"]["p90"] < 0.05
    assert list(answer["after"]["skeletons"]) == ["loop"]
    fitted = {one["name"]: one["fitted"] / one["table"] for one in answer["constants"]}
    assert math.isclose(fitted["roofline.bytes"], 0.6, rel_tol=0.03)
    assert math.isclose(fitted["roofline.per_kernel"], 1.7, rel_tol=0.03)
    assert all(fitted[name] == 1 for name in answer["kept"])
    assert "gemm.bytes" in answer["kept"] and answer["bounded"] == []
    assert '.card = "NVIDIA H200", .date = "2026-11-18"' in answer["table"]


@pytest.mark.plugin
def test_fit_prints_what_changes(command, tmp_path):
    log = written(
        tmp_path / "a.jsonl", BEGIN, *[moved(f"f{i}", 1 << i, 0.5) for i in range(12, 34)]
    )
    told = command("tune", "--fit", log)
    assert told.status == 0, told.err
    assert "22 plans measured on NVIDIA H200 (sm_90a)." in told.out
    assert "roofline.bytes" in told.out and "    .roofline = {.bytes = " in told.out
    assert "No plan depends on: gemm.bytes" in told.out


@pytest.mark.plugin
def test_regret_is_the_time_of_the_models_choice_over_the_best(command, tmp_path):
    wide, narrow = dict(KNOBS), dict(KNOBS, tile_n=8)
    log = written(
        tmp_path / "a.jsonl",
        BEGIN,
        line("f", "gemm", 30.0, GEMM, wide),
        line("f", "gemm", 20.0, GEMM, narrow),  # eight times the tiles: the model says no
        line("g", "gemm", 10.0, GEMM, wide),
    )
    answer = json.loads(command("tune", "--fit", log, "--json").out)
    assert answer["before"]["groups"] == 1
    assert math.isclose(answer["before"]["worst_regret"], 1.5)


@pytest.mark.plugin
def test_bad_lines_cost_a_warning(command, tmp_path):
    good = [moved(f"f{i}", 1 << i) for i in range(12, 24)]
    cut = json.dumps(good[0])[:-20]
    other = dict(BEGIN, machine=dict(MACHINE, arch="sm_80"))
    log = written(
        tmp_path / "a.jsonl",
        good[0],  # before any machine
        BEGIN,
        *good,
        cut,
        "",
        "[1, 2]",
        line("f", "gemm", 9.0, GEMM, dict(KNOBS, clusters=2)),
        line("f", "gemm", 9.0, GEMM, dict(KNOBS, stages=1000)),
        line("f", "tcgen05", 9.0, GEMM, KNOBS),
        line("f", "gemm", 9.0, {}, KNOBS),
        line("f", "gemm", "fast", GEMM, KNOBS),
        line("f", "gemm", 9.0, dict(GEMM, n=0), KNOBS),
        dict(line("f", "gemm", 9.0, GEMM, KNOBS), status="spills"),
        other,
        *good[:2],
    )
    told = command("tune", "--fit", log, "--json")
    assert told.status == 0, told.err
    answer = json.loads(told.out)
    assert answer["plans"] == len(good) and answer["failed"] == 1
    for expected in [
        "the first is %s:1: no machine is told before it",
        "2 lines dropped, the first is %s:15: no JSON object, or cut off",
        "%s:18: unknown knob 'clusters'",
        "%s:19: no GEMM is cut like this",
        "%s:20: unknown skeleton 'tcgen05'",
        "%s:21: it does not tell its problem in numbers",
        "%s:22: a field is missing, or of another type",
        "%s:23: a number of the problem is missing, or out of range",
        "2 lines dropped, the first is %s:26: measured on sm_80, not on sm_90a",
    ]:
        assert expected.replace("%s", str(log)) in told.err, expected
    assert len(answer["warnings"]) == 9
    asked = json.loads(command("tune", "--fit", log, "--arch", "sm_80", "--json").out)
    assert asked["plans"] == 2 and asked["arch"] == "sm_80"


@pytest.mark.plugin
def test_nothing_to_fit(command, tmp_path):
    empty = written(tmp_path / "empty.jsonl", BEGIN)
    told = command("tune", "--fit", empty)
    assert told.status != 0 and "no plan that was measured" in told.err
    unknown = written(tmp_path / "a.jsonl", BEGIN, line("f", "gemm", 9.0, {}, KNOBS))
    told = command("tune", "--fit", unknown)
    assert told.status != 0 and "no plan that the cost model can estimate" in told.err
    machine = dict(BEGIN, machine=dict(MACHINE, arch="sm_7"))
    told = command("tune", "--fit", written(tmp_path / "b.jsonl", machine, moved("f", 4096)))
    assert told.status != 0 and "no GPU architecture is called 'sm_7'" in told.err
    told = command("tune", "--fit", tmp_path / "absent.jsonl")
    assert told.status != 0 and "absent.jsonl" in told.err


def test_ranges_of_one_log_are_groups(tmp_path):
    log = written(
        tmp_path / "a.jsonl",
        BEGIN,
        moved("f", 1),
        moved("f", 1),
        dict(moved("f", 1), rows={"first": 9}),
        BEGIN,
        moved("f", 1),
    )
    assert [plan["group"] for plan in cost_fit.read_logs([log]).plans] == [0, 0, 1, 2]


@pytest.mark.plugin
def test_explain_says_where_the_cost_model_extrapolates(command, tmp_path):
    model = saved(linear(), tmp_path)

    def told(arch):
        arguments = ("explain", model, "--device", "gpu", "--option", f"target_arch={arch}")
        return command(*arguments).out, json.loads(command(*arguments, "--json").out)["device"]

    text, device = told("sm_80")
    assert "nobody fitted constants for sm_80: those of sm_90a (H200, 2026-11-15)" in text
    assert "108 SMs, fitted with 132" in device["extrapolates"]
    assert device["cost_model_date"] == "2026-11-15"
    assert told("sm_90a")[1]["extrapolates"] == []


@pytest.mark.plugin
def test_explain_says_which_fusions_were_not_fitted(command, tmp_path):
    folder = tmp_path / "decoder"
    command("models", "decoder", "--preset", "tiny-llama", "--weights", "int4", "--out", folder)
    arguments = ("explain", folder, "--device", "gpu", "--option", "target_arch=sm_90a")
    assert "cost model extrapolates: 7 fusions of sizes that were not fitted: K 64 < 512" in (
        command(*arguments).out
    )
    arguments = ("explain", folder / "model.onnx", *arguments[2:], "--json")
    fusions = json.loads(command(*arguments).out)["graphs"][0]["partitions"][0]["fusions"]
    texts = [fusion["extrapolates"] for fusion in fusions]
    assert texts.count("K 64 < 512") == 7 and "" in texts


@pytest.mark.plugin
def test_explain_shows_random_factors(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TENON_COST_FACTORS", "7")
    model = saved(linear(), tmp_path)
    arguments = ("explain", model, "--device", "gpu", "--option", "target_arch=sm_90a")
    assert "random factors of seed 7 (TENON_COST_FACTORS)" in command(*arguments).out
    assert json.loads(command(*arguments, "--json").out)["device"]["cost_factors"] == 7
    monkeypatch.setenv("TENON_COST_FACTORS", "many")
    told = command(*arguments)
    assert "TENON_COST_FACTORS='many' is no seed" in told.out + told.err
