"""Sessions to measure and compare: their settings, and those on ONNX Runtime's own providers."""

from __future__ import annotations

from pathlib import Path

from .mending import open_mended

_CUDA_PROVIDER = "CUDAExecutionProvider"


def session_options(threads: int):
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    if threads:
        settings.intra_op_num_threads = threads
    settings.log_severity_level = 4  # an error is raised, with the same text
    # A session's threads spin on after a Run, and would take the cores from the session whose
    # turn comes next.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    return settings


def cpu_session(model: Path, settings, exact: bool = False):
    """On ONNX Runtime's CPU provider; `exact`: one that rounds no activations by itself.

    From a DequantizeLinear of 4 bits and a product it makes a MatMulNBits that rounds its other
    operand to 8 bits: fast, but not what the model says.
    """
    import onnxruntime

    if exact:
        settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")

    def opened(loadable):
        return onnxruntime.InferenceSession(loadable, settings, providers=["CPUExecutionProvider"])

    return open_mended(opened, str(model), settings)[0]


def has_cuda_provider() -> bool:
    import onnxruntime

    return _CUDA_PROVIDER in onnxruntime.get_available_providers()


def open_cuda_session(model, settings, **options):
    """A session on ONNX Runtime's own CUDA provider, or the reason why there is none."""
    import onnxruntime

    if not has_cuda_provider():
        raise RuntimeError("this onnxruntime has no CUDA provider: pip install onnxruntime-gpu")
    settings.log_severity_level = 3  # why it does not start is in the log only

    def opened(loadable):
        return onnxruntime.InferenceSession(
            loadable,
            settings,
            providers=[(_CUDA_PROVIDER, options), "CPUExecutionProvider"],
            enable_fallback=0,
        )

    session, _ = open_mended(opened, model, settings)
    if _CUDA_PROVIDER not in session.get_providers():
        raise RuntimeError("the CUDA provider did not start: see its message above")
    return session


def gpu_of(session) -> int | None:
    """The number of the GPU that the session's first provider runs on."""
    provider = session.get_providers()[0]
    options = session.get_provider_options().get(provider, {})
    if provider == _CUDA_PROVIDER:
        return int(options.get("device_id", 0))
    return getattr(session, "tenon_gpu", None)
