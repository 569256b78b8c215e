"""`tenon explain --candidates`: ways with estimates, the one that runs, reasons of the others."""

import json

import pytest
from command_models import linear, saved
from google.protobuf import text_format
from onnxruntime_ep_tenon.commands.explain_candidates import candidate_rows
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.tuning_records import message_class
from test_command import succeeded, tenon

GPU = ("--device", "gpu", "--option", "target_arch=sm_90a", "--option", "claim=all")


def way(candidate, microseconds, **knobs):
    return {
        "candidate": candidate, "skeleton": "gemm", "knobs": knobs, "microseconds": microseconds,
    }  # fmt: skip


def note(first, last, *ways, tuned=False, text=""):
    return {
        "rows": "", "first": first, "last": last, "tuned": tuned, "text": text, "ways": list(ways),
    }  # fmt: skip


FUSION = {
    "chosen": "a (rows <= 8), b (rows > 8)",
    "candidates": [
        {"name": "a", "ok": True}, {"name": "b", "ok": True}, {"name": "c", "ok": True},
        {"name": "d", "ok": False, "reason": "no f64"},
    ],
    "ranges": [
        note(1, 8, way("b", 9.0), way("a", 1.0, tile_m=8), way("a", 2.0, tile_m=16)),
        note(9, 0, way("a", 30.0, tile_m=8), way("b", 4.0)),
    ],
    "tuning": [],
    "microseconds": 3.0,
}  # fmt: skip


def test_each_range_has_one_that_runs():
    assert candidate_rows(FUSION) == [
        ("1 to 8 rows", "b", "gemm", "9.0", ""),
        ("1 to 8 rows", "a", "gemm (tile_m 8)", "1.0", "chosen"),
        ("1 to 8 rows", "a", "gemm (tile_m 16)", "2.0", ""),
        ("rows > 8", "a", "gemm (tile_m 8)", "30.0", ""),
        ("rows > 8", "b", "gemm", "4.0", "chosen"),
        ("", "c", "", "", "possible"),
        ("", "d", "", "", "no: no f64"),
    ]


def test_a_record_goes_before_the_estimate():
    record = note(1, 8, way("a", 0.0, tile_m=16), tuned=True, text="1.5 us measured")
    rows = candidate_rows({**FUSION, "tuning": [record]})
    assert [row[4] for row in rows[:5]] == ["", "", "tuned: 1.5 us measured", "", "chosen"]


def test_what_runs_in_one_way_has_its_estimate():
    fusion = {"chosen": "one", "candidates": [{"name": "one", "ok": True}], "microseconds": 2.0}
    assert candidate_rows(fusion) == [("", "one", "", "2.0", "chosen")]


@pytest.fixture
def model(tmp_path):
    return saved(quantize_model(linear(k=128, n=64), "int4")[0], tmp_path)


@pytest.mark.plugin
def test_ways_are_told_without_a_file_of_records(model):
    told = json.loads(succeeded(tenon("explain", model, "--candidates", "--json", *GPU)))
    (fusion,) = told["graphs"][0]["partitions"][0]["fusions"]
    assert len(fusion["ranges"]) > 2 and fusion["tuning"] == [] and told["tuning"] is None
    assert told["options"]["tune_file"] == "" and told["options"]["tune"] == "cached"
    assert {one["candidate"] for one in fusion["ranges"][0]["ways"]} >= {"pipelined", "mma"}
    printed = succeeded(tenon("explain", model, "--candidates", *GPU))
    assert "no: B is sub-byte or pre-packed" in printed and "Tuning\n" not in printed
    verdicts = [row[4] for row in candidate_rows(fusion)]
    assert verdicts.count("chosen") == len(fusion["ranges"])


@pytest.mark.plugin
def test_records_are_shown_among_all_ways(model, tmp_path):
    file = tmp_path / "records"
    file.write_text("form: 1\n")
    with_file = (*GPU, "--option", f"tune_file={file}")
    told = json.loads(succeeded(tenon("explain", model, "--json", *with_file)))
    (fusion,) = told["graphs"][0]["partitions"][0]["fusions"]
    first = fusion["tuning"][0]
    used = first["ways"][1]
    record = message_class("Record")(
        fusion="x", fingerprint=fusion["fingerprint"], microseconds=1.25, untuned_microseconds=2.0,
        date="2026-11-18T12:00:00Z", machine=told["tuning"]["machine"],
        versions=told["tuning"]["versions"],
    )  # fmt: skip
    record.rows.first, record.rows.last = first["first"], first["last"]
    record.kernel.candidate, record.kernel.skeleton = used["candidate"], used["skeleton"]
    for name, value in used["knobs"].items():
        record.kernel.knob.add(name=name, value=value)
    file.write_text(text_format.MessageToString(message_class()(form=1, record=[record])))
    told = json.loads(succeeded(tenon("explain", model, "--candidates", "--json", *with_file)))
    (fusion,) = told["graphs"][0]["partitions"][0]["fusions"]
    rows = candidate_rows(fusion)
    assert rows[1][4].startswith("tuned: ") and "measured" in rows[1][4]
    assert sum(row[4].startswith("tuned") for row in rows) == 1
