"""Optional packages: asked for where they are used, with a message that says what to install."""

from __future__ import annotations

import importlib
import importlib.util

from .library import minimum_runtime_version


class MissingPackageError(ImportError):
    """An optional package is not installed; the text says how to get it."""


def missing_package_text(module: str) -> str:
    """What to do where some `import` found nothing."""
    package = module.split(".")[0]
    if package == "onnxruntime":
        oldest = minimum_runtime_version()
        return f"onnxruntime is not installed: pip install 'onnxruntime>={oldest}'"
    return f"the package '{package}' is not installed: pip install {package}"


def require(name: str, purpose: str):
    """The module, or an error that a person can act on."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise MissingPackageError(
            f"the package '{package}' is needed {purpose}: pip install {package}"
        ) from error


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
