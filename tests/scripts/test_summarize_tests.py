"""The closing line of `make test` must not hide a failure, a crash or a skip."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts/summarize_tests.py"

PASSED = '<testcase name="a" classname="S" status="run"/>'
FAILED = '<testcase name="b" classname="S" status="run"><failure message="x"/></testcase>'
SKIPPED = '<testcase name="c" classname="S"><skipped message="f.cc:1&#10;needs a GPU"/></testcase>'
DISABLED = '<testcase name="d" classname="S" status="notrun"/>'


def summarize(folder: Path, *expected: str) -> tuple[int, str]:
    command = [sys.executable, SCRIPT, folder, "--expect", *expected]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout


def write(folder: Path, name: str, *cases: str) -> None:
    (folder / f"{name}.xml").write_text(f"<testsuites>{''.join(cases)}</testsuites>")


def test_counts_every_outcome_and_groups_skips(tmp_path):
    write(tmp_path, "one", PASSED, SKIPPED, DISABLED)
    write(tmp_path, "two", PASSED, SKIPPED)
    status, text = summarize(tmp_path)
    assert status == 0
    assert text.endswith("\n2 passed, 0 failed, 2 skipped\n")
    assert "    2  needs a GPU" in text


def test_failure_is_named_and_fails_the_run(tmp_path):
    write(tmp_path, "one", PASSED, FAILED)
    status, text = summarize(tmp_path)
    assert status == 1
    assert "one: S.b" in text
    assert text.endswith("\n1 passed, 1 failed, 0 skipped\n")


def test_program_that_died_before_reporting_is_a_failure(tmp_path):
    write(tmp_path, "one", PASSED)
    write(tmp_path, "ctest-unit", '<testcase name="one" status="run"/>',
          '<testcase name="gone" status="fail"/>')  # fmt: skip
    status, text = summarize(tmp_path)
    assert status == 1
    assert "gone: did not finish" in text


def test_expected_results_that_are_missing_are_a_failure(tmp_path):
    write(tmp_path, "one", PASSED)
    status, text = summarize(tmp_path, "one", "python")
    assert status == 1
    assert "python: did not finish" in text


def test_nothing_run_is_no_success(tmp_path):
    status, text = summarize(tmp_path)
    assert status == 1
    assert text.endswith("0 passed, 0 failed, 0 skipped\n")
