"""Independent products y_i = x_i W_i^T of one shape, too many for a cache: what benchmarks time.

Weights are random codes under random scales from a narrow range: nothing is quantised, so that a
gigabyte takes a second. They lie in one file, which the models of every number of tokens share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from .builder import BFLOAT16, FLOAT, FLOAT16, GraphBuilder
from .reference import dequantize, unpack_bits
from .tolerances import dot_bound

_MICROSOFT, _TENSORRT = "com.microsoft", "trt"
_SCALE = np.float16(0.05)  # of whole tensors; with it results are about as large as inputs
_INT8_SCALE = np.float32(0.0006)
# Of rows: powers of two, so that no provider's division rounds, and 6 does not saturate.
_FP8_ROWS, _INT8_ROWS, _FP4_ROWS = np.float16(2**-6), np.float32(2**-4), np.float32(2**-9)
_ALIGNMENT = 4096  # so that the file's tensors can be mapped
_DRAWN_INPUTS = (1 << 20) - 3  # drawing more takes seconds; odd, so that rows differ


@dataclass(frozen=True)
class Part:
    """One stored tensor of a weight: random bits under a mask, and bits that are always set."""

    bits: int
    mask: int
    set_bits: int = 0
    block: int = 1  # weights per element
    k_major: bool = False  # stored as [K,N]

    @property
    def word(self) -> np.dtype:
        return np.dtype({16: np.uint16, 32: np.uint32}.get(self.bits, np.uint8))

    def bytes(self, n: int, k: int) -> int:
        return n * (k // self.block) * self.bits // 8

    def draw(self, random: np.random.Generator, n: int, k: int) -> np.ndarray:
        drawn = np.frombuffer(random.bytes(self.bytes(n, k)), self.word)
        return (drawn & self.word.type(self.mask)) | self.word.type(self.set_bits)


@dataclass(frozen=True)
class StackFormat:
    """How a weight is stored, how Tenon's and the peer's model spell its product, its values.

    emit, emit_peer  (weight: _Weight, x, y) add the nodes of one product
    rows             some rows of every part, as words, to those rows of the weight in float64
    quantized        of formats that quantise x: the numbers that its codes stand for, in float64
    """

    parts: dict[str, Part]
    emit: Callable
    rows: Callable
    emit_peer: Callable | None = None  # None: no other provider runs it
    opset: int = 21
    activations: int = FLOAT16
    may_round: bool = False  # code times scale may be rounded to the activations' type
    quantized: Callable | None = None
    options: dict[str, str] = field(default_factory=dict)  # that Tenon's session is given

    @property
    def may_be_tf32(self) -> bool:
        return self.options.get("precision_mode") == "tf32"

    @property
    def dtype(self) -> np.dtype:
        return helper.tensor_dtype_to_np_dtype(self.activations)

    def multiplied(self, x: np.ndarray) -> np.ndarray:
        """What the weight is multiplied by, in float64."""
        return self.quantized(x) if self.quantized else x.astype(np.float64)

    def weight_bytes(self, n: int, k: int) -> int:
        return sum(part.bytes(n, k) for part in self.parts.values())


@dataclass(frozen=True)
class _Weight:
    """One weight of a stack while a model is written."""

    g: GraphBuilder
    n: int
    k: int
    number: int
    file: str
    spans: dict[str, tuple[int, int]]  # part to (offset, bytes)

    def stored(self, part: str, element: int, *shape: int) -> str:
        return self.g.external(f"{part}{self.number}", element, shape, self.file, *self.spans[part])


def _product(g: GraphBuilder, x: str, y: str, weight_nk: str) -> None:
    g.node("MatMul", [x, g.node("Transpose", [weight_nk], perm=[1, 0])], outputs=[y])


def _emit_nvfp4(w: _Weight, x: str, y: str) -> None:
    g = w.g
    codes = w.stored("codes", TensorProto.FLOAT4E2M1, w.n, w.k)
    scales = w.stored("scales", TensorProto.FLOAT8E4M3FN, w.n, w.k // 16)
    widened = g.node("DequantizeLinear", [scales, g.constant("scale", np.float32(_SCALE))])
    weight = g.node("DequantizeLinear", [codes, widened], axis=-1, block_size=16)
    _product(g, x, y, g.node("Cast", [weight], to=FLOAT16))


def _emit_nvfp4_peer(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.UINT8, w.n, w.k // 2)
    scales = w.stored("scales", TensorProto.UINT8, w.n, w.k // 16)
    inputs = [x, codes, scales, w.g.constant("scale", np.array([_SCALE], np.float32))]
    op = "MatMulBlockQuantizedFp4Weight"
    w.g.node(op, inputs, outputs=[y], domain=_MICROSOFT, block_size=16)


def _emit_mxfp4(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.FLOAT4E2M1, w.n, w.k)
    scales = w.stored("scales", TensorProto.FLOAT8E8M0, w.n, w.k // 32)
    attributes = {"axis": -1, "block_size": 32, "output_dtype": FLOAT16}
    _product(w.g, x, y, w.g.node("DequantizeLinear", [codes, scales], **attributes))


def _emit_mxfp8(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.FLOAT8E4M3FN, w.n, w.k)
    scales = w.stored("scales", TensorProto.FLOAT8E8M0, w.n, w.k // 32)
    attributes = {"axis": -1, "block_size": 32, "output_dtype": FLOAT16}
    _product(w.g, x, y, w.g.node("DequantizeLinear", [codes, scales], **attributes))


def _emit_int4(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.UINT8, w.n, w.k // 32, 16)
    scales = w.stored("scales", FLOAT16, w.n, w.k // 32)
    attributes = {"K": w.k, "N": w.n, "bits": 4, "block_size": 32}
    w.g.node("MatMulNBits", [x, codes, scales], outputs=[y], domain=_MICROSOFT, **attributes)


def _emit_fp8(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.FLOAT8E4M3FN, w.n, w.k)
    weight = w.g.node("DequantizeLinear", [codes, w.g.constant("scale", _SCALE)])
    # ONNX Runtime 1.24 itself transposes FP8 constants wrongly, so there is no Transpose here.
    w.g.node("Gemm", [x, weight], outputs=[y], transB=1)


def _emit_fp8_peer(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.FLOAT8E4M3FN, w.n, w.k)
    scales = w.g.constant("scales", np.full((w.n, w.k // 128), _SCALE, np.float32))
    op = "MatMulBlockQuantizedFp8Weight"
    w.g.node(op, [x, codes, scales], outputs=[y], domain=_MICROSOFT, block_size=128)


def _quantized_rows(w: _Weight, x: str, scale: np.floating, zero) -> str:
    """Q and DQ with one scale, as quantisers put them in front of a product."""
    g = w.g
    step, zero = g.constant("x_scale", scale), g.constant("x_zero", zero)
    return g.node("DequantizeLinear", [g.node("QuantizeLinear", [x, step, zero]), step, zero])


def _emit_fp8_by_fp8(w: _Weight, x: str, y: str) -> None:
    _emit_fp8(w, _quantized_rows(w, x, _FP8_ROWS, np.zeros((), ml_dtypes.float8_e4m3fn)), y)


def _emit_int8_by_int8(w: _Weight, x: str, y: str) -> None:
    codes = w.stored("codes", TensorProto.INT8, w.n, w.k)
    weight = w.g.node("DequantizeLinear", [codes, w.g.constant("scale", _INT8_SCALE)])
    rows = _quantized_rows(w, x, _INT8_ROWS, np.zeros((), np.int8))
    w.g.node("Gemm", [rows, weight], outputs=[y], transB=1)


def _emit_mxfp8_by_mxfp8(w: _Weight, x: str, y: str) -> None:
    g, attributes = w.g, {"domain": _TENSORRT, "axis": -1, "block_size": 32}

    def dequantized(codes: str, scales: str) -> str:
        op = "TRT_MXFP8DequantizeLinear"
        return g.node(op, [codes, scales], output_dtype=FLOAT16, **attributes)

    quantize = {"outputs": 2, "output_dtype": TensorProto.FLOAT8E4M3FN, **attributes}
    rows = dequantized(*g.node("TRT_MXFP8DynamicQuantize", [x], **quantize))
    codes = w.stored("codes", TensorProto.FLOAT8E4M3FN, w.n, w.k)
    scales = w.stored("scales", TensorProto.UINT8, w.n, w.k // 32)
    _product(g, rows, y, dequantized(codes, scales))


def _emit_nvfp4_by_nvfp4(w: _Weight, x: str, y: str) -> None:
    g = w.g
    step = g.constant("x_scale", _FP4_ROWS)
    codes, scales = g.node(
        "TRT_FP4DynamicQuantize", [x, step], outputs=2, domain=_TENSORRT, axis=-1, block_size=16,
        scale_type=TensorProto.FLOAT8E4M3FN,
    )  # fmt: skip
    widened = g.node("DequantizeLinear", [scales, step])
    rows = g.node("DequantizeLinear", [codes, widened], axis=-1, block_size=16)
    _emit_nvfp4(w, g.node("Cast", [rows], to=FLOAT16), y)


def _emit_plain(element: int) -> Callable:
    def emit(w: _Weight, x: str, y: str) -> None:
        w.g.node("MatMul", [x, w.stored("values", element, w.k, w.n)], outputs=[y])

    return emit


def _fp4(codes: np.ndarray) -> np.ndarray:
    return unpack_bits(codes, 4).view(ml_dtypes.float4_e2m1fn)


def _nvfp4_rows(codes, scales):
    steps = dequantize(scales.view(ml_dtypes.float8_e4m3fn), np.float32(_SCALE))
    return dequantize(_fp4(codes), steps, block=16)


def _mxfp4_rows(codes, scales):
    return dequantize(_fp4(codes), scales.view(ml_dtypes.float8_e8m0fnu), block=32)


def _mxfp8_rows(codes, scales):
    return dequantize(
        codes.view(ml_dtypes.float8_e4m3fn), scales.view(ml_dtypes.float8_e8m0fnu), block=32
    )


def _int4_rows(codes, scales):
    centred = unpack_bits(codes, 4).astype(np.int8) - 8
    return dequantize(centred, scales.view(np.float16), block=32)


def _fp8_rows(codes):
    return dequantize(codes.view(ml_dtypes.float8_e4m3fn), _SCALE)


def _int8_rows(codes):
    return dequantize(codes.view(np.int8), _INT8_SCALE)


def _fp8_numbers(x: np.ndarray) -> np.ndarray:
    codes = np.clip(x.astype(np.float32) / np.float32(_FP8_ROWS), -448, 448)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * float(_FP8_ROWS)


def _int8_numbers(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x / _INT8_ROWS), -128, 127).astype(np.float64) * float(_INT8_ROWS)


def _blocks(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers by block, and the largest of each."""
    split = x.astype(np.float32).reshape(len(x), -1, block)
    return split, np.abs(split).max(-1, keepdims=True)


def _mxfp8_numbers(x: np.ndarray) -> np.ndarray:
    split, largest = _blocks(x, 32)
    fraction, exponent = np.frexp(largest / np.float32(448))
    # Rounded up to a power of two.
    scale = np.ldexp(np.float32(1), np.where(fraction == 0.5, exponent - 1, exponent))
    codes = np.clip(split / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return (codes.astype(np.float64) * scale).reshape(x.shape)


def _nvfp4_numbers(x: np.ndarray) -> np.ndarray:
    split, largest = _blocks(x, 16)
    wanted = largest / np.float32(6) / _FP4_ROWS
    scale = wanted.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * _FP4_ROWS
    codes = np.clip(split / np.where(scale == 0, 1, scale), -6, 6)
    return (codes.astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale).reshape(x.shape)


def _plain_rows(dtype: type) -> Callable:
    return lambda values: values.view(dtype).astype(np.float64)


# Scales: e4m3 from 1/8 to 1/2, e8m0 from 2^-7 to 2^-4, f16 from 2^-7 to 2^-5. FP8 codes stay
# below 2, plain values lie between 2^-7 and 2^-3.
STACK_FORMATS: dict[str, StackFormat] = {
    "nvfp4": StackFormat(
        {"codes": Part(4, 0xFF), "scales": Part(8, 0x0F, 0x20, block=16)},
        _emit_nvfp4, _nvfp4_rows, _emit_nvfp4_peer, opset=23,
    ),
    "mxfp4": StackFormat(
        {"codes": Part(4, 0xFF), "scales": Part(8, 0x03, 0x78, block=32)},
        _emit_mxfp4, _mxfp4_rows, opset=24,
    ),
    "mxfp8": StackFormat(
        {"codes": Part(8, 0xBF), "scales": Part(8, 0x03, 0x78, block=32)},
        _emit_mxfp8, _mxfp8_rows, opset=24,
    ),
    "int4": StackFormat(
        {"codes": Part(4, 0xFF), "scales": Part(16, 0x07FF, 0x2000, block=32)},
        _emit_int4, _int4_rows, _emit_int4, may_round=True,
    ),
    "fp8": StackFormat({"codes": Part(8, 0xBF)}, _emit_fp8, _fp8_rows, _emit_fp8_peer),
    "f16": StackFormat(
        {"values": Part(16, 0x8FFF, 0x2000, k_major=True)},
        _emit_plain(FLOAT16), _plain_rows(np.float16), _emit_plain(FLOAT16),
    ),
    "bf16": StackFormat(
        {"values": Part(16, 0x81FF, 0x3C00, k_major=True)},
        _emit_plain(BFLOAT16), _plain_rows(ml_dtypes.bfloat16), _emit_plain(BFLOAT16),
        activations=BFLOAT16,
    ),
    "tf32": StackFormat(
        {"values": Part(32, 0x81FFFFFF, 0x3C000000, k_major=True)},
        _emit_plain(FLOAT), _plain_rows(np.float32), _emit_plain(FLOAT),
        activations=FLOAT, options={"precision_mode": "tf32"},
    ),
    "fp8_by_fp8": StackFormat(
        {"codes": Part(8, 0xBF)}, _emit_fp8_by_fp8, _fp8_rows, _emit_fp8_by_fp8,
        quantized=_fp8_numbers,
    ),
    "int8_by_int8": StackFormat(
        {"codes": Part(8, 0xFF)}, _emit_int8_by_int8, _int8_rows, _emit_int8_by_int8,
        activations=FLOAT, quantized=_int8_numbers,
    ),
    "mxfp8_by_mxfp8": StackFormat(
        {"codes": Part(8, 0xBF), "scales": Part(8, 0x03, 0x78, block=32)},
        _emit_mxfp8_by_mxfp8, _mxfp8_rows, quantized=_mxfp8_numbers,
    ),
    "nvfp4_by_nvfp4": StackFormat(
        {"codes": Part(4, 0xFF), "scales": Part(8, 0x0F, 0x20, block=16)},
        _emit_nvfp4_by_nvfp4, _nvfp4_rows, opset=23, quantized=_nvfp4_numbers,
    ),
}  # fmt: skip


class ProductStack:
    """Weights in a folder's file, and the models that read them."""

    def __init__(self, folder: Path, format: str, n: int, k: int, copies: int, seed: int = 0):
        self.folder = Path(folder)
        self.format = STACK_FORMATS[format]
        self.name, self.n, self.k, self.copies = format, n, k, copies
        self.path = self.folder / "weights.bin"
        self._seed = seed
        self._spans: list[dict[str, tuple[int, int]]] = []
        self._write_weights()

    def _write_weights(self) -> None:
        random = np.random.default_rng((self._seed, self.n, self.k))
        with self.path.open("wb") as file:
            for _ in range(self.copies):
                spans = {}
                for name, part in self.format.parts.items():
                    file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
                    data = part.draw(random, self.n, self.k)
                    spans[name] = (file.tell(), data.nbytes)
                    file.write(data)
                self._spans.append(spans)

    def model(self, tokens: int, copies: int | None = None, peer: bool = False) -> Path:
        """Writes the model of the first weights, each with an input and an output of its own."""
        emit = self.format.emit_peer if peer else self.format.emit
        if emit is None:
            raise ValueError(f"no provider but Tenon runs {self.name}")
        opset = 21 if peer else self.format.opset
        g = GraphBuilder(f"products_{self.name}", opset, (_MICROSOFT, _TENSORRT))
        for number in range(copies or self.copies):
            x = g.input(f"x{number}", self.format.activations, [tokens, self.k])
            y = g.output(f"y{number}", self.format.activations, [tokens, self.n])
            spans = self._spans[number]
            emit(_Weight(g, self.n, self.k, number, self.path.name, spans), x, y)
        path = self.folder / f"{'peer' if peer else 'tenon'}_{tokens}.onnx"
        onnx.save(g.model(check=False), path)
        return path

    def inputs(self, tokens: int, copies: int | None = None) -> dict[str, np.ndarray]:
        random = np.random.default_rng(self._seed)
        pool = random.standard_normal(_DRAWN_INPUTS, np.float32).astype(self.format.dtype)
        return {
            f"x{number}": np.resize(np.roll(pool, 61 * number), (tokens, self.k))
            for number in range(copies or self.copies)
        }

    def weight_rows(self, number: int, rows: Sequence[int]) -> np.ndarray:
        """Some rows of W_i [N,K] in float64, as the format defines them."""
        words = []
        for name, part in self.format.parts.items():
            offset, size = self._spans[number][name]
            count = size // part.word.itemsize
            flat = np.memmap(self.path, part.word, "r", offset, (count,))
            if part.k_major:
                kept = flat.reshape(self.k, self.n)[:, rows].T
            else:
                kept = flat.reshape(self.n, -1)[rows]
            words.append(np.ascontiguousarray(kept))
        return self.format.rows(*words)

    def error_over_bound(
        self, number: int, x: np.ndarray, rows: Sequence[int], y: np.ndarray
    ) -> float:
        """The largest error of y [M, rows] over what float32 sums and one rounding allow."""
        exact = self.weight_rows(number, rows)
        x = self.format.multiplied(x)
        readings = [(x, exact)]
        if self.format.may_round:
            readings.append((x, exact.astype(self.format.dtype).astype(np.float64)))
        if self.format.may_be_tf32:
            readings.append((round_to_tf32(x), round_to_tf32(exact)))
        return min(_error_over_bound(rows, weight.T, y) for rows, weight in readings)


def round_to_tf32(numbers: np.ndarray) -> np.ndarray:
    """Finite float32 to the 10 bits of mantissa that tf32 has, ties to even, as float64."""
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = (bits + np.uint32(0xFFF) + odd) & np.uint32(0xFFFFE000)
    return rounded.view(np.float32).astype(np.float64)


def _error_over_bound(x: np.ndarray, weight: np.ndarray, y: np.ndarray) -> float:
    error = np.abs(y.astype(np.float64) - x.astype(np.float64) @ weight)
    ratio = error / dot_bound(x, weight, y.dtype)
    return float("inf") if np.isnan(ratio).any() else float(ratio.max())
