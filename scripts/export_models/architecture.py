"""One row of the table: a network with random weights, and what goes into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
