"""Whole models in float64: the judge of what a provider computed.

Weights are the already quantised ones, so quantisation error is no part of the comparison.
Operators come from onnx.reference; those it lacks, or computes in float32, are written here.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .number_formats import expand_blocks
from .rewrite import graphs_of, sort_nodes

_WIDE = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_WIDE_NUMPY = tuple(np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))


def evaluate(
    model: onnx.ModelProto, inputs: dict[str, np.ndarray], rounded_to=None
) -> list[np.ndarray]:
    """The model's outputs; float ones are float64.

    `rounded_to` is a float type to which each node's floats are rounded, as ONNX defines a model
    of that type; without it only inputs are.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    sort_nodes(wide.graph)
    for graph in graphs_of(wide.graph):
        _widen(graph)
        _name_outputs(graph)
        if rounded_to is not None:
            _round_each_node(graph)
    operators = _OPERATORS
    if rounded_to is not None:
        wide.opset_import.add(domain=_Rounded.op_domain, version=1)
        to = {"to": np.dtype(rounded_to)}
        operators = [
            type(op.__name__, (op,), to) if op is QuantizeLinear else op for op in operators
        ]
        operators.append(type("Rounded", (_Rounded,), to))
    evaluator = ReferenceEvaluator(wide, new_ops=operators)
    return evaluator.run(None, {name: _wide_array(value) for name, value in inputs.items()})


def _wide_array(value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    return value.astype(np.float64) if value.dtype in _WIDE_NUMPY else value


def _widen(graph: onnx.GraphProto) -> None:
    """float32, float16 and bfloat16 become float64, in constants and in types named by nodes."""
    for tensor in graph.initializer:
        if tensor.data_type in _WIDE:
            tensor.CopyFrom(_wide_tensor(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            holds_tensor = attribute.type == AttributeProto.TENSOR
            if holds_tensor and attribute.t.data_type in _WIDE:
                attribute.t.CopyFrom(_wide_tensor(attribute.t))
            elif attribute.name in ("to", "dtype", "output_dtype") and attribute.i in _WIDE:
                attribute.i = TensorProto.DOUBLE
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type in _WIDE:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE


def _name_outputs(graph: onnx.GraphProto) -> None:
    """onnx.reference keeps an output without a name, and hands it to inputs that are left out."""
    for number, node in enumerate(graph.node):
        for index, name in enumerate(node.output):
            node.output[index] = name or f"unread {number}.{index}"


def _round_each_node(graph: onnx.GraphProto) -> None:
    """Puts a Rounded behind each value that a node computes."""
    nodes = []
    for node in graph.node:
        names = [name for name in node.output if name]
        exact = [f"{name} before rounding" if name else "" for name in node.output]
        del node.output[:]
        node.output.extend(exact)
        nodes.append(node)
        nodes += [
            helper.make_node("Rounded", [f"{name} before rounding"], [name], domain="tenon")
            for name in names
        ]
    del graph.value_info[:]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _wide_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return numpy_helper.from_array(_wide_array(numpy_helper.to_array(tensor)), tensor.name)


def _attribute(node: onnx.NodeProto, name: str, default):
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


def dequantize(codes, scale, zero=None, axis: int = 1, block: int = 0) -> np.ndarray:
    """DequantizeLinear in float64: per tensor, per axis or in blocks along an axis."""
    values, scale = _as_double(codes), _as_double(scale)
    zero = _as_double(zero) if zero is not None else np.zeros_like(scale)
    if scale.ndim == 1 and scale.size > 1 and not block:
        shape = [1] * values.ndim
        shape[axis] = scale.size
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    elif block and scale.ndim:
        count = values.shape[axis]
        scale = np.repeat(scale, block, axis).take(range(count), axis)
        zero = np.repeat(zero, block, axis).take(range(count), axis)
    elif scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return (values - zero) * scale


def _as_double(array) -> np.ndarray:
    # int4 of ml_dtypes goes to float64 only by way of int8.
    array = np.asarray(array)
    if array.dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
        array = array.astype(np.int8)
    return array.astype(np.float64)


class _ByNode(OpRun):
    """An operator that reads its attributes from the node itself: no schema is needed."""

    def get(self, name: str, default):
        return _attribute(self.onnx_node, name, default)

    def run(self, *inputs, **_):
        result = self.compute(*inputs)
        return result if isinstance(result, tuple) else (result,)

    def _run(self, *_inputs):
        raise NotImplementedError


class _Rounded(_ByNode):
    op_domain = "tenon"
    to: np.dtype

    def compute(self, x):
        x = np.asarray(x)
        with np.errstate(over="ignore"):
            return x.astype(self.to).astype(x.dtype) if x.dtype == np.float64 else x


def quantize(x, scale, zero, element, axis: int = 1, block: int = 0, saturate=True, to=np.float64):
    """QuantizeLinear: the nearest code of the quotient, which is of type `to`; ties to even."""
    one = np.ones(np.shape(x))
    zeros = dequantize(one, zero, None, axis, block) if zero is not None else 0.0
    ratio = (_as_double(x) / dequantize(one, scale, None, axis, block)).astype(to)
    ratio = ratio.astype(np.float64)
    element = np.dtype(element)
    if element in _INTEGER_LIMITS:
        codes = np.clip(np.rint(ratio) + zeros, *_INTEGER_LIMITS[element])
        return codes.astype(np.int16).astype(element)
    if saturate:
        largest = float(ml_dtypes.finfo(element).max)
        ratio = np.clip(ratio, -largest, largest)
    return ratio.astype(element)


_INTEGER_LIMITS = {
    np.dtype(np.uint8): (0, 255),
    np.dtype(np.int8): (-128, 127),
    np.dtype(ml_dtypes.uint4): (0, 15),
    np.dtype(ml_dtypes.int4): (-8, 7),
}


class DequantizeLinear(_ByNode):
    op_domain = ""

    def compute(self, codes, scale, zero=None):
        return dequantize(codes, scale, zero, self.get("axis", 1), self.get("block_size", 0))


class QuantizeLinear(_ByNode):
    op_domain = ""
    element = np.uint8  # where nothing else names it
    to = np.float64  # of the quotient

    def compute(self, x, scale, zero=None):
        named = self.get("output_dtype", 0)
        element = helper.tensor_dtype_to_np_dtype(named) if named else self.element
        element = element if zero is None else zero.dtype
        axis, block = self.blocks(x, scale)
        return quantize(x, scale, zero, element, axis, block, self.get("saturate", 1), self.to)

    def blocks(self, _x, _scale) -> tuple[int, int]:
        return self.get("axis", 1), self.get("block_size", 0)


class TensorRTDequantizeLinear(QuantizeLinear):
    """Codes of FP8 may be declared uint8."""

    def compute(self, codes, scale, zero=None):
        hidden = zero.dtype if zero is not None else np.dtype(self.element)
        if codes.dtype == np.uint8 and hidden == ml_dtypes.float8_e4m3fn:
            codes = codes.view(ml_dtypes.float8_e4m3fn)
        return dequantize(codes, scale, zero, *self.blocks(codes, scale))


def _blocks_of_shapes(op: QuantizeLinear, x, scale) -> tuple[int, int]:
    """TensorRT's 4-bit ops: blocks lie along the one axis with fewer scales than codes."""
    axis, block = QuantizeLinear.blocks(op, x, scale)
    if not block and np.ndim(x) == np.ndim(scale):
        for i, (codes, scales) in enumerate(zip(x.shape, scale.shape, strict=True)):
            axis, block = (i, codes // scales) if scales < codes else (axis, block)
    return axis, block


def _tensorrt_operators() -> list[type]:
    """A class for each name: that is how the evaluator finds it."""
    members = {
        "": {},
        "TRT_FP8": {"element": ml_dtypes.float8_e4m3fn},
        "TRT_INT8": {"element": np.int8},
        "TRT_INT4": {"element": ml_dtypes.int4, "blocks": _blocks_of_shapes},
    }
    return [
        type(prefix + name, (base,), {"op_domain": "trt", **own})
        for prefix, own in members.items()
        for name, base in (
            ("QuantizeLinear", QuantizeLinear),
            ("DequantizeLinear", TensorRTDequantizeLinear),
        )
    ]


class LayerNormalization(_ByNode):
    op_domain = ""

    def compute(self, x, scale, bias=None):
        axes = tuple(range(self.get("axis", -1) % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        spread = np.sqrt(np.square(x - mean).mean(axes, keepdims=True) + self.get("epsilon", 1e-5))
        result = (x - mean) / spread * scale
        return result if bias is None else result + bias


class RMSNormalization(_ByNode):
    op_domain = ""

    def compute(self, x, scale):
        axes = tuple(range(self.get("axis", -1) % x.ndim, x.ndim))
        mean_square = np.square(x).mean(axes, keepdims=True)
        return x / np.sqrt(mean_square + self.get("epsilon", 1e-5)) * scale


class SimplifiedLayerNormalization(RMSNormalization):
    pass


class SkipSimplifiedLayerNormalization(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, x, skip, scale, bias=None):
        total = x + skip if bias is None else x + skip + bias
        mean_square = np.square(total).mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(mean_square + self.get("epsilon", 1e-5))
        results = total * inverse * scale, None, inverse, total
        return results[: len(self.onnx_node.output)]


class SkipLayerNormalization(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, x, skip, scale, beta=None, bias=None):
        total = x + skip if bias is None else x + skip + bias
        mean = total.mean(-1, keepdims=True)
        variance = np.square(total - mean).mean(-1, keepdims=True)
        inverse = 1 / np.sqrt(variance + self.get("epsilon", 1e-12))
        result = (total - mean) * inverse * scale
        results = result if beta is None else result + beta, mean, inverse, total
        return results[: len(self.onnx_node.output)]


class FastGelu(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, x, bias=None):
        x = x if bias is None else x + bias
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class MatMulNBits(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, a, packed, scales, zero_points=None, _g_idx=None, bias=None):
        bits, n, k = self.get("bits", 4), self.get("N", 0), self.get("K", 0)
        block = self.get("block_size", 32)
        codes = unpack_bits(packed, bits).reshape(n, -1)[:, :k].astype(np.float64)
        scales = np.asarray(scales, np.float64).reshape(n, -1)
        if zero_points is None:
            zero = np.full_like(scales, 2 ** (bits - 1))
        elif zero_points.dtype == np.uint8:
            zero = unpack_bits(zero_points.reshape(n, -1), bits)[:, : scales.shape[1]]
        else:
            zero = zero_points.reshape(n, -1)
        weights = dequantize(codes, scales, zero.astype(np.float64), axis=1, block=block)
        result = a @ weights.T
        return result if bias is None else result + bias


class GatherBlockQuantized(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, codes, indices, scales, zero_points=None):
        """Bytes hold codes along the last axis, whose zero point lies in the middle."""
        bits, packed = self.get("bits", 4), codes.dtype == np.uint8
        axis, gathered = self.get("quantize_axis", 1), self.get("gather_axis", 0)
        if packed:
            codes = unpack_bits(codes, bits)
        if zero_points is not None:
            zero = unpack_bits(zero_points, bits) if packed else zero_points
            zero = np.take(zero, range(scales.shape[-1]), -1)
        else:
            zero = np.full(scales.shape, 2 ** (bits - 1) if packed else 0)
        table = dequantize(codes, scales, zero, axis, self.get("block_size", 128))
        return np.take(table, indices, gathered)


class MatMulBlockQuantizedFp4Weight(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, a, packed, scale, overall, *rest):
        codes = unpack_bits(packed, 4).view(ml_dtypes.float4_e2m1fn)
        steps = _as_double(scale.view(ml_dtypes.float8_e4m3fn)) * float(np.ravel(overall)[0])
        result = a @ (_as_double(codes) * expand_blocks(steps, codes.shape)).T
        bias = rest[1] if len(rest) > 1 else None
        return result if bias is None else result + bias


class MatMulBlockQuantizedFp8Weight(_ByNode):
    op_domain = "com.microsoft"

    def compute(self, a, codes, scale, _a_scale=None, bias=None):
        weights = dequantize(codes, scale, axis=1, block=self.get("block_size", 128))
        result = a @ weights.T
        return result if bias is None else result + bias


class TRT_MXFP8DequantizeLinear(_ByNode):  # noqa: N801 - the operator's own name
    op_domain = "trt"

    def compute(self, codes, scale):
        powers = scale.view(ml_dtypes.float8_e8m0fnu)
        return dequantize(codes, powers, None, self.get("axis", -1), self.get("block_size", 32))


class TRT_FP4DynamicQuantize(_ByNode):  # noqa: N801
    op_domain = "trt"

    def compute(self, x, overall):
        blocks = x.reshape(*x.shape[:-1], -1, self.get("block_size", 16))
        overall = float(np.ravel(overall)[0])
        peaks = np.abs(blocks).max(-1)
        scale = np.clip(peaks / 6 / overall, 0, 448).astype(ml_dtypes.float8_e4m3fn)
        step = _as_double(scale) * overall
        step = np.where(step > 0, step, 1)[..., None]
        codes = np.clip(blocks / step, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        return codes.reshape(x.shape), scale


class TRT_FP4QDQ(_ByNode):  # noqa: N801
    op_domain = "trt"

    def compute(self, x):
        """As Model Optimizer compresses the weight in front: its quotients are of float32."""
        blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, self.get("block_size", 16))
        peaks = np.abs(blocks).max(-1, keepdims=True)
        overall = _one_for_zero(peaks.max() / np.float32(6 * 448))
        wanted = _one_for_zero(peaks / (np.float32(6) * overall))
        scale = np.clip(wanted, 2**-9, 448).astype(ml_dtypes.float8_e4m3fn)
        step = scale.astype(np.float32) * overall
        codes = np.clip(blocks / step, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        return (_as_double(codes) * _as_double(scale) * float(overall)).reshape(x.shape)


def _one_for_zero(scale: np.ndarray) -> np.ndarray:
    return np.where(scale == 0, np.float32(1), scale)


class TRT_MXFP8DynamicQuantize(_ByNode):  # noqa: N801
    op_domain = "trt"

    def compute(self, x):
        blocks = x.reshape(*x.shape[:-1], -1, self.get("block_size", 32))
        fraction, exponent = np.frexp(np.abs(blocks).max(-1) / 448)
        exponent = np.where(fraction > 0.5, exponent, exponent - 1)
        scale = np.clip(exponent + 127, 0, 254).astype(np.uint8)
        step = _as_double(scale.view(ml_dtypes.float8_e8m0fnu))[..., None]
        codes = np.clip(blocks / step, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        return codes.reshape(x.shape), scale


class GroupQueryAttention(_ByNode):
    op_domain = "com.microsoft"

    def compute(
        self, query, key, value, past_key, past_value, seqlens_k, _total, cos=None, sin=None, *more
    ):
        heads, kv_heads = self.get("num_heads", 0), self.get("kv_num_heads", 0)
        sinks = more[2] if len(more) > 2 else None  # after positions and a bias
        if key is None:
            width = query.shape[-1] // (heads + 2 * kv_heads)
            ends = np.cumsum([heads * width, kv_heads * width])
            query, key, value = np.split(query, ends, -1)
        q, k, v = (
            split_heads(t, h) for t, h in ((query, heads), (key, kv_heads), (value, kv_heads))
        )
        length, past = q.shape[2], past_key.shape[2]
        if self.get("do_rotary", 0):
            # Positions follow from the lengths: seqlens_k is the last position of each row.
            positions = np.asarray(seqlens_k).reshape(-1, 1) + 1 - length + np.arange(length)
            interleaved = self.get("rotary_interleaved", 0)
            q, k = (rotate(t, cos[positions], sin[positions], interleaved) for t in (q, k))
        present_k = np.concatenate([past_key, k], 2)
        present_v = np.concatenate([past_value, v], 2)
        scale = self.get("scale", 0.0) or 1 / np.sqrt(q.shape[-1])
        result = causal_attention(
            q,
            present_k,
            present_v,
            scale,
            past,
            self.get("softcap", 0.0),
            self.get("local_window_size", -1),
            sinks,
        )
        return join_heads(result), present_k, present_v


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def join_heads(x: np.ndarray) -> np.ndarray:
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: int = 0) -> np.ndarray:
    """Rotary embedding of [B,H,S,D] by tables [B,S,R/2]; what lies past R stays as it is."""
    cos, sin = np.asarray(cos)[:, None], np.asarray(sin)[:, None]
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = np.split(turned, 2, -1)
    a, b = first * cos - second * sin, second * cos + first * sin
    both = np.stack([a, b], -1).reshape(turned.shape) if interleaved else np.concatenate([a, b], -1)
    return np.concatenate([both, rest], -1)


def causal_attention(q, k, v, scale, past, softcap=0.0, window=-1, sinks=None) -> np.ndarray:
    """softmax(q k^T) v with shared key heads; a query sees `past` keys and those up to itself.

    `sinks` [heads] take part in the softmax and carry no value.
    """
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * (q @ k.swapaxes(-1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    at = np.arange(q.shape[2])[:, None] + past
    to = np.arange(k.shape[2])[None, :]
    allowed = to <= at
    if window > 0:
        allowed &= to > at - window
    scores = np.where(allowed, scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks)[:, None, None] - largest)
    return weights / total @ v


def unpack_bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of packing: 2, 4 or 8 bit codes along the last axis, lowest bits first."""
    shifts = (np.arange(8 // bits) * bits).astype(np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


class Erf(_ByNode):
    def compute(self, x):
        return _erf(x).astype(x.dtype)


class Gelu(_ByNode):
    def compute(self, x):
        if self.get("approximate", b"none") == b"tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


class OneHot(_ByNode):
    """Indices outside of [-depth, depth) are hot nowhere; onnx.reference takes their remainder.

    Nor are fractions: ONNX Runtime does not round them, though ONNX would.
    """

    def compute(self, indices, depth, values):
        depth = int(np.asarray(depth).reshape(-1)[0])
        indices = np.where(indices < 0, indices + depth, indices)
        hot = indices[..., None] == np.arange(depth)
        return np.moveaxis(np.where(hot, values[1], values[0]), -1, self.get("axis", -1))


_OPERATORS = [
    Erf,
    Gelu,
    OneHot,
    QuantizeLinear,
    DequantizeLinear,
    LayerNormalization,
    RMSNormalization,
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
    SkipLayerNormalization,
    FastGelu,
    GatherBlockQuantized,
    MatMulNBits,
    MatMulBlockQuantizedFp4Weight,
    MatMulBlockQuantizedFp8Weight,
    TRT_MXFP8DequantizeLinear,
    TRT_FP4DynamicQuantize,
    TRT_FP4QDQ,
    TRT_MXFP8DynamicQuantize,
    *_tensorrt_operators(),
    GroupQueryAttention,
]
