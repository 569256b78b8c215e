"""`tenon explain MODEL --ranks N`: tables of what ranks would hold, exchange and take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .. import console
from ..bench.measure import read_bandwidth
from ..context_models import is_context_model
from ..genai_folder import sizes_beside
from ..provider_sessions import session_options
from ..rank_plans import PROMPT, Plans, plan_ranks
from ..report import readable, session_with_report, shortened
from ..session_facts import cost_model_text

_RANK_COLUMNS = [
    "rank", "weights", "of all", "heads", "caches", "in all", "token", "of it exchanged", "prompt",
    "of it exchanged",
]  # fmt: skip
_COLLECTIVE_COLUMNS = ["times", "collective", "of", "token", "us each", "prompt", "us each"]
_MOST_WHOLE = 12


def explain_ranks(model: Path, args) -> int:
    if args.svg or args.html or args.kernels or args.candidates:
        raise ValueError("--ranks prints tables or --json: leave other views out")
    if args.ranks < 2:
        raise ValueError("--ranks takes a number from 2 on; without it one rank is explained")
    if is_context_model(model):
        raise ValueError(f"{model} is a context model: ranks take the model that it comes from")
    given = dict(args.option)
    if own := sorted(key for key in given if key.startswith(("tensor_parallel", "collective"))):
        raise ValueError(f"--ranks says what --option {own[0]} would: leave one out")

    def open_session(options: dict) -> tuple:
        settings = session_options(args.threads)
        return session_with_report(model, args.device, settings, **given, **options)

    def known_sizes(inputs) -> dict[str, int]:
        beside = {name: size for name, (size, _) in sizes_beside(model, inputs).items()}
        return beside | dict(args.dim)

    plans = plan_ranks(open_session, args.ranks, args.context, read_bandwidth, known_sizes)
    if args.json:
        console.print_json(plans.as_dict())
    else:
        _print(model, plans)
    return 0


def _print(model: Path, plans: Plans) -> None:
    device = plans.report.data["device"]
    where = device.get("name") or device.get("arch")
    console.say(f"{model} over {plans.ranks} ranks on {where}. Times are predicted: nothing ran.")
    console.say(f"link: {plans.link} one way")
    if cost_model := cost_model_text(plans.report):
        console.say(f"cost model: {cost_model}")
    console.heading("Ranks")
    console.table(_RANK_COLUMNS, _rank_rows(plans), right=range(1, len(_RANK_COLUMNS)))
    console.say()
    console.say(
        f"Caches of {plans.context} tokens; a token behind them, a prompt of {PROMPT} tokens "
        "behind none. Activations are not counted."
    )
    token, prompt = plans.slowest
    console.say(
        f"A step is as slow as its slowest rank: {_time(token.total)} for a token, "
        f"{_time(prompt.total)} for the prompt."
    )
    _print_caches(plans)
    console.heading("Collectives of a step")
    rows = _collective_rows(plans)
    if rows:
        console.table(_COLLECTIVE_COLUMNS, rows, right=(0, 3, 4, 5, 6))
    else:
        console.say("none: every rank computes everything")
    if plans.replicated:
        console.heading("Whole on every rank")
        _print_replicated(plans)


def _rank_rows(plans: Plans) -> list[tuple]:
    alone_token, alone_prompt = plans.alone
    caches = plans.plans[0].filled(plans.context).whole
    rows = [
        ("alone", console.size(plans.whole_bytes), "1.000", "all", console.size(caches),
         console.size(plans.whole_bytes + caches), _time(alone_token.total), "-",
         _time(alone_prompt.total), "-")
    ]  # fmt: skip
    for plan in plans.plans:
        caches = plan.filled(plans.context).bound
        heads = sorted(set(plan.heads.values()))
        rows.append(
            (plan.rank, console.size(plan.weight_bytes),
             f"{plan.weight_bytes / plans.whole_bytes:.3f}" if plans.whole_bytes else "-",
             ", ".join(map(str, heads)) or "all", console.size(caches),
             console.size(plan.weight_bytes + caches), _time(plan.token.total),
             _time(plan.token.collectives), _time(plan.prompt.total),
             _time(plan.prompt.collectives))
        )  # fmt: skip
    return rows


def _time(microseconds: float) -> str:
    return console.duration(microseconds / 1e6)


def _print_caches(plans: Plans) -> None:
    filled = [plan.filled(plans.context) for plan in plans.plans]
    most = max(filled, key=lambda caches: caches.by_heads)
    bound, own = most.bound, most.by_heads
    if bound > own:
        console.say(
            f"The file makes every rank bind caches of all heads: {console.size(bound)} instead of "
            f"{console.size(own)}, and q, k, v and attention are computed whole. `tenon ranks` "
            "writes a file with which a rank binds its own."
        )


def _collective_rows(plans: Plans) -> list[tuple]:
    """Equal ones are counted, in the order in which they first appear."""
    counts = Counter(
        (
            one["op"],
            f"{one['dtype']} {shortened(readable(one['elements']), 60)}",
            console.size(one["token_bytes"]),
            f"{one['token_us']:.1f}",
            console.size(one["prompt_bytes"]),
            f"{one['prompt_us']:.1f}",
        )
        for one in plans.collectives
    )
    return [(count, *row) for row, count in counts.items()]


def _print_replicated(plans: Plans) -> None:
    by_reason: dict[str, list[dict]] = {}
    for whole in plans.replicated:
        by_reason.setdefault(whole["reason"], []).append(whole)
    rows = [
        (len(group), console.size(sum(whole["bytes"] for whole in group)), reason, group[0]["name"])
        for reason, group in by_reason.items()
    ]
    console.table(["times", "bytes", "because", "such as"], rows[:_MOST_WHOLE], right=(0, 1))
    if len(rows) > _MOST_WHOLE:
        console.say(f"and {len(rows) - _MOST_WHOLE} more reasons: --json has all")
