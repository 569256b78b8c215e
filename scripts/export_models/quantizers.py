"""What onnxruntime.quantization makes of an exported model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

from .architecture import Architecture
from .network import examples

# Each way, and the exporter whose models it takes: 4-bit QDQ raises the opset to 21 and leaves
# nodes as they were, which those of opset 17 do not survive.
WAYS = {
    "qdq": "legacy17",
    "qdq-per-channel": "legacy17",
    "dynamic": "legacy17",
    "dynamic-per-channel": "legacy17",
    "nbits": "legacy17",
    "nbits-qdq": "dynamo18",
}
_CALIBRATIONS = 3


def quantize(architecture: Architecture, way: str, source: Path, path: Path) -> None:
    if way.startswith("qdq"):
        _quantize_static(architecture, source, path, way.endswith("per-channel"))
    elif way.startswith("dynamic"):
        per_channel = way.endswith("per-channel")
        quantize_dynamic(source, path, per_channel=per_channel, weight_type=QuantType.QInt8)
    else:
        _quantize_4_bits(source, path, way)


class _RandomInputs(CalibrationDataReader):
    def __init__(self, architecture: Architecture):
        draws = [examples(architecture, draw) for draw in range(_CALIBRATIONS)]
        self._feeds = iter(
            dict(zip(architecture.inputs, (tensor.numpy() for tensor in drawn), strict=True))
            for drawn in draws
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def _quantize_static(architecture, source: Path, path: Path, per_channel: bool) -> None:
    prepared = path.with_name("prepared.onnx")
    quant_pre_process(source, prepared, skip_symbolic_shape=True)
    try:
        quantize_static(
            prepared, path, _RandomInputs(architecture), quant_format=QuantFormat.QDQ,
            per_channel=per_channel, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )  # fmt: skip
    finally:
        prepared.unlink()


def _quantize_4_bits(source: Path, path: Path, way: str) -> None:
    in_graph = QuantFormat.QDQ if way.endswith("qdq") else QuantFormat.QOperator
    quantizer = MatMulNBitsQuantizer(
        onnx.load(source), block_size=32, is_symmetric=True, quant_format=in_graph
    )
    quantizer.process()
    onnx.save(quantizer.model.model, path)
