"""Codes and scales, against ml_dtypes, onnx.reference and the formats' own definitions."""

import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnxruntime_ep_tenon.models.number_formats import FORMATS, encode, quantize, relative_error
from onnxruntime_ep_tenon.models.reference import unpack_bits
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot, pack_bits

WEIGHTS = Problem(n=48, k=128, seed=3).weights()

# The largest rms error that a good quantiser leaves on normally distributed weights.
EXPECTED_ERROR = {"nvfp4": 0.10, "mxfp8": 0.03, "mxfp4": 0.13, "int4": 0.12, "fp8": 0.03}


@pytest.mark.parametrize("name", FORMATS)
def test_error_is_what_the_format_allows(name):
    error = relative_error(WEIGHTS, quantize(WEIGHTS, FORMATS[name]).dequantize())
    assert 0 < error < EXPECTED_ERROR[name]


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_is_nearest_to_its_value(name):
    fmt = FORMATS[name]
    q = quantize(WEIGHTS, fmt)
    codes = (
        np.arange(-8, 8)
        if name == "int4"
        else np.arange(256 if fmt.bits == 8 else 16, dtype=np.uint8).view(fmt.element)
    )
    values = np.unique(codes.astype(np.float64))
    values = values[np.isfinite(values)]
    step = q.dequantize() / np.where(q.codes.astype(np.float64) == 0, 1, q.codes.astype(np.float64))
    nonzero = q.codes.astype(np.float64) != 0
    wanted = (WEIGHTS[nonzero] / step[nonzero])[:, None]
    best = np.abs(values[None, :] - wanted).min(axis=1)
    ours = np.abs(q.codes.astype(np.float64)[nonzero] - wanted[:, 0])
    assert np.all(ours <= best + 1e-5)


def test_encoding_saturates_and_rounds_to_even():
    values = np.array([0.25, 0.75, 2.5, 5.0, 7.0, -100.0], np.float32)
    assert encode(values, FORMATS["nvfp4"]).astype(np.float32).tolist() == [0, 1, 2, 4, 6, -6]
    assert encode(np.array([7.5, -9, 0.5, 1.5]), FORMATS["int4"]).astype(np.int8).tolist() == [
        7, -8, 0, 2,
    ]  # fmt: skip
    assert float(encode(np.array([1e9]), FORMATS["mxfp8"])[0]) == 448.0


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "mxfp4", "int4"])
def test_empty_and_tiny_blocks_stay_finite(name):
    weights = np.zeros((2, 64), np.float32)
    weights[1, :32] = 1e-30
    weights[1, 40] = 1.0
    q = quantize(weights, FORMATS[name])
    restored = q.dequantize(np.float32)
    assert np.all(np.isfinite(restored))
    assert np.all(restored[0] == 0)
    assert restored[1, 40] == pytest.approx(1.0, rel=0.08)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(bad):
    weights = WEIGHTS.copy()
    weights[1, 1] = bad
    with pytest.raises(ValueError, match="NaN or Inf"):
        quantize(weights, FORMATS["nvfp4"])


def test_a_block_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="not a multiple of the block of 16"):
        quantize(np.ones((2, 24), np.float32), FORMATS["nvfp4"])


class DequantizeLinear(DequantizeLinear_25):
    """onnx.reference takes opset 21's version for 24, and that one knows no output_dtype."""

    op_domain = ""


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_equals_onnx_reference_bit_for_bit(name):
    """The stored model, evaluated by onnx itself, gives exactly our float32 weights."""
    problem = Problem(n=48, k=128, seed=3)
    model = build_scaled_dot(name, problem)
    del model.graph.output[:]
    value = next(n for n in model.graph.node if n.op_type == "MatMul").input[1]
    model.graph.output.add().name = value
    (restored,) = ReferenceEvaluator(model, new_ops=[DequantizeLinear]).run(None, problem.inputs(1))
    ours = quantize(problem.weights(), FORMATS[name]).dequantize(np.float32)
    assert restored.dtype == np.float32
    np.testing.assert_array_equal(restored.T, ours)


def test_power_of_two_scales_are_powers_of_two():
    scales = quantize(WEIGHTS, FORMATS["mxfp4"]).scales
    assert scales.dtype == ml_dtypes.float8_e8m0fnu
    fraction, _ = np.frexp(scales.astype(np.float64))
    assert np.all(fraction == 0.5)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing_is_reversible_and_low_bits_come_first(bits):
    codes = np.random.default_rng(0).integers(0, 2**bits, (3, 16)).astype(np.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (3, 16 * bits // 8)
    np.testing.assert_array_equal(unpack_bits(packed, bits), codes)
    assert packed[0, 0] & (2**bits - 1) == codes[0, 0]
