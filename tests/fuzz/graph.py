"""A random graph under construction: inputs with labelled sizes, constants, nodes, outputs.

Families write graphs through it; `declarations.py` then says how much of what the graph declares is
true. Everything follows from one random generator, so a case is its (seed, number).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, F16, F64, BF16 = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
I64, I32, U8, I8, BOOL = np.int64, np.int32, np.uint8, np.int8, np.bool_
MOST, LEAST = 2**63 - 1, -(2**63)
MOST_ELEMENTS = 1 << 28  # more than memory may have room for

# Small sizes around vector widths and blocks; 0, 1 and odd ones on purpose.
SIZES = (0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65)
LARGE_SIZES = (96, 127, 128, 129, 255, 257, 500, 1023)

Dims = Sequence[int | str]
Maker = Callable[["Graph", tuple[int, ...]], np.ndarray]


class TooLarge(Exception):
    """The sizes that were drawn multiply to more than a small case may hold."""


def element_type(dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@dataclass
class Input:
    """`dims` holds numbers and labels; `make` gives fresh contents for the sizes of a Run."""

    name: str
    dtype: np.dtype
    dims: list[int | str]
    make: Maker
    default: np.ndarray | None = None  # an initialiser that the caller may also feed


@dataclass
class Graph:
    random: np.random.Generator
    opset: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    outputs: list[tuple[str, np.dtype]] = field(default_factory=list)
    inner: dict[str, np.dtype] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    wildness: float = 0.0
    loose: bool = False  # constants may turn into inputs

    # -- choices ---------------------------------------------------------------------------------

    def pick(self, options):
        return options[int(self.random.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def between(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(self.random.integers(low, high + 1))

    def wild(self, usual, *others):
        """Nearly always the usual value; in a wild graph now and then one of the others."""
        return self.pick(others) if self.chance(self.wildness) else usual

    def size(self) -> int:
        if self.chance(0.04):
            return self.pick(LARGE_SIZES)
        size = self.pick(SIZES)
        return size if size or self.chance(0.3) else 4

    def label(self, size: int | None = None) -> str:
        """A new named size."""
        name = f"d{len(self.sizes)}"
        self.sizes[name] = self.size() if size is None else size
        return name

    def dims(self, rank: int) -> list[int | str]:
        return [self.label() if self.chance(0.6) else self.size() for _ in range(rank)]

    def concrete(self, dims: Dims) -> tuple[int, ...]:
        return tuple(self.sizes[d] if isinstance(d, str) else d for d in dims)

    def axis(self, rank: int) -> int:
        """Usually an axis of that rank, counted from either end."""
        if rank == 0:
            return self.wild(0, -1, 1)
        return self.wild(self.between(-rank, rank - 1), rank, -rank - 1, MOST, LEAST)

    # -- contents --------------------------------------------------------------------------------

    def numbers(self, shape, dtype=F32, scale: float = 1.0) -> np.ndarray:
        dtype = np.dtype(dtype)
        if math.prod(shape) > MOST_ELEMENTS:
            raise TooLarge
        if dtype == np.bool_:
            return np.asarray(self.random.random(shape) < 0.5)
        if dtype.kind in "iu":
            low = 0 if dtype.kind == "u" else -9
            return np.asarray(self.random.integers(low, 10, shape)).astype(dtype)
        if dtype in (np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.uint4)):
            low = 0 if dtype == np.dtype(ml_dtypes.uint4) else -8
            return np.asarray(self.random.integers(low, low + 16, shape), np.int8).astype(dtype)
        values = np.asarray(self.random.standard_normal(shape, np.float32) * np.float32(scale))
        if self.chance(0.03) and values.size:
            strange = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e4, 65504.0, 1e-40)
            values.reshape(-1)[int(self.random.integers(values.size))] = self.pick(strange)
        with np.errstate(all="ignore"):
            return values.astype(dtype)

    def integers(self, low: int, high: int, shape, dtype=I64) -> np.ndarray:
        """Indices in [low, high), usually; a wild graph has some outside of it."""
        values = np.asarray(self.random.integers(low, max(high, low + 1), shape)).astype(dtype)
        if values.size and self.chance(self.wildness):
            outside = (high, low - 1, -high - 1, high + 1000, -1)
            if np.dtype(dtype) == np.dtype(I64):
                outside += (MOST, LEAST, 2**31, 2**40)
            values.reshape(-1)[int(self.random.integers(values.size))] = self.pick(outside)
        return values

    # -- values ----------------------------------------------------------------------------------

    def input(self, dtype, dims: Dims, make: Maker | None = None, scale: float = 1.0) -> str:
        name = f"x{len(self.inputs)}"
        dtype = np.dtype(dtype)
        make = make or (lambda g, shape: g.numbers(shape, dtype, scale))
        self.inputs.append(Input(name, dtype, list(dims), make))
        return name

    def tame_input(self, dtype, dims: Dims, scale: float = 1.0) -> str:
        """Neither infinities nor NaN, and no squares beyond float32."""

        def make(g: Graph, shape):
            values = g.numbers(shape, dtype, scale)
            most = np.asarray(min(1e18, float(np.finfo(dtype).max)), dtype)
            return np.clip(np.nan_to_num(values), -most, most)

        return self.input(dtype, dims, make)

    def indices(self, dtype, dims: Dims, low: int | str, high: int | str) -> str:
        """An input of indices; a bound may be a label."""

        def bound(g, value) -> int:
            return g.sizes.get(value.lstrip("-"), 0) * (-1 if value[0] == "-" else 1)

        def make(g: Graph, shape):
            least = bound(g, low) if isinstance(low, str) else low
            most = bound(g, high) if isinstance(high, str) else high
            return g.integers(least, most, shape, dtype)

        return self.input(dtype, dims, make)

    def constant(self, array) -> str:
        """An initialiser, usually; else a Constant node, or an input with or without default."""
        array = np.asarray(array)
        name = f"c{len(self.constants) + len(self.nodes)}_{len(self.inputs)}"
        choice = self.random.random() if self.loose else 1.0
        if choice < 0.12:
            return self.input(array.dtype, array.shape, lambda g, shape: _fitted(array, shape))
        self.constants[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        if choice < 0.2 and array.dtype.name not in ("int4", "uint4", "float4_e2m1fn"):
            self.inputs.append(
                Input(name, array.dtype, list(array.shape), _fed_default(array), array)
            )
        elif choice < 0.3:
            tensor = self.constants.pop(name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def ints(self, *values: int, dtype=I64) -> str:
        return self.constant(np.asarray(values, dtype))

    def weight(self, *shape: int, dtype=F32) -> str:
        return self.constant(self.numbers(shape, dtype, 1 / max(shape[-1], 1) ** 0.5))

    def node(
        self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes
    ):
        """The name of its output, or a list of names; "" among the inputs is one left out."""
        number = len(self.nodes)
        names = [f"v{number}" if outputs == 1 else f"v{number}_{i}" for i in range(outputs)]
        inputs = list(inputs)
        while inputs and not inputs[-1]:
            inputs.pop()
        given = {
            key: value for key, value in attributes.items() if value is not None and value != []
        }
        self.nodes.append(
            helper.make_node(op, inputs, names, f"{op}_{number}", domain=domain, **given)
        )
        return names[0] if outputs == 1 else names

    def keep(self, name: str, dtype=F32) -> str:
        """Remembers an inner value's type, so that a shape may be declared for it."""
        self.inner[name] = np.dtype(dtype)
        return name

    def output(self, name: str, dtype=F32) -> None:
        if any(name == known for known, _ in self.outputs):
            return
        if any(name == value.name for value in self.inputs) or name in self.constants:
            name = self.node("Identity", [name])
        self.inner.pop(name, None)
        self.outputs.append((name, np.dtype(dtype)))

    def drop_dead_nodes(self) -> None:
        """What no output needs, a provider need not run: its errors would say nothing."""
        needed = {name for name, _ in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.inner = {name: dtype for name, dtype in self.inner.items() if name in needed}
        for value in self.inputs:
            self.inner.pop(value.name, None)

    # -- a model ---------------------------------------------------------------------------------

    def feed(self) -> dict[str, np.ndarray]:
        """Contents of every input for the present sizes."""
        return {x.name: np.asarray(x.make(self, self.concrete(x.dims))) for x in self.inputs}

    def model(self, infos) -> onnx.ModelProto:
        """`infos` holds the declared inputs, outputs and inner values."""
        inputs, outputs, inner = infos
        graph = helper.make_graph(
            self.nodes, "fuzzed", inputs, outputs, list(self.constants.values()), value_info=inner
        )
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(d, 1) for d in domains),
        ]
        ir_version = 10 if self.opset < 23 else 12 if self.opset < 26 else 13
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def _fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The same contents in another shape, repeated or cut where it must be."""
    if array.shape == shape:
        return array
    return np.resize(array, shape)


def _fed_default(array: np.ndarray) -> Maker:
    """What a caller feeds where there is a default: often the same, at times something else."""

    def make(g: Graph, shape):
        fed = _fitted(array, shape)
        floats = array.dtype.kind == "f" or array.dtype == np.dtype(BF16)
        return (fed * array.dtype.type(2)).astype(array.dtype) if floats and g.chance(0.3) else fed

    return make


def type_of(dtype) -> int:
    return TensorProto.BOOL if np.dtype(dtype) == np.bool_ else element_type(dtype)
