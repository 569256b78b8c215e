"""Opening models that contradict their own types: mended on the way in, and said so."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# How ONNX Runtime refuses a model whose types, opset or domains do not fit together.
_CONTRADICTS = re.compile(
    r"Type Error|(Type|Shape)InferenceError|This is an invalid model|Invalid tensor data type|"
    r"is not a registered function/op"
)
# Where a model that is given as bytes has its external data.
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


class MendedModelWarning(UserWarning):
    """A model contradicted its own types and was opened as TensorRT would read it."""


class UnmendableModelError(RuntimeError):
    """ONNX Runtime refuses the model, and what contradicts in it cannot be mended."""


@dataclass(frozen=True)
class Mended:
    """A model without its contradictions, and what was done about them."""

    content: bytes
    folder: Path | None  # of its external data
    notes: list[str]


def open_mended(open: Callable, model, settings) -> tuple:
    """What open(model) gives, and what had to be mended in the model: nothing, as a rule.

    model     what ONNX Runtime loads: a path or bytes
    settings  the session options that `open` uses

    A model that loads is opened as it is, and not looked at.
    """
    try:
        return open(model), []
    except Exception as error:
        mended = _mended(model, error)
        if mended is None:
            raise
    if mended.folder:
        settings.add_session_config_entry(_DATA_FOLDER, str(mended.folder))
    tell(model, mended.notes, stacklevel=4)
    return open(mended.content), mended.notes


def _mended(model, error: Exception) -> Mended | None:
    """None: the error is about something else."""
    if not _CONTRADICTS.search(str(error)):
        return None
    try:
        import onnx

        from .models import repair
        from .models.rewrite import RewriteError
    except ImportError as missing:
        raise UnmendableModelError(
            f"{error}\nTenon mends many such models where the package onnx is installed "
            f"({missing}): pip install onnx"
        ) from error
    try:
        if isinstance(model, bytes):
            proto, folder = onnx.load_from_string(model), None
        else:
            proto = onnx.load(model, load_external_data=False)
            folder = Path(model).absolute().parent
        proto, notes = repair.repaired(proto)
    except RewriteError as why:
        raise UnmendableModelError(f"{error}\nIt cannot be mended: {why}") from error
    except Exception:  # the runtime's own words about a file that is no model are better
        return None
    return Mended(_bytes_of(proto, error), folder, notes) if notes else None


def _bytes_of(proto, error: Exception) -> bytes:
    try:
        return proto.SerializeToString()
    except Exception as why:  # what it is differs between versions of protobuf
        raise UnmendableModelError(
            f"{error}\nWhat is mended no longer fits into one file of 2 GiB ({why}): "
            "`tenon repair` writes it with its weights beside it"
        ) from error


def tell(model, notes: list[str], stacklevel: int = 2) -> None:
    """Warns of what was mended, where something was."""
    name = "the model" if isinstance(model, bytes) else os.fspath(model)
    text = (
        f"{name} contradicts its own types and was mended on the way in: {'; '.join(notes)}. "
        "`tenon repair` writes the mended model."
    )
    if notes:
        warnings.warn(text, MendedModelWarning, stacklevel=stacklevel)


@contextmanager
def told_on_stderr():
    """Inside, what was mended is a command's note, each told once, and no Python warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", MendedModelWarning)
        otherwise, told = warnings.showwarning, set()

        def show(message, category, *rest, **named):
            if not issubclass(category, MendedModelWarning):
                otherwise(message, category, *rest, **named)
            elif str(message) not in told:
                told.add(str(message))
                print(f"tenon: note: {message}", file=sys.stderr, flush=True)

        warnings.showwarning = show
        yield


def opened_graph(path: Path, report):
    """The graph of the session that wrote the report; data in other files are not loaded."""
    import onnx

    graph = onnx.load(path, load_external_data=False)
    if not report.data.get("mended"):
        return graph
    from .models.repair import repaired

    return repaired(graph)[0]


def add_to_report(path: Path, notes: list[str]) -> None:
    """The provider's report says what it did with the mended model; this adds what was mended."""
    if not path.is_file():
        return  # a model that ONNX Runtime folded to constants never reaches a provider
    target = path.resolve()
    report = json.loads(target.read_text(encoding="utf-8"))
    number, beside = tempfile.mkstemp(prefix=".tenon-", dir=target.parent)
    with open(number, "w", encoding="utf-8") as file:
        file.write(json.dumps({**report, "mended": notes}) + "\n")
    shutil.copymode(target, beside)
    os.replace(beside, target)
