"""Which models there are: each architecture by each exporter, and what quantisers make of some."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import genai_builder, model_optimizer, quantizers, torch_exporters
from .architecture import SIZES, Architecture
from .image_architectures import GENERATORS, IMAGES
from .optimizer_forms import FORMS, Form
from .sound_architectures import SOUND
from .text_architectures import TEXT

ARCHITECTURES = (*TEXT, *IMAGES, *GENERATORS, *SOUND)
# Networks that people quantise: one of each kind.
_QUANTIZED = (
    "bert", "distilbert", "deberta", "t5-encoder", "gpt2", "llama", "vit", "swin", "convnext",
    "resnet18", "mobilenet-v2", "mobilenet-v3", "efficientnet", "densenet", "segformer",
    "clip-vision", "sd-unet", "whisper-encoder", "wav2vec2", "lstm",
)  # fmt: skip
# What models run with unless they are told otherwise, by these names.
_WELL_TOLD = ("batch", "sequence", "source_sequence")


@dataclass(frozen=True)
class Job:
    """`make` writes model.onnx into its first folder; the second holds what was made before."""

    name: str
    make: Callable[[Path, Path], None]


def all_jobs() -> list[Job]:
    jobs = []
    for one in ARCHITECTURES:
        for way in torch_exporters.WAYS:
            jobs.append(Job(f"{one.name}.{way}", partial(_export, torch_exporters, one, way)))
        if one.name not in _QUANTIZED:
            continue
        for way, source in quantizers.WAYS.items():
            jobs.append(Job(f"{one.name}.{source}.{way}", partial(_quantize, one, way)))
        for way in model_optimizer.WAYS:
            jobs.append(Job(f"{one.name}.{way}", partial(_export, model_optimizer, one, way)))
    for name in genai_builder.CONFIGS:
        for way in genai_builder.WAYS:
            jobs.append(Job(f"{name}.genai-{way}", partial(_build, name, way)))
    jobs.extend(Job(form.name, partial(_export_form, form)) for form in FORMS)
    return jobs


def _export(exporter, architecture: Architecture, way: str, folder: Path, _: Path) -> None:
    exporter.export(architecture, way, folder / "model.onnx")
    _write_sizes(architecture, folder)


def _quantize(architecture: Architecture, way: str, folder: Path, out: Path) -> None:
    source = out / f"{architecture.name}.{quantizers.WAYS[way]}" / "model.onnx"
    if not source.is_file():
        raise FileNotFoundError(f"it is made of {source.parent.name}, which is not there")
    quantizers.quantize(architecture, way, source, folder / "model.onnx")
    _write_sizes(architecture, folder)


def _build(name: str, way: str, folder: Path, _: Path) -> None:
    genai_builder.build(name, way, folder)


def _export_form(form: Form, folder: Path, _: Path) -> None:
    model_optimizer.export_form(form, folder)


def _write_sizes(architecture: Architecture, folder: Path) -> None:
    names = {size for one in architecture.inputs.values() for size in one.sizes}
    sizes = {name: SIZES[name] for name in names if name in SIZES and name not in _WELL_TOLD}
    (folder / "sizes.json").write_text(json.dumps(sizes) + "\n")
