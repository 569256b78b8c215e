"""`tenon tune MODEL` against a process that writes a session's log, and against a real session."""

import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.commands import tune_model as tuning
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.tune_log import Tail, TuneLog
from onnxruntime_ep_tenon.tuning_records import read_records
from test_command import failed, tenon
from test_gpu import command

DOT = "tenon::ScaledDot(f16[*,64], f4e2m1[32,64]#) -> (f16[*,32])"
MACHINE = {"arch": "sm_90a", "sm_count": 132, "clock_mhz": 1980, "name": "NVIDIA H200"}


def begin(ranges=2, plans=5, partition="tenon_0"):
    return {
        "event": "begin", "partition": partition, "date": "2026-11-18T12:00:00Z",
        "machine": MACHINE, "fusions": 1, "ranges": ranges, "plans": plans,
    }  # fmt: skip


def plan(status="ok", reason="", us=11.9, first=1, last=8):
    made = {
        "event": "plan", "fusion": DOT, "fingerprint": "0" * 32,
        "rows": {"first": first, "last": last}, "at_rows": last, "candidate": "pipelined",
        "skeleton": "gemm", "knobs": {"tile_m": 16}, "config": "tile 16x8", "expected_us": 12.5,
        "status": status, "reason": reason, "untuned": False,
    }  # fmt: skip
    return made | ({"us": us} if status == "ok" else {})


def range_of(first, last, us, untuned_us, decided_by="alone"):
    rows = {"first": first, "last": last} if last else {"first": first}
    return {
        "event": "range", "fusion": DOT, "fingerprint": "0" * 32, "rows": rows, "at_rows": first,
        "chosen": {"candidate": "pipelined", "config": "tile 16x8", "us": us},
        "untuned": {"candidate": "mma", "config": "", "us": untuned_us},
        "decided_by": decided_by, "seconds": 1.2, "done": 1, "of": 2,
    }  # fmt: skip


END = {"event": "end", "partition": "tenon_0", "seconds": 2.5, "records": 2}
WHOLE = [
    begin(), plan(), plan("refused", "too many registers"), plan("refused", "too many registers"),
    range_of(1, 8, 10.0, 12.0), plan("wrong_result", "off by 3"), plan(),
    range_of(9, 0, 90.0, 98.0, "partition"), END,
]  # fmt: skip

# Writes the log that it was started for, whole lines and pieces of them, and the records' file.
SESSION = """
import json, sys, time
options = dict(word.split("=", 1) for word in sys.argv[4:])
assert options["tune"] == "on", options
log, script = open(options["tune_log"], "a"), json.loads({script!r})
open(options["tune_file"], "w").write("form: 1")
for event in script["events"]:
    text = json.dumps(event) + "\\n"
    for piece in (text[:20], text[20:]):
        log.write(piece)
        log.flush()
print(script["said"])
sys.stdout.flush()
time.sleep(script["lingers"])
sys.exit(script["status"])
"""


def session(events, status=0, said="", lingers=0):
    """What starts a process that does as a session would."""
    script = {"events": events, "status": status, "said": said, "lingers": lingers}
    text = SESSION.format(script=json.dumps(script))

    def start(words):
        command = [sys.executable, "-c", text, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "net.onnx"
    path.touch()
    return path


def arguments(model, **given) -> Namespace:
    usual = {"out": None, "log": None, "json": False, "option": [], "device": "auto", "threads": 0}
    return Namespace(model=str(model), **{**usual, **given})


def test_a_table_of_what_was_chosen_and_gained(model, capsys):
    assert tuning.tune_model(arguments(model), session(WHOLE)) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["fusion", "rows", "kernel", "us", "untuned", "us", "gain", "by"]
    assert lines[2].endswith("1 to 8 rows  pipelined: tile 16x8  10.0        12.0  1.200x  alone")
    assert "rows > 8" in lines[3] and lines[3].endswith("98.0  1.089x  partition")
    assert "All ranges, each once: 100.0 us, untuned 110.0 us: 1.100x." in lines
    assert "5 plans: 2 ok, 2 refused, 1 wrong_result." in lines
    assert "    2  refused: too many registers" in lines
    assert f"Every plan is in {model.with_name('net.tuning.jsonl')}." in lines
    assert lines[-1].endswith(f"tune_file={model.with_name('net.tuning.textproto')}.")
    # No terminal: a line for each range.
    assert err.splitlines()[0] == f"[1/2] {DOT}, 1 to 8 rows: 10.0 us, untuned 12.0"
    assert len(err.splitlines()) == 2


def test_json_has_everything_and_files_can_be_named(model, tmp_path, capsys):
    log = tmp_path / "my.log"
    log.write_text(json.dumps(range_of(1, 0, 1.0, 99.0)) + "\n")  # of an earlier tuning
    given = {"out": str(tmp_path / "a"), "log": str(log), "json": True}
    given["option"] = [("claim", "all")]
    assert tuning.tune_model(arguments(model, **given), session(WHOLE)) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"] and told["gain"] == pytest.approx(1.1) and told["machine"] == MACHINE
    assert [one["chosen"]["us"] for one in told["ranges"]] == [10.0, 90.0]
    assert told["statuses"] == {"ok": 2, "refused": 2, "wrong_result": 1}
    assert told["reasons"][0] == {"status": "refused", "reason": "too many registers", "plans": 2}
    assert (tmp_path / "a").read_text() == "form: 1"


def test_ctrl_c_ends_the_session_and_tells_what_there_is(model, monkeypatch, capsys):
    processes = []

    def start(words):
        processes.append(session([begin(), range_of(1, 8, 10.0, 12.0)], lingers=600)(words))
        return processes[0]

    def interrupt(seconds):
        if model.with_name("net.tuning.jsonl").exists() and processes[0].poll() is None:
            text = model.with_name("net.tuning.jsonl").read_text()
            if text.count("\n") == 2:
                raise KeyboardInterrupt
        sleep(0.01)

    sleep = time.sleep
    monkeypatch.setattr(tuning.time, "sleep", interrupt)
    assert tuning.tune_model(arguments(model), start) == 130
    assert processes[0].returncode is not None
    told = capsys.readouterr().out
    assert "1 of 2 ranges: their records are in" in told and "1.200x" in told


def test_a_session_that_fails_or_dies_is_told(model, capsys):
    refusal = "the host is not tuned yet"
    with pytest.raises(RuntimeError, match=refusal):
        tuning.tune_model(arguments(model), session([], 1, refusal))
    assert capsys.readouterr().out == ""
    trying = {**plan(), "event": "trying"}
    events = [begin(), range_of(1, 8, 1.0, 2.0), trying]
    with pytest.raises(RuntimeError, match="ended with 7.*it tried pipelined: tile 16x8, 1 to 8"):
        tuning.tune_model(arguments(model), session(events, 7))
    assert "Stopped after" in capsys.readouterr().out


def test_nothing_to_tune_is_told(model, capsys):
    assert tuning.tune_model(arguments(model), session([])) == 0
    assert "no fusion of the model can run in more than one way" in capsys.readouterr().out
    assert tuning.tune_model(arguments(model), session([begin(0, 0), END])) == 0
    assert "has a record for every choice" in capsys.readouterr().out


def test_bad_arguments_are_refused_before_anything_runs(model, tmp_path):
    def never(words):
        raise AssertionError("started")

    for given, problem in (
        ({"out": str(tmp_path)}, "is a folder"),
        ({"out": str(tmp_path / "none" / "a")}, "no folder"),
        ({"out": "a.jsonl"}, "cannot hold both"),
        ({"option": [("tune_file", "x")]}, "--out names it"),
        ({"option": [("tune", "off")]}, "sets tune itself"),
    ):
        with pytest.raises((OSError, ValueError), match=problem):
            tuning.tune_model(arguments(model, **given), never)
    with pytest.raises(FileNotFoundError, match="no model file"):
        tuning.tune_model(arguments(tmp_path / "absent.onnx"), never)


def test_the_log_is_read_line_by_line(tmp_path):
    path = tmp_path / "log"
    path.write_text("old\n")
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("a") as file:
        file.write('{"event":')
        file.flush()
        assert tail.lines() == []
        file.write('"end"}\nno json\n[]\n')
        file.flush()
    log = TuneLog()
    assert [log.take(line) for line in tail.lines()] == [{"event": "end"}, None, None]
    assert log.unreadable == 2


def test_what_was_not_measured_is_left_out_of_the_gain():
    log = TuneLog()
    unmeasured = range_of(1, 8, 10.0, None)
    for event in (begin(), unmeasured, range_of(9, 0, 4.0, 6.0)):
        log.take(json.dumps(event))
    assert (log.total("chosen"), log.total("untuned"), log.complete) == (4.0, 6.0, False)


@pytest.mark.plugin
def test_a_model_is_tuned_on_a_gpu_that_the_stub_driver_plays(tmp_path):
    quantized, _ = quantize_model(linear(k=128, n=64), "int4")
    for value in (*quantized.graph.input, *quantized.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 5  # one range
    model = saved(quantized, tmp_path)
    told = json.loads(command("tune", str(model), "--json", "--device", "gpu"))
    assert told["complete"] and told["error"] == "" and len(told["ranges"]) == 1
    assert told["machine"]["name"] == "Stub GPU 0" and sum(told["statuses"].values()) >= 2
    records = read_records(model.with_name("model.tuning.textproto")).records
    assert records[0].microseconds == pytest.approx(told["tuned_us"])
    assert "has a record for every choice" in command("tune", str(model), "--device", "gpu")


def test_the_partition_has_the_last_word():
    log = TuneLog()
    alone = {"event": "range", "fingerprint": "a", "rows": {"first": 1}, "decided_by": "alone"}
    for event in (alone, {**alone, "rows": {"first": 2}}, {**alone, "decided_by": "partition"}):
        log.take(json.dumps(event))
    assert [one["decided_by"] for one in log.ranges] == ["partition", "alone"]


@pytest.mark.plugin
def test_the_command_needs_something_to_do(tmp_path):
    assert "give a model to tune" in failed(tenon("tune"))
    assert "no model file" in failed(tenon("tune", tmp_path / "absent.onnx"))
    assert "give a model to tune, or --show" in failed(tenon("tune", "m.onnx", "--show", "a"))
