"""What several test files share: the plugin when it is built, and which runtime is in use."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace

import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.library import version_tuple

# Tests compile what they test, and leave nothing in the user's folders.
os.environ["TENON_CACHE_DIR"] = "off"
# Ranks of one host keep a secret there.
_RUNTIME_FOLDER = tempfile.TemporaryDirectory(prefix="tenon-tests-")
os.environ["XDG_RUNTIME_DIR"] = _RUNTIME_FOLDER.name

RUNTIME = version_tuple(onnxruntime.__version__)


def runtime_at_least(version: str) -> bool:
    return RUNTIME >= version_tuple(version)


def plugin_is_built() -> bool:
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError:
        return False
    return True


def pytest_configure(config):
    config.addinivalue_line("markers", "plugin: needs the built plugin library")


def pytest_collection_modifyitems(items):
    keep_part(items, os.environ.get("TENON_TEST_PART", "0/1"))
    if plugin_is_built():
        return
    absent = pytest.mark.skip(reason="the plugin library is not built")
    for item in items:
        if item.get_closest_marker("plugin"):
            item.add_marker(absent)


def keep_part(items: list, part: str) -> None:
    """Of a file whose tests are dealt to several processes: every n-th, from one on."""
    first, parts = map(int, part.split("/"))
    items[:] = items[first::parts]


@pytest.fixture
def command(capsys):
    """The command `tenon` in this process: command("run", path) has status, out, err."""
    from onnxruntime_ep_tenon.__main__ import main

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse's own way out: the usage, status 2
            status = exit.code
        told = capsys.readouterr()
        return SimpleNamespace(status=status, out=told.out, err=told.err)

    return run
