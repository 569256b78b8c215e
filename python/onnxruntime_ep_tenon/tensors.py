"""Tensors of any ONNX type in and out of a session, as raw bytes where numpy has no such type."""

from __future__ import annotations

import ctypes

import numpy as np

from .requirements import require

# ONNX element types that onnxruntime cannot hand to numpy: number, ml_dtypes name, bits.
_RAW_TYPES = {
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
}


def _raw_type_of(dtype: np.dtype) -> tuple[int, int] | None:
    for number, (name, bits) in _RAW_TYPES.items():
        if dtype.name == name:
            return number, bits
    return None


def to_ort_value(array: np.ndarray):
    """An OrtValue holding a copy of the array."""
    import onnxruntime

    raw = _raw_type_of(array.dtype)
    if raw is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.array(array, order="C"))
    number, bits = raw
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), number)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if bits < 8:
        data = _pack(data, bits)
    if data.size:
        ctypes.memmove(value.data_ptr(), data.ctypes.data, data.size)
    return value


def dtype_of(value) -> np.dtype:
    """The numpy or ml_dtypes type of an OrtValue's elements."""
    number = value.element_type()
    if number in _RAW_TYPES:
        name = _RAW_TYPES[number][0]
        return np.dtype(getattr(require("ml_dtypes", f"for {name} tensors"), name))
    plain = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 10: np.float16}
    return np.dtype(plain[number])


_NVIDIA = 0x10DE  # PCI vendor


def gpu_value(shape, element_type: int, gpu: int):
    """An OrtValue in the GPU's memory, of an ONNX element type."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(shape), element_type, "gpu", gpu, _NVIDIA
    )


def empty_value(shape, element_type: int, gpu: int | None):
    """As gpu_value; on the host where there is no GPU."""
    import onnxruntime

    if gpu is not None:
        return gpu_value(shape, element_type, gpu)
    return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), element_type)


def to_value(array: np.ndarray, gpu: int | None):
    """An OrtValue that holds a copy of the array, in the memory of that GPU or on the host."""
    return to_ort_value(array) if gpu is None else to_gpu_value(array, gpu)


def on_host(value) -> np.ndarray:
    """The tensor as an array, wherever it is."""
    return from_ort_value(value) if value.device_name() == "cpu" else from_gpu_value(value)


def gpu_value_like(value, gpu: int):
    """An OrtValue in the GPU's memory with the type and shape of another."""
    return gpu_value(value.shape(), value.element_type(), gpu)


def to_gpu_value(array: np.ndarray, gpu: int):
    """An OrtValue in the GPU's memory holding a copy of the array."""
    import onnxruntime

    on_host = to_ort_value(array)
    on_gpu = gpu_value_like(on_host, gpu)
    onnxruntime.copy_tensors([on_host], [on_gpu])
    return on_gpu


def from_gpu_value(value) -> np.ndarray:
    """The tensor in the GPU's memory as an array."""
    import onnxruntime

    on_host = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(value.shape()), value.element_type()
    )
    onnxruntime.copy_tensors([value], [on_host])
    return from_ort_value(on_host)


def from_ort_value(value) -> np.ndarray:
    """The tensor as an array; types outside numpy come back as ml_dtypes ones."""
    number = value.element_type() if value.is_tensor() else None
    if number not in _RAW_TYPES:
        return value.numpy()
    name, bits = _RAW_TYPES[number]
    dtype = np.dtype(getattr(require("ml_dtypes", f"to read {name} tensors"), name))
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    stored = np.empty((count * bits + 7) // 8, np.uint8)
    if stored.size:
        ctypes.memmove(stored.ctypes.data, value.data_ptr(), stored.size)
    if bits == 16:
        return stored.view(dtype).reshape(shape)
    codes = _unpack(stored, bits, count) if bits < 8 else stored
    if name in ("int4", "int2"):
        # ml_dtypes keeps one sign-extended value per byte.
        shift = 8 - bits
        codes = ((codes << shift).view(np.int8) >> shift).view(np.uint8)
    return codes.view(dtype).reshape(shape)


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    per_byte = 8 // bits
    codes = np.pad(codes & np.uint8(2**bits - 1), (0, -codes.size % per_byte))
    shifts = (np.arange(per_byte) * bits).astype(np.uint8)
    packed = np.bitwise_or.reduce(codes.reshape(-1, per_byte) << shifts, axis=1)
    return np.ascontiguousarray(packed.astype(np.uint8))


def _unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    shifts = (np.arange(8 // bits) * bits).astype(np.uint8)
    codes = (packed[:, None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(-1)[:count]


def run(session, inputs: dict[str, np.ndarray], outputs: list[str] | None = None) -> list:
    """session.run for inputs and outputs of any type; sequences and maps as flat() has them."""
    names = outputs or [output.name for output in session.get_outputs()]
    feed = {name: np.asarray(value) for name, value in inputs.items()}
    odd = any(output.name in names and not is_tensor(output) for output in session.get_outputs())
    if odd or any(map(holds_text, feed.values())):
        numbers = {name: to_ort_value(a) for name, a in feed.items() if not holds_text(a)}
        return [flat(value) for value in session.run(names, {**feed, **numbers})]
    feed = {name: to_ort_value(array) for name, array in feed.items()}
    return [from_ort_value(value) for value in session.run_with_ort_values(names, feed)]


def holds_text(array: np.ndarray) -> bool:
    """Strings, of which the runtime makes no OrtValue: they go through session.run alone."""
    return array.dtype.kind in "USO"


def type_name(array: np.ndarray) -> str:
    """Of its elements, as people say it: numpy calls strings '<U13' or 'object'."""
    return "string" if holds_text(array) else str(array.dtype)


def is_tensor(output) -> bool:
    """Of a session's input or output: whether it is one, and no sequence, map or optional."""
    return output.type.startswith("tensor(")


def flat(value) -> np.ndarray:
    """What a sequence or a map holds as one array, to be shown and compared; a tensor as it is."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return np.asarray([] if value is None else value)
    parts = [flat(part).reshape(-1) for part in value]
    return np.concatenate(parts) if parts else np.asarray([])
