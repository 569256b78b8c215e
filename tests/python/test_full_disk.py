"""A disk that is full: an error of one line, and nothing left of what was begun."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.models import staged_folder


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def one_line(told) -> str:
    assert told.status == 1 and told.err.startswith("tenon: error: "), told.err
    assert told.err.count("\n") == 1 and ".tenon-" not in told.err, told.err
    return told.err


@pytest.mark.parametrize("kind", ["decoder", "resnet50"])
def test_a_model_that_does_not_fit_leaves_nothing(command, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(Path, "write_bytes", no_space)
    monkeypatch.setattr("onnx.save", no_space)
    told = command("models", kind, "--out", tmp_path / "new" / "folder")
    assert "No space left on device" in one_line(told) and "folder" in told.err
    assert os.listdir(tmp_path) == []


@pytest.mark.plugin
def test_arrays_that_do_not_fit_leave_nothing(command, tmp_path, monkeypatch):
    source, out = saved(linear(), tmp_path), tmp_path / "arrays"
    out.mkdir()
    (out / "output_y.npy").write_bytes(b"of before")
    monkeypatch.setattr("numpy.lib.format.write_array", no_space)
    assert "No space left on device" in one_line(command("run", source, "--save", out))
    assert (out / "output_y.npy").read_bytes() == b"of before"
    assert os.listdir(out) == ["output_y.npy"]


@pytest.mark.plugin
@pytest.mark.parametrize(
    "arguments",
    [
        ("quantize", "--format", "int4", "--out", "new/out.onnx"),
        ("explain", "--html", "page.html"),
        ("explain", "--svg", "graph.svg"),
        ("run", "--trace", "trace.json"),
    ],
)
def test_other_files_that_do_not_fit_leave_nothing(command, tmp_path, monkeypatch, arguments):
    source = saved(linear(), tmp_path)
    monkeypatch.chdir(tmp_path)
    written = Path.write_text

    def no_room(path, *given, **more):
        written(path, "the beginning")
        no_space()

    monkeypatch.setattr(Path, "write_text", no_room)
    monkeypatch.setattr(Path, "write_bytes", no_space)
    name, *options = arguments
    told = command(name, source, *options)
    assert "No space left on device" in one_line(told)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_pipe_gets_what_a_file_would(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    staged_folder.write_whole(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text" and os.listdir(tmp_path) == ["pipe"]
    os.close(reader)


def limited():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.plugin
def test_a_real_write_that_is_cut_says_why(tmp_path):
    """As the system does it: numpy's own writer would tell how much is missing, and no reason."""
    source = saved(linear(), tmp_path)
    command = [sys.executable, "-m", "onnxruntime_ep_tenon", "run", source, "--dim", "rows=512"]
    ran = subprocess.run(
        [*command, "--save", tmp_path / "arrays"],
        capture_output=True, text=True, timeout=120, preexec_fn=limited,
    )  # fmt: skip
    assert ran.returncode == 1 and "File too large" in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr and os.listdir(tmp_path) == ["model.onnx"]


def test_older_files_are_replaced_at_the_end(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").write_text("kept")
    with pytest.raises(ValueError, match="no"), staged_folder.staged(tmp_path) as work:
        np.save(work / "a", np.zeros(1))
        raise ValueError("no")
    with staged_folder.staged(tmp_path) as work:
        (work / "a").write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "new", "b": "kept"}
