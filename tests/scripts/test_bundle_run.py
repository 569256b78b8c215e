"""./run of the bundle, with stand-ins for its programs and its Python tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Says which part of its cases it was dealt, as GoogleTest's file does.
PROGRAM = """#!/bin/bash
for word; do case $word in --gtest_output=xml:*) file=${word#--gtest_output=xml:} ;; esac; done
part="$TENON_TEST_TARGET$TENON_TEST_ARCH $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS"
[ "$(basename "$0")" != broken_test ] || exit 1
case="name='$part' classname='$(basename "$0")' status='run'"
echo "<testsuite><testcase $case/></testsuite>" >"$file"
"""

CONFTEST = (ROOT / "tests/python/conftest.py").read_text()
FOUR_TESTS = """import pytest

@pytest.mark.parametrize("number", range(4))
def test_of(number):
    pass
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name in ("gpu_test", "codegen_gpu_test", "two_ranks_gpu_test", "other_test"):
        write(tmp_path / "bin" / name, PROGRAM)
    write(tmp_path / "run", (ROOT / "scripts/bundle_run.sh").read_text())
    write(tmp_path / "tests/python/conftest.py", CONFTEST)
    # Those that come first, some of them in parts, and one that is not listed.
    for name in re.findall(r"(test_\w+):\d", (ROOT / "scripts/bundle_run.sh").read_text()):
        write(tmp_path / f"tests/python/{name}.py", FOUR_TESTS)
    write(tmp_path / "tests/python/conformance/test_cases.py", FOUR_TESTS)
    for folder in ("python", "scripts"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def run(bundle: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [bundle / "run"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_every_case_runs_once(bundle: Path):
    done = run(bundle)
    cores = len(os.sched_getaffinity(0))
    # Three targets in 2 parts a core, codegen in one, one more program and the case for itself.
    programs = 3 * 2 * cores + cores + 1 + 1
    assert f"{programs + 7 * 4} passed, 0 failed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_what_does_not_finish_is_told(bundle: Path):
    write(bundle / "bin/broken_test", PROGRAM)
    write(bundle / "tests/python/test_broken.py", "def test_of():\n    assert False\n")
    done = run(bundle)
    assert done.returncode == 1
    assert "broken_test: did not finish" in done.stdout
    assert "FAILED tests/python/test_broken.py::test_of" in done.stdout
    assert ", 2 failed, " in done.stdout
