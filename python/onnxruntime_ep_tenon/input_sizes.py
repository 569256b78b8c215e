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
    (r"height|width|^(h|w)$", _IMAGE_SIDE, "an image's side"),
    (r"channel|^c$", 3, "colours"),
)
_SOUND = re.compile(r"wav|audio|pcm|speech|sound")
_SUM = re.compile(r"\s*\+\s*")


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

    def __init__(self, inputs, dimensions: dict[str, int], shapes: dict[str, list[int]]):
        self._shapes = shapes
        self._known = dict(dimensions)
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
        size, why = self._sum(name) or _by_name(name) or _by_place(value, axis)
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
        return self._known.get(name, (_by_name(name) or (1, ""))[0])


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
