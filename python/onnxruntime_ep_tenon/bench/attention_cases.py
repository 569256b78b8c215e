"""Which attentions are timed, and the bars that they should reach on an H200."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Four times the second cache level of an H200: no cache is still there when its turn comes again.
_ROTATED_BYTES = 240_000_000
# Of a Run of decode attentions: what it costs to begin one, on host and GPU, is shared by many.
_RUN_BYTES = 1_000_000_000
_FEWEST, _MOST = 2, 32
_BYTES = 2  # of an element: f16 and bf16
_CACHE_BITS = {"int8": 8, "fp8": 8, "int4": 4}


@dataclass(frozen=True)
class AttentionCase:
    """Fresh queries over a cache of `keys`, of which the last `queries` are written as well."""

    batch: int
    queries: int
    keys: int
    bar: float | None = None  # at most, of the CUDA provider's time: the best kernel's
    head_size: int = 128
    element: str = "f16"
    heads: int = 32
    kv_heads: int = 8
    cache: str = ""  # int8, fp8 or int4 codes; else numbers of the element's type

    @property
    def kind(self) -> str:
        return "decode" if self.queries == 1 else "prefill"

    @property
    def name(self) -> str:
        size = self.keys if self.kind == "prefill" or self.keys % 1024 else f"{self.keys // 1024}k"
        cache = f" {self.cache} cache" if self.cache else ""
        return f"{self.kind} b{self.batch} {size} {self.element} d{self.head_size}{cache}"

    @property
    def cache_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.kv_heads, self.keys, self.head_size

    @property
    def bytes(self) -> int:
        """Caches, queries and results, each moved once."""
        caches = 2 * math.prod(self.cache_shape) * _CACHE_BITS.get(self.cache, 8 * _BYTES) // 8
        around = 2 * self.batch * self.queries * self.heads * self.head_size
        return caches + _BYTES * around

    @property
    def flops(self) -> float:
        """Of what the causal mask leaves, counted as half for prefill."""
        all_pairs = 4.0 * self.batch * self.heads * self.queries * self.keys * self.head_size
        return all_pairs / 2 if self.kind == "prefill" else all_pairs

    @property
    def copies(self) -> int:
        wanted = _RUN_BYTES if self.kind == "decode" else _ROTATED_BYTES
        return min(_MOST, max(_FEWEST, math.ceil(wanted / self.bytes)))


# The others repeat these with shorter heads, with bfloat16, and steps over codes, without a bar.
_BARRED = (
    AttentionCase(1, 1, 8192, bar=0.52),
    AttentionCase(1, 1, 32768, bar=0.76),
    AttentionCase(32, 1, 8192, bar=0.98),
    AttentionCase(4, 4096, 4096, bar=0.7),
    AttentionCase(1, 16384, 16384, bar=0.82),
)
_VARIED = ({"head_size": 64}, {"element": "bf16"})
_HOST_KEYS, _HOST_BATCH = 128, 2  # keys are divided, rows at most


def table_cases(quick: bool = False) -> list[AttentionCase]:
    """Those that have a bar come first."""
    if quick:
        return list(_BARRED)
    varied = [replace(case, bar=None, **change) for change in _VARIED for case in _BARRED]
    steps = [case for case in _BARRED if case.kind == "decode"]
    coded = [replace(case, bar=None, cache=cache) for cache in _CACHE_BITS for case in steps]
    return [*_BARRED, *varied, *coded]


def host_cases() -> list[AttentionCase]:
    """The same, small enough to try the table on a machine without a GPU."""

    def small(size: int) -> int:
        return max(1, size // _HOST_KEYS)

    return [
        replace(
            case,
            batch=min(case.batch, _HOST_BATCH),
            queries=small(case.queries),
            keys=small(case.keys),
            bar=None,
        )
        for case in _BARRED
    ]
