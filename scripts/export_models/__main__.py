"""Makes models as other people's exporters write them, with random weights.

python scripts/export_models --out FOLDER: FOLDER/NAME.WAY/model.onnx, for `tenon bench --suite
exported --models-dir FOLDER`. What is there is not made again; --list prints the names.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import os
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    __package__ = "export_models"

from export_models.jobs import Job, all_jobs  # noqa: E402


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="export_models", description=__doc__)
    parser.add_argument("--out", metavar="FOLDER", type=Path, help="where the models go")
    parser.add_argument("--only", metavar="PATTERN", action="append", help="e.g. 'bert.*'")
    parser.add_argument("--seconds", type=float, default=300, help="per model (default: 300)")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    args = parser.parse_args(given)
    patterns = args.only or ["*"]
    jobs = [job for job in all_jobs() if any(fnmatch.fnmatch(job.name, p) for p in patterns)]
    if args.list:
        print("\n".join(job.name for job in jobs))
        return 0
    if not args.out:
        parser.error("say where the models go: --out FOLDER")
    args.out.mkdir(parents=True, exist_ok=True)
    failures = _make_all(jobs, args.out, args.seconds)
    _tell(len(jobs), failures)
    return 1 if failures else 0


def _make_all(jobs: Sequence[Job], out: Path, seconds: float) -> dict[str, str]:
    failures = {}
    for number, job in enumerate(jobs, 1):
        if (out / job.name / "model.onnx").is_file():
            continue
        begin = time.monotonic()
        problem = _make_apart(job, out, seconds)
        if problem:
            failures[job.name] = problem
        spent = time.monotonic() - begin
        print(f"{number}/{len(jobs)} {job.name}: {problem or 'made'} ({spent:.0f} s)", flush=True)
    return failures


def _make_apart(job: Job, out: Path, seconds: float) -> str:
    """In a process of its own: some exporters crash, others never end. The problem, or nothing."""
    context = multiprocessing.get_context("fork")  # torch is imported once
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_make, args=(job, out, theirs))
    process.start()
    theirs.close()
    try:
        problem = ours.recv() if ours.poll(seconds) else f"not done after {seconds:.0f} s"
    except EOFError:
        process.join()
        problem = f"the process ended with {process.exitcode}"
    process.kill()
    process.join()
    shutil.rmtree(_unfinished(job, out), ignore_errors=True)
    return problem


def _make(job: Job, out: Path, pipe) -> None:
    """What is under the final name is whole."""
    warnings.simplefilter("ignore")
    folder = _unfinished(job, out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        with (folder / "log.txt").open("w") as log:
            for told in (sys.stdout, sys.stderr):  # their libraries' too
                os.dup2(log.fileno(), told.fileno())
            job.make(folder, out)
        (folder / "log.txt").unlink()
        folder.rename(out / job.name)
        pipe.send("")
    except BaseException as error:  # SystemExit of a builder as well
        lines = str(error).strip().splitlines() or [""]
        pipe.send(f"{type(error).__name__}: {lines[0][:200]}")


def _unfinished(job: Job, out: Path) -> Path:
    return out / f".{job.name}.unfinished"


def _tell(count: int, failures: dict[str, str]) -> None:
    if failures:
        width = max(map(len, failures))
        print("\nNot made:")
        for name, problem in failures.items():
            print(f"  {name:{width}}  {problem}")
    print(f"\n{count - len(failures)} of {count} models are there.")


if __name__ == "__main__":
    sys.exit(main())
