"""Where the plugin library is and what it is called. Imports nothing heavy."""

from __future__ import annotations

import os
import re
from importlib import metadata
from pathlib import Path

PROVIDER = "TenonExecutionProvider"
LIBRARY = "libonnxruntime_ep_tenon.so"
E8M0_SINCE = "1.27.0"  # the first onnxruntime that loads MXFP8 and MXFP4 with e8m0 scales
_PACKAGE = Path(__file__).resolve().parent


class LibraryNotFoundError(FileNotFoundError):
    """The plugin library is not where it should be."""


def get_library_path() -> str:
    """Absolute path of the plugin: the package's own, else TENON_LIBRARY_PATH.

    Absolute, because ONNX Runtime resolves a relative one against its own folder.
    """
    packaged = _PACKAGE / LIBRARY
    if packaged.is_file():
        return str(packaged.resolve())
    named = os.environ.get("TENON_LIBRARY_PATH")
    if named:
        path = Path(named).expanduser().resolve()
        if path.is_dir():
            path = path / LIBRARY
        if path.is_file():
            return str(path)
        raise LibraryNotFoundError(
            f"TENON_LIBRARY_PATH names {path}, which is no file. "
            f"Set it to the full path of {LIBRARY}."
        )
    raise LibraryNotFoundError(
        f"{LIBRARY} is not in {_PACKAGE}. Install the wheel that `make wheel` puts into dist/, "
        "or in a source tree run `make build`, or set TENON_LIBRARY_PATH to the library."
    )


def get_ep_name() -> str:
    return PROVIDER


def get_ep_names() -> list[str]:
    return [PROVIDER]


def version() -> str:
    """The package's own; in a source tree that is not installed, the one that CMake reads."""
    listed = _PACKAGE.parents[1] / "CMakeLists.txt"
    if listed.is_file():
        found = re.search(r"^project\(tenon VERSION ([\d.]+)", listed.read_text(), re.MULTILINE)
        if found:
            return found[1]
    try:
        return metadata.version("onnxruntime-ep-tenon")
    except metadata.PackageNotFoundError:
        return "unknown"


def minimum_runtime_version() -> str:
    """The oldest onnxruntime that the plugin runs in."""
    return (_PACKAGE / "MIN_ONNXRUNTIME_VERSION").read_text().strip()


def version_tuple(version: str) -> tuple[int, ...]:
    """'1.31.1' or '1.32.0.dev1' as numbers that compare."""
    numbers = []
    for part in version.split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits or digits != part:
            break
        numbers.append(int(digits))
    return tuple(numbers)
