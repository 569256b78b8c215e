"""Which products are timed, and the bars that they should reach on an H200."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..models.product_stack import STACK_FORMATS

# What a Run moves: 130 us of an H200's memory, more than the host needs to begin the next Run, and
# twelve times the second cache level: no weight is still there when its turn comes again.
_RUN_BYTES = 600_000_000
_FEWEST, _MOST = 3, 64


@dataclass(frozen=True)
class Bar:
    """What a case should reach: every condition that is given."""

    microseconds: float | None = None  # at most
    teraflops: float | None = None  # at least
    read_share: float | None = None  # at least, of the read limit
    of_cublas: float | None = None  # at most, of cuBLAS's time with plain weights
    of_peer: float | None = None  # at most, of the CUDA provider's time

    def __str__(self) -> str:
        texts = {
            f"<= {self.microseconds} us": self.microseconds,
            f">= {self.teraflops} TFLOP/s": self.teraflops,
            f">= {self.read_share or 0:.0%} of the read limit": self.read_share,
            f"<= {self.of_cublas} of cuBLAS": self.of_cublas,
            f"<= {self.of_peer} of the CUDA provider": self.of_peer,
        }
        return ", ".join(text for text, given in texts.items() if given is not None)


@dataclass(frozen=True)
class Case:
    """M tokens times an N x K weight of some format."""

    format: str
    n: int
    k: int
    m: int
    bar: Bar = Bar()
    drawn: bool = False  # a random shape: only Tenon is timed
    run_bytes: int = _RUN_BYTES

    @property
    def name(self) -> str:
        return f"{'random ' if self.drawn else ''}{self.format} M={self.m} {self.n}x{self.k}"

    @property
    def weight_bytes(self) -> int:
        return STACK_FORMATS[self.format].weight_bytes(self.n, self.k)

    @property
    def operand_bytes(self) -> int:
        """Of an element of x; of twice as long ones tensor cores multiply half as many."""
        return STACK_FORMATS[self.format].dtype.itemsize

    @property
    def bytes(self) -> int:
        """Weight, input and output, each moved once."""
        return self.weight_bytes + self.operand_bytes * self.m * (self.n + self.k)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def copies(self) -> int:
        return min(_MOST, max(_FEWEST, math.ceil(self.run_bytes / self.bytes)))

    @property
    def most_copies(self) -> int:
        """Of any number of tokens: they share the weights' file."""
        return self.copies if self.drawn else replace(self, m=1).copies


_VOCABULARY, _GATE_UP, _DOWN, _QKV, _SQUARE = (
    (128256, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (4096, 4096),
)  # fmt: skip
_ALL_4_BIT, _MOST_USED_4_BIT = ("nvfp4", "int4", "mxfp4"), ("nvfp4", "int4")
# Rows that the model quantises: the CUDA provider runs the first two as they are.
_BY_ROWS, _BY_BLOCKS = ("fp8_by_fp8", "int8_by_int8"), ("mxfp8_by_mxfp8", "nvfp4_by_nvfp4")

# Formats, tokens, and the bar of each shape.
_TABLE = (
    (_ALL_4_BIT, 1, {_VOCABULARY: Bar(75), _GATE_UP: Bar(19), _DOWN: Bar(11.5), _QKV: Bar(6),
                     _SQUARE: Bar(4.5)}),
    (_ALL_4_BIT, 16, {_VOCABULARY: Bar(95), _GATE_UP: Bar(23), _DOWN: Bar(15), _QKV: Bar(7.5),
                      _SQUARE: Bar(6)}),
    (_MOST_USED_4_BIT, 64, {_GATE_UP: Bar(33), _SQUARE: Bar(11)}),
    (_MOST_USED_4_BIT, 256, {_GATE_UP: Bar(teraflops=700, of_cublas=1.03), _SQUARE: Bar(18)}),
    (_MOST_USED_4_BIT, 1024, {_GATE_UP: Bar(teraflops=790, of_cublas=1.03),
                              _SQUARE: Bar(teraflops=800, of_cublas=1.03)}),
    (_MOST_USED_4_BIT, 4096, {_GATE_UP: Bar(teraflops=710, of_cublas=1.03),
                              _SQUARE: Bar(teraflops=810, of_cublas=1.03)}),
    (("fp8",), 1, {_VOCABULARY: Bar(read_share=0.85), _GATE_UP: Bar(read_share=0.75)}),
    (("f16", "bf16", "tf32"), 4096, {_GATE_UP: Bar(of_cublas=1.03),
                                     _SQUARE: Bar(of_cublas=1.03)}),
    (_BY_ROWS, 16, {_SQUARE: Bar()}),
    (_BY_ROWS, 512, {_SQUARE: Bar(of_peer=1.3)}),
    (_BY_ROWS, 4096, {_SQUARE: Bar(of_peer=1.3)}),
    (_BY_BLOCKS, 16, {_SQUARE: Bar()}),
    (_BY_BLOCKS, 512, {_SQUARE: Bar()}),
    (_BY_BLOCKS, 4096, {_SQUARE: Bar()}),
)  # fmt: skip


def table_cases(quick: bool = False) -> list[Case]:
    """Cases that share a weight follow each other; the formats used most come first."""
    cases = [
        Case(format, *shape, m, bar)
        for formats, m, bars in _TABLE
        for format in formats
        for shape, bar in bars.items()
        if format == "nvfp4" or not quick
    ]
    first_seen = {}
    for case in cases:
        first_seen.setdefault(case.format, len(first_seen))
    return sorted(cases, key=lambda case: (first_seen[case.format], case.n * case.k, case.k))


def random_cases(count: int, seed: int) -> list[Case]:
    """Shapes spread evenly over their logarithms."""
    random = np.random.default_rng(seed)

    def spread(low: int, high: int, step: int) -> int:
        return step * int(np.exp(random.uniform(np.log(low / step), np.log(high / step + 1))))

    return [
        Case(
            str(random.choice(_ALL_4_BIT)),
            spread(512, 32768, 16),
            spread(512, 16384, 64),
            spread(1, 4096, 1),
            drawn=True,
        )
        for _ in range(count)
    ]
