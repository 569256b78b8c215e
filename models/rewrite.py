"""Graph surgery: raise the opset, change the float type of activations, save big files."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from .builder import ir_version_for

ACTIVATIONS = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}

# Below this size a tensor stays in the model file even when others move out.
_EXTERNAL_THRESHOLD = 1024
# Protocol Buffers stop at 2 GiB; leave room for the graph itself.
_LARGEST_SINGLE_FILE = 1_800_000_000

# Same attributes, other meaning: version_converter must rewrite these.
_MEANING_CHANGED = {"GroupNormalization": 21}
# Took their axes as an attribute until opset 17.
_REDUCTIONS = {
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
}


class RewriteError(ValueError):
    """The model cannot be brought into the asked form; the text says why and what helps."""


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and, depth first, every graph nested in its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_of(inner)


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Producers before readers, as ONNX asks; some converters append their casts at the end.

    ONNX Runtime takes such models. What stands in order keeps its place.
    """
    for inner in graphs_of(graph):
        order = _sorted(inner)
        if order != sorted(order):
            nodes = [_copied(inner.node[index]) for index in order]
            del inner.node[:]
            inner.node.extend(nodes)


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    return made


def _sorted(graph: onnx.GraphProto) -> list[int]:
    """Places of the nodes, the first that can run first; as they stand where they form a ring."""
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    readers, waits = [[] for _ in graph.node], []
    for index, node in enumerate(graph.node):
        bodies = [inner for body in subgraphs(node) for inner in graphs_of(body)]
        names = [*node.input, *(name for b in bodies for n in b.node for name in n.input)]
        before = {producers[name] for name in names if name in producers} - {index}
        waits.append(len(before))
        for producer in before:
            readers[producer].append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(graph.node) else list(range(len(graph.node)))


def default_opset(model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return entry.version
    return 1


def raise_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same model at `opset` or above; never lowers one."""
    current = default_opset(model)
    if current < opset:
        _modernise(model, current, opset)
        obstacle = _first_incompatible(model, current, opset)
        if obstacle is None:
            for entry in model.opset_import:
                if entry.domain in ("", "ai.onnx"):
                    entry.version = opset
        else:
            model = _convert_version(model, opset, obstacle)
    model.ir_version = max(model.ir_version, ir_version_for(opset))
    return model


def _modernise(model: onnx.ModelProto, current: int, opset: int) -> None:
    """Rewrites the two changes of opset 18 that nearly every older export meets."""
    if not 13 <= current < 18 <= opset:
        return
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.op_type in _REDUCTIONS and len(node.input) == 1:
                _move_axes_to_input(graph, node)
            elif node.op_type == "Split" and len(node.input) == 1:
                node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))


def _move_axes_to_input(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    for attribute in list(node.attribute):
        if attribute.name == "axes":
            name = f"{node.output[0]}/axes"
            axes = np.asarray(attribute.ints, np.int64)
            graph.initializer.append(numpy_helper.from_array(axes, name))
            node.input.append(name)
            node.attribute.remove(attribute)


def _first_incompatible(model: onnx.ModelProto, current: int, opset: int) -> str | None:
    """The first node whose meaning could change by only raising the number."""
    if current < 13:
        return f"opset {current}"
    for graph in graphs_of(model.graph):
        for node in graph.node:
            if node.domain not in ("", "ai.onnx"):
                continue
            reason = _why_incompatible(node, current, opset)
            if reason:
                return f"{node.name or node.op_type} ({node.op_type}): {reason}"
    return None


def _why_incompatible(node: onnx.NodeProto, current: int, opset: int) -> str | None:
    if current < _MEANING_CHANGED.get(node.op_type, 0) <= opset:
        return f"its meaning changed in opset {_MEANING_CHANGED[node.op_type]}"
    if not onnx.defs.has(node.op_type, ""):
        return None  # ONNX Runtime's own, such as SimplifiedLayerNormalization: it has one version
    try:
        new = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return f"it has no schema in opset {opset}"
    try:
        old = onnx.defs.get_schema(node.op_type, current, "")
    except onnx.defs.SchemaError:
        return None  # the file calls it before it was there: it can only mean this one
    if new.deprecated:
        return "it is deprecated"
    if old.since_version == new.since_version:
        return None
    given = {a.name for a in node.attribute}
    if lost := given - set(new.attributes):
        return f"attribute {sorted(lost)[0]} is gone"
    for name, attribute in old.attributes.items():
        if name in given:
            continue
        if name not in new.attributes:
            continue
        if attribute.default_value != new.attributes[name].default_value:
            return f"attribute {name} has another default"
    if not new.min_input <= len(node.input) <= new.max_input:
        return "it takes another number of inputs"
    return None


def _convert_version(model: onnx.ModelProto, opset: int, obstacle: str) -> onnx.ModelProto:
    if any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        raise RewriteError(
            f"opset {default_opset(model)} must become {opset}, but {obstacle}, and the model "
            "keeps its weights in another file. Export it again with a newer opset."
        )
    try:
        return onnx.version_converter.convert_version(model, opset)
    except Exception as error:
        raise RewriteError(
            f"opset {default_opset(model)} cannot be raised to {opset} ({obstacle}): {error}. "
            "Export the model again with a newer opset."
        ) from error


# Inputs that stay float32 whatever the activations are.
_FLOAT32_INPUTS = {"Resize": (1, 2), "Upsample": (1,)}
# Attributes that name the type of an output.
_TYPE_ATTRIBUTES = {
    "Cast": "to",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
    "EyeLike": "dtype",
}


def convert_activations(model: onnx.ModelProto, to: int, keep: set[str]) -> None:
    """Turns float32 activations and constants into `to`; graph inputs and outputs stay float32.

    `keep` names tensors and nodes that must not change: the quantiser's own scales and casts.
    """
    kept = set(keep)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            for index in _FLOAT32_INPUTS.get(node.op_type, ()):
                if index < len(node.input):
                    kept.add(node.input[index])
    for graph in graphs_of(model.graph):
        _convert_constants(graph, to, kept)
        del graph.value_info[:]
        if graph is not model.graph:
            for value in [*graph.input, *graph.output]:
                if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                    value.type.tensor_type.elem_type = to
    _cast_at_the_border(model.graph, to)
    _check_types(model, to)


def _convert_constants(graph: onnx.GraphProto, to: int, kept: set[str]) -> None:
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in kept:
            tensor.CopyFrom(_as_type(tensor, to))
    for node in graph.node:
        if node.name in kept or (node.output and node.output[0] in kept):
            continue
        type_attribute = _TYPE_ATTRIBUTES.get(node.op_type)
        for attribute in node.attribute:
            if attribute.name == type_attribute and attribute.i == TensorProto.FLOAT:
                attribute.i = to
            holds_tensor = attribute.type == AttributeProto.TENSOR
            if holds_tensor and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(_as_type(attribute.t, to))


def _as_type(tensor: onnx.TensorProto, to: int) -> onnx.TensorProto:
    """Rounds to the smaller type; what would overflow or vanish stops at its finite limits."""
    target = helper.tensor_dtype_to_np_dtype(to)
    limits = ml_dtypes.finfo(target)
    values = numpy_helper.to_array(tensor)
    finite = np.isfinite(values)
    clipped = np.clip(values, float(limits.min), float(limits.max))
    smallest = np.float32(limits.smallest_subnormal)
    vanishing = (np.abs(clipped) < smallest) & (clipped != 0)
    clipped = np.where(vanishing, np.copysign(smallest, clipped), clipped)
    rounded = np.where(finite, clipped, values).astype(target)
    return numpy_helper.from_array(rounded.reshape(values.shape), tensor.name)


def _cast_at_the_border(graph: onnx.GraphProto, to: int) -> None:
    constants = {t.name for t in graph.initializer}
    first, last = [], []
    for value in graph.input:
        if value.name in constants or value.type.tensor_type.elem_type != TensorProto.FLOAT:
            continue
        inner = f"{value.name}/as_activations"
        _rename_uses(graph, value.name, inner)
        first.append(helper.make_node("Cast", [value.name], [inner], f"{inner}/cast", to=to))
    for value in graph.output:
        if value.type.tensor_type.elem_type != TensorProto.FLOAT:
            continue
        inner = f"{value.name}/as_activations"
        for node in graph.node:
            for index, name in enumerate(node.output):
                if name == value.name:
                    node.output[index] = inner
        _rename_uses(graph, value.name, inner)
        last.append(
            helper.make_node("Cast", [inner], [value.name], f"{inner}/cast", to=TensorProto.FLOAT)
        )
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)


def _rename_uses(graph: onnx.GraphProto, old: str, new: str) -> None:
    for inner in graphs_of(graph):
        for node in inner.node:
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new


def _check_types(model: onnx.ModelProto, to: int) -> None:
    if any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer):
        return
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        name = TensorProto.DataType.Name(to).lower()
        raise RewriteError(
            f"the model cannot run with {name} activations: {error}. Use --activations f32."
        ) from error


def load_without_data(path: Path) -> onnx.ModelProto:
    """The graph alone; weights in other files are read one at a time, when they are needed."""
    if not path.exists():
        raise RewriteError(f"there is no model at {path}")
    if path.is_dir():
        raise RewriteError(f"{path} is a folder; give the model file in it")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise RewriteError(f"{path} cannot be read: {error.strerror}") from error
    except Exception as error:
        raise RewriteError(f"{path} is not an ONNX model: {error}") from error
    if not model.graph.node:
        raise RewriteError(f"{path} holds no ONNX graph with nodes in it")
    for location in external_files(model):
        if not (path.parent / location).is_file():
            raise RewriteError(
                f"{path} keeps weights in {location}, which is not in {path.parent.resolve()}"
            )
    return model


def external_files(model: onnx.ModelProto) -> list[str]:
    """Names of the files, relative to the model's, that hold its weights."""
    return sorted(
        {
            entry.value
            for graph in graphs_of(model.graph)
            for tensor in graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )


def bytes_on_disk(path: Path) -> int:
    """Of a model file and the files that hold its weights."""
    beside = external_files(load_without_data(path))
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in beside)


def read_tensor(tensor: onnx.TensorProto, folder: Path) -> np.ndarray:
    try:
        return numpy_helper.to_array(tensor, str(folder))
    except Exception as error:
        raise RewriteError(f"weight '{tensor.name}' cannot be read: {error}") from error


def check_target(path: Path) -> None:
    """Before any work: whether a model of that name could be written at all."""
    if path.is_dir():
        raise RewriteError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise RewriteError(f"there is no folder {path.parent} to write {path.name} in")


def save_model(
    model: onnx.ModelProto,
    path: Path,
    source_folder: Path,
    check: Callable[[Path], None] | None = None,
    keep_data: bool = False,
) -> list[Path]:
    """Writes the model, with its weights beside it when one file cannot hold them.

    Both files are written in a folder of their own, seen by `check` and then moved: neither a
    half-written model is left, nor one that fails, and a model of that name stays until then.
    `keep_data`: what lies in other files of the same folder is not copied.
    """
    check_target(path)
    tensors = [t for graph in graphs_of(model.graph) for t in graph.initializer]
    beside = path.parent.resolve() == source_folder.resolve()
    external = any(t.data_location == TensorProto.EXTERNAL for t in tensors)
    external = external and not (keep_data and beside)
    external = external or sum(len(t.raw_data) for t in tensors) > _LARGEST_SINGLE_FILE
    if external and beside and path.name + ".data" in external_files(model):
        raise RewriteError(
            f"{path}.data holds the model's own weights and would be replaced: give another name"
        )
    names = [path.name + ".data", path.name] if external else [path.name]
    try:
        with tempfile.TemporaryDirectory(prefix=".tenon-", dir=path.parent) as folder:
            if external:
                move_data_out(tensors, names[0], Path(folder) / names[0], source_folder)
            (Path(folder) / path.name).write_bytes(model.SerializeToString())
            if check:
                check(Path(folder) / path.name)
            for name in names:
                (Path(folder) / name).replace(path.with_name(name))
    except OSError as error:
        raise RewriteError(f"{path} cannot be written: {error.strerror or error}") from error
    return [path.with_name(name) for name in reversed(names)]


def move_data_out(tensors, location: str, target: Path, source_folder: Path) -> int:
    """Writes what is large into a file of its own; how many tensors that was."""
    moved = 0
    with open(target, "wb") as file:
        for tensor in tensors:
            outside = tensor.data_location == TensorProto.EXTERNAL
            if not outside and len(tensor.raw_data) < _EXTERNAL_THRESHOLD:
                continue
            loaded = tensor
            if outside:
                array = read_tensor(tensor, source_folder)
                loaded = numpy_helper.from_array(array, tensor.name)
            file.write(b"\0" * (-file.tell() % 4096))
            offset = file.tell()
            file.write(loaded.raw_data)
            size = len(loaded.raw_data)
            tensor.ClearField("raw_data")
            onnx.external_data_helper.set_external_data(_emptied(tensor), location, offset, size)
            moved += 1
    return moved


def _emptied(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """set_external_data insists on raw_data being present before it moves it out."""
    tensor.raw_data = b""
    return tensor
