"""ResNet-50 as exporters write it, with random weights of sane sizes: a network of convolutions.

Version 1.5: blocks that halve the image do it in their 3x3 convolution. Norms are folded into the
convolutions before them, as exporters do for inference, or kept; both compute the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .builder import FLOAT, FLOAT16, GraphBuilder
from .staged_folder import staged

ELEMENT_TYPES = {"f32": (FLOAT, np.float32), "f16": (FLOAT16, np.float16)}
_EPSILON = 1e-5
_EXPANSION = 4  # a block's result over what its 3x3 convolution sees
# Of what a block adds to its input: sums over all blocks stay of the size of one.
_BRANCH_GAIN = 0.25


@dataclass(frozen=True)
class ResnetShape:
    """Sizes of ResNet-50; tests take smaller ones."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    image: int = 224
    classes: int = 1000


@dataclass(frozen=True)
class ResnetForm:
    """How it is written."""

    element: str = "f16"
    batch: int | str = "batch"
    keep_norms: bool = False


def build_resnet(
    shape: ResnetShape | None = None, form: ResnetForm | None = None, seed: int = 0
) -> onnx.ModelProto:
    """The same seed gives the same network in every form, rounded to the form's type."""
    return _Network(shape or ResnetShape(), form or ResnetForm(), seed).build()


def write_resnet(folder: Path, shape: ResnetShape, form: ResnetForm, seed: int = 0) -> Path:
    with staged(folder) as work:
        onnx.save(build_resnet(shape, form, seed), work / "model.onnx")
    return folder / "model.onnx"


class _Network:
    def __init__(self, shape: ResnetShape, form: ResnetForm, seed: int):
        self._shape, self._form = shape, form
        self._random = np.random.default_rng(seed)
        self._graph = GraphBuilder("resnet", opset=17)
        self._type, self._numpy = ELEMENT_TYPES[form.element]

    def build(self) -> onnx.ModelProto:
        g, shape = self._graph, self._shape
        x = g.input("image", self._type, [self._form.batch, 3, shape.image, shape.image])
        g.scope("/stem")
        x = g.node("Relu", [self._convolution("conv1", x, 3, shape.width, 7, 2)])
        x = g.node("MaxPool", [x], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
        given = shape.width
        for stage, blocks in enumerate(shape.blocks):
            inner = shape.width << stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                x = self._block(f"layer{stage + 1}.{block}", x, given, inner, stride)
                given = inner * _EXPANSION
        g.scope("/head")
        x = g.node("Flatten", [g.node("GlobalAveragePool", [x])])
        weight = self._draw((shape.classes, given), 1 / given)
        bias = self._draw((shape.classes,), 0.01)
        parameters = [self._parameter("fc.weight", weight), self._parameter("fc.bias", bias)]
        g.node("Gemm", [x, *parameters], ["logits"], transB=1)
        g.output("logits", self._type, [self._form.batch, shape.classes])
        return g.model()

    def _block(self, name: str, x: str, given: int, inner: int, stride: int) -> str:
        g, made = self._graph, inner * _EXPANSION
        g.scope(f"/{name}")
        y = g.node("Relu", [self._convolution(f"{name}.conv1", x, given, inner, 1)])
        y = g.node("Relu", [self._convolution(f"{name}.conv2", y, inner, inner, 3, stride)])
        y = self._convolution(f"{name}.conv3", y, inner, made, 1, gain=_BRANCH_GAIN)
        if stride != 1 or given != made:
            # No Relu follows before the sum: the gain of one without the two of rectifiers.
            x = self._convolution(f"{name}.downsample", x, given, made, 1, stride, 0.7)
        return g.node("Relu", [g.node("Add", [y, x])])

    def _convolution(
        self, name: str, x: str, given: int, made: int, size: int, stride: int = 1, gain: float = 1
    ) -> str:
        weight = self._draw((made, given, size, size), 2 * gain**2 / (given * size * size))
        scale, bias = 1 + self._draw((made,), 0.01), self._draw((made,), 0.01)
        mean = self._draw((made,), 0.01)
        variance = np.exp(self._draw((made,), 0.04))
        window = {"kernel_shape": [size] * 2, "pads": [size // 2] * 4, "strides": [stride] * 2}
        if self._form.keep_norms:
            parts = {"weight": scale, "bias": bias, "mean": mean, "var": variance}
            y = self._graph.node("Conv", [x, self._parameter(f"{name}.weight", weight)], **window)
            norm = [self._parameter(f"{name}.bn.{part}", value) for part, value in parts.items()]
            return self._graph.node("BatchNormalization", [y, *norm], epsilon=_EPSILON)
        factor = scale / np.sqrt(variance + _EPSILON)
        folded = self._parameter(f"{name}.weight", weight * factor[:, None, None, None])
        shift = self._parameter(f"{name}.bias", bias - mean * factor)
        return self._graph.node("Conv", [x, folded, shift], **window)

    def _draw(self, shape: tuple[int, ...], variance: float) -> np.ndarray:
        drawn = self._random.standard_normal(shape, np.float32)
        return drawn * np.float32(np.sqrt(variance))

    def _parameter(self, name: str, value: np.ndarray) -> str:
        return self._graph.parameter(name, value.astype(self._numpy))
