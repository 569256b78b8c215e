"""The constants of the cost model, refitted from logs of the tuner. The plugin has the model."""

from __future__ import annotations

import ctypes
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from .library import get_library_path

_ANSWER = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


@dataclass
class MeasuredPlans:
    """Lines of logs that were measured on one architecture."""

    arch: str
    machine: dict = field(default_factory=dict)  # the last one that was told
    date: str = ""
    plans: list[dict] = field(default_factory=list)  # as TenonFitCosts takes them
    places: list[str] = field(default_factory=list)  # of the plans: "a.jsonl:12"
    failed: int = 0  # plans that the tuner found no time for
    _dropped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def drop(self, place: str, reason: str) -> None:
        self._dropped[reason].append(place)

    @property
    def warnings(self) -> list[str]:
        """One for each reason."""
        return [
            f"{len(places)} line{'s' if len(places) > 1 else ''} dropped, "
            f"the first is {places[0]}: {reason}"
            for reason, places in self._dropped.items()
        ]


def read_logs(paths: list[Path], arch: str = "") -> MeasuredPlans:
    """Plans of `arch`; if that is empty, of the first machine that is told."""
    read = MeasuredPlans(arch)
    groups: dict[tuple, int] = {}
    for path in paths:
        machine: dict = {}
        runs = 0
        for number, text in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            place = f"{path}:{number}"
            line = _object_of(text)
            if line is None:
                if text.strip():
                    read.drop(place, "no JSON object, or cut off")
            elif line.get("event") == "begin":
                machine, runs = _dict(line.get("machine")), runs + 1
                _meet(read, machine, str(line.get("date", "")))
            elif line.get("event") == "plan":
                _add_plan(read, line, place, machine, groups, (str(path), runs))
    return read


def fit_costs(read: MeasuredPlans) -> dict:
    """What the plugin answers (provider/fit_costs.cc); lines it cannot read are dropped."""
    source = {
        "card": str(read.machine.get("name", "")),
        "date": read.date[:10],
        "sm_count": _whole(read.machine.get("sm_count")),
        "clock_mhz": _whole(read.machine.get("clock_mhz")),
    }
    answer = _ask({"arch": read.arch, "source": source, "plans": read.plans})
    if "error" in answer:
        raise ValueError(answer["error"])
    for dropped in answer["dropped"]:
        read.drop(read.places[dropped["plan"]], dropped["reason"])
    return answer


def _ask(request: dict) -> dict:
    library = ctypes.CDLL(get_library_path())
    try:
        call = library.TenonFitCosts
    except AttributeError:
        raise ValueError(f"{get_library_path()} is of another version: it cannot fit") from None
    call.argtypes, call.restype = [ctypes.c_char_p, _ANSWER], ctypes.c_int
    answers: list[bytes] = []
    call(json.dumps(request).encode(), _ANSWER(answers.append))
    return json.loads(answers[0])


def _object_of(text: str) -> dict | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _dict(value) -> dict:
    return value if isinstance(value, dict) else {}


def _whole(value) -> int:
    return value if isinstance(value, int) else 0


def _meet(read: MeasuredPlans, machine: dict, date: str) -> None:
    if not read.arch:
        read.arch = str(machine.get("arch", ""))
    if machine.get("arch") == read.arch:
        read.machine, read.date = machine, date


def _add_plan(read, line: dict, place: str, machine: dict, groups: dict, run: tuple) -> None:
    if not machine:
        read.drop(place, "no machine is told before it")
        return
    if machine.get("arch") != read.arch:
        read.drop(place, f"measured on {machine.get('arch')}, not on {read.arch}")
        return
    if line.get("status") != "ok":
        read.failed += 1
        return
    rows = json.dumps(_dict(line.get("rows")), sort_keys=True)
    key = (*run, line.get("fingerprint", line.get("fusion")), rows, line.get("at_rows"))
    plan = {name: line[name] for name in ("skeleton", "knobs", "us", "at_rows") if name in line}
    plan["problem"] = _dict(line.get("problem"))
    plan["group"] = groups.setdefault(json.dumps(key), len(groups))
    read.plans.append(plan)
    read.places.append(place)
