"""Inputs for a model that came without any: random ones, or files that the user names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .input_sizes import ChosenSize, InputError, Sizes, UnmadeTypeError
from .kv_heads import local_kv_heads
from .requirements import require

_NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{
        f"tensor({t})": t
        for t in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}
_LENGTH = re.compile(r"(^|_)(len|lens|length|lengths)$")
_SMALL_TYPES = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e8m0)": "float8_e8m0fnu",
    "tensor(float4e2m1)": "float4_e2m1fn",
    "tensor(int4)": "int4",
    "tensor(uint4)": "uint4",
}


def dtype_of(type_name: str) -> np.dtype:
    if type_name in _NUMPY_TYPES:
        return np.dtype(_NUMPY_TYPES[type_name])
    if type_name in _SMALL_TYPES:
        module = require("ml_dtypes", f"for inputs of type {type_name}")
        return np.dtype(getattr(module, _SMALL_TYPES[type_name]))
    raise UnmadeTypeError(
        f"inputs of type {type_name} cannot be made; give one with --input NAME=FILE"
    )


def random_input(name: str, type_name: str, shape, seed: int, largest_integer: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    dtype = dtype_of(type_name)
    # What these inputs mean to every model: attend to all tokens, all of one segment, in order.
    if "mask" in name and dtype.kind in "iu":
        return np.ones(shape, dtype)
    if "token_type" in name and dtype.kind in "iu":
        return np.zeros(shape, dtype)
    if name.endswith("position_ids") and dtype.kind in "iu" and len(shape):
        return np.broadcast_to(np.arange(shape[-1], dtype=dtype), shape).copy()
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4"):
        return (
            random.integers(0, largest_integer + 1, shape)
            .astype(np.int8 if dtype.name in ("int4", "uint4") else dtype)
            .astype(dtype)
        )
    if dtype.name == "float8_e8m0fnu":
        return np.exp2(random.integers(-4, 5, shape)).astype(dtype)
    return random.standard_normal(shape).astype(np.float32).astype(dtype)


@dataclass(frozen=True)
class MadeInputs:
    """One array per input, and the sizes that nobody had given."""

    arrays: dict[str, np.ndarray]
    chosen: list[ChosenSize]

    def chosen_text(self) -> str:
        """One line for people; empty where the model or the user gave every size."""
        if not self.chosen:
            return ""
        sizes = ", ".join(map(str, self.chosen))
        return f"Sizes chosen: {sizes}. Others: --dim NAME=NUMBER, --shape INPUT=1,2,3."


def make_inputs(
    session,
    dimensions: dict[str, int] | None = None,
    files: dict[str, str] | None = None,
    seed: int = 0,
    largest_integer: int = 1,
    shapes: dict[str, list[int]] | None = None,
    told: dict[str, tuple[int, str]] | None = None,
) -> MadeInputs:
    """One array per input that the session asks for.

    `told`: named dimensions that something beside the model gives, and what gives them.
    """
    files, shapes = files or {}, dict(shapes or {})
    wanted = session.get_inputs()
    unknown = (set(files) | set(shapes)) - {value.name for value in wanted}
    if unknown:
        names = ", ".join(value.name for value in wanted)
        raise InputError(f"the model has no input '{sorted(unknown)[0]}'; it has: {names}")
    arrays = {name: _load(path) for name, path in files.items()}
    shapes.update({name: list(array.shape) for name, array in arrays.items()})
    told = {**(told or {}), **_heads_told(session)}
    sizes = Sizes(wanted, dimensions or {}, shapes, told)
    for index, value in enumerate(wanted):
        if value.name not in arrays:
            shape = sizes.shape_of(value)
            arrays[value.name] = random_input(
                value.name, value.type, shape, seed + index, largest_integer
            )
    for value in wanted:
        if value.name not in files and _is_length(value) and (whole := _whole(wanted, arrays)):
            arrays[value.name] = np.full_like(arrays[value.name], whole)
    return MadeInputs({value.name: arrays[value.name] for value in wanted}, sizes.chosen)


def _heads_told(session) -> dict[str, tuple[int, str]]:
    """Named dimensions that count the heads of caches: 'kv_heads_of_8' of a file for ranks."""
    heads = local_kv_heads(session)
    return {
        value.shape[1]: (heads[value.name], "heads that this process binds")
        for value in session.get_inputs()
        if value.name in heads and isinstance(value.shape[1], str)
    }


def _is_length(value) -> bool:
    """Of how much is valid of each row of another input: a number, or one for each row."""
    return "int" in value.type and len(value.shape or []) < 2 and bool(_LENGTH.search(value.name))


def _whole(wanted, arrays: dict[str, np.ndarray]) -> int:
    """The size that lengths count: the first one behind the batch that the model leaves open."""
    for value in wanted:
        for axis, declared in enumerate(value.shape or []):
            if axis and not isinstance(declared, int) and axis < arrays[value.name].ndim:
                return arrays[value.name].shape[axis]
    return 0


def _load(path: str) -> np.ndarray:
    try:
        return np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is no .npy file: {error}") from error
