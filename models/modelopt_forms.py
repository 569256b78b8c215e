"""Small nets in the forms that NVIDIA Model Optimizer 0.47 writes, op by op.

Each form says what stands in front of a product's activations and of its weight. Where a file of
Model Optimizer contradicts its own types, this is what `tenon repair` makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from .builder import FLOAT, FLOAT16, GraphBuilder
from .number_formats import FORMATS, encode, quantize

TENSORRT = "trt"
FP8, BYTE = TensorProto.FLOAT8E4M3FN, TensorProto.UINT8
_LARGEST = 4.0  # what calibration saw of the activations
_INT4_BLOCK = 128


class Writer(GraphBuilder):
    """A graph of one float type, whose random weights follow from their names."""

    def __init__(self, name: str, element: int, opset: int):
        super().__init__(name, opset, (TENSORRT,))
        self.element = element
        self.dtype = helper.tensor_dtype_to_np_dtype(element)

    def random(self, label: str, *shape: int) -> np.ndarray:
        values = np.random.default_rng(list(label.encode())).normal(size=shape)
        return (values / np.sqrt(shape[-1])).astype(np.float32)

    def floats(self, name: str, value) -> str:
        return self.parameter(name, np.asarray(value).astype(self.dtype))

    def cast(self, value: str, of: int, to: int) -> str:
        return value if of == to else self.node("Cast", [value], to=to)


def _fp8_zero(g: Writer, label: str) -> str:
    return g.parameter(f"{label}/zero_point", np.zeros(1, ml_dtypes.float8_e4m3fn))


def _fp8_activation(g: Writer, x: str, label: str, shape: list) -> str:
    """The exporter renames its own ops and leaves their domain; torch declares codes as uint8."""
    scale = g.floats(f"{label}/x_scale", _LARGEST / 448)
    inputs = [x, scale, _fp8_zero(g, label)]
    codes = g.node("QuantizeLinear", inputs, domain=TENSORRT, saturate=1)
    g.describe(codes, BYTE, shape)
    return g.node("DequantizeLinear", [codes, scale], domain=TENSORRT)


def _fp8_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    q = quantize(np.ascontiguousarray(weight.T), FORMATS["fp8"])
    inputs = [g.parameter(f"{label}/fp8_weights", q.codes), g.floats(f"{label}/w_scale", q.scales)]
    return g.node("DequantizeLinear", inputs, domain=TENSORRT)


def _torch_fp8_activation(g: Writer, x: str, label: str, shape: list) -> str:
    scale = g.floats(f"{label}/x_scale", _LARGEST / 448)
    codes = g.node("TRT_FP8QuantizeLinear", [x, scale], domain=TENSORRT)
    g.describe(codes, BYTE, shape)
    return g.node("TRT_FP8DequantizeLinear", [codes, scale], domain=TENSORRT)


def _torch_fp8_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    q = quantize(weight, FORMATS["fp8"])
    inputs = [g.parameter(f"{label}/fp8_weights", q.codes), g.floats(f"{label}/w_scale", q.scales)]
    restored = g.node("DequantizeLinear", inputs, domain=TENSORRT)
    return g.node("Transpose", [restored], perm=[1, 0])


def _unfolded_fp8_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    """As torch.onnx.export leaves it: a float, with both quantisers behind it."""
    scale = g.floats(f"{label}/w_scale", np.abs(weight).max() / 448)
    codes = g.node(
        "TRT_FP8QuantizeLinear", [g.floats(f"{label}.weight", weight), scale], domain=TENSORRT
    )
    g.describe(codes, BYTE, list(weight.shape))
    restored = g.node("TRT_FP8DequantizeLinear", [codes, scale], domain=TENSORRT)
    return g.node("Transpose", [restored], perm=[1, 0])


def _unquantised_activation(_g: Writer, x: str, _label: str, _shape: list) -> str:
    return x


def _awq_activation(g: Writer, x: str, label: str, shape: list) -> str:
    scale = 1 + np.abs(g.random(f"{label}/awq", shape[-1]))
    return g.node("Mul", [x, g.floats(f"{label}/pre_quant_scale", scale)])


def _int4_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    blocks = weight.T.reshape(-1, _INT4_BLOCK, weight.shape[0])
    scale = (np.abs(blocks).max(1) / 7).astype(g.dtype)
    codes = encode(blocks / scale[:, None].astype(np.float32), FORMATS["int4"])
    restored = g.node(
        "DequantizeLinear",
        [
            g.parameter(f"{label}/int4_weights", codes.reshape(weight.T.shape)),
            g.parameter(f"{label}/scale", scale),
        ],
        domain=TENSORRT,
        axis=0,
        block_size=_INT4_BLOCK,
    )
    # What it was before the exporter folded a Reshape into the weight.
    return g.describe(restored, g.element, [weight.size // _INT4_BLOCK, _INT4_BLOCK])


def _unfolded_int4_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    """As round-to-nearest without "dq" in its name leaves it: blocks follow from the shapes."""
    blocks = weight.T.reshape(-1, _INT4_BLOCK, weight.shape[0])
    scale = g.floats(f"{label}/scale", np.abs(blocks).max(1) / 7)
    zero = np.zeros((len(blocks), weight.shape[0]), np.int8).astype(ml_dtypes.int4)
    parameters = [scale, g.parameter(f"{label}/zp", zero)]
    value = g.floats(f"{label}.weight", weight.T)
    codes = g.node("TRT_INT4QuantizeLinear", [value, *parameters], domain=TENSORRT)
    return g.node("TRT_INT4DequantizeLinear", [codes, *parameters], domain=TENSORRT)


def _mxfp8_restored(g: Writer, codes: str, scale: str) -> str:
    return g.node(
        "TRT_MXFP8DequantizeLinear",
        [codes, scale],
        domain=TENSORRT,
        axis=-1,
        block_size=32,
        output_dtype=g.element,
    )


def _mxfp8_activation(g: Writer, x: str, _label: str, _shape: list) -> str:
    codes, scale = g.node(
        "TRT_MXFP8DynamicQuantize",
        [x],
        outputs=2,
        domain=TENSORRT,
        axis=-1,
        block_size=32,
        output_dtype=FP8,
    )
    return _mxfp8_restored(g, codes, scale)


def _mxfp8_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    q = quantize(weight, FORMATS["mxfp8"])
    codes = g.parameter(f"{label}/weight", q.codes)
    scale = g.parameter(f"{label}/scale", q.scales.view(np.uint8))
    return g.node("Transpose", [_mxfp8_restored(g, codes, scale)], perm=[1, 0])


def _nvfp4_activation(g: Writer, x: str, label: str, _shape: list) -> str:
    overall = g.parameter(f"{label}/x_scale", np.float32(_LARGEST / 6 / 448))
    codes, scale = g.node(
        "TRT_FP4DynamicQuantize",
        [x, overall],
        outputs=2,
        domain=TENSORRT,
        axis=-1,
        block_size=16,
        scale_type=FP8,
    )
    steps = g.node("DequantizeLinear", [scale, overall])
    return g.node("DequantizeLinear", [codes, steps], axis=-1, block_size=16)


def _nvfp4_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    q = quantize(weight, FORMATS["nvfp4"])
    overall = g.constant(f"{label}_f8_scale_f32_scale", np.asarray([q.global_scale]), as_input=True)
    scale = g.constant(f"{label}_f8_scale", q.scales, as_input=True)
    codes = g.constant(f"{label}_f4", q.codes, as_input=True)
    steps = g.node("DequantizeLinear", [scale, overall])
    restored = g.node("DequantizeLinear", [codes, steps], axis=-1, block_size=16)
    return g.node("Transpose", [restored], perm=[1, 0])


def _unfolded_nvfp4_weight(g: Writer, weight: np.ndarray, label: str, block: int = 16) -> str:
    """As the exporter leaves it where activations are not FP4: a float behind a fake quantiser."""
    value = g.floats(f"{label}.weight", weight)
    restored = g.node("TRT_FP4QDQ", [value], domain=TENSORRT, block_size=block)
    return g.node("Transpose", [restored], perm=[1, 0])


def _int8_activation(g: Writer, x: str, label: str, _shape: list) -> str:
    scale = g.floats(f"{label}/x_scale", _LARGEST / 127)
    zero = g.parameter(f"{label}/x_zero", np.int8(0))
    codes = g.node("QuantizeLinear", [x, scale, zero])
    return g.node("DequantizeLinear", [codes, scale, zero])


def _int8_weight(g: Writer, weight: np.ndarray, label: str) -> str:
    """The weight stays a float, with both quantisers behind it."""
    scale = g.floats(f"{label}/w_scale", np.abs(weight).max(1) / 127)
    zero = g.parameter(f"{label}/w_zero", np.zeros(len(weight), np.int8))
    codes = g.node("QuantizeLinear", [g.floats(f"{label}.weight", weight), scale, zero], axis=0)
    restored = g.node("DequantizeLinear", [codes, scale, zero], axis=0)
    return g.node("Transpose", [restored], perm=[1, 0])


@dataclass(frozen=True)
class Form:
    """How activations and [N,K] weights are written, and of which types they come back.

    0 is the graph's own type; where they come back as another, Casts surround the product.
    """

    activation: Callable[[Writer, str, str, list], str]
    weight: Callable[[Writer, np.ndarray, str], str]
    opset: int = 20
    restored: int = 0
    product: int = 0


FORMS: dict[str, Form] = {
    "fp8": Form(_fp8_activation, _fp8_weight),
    "fp8_torch": Form(_torch_fp8_activation, _torch_fp8_weight),
    "fp8_unfolded": Form(_torch_fp8_activation, _unfolded_fp8_weight),
    "int4": Form(_unquantised_activation, _int4_weight),
    "int4_awq": Form(_awq_activation, _int4_weight),
    "int4_unfolded": Form(_unquantised_activation, _unfolded_int4_weight),
    "mxfp8": Form(_mxfp8_activation, _mxfp8_weight),
    "nvfp4": Form(_nvfp4_activation, _nvfp4_weight, 23, FLOAT, FLOAT16),
    "nvfp4_unfolded": Form(_unquantised_activation, _unfolded_nvfp4_weight),
    "nvfp4_fp8": Form(_torch_fp8_activation, partial(_unfolded_nvfp4_weight, block=32)),
    "int8": Form(_int8_activation, _int8_weight),
}


def _linear(g: Writer, form: Form, x: str, label: str, shape: list, n: int) -> str:
    restored, product = form.restored or g.element, form.product or g.element
    read = g.cast(form.activation(g, x, label, shape), restored, product)
    weight = g.cast(form.weight(g, g.random(label, n, shape[-1]), label), restored, product)
    y = g.cast(g.node("MatMul", [read, weight]), product, g.element)
    return g.node("Add", [g.floats(f"{label}.bias", g.random(f"{label}.bias", n)), y])


def _norm(g: Writer, form: Form, x: str, shape: list) -> str:
    """Its input is quantised, too."""
    read = g.cast(form.activation(g, x, "n", shape), form.restored or g.element, g.element)
    width = shape[-1]
    scale, bias = 1 + g.random("n.weight", width), g.random("n.bias", width)
    inputs = [read, g.floats("n.weight", scale), g.floats("n.bias", bias)]
    return g.node("LayerNormalization", inputs, axis=-1, epsilon=1e-5)


def residual_block(
    form: str, element: int = FLOAT, width: int = 256, tokens: tuple = (2, 16)
) -> onnx.ModelProto:
    """LayerNormalization, three products with GELU before the last, two residuals."""
    spelling = FORMS[form]
    g = Writer(f"modelopt_{form}", element, spelling.opset)
    shape = [*tokens, width]
    x = g.input("x", element, shape)
    q = _linear(g, spelling, _norm(g, spelling, x, shape), "q", shape, width)
    between = g.node("Add", [x, q])
    up = _linear(g, spelling, between, "up", shape, 2 * width)
    wide = [*tokens, 2 * width]
    gelu = g.node("Gelu", [up], approximate="none")
    down = _linear(g, spelling, gelu, "down", wide, width)
    g.node("Add", [between, down], outputs=["y"])
    g.output("y", element, shape)
    return g.model(check=False)


def attention_block(
    form: str = "fp8", element: int = FLOAT16, heads: int = 4, depth: int = 32, tokens=(2, 24)
) -> onnx.ModelProto:
    """Attention with FP8 operands: the scale stands before Q, and softmax has an FP8 pair."""
    spelling = FORMS[form]
    g = Writer(f"modelopt_{form}_attention", element, spelling.opset)
    width = heads * depth
    shape, split = [*tokens, width], g.integers(tokens[0], tokens[1], heads, depth)
    x = g.input("x", element, shape)
    root = g.floats("root", depth**-0.25)

    def operand(label: str, perm: list[int], scaled: bool) -> str:
        made = _linear(g, spelling, x, label, shape, width)
        turned = g.node("Transpose", [g.node("Reshape", [made, split])], perm=perm)
        if scaled:
            turned = g.node("Mul", [turned, root])
        return spelling.activation(g, turned, f"{label}_heads", [tokens[0], heads, None, None])

    query, key = operand("q", [0, 2, 1, 3], True), operand("k", [0, 2, 3, 1], True)
    share = g.node("Softmax", [g.node("MatMul", [query, key])], axis=-1)
    scale = g.floats("softmax_scale", 1 / 448)
    codes = g.node("QuantizeLinear", [share, scale, _fp8_zero(g, "softmax")], saturate=1)
    share = g.node("DequantizeLinear", [codes, scale])
    summed = g.node("MatMul", [share, operand("v", [0, 2, 1, 3], False)])
    joined = g.node("Transpose", [summed], perm=[0, 2, 1, 3])
    flat = g.node("Reshape", [joined, g.integers(tokens[0], tokens[1], width)])
    g.node("Identity", [_linear(g, spelling, flat, "o", shape, width)], outputs=["y"])
    g.output("y", element, shape)
    return g.model(check=False)


def convolution_block(form: str = "fp8", element: int = FLOAT, size: int = 12) -> onnx.ModelProto:
    """Two convolutions: activations as the form has them, weights with ONNX's own quantisers."""
    spelling = FORMS[form]
    g = Writer(f"modelopt_{form}_convolution", element, spelling.opset)
    shape = [1, 8, size, size]
    x = value = g.input("x", element, shape)
    for label in ("first", "second"):
        read = spelling.activation(g, value, label, shape)
        q = quantize(g.random(label, 8, 8, 3, 3) / 8, FORMATS["fp8"])
        weight = g.node(
            "DequantizeLinear",
            [g.parameter(f"{label}/fp8_weights", q.codes), g.floats(f"{label}/scale", q.scales)],
        )
        bias = g.floats(f"{label}.bias", g.random(f"{label}.bias", 8))
        made = g.node("Conv", [read, weight, bias], pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        value = g.node("Relu", [made])
    g.node("Add", [x, value], outputs=["y"])
    g.output("y", element, shape)
    return g.model(check=False)
