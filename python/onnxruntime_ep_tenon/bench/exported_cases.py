"""Models that exporters wrote, in a folder: which there are, and the sizes to run them with."""

from __future__ import annotations

import fnmatch
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class ExportedCase:
    """FOLDER/NAME/model.onnx; sizes.json beside it gives those that names do not tell.

    model.npz beside it holds inputs, and what the framework made of them, by their names.
    """

    name: str
    path: Path
    stamp: list[int]  # tells whether an earlier table measured the same file

    def sizes(self) -> dict[str, int]:
        told = self.path.with_name("sizes.json")
        return json.loads(told.read_text()) if told.is_file() else {}

    def stored(self) -> dict[str, np.ndarray]:
        told = self.path.with_suffix(".npz")
        if not told.is_file():
            return {}
        with np.load(told) as arrays:
            return dict(arrays)


def exported_cases(folder: str | None, pattern: str | None) -> list[ExportedCase]:
    if not folder:
        raise ValueError(
            "name the folder of models with --models-dir; scripts/export_models makes one"
        )
    files = Path(folder).glob("[!.]*/model.onnx")
    found = [ExportedCase(path.parent.name, path, _stamp_of(path)) for path in files]
    if not found:
        raise FileNotFoundError(f"{folder} holds no NAME/model.onnx; scripts/export_models does")
    chosen = [case for case in found if fnmatch.fnmatch(case.name, pattern or "*")]
    if not chosen:
        raise ValueError(f"no model in {folder} is named '{pattern}'")
    return sorted(chosen, key=lambda case: case.name)


def _stamp_of(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
