"""How far a right answer may lie from the float64 one, and why.

The reference works on the same quantised weights, so no bound here pays for quantisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from .rewrite import graphs_of

# Half the distance between 1 and the next number: one rounding's largest relative error.
UNIT_ROUNDOFF = {
    np.dtype(np.float64): 2.0**-53,
    np.dtype(np.float32): 2.0**-24,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}


@dataclass(frozen=True)
class Tolerance:
    """An element passes within absolute + relative * |reference|; the whole within rms."""

    absolute: float
    relative: float
    rms: float  # of the error, over the rms of the reference
    why: str


# One operator that rounds once or twice: a few units in the last place.
ELEMENTWISE = Tolerance(1e-6, 1e-6, 1e-6, "float32 arithmetic, transcendentals within 8 ULP")

# A whole float32 model: each layer adds its own rounding, norms bring the size back to one.
MODEL_F32 = Tolerance(2e-5, 1e-4, 2e-5, "float32 sums of a few hundred terms, some ten layers deep")

# 16-bit activations round after every operator; softmax and norms accumulate in float32.
MODEL_F16 = Tolerance(5e-3, 5e-3, 4e-3, "one rounding of 2^-11 per operator, some ten layers deep")
MODEL_BF16 = Tolerance(4e-2, 4e-2, 3e-2, "one rounding of 2^-8 per operator, some ten layers deep")

ATTENTION_F16 = Tolerance(5e-3, 5e-3, 4e-3, "the bound of others' grouped-attention tests")
ATTENTION_BF16 = Tolerance(1e-2, 1e-2, 1e-2, "the bound of others' grouped-attention tests")

# Activations rounded to 8 bits by the user's own wish: 1/254 of the row's peak per element.
INT8_ACTIVATIONS = Tolerance(5e-2, 5e-2, 2e-2, "activations rounded to int8, one scale per block")

# The same by the model itself: two right answers that differ in a sum's last bit take neighbouring
# codes, 1/255 of the range apart, and every layer behind passes it on.
QUANTIZED_ACTIVATIONS = Tolerance(
    1e-1, 1e-1, 5e-2, "the model rounds its activations: a last bit may turn into a whole step"
)
_ROUNDING_OPS = (
    "QuantizeLinear",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
)

# Two roundings against each other: other kernels add up in 16 bits where ours use 32.
BOTH_16_BITS = Tolerance(1e-1, 1e-1, 2e-2, "both sides round to 16 bits, each in its own way")
_16_BITS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

# What rounding takes from normally distributed weights: its rms over theirs, by bits of the codes.
# Measured with blocks of 128 or a power of two for a scale, the coarsest that are in use.
_ROUNDED_WEIGHTS = {2: 0.5, 3: 0.21, 4: 0.12, 8: 0.03}
_ROUNDED_TO_E5M2 = 0.06
_BITS = {
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.UINT8: 8,
    TensorProto.INT8: 8,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.FLOAT8E4M3FNUZ: 8,
    TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8,
}
_E5M2 = (TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
# Contrib ops that hold codes in bytes: the bits, or the attribute that tells them.
_CODED_OPS = {
    "MatMulNBits": "bits",
    "GatherBlockQuantized": "bits",
    "MatMulBlockQuantizedFp4Weight": 4,
    "MatMulBlockQuantizedFp8Weight": 8,
    "QLinearMatMul": 8,
    "QLinearConv": 8,
    "MatMulInteger": 8,
    "ConvInteger": 8,
    "MatMulIntegerToFloat": 8,
    "DynamicQuantizeMatMul": 8,
}
# Errors of layers add up as independent ones do; a model may well double that.
_AMPLIFIED = 2.0
# Half of the original's size: further off, an output tells little of it.
_FURTHEST = 0.5

MODEL = {
    np.dtype(np.float64): MODEL_F32,
    np.dtype(np.float32): MODEL_F32,
    np.dtype(np.float16): MODEL_F16,
    np.dtype(ml_dtypes.bfloat16): MODEL_BF16,
}


def for_model(dtype: np.dtype) -> Tolerance:
    """The bound of a whole model whose activations have this type; integers must be equal."""
    exact = Tolerance(0, 0, 0, "integers and booleans have one right answer")
    return MODEL.get(np.dtype(dtype), exact)


def for_activations(model: onnx.ModelProto, precision_mode: str = "exact") -> Tolerance | None:
    """The bound of a model whose activations are rounded to 8 bits because it, or the user, asks.

    None: nothing is rounded, and the bound of the outputs' type holds.
    """
    nodes = [node for graph in graphs_of(model.graph) for node in graph.node]
    if any(node.op_type in _ROUNDING_OPS for node in nodes):
        return QUANTIZED_ACTIVATIONS
    asked = any(
        node.op_type == "MatMulNBits" and attribute.name == "accuracy_level" and attribute.i == 4
        for node in nodes
        for attribute in node.attribute
    )
    return INT8_ACTIVATIONS if asked or precision_mode == "int8" else None


def against_a_provider(model: onnx.ModelProto, precision_mode: str = "") -> Tolerance | None:
    """As for_activations, where another provider is the judge, which rounds as the model says."""
    weights = [tensor for graph in graphs_of(model.graph) for tensor in graph.initializer]
    both = BOTH_16_BITS if any(tensor.data_type in _16_BITS for tensor in weights) else None
    return for_activations(model, precision_mode) or both


@dataclass(frozen=True)
class OriginalBound:
    """How far, over its size (rms), a result may lie from that of the model it was made from."""

    rms: float
    why: str


def against_original(model: onnx.ModelProto, original: onnx.ModelProto) -> OriginalBound:
    """From the format that `model` keeps its weights in and the number of its layers."""
    roundings = _roundings(model)
    if roundings:
        each, layers = max(roundings), len(roundings)
        if for_activations(model) is not None:
            each = math.hypot(each, QUANTIZED_ACTIVATIONS.rms)
        rms = min(_AMPLIFIED * each * math.sqrt(layers), _FURTHEST)
        product = f"{_AMPLIFIED:g} * {100 * each:.2g} % * sqrt({layers})"
        most = f", at most {100 * _FURTHEST:g} %" if rms == _FURTHEST else ""
        return OriginalBound(rms, f"{layers} rounded weights: {product}{most}")
    types = {
        tensor.data_type
        for one in (model, original)
        for graph in graphs_of(one.graph)
        for tensor in graph.initializer
    }
    if rounded := for_activations(model):
        return OriginalBound(rounded.rms, rounded.why)
    bound = BOTH_16_BITS if types.intersection(_16_BITS) else MODEL_F32
    return OriginalBound(bound.rms, f"no rounded weights: {bound.why}")


def _roundings(model: onnx.ModelProto) -> list[float]:
    """The error of each weight that is kept as codes."""
    graphs = list(graphs_of(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    types = {tensor.name: tensor.data_type for graph in graphs for tensor in graph.initializer}
    for node in nodes:
        if node.op_type == "Constant":
            held = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
            types[node.output[0]] = held[0].data_type if held else TensorProto.UNDEFINED
    scales = {node.input[1] for node in nodes if node.op_type == "DequantizeLinear"}
    found = []
    for node in nodes:
        if node.op_type == "DequantizeLinear" and node.output[0] not in scales:
            type = types.get(node.input[0])
            if type in _BITS:
                found.append(_ROUNDED_TO_E5M2 if type in _E5M2 else _ROUNDED_WEIGHTS[_BITS[type]])
        elif bits := _CODED_OPS.get(node.op_type):
            if isinstance(bits, str):
                bits = next((a.i for a in node.attribute if a.name == bits), 4)
            found.append(_ROUNDED_WEIGHTS.get(bits, _ROUNDED_WEIGHTS[2]))
    return found


def for_logits(dtype: np.dtype, reference: np.ndarray) -> Tolerance:
    """As for_model, for results that no norm brings back to the size of one."""
    return at_size(for_model(dtype), reference)


def at_size(bound: Tolerance, reference: np.ndarray) -> Tolerance:
    """The bound for results of another size than one.

    The largest of some thousand errors lies within five times their root mean square.
    """
    size = float(np.sqrt(np.mean(np.square(reference))))
    return Tolerance(5 * bound.rms * size, bound.relative, bound.rms, bound.why)


def dot_bound(x: np.ndarray, weights: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Element-wise bound of x [M,K] times weights [K,N] with float32 accumulation.

    Errors of a sum grow with the sum of magnitudes, not with the result: an absolute bound
    that fits large outputs lets wrong small ones pass.
    """
    x, weights = np.asarray(x, np.float64), np.asarray(weights, np.float64)
    magnitudes = np.abs(x) @ np.abs(weights)
    rounding = 0.0 if np.dtype(dtype) == np.float32 else 2 * UNIT_ROUNDOFF[np.dtype(dtype)]
    return rounding * np.abs(x @ weights) + np.sqrt(x.shape[-1]) * 2.0**-22 * magnitudes
