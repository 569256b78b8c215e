"""Runs on a GPU that only the GPU bounds: memory bound beforehand, the host ahead."""

from __future__ import annotations

from collections.abc import Callable

from . import tensors
from .commands.bench import gpu_of


def bind(session, feed: dict, results: dict):
    """A binding of named OrtValues, which keep their addresses from Run to Run."""
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in results.items():
        binding.bind_ortvalue_output(name, value)
    return binding


def bind_addresses(session, feed: dict, results: dict):
    """As bind, for a provider that need not know who allocated; the caller keeps the values."""
    binding, gpu = session.io_binding(), gpu_of(session)
    for bind_one, values in ((binding.bind_input, feed), (binding.bind_output, results)):
        for name, value in values.items():
            bind_one(name, "cuda", gpu, value.element_type(), value.shape(), value.data_ptr())
    return binding


def bound_to_gpu(session, inputs):
    """Inputs and outputs in the GPU's memory; one Run tells the outputs' shapes."""
    gpu = gpu_of(session)
    names = [output.name for output in session.get_outputs()]
    feed = {name: tensors.to_gpu_value(value, gpu) for name, value in inputs.items()}
    results = zip(names, session.run_with_ort_values(names, feed), strict=True)
    return bind(session, feed, {name: tensors.gpu_value_like(v, gpu) for name, v in results})


def run_options(**entries: str):
    import onnxruntime

    options = onnxruntime.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


def host_ahead(**entries: str):
    """Run options with which a Run does not wait for the GPU."""
    return run_options(disable_synchronize_execution_providers="1", **entries)


def back_to_back(session, binding, runs: int, **entries: str) -> Callable[[], None]:
    """Many Runs of which only the last waits, so that the GPU is never idle between them."""
    ahead, waiting = host_ahead(**entries), run_options(**entries)

    def many() -> None:
        for _ in range(runs - 1):
            session.run_with_iobinding(binding, ahead)
        session.run_with_iobinding(binding, waiting)

    return many
