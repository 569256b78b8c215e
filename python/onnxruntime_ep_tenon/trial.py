"""One Run of a model that was just written, beside one of the model that it was made from."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import tensors
from .host_memory import available_memory
from .input_sizes import UnmadeTypeError
from .library import E8M0_SINCE, get_library_path, version_tuple
from .provider_sessions import cpu_session
from .report import SessionError, session_with_report, shortened

# Both models, the weights as they are packed, and what the runtime copies while it loads.
_MEMORY_PER_FILE_BYTE = 3
# Larger ones take minutes to open on a small host.
_LARGEST_ALONE = 1 << 30
_LONGEST_ERROR = 400  # some list every tensor that they know
# Between a weight's DequantizeLinear and the layer that reads it.
_ON_THE_WAY = ("DequantizeLinear", "Transpose", "Cast", "Reshape")
_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(bfloat16)", "tensor(double)")


class TrialError(ValueError):
    """The model does not run, or does not do what the one it was made from does."""


@dataclass(frozen=True)
class Trial:
    """What came of it; `skipped` says what could not be tried, and why."""

    verdicts: list = field(default_factory=list)
    skipped: str = ""

    def as_dict(self) -> dict:
        return {"skipped": self.skipped, "outputs": [v.as_dict() for v in self.verdicts]}


def why_not_here(format: str, size: int) -> str:
    """Why this machine cannot run a model of this format and size; empty: it can."""
    try:
        import onnxruntime

        get_library_path()
    except (ImportError, OSError) as error:
        return str(error)
    version = onnxruntime.__version__
    if format.startswith("mx") and version_tuple(version) < version_tuple(E8M0_SINCE):
        return f"{format} needs onnxruntime {E8M0_SINCE}, here is {version}"
    needed, there = size * _MEMORY_PER_FILE_BYTE, available_memory()
    if needed > there:
        return f"it takes about {needed >> 20} MiB of memory, and {there >> 20} are free"
    return ""


def try_model(
    written: Path,
    original: Path,
    make_inputs: Callable,
    make_settings: Callable,
    device: str = "auto",
) -> Trial:
    """Opens what was written with Tenon, and compares a Run; TrialError where that fails."""
    from .models import validate

    try:
        session, _ = session_with_report(written, device, make_settings())
    except Exception as error:
        raise TrialError(_without_path(_refusal(error, written), written)) from error
    try:
        inputs = make_inputs(session)
    except UnmadeTypeError as error:
        return Trial(skipped=f"it opens, but was not run: {error}")
    try:
        expected = run_original(original, inputs, make_settings, device)
    except Exception as error:
        return Trial(
            skipped="it opens, but was not compared: the original itself does not run with "
            f"these inputs ({first_line(error)}); {other_inputs_text(error)}"
        )
    try:
        results = tensors.run(session, inputs)
    except Exception as error:
        raise TrialError(_without_path(f"it opens, but its Run fails: {error}", written)) from error
    names = [output.name for output in session.get_outputs()]
    verdicts = [
        validate.compare_with_original(name, result, wanted)
        for name, result, wanted in zip(names, results, expected, strict=True)
    ]
    if wrong := [verdict for verdict in verdicts if not verdict.ok]:
        raise TrialError(f"output '{wrong[0].name}' is not the original's: {wrong[0].problem}")
    return Trial(verdicts)


def try_alone(written: Path, make_inputs: Callable, make_settings: Callable) -> str:
    """For a model that was made from none: what became of one Run, in a line.

    TrialError where results are not numbers. What this machine does not run may run on another.
    """
    size = sum(file.stat().st_size for file in written.parent.glob(f"{written.name}*"))
    reason = why_not_here("", size)
    if size > _LARGEST_ALONE:
        reason = f"it is larger than {_LARGEST_ALONE >> 20} MiB; `tenon run` does"
    if reason:
        return f"Not run: {reason}"
    try:
        session, report = session_with_report(written, session_options=make_settings())
        results = tensors.run(session, make_inputs(session))
    except Exception as error:
        return f"Not run: this machine cannot: {first_line(error)}"
    for output, result in zip(session.get_outputs(), results, strict=True):
        if output.type in _FLOATS and not np.isfinite(result.astype(np.float32)).all():
            raise TrialError(f"output '{output.name}' of one Run holds NaN or Inf")
    return f"Checked: one Run gives finite numbers, Tenon ran {report.coverage}"


def run_original(original: Path, inputs: dict, make_settings: Callable, device: str = "auto"):
    """Outputs of the float model, from ONNX Runtime itself where it has the kernels."""
    try:
        session = cpu_session(original, make_settings(), exact=True)
    except Exception:
        session, _ = session_with_report(original, device, make_settings())
    return tensors.run(session, inputs)


def other_inputs_text(error: Exception) -> str:
    """What to give where a model does not take the inputs that were made for it."""
    if re.search(r"\bind(ex|ices)\b", str(error)):
        return "give another --max-int, or inputs with --input"
    return "give sizes with --dim, or inputs with --input"


def first_line(error: Exception) -> str:
    return shortened(str(error).strip().split("\n", 1)[0], _LONGEST_ERROR)


def _refusal(error: Exception, written: Path) -> str:
    if not isinstance(error, SessionError):
        return str(error)
    layers = _layers_left(error.report, written)
    advice = "".join(f" --exclude '{name}'" for name in layers)
    return f"{error}\nLeave such layers as they are:{advice}" if advice else str(error)


def _layers_left(report, written: Path) -> list[str]:
    """Nodes that read a quantised weight whose DequantizeLinear Tenon did not claim."""
    import onnx

    left = {node["node"] for node in report.left_out if node["op"] == "DequantizeLinear"}
    weights, layers = set(), {}
    for node in onnx.load(written, load_external_data=False).graph.node:
        if node.op_type == "DequantizeLinear" and node.name in left:
            weights.update(node.output)
        elif weights.intersection(node.input) and node.op_type in _ON_THE_WAY:
            weights.update(node.output)
        elif weights.intersection(node.input) and node.name:
            layers[node.name] = None
    return list(layers)


def _without_path(text: str, written: Path) -> str:
    """The file has another name until it is done with: that one would puzzle people."""
    return text.replace(str(written), written.name).replace(str(written.parent), "")
