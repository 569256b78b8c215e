"""The table of exported models: what is found, how a row is judged, what is measured only once."""

import json
import os
from argparse import Namespace

import numpy as np
import onnx
import pytest
from fake_meter import FakeMeter
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.bench import exported_meter, exported_suite
from onnxruntime_ep_tenon.bench.exported_cases import exported_cases
from onnxruntime_ep_tenon.bench.exported_meter import Claim, ExportedBench, MeasuredExport
from onnxruntime_ep_tenon.models import reference

WHOLE = Claim(8, 8, 1)
CUT = Claim(8, 6, 2, {"TopK": [2, "TopK: no kernel for this op"]})


def product_behind(op: str) -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    rows = ["rows", 64]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def write(folder, name: str, model=None, **sizes):
    (folder / name).mkdir()
    onnx.save(model or product_behind("Relu"), folder / name / "model.onnx")
    if sizes:
        (folder / name / "sizes.json").write_text(json.dumps(sizes))


def arguments(folder, **given) -> Namespace:
    usual = {"json": False, "out": None, "seed": 0, "device": "cpu", "only": None, "option": []}
    return Namespace(**{**usual, "models_dir": folder, "resume": None, "limit": 1e9, **given})


def test_models_are_found_with_their_sizes(tmp_path):
    write(tmp_path, "b.dynamo18", rows=7)
    write(tmp_path, "a.legacy17")
    write(tmp_path, ".c.unfinished")
    first, second = exported_cases(str(tmp_path), None)
    assert (first.name, first.sizes()) == ("a.legacy17", {})
    assert (second.name, second.sizes()) == ("b.dynamo18", {"rows": 7})
    assert [case.name for case in exported_cases(str(tmp_path), "b*")] == ["b.dynamo18"]
    with pytest.raises(ValueError, match="is named 'x'"):
        exported_cases(str(tmp_path), "x")
    with pytest.raises(FileNotFoundError, match="scripts/export_models"):
        exported_cases(str(tmp_path / "a.legacy17"), None)
    with pytest.raises(ValueError, match="--models-dir"):
        exported_cases(None, None)


@pytest.mark.parametrize(
    ("measured", "verdict", "note"),
    [
        (MeasuredExport(1.0, 1.0, claim=WHOLE, planned=WHOLE), "", ""),
        (MeasuredExport(1.03, 1.0, claim=CUT, planned=WHOLE), "SLOW", ""),
        (
            MeasuredExport(1.0, 1.0, claim=WHOLE, planned=CUT),
            "cut",
            "TopK 2: no kernel for this op",
        ),
        (MeasuredExport(wrong="'y': off", planned=WHOLE), "WRONG", "'y': off"),
        (MeasuredExport(refused="bad", planned=WHOLE), "REFUSED", "Tenon: bad"),
        (MeasuredExport(peer_refused="bad", planned=WHOLE), "", "the CPU provider: bad"),
        (MeasuredExport(refused="bad", peer_refused="no", planned=WHOLE), "neither", "Tenon: bad"),
        (MeasuredExport(plan_refused="no"), "NOT PLANNED", "no"),
        (
            MeasuredExport(1.0, 1.0, stored=0.02, file=0.01, claim=WHOLE, planned=WHOLE),
            "",
            "0.0200 from the stored outputs, its file 0.0100",
        ),
        (RuntimeError("ended with -11"), "CRASHED", "ended with -11"),
    ],
)
def test_verdicts(measured, verdict, note, tmp_path, capsys):
    write(tmp_path, "m")
    given = arguments(tmp_path, out=tmp_path / "out")
    told = exported_suite.run_exported_suite(given, FakeMeter({"m": measured}))
    assert told == (verdict not in ("", "cut", "neither"))
    (row,) = json.loads((tmp_path / "out" / "bench.json").read_text())["rows"]
    assert row["verdict"] == verdict
    assert note in capsys.readouterr().out


def test_what_was_measured_is_kept_until_its_file_changes(tmp_path, capsys):
    for name in ("a", "b", "c"):
        write(tmp_path, name)
    out = tmp_path / "out"
    found = MeasuredExport(1.0, 2.0, claim=WHOLE, planned=CUT)
    meter = FakeMeter({"a": found, "b": found, "c": RuntimeError("gone")})
    assert exported_suite.run_exported_suite(arguments(tmp_path, out=out), meter) == 1
    os.utime(tmp_path / "b" / "model.onnx", (1, 1))
    again = FakeMeter({"b": MeasuredExport(3.0, 2.0, planned=WHOLE), "c": found})
    resumed = arguments(tmp_path, resume=out / "bench.json", json=True)
    capsys.readouterr()
    assert exported_suite.run_exported_suite(resumed, again) == 1  # 'a' was not asked for again
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["case"], row["ratio"]) for row in rows] == [("a", 0.5), ("b", 1.5), ("c", 0.5)]
    assert rows[0]["measured"]["planned"]["left"] == {"TopK": [2, "TopK: no kernel for this op"]}


@pytest.mark.plugin
def test_a_model_is_run_by_both_and_planned(tmp_path):
    write(tmp_path, "m", rows=3)
    (case,) = exported_cases(str(tmp_path), None)
    measured = ExportedBench(tmp_path, 0, "cpu", {"claim": "all"}).measure(case)
    assert measured.claim.is_whole and measured.planned.is_whole and not measured.wrong
    assert measured.tenon > 0 and measured.peer > 0 and measured.difference < 1e-6


@pytest.mark.plugin
def test_what_stands_in_the_way_is_told(tmp_path):
    write(tmp_path, "m")
    (case,) = exported_cases(str(tmp_path), None)
    measured = ExportedBench(tmp_path, 0, "cpu", {"exclude_ops": "Relu", "claim": "all"}).measure(
        case
    )
    assert measured.planned.claimed == 1 and list(measured.planned.left) == ["Relu"]
    refused = ExportedBench(tmp_path, 0, "cpu", {"claim": "everything"}).measure(case)
    assert "everything" in refused.refused and "everything" in refused.plan_refused
    assert not refused.peer_refused


@pytest.mark.plugin
@pytest.mark.parametrize(
    ("ours", "file", "is_wrong"),
    [(0.02, 0.0, False), (0.05, 0.0, True), (0.05, 0.05, False), (np.nan, 0.0, True)],
)
def test_stored_outputs_judge_unless_the_file_computes_something_else(
    tmp_path, monkeypatch, ours, file, is_wrong
):
    """How far from the stored outputs Tenon is, and the file in float64."""
    write(tmp_path, "m", rows=9)
    x = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    stored = np.maximum(x, 0) + ours
    np.savez(tmp_path / "m" / "model.npz", x=x, y=stored)
    monkeypatch.setattr(reference, "evaluate", lambda *_: [stored + file])
    (case,) = exported_cases(str(tmp_path), None)
    measured = ExportedBench(tmp_path, 0, "cpu", {"claim": "all"}).measure(case)
    assert ("from the stored outputs" in measured.wrong) == is_wrong


def test_what_the_other_leaves_unwritten_is_not_judged():
    ours, one, other = np.array([1, 2, 3.0]), np.array([1, 0, np.nan]), np.array([1, 1, np.nan])
    np.testing.assert_array_equal(exported_meter._where_alike(ours, one, other), [1, 0, 3])
    assert exported_meter._where_alike(ours, one[:2], other[:2]) is ours
