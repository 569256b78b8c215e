"""Context models: a model compiled ahead, whose EPContext nodes hold what Tenon made of it."""

from __future__ import annotations

import json
import mmap
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .library import PROVIDER
from .mending import add_to_report, open_mended
from .models import staged_folder
from .report import Report
from .requirements import require
from .session import add_tenon, onnxruntime_module

_NODE = b"EPContext"
# What runtimes say when they copy bodies of control flow that hold weights.
_BODY_FAILURES = re.compile(
    r'in-memory address marker|Duplicate definition of name|In Node, \("[^"]*", (If|Loop|Scan),'
)


class NothingCompiledError(ValueError):
    """No node of the model is Tenon's: its context model would be the model itself."""


@dataclass(frozen=True)
class Context:
    """One node: a partition, with a program for each target."""

    partition: str
    source: str
    file: str  # relative to the model; empty: inside of it
    bytes: int  # inside of the model
    notes: dict = field(default_factory=dict)

    @property
    def programs(self) -> list[dict]:
        return self.notes.get("programs", [])


@dataclass(frozen=True)
class WeightFile:
    """One of the model's files of external data, which a context without weights needs."""

    path: Path
    needed: int  # bytes: where the last weight in it ends

    @property
    def bytes(self) -> int | None:
        """None: it is not there."""
        return self.path.stat().st_size if self.path.is_file() else None

    @property
    def problem(self) -> str:
        """Empty: as far as its size tells, there is none."""
        if self.path.is_symlink():
            return "a link, which is not followed"
        if self.bytes is None:
            return "missing"
        return f"cut: {self.needed} bytes are needed" if self.bytes < self.needed else ""


@dataclass(frozen=True)
class ContextModel:
    path: Path
    contexts: list[Context]
    other_nodes: int
    origin: str

    @staticmethod
    def read(path: Path) -> ContextModel:
        onnx = require("onnx", "to look into a context model")
        model = onnx.load(path, load_external_data=False)
        nodes = [node for node in model.graph.node if node.op_type == _NODE.decode()]
        origins = [p.value for p in model.metadata_props if p.key.endswith(f".{PROVIDER}")]
        return ContextModel(
            Path(path),
            [_context_of(onnx, node) for node in nodes],
            len(model.graph.node) - len(nodes),
            origins[0] if origins else "",
        )

    @property
    def targets(self) -> list[str]:
        return list(dict.fromkeys(p["target"] for c in self.contexts for p in c.programs))

    @property
    def cudnn(self) -> str:
        """Which version it was compiled with; empty: it does not call it."""
        versions = {p.get("cudnn", "") for c in self.contexts for p in c.programs}
        return max(versions, default="")

    @property
    def files(self) -> list[Path]:
        """Data beside the model, each once."""
        names = dict.fromkeys(c.file for c in self.contexts if c.file)
        return [self.path.parent / name for name in names]

    @property
    def weight_files(self) -> list[WeightFile]:
        """Each once; none where the contexts hold their weights."""
        needed: dict[str, int] = {}
        for program in (p for context in self.contexts for p in context.programs):
            for file in program.get("weight_files", []):
                needed[file["file"]] = max(needed.get(file["file"], 0), file["end"])
        return [WeightFile(self.path.parent / name, end) for name, end in sorted(needed.items())]

    def as_dict(self) -> dict:
        return {
            "model": str(self.path),
            "bytes": self.path.stat().st_size,
            "targets": self.targets,
            "origin": self.origin,
            "files": [
                {"path": str(f), "bytes": f.stat().st_size if f.is_file() else None}
                for f in self.files
            ],
            "weight_files": [
                {
                    "path": str(file.path),
                    "bytes": file.bytes,
                    "needed_bytes": file.needed,
                    "problem": file.problem,
                }
                for file in self.weight_files
            ],
            "other_nodes": self.other_nodes,
            "contexts": [
                {"partition": c.partition, "source": c.source, "embedded": not c.file, **c.notes}
                for c in self.contexts
            ],
        }


def _context_of(onnx, node) -> Context:
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    def text(name: str) -> str:
        value = found.get(name, b"")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    embedded = found.get("embed_mode", 1) != 0
    try:
        notes = json.loads(text("notes") or "{}")
    except json.JSONDecodeError:
        notes = {}
    return Context(
        partition=text("partition_name"),
        source=text("source"),
        file="" if embedded else text("ep_cache_context"),
        bytes=len(found.get("ep_cache_context", b"")) if embedded else 0,
        notes=notes if isinstance(notes, dict) else {},
    )


def is_context_model(path: Path) -> bool:
    """Whether the file has nodes that some provider compiled ahead; a look at its bytes."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return False
        with _mapped(file) as content:
            return content.find(_NODE) >= 0


def _mapped(file) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _compile_to_file(compiler, model, out: Path, report_file: Path) -> None:
    """The whole pair, or the one of before as it was.

    Data is named after what it holds, so that no other model finds it, and comes first. The model
    takes its name once it is written, and then the data of the model that it replaces goes.
    """
    before, replaced = _files_beside(out), _data_of(out)
    try:
        with staged_folder.whole_file(out) as file:
            compiler.compile_to_stream(file.write)
    except Exception as error:
        report = _load(report_file)
        written = Path((report.data.get("context") or {}).get("file") or out)
        if written in _files_beside(out) - before - _data_of(out):  # a report may be an older one
            written.unlink(missing_ok=True)
        if explained := _explained(error, model, report):
            raise explained from error
        raise
    for data in replaced - _data_of(out):
        with suppress(OSError):  # the new pair is there
            data.unlink()


def _files_beside(model: Path) -> set[Path]:
    return set(model.parent.glob("*.bin"))


def _data_of(model: Path) -> set[Path]:
    """Files that the model at this place names, of those that are named after the place."""
    name = re.escape(model.stem.encode()) + rb"_tenon(_[0-9a-f]{16})?\.bin"
    if not model.is_file() or not is_context_model(model):
        return set()
    with open(model, "rb") as file, _mapped(file) as content:
        return {model.with_name(found.group().decode()) for found in re.finditer(name, content)}


def _load(report_file: Path) -> Report:
    return Report.load(report_file) if report_file.is_file() else Report({"graphs": []})


def _explained(error: Exception, model, report: Report) -> Exception | None:
    """What the runtime says of a few failures helps nobody."""
    text = str(error)
    if "Unable to compile any nodes" in text:
        if inside := sum("no contexts" in node["reason"] for node in report.left_out):
            return NothingCompiledError(
                f"there is nothing to compile in {model}: {inside} of its "
                f"{report.coverage.nodes} nodes stand in bodies of If, Loop or Scan, of which "
                "context models hold none, and of the others Tenon claims none. Sessions compile "
                "bodies when they open the model itself: `tenon explain` says which nodes"
            )
        return NothingCompiledError(
            f"Tenon claims nothing of {model}, so there is nothing to compile: "
            "`tenon explain` says why"
        )
    if _BODY_FAILURES.search(text):
        version = onnxruntime_module().__version__
        return RuntimeError(
            f"onnxruntime {version} cannot write a context model of {model}: bodies of its If, "
            f"Loop or Scan hold weights. Its own words: {text}"
        )
    return None


def compile_model(
    model,
    out: Path,
    device: str = "auto",
    archs: list[str] | None = None,
    embed: bool = False,
    session_options=None,
    weights: bool = True,
    **options,
) -> tuple[ContextModel, Report]:
    """Writes the context model of `model` to `out`, and its data beside it or inside (`embed`).

    archs    GPUs to compile for, which need not be here, e.g. ["sm_90a", "sm_100a"]; none: the
             device itself
    weights  False: weights stay in the model's files of external data, which sessions then need
             at the same places beside `out`
    """
    ort = onnxruntime_module()
    out = Path(out)
    if archs:
        options["target_arch"] = archs
    settings = session_options if session_options is not None else ort.SessionOptions()
    settings.add_session_config_entry("ep.context_file_path", str(out))
    if not weights:
        settings.add_session_config_entry("ep.enable_weightless_ep_context_nodes", "1")
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        report_file = Path(options.get("report_file") or Path(folder) / "report.json")
        options["report_file"] = report_file
        add_tenon(settings, "gpu" if archs else device, options)

        def compiled(loadable) -> None:
            compiler = ort.ModelCompiler(
                settings,
                loadable,
                embed_compiled_data_into_model=embed,
                flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
                # What a session does by default: its results have the same bits.
                graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
            )
            _compile_to_file(compiler, model, out, report_file)

        loadable = model if isinstance(model, bytes) else str(model)
        if mended := open_mended(compiled, loadable, settings)[1]:
            add_to_report(report_file, mended)
        report = _load(report_file)
    return ContextModel.read(out), report
