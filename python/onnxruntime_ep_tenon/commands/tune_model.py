"""`tenon tune MODEL`: a session that measures, watched while it does, and a table of what it chose.

The session is made by another process, so that Ctrl-C ends it at once; records reach the file as
they come, and whoever tunes again begins where this one stopped.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .. import console
from ..report import readable, shortened
from ..tune_log import Tail, TuneLog, gain_of, kernel_of, microseconds_of, range_text
from . import arguments

_POLL_SECONDS = 0.1
_MOST_REASONS = 5
_OWN_OPTIONS = {"tune": "", "tune_file": ": --out names it", "tune_log": ": --log names it"}
COLUMNS = ["fusion", "rows", "kernel", "us", "untuned us", "gain", "by"]

# Begins to tune: the command's words for the process -> that process.
Start = Callable[[list[str]], subprocess.Popen]


def start_session(words: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "onnxruntime_ep_tenon.tuning_process", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def tune_model(args, start: Start = start_session) -> int:
    model = arguments.model_file(args.model)
    out = Path(args.out) if args.out else model.with_suffix(".tuning.textproto")
    log = Path(args.log) if args.log else out.with_suffix(".jsonl")
    if out == log:
        raise ValueError(f"{out} cannot hold both records and log; --log names another file")
    for path in (out, log):
        _require_writable(path)
    options = {**_given_options(args), "tune": "on", "tune_file": out, "tune_log": log}
    words = [str(model), args.device, str(args.threads)]
    tail, begin = Tail(log), time.perf_counter()
    process = start([*words, *(f"{key}={value}" for key, value in options.items())])
    told, interrupted = TuneLog(), False
    try:
        _watch(process, tail, told, not args.json)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        process.kill()
        said = process.communicate()[0] or ""
    for line in tail.lines():
        told.take(line)
    result = _result(told, model, out, log, time.perf_counter() - begin)
    problem = "" if interrupted else _problem(process.returncode, said.strip(), told)
    result |= {"interrupted": interrupted, "error": problem}
    if args.json:
        console.print_json(result)
    else:
        _print(told, result)
    if problem:
        raise RuntimeError(problem)
    return 130 if interrupted else 0


def _given_options(args) -> dict[str, str]:
    given = dict(args.option)
    for name, where in _OWN_OPTIONS.items():
        if name in given:
            raise ValueError(f"tenon tune sets {name} itself{where}")
    return given


def _require_writable(path: Path) -> None:
    """Before minutes are spent on what then cannot be kept."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{path} cannot be written; --out and --log name other files")


def _watch(process: subprocess.Popen, tail: Tail, told: TuneLog, shown: bool) -> None:
    """Until the process has ended: a bar on a terminal, elsewhere a line for each range."""
    by_line = shown and not sys.stderr.isatty()
    with console.progress("tuning", shown) as update:
        while True:
            ended = process.poll() is not None
            for line in tail.lines():
                event = told.take(line)
                if by_line and event and event["event"] == "range":
                    print(_progress_line(told, event), file=sys.stderr, flush=True)
            latest = told.trying or (told.plans[-1] if told.plans else {})
            note = readable(latest.get("fusion", ""))
            update(len(told.ranges), told.expected_ranges, note)
            if ended:
                return
            time.sleep(_POLL_SECONDS)


def _progress_line(told: TuneLog, event: dict) -> str:
    place = f"[{len(told.ranges)}/{told.expected_ranges}]"
    fusion = shortened(readable(event.get("fusion", "")), 80)
    times = [_time(microseconds_of(event, side)) for side in ("chosen", "untuned")]
    return f"{place} {fusion}, {range_text(event)}: {times[0]} us, untuned {times[1]}"


def _problem(status: int, said: str, told: TuneLog) -> str:
    if status == 0 or said:
        return said if status else ""
    text = f"the process that tunes ended with {status}, and said nothing"
    if plan := told.trying:
        text += f"; it tried {plan.get('candidate')}: {plan.get('config')}, {range_text(plan)} of "
        text += readable(plan.get("fusion", ""))
    return text


def _result(told: TuneLog, model: Path, out: Path, log: Path, spent: float) -> dict:
    tuned, untuned = told.total("chosen"), told.total("untuned")
    return {
        "model": str(model),
        "file": str(out),
        "log": str(log),
        "machine": told.machine,
        "partitions": told.partitions,
        "complete": told.complete,
        "seconds": spent,
        "ranges": told.ranges,
        "expected_ranges": told.expected_ranges,
        "tuned_us": tuned,
        "untuned_us": untuned,
        "gain": untuned / tuned if tuned else None,
        "statuses": told.statuses(),
        "reasons": [
            {"status": status, "reason": reason, "plans": count}
            for status, reason, count in told.reasons()
        ],
    }


def _print(told: TuneLog, result: dict) -> None:
    if told.ranges:
        rows = [_row(event) for event in told.ranges]
        console.table(COLUMNS, rows, right=(3, 4, 5))
    if result["gain"]:
        console.say(
            f"All ranges, each once: {result['tuned_us']:.1f} us, untuned "
            f"{result['untuned_us']:.1f} us: {result['gain']:.3f}x."
        )
    if told.plans:
        counts = ", ".join(f"{count} {status}" for status, count in result["statuses"].items())
        console.say(f"{len(told.plans)} plans: {counts}.")
    for status, reason, count in told.reasons()[:_MOST_REASONS]:
        console.say(f"{count:5}  {status}: {shortened(reason)}")
    if len(told.reasons()) > _MOST_REASONS:
        console.say(f"       and {len(told.reasons()) - _MOST_REASONS} more reasons")
    if told.plans:
        console.say(f"Every plan is in {result['log']}.")
    if told.unreadable:
        console.say(f"{told.unreadable} lines of it could not be read.")
    if told.partitions or not result["error"]:
        console.say(_outcome(told, result))


def _outcome(told: TuneLog, result: dict) -> str:
    file, spent = result["file"], console.duration(result["seconds"])
    if result["interrupted"] or result["error"]:
        done = f"{len(told.ranges)} of {told.expected_ranges} ranges"
        kept = f"their records are in {file}" if told.ranges else f"{file} has nothing new"
        return f"Stopped after {spent} and {done}: {kept}; tuning again goes on from there."
    if not told.partitions:
        return "Nothing was measured: no fusion of the model can run in more than one way."
    if not told.expected_ranges:
        return f"Nothing was measured: {file} has a record for every choice."
    return f"Tuned in {spent}; use it with tune_file={file}."


def _row(event: dict) -> tuple:
    gain = gain_of(event)
    return (
        shortened(readable(event.get("fusion", "")), 80),
        range_text(event),
        kernel_of(event),
        _time(microseconds_of(event, "chosen")),
        _time(microseconds_of(event, "untuned")),
        "" if math.isnan(gain) else f"{gain:.3f}x",
        event.get("decided_by", ""),
    )


def _time(microseconds: float) -> str:
    return "" if math.isnan(microseconds) else f"{microseconds:.1f}"
