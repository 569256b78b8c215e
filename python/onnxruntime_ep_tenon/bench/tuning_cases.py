"""What is tuned, and the bars: tuning never costs, does not take long, needs no good guess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .attention_cases import AttentionCase
from .decoder_meter import DecoderPlan
from .product_cases import Case

# Tuned over untuned time; with wrong constants, over the tuned time with the true ones.
MOST_EACH, MOST_MEAN = 1.03, 1.01
MOST_EACH_WRONG, MOST_MEAN_WRONG = 1.05, 1.02
MOST_SECONDS = 180.0  # to tune the decoder from nothing

_PRODUCTS, _SEED = 40, 25
_FORMATS = ("nvfp4", "int4", "mxfp8", "f16")
_RUN_BYTES = 240_000_000  # four times the second cache level of an H200
# N x K of layers that people run: Llama 8B and 70B, Qwen2 0.5B, Phi, a vocabulary.
_LAYERS = (
    (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1024, 8192), (8192, 28672),
    (896, 896), (9728, 896), (896, 4864), (3072, 3072), (5120, 17920), (32064, 3072),
)  # fmt: skip


def product_cases() -> list[Case]:
    """By turns a layer that is in use and a shape of no meaning, in each format by turns."""
    random = np.random.default_rng(_SEED)

    def spread(low: int, high: int) -> int:
        return int(np.exp(random.uniform(np.log(low), np.log(high + 1))))

    cases = []
    for number in range(_PRODUCTS):
        if number // len(_FORMATS) % 2:
            n, k = 8 * spread(12, 2500), 64 * spread(2, 160)
        else:
            n, k = _LAYERS[int(random.integers(len(_LAYERS)))]
        format = _FORMATS[number % len(_FORMATS)]
        cases.append(Case(format, n, k, spread(1, 4096), drawn=True, run_bytes=_RUN_BYTES))
    return cases


def attention_cases() -> list[AttentionCase]:
    return [
        AttentionCase(1, 1, 512),
        AttentionCase(1, 1, 8192),
        AttentionCase(1, 1, 32768),
        AttentionCase(16, 1, 2048),
        AttentionCase(32, 1, 8192, element="bf16"),
        AttentionCase(3, 1, 5000, head_size=64),
        AttentionCase(1, 300, 300),
        AttentionCase(1, 2048, 2048, head_size=64),
        AttentionCase(4, 4096, 4096),
        AttentionCase(1, 16384, 16384),
    ]


@dataclass(frozen=True)
class DecoderCase:
    """One step of a whole decoder; tuning it is timed, too."""

    plan: DecoderPlan

    @property
    def name(self) -> str:
        plan = self.plan
        return f"{plan.preset} {plan.formats[0]} step of {plan.batches[0]} after {plan.past}"


TuningCase = Case | AttentionCase | DecoderCase


def table_cases(preset: str, device: str) -> list[TuningCase]:
    step = DecoderCase(DecoderPlan(preset, device, ("nvfp4",), (1,)))
    return [step, *product_cases(), *attention_cases()]
