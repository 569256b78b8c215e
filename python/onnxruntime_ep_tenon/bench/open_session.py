"""Opens a model in a process of its own and tells how long that took, as JSON on one line.

python -m onnxruntime_ep_tenon.bench.open_session PROVIDER MODEL [KEY=VALUE ...], where the
provider is tenon, shared (a second session that shares the weights of a first one), cuda or cpu
(ONNX Runtime's own). "seconds" are the clock's, "cpu_seconds" those of all threads.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from ..provider_sessions import cpu_session, open_cuda_session
from ..report import Report
from ..session import create_session, devices


def main() -> int:
    provider, model, *given = sys.argv[1:]
    options = dict(entry.split("=", 1) for entry in given)
    device = options.pop("device", "auto")
    if device.startswith("gpu") or provider == "cuda":
        _make_context()
    if provider not in ("cuda", "cpu"):
        devices()  # the plugin is loaded, as the CUDA provider's library below
    print(json.dumps(_open(provider, model, device, options)))
    sys.stdout.flush()
    os._exit(0)  # what it takes to close a session is not measured


def _make_context() -> None:
    """The CUDA context is there before anybody's time begins."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        raise RuntimeError("the CUDA driver does not start")


def _open(provider: str, model: str, device: str, options: dict[str, str]) -> dict:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    if provider == "cuda":
        # Loading the libraries of CUDA takes as long as a small session.
        open_cuda_session(one_node_model(), onnxruntime.SessionOptions())
        watch = _Watch()
        kept = [open_cuda_session(model, settings)]
        return {**watch.read(), "session": len(kept)}
    if provider == "cpu":
        watch = _Watch()
        kept = [cpu_session(Path(model), settings)]
        return {**watch.read(), "session": len(kept)}
    kept = []
    if provider == "shared":
        kept.append(create_session(model, device, _sharing(onnxruntime), **options))
        settings = _sharing(onnxruntime)
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        report = Path(folder) / "report.json"
        before, watch = _anonymous_bytes(), _Watch()
        kept.append(create_session(model, device, settings, report_file=report, **options))
        spent = watch.read()
        grown = _anonymous_bytes() - before
        parts = [
            part for graph in Report.load(report).data["graphs"] for part in graph["partitions"]
        ]
        phases = parts[0].get("phases_ms", {}) if parts else {}
    return {**spent, "anonymous_bytes": grown, "phases_ms": phases}


class _Watch:
    def __init__(self):
        self._begin = (time.perf_counter(), time.process_time())

    def read(self) -> dict[str, float]:
        seconds, cpu = self._begin
        return {"seconds": time.perf_counter() - seconds, "cpu_seconds": time.process_time() - cpu}


def _sharing(onnxruntime):
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("ep.share_ep_contexts", "1")
    return settings


def one_node_model() -> bytes:
    from onnx import TensorProto, helper

    tensor = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", tensor[:1], tensor[1:])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()


def _anonymous_bytes() -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    sys.exit(main())
