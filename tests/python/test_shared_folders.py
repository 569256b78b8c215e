"""Folders in which others may put what they like: nothing of ours goes where their links lead."""

import os
import re
from pathlib import Path

import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.context_models import compile_model
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot

pytestmark = pytest.mark.plugin

OPTIONS = Path(__file__).parents[2] / "docs" / "options.md"
STRANGER = 65533
# Options that name a file or a folder, and what holds them to it.
HELD = {
    "cache_dir": "tests/base/disk_cache_test.cc: a folder of others is not used",
    "dump_dir": "here",
    "report_file": "here",
    "tune_file": "tests/base/publish_file_test.cc: written on a GPU, by the same helper",
    "tune_log": "opened by its name: the kernel sees the link",
}


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(build_scaled_dot("int4", Problem(n=32, k=64)), path)
    return path


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious"
    path.write_text("old")
    return path


@pytest.fixture
def shared(tmp_path):
    """As /tmp is."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of others")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def plant(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, STRANGER, STRANGER)


def test_every_option_that_names_a_place_is_held_to_it():
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (a file name|a folder) \|", OPTIONS.read_text(), re.M)
    assert {key for key, _ in rows} == set(HELD)


def test_a_report_is_not_written_through_a_strangers_link(model, shared, precious):
    plant(shared / "report.json", precious)
    with pytest.raises(Exception, match=f"report.json.* user {STRANGER} put into a folder"):
        tenon.create_session(model, "cpu", quiet(), report_file=shared / "report.json")
    assert precious.read_text() == "old"


def test_nor_is_a_dump(model, shared, precious):
    first = shared / "tenon_0"
    first.mkdir()
    first.chmod(0o1777)
    plant(first / "00.imported.graph.txt", precious)
    with pytest.raises(Exception, match=f"user {STRANGER} put into a folder"):
        tenon.create_session(model, "cpu", quiet(), dump_dir=shared)
    assert precious.read_text() == "old"


def test_nor_are_a_context_model_and_its_data(model, shared, precious, tmp_path):
    written, _ = compile_model(model, tmp_path / "c.onnx", "cpu", session_options=quiet())
    for name in ("c.onnx", written.files[0].name):
        plant(shared / name, precious)
    again, _ = compile_model(model, shared / "c.onnx", "cpu", session_options=quiet())
    assert precious.read_text() == "old"
    assert [file.name for file in again.files] == [file.name for file in written.files]
    assert not any(path.is_symlink() for path in shared.iterdir())
    tenon.create_session(again.path, "cpu", quiet())
