"""Torch's two exporters: the one that traces TorchScript, and the one that traces with dynamo."""

from __future__ import annotations

from pathlib import Path

import torch

from .architecture import Architecture
from .network import build, examples

WAYS = ("legacy17", "dynamo18", "dynamo23")


def export(architecture: Architecture, way: str, path: Path) -> None:
    model, opset = build(architecture), int(way[-2:])
    settings = {"input_names": list(architecture.inputs), "opset_version": opset}
    with torch.no_grad():
        if way.startswith("legacy"):
            _export_legacy(architecture, model, path, settings)
        else:
            _export_dynamo(architecture, model, path, settings)


def _export_legacy(architecture, model, path, settings) -> None:
    open_axes = {name: one.open_axes() for name, one in architecture.inputs.items()}
    torch.onnx.export(
        model, examples(architecture), path, dynamo=False, dynamic_axes=open_axes, **settings
    )


def _export_dynamo(architecture, model, path, settings) -> None:
    # One tuple for the one parameter of Called.forward.
    shapes = (tuple(one.open_axes() for one in architecture.inputs.values()),)
    torch.onnx.export(
        model, examples(architecture), path, dynamo=True, dynamic_shapes=shapes,
        external_data=False, verbose=False, **settings,
    )  # fmt: skip
