"""Inputs and outputs bound to a session beforehand, on the host or in a GPU's memory."""

from __future__ import annotations

from . import tensors
from .provider_sessions import gpu_of


def bind(session, feed: dict, results: dict):
    """A binding of named OrtValues, which keep their addresses from Run to Run."""
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in results.items():
        binding.bind_ortvalue_output(name, value)
    binding.bound_values = (feed, results)  # ONNX Runtime 1.24 does not keep their memory
    return binding


def bind_addresses(session, feed: dict, results: dict):
    """As bind, for a provider that need not know who allocated; the caller keeps the values."""
    binding, gpu = session.io_binding(), gpu_of(session)
    for bind_one, values in ((binding.bind_input, feed), (binding.bind_output, results)):
        for name, value in values.items():
            place = ("cpu", 0) if value.device_name() == "cpu" else ("cuda", gpu)
            bind_one(name, *place, value.element_type(), value.shape(), value.data_ptr())
    return binding


def bound_to_gpu(session, inputs):
    """Inputs and outputs in the GPU's memory; one Run tells the outputs' shapes."""
    gpu = gpu_of(session)
    names = [output.name for output in session.get_outputs()]
    feed = {name: tensors.to_gpu_value(value, gpu) for name, value in inputs.items()}
    results = zip(names, session.run_with_ort_values(names, feed), strict=True)
    return bind(session, feed, {name: tensors.gpu_value_like(v, gpu) for name, v in results})


def caller(session, inputs):
    """One Run with everything bound beforehand, so that only the runtime is timed."""
    gpu = gpu_of(session)
    names = [output.name for output in session.get_outputs()]
    if any(map(tensors.holds_text, inputs.values())):
        return lambda: session.run(names, inputs)  # the runtime binds no strings
    feed = {name: tensors.to_ort_value(value) for name, value in inputs.items()}
    results = session.run_with_ort_values(names, feed)
    binding = session.io_binding()
    for name, value in inputs.items():
        bound = feed[name] if gpu is None else tensors.to_gpu_value(value, gpu)
        binding.bind_ortvalue_input(name, bound)
    allocated = []  # by each Run anew
    for output, value in zip(session.get_outputs(), results, strict=True):
        if not _is_plain(output, value):
            allocated.append(output.name)
        elif gpu is not None:
            binding.bind_ortvalue_output(output.name, tensors.gpu_value_like(value, gpu))
        else:
            binding.bind_ortvalue_output(output.name, value)

    def call() -> None:
        for name in allocated:  # a binding keeps what the Run before gave
            binding.bind_output(name)
        session.run_with_iobinding(binding)

    return call


def _is_plain(output, value) -> bool:
    """A tensor of numbers, of the declared rank: the next Run can write into the same memory.

    Some exporters declare another rank than results have; only bound ones are refused for it.
    """
    if not value.is_tensor() or "string" in value.data_type():
        return False
    return not output.shape or len(output.shape) == len(value.shape())
