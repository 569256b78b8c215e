"""The command `tenon`."""

from __future__ import annotations

import argparse
import errno
import importlib
import re
import sys

from .inputs import InputError
from .library import version
from .mending import told_on_stderr
from .requirements import MissingPackageError, missing_package_text

_COMMANDS = (
    "doctor",
    "demo",
    "explain",
    "run",
    "quantize",
    "repair",
    "compile",
    "tune",
    "ranks",
    "bench",
    "models",
    "perplexity",
)

# What a person can put right: said in one line, without a traceback.
_USER_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    InputError,
    MissingPackageError,
    ImportError,
)
# So is what a file system says of itself: no room, read only, a name that is too long.
_DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENOTDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.EMFILE,
)  # fmt: skip


def command_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tenon", description="Run block-quantised ONNX models in ONNX Runtime."
    )
    parser.add_argument("--version", action="version", version=f"tenon {version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        module = importlib.import_module(f".commands.{name}", __package__)
        subparser = subparsers.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(arguments: list[str] | None = None) -> int:
    chosen = command_parser().parse_args(arguments)
    try:
        with told_on_stderr():
            return chosen.run(chosen)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not _is_users(error):
            raise
        print(f"tenon: error: {_said(error)}", file=sys.stderr)
        return 1


# What ONNX Runtime puts in front of every error, also of those that a provider hands to it.
_STATUS = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : (?=\S)")


def _said(error: Exception) -> str:
    """What is wrong, without where in the runtime's code it was noticed and of which kind it is."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return missing_package_text(error.name)
    text = str(error)
    if text.startswith("/onnxruntime_src/") and (said := text.rfind("[ONNXRuntimeError]")) > 0:
        text = text[said:].strip()
    return _STATUS.sub("", text)


def _is_users(error: Exception) -> bool:
    """Bad files, missing packages, and whatever ONNX Runtime says about a model."""
    if isinstance(error, _USER_ERRORS):
        return True
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return True
    module = type(error).__module__
    return module.startswith(("onnxruntime.capi", "onnxruntime_ep_tenon")) or (
        isinstance(error, (RuntimeError, ValueError))
    )


if __name__ == "__main__":
    sys.exit(main())
