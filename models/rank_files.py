"""A decoder's file for several ranks: the same weights, caches whose heads are counted by ranks.

ONNX Runtime holds callers to the shapes that a file declares. Where the head dim of caches is a
symbol, a rank binds caches of its own heads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import numpy_helper

from .genai_folder import files_beside
from .repair import mended_or_as_it_is
from .rewrite import RewriteError, external_files, graphs_of, load_without_data, move_data_out

MICROSOFT = "com.microsoft"
_HEADS, _LENGTH, _CACHE_DIMS = 1, 2, 4
# Inputs of an op that are caches [batch, heads, length, size], and the outputs that they grow into.
_CACHES: dict[tuple[str, str], dict[int, int]] = {
    (MICROSOFT, "GroupQueryAttention"): {3: 1, 4: 2},
    (MICROSOFT, "MultiHeadAttention"): {6: 1, 7: 2},
    ("", "Attention"): {4: 1, 5: 2},
    ("", "Concat"): {0: 0},
}
# Inputs that are caches of another layout.
_REFUSED: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {
    (MICROSOFT, "PagedAttention"): ((3, 4), "caches in pages are whole on every rank"),
    (MICROSOFT, "Attention"): ((4,), "keys and values are one tensor [2, batch, heads, …]"),
    (MICROSOFT, "SparseAttention"): ((3, 4), "Tenon does not run it"),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): ((5, 6), "Tenon does not run it"),
    (MICROSOFT, "DecoderMaskedSelfAttention"): ((4,), "Tenon does not run it"),
    ("", "TensorScatter"): ((0,), "caches that are written in place are whole on every rank"),
}
# What may read a cache besides: it asks for a size, and heads are not among what exporters ask for.
_ASKS_SIZES = ("Shape",)
_FICLONE = 0x40049409  # of linux/fs.h: a file over the same blocks, on Btrfs, XFS and others


@dataclass
class RankFile:
    """What was written."""

    path: Path
    caches: dict[str, int] = field(default_factory=dict)  # heads that all ranks have together
    outputs: list[str] = field(default_factory=list)
    linked: list[Path] = field(default_factory=list)
    cloned: list[Path] = field(default_factory=list)  # over the same blocks: they take no room
    copied: list[Path] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)  # what contradicted in the model, by sentences

    def as_dict(self) -> dict:
        return {
            "model": str(self.path),
            "bytes": self.path.stat().st_size,
            "caches": self.caches,
            "outputs": self.outputs,
            "linked": [str(path) for path in self.linked],
            "cloned": [str(path) for path in self.cloned],
            "written": [str(path) for path in self.copied],
            "mended": self.mended,
        }


def symbol_of(heads: int) -> str:
    """The head dim of caches that have this many in all."""
    return f"kv_heads_of_{heads}"


def write_rank_file(source: Path, folder: Path, link: bool = False) -> RankFile:
    """A model of the same name in a folder of its own, with the weight files of `source`.

    They are cloned where the file system can, else copied. With `link` they get a second name
    (hard links): the package onnx then reads neither folder, since it takes no file of two names.
    """
    model, mended = mended_or_as_it_is(load_without_data(source))
    caches, outputs = free_heads(model)
    _check_folder(folder)
    made = RankFile(folder / source.name, caches, outputs, mended=mended)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tenon-", dir=folder.parent) as work:
        written = Path(work) / folder.name
        written.mkdir()
        for name in [*external_files(model), *files_beside(source)]:
            (written / name).parent.mkdir(parents=True, exist_ok=True)
            if link:
                _link(source.parent / name, written / name)
                made.linked.append(folder / name)
            elif _clone(source.parent / name, written / name):
                made.cloned.append(folder / name)
            else:
                shutil.copyfile(source.parent / name, written / name)
                made.copied.append(folder / name)
        if data := _move_inner_data_out(model, source, written):
            made.copied.append(folder / data)
        (written / source.name).write_bytes(model.SerializeToString())
        if folder.exists():
            folder.rmdir()
        written.replace(folder)
    return made


def free_heads(model: onnx.ModelProto) -> tuple[dict[str, int], list[str]]:
    """Makes the head dim of all caches a symbol; names and heads of inputs, names of outputs."""
    inputs = {value.name: value for value in model.graph.input}
    results = {value.name: value for value in model.graph.output}
    weights = {tensor.name for tensor in model.graph.initializer}
    pairs = {
        past: present
        for past, present in _cache_pairs(model, inputs.keys() - weights, results)
        if _dims(inputs[past]) == _CACHE_DIMS
    }
    if not pairs:
        ops = ", ".join(sorted(op for _, op in _CACHES))
        raise RewriteError(
            "the model has no caches of keys and values: none of its inputs [batch, heads, length, "
            f"size] is the past of an attention ({ops}). Ranks can open the file as it is"
        )
    counts = {past: _head_count(inputs[past]) for past in pairs}
    _check_readers(model, counts)
    taken = _symbols(model)
    for past, heads in counts.items():
        symbol = symbol_of(heads)
        if symbol in taken:
            raise RewriteError(f"the model has a size named '{symbol}' already")
        _dim(inputs[past]).dim_param = symbol
        present = results.get(pairs[past])
        if present is not None and _dims(present) == _CACHE_DIMS:
            _dim(present).dim_param = symbol
    return counts, [name for name in pairs.values() if name in results]


def _cache_pairs(model: onnx.ModelProto, inputs, results) -> Iterator[tuple[str, str]]:
    """Inputs of the graph that an attention takes as its past, each with what it grows into."""
    aliases = {
        node.input[0]: node.output[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.output[0] in results
    }
    for node in model.graph.node:
        key = (node.domain if node.domain != "ai.onnx" else "", node.op_type)
        slots, reason = _REFUSED.get(key, ((), ""))
        for slot in slots:
            if slot < len(node.input) and node.input[slot] in inputs:
                raise RewriteError(
                    f"'{node.input[slot]}' is a cache of {node.op_type} '{node.name}': {reason}"
                )
        for slot, output in _CACHES.get(key, {}).items():
            if slot < len(node.input) and node.input[slot] in inputs and _grows(node):
                present = node.output[output] if output < len(node.output) else ""
                yield node.input[slot], aliases.get(present, present)


def _grows(node: onnx.NodeProto) -> bool:
    """Joining along the keys makes a cache longer; along other dims it does not."""
    if node.op_type != "Concat":
        return True
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return axis in (_LENGTH, _LENGTH - _CACHE_DIMS)


def _dims(value: onnx.ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _dim(value: onnx.ValueInfoProto):
    return value.type.tensor_type.shape.dim[_HEADS]


def _head_count(cache: onnx.ValueInfoProto) -> int:
    heads = _dim(cache)
    if heads.HasField("dim_value"):
        return heads.dim_value
    name = heads.dim_param
    raise RewriteError(
        f"the heads of '{cache.name}' are the symbol '{name}' already: ranks can open the file as "
        "it is"
        if name
        else f"'{cache.name}' does not say how many heads it has: export the model with that number"
    )


def _check_readers(model: onnx.ModelProto, caches) -> None:
    """Nothing else may count on the number of heads."""
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            known = slot in _CACHES.get((node.domain, node.op_type), {})
            if name in caches and not known and node.op_type not in _ASKS_SIZES:
                raise RewriteError(
                    f"cache '{name}' is also read by {node.op_type} '{node.name}', which may need "
                    "all heads"
                )


def _symbols(model: onnx.ModelProto) -> set[str]:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim}


def _check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RewriteError(f"{folder} is there already: give --out a folder that is new or empty")


def _clone(source: Path, target: Path) -> bool:
    """Whether the file system made a file over the same blocks; what either changes is its own."""
    with open(source, "rb") as original, open(target, "wb") as made:
        try:
            fcntl.ioctl(made, _FICLONE, original.fileno())
        except OSError:
            return False
    return True


def _link(source: Path, target: Path) -> None:
    """Links to follow would not do: ONNX Runtime reads no weights outside of a model's folder."""
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        raise RewriteError(
            f"{source} cannot get a second name there: {error.strerror}. Give --out a folder on "
            "the same file system, or leave --link out: the weights are then copied"
        ) from error


def _move_inner_data_out(model: onnx.ModelProto, source: Path, folder: Path) -> str:
    """Weights inside of the model go into a file beside it, once; its name, if there is one."""
    inner = [
        tensor
        for graph in graphs_of(model.graph)
        for tensor in graph.initializer
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    ]
    for tensor in inner:
        if not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    name = source.name + ".data"
    while (folder / name).exists():
        name = name.removesuffix(".data") + ".more.data"
    if not move_data_out(inner, name, folder / name, source.parent):
        (folder / name).unlink()
        return ""
    return name
