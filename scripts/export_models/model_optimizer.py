"""What TensorRT Model Optimizer quantises and torch then exports, as far as that takes no GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from .architecture import Architecture
from .network import build, examples

# NVFP4 and MXFP8 are quantised by kernels of its own, on a GPU only.
CONFIGS = {
    "int8": "INT8_DEFAULT_CFG",
    "fp8": "FP8_DEFAULT_CFG",
    "int4": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
}
WAYS = tuple(f"modelopt-{name}" for name in CONFIGS)
_OPSET = 20


def export(architecture: Architecture, way: str, path: Path) -> None:
    import modelopt.torch.quantization as quantization

    inputs = examples(architecture)
    config = getattr(quantization, CONFIGS[way.removeprefix("modelopt-")])
    with torch.no_grad():
        model = quantization.quantize(build(architecture), config, lambda m: m(*inputs))
        open_axes = {name: one.open_axes() for name, one in architecture.inputs.items()}
        torch.onnx.export(
            model, inputs, path, dynamo=False, dynamic_axes=open_axes,
            input_names=list(architecture.inputs), opset_version=_OPSET,
        )  # fmt: skip
