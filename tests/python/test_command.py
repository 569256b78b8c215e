"""The command `tenon`, run as a person runs it."""

import json
import os
import re
import subprocess
import sys

import onnx
import pytest
from onnxruntime_ep_tenon import console
from onnxruntime_ep_tenon.models import encoder
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot


def tenon(*arguments, cwd=None, environment=None):
    return subprocess.run(
        [sys.executable, "-m", "onnxruntime_ep_tenon", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, cwd=cwd,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def succeeded(result) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def failed(result) -> str:
    assert result.returncode != 0
    assert "Traceback" not in result.stderr, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "encoder.onnx"
    onnx.save(encoder.build_encoder(shape=encoder.SMALL), path)
    return path


@pytest.fixture(scope="module")
def nvfp4_model(small_model):
    path = small_model.with_name("encoder.nvfp4.onnx")
    onnx.save(quantize_model(onnx.load(small_model), "nvfp4")[0], path)
    return path


def test_help_lists_every_command():
    text = succeeded(tenon("--help"))
    for command in (
        "doctor",
        "demo",
        "explain",
        "run",
        "quantize",
        "repair",
        "tune",
        "bench",
        "models",
        "perplexity",
    ):
        assert command in text


def test_no_command_shows_the_usage():
    assert "usage: tenon" in failed(tenon())


def test_quantize_writes_a_model_and_a_table(small_model, tmp_path):
    target = tmp_path / "out.onnx"
    text = succeeded(tenon("quantize", small_model, "--format", "nvfp4", "--out", target))
    assert "12 of 12 weights quantised to nvfp4" in text
    onnx.checker.check_model(onnx.load(target), full_check=True)


def test_quantize_reports_json(small_model, tmp_path):
    arguments = ("--format", "int4", "--out", tmp_path / "o.onnx", "--json")
    report = json.loads(succeeded(tenon("quantize", small_model, *arguments)))
    assert report["format"] == "int4" and len(report["layers"]) == 12
    assert all(0 < layer["error"] < 0.2 for layer in report["layers"])
    assert report["bytes_after"] < report["bytes_before"]


def test_quantize_refuses_to_overwrite_the_model(small_model):
    before = small_model.read_bytes()
    arguments = ("--format", "int4", "--out", small_model)
    assert "--out" in failed(tenon("quantize", small_model, *arguments))
    assert small_model.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"junk that is no model"])
def test_quantize_says_what_is_wrong_with_a_file(tmp_path, content):
    path = tmp_path / "model.onnx"
    if content:
        path.write_bytes(content)
    assert "model.onnx" in failed(tenon("quantize", path, "--format", "int4"))


def test_an_absent_library_is_explained(tmp_path, small_model):
    """A copy of the package without its library, as after a broken installation."""
    package = tmp_path / "onnxruntime_ep_tenon"
    import onnxruntime_ep_tenon

    source = os.path.dirname(onnxruntime_ep_tenon.__file__)
    import shutil

    shutil.copytree(source, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    environment["TENON_LIBRARY_PATH"] = ""
    result = tenon("doctor", cwd=tmp_path, environment=environment)
    assert result.returncode == 1
    assert "MISSING" in result.stdout and "TENON_LIBRARY_PATH" in result.stdout
    assert "make build" in failed(
        tenon("explain", small_model, cwd=tmp_path, environment=environment)
    )


@pytest.mark.plugin
def test_doctor_finds_everything():
    text = succeeded(tenon("doctor"))
    assert "Tenon is ready." in text and "MISSING" not in text
    report = json.loads(succeeded(tenon("doctor", "--json")))
    assert report["usable"]
    assert any("NVFP4 product" in check["what"] for check in report["checks"])


@pytest.mark.plugin
def test_doctor_s_table_fits_a_page(command):
    """Where nothing says how wide lines may be; a path stays in one piece."""
    lines = command("doctor").out.splitlines()
    long = [line for line in lines if len(line) > 100]
    assert len(lines) > 10 and all("/" in line for line in long), long


def test_a_table_on_a_narrow_terminal_cuts_no_path(monkeypatch, capsys):
    pytest.importorskip("rich")
    path = "/a/" + "long/" * 20 + "path"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    console.table(["size", "file"], [("1 B", path)])
    shown = capsys.readouterr().out
    assert "…" not in shown and "".join(shown.split()).count("long/") == 20


def test_more_threads_than_cpus_are_warned_of(command, tmp_path):
    told = command("run", tmp_path / "none.onnx", "--threads", 10000)
    assert "--threads 10000 is more than the" in told.err
    assert "--threads" not in command("run", tmp_path / "none.onnx", "--threads", 1).err


def test_explain_shows_partitions_and_draws(nvfp4_model, tmp_path):
    svg, page = tmp_path / "graph.svg", tmp_path / "graph.html"
    text = succeeded(tenon("explain", nvfp4_model, "--svg", svg, "--html", page, "--candidates"))
    assert re.search(r"most of it.*\n.*\n.*(compiling|lowering|fusions) \d+ ms", text)
    assert "Partitions" in text and "scaled_dot" in text
    assert svg.read_text().startswith("<svg") and "scaled_dot" in svg.read_text()
    assert "<svg" in page.read_text() and "Fusions" in page.read_text()


@pytest.mark.plugin
def test_explain_reports_json(nvfp4_model):
    report = json.loads(succeeded(tenon("explain", nvfp4_model, "--json", "--device", "cpu")))
    assert report["schema"] == 1 and report["provider"] == "TenonExecutionProvider"
    assert report["graphs"][0]["claimed"] == report["graphs"][0]["nodes"]
    phases = report["graphs"][0]["partitions"][0]["phases_ms"]
    assert list(phases) == ["fusions", "lowering", "compiling"]
    assert all(ms >= 0 for ms in phases.values())


@pytest.mark.plugin
@pytest.mark.parametrize("judge", ["reference", "cpu"])
def test_run_compares(small_model, judge):
    arguments = ("--compare", judge, "--dim", "batch=2", "--dim", "sequence=9", "--max-int", 199)
    text = succeeded(tenon("run", small_model, *arguments))
    assert "ok" in text and "WRONG" not in text


@pytest.mark.plugin
def test_run_saves_what_it_read_and_wrote(nvfp4_model, tmp_path):
    arguments = ("--save", tmp_path, "--dim", "batch=2", "--json")
    report = json.loads(succeeded(tenon("run", nvfp4_model, *arguments)))
    assert report["outputs"]["sentence_embedding"][1] == [2, encoder.SMALL.hidden]
    assert (tmp_path / "input_input_ids.npy").is_file()
    assert (tmp_path / "output_sentence_embedding.npy").is_file()
    again = ("--input", f"input_ids={tmp_path / 'input_input_ids.npy'}", "--dim", "batch=2")
    succeeded(tenon("run", nvfp4_model, *again))


@pytest.mark.plugin
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "nobody=x.npy"), "has no input 'nobody'"),
        (("--option", "no_such_option=1"), "no_such_option"),
        (("--device", "toaster"), "Tenon offers"),
        (("--dim", "batch=many"), "NAME=NUMBER"),
        (("--shape", "input_ids=2,x"), "NAME=1,2,3"),
        (("--shape", "nobody=2,3"), "has no input 'nobody'"),
    ],
)
def test_run_explains_bad_arguments(small_model, arguments, message):
    assert message in failed(tenon("run", small_model, *arguments))


@pytest.mark.plugin
def test_bench_times_both_providers(small_model, tmp_path):
    arguments = ("--seconds", 0.2, "--out", tmp_path, "--json")
    result = json.loads(succeeded(tenon("bench", small_model, *arguments)))
    assert {timing["name"] for timing in result["timings"]} == {"tenon", "cpu"}
    assert result["tenon_over_cpu"] > 0
    assert json.loads((tmp_path / "bench.json").read_text()) == result
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.plugin
def test_bench_says_who_cannot_run_a_model(tmp_path):
    path = tmp_path / "dot.onnx"
    onnx.save(build_scaled_dot("nvfp4", Problem()), path)
    text = succeeded(tenon("bench", path, "--seconds", 0.1))
    assert "cpu cannot run this model" in text
    asked = tenon("bench", path, "--seconds", 0.1, "--providers", "tenon,cpu", "--json")
    assert asked.returncode == 1 and "cpu" in json.loads(asked.stdout)["failures"]


def test_models_writes_a_decoder(tmp_path):
    target = tmp_path / "decoder"
    told = json.loads(
        succeeded(
            tenon(
                "models", "decoder", "--preset", "tiny-qwen3", "--layers", 3, "--weights", "int4",
                "--out", target, "--json",
            )
        )
    )  # fmt: skip
    model = onnx.load(told["model"])
    assert told["check"].startswith(("Checked: one Run gives finite numbers", "Not run: "))
    assert told["bytes"] == sum(f.stat().st_size for f in target.glob("model.onnx*"))
    assert [n.op_type for n in model.graph.node].count("GroupQueryAttention") == 3
    assert (target / "genai_config.json").is_file()


def test_models_refuses_what_it_does_not_know(tmp_path):
    assert "unknown preset 'llama-9b'; one of: tiny-llama" in failed(
        tenon("models", "decoder", "--preset", "llama-9b", "--out", tmp_path)
    )
    assert "cannot be written" in failed(
        tenon("models", "decoder", "--weights", "f32", "--activations", "f16", "--out", tmp_path)
    )
