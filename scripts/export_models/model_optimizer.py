"""What TensorRT Model Optimizer quantises and exports, as far as that takes no GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from .architecture import Architecture
from .network import build, examples

# NVFP4 and MXFP8 are quantised by kernels of its own, on a GPU only; INT4 has blocks of 128, which
# networks of this size do not fill.
CONFIGS = {"int8": "INT8_DEFAULT_CFG", "fp8": "FP8_DEFAULT_CFG"}
WAYS = tuple(f"modelopt-{name}" for name in CONFIGS)


def export(architecture: Architecture, way: str, path: Path) -> None:
    import modelopt.torch.quantization as quantization
    from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata

    inputs = examples(architecture)
    config = getattr(quantization, CONFIGS[way.removeprefix("modelopt-")])
    open_axes = {name: one.open_axes() for name, one in architecture.inputs.items()}
    with torch.no_grad():
        model = quantization.quantize(build(architecture), config, lambda m: m(*inputs))
        packed, _ = get_onnx_bytes_and_metadata(model, inputs, dynamic_axes=open_axes)
    path.write_bytes(OnnxBytes.from_bytes(packed).get_onnx_model_file_bytes())
