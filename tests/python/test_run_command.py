"""`tenon run --compare`: against the CPU provider, float64, or the model it was made from."""

import json
import re
import sys

import numpy as np
import onnx
import pytest
from command_models import classifier, linear, rounded_activations, saved, unsorted
from onnx import TensorProto
from onnxruntime_ep_tenon import tensors, trial
from onnxruntime_ep_tenon.models import tolerances, validate
from onnxruntime_ep_tenon.models.builder import GraphBuilder
from onnxruntime_ep_tenon.models.number_formats import FORMATS
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
    assert f"Compared with {original}" in told.out
    assert "1 rounded weights: 2 * 12 % * sqrt(1)" in told.out and "2.40e-01" in told.out
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


def scaled(model, name, factor):
    """Its float weights or scales, times a number."""
    for tensor in model.graph.initializer:
        if tensor.name == name:
            values = onnx.numpy_helper.to_array(tensor)
            scaled = (values * factor).astype(values.dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(scaled, name))
    return model


@pytest.mark.plugin
def test_more_error_than_the_format_makes_is_wrong(command, original):
    """A quarter off: of 4 bits too much, and of float weights a thousand times too much."""
    model, _ = quantize_model(onnx.load(original), "int4")
    scales = next(node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear")
    coarse = saved(scaled(model, scales, 1.3), original.parent, "coarse.onnx")
    told = command("run", coarse, "--compare", original)
    assert told.status == 1 and "WRONG" in told.out and "more than 24 %" in told.out
    fine = saved(scaled(onnx.load(original), "W", 1.01), original.parent, "fine.onnx")
    told = command("run", fine, "--compare", original, "--json")
    (verdict,) = json.loads(told.out)["compared"]
    assert told.status == 1 and not verdict["ok"]
    assert verdict["rms_error"] == pytest.approx(0.01, rel=0.1) and verdict["bound"] == 2e-5


def test_the_bound_of_rounded_weights_follows_format_and_depth(original):
    bounds = {
        name: tolerances.against_original(quantize_model(onnx.load(original), name)[0], None).rms
        for name in FORMATS
    }
    assert bounds["fp8"] == bounds["mxfp8"] == pytest.approx(2 * 0.03)
    assert bounds["nvfp4"] == bounds["mxfp4"] == bounds["int4"] == pytest.approx(2 * 0.12)
    deep = quantize_model(onnx.load(original), "fp8")[0]
    deep.graph.node.extend(3 * [n for n in deep.graph.node if n.op_type == "DequantizeLinear"])
    assert tolerances.against_original(deep, None).rms == pytest.approx(2 * 0.03 * 2)
    deep.graph.node.extend(99 * [n for n in deep.graph.node if n.op_type == "DequantizeLinear"])
    assert tolerances.against_original(deep, None).rms == 0.5


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


@pytest.mark.plugin
def test_sequences_of_maps_are_shown_and_compared(command, tmp_path):
    path = saved(classifier(), tmp_path)
    told = command("run", path, "--dim", "rows=2", "--compare", "cpu")
    assert told.status == 0, told.err + told.out
    assert re.search(r"out  z +seq\(map\(int64,tensor\(float\)\)\) +\[8\]", told.out)
    assert re.search(r"z +ok", told.out)


@pytest.mark.plugin
def test_integers_are_told_as_integers(command, tmp_path):
    g = GraphBuilder("counted", 21)
    x = g.input("waveforms_len", TensorProto.INT64, [1])
    g.node("Add", [x, x], outputs=["y"])
    g.output("y", TensorProto.INT64, [1])
    np.save(tmp_path / "x.npy", np.array([16000]))
    told = command("run", saved(g.model(), tmp_path), "--input", f"waveforms_len={tmp_path}/x.npy")
    assert told.status == 0 and "16000 .. 16000" in told.out and "32000 .. 32000" in told.out


def test_what_sequences_and_maps_hold_is_one_array():
    nested = [{1: 0.5, 2: 0.25}, {1: 0.0, 2: 1.0}]
    np.testing.assert_array_equal(tensors.flat(nested), [0.5, 0.25, 0.0, 1.0])
    parts = [np.ones([2, 2], np.float32), np.zeros([1], np.float32)]
    assert tensors.flat(parts).tolist() == [1, 1, 1, 1, 0]
    assert tensors.flat([]).size == 0 and tensors.flat(None).size == 0
    assert tensors.flat(["a", "b"]).tolist() == ["a", "b"]


def test_a_model_that_rounds_its_activations_has_the_bound_of_that():
    """A last bit decides between two codes: two right answers differ by a part of the range."""
    bound = tolerances.for_activations(rounded_activations())
    assert bound is tolerances.QUANTIZED_ACTIVATIONS
    assert tolerances.for_activations(linear()) is None
    wanted = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    near, wrong = wanted * np.float32(1.015), wanted * np.float32(1.5)
    (verdict,) = validate.compare_rounded(["y"], [near], [wanted], bound)
    assert verdict.ok
    (verdict,) = validate.compare_rounded(["y"], [wrong], [wanted], bound)
    assert not verdict.ok


@pytest.mark.plugin
def test_that_the_model_rounds_is_told(command, tmp_path):
    told = command("run", saved(rounded_activations(), tmp_path), "--compare", "cpu")
    assert told.status == 0, told.out
    assert "(the model rounds its activations" in told.out


@pytest.mark.plugin
def test_a_failed_comparison_names_others(command, original):
    told = command("run", quantized(original, "nvfp4"), "--compare", "cpu")
    assert "--compare reference, or --compare with the model that it was made from" in told.out


@pytest.mark.plugin
@pytest.mark.parametrize("name", ["run", "bench"])
def test_text_comes_from_a_file(command, tmp_path, name):
    g = GraphBuilder("text", 21)
    text = g.input("text", TensorProto.STRING, ["rows"])
    g.node("StringConcat", [text, text], outputs=["y"])
    g.output("y", TensorProto.STRING, ["rows"])
    np.save(tmp_path / "text.npy", np.array(["a", "bc"]))
    path = saved(g.model(), tmp_path)
    more = ("--compare", "cpu") if name == "run" else ("--seconds", "0.05")
    told = command(name, path, "--input", f"text={tmp_path}/text.npy", *more)
    assert told.status == 0, told.err + told.out
    assert re.search(r"text:? +string +\[2\]", told.out)
    told = command(name, path)
    assert told.status == 1 and "give one with --input NAME=FILE" in told.err


@pytest.mark.plugin
def test_a_misspelt_option_is_told_without_the_runtime_s_source(command, original):
    told = command("run", original, "--option", "clam=all")
    meant = "tenon: error: unknown provider option 'clam' (did you mean 'claim'?); valid options"
    assert told.status == 1 and told.err.startswith(meant)
    assert "/onnxruntime_src" not in told.err and "CreateProvider" not in told.err


@pytest.mark.parametrize("name", ["run", "bench", "explain", "compile"])
def test_a_missing_onnxruntime_is_told_with_the_command_that_installs_it(
    command, original, monkeypatch, name
):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    told = command(name, original)
    assert told.status == 1
    assert told.err.startswith("tenon: error: onnxruntime is not installed: pip install 'onnxrun")


@pytest.mark.plugin
def test_what_was_written_is_named(command, original, tmp_path):
    told = command("run", original, "--save", tmp_path / "arrays")
    assert told.status == 0 and f"Written: {tmp_path}/arrays" in told.out


@pytest.mark.plugin
def test_a_model_whose_nodes_are_out_of_order_is_compared(command, tmp_path):
    told = command("run", saved(unsorted(), tmp_path), "--compare", "reference")
    assert told.status == 0, told.out


def test_an_error_that_lists_everything_is_cut():
    told = trial.first_line(RuntimeError("no input 'x' in " + ", ".join(map(str, range(10000)))))
    assert told.startswith("no input 'x'") and len(told) <= 400


def test_two_roundings_to_16_bits_have_a_bound_of_their_own():
    """Ours was nearer to float32 than the CPU provider's, and was called WRONG."""
    assert tolerances.for_activations(linear(TensorProto.FLOAT16)) is None
    assert tolerances.against_a_provider(linear(TensorProto.FLOAT16)) is tolerances.BOTH_16_BITS
    assert tolerances.against_a_provider(linear()) is None
    rounded = tolerances.against_a_provider(rounded_activations())
    assert rounded is tolerances.QUANTIZED_ACTIVATIONS
