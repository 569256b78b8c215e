"""The parts of the package that need no plugin."""

import site
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon import console, cuda, inputs, library, requirements, tensors
from onnxruntime_ep_tenon.models import encoder
from onnxruntime_ep_tenon.report import Report
from onnxruntime_ep_tenon.session import _as_strings


def test_names():
    assert tenon.get_ep_name() == "TenonExecutionProvider"
    assert tenon.get_ep_names() == [tenon.get_ep_name()]


@pytest.mark.parametrize("is_enabled", [True, False, None])
def test_the_users_own_packages_bring_libraries_only_where_python_reads_them(
    monkeypatch, tmp_path, is_enabled
):
    """Not with -I or -s, in a virtual environment, or for another user."""
    theirs = tmp_path / "nvidia" / "theirs" / "lib"
    theirs.mkdir(parents=True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", is_enabled)
    assert (str(theirs) in cuda.library_folders()) is bool(is_enabled)


@pytest.fixture
def no_packaged_library(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_PACKAGE", tmp_path)
    monkeypatch.delenv("TENON_LIBRARY_PATH", raising=False)
    return tmp_path


def test_the_packaged_library_comes_first(no_packaged_library, monkeypatch):
    packaged = no_packaged_library / library.LIBRARY
    packaged.touch()
    monkeypatch.setenv("TENON_LIBRARY_PATH", "/nowhere")
    assert library.get_library_path() == str(packaged)


def test_developers_name_the_library(no_packaged_library, monkeypatch, tmp_path):
    other = tmp_path / "other.so"
    other.touch()
    monkeypatch.setenv("TENON_LIBRARY_PATH", str(other))
    assert library.get_library_path() == str(other)


def test_a_wrong_path_is_named(no_packaged_library, monkeypatch):
    monkeypatch.setenv("TENON_LIBRARY_PATH", "/nowhere/lib.so")
    with pytest.raises(tenon.LibraryNotFoundError, match="/nowhere/lib.so"):
        library.get_library_path()


def test_an_absent_library_says_what_to_do(no_packaged_library):
    with pytest.raises(tenon.LibraryNotFoundError, match="make wheel.*make build"):
        library.get_library_path()


def test_the_version_is_the_one_that_is_built(command):
    told = command("--version")
    assert told.status == 0 and told.out == f"tenon {tenon.__version__}\n"
    sources = Path(__file__).resolve().parents[2] / "CMakeLists.txt"
    if sources.exists():
        assert f"project(tenon VERSION {tenon.__version__} " in sources.read_text()


def test_versions_compare_as_numbers():
    assert library.version_tuple("1.24.4") < library.version_tuple("1.31.1")
    assert library.version_tuple("1.32.0.dev20260101") == (1, 32, 0)
    assert library.version_tuple(tenon.minimum_runtime_version()) == (1, 24, 4)


def test_an_old_runtime_is_refused(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.20.0")
    with pytest.raises(RuntimeError, match="1.20.0 is too old for Tenon.*1.24.4"):
        tenon.register()


def test_a_missing_package_says_what_to_install():
    with pytest.raises(requirements.MissingPackageError, match="pip install no_such_package$"):
        requirements.require("no_such_package.part", "for this test")


def test_options_travel_as_text():
    strings = _as_strings({"a": True, "b": ["x", "y"], "c": 3, "d": "text"})
    assert strings == {"a": "1", "b": "x,y", "c": "3", "d": "text"}
    with pytest.raises(TypeError, match="option e"):
        _as_strings({"e": object()})


SMALL_TYPES = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
]


@pytest.mark.parametrize("name", SMALL_TYPES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (1,), ()])
def test_small_types_go_in_and_out_unchanged(name, shape):
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.random.default_rng(0).integers(0, 8, shape)
    if name == "int4":
        values = values - 8
    array = np.asarray(values).astype(np.float32).astype(dtype)
    try:
        value = tensors.to_ort_value(array)
    except Exception as error:
        pytest.skip(f"this runtime has no {name}: {error}")
    back = tensors.from_ort_value(value)
    assert back.dtype == dtype and back.shape == shape
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))


def test_inputs_are_made_by_type_and_shape():
    ids = inputs.random_input("input_ids", "tensor(int64)", [2, 5], 0, 10)
    assert ids.dtype == np.int64 and ids.max() <= 10
    mask = inputs.random_input("attention_mask", "tensor(int64)", [2, 5], 0, 10)
    assert mask.tolist() == [[1] * 5] * 2
    with pytest.raises(inputs.InputError, match="tensor.string."):
        inputs.random_input("text", "tensor(string)", [1], 0, 1)


def small_report(model) -> Report:
    names = [node.name for node in model.graph.node]
    fusion = {"name": "f0", "kind": "scaled_dot", "nodes": names[5:9], "problem": "p",
              "chosen": "c", "candidates": []}  # fmt: skip
    return Report(
        {
            "schema": 1,
            "graphs": [
                {
                    "name": "main",
                    "nodes": len(names),
                    "claimed": len(names) - 2,
                    "partitions": [{"name": "tenon_0", "nodes": names[2:], "fusions": [fusion]}],
                    "left_out": [
                        {"node": name, "op": "::Shape", "reason": "a <good> reason"}
                        for name in names[:2]
                    ],
                }
            ],
        }
    )


def test_the_report_answers_questions():
    model = encoder.build_encoder(shape=encoder.SMALL)
    report = small_report(model)
    nodes = len(model.graph.node)
    assert str(report.coverage) == f"{nodes - 2} of {nodes} nodes in 1 partition"
    assert report.reasons() == [("::Shape", "a <good> reason", 2)]
    assert len(report.fusions) == 1


def test_tables_line_up(capsys):
    console.table(["name", "n"], [("a", 1), ("longer", 20)], right=(1,))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name     n" and lines[2] == "a        1" and lines[3] == "longer  20"


def test_sizes_and_durations_read_well():
    assert console.size(512) == "512 B"
    assert console.size(3 * 2**20) == "3.0 MiB"
    assert console.duration(2e-6) == "2.0 us"
    assert console.duration(0.25) == "250.00 ms"
