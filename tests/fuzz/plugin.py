"""Tests that need the built plugin say so."""

import onnxruntime_ep_tenon as tenon
import pytest


def plugin_is_built() -> bool:
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError:
        return False
    return True


needs_plugin = pytest.mark.skipif(not plugin_is_built(), reason="the plugin library is not built")
