"""Networks from their rows: built with random weights, called by position, fed with examples."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch

from .architecture import SIZES, Architecture, Input


def build(architecture: Architecture) -> torch.nn.Module:
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # one op that no exporter knows
    maker = _named(architecture.model)
    config = {key: _built(value) for key, value in architecture.config.items()}
    if architecture.config_class:
        whole = maker(_named(architecture.config_class)(**config))
    else:
        whole = maker(**config)
    if architecture.part:
        whole = whole.get_submodule(architecture.part)
    _spread_statistics(whole)
    return Called(architecture, whole.eval()).eval()


def examples(architecture: Architecture, draw: int = 0) -> tuple[torch.Tensor, ...]:
    """Others for each number."""
    inputs = enumerate(architecture.inputs.values())
    return tuple(_example(one, 100 * draw + number) for number, one in inputs)


def _example(one: Input, seed: int) -> torch.Tensor:
    shape = [SIZES.get(size, size) for size in one.sizes]
    if one.holds == "ones":
        return torch.ones(shape, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    if isinstance(one.holds, int):
        return torch.randint(0, one.holds, shape, generator=generator)
    return torch.randn(shape, generator=generator)


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
