"""`tenon run --compare`: against the CPU provider, float64, or the model it was made from."""

import json

import onnx
import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.models.quantize import quantize_model


@pytest.fixture
def original(tmp_path):
    return saved(linear(k=256), tmp_path, "original.onnx")


def quantized(original, format):
    model, _ = quantize_model(onnx.load(original), format)
    return saved(model, original.parent, f"{format}.onnx")


@pytest.mark.plugin
def test_int4_is_not_wrong_because_the_cpu_provider_rounds_activations(command, original):
    told = command("run", quantized(original, "int4"), "--compare", "cpu", "--dim", "rows=16")
    assert told.status == 0, told.out
    assert "Compared with ONNX Runtime's CPU provider" in told.out and "WRONG" not in told.out


@pytest.mark.plugin
def test_a_quantised_model_is_compared_with_its_original(command, original):
    told = command("run", quantized(original, "nvfp4"), "--compare", original)
    assert told.status == 0, told.out
    assert f"Compared with {original}" in told.out and "rounded weights" in told.out
    path = quantized(original, "nvfp4")
    (verdict,) = json.loads(command("run", path, "--compare", original, "--json").out)["compared"]
    assert verdict["ok"] and 0.02 < verdict["rms_error"] < 0.3


@pytest.mark.plugin
def test_another_model_is_told_from_the_original(command, original):
    model = onnx.load(original)
    values = onnx.numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(-values, "W"))
    told = command("run", saved(model, original.parent), "--compare", original)
    assert told.status == 1 and "WRONG" in told.out and "zeros would be nearer" in told.out


@pytest.mark.plugin
def test_a_comparison_that_failed_says_so(command, original):
    told = command("run", quantized(original, "nvfp4"), "--compare", "cpu")
    assert told.status == 1
    assert "Tenon ran" in told.out and "WRONG" not in told.out
    assert "ONNX Runtime's CPU provider could not run it, so nothing is known" in told.out


@pytest.mark.plugin
def test_rounding_that_was_asked_for_has_its_own_bound(command, original):
    path = quantized(original, "int4")
    arguments = ("--option", "precision_mode=int8", "--dim", "rows=16")
    told = command("run", path, "--compare", "reference", *arguments)
    assert told.status == 0, told.out
    assert "activations rounded to int8" in told.out


def test_what_to_compare_with_must_be_there(command, original):
    told = command("run", original, "--compare", "nobody.onnx")
    assert told.status == 1
    assert "--compare takes 'reference', 'cpu' or a model file; there is none at" in told.err
