"""Writes what ml_dtypes and onnx.reference make of every small element type.

    golden_conversions.py OUTPUT_FOLDER

decode.<dtype>            one float64 per code
cast.<dtype>.<rule>       pairs of (float64 value, uint64 code); rule = saturate, wrap or e8m0's
quantize.<dtype>.<rule>   triples of (float64 x / scale, float64 zero point, uint64 code)
"""

import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_cast import cast_to

warnings.simplefilter("ignore")

FLOATS = {
    "f4e2m1": (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn, 4),
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn, 8),
    "f8e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz, 8),
    "f8e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2, 8),
    "f8e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz, 8),
    "f8e8m0": (TensorProto.FLOAT8E8M0, ml_dtypes.float8_e8m0fnu, 8),
    "f16": (TensorProto.FLOAT16, np.float16, 16),
    "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 16),
}
INTEGERS = {
    "i2": (TensorProto.INT2, ml_dtypes.int2, 2),
    "u2": (TensorProto.UINT2, ml_dtypes.uint2, 2),
    "i4": (TensorProto.INT4, ml_dtypes.int4, 4),
    "u4": (TensorProto.UINT4, ml_dtypes.uint4, 4),
    "i8": (TensorProto.INT8, np.int8, 8),
    "u8": (TensorProto.UINT8, np.uint8, 8),
    "i16": (TensorProto.INT16, np.int16, 16),
    "u16": (TensorProto.UINT16, np.uint16, 16),
    "i32": (TensorProto.INT32, np.int32, 32),
    "u32": (TensorProto.UINT32, np.uint32, 32),
    "i64": (TensorProto.INT64, np.int64, 64),
    "u64": (TensorProto.UINT64, np.uint64, 64),
}
QUANTIZED_FLOATS = ("f4e2m1", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
QUANTIZED_INTEGERS = ("i2", "u2", "i4", "u4", "i8", "u8", "i16", "u16")


def storage(bits):
    return np.uint16 if bits == 16 else np.uint8


def all_values(dtype, bits):
    codes = np.arange(1 << bits).astype(storage(bits))
    return codes.view(dtype).astype(np.float64)


def codes_of(array, bits):
    unsigned = array.view(f"u{array.dtype.itemsize}").astype(np.uint64)
    return unsigned & np.uint64((1 << bits) - 1)


def float_samples(dtype, bits, rng):
    """Every value, every midpoint between neighbours, the float32s beside them, and noise."""
    values = np.unique(all_values(dtype, bits))
    values = values[np.isfinite(values)]
    midpoints = (values[1:] + values[:-1]) / 2
    largest = values[-1]
    beyond = largest + (largest - values[-2]) * np.array([0.25, 0.5, 0.75, 1.0, 2.0])
    exact = np.concatenate([values, midpoints, beyond, -beyond]).astype(np.float32)
    up = np.nextafter(exact, np.float32(np.inf))
    down = np.nextafter(exact, np.float32(-np.inf))
    noise = rng.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    return np.concatenate([exact, up, down, noise, special])


def integer_samples(bits, signed, rng):
    """In and out of range; out of 32 bits ONNX leaves the result undefined.

    So are numbers below zero as wide unsigned ones: processors differ.
    """
    reach = 70_000 if bits == 16 else 1_000
    least = -reach if signed or bits <= 16 else 0
    small = np.arange(least, reach, 0.25, dtype=np.float32)
    if bits <= 16:
        return np.concatenate([small, rng.uniform(-(2**31), 2**31, 10_000).astype(np.float32)])
    low = -(2.0 ** (bits - 1)) if signed else 0.0
    high = 2.0 ** (bits - 1) if signed else 2.0**bits
    wide = rng.uniform(low, high * 0.999, 10_000).astype(np.float32)
    return np.concatenate([small, wide])


def write(path, *columns):
    table = np.stack([np.ascontiguousarray(c).view(np.uint64) for c in columns], axis=1)
    path.write_bytes(table.tobytes())


def write_cast(folder, name, onnx_type, bits, samples, rule, **arguments):
    codes = codes_of(cast_to(samples, onnx_type, **arguments), bits)
    write(folder / f"cast.{name}.{rule}", samples.astype(np.float64), codes)


def reference_quantize(samples, zero_point, onnx_type, saturate):
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], saturate=int(saturate))
    kinds = {"x": TensorProto.FLOAT, "scale": TensorProto.FLOAT, "zero": onnx_type}
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in kinds.items()]
    output = helper.make_tensor_value_info("y", onnx_type, None)
    graph = helper.make_graph([node], "quantize", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])
    feeds = {"x": samples.copy(), "scale": np.float32(1), "zero": zero_point}
    return ReferenceEvaluator(model).run(None, feeds)[0]


def write_quantize(folder, name, onnx_type, dtype, bits, samples, zeros, saturate):
    columns = [[], [], []]
    for zero in zeros:
        quantized = reference_quantize(samples, np.array(zero).astype(dtype), onnx_type, saturate)
        columns[0].append(samples.astype(np.float64))
        columns[1].append(np.full(samples.shape, zero, np.float64))
        columns[2].append(codes_of(quantized, bits))
    rule = "saturate" if saturate else "wrap"
    write(folder / f"quantize.{name}.{rule}", *[np.concatenate(c) for c in columns])


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    for name, (onnx_type, dtype, bits) in FLOATS.items():
        all_values(dtype, bits).tofile(folder / f"decode.{name}")
        samples = float_samples(dtype, bits, rng)
        for saturate in (True, False):
            rule = "saturate" if saturate else "wrap"
            if name == "f8e8m0":
                for mode in ("nearest", "up", "down"):
                    write_cast(
                        folder,
                        name,
                        onnx_type,
                        bits,
                        samples,
                        f"{rule}_{mode}",
                        saturate=saturate,
                        round_mode=mode,
                    )
                continue
            write_cast(folder, name, onnx_type, bits, samples, rule, saturate=saturate)
            if name in QUANTIZED_FLOATS:
                write_quantize(folder, name, onnx_type, dtype, bits, samples, (0.0,), saturate)
    for name, (onnx_type, dtype, bits) in INTEGERS.items():
        if bits <= 16:
            all_values(dtype, bits).tofile(folder / f"decode.{name}")
        samples = integer_samples(bits, name.startswith("i"), rng)
        write_cast(folder, name, onnx_type, bits, samples, "wrap", saturate=True)
        if name in QUANTIZED_INTEGERS:
            tame = samples[np.abs(samples) < 1e9]
            zeros = np.unique(all_values(dtype, bits))[[0, 1, -1]]
            write_quantize(folder, name, onnx_type, dtype, bits, tame, zeros, True)


if __name__ == "__main__":
    main()
