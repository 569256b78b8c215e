"""Sizes of inputs: as the model fixes them, as the user says, else a choice with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEQUENCE, _SAMPLES, _SECOND, _IMAGE_SIDE = 32, 512, 16000, 224
_CHANNELS = (1, 3, 4)

# What a name says: the first that is found in it, with the size and the reason that is told.
_NAMES = (
    (r"past", 0, "no tokens before"),
    (r"batch|^(b|bs)$", 1, "one in a batch"),
    (r"seq|token|len|time|frame", _SEQUENCE, "a short sequence"),
    (r"latent", 32, "a side of latents"),
    (r"height|width|^(h|w)$", _IMAGE_SIDE, "an image's side"),
    (r"channel|^c$", 3, "colours"),
)
_SOUND = re.compile(r"wav|audio|pcm|speech|sound")
_SUM = re.compile(r"\s*\+\s*")

# What an input's name says of its axes, the first that is found in it; None: nothing.
_IDS = re.compile(r"(input|token_type)_ids$|^tokens?$")
_POSITIONS = re.compile(r"positions?(_ids)?$")
_MASK = re.compile(r"(?<!encoder_)attention_mask$|^mask$")
_CACHE = re.compile(r"past|cache")
_IMAGE = re.compile(r"pixel|image")
_SIZES_OF_ROLES = {
    "batch": (1, "one in a batch"),
    "past": (0, "no tokens before"),
    "new": (_SEQUENCE, "a short sequence"),
    "encoded": (_SEQUENCE, "a short sequence"),
    "heads": (1, "one head"),
    "head": (64, "a head's size"),
    "channels": (3, "colours"),
    "side": (_IMAGE_SIDE, "an image's side"),
}


class InputError(ValueError):
    """An input cannot be made or read; the text says which and what to give."""


class UnmadeTypeError(InputError):
    """Nobody named anything wrong: there are no random values of that type."""


@dataclass(frozen=True)
class ChosenSize:
    """A size that neither the model nor the user had given."""

    what: str  # the dimension's name, or an input and the axis of it
    size: int
    why: str

    def __str__(self) -> str:
        return f"{self.what}={self.size} ({self.why})"


class Sizes:
    """What each named dimension is, for all inputs alike."""

    def __init__(
        self,
        inputs,
        dimensions: dict[str, int],
        shapes: dict[str, list[int]],
        told: dict[str, tuple[int, str]] | None = None,
    ):
        """`told`: named dimensions that something beside the model gives, and what that is."""
        self._shapes = shapes
        self._known = dict(dimensions)
        self._told = told or {}
        self._inputs = inputs
        self.chosen: list[ChosenSize] = []
        names = {_name(size): None for value in inputs for size in value.shape or [] if _name(size)}
        self._refuse_unknown(dimensions, list(names))
        for value in inputs:
            self._learn(value)

    def _refuse_unknown(self, dimensions: dict[str, int], names: list[str]) -> None:
        unknown = sorted(set(dimensions) - set(names))
        if unknown and names:
            known = ", ".join(names)
            raise InputError(f"the model has no dimension '{unknown[0]}'; its inputs have: {known}")
        if unknown:
            raise InputError(
                f"the model has no dimension '{unknown[0]}': those of its inputs have no names; "
                "give whole shapes with --shape INPUT=1,2,3"
            )

    def _learn(self, value) -> None:
        """A shape that was given says what the names in it are, for other inputs too."""
        given = self._shapes.get(value.name)
        if given is None or len(given) != len(value.shape or []):
            return
        for declared, size in zip(value.shape, given, strict=True):
            name = _name(declared)
            if name and self._known.setdefault(name, size) != size:
                raise InputError(
                    f"dimension '{name}' is {size} in input '{value.name}', "
                    f"but {self._known[name]} elsewhere"
                )

    def shape_of(self, value) -> list[int]:
        if value.name in self._shapes:
            return self._shapes[value.name]
        declared = value.shape or []
        return [self._size(value, declared, axis) for axis in range(len(declared))]

    def _size(self, value, declared, axis: int) -> int:
        if isinstance(declared[axis], int) and declared[axis] >= 0:
            return declared[axis]
        name = _name(declared[axis])
        if name in self._known:
            return self._known[name]
        size, why = (
            self._told.get(name)
            or self._sum(name)
            or _by_name(name)
            or self._by_input(value, axis)
            or _by_place(value, axis)
        )
        if name:
            self._known[name] = size
        self.chosen.append(ChosenSize(name or f"{value.name}[{axis}]", size, why))
        return size

    def _sum(self, name: str) -> tuple[int, str] | None:
        """'past_sequence_length + 1' and 'total_sequence_length': of what they are the sum."""
        if name.startswith("total_"):
            past = [size for known, size in self._known.items() if "past" in known]
            new = self._known.get(name.removeprefix("total_"), _SEQUENCE)
            return sum(past[:1]) + new, "past and new tokens"
        parts = _SUM.split(name)
        if len(parts) < 2:
            return None
        sizes = [int(part) if part.isdigit() else self._part(part) for part in parts]
        return sum(sizes), "as its name says"

    def _part(self, name: str) -> int:
        """Of a named dimension that may belong to an input further down."""
        if name in self._known:
            return self._known[name]
        roles = (
            role
            for value in self._inputs
            for declared, role in zip(value.shape or [], roles_of(value), strict=True)
            if declared == name and role in _SIZES_OF_ROLES
        )
        said = _by_name(name) or _SIZES_OF_ROLES.get(next(roles, ""))
        return said[0] if said else 1

    def _by_input(self, value, axis: int) -> tuple[int, str] | None:
        role = roles_of(value)[axis]
        if role == "whole":
            return self._first("past") + self._first("new"), "past and new tokens"
        return _SIZES_OF_ROLES.get(role)

    def _first(self, wanted: str) -> int:
        """The size of the first axis that has this role in any input."""
        for value in self._inputs:
            given = self._shapes.get(value.name, value.shape or [])
            for declared, role in zip(given, roles_of(value), strict=False):
                if role == wanted:
                    return declared if isinstance(declared, int) else self._part(_name(declared))
        return 0 if wanted == "past" else _SIZES_OF_ROLES[wanted][0]


def is_cache(name: str) -> bool:
    """Whether an input of that name holds keys or values of earlier tokens."""
    return bool(_CACHE.search(name)) and not _POSITIONS.search(name)


def roles_of(value) -> list[str]:
    """What each axis of an input is, as far as the input's own name tells; "": it does not."""
    name, shape = value.name.lower(), value.shape or []
    rank = len(shape)
    if _POSITIONS.search(name):
        return ([""] * rank + ["batch", "new"])[-rank:] if rank else []
    if rank == 2 and _IDS.search(name):
        return ["batch", "new"]
    if rank in (2, 4) and _MASK.search(name):
        return ["batch", "whole"] if rank == 2 else ["batch", "heads", "new", "whole"]
    if rank in (4, 5) and is_cache(name):
        return _roles_of_cache(name, shape)
    if rank in (4, 5) and _IMAGE.search(name):
        last = rank == 4 and shape[3] in _CHANNELS
        inner = ["side", "side", "channels"] if last else ["channels", "side", "side"]
        return ["batch", *[""] * (rank - 4), *inner]
    return [""] * rank


def _roles_of_cache(name: str, shape) -> list[str]:
    """[batch, heads, past, head], or heads and past the other way round; keys and values may be
    stacked in front."""
    length = "encoded" if "encoder" in name else "past"
    stacked = [""] * (len(shape) - 4)
    heads_last = not isinstance(shape[-3], int) and isinstance(shape[-2], int)
    middle = [length, "heads"] if heads_last else ["heads", length]
    return [*stacked, "batch", *middle, "head"]


def _name(size) -> str:
    """Of a symbolic dimension; a fixed or unnamed one has none, nor has '?' that some write."""
    return size if isinstance(size, str) and size != "?" else ""


def _by_name(name: str) -> tuple[int, str] | None:
    for pattern, size, why in _NAMES:
        if name and re.search(pattern, name.lower()):
            return size, why
    return None


def _by_place(value, axis: int) -> tuple[int, str]:
    """By the input's name, rank and fixed sizes, where the dimension's name says nothing."""
    type_name, declared = value.type, value.shape
    if axis == 0:
        return 1, "one in a batch"
    if len(declared) == 4 and "int64" not in type_name:
        channels = 3 if declared[3] in _CHANNELS else 1
        if axis != channels:
            return _IMAGE_SIDE, "an image's side"
        return 3, "colours"
    if len(declared) == 3 and axis == 1 and all(isinstance(declared[i], int) for i in (0, 2)):
        return 1, "one in a batch of states"
    if len(declared) == 2 and "float" in type_name:
        if _SOUND.search(value.name.lower()):
            return _SECOND, "a second of sound at 16 kHz"
        return _SAMPLES, "samples of a signal"
    if len(declared) in (2, 3):
        return _SEQUENCE, "a short sequence"
    return 1, "nothing says more"
