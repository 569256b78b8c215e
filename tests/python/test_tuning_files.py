"""Files of tuning records: `tenon tune`, and the text form against the library of its inventors."""

import json
from pathlib import Path

import pytest
from google.protobuf import text_format
from onnxruntime_ep_tenon.tuning_records import message_class, read_records

# What the plugin's writer writes (tests/kernels/autotune/tuning_file_test.cc holds it to this).
WRITTEN = Path(__file__).with_name("tuning_records.textproto")


def record(first=1, last=8, date="2026-11-18T12:00:00Z", microseconds=10.0):
    made = message_class("Record")(
        fusion="tenon::ScaledDot(f32[*,64]) -> (f32[*,32])",
        fingerprint="0123456789abcdef" * 2,
        microseconds=microseconds,
        untuned_microseconds=12.0,
        date=date,
    )
    made.rows.first, made.rows.last = first, last
    made.machine.arch, made.machine.sm_count = "sm_90a", 132
    made.versions.tenon = "0.1.0"
    made.kernel.candidate, made.kernel.skeleton = "pipelined", "gemm"
    made.kernel.knob.add(name="tile_m", value=128)
    return made


def written(path, *records):
    path.write_text(text_format.MessageToString(message_class()(form=1, record=records)))
    return path


def test_the_library_reads_what_the_plugin_writes():
    parsed = text_format.Parse(WRITTEN.read_text(), message_class()())
    assert len(parsed.record) == 2 and parsed.form == 1
    first, second = parsed.record
    assert (first.rows.first, first.rows.last, second.rows.last) == (1, 8, 0)
    assert first.machine.arch == "sm_90a" and first.versions.driver == "13000"
    assert {knob.name: knob.value for knob in first.kernel.knob} == {"tile_m": 16, "split_k": 2}
    assert first.microseconds == 10.25 and first.untuned.candidate == "mma"


def test_show(command, tmp_path):
    path = written(tmp_path / "a.textproto", record(), record(9, 0))
    told = command("tune", "--show", path)
    assert told.status == 0 and told.err == ""
    assert "pipelined: gemm (tile_m 128)" in told.out and "rows > 8" in told.out
    shown = json.loads(command("tune", "--show", path, "--json").out)
    assert [one["rows"]["first"] for one in shown["records"]] == [1, 9]
    assert shown["records"][0]["kernel"]["knobs"] == {"tile_m": 128}
    assert shown["problems"] == []


def test_merge_keeps_the_newest_of_each_key(command, tmp_path):
    newer = record(date="2027-01-01T00:00:00Z", microseconds=9.0)
    a = written(tmp_path / "a", record(), record(9, 16))
    b = written(tmp_path / "b", newer)
    for order in ((a, b), (b, a)):
        out = tmp_path / "c"
        told = command("tune", "--merge", *order, "--out", out)
        assert told.status == 0 and "2 records of 2 files" in told.out
        merged = read_records(out)
        assert [one.microseconds for one in merged.records] == [9.0, 10.0]
        assert text_format.Parse(out.read_text(), message_class()()).form == 1


def test_merge_keeps_fields_of_a_newer_version(command, tmp_path):
    path = written(tmp_path / "a", record())
    path.write_text(path.read_text().replace("  date:", "  stall { cycles: 7 }\n  date:"))
    out = tmp_path / "c"
    assert command("tune", "--merge", path, WRITTEN, "--out", out).status == 0
    assert "stall { cycles: 7 }" in out.read_text()
    assert len(read_records(out).records) == 3


BAD = {
    "microseconds: 10": 'microseconds: "ten"',
    '"0123456789abcdef0123456789abcdef"': '"0123"',
    'arch: "sm_90a"': "",
    "first: 9": "first: 90",
    'candidate: "pipelined"': "",
    'skeleton: "gemm"': 'skeleton: "gemm',
}


@pytest.mark.parametrize("spot", BAD)
def test_a_bad_record_is_dropped_and_told_of(command, tmp_path, spot):
    bad = written(tmp_path / "bad", record(9, 16)).read_text().replace(spot, BAD[spot])
    good = written(tmp_path / "good", record()).read_text().removeprefix("form: 1\n")
    path = tmp_path / "both"
    path.write_text(bad + good)
    told = command("tune", "--show", path, "--json")
    assert told.status == 0
    shown = json.loads(told.out)
    assert [one["rows"]["first"] for one in shown["records"]] == [1]
    assert len(shown["problems"]) == 1 and "the record at line 2 was dropped" in told.err


def test_every_cut_of_a_file_is_shown(command, tmp_path):
    text = WRITTEN.read_text()
    path = tmp_path / "cut"
    for length in range(0, len(text), 97):
        path.write_text(text[:length])
        assert command("tune", "--show", path).status == 0


def test_what_cannot_be_done_is_said_in_one_line(command, tmp_path):
    path = written(tmp_path / "a", record())
    assert "--merge needs --out FILE" in command("tune", "--merge", path).err
    assert (
        "--out is for a model, and for --merge"
        in command("tune", "--show", path, "--out", path).err
    )
    told = command("tune", "--show", tmp_path / "absent")
    assert told.status == 1 and "absent" in told.err
    path.write_text("form: 7\n")
    assert "has form 7" in command("tune", "--show", path).err
    told = command("tune")
    assert told.status == 1 and "give a model to tune" in told.err
