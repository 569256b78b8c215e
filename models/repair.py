"""Mends models that contradict their own types, as TensorRT reads them and ONNX Runtime does not.

Types are computed from inputs and constants on, node by node. Where operands that must be of one
type are not, the narrower ones are converted to the wider type; a model's outputs stay what they
are declared to be; what is declared otherwise between nodes is dropped.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.inliner
from onnx import TensorProto, helper

from .op_signatures import (
    BYTE,
    ONNX_DOMAINS,
    TRT,
    Signature,
    element_of,
    first_opset,
    is_known_domain,
    opset_of,
    output_types,
    short,
    signature_of,
    text_of,
    type_of,
)
from .rewrite import (
    RewriteError,
    check_target,
    default_opset,
    external_files,
    graphs_of,
    load_without_data,
    raise_opset,
    save_model,
    sort_nodes,
    subgraphs,
)

# Each type and those that hold all of its values, the nearest first.
_WIDER = {
    "tensor(float16)": ("tensor(float)", "tensor(double)"),
    "tensor(bfloat16)": ("tensor(float)", "tensor(double)"),
    "tensor(float)": ("tensor(double)",),
    "tensor(double)": (),
    "tensor(int32)": ("tensor(int64)",),
    "tensor(int64)": (),
}
_FLOATS = ("tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)")
_FP8 = "tensor(float8"
_MOST_ROUNDS = 8  # each looks at what the one before it made; two do, as a rule


class ContradictionError(RewriteError):
    """The model contradicts itself in a way that no conversion mends; the text says where."""


def repaired(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The model with its contradictions mended, and what was done, a sentence each.

    Weights stay where they are and need not be loaded. The model given is changed where something
    is told, else at most its nodes' order.
    """
    newest = onnx.defs.onnx_opset_version()
    if default_opset(model) > newest:
        raise RewriteError(
            f"the model is of ONNX's opset {default_opset(model)}, and the package onnx here knows "
            f"opsets up to {newest}: pip install --upgrade onnx"
        )
    notes = _Notes()
    given, functions = model, len(model.functions)
    if functions:  # types inside of one are those of its caller: they are looked at where they are
        model = onnx.inliner.inline_local_functions(model)
    _move_to_tensorrt(model, notes)
    _import_domains(model, notes)
    sort_nodes(model.graph)
    for _ in range(_MOST_ROUNDS):
        before, mender = notes.count, _Mender(model, notes)
        mender.mend()
        if mender.needed:
            model = _raised(model, mender.needed, notes)
        if notes.count == before:
            break
    texts = notes.texts()
    if texts and functions:
        texts.append(f"{functions} local functions were written out where they are called")
    return (model if texts else given), texts


def mended_or_as_it_is(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """As repaired; for those who write models, and leave it to a session to refuse them."""
    try:
        return repaired(model)
    except RewriteError:
        return model, []


@dataclass
class Repair:
    """What was mended, and the files written: none where nothing had to be."""

    mended: list[str]
    files: list[Path] = field(default_factory=list)
    shared: list[Path] = field(default_factory=list)  # weights that both models read

    def as_dict(self) -> dict:
        return {
            "mended": self.mended,
            "files": [str(file) for file in self.files],
            "shared": [str(file) for file in self.shared],
        }


def repair_file(source: Path, target: Path) -> Repair:
    """Writes the mended model. Weights in files beside it stay there; elsewhere they are copied."""
    check_target(target)
    model, notes = repaired(load_without_data(source))
    if not notes:
        return Repair([])
    files = save_model(model, target, source.parent, keep_data=True)
    shared = [target.parent / name for name in external_files(model)]
    return Repair(notes, files, [file for file in shared if file not in files])


def _move_to_tensorrt(model: onnx.ModelProto, notes: _Notes) -> None:
    """Some of Model Optimizer's calibrations write TensorRT's operators into ONNX's own domain."""
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain in ONNX_DOMAINS and node.op_type.startswith("TRT_"):
                node.domain = TRT
                notes.add("operators were moved into TensorRT's domain", f"{node.op_type}")


def _import_domains(model: onnx.ModelProto, notes: _Notes) -> None:
    known = {entry.domain for entry in model.opset_import}
    known |= {function.domain for function in model.functions}
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain not in known and not is_known_domain(node.domain):
                known.add(node.domain)
                model.opset_import.add(domain=node.domain, version=1)
                notes.add("the import of an operator domain was added", f"'{node.domain}'")


def _raised(model: onnx.ModelProto, needed: dict[str, int], notes: _Notes) -> onnx.ModelProto:
    """The model in the opset that all of these ask for."""
    current = default_opset(model)
    model = raise_opset(model, max(needed.values()))
    for why in needed:
        notes.add(f"ONNX's opset was raised from {current} to {default_opset(model)}", why)
    return model


@dataclass
class _Notes:
    """What was done, and the places: one sentence for all places of a kind."""

    places: dict[str, list[str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.places.values()))

    def add(self, what: str, place: str) -> None:
        self.places.setdefault(what, []).append(place)

    def texts(self) -> list[str]:
        return [f"{what}: {_listed(places)}" for what, places in self.places.items()]


def _listed(places: list[str], most: int = 2) -> str:
    more = len(places) - most
    return ", ".join(places[:most]) + (f" and {more} more" if more > 0 else "")


@dataclass
class _Graph:
    """A graph while its nodes are written anew."""

    proto: onnx.GraphProto
    types: ChainMap  # of values, by name; a value of unknown type is absent
    casts: ChainMap  # (value, type) -> the value converted
    declared: dict[str, str]
    constants: dict[str, onnx.TensorProto]
    nodes: list[onnx.NodeProto] = field(default_factory=list)


class _Mender:
    def __init__(self, model: onnx.ModelProto, notes: _Notes):
        self.model = model
        self.notes = notes
        self.imports = {entry.domain: entry.version for entry in model.opset_import}
        self.names = _names_of(model.graph)
        self.needed: dict[str, int] = {}  # why -> the first opset in which that is so

    def mend(self) -> None:
        graph = self._begin(self.model.graph, ChainMap(), ChainMap())
        self._write(graph)
        for value in self.model.graph.output:
            self._keep_declared(graph, value)
        self._finish(graph)

    def _begin(self, proto: onnx.GraphProto, types: ChainMap, casts: ChainMap) -> _Graph:
        constants = {tensor.name: tensor for tensor in proto.initializer}
        values = [*proto.value_info, *proto.output]
        declared = {value.name: text_of(value.type) for value in values}
        graph = _Graph(proto, types.new_child(), casts.new_child(), declared, constants)
        for value in proto.input:
            if text := text_of(value.type):
                graph.types[value.name] = text
        for tensor in proto.sparse_initializer:
            graph.types[tensor.values.name] = type_of(tensor.values.data_type)
        for name, tensor in constants.items():
            graph.types[name] = type_of(tensor.data_type)
        for value in proto.input:
            self._follow_constant(value, constants.get(value.name))
        return graph

    def _follow_constant(self, value, constant: onnx.TensorProto | None) -> None:
        """An initialiser that is also listed as an input is what its data are."""
        declared = text_of(value.type)
        if constant is not None and declared and declared != type_of(constant.data_type):
            _declare(value, type_of(constant.data_type))
            self.notes.add(
                "declarations now follow the initialisers' data",
                f"'{value.name}' ({short(declared)}, is {short(type_of(constant.data_type))})",
            )

    def _write(self, graph: _Graph) -> None:
        for node in graph.proto.node:
            self._mend_node(graph, node)
            graph.nodes.append(node)

    def _finish(self, graph: _Graph) -> None:
        """Puts the nodes into the graph, and drops what is declared otherwise than it is."""
        if len(graph.nodes) != len(graph.proto.node):
            nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.nodes]
            del graph.proto.node[:]
            graph.proto.node.extend(nodes)
        made = {name for node in graph.nodes for name in node.output}
        stale = []
        for index, value in enumerate(graph.proto.value_info):
            if value.name not in made:
                continue
            declared, actual = text_of(value.type), graph.types.get(value.name, "")
            undefined = value.type.HasField("tensor_type") and not declared
            if undefined or (actual and declared and actual != declared):
                stale.append(index)
                self.notes.add(
                    "declared types that nodes contradict were dropped",
                    f"'{value.name}' ({short(declared) or 'undefined'}, is "
                    f"{short(actual) or 'unknown'})",
                )
        for index in reversed(stale):
            del graph.proto.value_info[index]

    def _mend_node(self, graph: _Graph, node: onnx.NodeProto) -> None:
        signature = self._fitting_signature(graph, node)
        types = [""] * len(node.output)
        if signature is not None:
            bound = self._agree(graph, node, signature)
            inputs = {name: graph.types.get(name, "") for name in node.input if name}
            types = output_types(node, signature, bound, inputs)
        if any(True for _ in subgraphs(node)):
            types = self._mend_bodies(graph, node) or types
        for name, type in zip(node.output, types, strict=True):
            if name and (known := type or graph.declared.get(name, "")):
                graph.types[name] = known

    def _fitting_signature(self, graph: _Graph, node: onnx.NodeProto) -> Signature | None:
        """Of the model's opset, or of the first that takes what the node is given."""
        own = signature_of(node, self.imports)
        problem = _misfit(graph, node, own)
        if not problem or node.domain not in ONNX_DOMAINS:
            return own
        current = opset_of("", self.imports)
        later = first_opset(node, current, lambda found: not _misfit(graph, node, found))
        if later is None:
            return own
        self.needed[f"{node.op_type} {problem} from {later} on"] = later
        return signature_of(node, {**self.imports, "": later, "ai.onnx": later})

    def _agree(self, graph: _Graph, node: onnx.NodeProto, signature) -> dict[str, str]:
        """Converts operands where they differ; what the signature's names stand for then."""
        return {
            name: self._agree_on(graph, node, signature, name, indices)
            for name, indices in _readers(graph, node, signature).items()
        }

    def _agree_on(self, graph: _Graph, node, signature, name: str, indices: list[int]) -> str:
        types = {graph.types[node.input[index]] for index in indices}
        wanted = _common(types, lambda type: signature.takes(name, type))
        wanted = wanted or self._as_fp8(graph, node, indices, types)
        if not wanted:
            raise ContradictionError(_cannot(graph, node, signature, name, indices))
        for index in indices:
            if graph.types[node.input[index]] != wanted:
                node.input[index] = self._converted(graph, node, node.input[index], wanted)
        return wanted

    def _as_fp8(self, graph: _Graph, node, indices: list[int], types: set[str]) -> str:
        """Codes that a file declares as bytes beside a zero point in FP8 are FP8."""
        fp8 = {type for type in types if type.startswith(_FP8)}
        stored = [graph.constants.get(node.input[index]) for index in indices]
        codes = [t for t in stored if t is not None and t.data_type == TensorProto.UINT8]
        if (
            len(fp8) != 1
            or types - fp8 != {BYTE}
            or len(codes) != sum(graph.types[node.input[index]] == BYTE for index in indices)
        ):
            return ""
        (wanted,) = fp8
        for tensor in codes:
            tensor.data_type = element_of(wanted)
            graph.types[tensor.name] = wanted
            self.notes.add(f"bytes were read as {short(wanted)}", f"'{tensor.name}'")
        return wanted

    def _converted(self, graph: _Graph, reader, name: str, wanted: str) -> str:
        key = (name, wanted)
        what = f"operands of {reader.op_type} were converted to {short(wanted)}"
        self.notes.add(what, f"'{name}' ({short(graph.types[name])})")
        if key not in graph.casts:
            graph.casts[key] = self._cast(graph, name, wanted)
        return graph.casts[key]

    def _cast(self, graph: _Graph, name: str, wanted: str, to: str = "") -> str:
        to = to or self._new_name(f"{name}_as_{short(wanted)}")
        node_name = self._new_name(f"{name}_to_{short(wanted)}")
        cast = helper.make_node("Cast", [name], [to], node_name, to=element_of(wanted))
        graph.nodes.append(cast)
        graph.types[to] = wanted
        return to

    def _new_name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.names:
            name, count = f"{wanted}_{count}", count + 1
        self.names.add(name)
        return name

    def _keep_declared(self, graph: _Graph, value: onnx.ValueInfoProto) -> None:
        """Callers rely on what an output is declared to be."""
        declared, actual = text_of(value.type), graph.types.get(value.name, "")
        if element_of(actual) is None or declared == actual:
            return
        if not declared:
            if value.type.HasField("tensor_type"):  # with an element type that is none
                _declare(value, actual)
                self.notes.add("outputs without a type got theirs", f"'{value.name}'")
            return
        if element_of(declared) is None:  # an optional of a tensor
            return
        both_floats = declared in _FLOATS and actual in _FLOATS
        if not both_floats and declared not in _WIDER.get(actual, ()):
            raise ContradictionError(
                f"output '{value.name}' is declared as {short(declared)} and computed as "
                f"{short(actual)}, and a conversion would change it: export the model again"
            )
        self._convert_output(graph, value, declared)
        self.notes.add(
            f"outputs were converted to {short(declared)}, as they are declared",
            f"'{value.name}' ({short(actual)})",
        )

    def _convert_output(self, graph: _Graph, value: onnx.ValueInfoProto, wanted: str) -> None:
        """The value gets another name, and the output is what it is converted to."""
        made = [n for n in graph.nodes if value.name in n.output]
        if not made:
            raise ContradictionError(
                f"'{value.name}' is {short(graph.types[value.name])}, and as an output it is "
                f"declared as {short(wanted)}: export the model again"
            )
        inner = self._new_name(f"{value.name}_as_{short(graph.types[value.name])}")
        graph.types[inner] = graph.types[value.name]
        for node in graph.nodes:
            _rename(node, value.name, inner)
        self._cast(graph, inner, wanted, to=value.name)

    def _mend_bodies(self, graph: _Graph, node: onnx.NodeProto) -> list[str] | None:
        """Types of the node's outputs, as its bodies have them; None: they tell nothing."""
        bodies = list(subgraphs(node))
        if node.domain in ONNX_DOMAINS and node.op_type == "If":
            return self._mend_branches(graph, node, bodies)
        if node.domain in ONNX_DOMAINS and node.op_type in ("Loop", "Scan") and len(bodies) == 1:
            return self._mend_loop(graph, node, bodies[0])
        for body in bodies:
            self._mend_body(graph, body)
        return None

    def _mend_body(self, around: _Graph, proto: onnx.GraphProto, entering=()) -> _Graph:
        """`entering`: types of the body's inputs, by name."""
        body = self._begin(proto, around.types, around.casts)
        body.types.update({name: type for name, type in dict(entering).items() if type})
        self._write(body)
        return body

    def _end_body(self, body: _Graph, wanted: Iterable[str]) -> None:
        """Its results become what the node around it gives."""
        for value, type in zip(body.proto.output, wanted, strict=False):
            actual = body.types.get(value.name, "")
            if actual != type and None not in map(element_of, (actual, type)):
                self._convert_output(body, value, type)
                what = f"results of bodies were converted to {short(type)}"
                self.notes.add(what, f"'{value.name}' ({short(actual)})")
            if type and (declared := text_of(value.type)) != type and declared:
                _declare(value, type)
        self._finish(body)

    def _mend_branches(self, graph: _Graph, node, protos: list) -> list[str]:
        bodies = [self._mend_body(graph, proto) for proto in protos]
        results = []
        for values in zip(*(body.proto.output for body in bodies), strict=False):
            pairs = zip(bodies, values, strict=True)
            types = {body.types.get(value.name, "") for body, value in pairs} - {""}
            results.append(_common(types, lambda type: True) if types else "")
            if types and not results[-1]:
                said = " and ".join(sorted(map(short, types)))
                raise ContradictionError(
                    f"{_said(node)}: its branches give {said} for '{values[0].name}', and nothing "
                    "converts between them without loss"
                )
        for body in bodies:
            self._end_body(body, results)
        return _padded(results, len(node.output))

    def _mend_loop(self, graph: _Graph, node: onnx.NodeProto, proto) -> list[str]:
        """Loop: iteration, condition, states -> condition, states, results of all iterations.

        Scan: states, slices -> states, results.
        """
        first = 2 if node.op_type == "Loop" else 0
        slices = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
        states = len(node.input) - slices - first
        entering = {
            proto.input[index].name: self._match_state(graph, node, index, proto.input[index])
            for index in range(first, min(len(node.input), len(proto.input)))
        }
        body = self._mend_body(graph, proto, entering)
        kept = proto.input[first : first + states]
        wanted = [body.types.get(value.name, "") for value in kept]
        before = 1 if node.op_type == "Loop" else 0
        rest = proto.output[before + states :]
        computed = [body.types.get(value.name, "") for value in rest]
        self._end_body(body, ["tensor(bool)"] * before + wanted + computed)
        return _padded([*wanted, *computed], len(node.output))

    def _match_state(self, graph: _Graph, node, index: int, value: onnx.ValueInfoProto) -> str:
        """What enters a body and what the body says of it become one type, the wider."""
        given, declared = graph.types.get(node.input[index], ""), text_of(value.type)
        if not given or not declared or given == declared:
            return declared or given
        wanted = _common({given, declared}, lambda type: True)
        if not wanted:
            raise ContradictionError(
                f"{_said(node)}: '{node.input[index]}' is {short(given)} and enters its body as "
                f"{short(declared)}, and nothing converts between them without loss"
            )
        if given != wanted:
            node.input[index] = self._converted(graph, node, node.input[index], wanted)
        if declared != wanted:
            what = "declared types of values that enter bodies now follow what enters"
            self.notes.add(what, f"'{value.name}' ({short(declared)}, is {short(wanted)})")
        _declare(value, wanted)
        return wanted


def _padded(types: list[str], count: int) -> list[str]:
    return (types + [""] * count)[:count]


def _names_of(graph: onnx.GraphProto) -> set[str]:
    names = set()
    for inner in graphs_of(graph):
        names.update(value.name for value in (*inner.input, *inner.output, *inner.initializer))
        for node in inner.node:
            names.update((node.name, *node.input, *node.output))
    return names


def _common(types: set[str], takes) -> str:
    """The narrowest type that holds the values of all these and is taken; empty: there is none."""
    reachable = [
        {type: 0} | {w: i + 1 for i, w in enumerate(_WIDER.get(type, ()))} for type in types
    ]
    shared = set.intersection(*(set(found) for found in reachable))
    fitting = [type for type in shared if takes(type)]
    return min(fitting, key=lambda type: sum(f[type] for f in reachable), default="")


def _readers(graph: _Graph, node: onnx.NodeProto, signature) -> dict[str, list[int]]:
    """By what stands for their type: the inputs that must be of one type, as far as it is known."""
    readers: dict[str, list[int]] = {}
    for index, name in enumerate(node.input):
        parameter = signature.input(index)
        if name and parameter and (parameter.alike or not parameter.repeats):
            if graph.types.get(name):
                readers.setdefault(parameter.type, []).append(index)
    return readers


def _misfit(graph: _Graph, node: onnx.NodeProto, signature: Signature | None) -> str:
    """What the signature has not or takes not, in words that a later opset may follow."""
    if signature is None:
        return "is there"
    given = {attribute.name for attribute in node.attribute}
    if signature.attributes is not None and (unknown := given - signature.attributes):
        return f"has attribute {min(unknown)}"
    for name, indices in _readers(graph, node, signature).items():
        types = {graph.types[node.input[index]] for index in indices}
        if not _common(types, lambda type, name=name: signature.takes(name, type)):
            return f"takes {' and '.join(sorted(map(short, types)))}"
    return ""


def _said(node: onnx.NodeProto) -> str:
    return f"node '{node.name or (node.output[0] if node.output else '')}' ({node.op_type})"


def _cannot(graph: _Graph, node, signature, name: str, indices: list[int]) -> str:
    inputs = ", ".join(
        f"'{node.input[index]}' ({short(graph.types[node.input[index]])})" for index in indices
    )
    if len({graph.types[node.input[index]] for index in indices}) > 1:
        return (
            f"{_said(node)}: {inputs} must be of one type, and nothing converts between them "
            "without loss"
        )
    allowed = ", ".join(sorted(map(short, signature.allowed.get(name, {name}))))
    return f"{_said(node)} takes {allowed}, and is given {inputs}: no opset of ONNX's takes that"


def _declare(value: onnx.ValueInfoProto, type: str) -> None:
    element = element_of(type)
    if element is not None:
        value.type.tensor_type.elem_type = element


def _rename(node: onnx.NodeProto, old: str, new: str) -> None:
    """Also where bodies of the node read it."""
    for names in (node.input, node.output):
        for index, name in enumerate(names):
            if name == old:
                names[index] = new
    for body in subgraphs(node):
        for inner in graphs_of(body):
            for reader in inner.node:
                for index, name in enumerate(reader.input):
                    if name == old:
                        reader.input[index] = new
