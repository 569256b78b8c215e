"""One matrix product y = x W in each quantised spelling that exporters write.

FORMS maps a name to the function that emits it; build_scaled_dot makes the model. The five
forms of our own quantiser come from it, the rest are written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from .builder import FLOAT, FLOAT16, GraphBuilder
from .number_formats import FORMATS, quantize
from .quantize import quantize_model

MICROSOFT = "com.microsoft"
TENSORRT = "trt"


@dataclass(frozen=True)
class Problem:
    """Sizes and types of one product; weights and inputs follow from the seed."""

    m: int | str = "M"
    n: int = 64
    k: int = 128
    activations: int = FLOAT
    bias: bool = False
    seed: int = 0

    @property
    def dtype(self) -> np.dtype:
        return helper.tensor_dtype_to_np_dtype(self.activations)

    def weights(self) -> np.ndarray:
        """[N,K], with one empty block and one far outlier: what quantisers trip over."""
        random = np.random.default_rng(self.seed)
        values = random.standard_normal((self.n, self.k)).astype(np.float32) * np.float32(0.1)
        values[0, : min(32, self.k)] = 0
        values[-1, -1] = 3
        return values

    def bias_values(self) -> np.ndarray:
        random = np.random.default_rng(self.seed + 1)
        return random.standard_normal(self.n).astype(self.dtype)

    def inputs(self, rows: int) -> dict[str, np.ndarray]:
        random = np.random.default_rng(self.seed + 2)
        return {"x": random.standard_normal((rows, self.k)).astype(self.dtype)}


@dataclass(frozen=True)
class Form:
    """A spelling: how to emit it, its opset and domains, and the activations it allows."""

    emit: Callable[[GraphBuilder, str, Problem], str]
    opset: int = 23
    domains: tuple[str, ...] = ()
    activations: tuple[int, ...] = (FLOAT, FLOAT16)


def _cast(g: GraphBuilder, value: str, problem: Problem) -> str:
    if problem.activations == FLOAT:
        return value
    return g.node("Cast", [value], to=problem.activations)


def _product(g: GraphBuilder, x: str, weight_nk: str, problem: Problem) -> str:
    """x times the transpose of a dequantised [N,K] weight, as torch exports a Linear."""
    turned = g.node("Transpose", [weight_nk], perm=[1, 0])
    return g.node("MatMul", [x, _cast(g, turned, problem)])


def _plain(g, x, problem):
    weights = np.ascontiguousarray(problem.weights().T).astype(problem.dtype)
    return g.node("MatMul", [x, g.parameter("W", weights)])


def _gemm(g, x, problem):
    weights = problem.weights().astype(problem.dtype)
    return g.node("Gemm", [x, g.parameter("W", weights)], transB=1)


def _nvfp4_dequantized(g: GraphBuilder, problem: Problem, as_input: bool) -> str:
    q = quantize(problem.weights(), FORMATS["nvfp4"])
    scale = g.node(
        "DequantizeLinear",
        [
            g.constant("W_scale", q.scales, as_input),
            g.constant("W_scale_2", np.asarray([q.global_scale]), as_input),
        ],
    )
    return g.node(
        "DequantizeLinear",
        [g.constant("W_codes", q.codes, as_input), scale],
        axis=-1,
        block_size=16,
    )


def _nvfp4_weights_as_inputs(g, x, problem):
    return _product(g, x, _nvfp4_dequantized(g, problem, as_input=True), problem)


def _nvfp4_gemm(g, x, problem):
    weight = _cast(g, _nvfp4_dequantized(g, problem, as_input=False), problem)
    return g.node("Gemm", [x, weight], transB=1)


def _nvfp4_contrib(g, x, problem):
    q = quantize(problem.weights(), FORMATS["nvfp4"])
    inputs = [
        x,
        g.parameter("B", pack_nibbles(q.codes)),
        g.parameter("weight_scale", q.scales.view(np.uint8)),
        g.parameter("weight_scale_2", np.asarray(q.global_scale)),
    ]
    return g.node("MatMulBlockQuantizedFp4Weight", inputs, domain=MICROSOFT, block_size=16)


def _fp8_contrib(g, x, problem):
    block = 32
    values = problem.weights()
    peaks = np.abs(values.reshape(problem.n, -1, block)).max(-1)
    scale = np.where(peaks > 0, peaks / 448, 1).astype(np.float32)
    codes = (values / np.repeat(scale, block, 1)).astype(ml_dtypes.float8_e4m3fn)
    return g.node(
        "MatMulBlockQuantizedFp8Weight",
        [x, g.parameter("B", codes), g.parameter("B_scale", scale)],
        domain=MICROSOFT,
        block_size=block,
    )


def _mxfp8_tensorrt(g, x, problem):
    q = quantize(problem.weights(), FORMATS["mxfp8"])
    weight = g.node(
        "TRT_MXFP8DequantizeLinear",
        [g.parameter("W_codes", q.codes), g.parameter("W_scale", q.scales.view(np.uint8))],
        domain=TENSORRT,
        axis=-1,
        block_size=32,
        output_dtype=problem.activations,
    )
    turned = g.node("Transpose", [weight], perm=[1, 0])
    return g.node("MatMul", [x, turned])


def _integer_codes(problem: Problem, bits: int, block: int, signed: bool):
    """Codes, scales and zero points of [N,K] in blocks; unsigned ones are asymmetric."""
    blocks = problem.weights().reshape(problem.n, -1, block)
    if signed:
        top = 2 ** (bits - 1) - 1
        scale = np.abs(blocks).max(-1, keepdims=True) / top
        scale = np.where(scale > 0, scale, 1).astype(problem.dtype)
        codes = np.clip(np.rint(blocks / scale.astype(np.float32)), -top - 1, top)
        return codes.reshape(problem.n, problem.k), scale[..., 0], None
    top = 2**bits - 1
    low = np.minimum(blocks.min(-1, keepdims=True), 0)
    scale = (np.maximum(blocks.max(-1, keepdims=True), 0) - low) / top
    scale = np.where(scale > 0, scale, 1).astype(problem.dtype)
    zero = np.clip(np.rint(-low / scale.astype(np.float32)), 0, top)
    codes = np.clip(np.rint(blocks / scale.astype(np.float32)) + zero, 0, top)
    return codes.reshape(problem.n, problem.k), scale[..., 0], zero[..., 0]


def _int4_n_major(g, x, problem):
    codes, scale, _ = _integer_codes(problem, 4, 32, signed=True)
    weight = g.node(
        "DequantizeLinear",
        [g.parameter("W_codes", codes.astype(ml_dtypes.int4)), g.parameter("W_scale", scale)],
        axis=-1,
        block_size=32,
    )
    return g.node("MatMul", [x, g.node("Transpose", [weight], perm=[1, 0])])


def _uint4_k_major(g, x, problem):
    codes, scale, zero = _integer_codes(problem, 4, 32, signed=False)
    weight = g.node(
        "DequantizeLinear",
        [
            g.parameter("W_codes", codes.T.astype(ml_dtypes.uint4)),
            g.parameter("W_scale", scale.T),
            g.parameter("W_zero", zero.T.astype(ml_dtypes.uint4)),
        ],
        axis=0,
        block_size=32,
    )
    return g.node("MatMul", [x, weight])


def _int8_per_channel(g, x, problem):
    codes, scale, _ = _integer_codes(problem, 8, problem.k, signed=True)
    weight = g.node(
        "DequantizeLinear",
        [g.parameter("W_codes", codes.T.astype(np.int8)), g.parameter("W_scale", scale[:, 0])],
        axis=1,
    )
    return g.node("MatMul", [x, weight])


def _pre_scaled_int4(g, x, problem):
    """AWQ: the activations are scaled per channel before a 4-bit product."""
    channel = (1 + np.arange(problem.k) % 3 / 4).astype(problem.dtype)
    return _int4_n_major(g, g.node("Mul", [x, g.parameter("pre_quant_scale", channel)]), problem)


def _matmul_nbits(bits: int, zero_points: bool, accuracy_level: int = 0):
    def emit(g, x, problem):
        block = 32
        codes, scale, zero = _integer_codes(problem, bits, block, signed=not zero_points)
        if not zero_points:
            codes = codes + 2 ** (bits - 1)
        packed = pack_bits(codes.astype(np.uint8), bits)
        packed = packed.reshape(problem.n, problem.k // block, block * bits // 8)
        inputs = [x, g.parameter("B", packed), g.parameter("scales", scale)]
        if zero_points:
            inputs.append(g.parameter("zero_points", pack_bits(zero.astype(np.uint8), bits)))
        return g.node(
            "MatMulNBits",
            inputs,
            domain=MICROSOFT,
            K=problem.k,
            N=problem.n,
            bits=bits,
            block_size=block,
            accuracy_level=accuracy_level,
        )

    return emit


def _fp8_with_activations(g, x, problem):
    """Weights and activations in FP8, one scale each: Q, DQ on x; DQ on W."""
    scale = g.parameter("x_scale", np.asarray(4 / 448, problem.dtype))
    zero = g.parameter("x_zero", np.zeros((), ml_dtypes.float8_e4m3fn))
    codes = g.node("QuantizeLinear", [x, scale, zero], saturate=1)
    restored = g.node("DequantizeLinear", [codes, scale])
    q = quantize(np.ascontiguousarray(problem.weights().T), FORMATS["fp8"], problem.dtype)
    weight = g.node(
        "DequantizeLinear", [g.parameter("W_codes", q.codes), g.parameter("W_scale", q.scales)]
    )
    return g.node("MatMul", [restored, weight])


def _int8_with_activations(g, x, problem):
    """Weights and activations in INT8, as ONNX Runtime's quantiser writes them."""
    # A power of two: no division rounds, so that every provider finds the same codes.
    scale = g.parameter("x_scale", np.asarray(2**-5, problem.dtype))
    zero = g.parameter("x_zero", np.asarray(119, np.uint8))
    codes = g.node("QuantizeLinear", [x, scale, zero])
    return _int8_per_channel(g, g.node("DequantizeLinear", [codes, scale, zero]), problem)


def _nvfp4_dynamic(g, x, problem):
    scale = g.parameter("x_scale", np.asarray(4 / (6 * 448), np.float32))
    codes, block_scale = g.node(
        "TRT_FP4DynamicQuantize",
        [x, scale],
        outputs=2,
        domain=TENSORRT,
        axis=-1,
        block_size=16,
        scale_type=TensorProto.FLOAT8E4M3FN,
    )
    widened = g.node("DequantizeLinear", [block_scale, scale])
    restored = g.node("DequantizeLinear", [codes, widened], axis=-1, block_size=16)
    weight = _nvfp4_dequantized(g, problem, as_input=False)
    return _product(g, _cast(g, restored, problem), weight, problem)


def _mxfp8_dynamic(g, x, problem):
    codes, scale = g.node(
        "TRT_MXFP8DynamicQuantize",
        [x],
        outputs=2,
        domain=TENSORRT,
        axis=-1,
        block_size=32,
        output_dtype=TensorProto.FLOAT8E4M3FN,
    )
    restored = g.node(
        "TRT_MXFP8DequantizeLinear",
        [codes, scale],
        domain=TENSORRT,
        axis=-1,
        block_size=32,
        output_dtype=problem.activations,
    )
    return _mxfp8_tensorrt(g, restored, problem)


def _int8_dynamic(g, x, problem):
    codes, x_scale, x_zero = g.node("DynamicQuantizeLinear", [x], outputs=3)
    weights, scale, _ = _integer_codes(problem, 8, problem.k, signed=True)
    product = g.node(
        "MatMulInteger", [codes, g.parameter("W_codes", weights.T.astype(np.int8)), x_zero]
    )
    both = g.node("Mul", [x_scale, g.parameter("W_scale", scale[:, 0])])
    return g.node("Mul", [g.node("Cast", [product], to=FLOAT), both])


FORMS: dict[str, Form] = {
    "plain": Form(_plain, opset=17),
    "gemm": Form(_gemm, opset=17),
    "nvfp4_weights_as_inputs": Form(_nvfp4_weights_as_inputs),
    "nvfp4_gemm": Form(_nvfp4_gemm),
    "nvfp4_contrib": Form(_nvfp4_contrib, 21, (MICROSOFT,), (FLOAT16,)),
    "nvfp4_dynamic": Form(_nvfp4_dynamic, 23, (TENSORRT,), (FLOAT16,)),
    "mxfp8_tensorrt": Form(_mxfp8_tensorrt, 21, (TENSORRT,)),
    "mxfp8_dynamic": Form(_mxfp8_dynamic, 21, (TENSORRT,), (FLOAT16,)),
    "fp8_contrib": Form(_fp8_contrib, 21, (MICROSOFT,), (FLOAT16,)),
    "fp8_with_activations": Form(_fp8_with_activations, 21),
    "int4_n_major": Form(_int4_n_major, 21),
    "int4_pre_scaled": Form(_pre_scaled_int4, 21),
    "uint4_k_major": Form(_uint4_k_major, 21),
    "int8_per_channel": Form(_int8_per_channel, 21),
    "int8_with_activations": Form(_int8_with_activations, 21),
    "int8_dynamic": Form(_int8_dynamic, 21, activations=(FLOAT,)),
    "matmul_2bits": Form(_matmul_nbits(2, False), 21, (MICROSOFT,)),
    "matmul_4bits": Form(_matmul_nbits(4, False), 21, (MICROSOFT,)),
    "matmul_4bits_zero_points": Form(_matmul_nbits(4, True), 21, (MICROSOFT,)),
    "matmul_4bits_int8": Form(_matmul_nbits(4, True, 4), 21, (MICROSOFT,), (FLOAT,)),
    "matmul_8bits": Form(_matmul_nbits(8, False), 21, (MICROSOFT,)),
}


def form_names() -> list[str]:
    """Every spelling: those of the quantiser first."""
    return [*FORMATS, *FORMS]


def build_scaled_dot(form: str, problem: Problem | None = None) -> onnx.ModelProto:
    problem = problem or Problem()
    if form in FORMATS:
        activations = {FLOAT: "f32", FLOAT16: "f16"}.get(problem.activations, "bf16")
        plain = Problem(problem.m, problem.n, problem.k, FLOAT, problem.bias, problem.seed)
        return quantize_model(build_scaled_dot("plain", plain), form, activations)[0]
    spelling = FORMS[form]
    g = GraphBuilder(f"scaled_dot_{form}", spelling.opset, spelling.domains)
    x = g.input("x", problem.activations, [problem.m, problem.k])
    y = spelling.emit(g, x, problem)
    if problem.bias:
        y = g.node("Add", [y, g.parameter("bias", problem.bias_values())])
    g.node("Identity", [y], outputs=["y"])
    g.output("y", problem.activations, [problem.m, problem.n])
    return g.model(check=not spelling.domains)


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Two 4-bit codes per byte, the first one in the low half."""
    return pack_bits(codes.view(np.uint8) & 15, 4)


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of 2, 4 or 8 bits packed along the last axis, lowest bits first, zero padded."""
    per_byte = 8 // bits
    missing = -codes.shape[-1] % per_byte
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    groups = codes.reshape(*codes.shape[:-1], -1, per_byte).astype(np.uint8)
    shifts = (np.arange(per_byte) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(groups << shifts, axis=-1).astype(np.uint8)
