"""Registering the plugin with ONNX Runtime, and opening sessions that use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from . import cuda, kernel_cache
from .kv_heads import reported_heads
from .library import PROVIDER, get_library_path, minimum_runtime_version, version_tuple
from .mending import add_to_report, open_mended
from .requirements import missing_package_text

_registration = threading.Lock()


def onnxruntime_module():
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError(missing_package_text("onnxruntime")) from error
    return onnxruntime


def register() -> None:
    """Makes the provider known to ONNX Runtime in this process; calling it again is harmless."""
    ort = onnxruntime_module()
    if version_tuple(ort.__version__) < version_tuple(minimum_runtime_version()):
        raise RuntimeError(
            f"onnxruntime {ort.__version__} is too old for Tenon: it needs at least "
            f"{minimum_runtime_version()}. pip install --upgrade onnxruntime"
        )
    with _registration:
        if not _devices_of(ort):
            cuda.point_to_libraries()
            ort.register_execution_provider_library(PROVIDER, get_library_path())


def _devices_of(ort) -> list:
    """Tenon's, but for GPUs that are only compiled for."""
    offered = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    return [device for device in offered if device.device.metadata.get("is_virtual") != "1"]


def devices() -> list:
    """The OrtEpDevices that Tenon offers on this machine, best first."""
    register()
    return sorted(_devices_of(onnxruntime_module()), key=lambda d: _kind(d) == "cpu")


def _kind(device) -> str:
    return device.device.type.name.lower()


# Who says which of a machine's processes this one is: torchrun, Open MPI, Slurm.
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def _of_local_rank(wanted: str | int, options: dict) -> str | int:
    """With several ranks and several GPUs each process takes its own."""
    gpus = sum(_kind(device) == "gpu" for device in devices())
    alone = str(options.get("tensor_parallel_size", 1)) == "1"
    rank = next((os.environ[name] for name in _LOCAL_RANK if os.environ.get(name)), "")
    if alone or gpus < 2 or wanted not in ("auto", "gpu") or not rank.isdigit():
        return wanted
    if int(rank) >= gpus:
        raise ValueError(
            f"this is process {rank} of its machine, which has {gpus} GPUs: launch as many "
            "processes as there are GPUs"
        )
    return f"gpu:{rank}"


def _choose(wanted: str | int, compile_only: bool = False) -> object:
    offered = devices()
    if not offered:
        raise RuntimeError("Tenon offers no device here; `tenon doctor` says why")
    if wanted == "auto":
        return offered[0]
    if wanted == "gpu" and compile_only:
        return offered[0]  # compiling needs no GPU: the CPU's device takes target_arch as well
    if isinstance(wanted, int):
        if 0 <= wanted < len(offered):
            return offered[wanted]
    else:
        kind, _, index = wanted.partition(":")
        fitting = [device for device in offered if _kind(device) == kind]
        if fitting and (not index or (index.isdigit() and int(index) < len(fitting))):
            return fitting[int(index or 0)]
    names = ", ".join(f"{i}: {_kind(device)}" for i, device in enumerate(offered))
    advice = "say 'auto', a kind such as 'cpu', or a number."
    if isinstance(wanted, str) and wanted.startswith("gpu") and _kind(offered[0]) != "gpu":
        advice = "`tenon doctor` says what a GPU lacks here."
    raise ValueError(f"device {wanted!r} is not there. Tenon offers {names}; {advice}")


def create_session(model, device="auto", session_options=None, **options):
    """An onnxruntime.InferenceSession whose first provider is Tenon.

    model            path, bytes, or an onnx.ModelProto; a context model as well (docs/shipping.md)
    device           'auto' (a GPU where there is one), 'cpu', 'gpu', 'gpu:1', or an index into
                     devices()
    session_options  onnxruntime.SessionOptions; Tenon is added to them
    options          Tenon's provider options, e.g. precision_mode='int8'

    Kernels compiled for a GPU are kept for later processes in $XDG_CACHE_HOME/tenon or
    ~/.cache/tenon; cache_dir names another folder, cache_dir='' or TENON_CACHE_DIR=off none.
    An error in Tenon is raised: ONNX Runtime's own habit of retrying on the CPU is switched off.
    A model that ONNX Runtime refuses because it contradicts its own types is mended where that is
    possible; a MendedModelWarning says what was done, and `session.tenon_mended` has the list.
    """
    ort = onnxruntime_module()
    settings = session_options if session_options is not None else ort.SessionOptions()
    with reported_heads(options) as (options, own_heads):
        chosen = add_tenon(settings, device, options)
        session, mended = open_mended(
            lambda loadable: _open(ort, loadable, settings), _loadable(model), settings
        )
        session.tenon_own_heads = own_heads()
    session.tenon_mended = mended
    if mended and options.get("report_file"):
        add_to_report(Path(options["report_file"]), mended)
    session.tenon_gpu = _gpu_number(chosen)
    return session


def _open(ort, loadable: str | bytes, settings):
    try:
        return ort.InferenceSession(loadable, sess_options=settings, enable_fallback=0)
    except Exception as error:
        if "already been registered" in str(error):
            raise ValueError(
                "these session_options already hold Tenon: make new SessionOptions per session"
            ) from error
        raise


def add_tenon(settings, device: str | int, options: dict):
    """Adds Tenon with these options to session options; the device that was chosen."""
    chosen = _choose(_of_local_rank(device, options), compile_only="target_arch" in options)
    if _kind(chosen) == "gpu" or "target_arch" in options:
        options = _with_cache(options)
    settings.add_provider_for_devices([chosen], _as_strings(options))
    return chosen


def _with_cache(options: dict) -> dict:
    """On the CPU nothing is kept, and the option would be worth a warning."""
    if "cache_dir" in options or not (folder := kernel_cache.default_folder()):
        return options
    kernel_cache.tell_once(folder)
    return {**options, "cache_dir": folder}


def _gpu_number(device) -> int | None:
    """Which GPU a session's inputs and outputs can be bound on; None: the CPU."""
    return int(device.ep_metadata["cuda_device_id"]) if _kind(device) == "gpu" else None


def _loadable(model) -> str | bytes:
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"there is no model file at {path}")
        return str(path)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        return model.SerializeToString()
    raise TypeError(f"model must be a path, bytes or an onnx.ModelProto, not {type(model)}")


def _as_strings(options: dict) -> dict[str, str]:
    return {key: _as_string(key, value) for key, value in options.items()}


def _as_string(key: str, value) -> str:
    """Provider options travel as text: True is 1, a list is comma-separated."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (str, int, float, os.PathLike)):
        return str(value)
    if isinstance(value, Sequence):
        return ",".join(_as_string(key, item) for item in value)
    raise TypeError(f"option {key} must be text, a number or a list of them, not {type(value)}")
