"""The quantiser: float weights become codes and scales in ONNX's own standard spelling.

    nvfp4          scale(f8) , global(f32) --DQ--> scale(f32)
                   codes(f4) [N,K] , scale --DQ axis=-1 block 16--> [N,K] --Transpose--> MatMul
    mxfp8, mxfp4   codes [N,K] , scale(e8m0) --DQ axis=-1 block 32--> [N,K] --Transpose--> MatMul
    int4           codes [K,N] , scale [K/32,N] --DQ axis=0 block 32--> [K,N] --> MatMul
    fp8            codes [K,N] , scale [] --DQ--> [K,N] --> MatMul

Gemm takes [N,K] through transB=1 and needs no Transpose.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import rewrite
from .number_formats import FORMATS, NumberFormat, Quantized, quantize, relative_error
from .repair import mended_or_as_it_is

_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# An embedding table below this many elements costs accuracy and saves nothing.
_SMALLEST_TABLE = 1 << 20
# A model with any of these came out of a quantiser.
_QUANTIZED_OPS = (
    "DequantizeLinear",
    "MatMulInteger",
    "ConvInteger",
    "QLinearMatMul",
    "MatMulNBits",
)
_ODD_DEPTH = "is not divisible by the block of"
_MOST_NEAR_NAMES = 3
_MOST_THREADS = 4  # each holds a weight in floats, and what rounding makes of it
Progress = Callable[[int, int, str], None]


@dataclass
class LayerReport:
    """What happened to one weight: quantised with this error, or left with this reason."""

    node: str
    op: str
    weight: str
    shape: tuple[int, ...]
    quantized: bool
    error: float = 0.0
    bytes_before: int = 0
    bytes_after: int = 0
    reason: str = ""


@dataclass
class KeptTable:
    """An embedding table that stays as it is, since nobody asked for it to be quantised."""

    node: str
    weight: str
    bytes: int
    tied: bool = False  # a product reads it too, which is quantised: the file then has both


@dataclass
class QuantizeReport:
    format: str
    activations: str
    layers: list[LayerReport] = field(default_factory=list)
    kept_tables: list[KeptTable] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)  # in the float model, by sentences
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def quantized_layers(self) -> list[LayerReport]:
        return [layer for layer in self.layers if layer.quantized]

    @property
    def advice(self) -> list[str]:
        """What would make the file smaller."""
        told = []
        for table in self.kept_tables:
            what = f"the table '{table.weight}' ({table.bytes / 2**20:.1f} MiB)"
            how = "stays in float beside its quantised copy" if table.tied else "stays as it is"
            told.append(f"{what} {how}: --embeddings quantises it too")
        if odd := [layer for layer in self.layers if _ODD_DEPTH in layer.reason]:
            told.append(
                f"{len(odd)} of {len(self.layers)} weights stay as they are for their K: try "
                "--format fp8, which has no blocks"
            )
        return told

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass
class _Site:
    """A node that reads a constant matrix, and how it reads it."""

    node: onnx.NodeProto
    tensor: onnx.TensorProto
    stored_transposed: bool = False  # the tensor holds [N,K]

    @property
    def key(self) -> tuple[str, bool]:
        """Sites of one key read one quantised weight."""
        return self.tensor.name, self.stored_transposed


def quantize_file(
    source: Path,
    target: Path,
    format: str,
    activations: str | None = None,
    embeddings: bool = False,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
    check: Callable[[Path, QuantizeReport], None] | None = None,
) -> QuantizeReport:
    """Reads a float model, writes the quantised one, tells what was done layer by layer.

    `check` sees the file before it gets its name, and what was done to its layers; where it
    raises, nothing is left behind.
    """
    source, target = Path(source), Path(target)
    rewrite.check_target(target)
    model, mended = mended_or_as_it_is(rewrite.load_without_data(source))
    model, report = quantize_model(
        model, format, activations, embeddings, exclude, progress, folder=source.parent
    )
    if not report.quantized_layers:
        raise NothingQuantizedError(report, _why_nothing(report, model.graph))
    checked = (lambda written: check(written, report)) if check else None
    report.files = [str(p) for p in rewrite.save_model(model, target, source.parent, checked)]
    report.mended = mended
    report.bytes_before = rewrite.bytes_on_disk(source)
    report.bytes_after = sum(Path(p).stat().st_size for p in report.files)
    return report


def quantize_model(
    model: onnx.ModelProto,
    format: str,
    activations: str | None = None,
    embeddings: bool = False,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
    folder: Path = Path("."),
) -> tuple[onnx.ModelProto, QuantizeReport]:
    """As quantize_file, in memory. The model given is left as it was.

    Without `activations` the types between the layers stay what they are.
    """
    fmt = _look_up("format", format, FORMATS)
    wanted = _look_up("activations", activations, rewrite.ACTIVATIONS) if activations else None
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    model = rewrite.raise_opset(copy, fmt.opset)
    report = QuantizeReport(format, activations or "")
    _constants_to_initializers(model.graph)
    work = _Quantizer(model, fmt, wanted, folder)
    sites = work.find_sites(embeddings, exclude, report)
    report.activations = activations or _names_of_types(sites)
    for index, site in enumerate(work.rounded_ahead(sites)):
        if progress:
            progress(index, len(sites), site.node.name)
        report.layers.append(work.rewrite(site))
    if progress:
        progress(len(sites), len(sites), "")
    work.finish()
    return model, report


class NothingQuantizedError(rewrite.RewriteError):
    """No weight could be quantised: a copy of the model under another name helps nobody."""

    def __init__(self, report: QuantizeReport, why: str):
        super().__init__(f"nothing was quantised, and nothing written: {why}")
        self.report = report


def _why_nothing(report: QuantizeReport, graph: onnx.GraphProto) -> str:
    reasons = {layer.reason: None for layer in report.layers}
    if not reasons:
        has_bodies = any(True for node in graph.node for _ in rewrite.subgraphs(node))
        also = " (bodies of If, Loop and Scan are not searched)" if has_bodies else ""
        if any(node.op_type in _QUANTIZED_OPS for node in graph.node):
            also = "; it is quantised already" + also
        return f"the model has no MatMul or Gemm with a constant float weight{also}"
    odd = all(_ODD_DEPTH in reason for reason in reasons)
    hint = "; try --format fp8, which has no blocks" if odd else ""
    return f"{next(iter(reasons))}{', and other reasons' if len(reasons) > 1 else ''}{hint}"


def _read_by_bodies(graph: onnx.GraphProto) -> dict[str, str]:
    """Tensors that Loop, Scan or If read too: they keep the float weight, and the file grows."""
    reasons = {}
    for node in graph.node:
        bodies = [inner for body in rewrite.subgraphs(node) for inner in rewrite.graphs_of(body)]
        captured = [name for body in bodies for inner in body.node for name in inner.input]
        if bodies:
            why = f"{node.op_type} '{node.name}' reads its weight too, and keeps it in float"
            reasons.update(dict.fromkeys([*node.input, *captured], why))
    return reasons


def _names_of_types(sites: list[_Site]) -> str:
    """What the layers compute in, as --activations says it: f32, f16, or both of a mixed model."""
    found = {site.tensor.data_type for site in sites}
    return ",".join(name for name, dtype in rewrite.ACTIVATIONS.items() if dtype in found)


def _name_of_type(dtype: int) -> str:
    return TensorProto.DataType.Name(dtype).lower()


def _look_up(what: str, name: str, table: dict):
    if name not in table:
        raise rewrite.RewriteError(f"unknown {what} '{name}'; one of: {', '.join(table)}")
    return table[name]


class _Quantizer:
    def __init__(self, model: onnx.ModelProto, fmt: NumberFormat, wanted: int | None, folder: Path):
        self.model = model
        self.graph = model.graph
        self.format = fmt
        self.wanted = wanted  # activations that the user asked for; None: the model's own
        self.folder = folder
        self.new_nodes: dict[str, list[onnx.NodeProto]] = {}
        self.kept: set[str] = set()
        self.tables: set[str] = set()  # weights that a Gather of the sites reads
        self.done: dict[tuple[str, bool], tuple[str, LayerReport]] = {}
        self.rounding: dict[tuple[str, bool], Future] = {}

    def find_sites(self, embeddings: bool, exclude, report: QuantizeReport) -> list[_Site]:
        constants = {t.name: t for t in self.graph.initializer}
        producers = {name: node for node in self.graph.node for name in node.output}
        entering = _read_by_bodies(self.graph)
        sites, names = [], []
        for node in self.graph.node:
            site, reason = _site_of(node, constants, producers)
            if site is None and not reason:
                continue
            names.append(node.name)
            if any(fnmatch.fnmatch(node.name, pattern) for pattern in exclude):
                reason = "excluded by name"
            reason = reason or self._why_not(site) or entering.get(site.tensor.name, "")
            if node.op_type == "Gather" and not embeddings:
                if not reason:
                    size = _bytes_of(site.tensor)
                    report.kept_tables.append(KeptTable(node.name, site.tensor.name, size))
            elif reason:
                weight = site.tensor if site else None
                report.layers.append(_left_out(node, weight, reason))
            else:
                sites.append(site)
        _refuse_unmatched(exclude, names)
        products = {site.tensor.name for site in sites}
        for table in report.kept_tables:
            table.tied = table.weight in products
        self.tables = {site.tensor.name for site in sites if site.node.op_type == "Gather"}
        return sites

    def _why_not(self, site: _Site) -> str:
        if site.tensor.data_type not in _FLOAT_TYPES:
            return (
                f"its weight is {_name_of_type(site.tensor.data_type)}, no float of 16 or 32 bits"
            )
        shape = tuple(site.tensor.dims)
        if len(shape) != 2:
            return f"its weight has rank {len(shape)}, not 2"
        depth = shape[1] if site.stored_transposed else shape[0]
        if self.format.block and depth % self.format.block:
            return f"K={depth} {_ODD_DEPTH} {self.format.block}"
        return ""

    def _activation_of(self, site: _Site) -> int:
        """The type that the site's node multiplies in, which its dequantised weight must have."""
        own = site.tensor.data_type
        if self.wanted is None or own == self.wanted:
            return own
        if own != TensorProto.FLOAT:
            asked, has = (_name_of_type(dtype) for dtype in (self.wanted, own))
            raise rewrite.RewriteError(
                f"the model computes in {has} ('{site.tensor.name}'), and only float32 models can "
                f"be given {asked} activations: leave --activations out"
            )
        return self.wanted

    def rounded_ahead(self, sites: list[_Site]) -> Iterator[_Site]:
        """The same sites, while the weights of the next few are rounded on other threads."""
        firsts: dict[tuple[str, bool], _Site] = {}
        for site in sites:
            firsts.setdefault(site.key, site)
        waiting = deque(firsts.values())
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(threads) as pool:
            for site in sites:
                while waiting and len(self.rounding) < threads:
                    first = waiting.popleft()
                    self.rounding[first.key] = pool.submit(self._round, first)
                yield site

    def _round(self, site: _Site) -> tuple[Quantized, float, int]:
        """Codes and scales of a weight, their error, and the bytes that it had."""
        array = rewrite.read_tensor(site.tensor, self.folder)
        rows = array if site.stored_transposed else array.T  # [N,K]: blocks along K
        scale_type = helper.tensor_dtype_to_np_dtype(self._activation_of(site))
        quantized = quantize(np.ascontiguousarray(rows), self.format, scale_type)
        error = relative_error(rows, quantized.dequantize(np.float32))
        return quantized, error, array.nbytes

    def rewrite(self, site: _Site) -> LayerReport:
        key = site.key
        if key not in self.done:
            try:
                self.done[key] = self._quantize_tensor(site)
            except rewrite.RewriteError:
                raise
            except ValueError as error:
                return _left_out(site.node, site.tensor, str(error))
        value, layer = self.done[key]
        self._connect(site, value)
        return LayerReport(**{**asdict(layer), "node": site.node.name, "op": site.node.op_type})

    def _quantize_tensor(self, site: _Site) -> tuple[str, LayerReport]:
        """Codes and scales as constants, the DequantizeLinear nodes; returns their last value."""
        ahead = self.rounding.pop(site.key, None)  # None: it failed for a site before this one
        quantized, error, size = ahead.result() if ahead else self._round(site)
        emit = self._emit_n_major if self._n_major(site) else self._emit_k_major
        value = emit(site, self._activation_of(site), quantized)
        layer = LayerReport(
            node=site.node.name,
            op=site.node.op_type,
            weight=site.tensor.name,
            shape=tuple(site.tensor.dims),
            quantized=True,
            error=error,
            bytes_before=size,
            bytes_after=quantized.bytes,
        )
        return value, layer

    def _n_major(self, site: _Site) -> bool:
        """int4 and fp8 keep [K,N] for products; a table of rows is read along rows by all."""
        is_table = site.stored_transposed and site.tensor.name in self.tables
        return is_table or self.format.name not in ("int4", "fp8")

    def _base_name(self, site: _Site) -> str:
        """What names of its codes and scales begin with: one that is read both ways has two."""
        turned = (site.tensor.name, not site.stored_transposed) in self.done
        return f"{site.tensor.name}/turned" if turned else site.tensor.name

    def _emit_n_major(self, site: _Site, activation: int, quantized: Quantized) -> str:
        base, nodes = self._base_name(site), []
        codes = self._constant(f"{base}/codes", quantized.codes)
        scale = self._constant(f"{base}/scale", quantized.scales)
        value = f"{base}/dequantized"
        attributes = {"axis": -1, "block_size": self.format.block} if self.format.block else {}
        if self.format.has_global_scale:
            overall = self._constant(f"{base}/global_scale", np.asarray(quantized.global_scale))
            widened = f"{base}/scale_dequantized"
            nodes.append(_dequantize([scale, overall], widened))
            nodes.append(_dequantize([codes, widened], value, **attributes))
            if activation != TensorProto.FLOAT:
                cast = f"{base}/cast"
                nodes.append(helper.make_node("Cast", [value], [cast], cast, to=activation))
                value = cast
        else:
            if self.format.name.startswith("mx"):
                attributes["output_dtype"] = activation
            nodes.append(_dequantize([codes, scale], value, **attributes))
        self._insert_before(site.node, nodes)
        return value

    def _emit_k_major(self, site: _Site, activation: int, quantized: Quantized) -> str:
        base = self._base_name(site)
        codes = self._constant(f"{base}/codes", np.ascontiguousarray(quantized.codes.T))
        scale = self._constant(f"{base}/scale", np.ascontiguousarray(quantized.scales.T))
        value = f"{base}/dequantized"
        attributes = {"axis": 0, "block_size": self.format.block} if self.format.block else {}
        self._insert_before(site.node, [_dequantize([codes, scale], value, **attributes)])
        return value

    def _connect(self, site: _Site, value: str) -> None:
        node, n_major = site.node, self._n_major(site)
        if node.op_type == "Gather":
            node.input[0] = value
            return
        if node.op_type == "Gemm":
            _set_attribute(node, "transB", int(n_major))
        elif n_major:
            turned = f"{node.name or node.output[0]}/weight"
            transpose = helper.make_node("Transpose", [value], [turned], turned, perm=[1, 0])
            self._insert_before(node, [transpose])
            value = turned
        node.input[1] = value

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        self.kept.add(name)
        return name

    def _insert_before(self, node: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> None:
        self.new_nodes.setdefault(node.output[0], []).extend(nodes)
        self.kept.update(n.name for n in nodes)

    def finish(self) -> None:
        """Puts the new nodes before their first reader, drops what nobody reads any more."""
        ordered = []
        for node in self.graph.node:
            ordered += self.new_nodes.get(node.output[0], []) if node.output else []
            ordered.append(node)
        del self.graph.node[:]
        self.graph.node.extend(ordered)
        _drop_unread(self.graph)
        if self.wanted not in (None, TensorProto.FLOAT):
            self._load_floats()
            rewrite.convert_activations(self.model, self.wanted, self.kept)

    def _load_floats(self) -> None:
        for tensor in self.graph.initializer:
            outside = tensor.data_location == TensorProto.EXTERNAL
            if outside and tensor.data_type == TensorProto.FLOAT:
                array = rewrite.read_tensor(tensor, self.folder)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _bytes_of(tensor: onnx.TensorProto) -> int:
    return math.prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _refuse_unmatched(patterns: Sequence[str], names: list[str]) -> None:
    """A misspelt pattern would quantise what should have stayed as it is."""
    for pattern in patterns:
        if any(fnmatch.fnmatch(name, pattern) for name in names):
            continue
        core = pattern.strip("*")

        def alike(name: str, core: str = core) -> int:
            return difflib.SequenceMatcher(None, core, name, False).find_longest_match().size

        near = sorted(names, key=alike, reverse=True)[:_MOST_NEAR_NAMES]
        told = ", ".join(f"'{name}'" for name in near) or "none: no node has a weight"
        raise rewrite.RewriteError(
            f"--exclude '{pattern}' matches no layer; the nearest are {told}"
        )


def _site_of(node, constants, producers) -> tuple[_Site | None, str]:
    """The weight that a node reads, or why it has none; ("None", "") is no candidate at all."""
    if node.op_type == "Gather":
        tensor = constants.get(node.input[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if tensor is None or tensor.data_type not in _FLOAT_TYPES or axis != 0:
            return None, ""
        if math.prod(tensor.dims) < _SMALLEST_TABLE:
            return None, "the table is too small to be worth it"
        return _Site(node, tensor, stored_transposed=True), ""
    if node.op_type not in ("MatMul", "Gemm") or node.domain not in ("", "ai.onnx"):
        return None, ""
    tensor = constants.get(node.input[1])
    if tensor is not None:
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        return _Site(node, tensor, stored_transposed=turned), ""
    through = producers.get(node.input[1])
    if node.op_type == "MatMul" and through is not None and through.op_type == "Transpose":
        tensor = constants.get(through.input[0])
        perm = next((list(a.ints) for a in through.attribute if a.name == "perm"), [1, 0])
        if tensor is not None and perm == [1, 0]:
            return _Site(node, tensor, stored_transposed=True), ""
    if node.input[0] in constants:
        return None, "its constant side is the left one"
    return None, ""


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Some exporters write weights as Constant nodes: one form of constant is enough to search."""
    for node in [n for n in graph.node if n.op_type == "Constant" and not n.domain]:
        value = node.attribute[0]
        if value.name == "value" and value.t.data_location != TensorProto.EXTERNAL:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value.t)
            tensor.name = node.output[0]
            graph.node.remove(node)


def _left_out(node: onnx.NodeProto, tensor, reason: str) -> LayerReport:
    weight = tensor.name if tensor is not None else ""
    shape = tuple(tensor.dims) if tensor is not None else ()
    return LayerReport(node.name, node.op_type, weight, shape, quantized=False, reason=reason)


def _dequantize(inputs: list[str], output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node("DequantizeLinear", inputs, [output], name=output, **attributes)


def _set_attribute(node: onnx.NodeProto, name: str, value: int) -> None:
    for attribute in list(node.attribute):
        if attribute.name == name:
            node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(name, value))


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Removes the float weights that were replaced, and the Transposes that only fed them."""
    while True:
        read = {name for inner in rewrite.graphs_of(graph) for n in inner.node for name in n.input}
        read |= {value.name for value in graph.output}
        read |= {value.name for inner in rewrite.graphs_of(graph) for value in inner.output}
        dead = [
            n
            for n in graph.node
            if n.op_type == "Transpose" and not any(o in read for o in n.output)
        ]
        if not dead:
            break
        for node in dead:
            graph.node.remove(node)
    gone = {t.name for t in graph.initializer if t.name not in read}
    for tensors in (graph.initializer, graph.input):
        for tensor in [t for t in tensors if t.name in gone]:
            tensors.remove(tensor)
