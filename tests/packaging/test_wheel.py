"""The wheel as `make wheel` packs it: its tag, the library, and the licences that travel along."""

import email
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LICENSED_PARTS = ["Tenon", "llvm-19-dev", "libstdc++-12-dev", "zlib1g-dev", "libzstd-dev"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    build = ROOT / "build/release"
    if not (build / "lib/libonnxruntime_ep_tenon.so").exists():
        pytest.skip("build/release is not built")
    output = tmp_path_factory.mktemp("wheel")
    subprocess.run([ROOT / "scripts/make_wheel.sh", build, output], check=True)
    (path,) = output.glob("*.whl")
    return path


def test_tag_says_any_python_and_the_glibc_that_is_checked(wheel):
    version_and_tag = wheel.stem.removeprefix("onnxruntime_ep_tenon-")
    assert version_and_tag.endswith(f"-py3-none-manylinux_2_34_{platform.machine()}")
    wheel_info = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/WHEEL"))
    assert "Root-Is-Purelib: false" in zipfile.ZipFile(wheel).read(wheel_info).decode()


def test_holds_package_library_and_licences(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"__init__.py", "__main__.py", "libonnxruntime_ep_tenon.so", "models/encoder.py"}
    expected |= {"drawing/page.css", "drawing/graph_view.js"}
    expected |= {f"licenses/{part}.txt" for part in LICENSED_PARTS}
    if (ROOT / "build/release/lib/libtenon_gloo.so").exists():
        expected |= {"libtenon_gloo.so", "licenses/libgloo-dev.txt"}
    missing = {name for name in expected if f"onnxruntime_ep_tenon/{name}" not in names}
    assert not missing
    assert not [name for name in names if "__pycache__" in name]


def test_holds_every_module_of_the_tree(wheel):
    package = ROOT / "python/onnxruntime_ep_tenon"
    folders = {package, *(file.parent for file in package.glob("*/__init__.py"))}
    modules = {
        str(file.relative_to(package.parent)) for folder in folders for file in folder.glob("*.py")
    }
    assert "onnxruntime_ep_tenon/bench/suites.py" in modules
    assert not modules - set(zipfile.ZipFile(wheel).namelist())


def test_declares_the_command(wheel):
    archive = zipfile.ZipFile(wheel)
    entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "tenon = onnxruntime_ep_tenon" in archive.read(entry_points).decode()


def test_metadata_says_what_it_is(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
    told = email.message_from_string(archive.read(name).decode())
    assert told["License-Expression"] == "Apache-2.0" and told["License-File"] == "LICENSE"
    assert told["Version"] == wheel.stem.split("-")[1] and told["Keywords"]
    assert "Operating System :: POSIX :: Linux" in told.get_all("Classifier")
    assert not [c for c in told.get_all("Classifier") if c.startswith("License ::")]
    assert [n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE")]


def test_runs_where_there_is_no_source_tree(wheel, tmp_path):
    """Without an index: what it needs besides numpy and onnxruntime is for its tools."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-index", "--no-deps", "--target", "site", wheel], cwd=tmp_path, check=True
    )
    program = (
        "import onnxruntime_ep_tenon as t; print(t.get_library_path(), t.devices()[-1].ep_name)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    library, provider = ran.stdout.split()
    assert Path(library).is_relative_to(tmp_path) and provider == "TenonExecutionProvider"
