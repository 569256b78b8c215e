"""Tenon: an ONNX Runtime plugin execution provider for block-quantised models.

import onnxruntime_ep_tenon as tenon

session = tenon.create_session("model.onnx")
outputs = session.run(None, inputs)
"""

from .kv_heads import local_kv_heads
from .library import (
    LibraryNotFoundError,
    get_ep_name,
    get_ep_names,
    get_library_path,
    minimum_runtime_version,
    version,
)
from .session import create_session, devices, register

__version__ = version()

__all__ = [
    "LibraryNotFoundError",
    "__version__",
    "create_session",
    "devices",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "local_kv_heads",
    "minimum_runtime_version",
    "register",
]
