"""Block-scaled number formats: how weights become codes and scales, and back.

Blocks run along the last axis. Every format offers a few scales per block and keeps the
one that loses least, because one rule does not suit all blocks: NVFP4's largest code is 6,
but a block without values near its maximum is better served when the maximum lands on 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

# Rows are quantised in slices of about this many elements: bounds the temporary memory.
_SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True)
class NumberFormat:
    """One way to store weights. block == 0 means one scale for the whole tensor."""

    name: str
    element: type
    largest: float
    block: int
    scale: type
    opset: int  # the first opset whose DequantizeLinear can say it
    summary: str

    @property
    def bits(self) -> int:
        return 4 if self.largest <= 8 else 8

    @property
    def has_global_scale(self) -> bool:
        return self.name == "nvfp4"


FORMATS: dict[str, NumberFormat] = {
    f.name: f
    for f in (
        NumberFormat(
            "nvfp4",
            ml_dtypes.float4_e2m1fn,
            6.0,
            16,
            ml_dtypes.float8_e4m3fn,
            23,
            "4-bit floats, an e4m3 scale per 16, one float32 scale per tensor",
        ),
        NumberFormat(
            "mxfp8",
            ml_dtypes.float8_e4m3fn,
            448.0,
            32,
            ml_dtypes.float8_e8m0fnu,
            24,
            "8-bit floats, a power-of-two scale per 32",
        ),
        NumberFormat(
            "mxfp4",
            ml_dtypes.float4_e2m1fn,
            6.0,
            32,
            ml_dtypes.float8_e8m0fnu,
            24,
            "4-bit floats, a power-of-two scale per 32",
        ),
        NumberFormat(
            "int4", ml_dtypes.int4, 7.0, 32, np.float32, 21, "4-bit integers, a float scale per 32"
        ),
        NumberFormat(
            "fp8",
            ml_dtypes.float8_e4m3fn,
            448.0,
            0,
            np.float32,
            19,
            "8-bit floats, one scale per tensor",
        ),
    )
}


@dataclass
class Quantized:
    """codes [rows, columns]; scales [rows, columns/block], or [] without blocks."""

    codes: np.ndarray
    scales: np.ndarray
    global_scale: np.float32 | None = None

    def dequantize(self, dtype: type = np.float64) -> np.ndarray:
        """Exactly what DequantizeLinear computes when it works in `dtype`."""
        step = self.scales.astype(dtype)
        if self.global_scale is not None:
            step = step * dtype(self.global_scale)
        return self.codes.astype(dtype) * expand_blocks(step, self.codes.shape)

    @property
    def bytes(self) -> int:
        bits = self.codes.size * (4 if _is_nibble(self.codes.dtype) else 8)
        scale_bytes = self.scales.size * self.scales.dtype.itemsize
        return (bits + 7) // 8 + scale_bytes + (4 if self.global_scale is not None else 0)


def expand_blocks(scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeats block scales along the last axis so that they line up with the elements."""
    if scales.ndim == 0:
        return scales
    return np.repeat(scales, shape[-1] // scales.shape[-1], axis=-1)


def encode(values: np.ndarray, fmt: NumberFormat) -> np.ndarray:
    """Nearest code, ties to even, saturating."""
    if fmt.element is ml_dtypes.int4:
        return np.clip(np.rint(values), -8, 7).astype(np.int8).astype(ml_dtypes.int4)
    return np.clip(values, -fmt.largest, fmt.largest).astype(fmt.element)


def quantize(weights: np.ndarray, fmt: NumberFormat, scale_dtype: type = np.float32) -> Quantized:
    """Quantises a matrix along its last axis. `scale_dtype` is used where scales are floats."""
    weights = np.asarray(weights)
    largest = float(np.max(np.abs(weights), initial=0.0).astype(np.float32))
    if not np.isfinite(largest):
        raise ValueError("the weights hold NaN or Inf")
    if fmt.block == 0:
        scale = np.asarray(largest / fmt.largest or 1.0).astype(scale_dtype)
        values = weights.astype(np.float32) / scale.astype(np.float32)
        return Quantized(encode(values, fmt), scale)
    if weights.shape[-1] % fmt.block:
        raise ValueError(f"{weights.shape[-1]} is not a multiple of the block of {fmt.block}")

    global_scale = np.float32(1)
    if fmt.has_global_scale and largest > 0:
        global_scale = np.float32(largest / (fmt.largest * 448.0)) or np.float32(1e-38)
    stored_scale = scale_dtype if fmt.scale is np.float32 else fmt.scale
    codes = np.empty(weights.shape, fmt.element)
    scales = np.empty((*weights.shape[:-1], weights.shape[-1] // fmt.block), stored_scale)
    rows_per_slice = max(1, _SLICE_ELEMENTS // max(1, weights.shape[-1]))
    for begin in range(0, weights.shape[0], rows_per_slice):
        part = slice(begin, begin + rows_per_slice)
        codes[part], scales[part] = _quantize_rows(
            weights[part].astype(np.float32), fmt, global_scale, stored_scale
        )
    return Quantized(codes, scales, global_scale if fmt.has_global_scale else None)


def _quantize_rows(rows: np.ndarray, fmt: NumberFormat, global_scale, stored_scale):
    blocks = rows.reshape(*rows.shape[:-1], -1, fmt.block)
    peaks = np.max(np.abs(blocks), axis=-1)
    best_error = best_codes = best_scales = None
    for candidate in _SCALE_RULES[fmt.name](peaks, fmt, global_scale):
        scales = candidate.astype(stored_scale)
        step = scales.astype(np.float32) * global_scale
        # An empty or underflowing block stores zeros under the neutral scale.
        usable = (step > 0) & (peaks > 0)
        scales = np.where(usable, scales, np.asarray(1, stored_scale))
        step = np.where(usable, step, np.float32(1))[..., None]
        codes = encode(np.where(usable[..., None], blocks / step, 0), fmt)
        error = np.sum(np.square(codes.astype(np.float32) * step - blocks), axis=-1)
        if best_error is None:
            best_error, best_codes, best_scales = error, codes, scales
            continue
        better = error < best_error
        best_error = np.where(better, error, best_error)
        best_codes = np.where(better[..., None], codes, best_codes)
        best_scales = np.where(better, scales, best_scales)
    return best_codes.reshape(rows.shape), best_scales


def _nvfp4_scales(peaks, fmt, global_scale) -> Iterator[np.ndarray]:
    for top_code in (fmt.largest, 4.0):
        yield np.minimum(peaks / np.float32(top_code) / global_scale, np.float32(448))


def _power_of_two_scales(peaks, fmt, _global_scale) -> Iterator[np.ndarray]:
    fraction, exponent = np.frexp(peaks / np.float32(fmt.largest))
    round_up = np.where(fraction > 0.5, exponent, exponent - 1)
    for offset in (0, -1):
        biased = np.clip(round_up + offset + 127, 0, 254).astype(np.uint8)
        yield biased.view(ml_dtypes.float8_e8m0fnu)


def _integer_scales(peaks, fmt, _global_scale) -> Iterator[np.ndarray]:
    for top_code in (fmt.largest, fmt.largest + 1):
        yield peaks / np.float32(top_code)


_SCALE_RULES: dict[str, Callable] = {
    "nvfp4": _nvfp4_scales,
    "mxfp8": _power_of_two_scales,
    "mxfp4": _power_of_two_scales,
    "int4": _integer_scales,
}


def _is_nibble(dtype: np.dtype) -> bool:
    return dtype in (
        np.dtype(ml_dtypes.float4_e2m1fn),
        np.dtype(ml_dtypes.int4),
        np.dtype(ml_dtypes.uint4),
    )


def relative_error(exact: np.ndarray, approximate: np.ndarray) -> float:
    """Root mean square error over root mean square value."""
    exact = np.asarray(exact, np.float64)
    norm = np.sqrt(np.sum(np.square(exact)))
    difference = np.sqrt(np.sum(np.square(exact - np.asarray(approximate, np.float64))))
    return float(difference / norm) if norm > 0 else float(difference)
