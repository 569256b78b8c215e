"""One row of the table: a network with random weights, and what goes into it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

# What a named size is while a model is exported; a product of two of them is no other size.
SIZES = {
    "batch": 2, "sequence": 10, "source_sequence": 14, "height": 64, "width": 96,
    "latent_height": 16, "latent_width": 24, "image_tokens": 24, "samples": 1600, "frames": 40,
}  # fmt: skip

TokensBelow = int


@dataclass(frozen=True)
class Input:
    """A tensor of standard normal numbers, of tokens or of ones; sizes by name are left open."""

    sizes: tuple[int | str, ...]
    holds: str | TokensBelow = "normal"

    def example(self, seed: int) -> torch.Tensor:
        shape = [SIZES.get(size, size) for size in self.sizes]
        if self.holds == "ones":
            return torch.ones(shape, dtype=torch.int64)
        generator = torch.Generator().manual_seed(seed)
        if isinstance(self.holds, int):
            return torch.randint(0, self.holds, shape, generator=generator)
        return torch.randn(shape, generator=generator)

    def open_axes(self) -> dict[int, str]:
        return {axis: size for axis, size in enumerate(self.sizes) if isinstance(size, str)}


@dataclass(frozen=True)
class Architecture:
    """`model` is 'module:Class', built from `config`: as arguments or as a `config_class`."""

    name: str
    model: str
    inputs: Mapping[str, Input]
    config: Mapping[str, object] = field(default_factory=dict)
    config_class: str = ""
    call: Mapping[str, object] = field(default_factory=dict)  # more arguments of its forward
    method: str = "forward"
    part: str = ""  # the submodule that is exported
    takes_names: bool = True  # its inputs are passed by name
    without: tuple[str, ...] = ()  # ways to export that are known to fail, and are not asked

    def build(self) -> torch.nn.Module:
        torch.manual_seed(0)
        maker = _named(self.model)
        config = {key: _built(value) for key, value in self.config.items()}
        if self.config_class:
            whole = maker(_named(self.config_class)(**config))
        else:
            whole = maker(**config)
        if self.part:
            whole = whole.get_submodule(self.part)
        _spread_statistics(whole)
        return Called(self, whole.eval()).eval()

    def examples(self) -> tuple[torch.Tensor, ...]:
        return tuple(one.example(seed) for seed, one in enumerate(self.inputs.values()))


class Called(torch.nn.Module):
    """Takes tensors by position, as both exporters like it, and gives tensors back."""

    def __init__(self, architecture: Architecture, model: torch.nn.Module):
        super().__init__()
        self.model, self.architecture = model, architecture

    def forward(self, *tensors):
        call = getattr(self.model, self.architecture.method)
        if self.architecture.takes_names:
            named = dict(zip(self.architecture.inputs, tensors, strict=True))
            answer = call(**named, **self.architecture.call)
        else:
            answer = call(*tensors, **self.architecture.call)
        return tuple(_tensors_of(answer))


def _tensors_of(answer) -> list[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        return [answer]
    if hasattr(answer, "to_tuple"):
        answer = answer.to_tuple()
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, (tuple, list)):
        return [tensor for part in answer for tensor in _tensors_of(part)]
    return []


def _named(path: str):
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _built(value):
    """A config inside a config: {'': 'module:Class', …}."""
    if isinstance(value, Mapping) and "" in value:
        inner = {key: _built(one) for key, one in value.items() if key}
        return _named(value[""])(**inner)
    return value


def _spread_statistics(model: torch.nn.Module) -> None:
    """Batch norms as they are after training, not the identity that they begin as."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
