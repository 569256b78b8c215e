"""What TensorRT Model Optimizer quantises and exports: architectures on a CPU, and its forms."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import torch

from .architecture import Architecture
from .network import build, examples
from .optimizer_forms import Form
from .optimizer_networks import NETWORKS

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


def export_form(form: Form, folder: Path) -> None:
    """model.npz holds the input, and what torch made of it with its own simulated quantisers."""
    import modelopt.torch.quantization as quantization
    from modelopt.torch._deploy.utils import OnnxBytes, get_onnx_bytes_and_metadata

    if form.needs_gpu and not torch.cuda.is_available():
        raise RuntimeError("Model Optimizer quantises to this type on a GPU only")
    torch.manual_seed(0)
    network = NETWORKS[form.network]().eval()
    dtype = torch.float16 if form.is_half else torch.float32
    place = {"device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": dtype}
    x = torch.randn(network.shape).to(**place)
    config = copy.deepcopy(getattr(quantization, f"{form.config}_CFG"))
    with torch.no_grad():
        network = quantization.quantize(network.to(**place), config, lambda m: m(x))
        y = network(x)
    packed, _ = get_onnx_bytes_and_metadata(network, (x,), weights_dtype=form.weights)
    path = folder / "model.onnx"
    path.write_bytes(OnnxBytes.from_bytes(packed).get_onnx_model_file_bytes())
    graph = onnx.load(path, load_external_data=False).graph
    names = graph.input[0].name, graph.output[0].name
    values = (value.float().cpu().numpy() for value in (x, y))
    np.savez(path.with_suffix(".npz"), **dict(zip(names, values, strict=True)))
