"""How far off the cost model is by logs of the tuner, and the constants that fit them better."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import console
from ..cost_fit import MeasuredPlans, fit_costs, read_logs

ERROR_COLUMNS = ["skeleton", "plans", "median", "refitted", "90 %", "refitted"]
CONSTANT_COLUMNS = ["constant", "table", "refitted", "times"]


def fit(args) -> int:
    read = read_logs([Path(name) for name in args.fit], args.arch)
    if not read.plans:
        _warn(read)
        raise ValueError("the logs hold no plan that was measured")
    answer = fit_costs(read)
    _warn(read)
    if not answer["plans"]:
        raise ValueError("the logs hold no plan that the cost model can estimate")
    if args.json:
        console.print_json(_as_json(read, answer))
    else:
        _print(read, answer)
    return 0


def _as_json(read: MeasuredPlans, answer: dict) -> dict:
    told = {key: value for key, value in answer.items() if key != "dropped"}
    return {
        "arch": read.arch,
        "machine": read.machine,
        "failed": read.failed,
        "warnings": read.warnings,
        **told,
    }


def _print(read: MeasuredPlans, answer: dict) -> None:
    before, after = answer["before"], answer["after"]
    name = read.machine.get("name") or "a GPU without a name"
    console.say(f"{answer['plans']} plans measured on {name} ({read.arch}).")
    console.heading("How far off: |log(expected / measured)|")
    console.table(ERROR_COLUMNS, _error_rows(before, after), right=(1, 2, 3, 4, 5))
    console.say()
    console.say(
        f"Of {before['groups']} ranges of rows the model's choice takes "
        f"{before['mean_regret']:.3f} of the best time (geometric mean; "
        f"{before['worst_regret']:.2f} at worst), refitted {after['mean_regret']:.3f} "
        f"({after['worst_regret']:.2f})."
    )
    console.heading("Constants that change")
    console.table(CONSTANT_COLUMNS, _constant_rows(answer), right=(1, 2, 3))
    if answer["bounded"]:
        console.say(f"As far as they may go: {', '.join(answer['bounded'])}")
    if answer["kept"]:
        console.say(f"No plan depends on: {', '.join(answer['kept'])}")
    console.heading("For codegen/arch_spec.cc")
    console.say(answer["table"].rstrip())


def _error_rows(before: dict, after: dict) -> list[tuple]:
    def row(name: str, old: dict, new: dict) -> tuple:
        figures = (old["median"], new["median"], old["p90"], new["p90"])
        return (name, old["plans"], *(f"{figure:.3f}" for figure in figures))

    rows = [row(name, old, after["skeletons"][name]) for name, old in before["skeletons"].items()]
    return [*rows, row("all", before["all"], after["all"])]


def _constant_rows(answer: dict) -> list[tuple]:
    return [
        (
            one["name"],
            f"{one['table']:g}",
            f"{one['fitted']:g}",
            f"{one['fitted'] / one['table']:.2f}",
        )
        for one in answer["constants"]
        if one["fitted"] != one["table"]
    ]


def _warn(read: MeasuredPlans) -> None:
    for warning in read.warnings:
        print(f"tenon: warning: {warning}", file=sys.stderr)
