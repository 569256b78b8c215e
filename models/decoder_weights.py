"""Where a decoder's weights come from: seeds, a training, or random bits that are never floats.

Every source answers the same two questions, tensor by tensor, so that a model of any size is
written without being held: `values` for what stays float, `matrix` for what a product stores.
Names are those of the checkpoints that people convert.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .number_formats import FORMATS, Quantized, quantize
from .scaled_dot import pack_nibbles

NUMPY_TYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_CHUNK = 1 << 26  # bytes drawn at a time


@dataclass(frozen=True)
class Matrix:
    """A product's weight [N,K]; `parts` are the checkpoint's tensors whose rows it stacks."""

    name: str
    n: int
    k: int
    parts: tuple[tuple[str, int], ...] = ()  # name, rows

    def rows(self) -> tuple[tuple[str, int], ...]:
        return self.parts or ((f"{self.name}.weight", self.n),)


@dataclass(frozen=True)
class Stored:
    """A matrix as a file holds it: packed codes, then scales; plain values have no scales."""

    codes: Iterator[np.ndarray]
    scales: np.ndarray | None = None
    overall: np.float32 | None = None


class FloatWeights:
    """Weights that exist as floats; a product's are quantised when they are asked for."""

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        raise NotImplementedError

    def floats(self, matrix: Matrix) -> np.ndarray:
        """[N,K] in float32."""
        return np.concatenate([self.values(name, (n, matrix.k)) for name, n in matrix.rows()])

    def quantized(self, matrix: Matrix, format: str, activations: str) -> Quantized:
        return quantize(self.floats(matrix), FORMATS[format], NUMPY_TYPES[activations].type)

    def matrix(self, matrix: Matrix, format: str, activations: str, k_major: bool) -> Stored:
        if format in NUMPY_TYPES:
            values = self.floats(matrix).astype(NUMPY_TYPES[format])
            return Stored(iter([np.ascontiguousarray(values.T if k_major else values)]))
        q = self.quantized(matrix, format, activations)
        codes, scales = (q.codes.T, q.scales.T) if k_major else (q.codes, q.scales)
        codes = np.ascontiguousarray(codes)
        packed = pack_nibbles(codes) if FORMATS[format].bits == 4 else codes.view(np.uint8)
        return Stored(iter([packed]), np.ascontiguousarray(scales), q.global_scale)

    def table(self, name: str, shape: tuple[int, ...], activations: str) -> Iterator[np.ndarray]:
        yield self.values(name, shape).astype(NUMPY_TYPES[activations])


class SeededWeights(FloatWeights):
    """Drawn tensor by tensor from a seed and the tensor's name: the order does not matter."""

    def __init__(self, seed: int = 0):
        self._seed = seed

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng((self._seed, zlib.crc32(name.encode())))
        drawn = random.standard_normal(shape, np.float32)
        if len(shape) == 1:
            centre = 1.0 if "norm" in name else 0.0
            return np.float32(centre) + np.float32(0.2) * drawn
        return drawn * np.float32(shape[-1] ** -0.5)


class TrainedWeights(FloatWeights):
    """Tensors that somebody holds, under the checkpoint's names."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self._tensors = tensors

    def values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in self._tensors:
            raise ValueError(f"the weights hold no tensor {name}")
        tensor = self._tensors[name]
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{name} should be {list(shape)}, it is {list(tensor.shape)}")
        return np.asarray(tensor, np.float32)


class DrawnWeights(SeededWeights):
    """Random codes under random scales: gigabytes in seconds, since nothing is quantised.

    Scales are such that a product's result is about as large as its input.
    """

    # The root mean square of uniformly drawn codes, times that of the drawn fractions of a scale.
    _CODE_SIZE = {"nvfp4": 2.93 * 0.3, "mxfp4": 2.93, "mxfp8": 0.5, "int4": 4.6 * 1.5}

    def matrix(self, matrix: Matrix, format: str, activations: str, k_major: bool) -> Stored:
        random = self._random(matrix.name)
        count = matrix.n * matrix.k
        if format in NUMPY_TYPES:
            return Stored(_draw_floats(random, count, format, -0.5 * math.log2(matrix.k) - 0.5))
        codes = _draw_bytes(random, count * FORMATS[format].bits // 8)
        if format == "mxfp8":
            codes = (chunk & np.uint8(0xBF) for chunk in codes)  # below 2: no NaN among them
        size = self._CODE_SIZE[format] * math.sqrt(matrix.k)
        shape = (matrix.k // FORMATS[format].block, matrix.n)
        return Stored(
            codes,
            _draw_scales(random, shape if k_major else shape[::-1], format, activations, size),
            np.float32(1 / size) if FORMATS[format].has_global_scale else None,
        )

    def table(self, name: str, shape: tuple[int, ...], activations: str) -> Iterator[np.ndarray]:
        return _draw_floats(self._random(name), math.prod(shape), activations, -0.5)

    def _random(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64((self._seed, zlib.crc32(name.encode()))))


def _draw_bytes(random: np.random.Generator, count: int) -> Iterator[np.ndarray]:
    for begin in range(0, count, _CHUNK):
        yield np.frombuffer(random.bytes(min(_CHUNK, count - begin)), np.uint8)


def _draw_floats(random, count: int, type: str, power: float) -> Iterator[np.ndarray]:
    """Signs and fractions at random, one exponent: numbers from 2^power to twice that."""
    dtype = NUMPY_TYPES[type]
    word = np.dtype(f"u{dtype.itemsize}")
    fraction_bits = {"f32": 23, "f16": 10, "bf16": 7}[type]
    sign = word.type(1 << (8 * dtype.itemsize - 1))
    exponent = np.asarray(2.0 ** math.floor(power), dtype).view(word)
    for chunk in _draw_bytes(random, count * dtype.itemsize):
        kept = chunk.view(word) & (sign | word.type((1 << fraction_bits) - 1))
        yield (kept | exponent).view(dtype)


def _draw_scales(random, shape, format: str, activations: str, size: float) -> np.ndarray:
    power = math.floor(-math.log2(size))
    if format == "int4":
        drawn = list(_draw_floats(random, math.prod(shape), activations, power))
        return np.abs(np.concatenate(drawn)).reshape(shape)
    drawn = np.frombuffer(random.bytes(math.prod(shape)), np.uint8).reshape(shape)
    if format == "nvfp4":  # from 1/8 to 1/2; the rest is the global scale's
        return ((drawn & np.uint8(0x0F)) | np.uint8(0x20)).view(ml_dtypes.float8_e4m3fn)
    powers = (drawn & np.uint8(1)) + np.uint8(127 + power)
    return powers.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
