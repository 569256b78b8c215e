"""What a drawing shows of a model: boxes with verdicts, tensors between them, bodies."""

from __future__ import annotations

import re
import zlib
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..report import Report, fusion_kind, readable, shortened

# ONNX's element types by number, named as reports name them.
_TYPES = (
    "undefined f32 u8 i8 u16 i16 i32 i64 string bool f16 f64 u32 u64 complex64 complex128 bf16 "
    "f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz u4 i4 f4e2m1 f8e8m0 u2 i2"
).split()

# Kinds of fusions: the fill of their boxes and what they are; others take a colour from their name.
_FUSIONS = {
    "scaled_dot": ("#8fbdea", "a matrix product, with the scales of quantised weights"),
    "merged_dots": ("#7fd0dc", "products of one input, run as one"),
    "attention": ("#f5b27a", "attention as one kernel"),
    "paged_attention": ("#f0c987", "attention over a paged KV cache"),
    "loop": ("#a5d696", "pointwise ops, reductions and data movement in one kernel"),
    "dynamic_quantize": ("#d3bdec", "activations quantised while the session runs"),
}
# What else a box can be.
LEFT_OUT, DISSOLVED, REWRITTEN, TERMINAL = "left out", "dissolved", "rewritten", "input or output"
_OTHERS = {
    LEFT_OUT: ("#c2c2c2", "left to another provider; each node tells why"),
    DISSOLVED: ("#d9e6f2", "claimed, and part of its neighbours' kernels: needs none of its own"),
    REWRITTEN: ("#f7f7f7", "folded or merged by ONNX Runtime before providers are asked"),
    TERMINAL: ("#dff3f0", "an input or output of the graph"),
}
_PARTITION_EDGES = ("#1f4e79", "#7b3f00", "#2e6b2e", "#6a3d9a", "#a1282d", "#00696b")
_MOST_ATTRIBUTE = 60
_UNNAMED_SIZE = re.compile(r"'[^']*:\d+'")  # as reports name an unknown size: 'tensor:axis'


def colour_of(kind: str) -> str:
    known = _FUSIONS.get(kind) or _OTHERS.get(kind)
    return known[0] if known else f"hsl({zlib.crc32(kind.encode()) % 360}, 50%, 78%)"


def meaning_of(kind: str) -> str:
    known = _FUSIONS.get(kind) or _OTHERS.get(kind)
    return known[1] if known else "a fusion of Tenon's"


@dataclass
class Verdict:
    """What became of a node."""

    kind: str
    partition: str = ""  # empty: not Tenon's
    edge: str = "#8a8a8a"
    note: str = ""


@dataclass(eq=False)
class Tensor:
    name: str
    type: str  # "f32[batch,64]"; empty: unknown
    origin: str = ""  # constant, or nothing to say
    source: Box | None = None
    readers: list[Box] = field(default_factory=list)


@dataclass(eq=False)
class Box:
    """A node, or an input or output of a graph."""

    name: str
    op: str
    verdict: Verdict
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    captured: list[Tensor] = field(default_factory=list)  # read by its bodies, from around them
    attributes: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[DrawnGraph] = field(default_factory=list)
    row: int = 0
    column: float = 0.0


@dataclass(eq=False)
class DrawnGraph:
    title: str
    boxes: list[Box] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def edges(self) -> Iterator[tuple[Box, Box, Tensor]]:
        """Between boxes of this graph; what bodies read of it leads to the node that runs them."""
        own = set(self.boxes)
        for box in self.boxes:
            for tensor in dict.fromkeys(box.inputs + box.captured):
                if tensor.source in own:
                    yield tensor.source, box, tensor

    def with_bodies(self) -> Iterator[DrawnGraph]:
        yield self
        for box in self.boxes:
            for body in box.bodies:
                yield from body.with_bodies()


def drawn_graph(model, report: Report) -> DrawnGraph:
    """The model's main graph and, inside its boxes, the bodies of If, Loop and Scan."""
    reader = _Reader(report, {function.name for function in model.functions})
    title = model.graph.name or "main graph"
    return reader.read(_with_inferred_shapes(model).graph, title, {})


def _with_inferred_shapes(model):
    """ONNX's own inference, for tensors that ONNX Runtime folded away before we saw them."""
    from onnx import shape_inference

    from ..models.rewrite import sort_nodes

    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception:  # a model that it cannot read, or one of more than 2 GiB: drawn without
        inferred = model
    sort_nodes(inferred.graph)
    return inferred


def type_text(value_info) -> str:
    """Of an onnx.ValueInfoProto."""
    if not value_info.type.HasField("tensor_type"):
        return (value_info.type.WhichOneof("value") or "").removesuffix("_type")
    tensor = value_info.type.tensor_type
    name = _type_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return name
    sizes = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    return f"{name}[{','.join(sizes)}]"


def _type_name(number: int) -> str:
    return _TYPES[number] if number < len(_TYPES) else f"type {number}"


class _Reader:
    def __init__(self, report: Report, functions: set[str]):
        self._verdicts = {}  # of all graphs together
        self._verdicts_of_graph: dict[str, dict] = {}
        self._types: dict[str, str] = {}
        self._functions = functions
        edges = {part["name"]: i for i, part in enumerate(report.partitions)}
        for graph in report.graphs:
            verdicts = dict(_verdicts(graph, edges))
            self._verdicts_of_graph.setdefault(graph.get("name", ""), {}).update(verdicts)
            self._verdicts.update(verdicts)
            for name, exact in graph.get("tensors", {}).items():
                text = _UNNAMED_SIZE.sub("?", exact)
                # Bodies may use one name for different tensors: then the model alone tells.
                same = self._types.setdefault(name, text) == text
                self._types[name] = text if same else ""

    def read(self, graph, title: str, outer: Mapping[str, Tensor]) -> DrawnGraph:
        drawn = DrawnGraph(title)
        types = {value.name: type_text(value) for value in graph.value_info}
        for name, text in self._types.items():
            if text and ("?" not in text or name not in types):
                types[name] = text
        declared = [*graph.input, *graph.output]
        types.update((value.name, type_text(value)) for value in declared if type_text(value))

        def tensor(name: str, origin: str = "", source: Box | None = None) -> Tensor:
            made = Tensor(name, types.get(name, ""), origin, source)
            if source:
                source.outputs.append(made)
            drawn.tensors[name] = made
            return made

        constants = {constant.name: constant for constant in graph.initializer}
        for constant in constants.values():
            sizes = ",".join(map(str, constant.dims))
            types[constant.name] = f"{_type_name(constant.data_type)}[{sizes}]"
            tensor(constant.name, "constant")
        for value in graph.input:
            if value.name not in constants:
                drawn.boxes.append(Box(value.name, "input", Verdict(TERMINAL)))
                tensor(value.name, source=drawn.boxes[-1])
        outputs = {value.name for value in graph.output}
        for node in graph.node:
            # Constants are told where they are read: as boxes they would outnumber the nodes.
            if node.op_type == "Constant" and not outputs & set(node.output):
                tensor(node.output[0], "constant")
                continue
            box = self._box(node, graph.name)
            for name in filter(None, node.input):
                read = drawn.tensors.get(name) or outer.get(name) or tensor(name, "unknown")
                _connect(read, box)
            for name in filter(None, node.output):
                tensor(name, source=box)
            box.bodies = list(self._bodies(node, box, ChainMap(drawn.tensors, outer)))
            box.captured = _captured(box)
            drawn.boxes.append(box)
        for value in graph.output:
            box = Box(value.name, "output", Verdict(TERMINAL))
            read = drawn.tensors.get(value.name) or outer.get(value.name)
            _connect(read or tensor(value.name, "unknown"), box)
            drawn.boxes.append(box)
        return drawn

    def _bodies(self, node, box: Box, outer: Mapping[str, Tensor]) -> Iterator[DrawnGraph]:
        for attribute in node.attribute:
            for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield self.read(graph, f"{attribute.name} of {box.op} '{box.name}'", outer)

    def _box(self, node, graph_name: str) -> Box:
        op = (
            f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        )
        # As the provider calls a node without a name.
        name = node.name or f"{op}({next(filter(None, node.output), '')})"
        box = Box(name, node.op_type, self._verdict(name, graph_name))
        if box.verdict.kind == REWRITTEN and node.op_type in self._functions:
            box.verdict.note = "a function of the model: ONNX Runtime put its nodes in this place"
        if node.domain:
            box.attributes.append(("domain", node.domain))
        box.attributes += [(a.name, _attribute_text(a)) for a in node.attribute]
        return box

    def _verdict(self, name: str, graph_name: str) -> Verdict:
        for verdicts in (self._verdicts_of_graph.get(graph_name, {}), self._verdicts):
            if name in verdicts:
                return verdicts[name]
            # ONNX Runtime renames a node when it merges others into it: "x" becomes "x/Fusion".
            longer = [known for known in verdicts if known.startswith((name + "/", name + "_"))]
            if longer:
                return verdicts[min(longer, key=len)]
        return Verdict(REWRITTEN, note=meaning_of(REWRITTEN))


def _captured(box: Box) -> list[Tensor]:
    bodies = [graph for body in box.bodies for graph in body.with_bodies()]
    inner = {tensor for graph in bodies for tensor in graph.tensors.values()}
    read = [tensor for graph in bodies for reader in graph.boxes for tensor in reader.inputs]
    return [tensor for tensor in dict.fromkeys(read) if tensor not in inner]


def _connect(tensor: Tensor, box: Box) -> None:
    box.inputs.append(tensor)
    if box not in tensor.readers:
        tensor.readers.append(box)


def _verdicts(graph: dict, numbers: dict[str, int]) -> Iterable[tuple[str, Verdict]]:
    for part in graph.get("partitions", []):
        edge = _PARTITION_EDGES[numbers[part["name"]] % len(_PARTITION_EDGES)]
        for name in part.get("nodes", []):
            yield name, Verdict(DISSOLVED, part["name"], edge, meaning_of(DISSOLVED))
        for fusion in part.get("fusions", []):
            kind = fusion_kind(fusion)
            note = (
                f"{kind} {fusion['name']}\n{shortened(readable(fusion.get('problem', '')), 300)}\n"
                f"kernel: {fusion.get('chosen', '')}"
            )
            for name in fusion.get("nodes", []):
                yield name, Verdict(kind, part["name"], edge, note)
    for node in graph.get("left_out", []):
        yield node["node"], Verdict(LEFT_OUT, "", "#6f6f6f", f"left out: {node['reason']}")


def _attribute_text(attribute) -> str:
    from onnx import AttributeProto, helper

    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return "a graph"
    if attribute.type == AttributeProto.TENSOR:
        sizes = ",".join(map(str, attribute.t.dims))
        return f"{_type_name(attribute.t.data_type)}[{sizes}]"
    try:
        value = helper.get_attribute_value(attribute)
    except ValueError:  # a reference to a function's attribute, or none at all
        return "?"
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return shortened(str(value), _MOST_ATTRIBUTE)
