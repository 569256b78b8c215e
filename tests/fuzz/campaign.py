"""A run of the fuzzer: many cases, totals per class, and a folder for each finding."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
from onnx import numpy_helper
from onnxruntime_ep_tenon.session import devices

from . import in_place, outcome
from .case import Case, TooLarge, make_case
from .known import known_difference
from .pool import BROKEN, Answer, in_child, judge_all

FINDINGS = (
    outcome.DIFFERS,
    outcome.CRASH,
    outcome.HANG,
    outcome.STOCK_REFUSES,
    outcome.TENON_REFUSES,
    BROKEN,
)


def device(kind: str = "cpu"):
    onnxruntime.set_default_logger_severity(4)
    return next(d for d in devices() if d.device.type.name.lower() == kind)


class Judge:
    """Called in a worker: makes the case from its number and judges it."""

    def __init__(self, arguments):
        self.arguments = arguments
        # No driver of a GPU lives through a fork: a worker finds its own.
        self.device = device() if arguments.device == "cpu" else None
        self.alone = ""

    def of_one(self, alone: str) -> Judge:
        """One that runs "stock" alone, or "Tenon" alone, and compares nothing."""
        other = copy.copy(self)
        other.alone = alone
        return other

    def __call__(self, number: int, entering_tenon) -> dict:
        self.device = self.device or device(self.arguments.device)
        try:
            case = case_of(self.arguments, number, probing=self.alone != "Tenon")
        except TooLarge:
            return {"state": outcome.UNJUDGED, "text": "too large"}
        if self.alone == "stock":
            return {"state": outcome.UNJUDGED, "text": outcome.run_stock(case)}
        if self.alone == "Tenon":
            outcome.run_tenon(case, self.device, entering_tenon)
            return {"state": outcome.UNJUDGED, "family": case.family}
        judge_case = in_place.judge_case if self.arguments.in_place else outcome.judge_case
        found = judge_case(case, self.device, entering_tenon)
        return {**found.as_dict(), "family": case.family, "notes": case.notes}


SECONDS_OF_PATIENCE = 200
SECONDS_BETWEEN_NEWS = 30
STOCK_DIED = "the stock provider died"
SECONDS = 60  # where neither a time nor a number of cases is asked for


def numbers(first: int, count: int | None, seconds: float | None) -> Iterator[int]:
    """Cases until there are enough or the time is over, whichever is asked for."""
    if count is None and seconds is None:
        seconds = SECONDS
    until = math.inf if seconds is None else time.monotonic() + seconds
    for number in itertools.count(first) if count is None else range(first, first + count):
        if time.monotonic() >= until:
            return
        yield number


class Totals:
    def __init__(self):
        self.states: Counter[str] = Counter()
        self.messages: dict[str, Counter[str]] = defaultdict(Counter)
        self.known: Counter[str] = Counter()
        self.claimed = 0
        self.stock_died: dict[str, list[int]] = defaultdict(list)
        self.findings: list[tuple[int, str, str, str]] = []

    def add(self, number: int, state: str, family: str, text: str, claimed: bool) -> bool:
        """Whether it is a finding."""
        self.states[state] += 1
        if text.startswith(STOCK_DIED):
            self.stock_died[text].append(number)
        self.claimed += claimed
        known = known_difference(state, family, text) if state in FINDINGS else None
        if known is not None:
            self.known[known.reason] += 1
            return False
        if state not in FINDINGS:
            return False
        self.findings.append((number, state, family, text))
        self.messages[state][f"{family}: {_anonymous(text)}"] += 1
        return True


def _anonymous(text: str) -> str:
    """The same words for the same trouble: numbers and names of values go."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)[:160]


def run(arguments) -> int:
    judge = Judge(arguments)
    print(
        f"fuzz: seed {arguments.seed}, onnxruntime {onnxruntime.__version__}, "
        f"{tenon.get_library_path()}",
        flush=True,
    )
    begin = time.monotonic()
    cases = numbers(arguments.first, arguments.cases, arguments.seconds)
    totals, told = Totals(), begin
    for answer in judge_all(cases, judge, arguments.workers):
        state, family, text, claimed = _verdict(answer, judge)
        if time.monotonic() - told > SECONDS_BETWEEN_NEWS:
            told = time.monotonic()
            print(_totals_line(totals, told - begin), file=sys.stderr, flush=True)
        if totals.add(answer.case, state, family, text, claimed):
            shown = text if state == outcome.CRASH else text[:300]
            print(f"case {answer.case} [{family}] {state}: {shown}", flush=True)
            if state != BROKEN and not answer.leaving:
                in_child(lambda n=answer.case: write_case(case_of(arguments, n), arguments))
    return summary(totals, arguments, time.monotonic() - begin)


def _verdict(answer: Answer, judge: Judge) -> tuple[str, str, str, bool]:
    if answer.result is not None:
        result = answer.result
        return result["state"], result["family"], result["text"], result["claimed"]
    if answer.how == "hang":
        return _with_patience(answer.case, judge)
    alone = None if answer.leaving else next(judge_all(iter([answer.case]), judge, 1))
    if alone is not None and alone.result is None:
        if alone.in_tenon:
            return outcome.CRASH, alone.what, alone.how, True
        return _without_stock(answer.case, judge, alone.how)
    # Memory was broken by a case before: stock's, if stock alone dies of the same cases.
    cases = (*answer.before, answer.case)
    if not in_one_process(cases, judge.of_one("stock")):
        return outcome.UNJUDGED, "", f"{STOCK_DIED} after other cases: {answer.how}", False
    return outcome.CRASH, answer.what, f"{answer.how}, though not alone: {_blamed(cases)}", True


def _with_patience(case: int, judge: Judge) -> tuple[str, str, str, bool]:
    """Large tensors on a busy machine take long; what hangs does so for ever."""
    print(f"case {case} takes long: once more with patience", file=sys.stderr, flush=True)
    answer = next(judge_all(iter([case]), judge, 1, SECONDS_OF_PATIENCE))
    if answer.result is not None or answer.how != "hang":
        return _verdict(answer, judge)
    if answer.in_tenon:
        return outcome.HANG, answer.what, "no answer in time", True
    return outcome.UNJUDGED, "", f"{STOCK_DIED}: hang", False


def _without_stock(case: int, judge: Judge, how: str) -> tuple[str, str, str, bool]:
    """Nobody can say what is right where stock dies; Tenon lives all the same."""
    answer = next(judge_all(iter([case]), judge.of_one("Tenon"), 1))
    if answer.result is None and answer.in_tenon:
        state = outcome.HANG if answer.how == "hang" else outcome.CRASH
        return state, answer.what, f"{answer.how}, and stock died too: {how}", True
    return outcome.UNJUDGED, "", f"{STOCK_DIED}: {how}", False


def _blamed(cases: tuple[int, ...]) -> str:
    """Arguments that run them again, one after the other in one process."""
    return f"--case {' '.join(map(str, cases))}"


def in_one_process(cases: tuple[int, ...], judge: Judge) -> bool:
    """Whether a worker lives through all of them and finds its heap whole afterwards."""
    return all(answer.result is not None for answer in judge_all(iter(cases), judge, 1))


def summary(totals: Totals, arguments, seconds: float) -> int:
    for state, messages in totals.messages.items():
        print(f"\n{state}:")
        for text, times in messages.most_common(40):
            print(f"  {times:5d}  {text}")
    if totals.known:
        print("\nallowed, with a reason:")
        for reason, times in totals.known.most_common():
            print(f"  {times:5d}  {reason}")
    for text, cases in sorted(totals.stock_died.items()):
        print(f"\n{text}: cases {sorted(cases)}")
    print(f"\n{_totals_line(totals, seconds)}")
    return 1 if totals.findings else 0


def _totals_line(totals: Totals, seconds: float) -> str:
    count = sum(totals.states.values())
    parts = ", ".join(f"{n} {state}" for state, n in totals.states.most_common())
    return (
        f"fuzz: {count} cases in {seconds:.0f} s ({count / max(seconds, 1e-9):.0f}/s): {parts}; "
        f"{totals.claimed} claimed by Tenon; {len(totals.findings)} findings"
    )


def case_of(arguments, number: int, probing: bool = True) -> Case:
    return make_case(arguments.seed, number, arguments.only, arguments.honest, probing)


def repeat_command(arguments, number: int) -> str:
    narrowed = f" --only {arguments.only}" if arguments.only else ""
    honest = " --honest" if arguments.honest else ""
    shared = " --in-place" if arguments.in_place else ""
    on = "" if arguments.device == "cpu" else f" --device {arguments.device}"
    asked = f"{narrowed}{honest}{shared}{on}"
    return f"python -m tests.fuzz --seed {arguments.seed} --case {number}{asked}"


def write_case(case: Case, arguments) -> Path:
    """The model, the inputs of each Run as ONNX's own test data, and the command."""
    folder = arguments.write / f"seed{case.seed}-case{case.number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(case.model)
    for number, feed in enumerate(case.feeds):
        place = folder / f"test_data_set_{number}"
        place.mkdir(exist_ok=True)
        for name, array in feed.items():
            tensor = numpy_helper.from_array(np.asarray(array, order="C"), name)
            (place / f"{name}.pb").write_bytes(tensor.SerializeToString())
    settings = {"options": case.options, "optimised": case.optimised, "family": case.family}
    (folder / "repeat.txt").write_text(
        f"{repeat_command(arguments, case.number)}\n{json.dumps(settings)}\n"
    )
    return folder


def repeat(arguments) -> int:
    """The cases that are named, one after the other in one process."""
    for number in arguments.case:
        in_child(lambda n=number: _describe(case_of(arguments, n), arguments))
    judge, found = Judge(arguments), 0
    for answer in judge_all(iter(arguments.case), judge, 1):
        if answer.result is None:
            print(f"{'Tenon' if answer.in_tenon else 'stock'}: {answer.how}")
            found = 1
            continue
        result = answer.result
        print(f"{answer.case}: {result['state']} in Run {result['run']}: {result['text']}")
        found |= result["state"] in FINDINGS
    return int(found)


def _describe(case: Case, arguments) -> None:
    print(onnx.printer.to_text(onnx.load_from_string(case.model)))
    for feed in case.feeds:
        print({name: (str(value.dtype), value.shape) for name, value in feed.items()})
    print(case.family, case.options, "optimised" if case.optimised else "as written", *case.notes)
    print("kept in", write_case(case, arguments), flush=True)
