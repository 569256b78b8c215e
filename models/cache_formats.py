"""Caches that hold codes of keys and values instead of numbers, as GroupQueryAttention has them.

Scales are symmetric: one for all, or one for each element of each head. Codes of 4 bits are stored
as code + 8, two in a byte, the first in the low bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto


@dataclass(frozen=True)
class CacheFormat:
    name: str
    element: int  # of the tensor
    stored: type
    bits: int
    largest: float  # code
    granularity: str  # of the scales in the decoders that are written here

    def width(self, head_size: int) -> int:
        """Elements of the tensor that one head takes."""
        return head_size * self.bits // 8

    def quantize(self, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """x [..., heads, rows, size] as the cache stores it."""
        scaled = np.asarray(x, np.float64) / scale
        if self.name == "fp8":
            return np.clip(scaled, -self.largest, self.largest).astype(self.stored)
        codes = np.clip(np.rint(scaled), -self.largest - 1, self.largest).astype(np.int64)
        if self.bits == 8:
            return codes.astype(self.stored)
        codes += 8
        return (codes[..., ::2] | codes[..., 1::2] << 4).astype(self.stored)

    def dequantize(self, stored: np.ndarray, scale: np.ndarray) -> np.ndarray:
        if self.bits == 8:
            return stored.astype(np.float64) * scale
        codes = np.stack([stored & 15, stored >> 4], -1).astype(np.float64) - 8
        return codes.reshape(*stored.shape[:-1], -1) * scale

    def scales(self, kv_heads: int, head_size: int, granularity: str = "", seed: int = 0):
        """Scales under which numbers up to about REACH have codes."""
        if (granularity or self.granularity) == "PER_TENSOR":
            return np.full(1, REACH / self.largest, np.float32)
        drawn = np.random.default_rng(seed).uniform(0.8, 1.2, (1, kv_heads, 1, head_size))
        return (drawn * REACH / self.largest).astype(np.float32)

    def attributes(self, keys: str = "", values: str = "") -> dict:
        """Of the operator; granularities of both scales."""
        return {
            "k_quant_type": keys or self.granularity,
            "v_quant_type": values or self.granularity,
            "kv_cache_bit_width": self.bits,
        }


REACH = 4.0
CACHE_FORMATS = {
    format.name: format
    for format in (
        CacheFormat("int8", TensorProto.INT8, np.int8, 8, 127, "PER_TENSOR"),
        CacheFormat("fp8", TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, 8, 448, "PER_TENSOR"),
        CacheFormat("int4", TensorProto.UINT8, np.uint8, 4, 7, "PER_CHANNEL"),
    )
}
