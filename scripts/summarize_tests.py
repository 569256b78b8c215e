"""Sums the JUnit files of a test run: failures by name, skips by reason, then one closing line.

A program that died before it wrote its own file is known from CTest's file and counts as a failure,
and so does an expected file that is not there. The exit status is 1 when anything failed.
"""

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CTEST_PREFIX = "ctest-"


@dataclass
class Totals:
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: Counter = field(default_factory=Counter)


def skip_reason(element: ElementTree.Element) -> str:
    text = element.get("message") or element.text or "no reason given"
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    # GoogleTest puts "file:line" first and the message after it.
    reason = lines[-1] if lines else "no reason given"
    return reason.removeprefix("Skipped: ")


def add_cases(path: Path, totals: Totals) -> None:
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{path.stem}: {case.get('classname', '')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            totals.failures.append(name)
        elif skipped is not None:
            totals.skips[skip_reason(skipped)] += 1
        elif case.get("status") != "notrun":
            totals.passed += 1


def add_unfinished_programs(path: Path, totals: Totals) -> None:
    for case in ElementTree.parse(path).iter("testcase"):
        wrote_its_own = (path.parent / f"{case.get('name')}.xml").exists()
        if case.get("status") != "run" and not wrote_its_own:
            totals.failures.append(f"{case.get('name')}: did not finish")


def collect(folders: list[Path], expected: list[str]) -> Totals:
    totals = Totals()
    for path in (path for folder in folders for path in sorted(folder.glob("*.xml"))):
        if path.name.startswith(CTEST_PREFIX):
            add_unfinished_programs(path, totals)
        else:
            add_cases(path, totals)
    for name in expected:
        if not any((folder / f"{name}.xml").exists() for folder in folders):
            totals.failures.append(f"{name}: did not finish")
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument(
        "--expect", nargs="*", default=[], help="files that must be there, less .xml"
    )
    arguments = parser.parse_args()

    totals = collect(arguments.folders, arguments.expect)
    if totals.skips:
        print("\nSkipped:")
        for reason, count in totals.skips.most_common():
            print(f"  {count:5}  {reason}")
    if totals.failures:
        print("\nFailed:")
        for name in totals.failures:
            print(f"  {name}")
    skipped = sum(totals.skips.values())
    print(f"\n{totals.passed} passed, {len(totals.failures)} failed, {skipped} skipped")
    return 1 if totals.failures or not totals.passed else 0


if __name__ == "__main__":
    sys.exit(main())
