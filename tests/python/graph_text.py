"""Graphs that exporters wrote as text of a few kilobytes: every node, and weights by their kind.

python graph_text.py MODEL.onnx [VALUE ...]: prints its graph, or what leads to these values.
Random weights stand for random weights: what a line says is how they are spread. Constants that
sizes, positions and masks are made of are kept. One line each:

  opset DOMAIN VERSION            input|output NAME TYPE SIZE,SIZE
  weight NAME TYPE SIZE,SIZE HOW  OUTPUTS = [DOMAIN.]OP INPUTS ATTRIBUTE=JSON

and for the test: `# text`, `size NAME NUMBER` to run it with, `left OP NUMBER ...`: what Tenon
leaves to others on a GPU, at most.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_KEPT = 16  # elements of a constant that are written down
_FEW = 3  # different values of a mask
_NONE = "-"


def write_text(model: onnx.ModelProto, wanted: Iterable[str] = ()) -> str:
    graph = model.graph
    nodes = list(_leading_to(set(wanted), graph)) if wanted else list(graph.node)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in [node for node in nodes if node.op_type == "Constant"]:
        constants[node.output[0]] = _constant(node)
        nodes.remove(node)
    read = {name for node in nodes for name in node.input}
    outputs = _declared(model, wanted) if wanted else graph.output
    fixed = [*(value.name for value in graph.input), *(value.name for value in outputs)]
    short = _Short([name for name in fixed if name not in constants])
    used = {"" if name.domain == "ai.onnx" else name.domain: name for name in model.opset_import}
    domains = {node.domain for node in nodes} | {""}
    lines = [f"opset {name or 'ai.onnx'} {used[name].version}" for name in sorted(domains)]
    lines += [_value("input", v) for v in graph.input if v.name in read and v.name not in constants]
    lines += [_value("output", value) for value in outputs]
    for name, tensor in constants.items():
        if name in read:
            lines.append(_weight(short(name), numpy_helper.to_array(tensor)))
    lines += [_node(node, short) for node in nodes]
    return "\n".join(lines) + "\n"


@dataclass
class GraphText:
    """A graph with weights drawn anew, always the same ones; and what a test should know of it."""

    model: onnx.ModelProto
    sizes: dict[str, int]
    left: Counter


def read_text(text: str) -> GraphText:
    opsets, inputs, outputs, weights, nodes = [], [], [], [], []
    sizes, left = {}, Counter()
    for line in text.splitlines():
        words = line.split(" ")
        if words[0] == "opset":
            opsets.append(helper.make_opsetid(words[1].replace("ai.onnx", ""), int(words[2])))
        elif words[0] in ("input", "output"):
            (inputs if words[0] == "input" else outputs).append(_read_value(*words[1:]))
        elif words[0] == "weight":
            weights.append(_read_weight(*words[1:]))
        elif words[0] == "size":
            sizes[words[1]] = int(words[2])
        elif words[0] == "left":
            left.update(dict(zip(words[1::2], map(int, words[2::2]), strict=True)))
        elif words[0] != "#":
            nodes.append(_read_node(words))
    graph = helper.make_graph(nodes, "exported", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return GraphText(model, sizes, left)


class _Short:
    """Names of one to three letters for all but inputs and outputs."""

    def __init__(self, kept: list[str]):
        self._known = {name: name for name in kept} | {"": _NONE}

    def __call__(self, name: str) -> str:
        return self._known.setdefault(name, f"v{len(self._known)}")


def _leading_to(wanted: set[str], graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    needed, chosen = set(wanted), []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            chosen.append(node)
    return reversed(chosen)


def _declared(model: onnx.ModelProto, names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {value.name: value for value in [*inferred.value_info, *inferred.output]}
    return [known[name] for name in names]


def _constant(node: onnx.NodeProto) -> onnx.TensorProto:
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, TensorProto):
        return value
    kind = np.int64 if "int" in node.attribute[0].name else np.float32
    return numpy_helper.from_array(np.asarray(value, kind))


def _value(kind: str, value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    sizes = [d.dim_param.replace(" ", "") or str(d.dim_value or "?") for d in tensor.shape.dim]
    return f"{kind} {value.name} {TensorProto.DataType.Name(tensor.elem_type)} {','.join(sizes)}"


def _read_value(name: str, type: str, sizes: str) -> onnx.ValueInfoProto:
    dims = [int(s) if s.isdigit() else None if s == "?" else s for s in sizes.split(",") if s]
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(type), dims)


def _weight(name: str, array: np.ndarray) -> str:
    element = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype))
    sizes = ",".join(map(str, array.shape)) or "scalar"
    return f"weight {name} {element} {sizes} {_spread(array)}"


def _spread(array: np.ndarray) -> str:
    """How its elements are to be made: as they are, one of a few, counted up, or drawn."""
    numbers = array.astype(np.float64) if array.dtype.kind not in "iub" else array.astype(np.int64)
    flat, different = numbers.reshape(-1), np.unique(numbers)
    if flat.size <= _KEPT and len(different) > 1:
        return "as " + json.dumps(flat.tolist(), separators=(",", ":"))
    if len(different) <= _FEW:
        return "of " + json.dumps(different.tolist(), separators=(",", ":"))
    if array.dtype.kind == "i" and np.array_equal(flat, np.arange(flat.size) + flat[0]):
        return f"from {flat[0]}"
    if array.dtype.kind in "iub" or flat.min() >= 0 or array.dtype.itemsize < 2:
        return f"between {flat.min():.4g} {flat.max():.4g}"
    return f"normal {flat.mean():.2g} {flat.std():.2g}"


def _read_weight(name, element, sizes, how, *given) -> onnx.TensorProto:
    type = TensorProto.DataType.Value(element)
    dtype = helper.tensor_dtype_to_np_dtype(type)
    shape = () if sizes == "scalar" else tuple(int(size) for size in sizes.split(",") if size)
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if how == "as":
        numbers = np.array(json.loads(given[0]))
    elif how == "of":
        numbers = random.choice(np.array(json.loads(given[0])), shape)
    elif how == "from":
        numbers = int(given[0]) + np.arange(int(np.prod(shape)))
    elif how == "between" and (dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4)):
        low, high = (int(float(bound)) for bound in given)
        numbers = random.integers(low, high + 1, shape)
    elif how == "between":
        numbers = random.uniform(*map(float, given), shape)
    else:
        numbers = random.normal(*map(float, given), shape)
    return numpy_helper.from_array(numbers.reshape(shape).astype(dtype), name)


def _node(node: onnx.NodeProto, short: _Short) -> str:
    op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    attributes = [f"{one.name}={_attribute(one)}" for one in node.attribute]
    words = [",".join(map(short, node.output)), "=", op, ",".join(map(short, node.input))]
    return " ".join([*words[:3], words[3] or _NONE, *attributes])


def _attribute(attribute: onnx.AttributeProto) -> str:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.GraphProto):
        raise ValueError(f"attribute '{attribute.name}' holds a graph")
    if isinstance(value, TensorProto):
        told = numpy_helper.to_array(value)
        value = {"type": value.data_type, "sizes": told.shape, "values": told.reshape(-1).tolist()}
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, (int, float, str)):
        value = [one.decode() if isinstance(one, bytes) else one for one in value]
    return json.dumps(value, separators=(",", ":")).replace(" ", "\\u0020")


def _read_node(words: list[str]) -> onnx.NodeProto:
    outputs, _, op, inputs, *attributes = words
    domain, _, op = op.rpartition(".")
    given = dict(attribute.split("=", 1) for attribute in attributes)
    names = [["" if n == _NONE else n for n in side.split(",")] for side in (inputs, outputs)]
    sources = [] if inputs == _NONE else names[0]
    values = {name: _read_attribute(name, json.loads(text)) for name, text in given.items()}
    return helper.make_node(op, sources, names[1], domain=domain, name=names[1][0], **values)


def _read_attribute(name: str, value):
    if not isinstance(value, dict):
        return value
    return helper.make_tensor(name, value["type"], value["sizes"], value["values"])


if __name__ == "__main__":
    print(write_text(onnx.load(Path(sys.argv[1])), sys.argv[2:]), end="")
