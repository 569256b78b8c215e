"""What each of several ranks would hold and do, planned in this process and run by nobody."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .kv_heads import declared_heads, local_kv_heads
from .report import Report
from .step_prediction import (
    Step,
    add_expected_times,
    collective_us,
    exchanged_bytes,
    kernels_us,
    link_of,
)

PROMPT = 128  # tokens, as host products are estimated at
_ELEMENT_BYTES = {"float": 4, "float16": 2, "bfloat16": 2, "double": 8}  # others: one byte


@dataclass(frozen=True)
class Predicted:
    """Microseconds of one step."""

    kernels: float
    collectives: float

    @property
    def total(self) -> float:
        return self.kernels + self.collectives

    def as_dict(self) -> dict:
        return {
            "kernels_us": self.kernels,
            "collectives_us": self.collectives,
            "total_us": self.total,
        }


@dataclass(frozen=True)
class Caches:
    """Bytes of keys and values: of one token, or of so many."""

    whole: int
    by_heads: int  # of the rank's own heads
    bound: int  # what the file makes the rank bind

    def times(self, tokens: int) -> Caches:
        return Caches(self.whole * tokens, self.by_heads * tokens, self.bound * tokens)

    def plus(self, other: Caches) -> Caches:
        return Caches(
            self.whole + other.whole, self.by_heads + other.by_heads, self.bound + other.bound
        )

    def as_dict(self) -> dict:
        return {
            "bytes_per_token": self.bound,
            "by_heads_bytes_per_token": self.by_heads,
            "whole_bytes_per_token": self.whole,
        }


@dataclass(frozen=True)
class RankPlan:
    rank: int
    weight_bytes: int
    heads: dict[str, int]
    caches: Caches  # of one token, which grow with each
    windows: Caches  # of all tokens that caches of sliding windows hold
    token: Predicted
    prompt: Predicted

    def filled(self, tokens: int) -> Caches:
        return self.caches.times(tokens).plus(self.windows)

    def as_dict(self) -> dict:
        return {
            "rank": self.rank,
            "weight_bytes": self.weight_bytes,
            "kv_heads": self.heads,
            "caches": {**self.caches.as_dict(), "window_bytes": self.windows.bound},
            "predicted": {"token": self.token.as_dict(), "prompt": self.prompt.as_dict()},
        }


@dataclass
class Plans:
    ranks: int
    context: int
    whole_bytes: int  # of all constants
    report: Report  # of rank 0
    token: Step
    prompt: Step
    link: str
    alone: tuple[Predicted, Predicted]
    plans: list[RankPlan] = field(default_factory=list)

    @property
    def shardings(self) -> list[dict]:
        return [part["sharding"] for part in self.report.partitions if part["sharding"]]

    @property
    def collectives(self) -> list[dict]:
        """In order, with bytes and predicted times of one token and of the prompt."""
        link = link_of(self.report)
        found = []
        for exchange in (e for sharding in self.shardings for e in sharding["collectives"]):
            row = dict(exchange)
            for name, step in (("token", self.token), ("prompt", self.prompt)):
                size = exchanged_bytes(exchange, step)
                row[f"{name}_bytes"] = size
                row[f"{name}_us"] = collective_us(exchange["op"], size, self.ranks, link)
            found.append(row)
        return found

    @property
    def slowest(self) -> tuple[Predicted, Predicted]:
        """A step of all ranks takes as long as that of the slowest: one token, the prompt."""
        return (
            max((plan.token for plan in self.plans), key=lambda step: step.total),
            max((plan.prompt for plan in self.plans), key=lambda step: step.total),
        )

    @property
    def replicated(self) -> list[dict]:
        return [whole for sharding in self.shardings for whole in sharding["replicated"]]

    def as_dict(self) -> dict:
        return {
            "ranks": self.ranks,
            "predicted": "nothing was run: docs/sharding.md says how times are predicted",
            "device": self.report.data["device"],
            "link": self.link,
            "context_tokens": self.context,
            "prompt_tokens": PROMPT,
            "weight_bytes": self.whole_bytes,
            "alone": {"token": self.alone[0].as_dict(), "prompt": self.alone[1].as_dict()},
            "step": {"token": self.slowest[0].as_dict(), "prompt": self.slowest[1].as_dict()},
            "by_rank": [plan.as_dict() for plan in self.plans],
            "collectives": self.collectives,
            "replicated": self.replicated,
        }


class NoPlanError(ValueError):
    """A model has no plan for several ranks; the text says why."""


def plan_ranks(
    open_session: Callable[[dict], tuple],
    ranks: int,
    context: int,
    bandwidth: Callable[[], float],
    known_sizes: Callable[[list], dict[str, int]],
) -> Plans:
    """`open_session` makes a session with such options and gives it with its report.

    `bandwidth`: bytes per second that the host reads, asked for where it is what computes.
    `known_sizes`: of named dimensions of these inputs, as far as anybody knows them.
    """
    session, first = open_session(_options(0, ranks))
    shardings = [part["sharding"] for part in first.partitions if part["sharding"]]
    if not shardings:
        raise NoPlanError("Tenon claims nothing of the model: there is nothing to deal to ranks")
    reports = {0: first}
    alike = _alike(shardings, ranks)
    for rank in sorted(set(alike) - {0}):
        reports[rank] = open_session(_options(rank, ranks))[1]
    alone = open_session({})[1]
    if first.data["device"]["kind"] == "cpu":
        speed = bandwidth()
        for report in [alone, *reports.values()]:
            add_expected_times(report, speed)
    inputs = session.get_inputs()
    heads, known = local_kv_heads(session), known_sizes(inputs)
    _refuse_unknown_widths(inputs, heads, known)
    token = Step(1, _sizes(inputs, 1, context, heads) | known)
    prompt = Step(PROMPT, _sizes(inputs, PROMPT, 0, heads) | known)
    plans = Plans(
        ranks, context, sum(sharding["constant_bytes"] for sharding in shardings), first, token,
        prompt, str(link_of(first)), (_predict(alone, token, []), _predict(alone, prompt, [])),
    )  # fmt: skip
    times = plans.collectives
    for rank in range(ranks):
        report = reports[alike[rank]]
        heads = {
            name: cache["heads"][rank]
            for sharding in shardings
            for cache in sharding["caches"]
            for name in cache["inputs"]
        }
        plans.plans.append(
            RankPlan(
                rank,
                sum(sharding["bytes_by_rank"][rank] for sharding in shardings),
                heads,
                *_caches(inputs, heads, rank, ranks, known),
                _predict(report, _with_heads(token, inputs, heads), [t["token_us"] for t in times]),
                _predict(
                    report, _with_heads(prompt, inputs, heads), [t["prompt_us"] for t in times]
                ),
            )
        )
    return plans


def _refuse_unknown_widths(inputs, heads: dict[str, int], known: dict[str, int]) -> None:
    for value in inputs:
        width = value.shape[3] if value.name in heads else 0
        if not isinstance(width, int) and width not in known:
            raise NoPlanError(
                f"'{value.name}' is {value.shape}, and no genai_config.json beside the model says "
                f"how large a head is: give --dim {width or 'NAME'}=NUMBER"
            )


def _options(rank: int, ranks: int) -> dict:
    return {
        "tensor_parallel_size": ranks,
        "tensor_parallel_rank": rank,
        "tensor_parallel_plan": 1,
    }


def _alike(shardings: list[dict], ranks: int) -> list[int]:
    """For each rank the first one that has as much of everything."""
    shares = [
        [sharding["bytes_by_rank"][rank] for sharding in shardings]
        + [cache["heads"][rank] for sharding in shardings for cache in sharding["caches"]]
        for rank in range(ranks)
    ]
    return [shares.index(share) for share in shares]


def _predict(report: Report, step: Step, collectives: list[float]) -> Predicted:
    return Predicted(kernels_us(report, step), math.fsum(collectives))


def _sizes(inputs, tokens: int, past: int, heads: dict[str, int]) -> dict[str, int]:
    """Symbols of a decoder's inputs, by where they stand; others are 1."""
    sizes: dict[str, int] = {}

    def say(dim, size: int) -> None:
        if isinstance(dim, str):
            sizes.setdefault(dim, size)

    for value in inputs:
        if value.name in heads:
            say(value.shape[0], 1)
            say(value.shape[1], declared_heads(value))
            say(value.shape[2], past)
    first = True
    for value in inputs:
        if value.name in heads or len(value.shape) < 2:
            continue
        say(value.shape[0], 1)
        say(value.shape[1], tokens if first or "mask" not in value.name else past + tokens)
        first = False
    return sizes


def _with_heads(step: Step, inputs, heads: dict[str, int]) -> Step:
    own = {value.shape[1]: heads[value.name] for value in inputs if value.name in heads}
    return Step(step.tokens, step.sizes | own)


def _caches(
    inputs, heads: dict[str, int], rank: int, ranks: int, known: dict[str, int]
) -> tuple[Caches, Caches]:
    """Of one token where caches grow, and of whole windows."""
    growing = windows = Caches(0, 0, 0)
    for value in inputs:
        count = declared_heads(value)
        if count is None:
            continue
        element = value.type.removeprefix("tensor(").removesuffix(")")
        each = _ELEMENT_BYTES.get(element, 1) * known.get(value.shape[3], value.shape[3])
        own = count // ranks + (rank < count % ranks) if count >= ranks else 1
        row = Caches(
            count * each,
            heads.get(value.name, own) * each,
            heads.get(value.name, count) * each,
        )
        rows = value.shape[2] if isinstance(value.shape[2], int) else known.get(value.shape[2])
        growing = growing.plus(row) if rows is None else growing
        windows = windows if rows is None else windows.plus(row.times(rows))
    return growing, windows
