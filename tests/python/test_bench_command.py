"""`tenon bench`: what is timed is the runtime, what is compared and told is what was run."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from command_models import classifier, linear, saved
from onnxruntime_ep_tenon.bench.measure import Timing, speed_text
from onnxruntime_ep_tenon.bindings import caller
from onnxruntime_ep_tenon.models.quantize import quantize_model

QUICK = ("--seconds", "0.05")


def cpu_session(model):
    return onnxruntime.InferenceSession(model.SerializeToString())


def test_only_the_runtime_is_timed(monkeypatch):
    """Tensors are bound before: what is called again goes through no wrapper of the package."""
    session = cpu_session(linear())
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    call = caller(session, {"x": x})
    monkeypatch.setattr(session, "run_with_ort_values", None)
    bound = []
    run = session.run_with_iobinding
    monkeypatch.setattr(session, "run_with_iobinding", lambda b: (bound.append(b), run(b)))
    call()
    call()
    assert len(bound) == 2 and bound[0] is bound[1]
    np.testing.assert_array_equal(bound[0].get_outputs()[0].numpy(), session.run(None, {"x": x})[0])


@pytest.mark.plugin
def test_bench_tells_what_it_ran(command, tmp_path):
    path = saved(linear(), tmp_path)
    all_of_it = ("--option", "claim=all")
    told = command("bench", path, "--threads", 1, *all_of_it, *QUICK)
    assert told.status == 0, told.err
    assert "threads: 1" in told.out and "input x: float32 [1, 64]" in told.out
    assert "Sizes chosen: rows=1" in told.out and "Tenon claims 2 of 2 nodes" in told.out
    assert "Outputs of Tenon and the CPU provider: agree" in told.out
    for column in ("session", "memory", "median", "p90", "p99", "per second"):
        assert column in told.out
    assert "Tenon is" in told.out and "of the CPU provider's time" not in told.out
    result = json.loads(command("bench", path, *all_of_it, *QUICK, "--json").out)
    assert result["claimed"] == {"nodes": 2, "claimed": 2, "partitions": 1}
    for timing in result["timings"]:
        assert timing["median_s"] <= timing["p90_s"] <= timing["p99_s"]
        assert timing["session_s"] > 0 and timing["peak_bytes"] >= 0 and timing["per_second"] > 0


@pytest.mark.plugin
def test_outputs_that_differ_are_told_and_fail(command, tmp_path):
    ours, other = linear(), linear()
    values = onnx.numpy_helper.to_array(ours.graph.initializer[0])
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(-values, "W"))
    path, second = saved(ours, tmp_path), saved(other, tmp_path, "other.onnx")
    told = command("bench", path, "--cpu-model", second, *QUICK)
    assert told.status == 1 and "DIFFER: 'y'" in told.out


@pytest.mark.plugin
def test_a_rounding_cpu_provider_is_compared_without_its_rounding(command, tmp_path):
    model, _ = quantize_model(linear(k=256), "int4")
    told = command("bench", saved(model, tmp_path), "--dim", "rows=16", *QUICK)
    assert told.status == 0, told.out
    assert "Outputs of Tenon and the CPU provider: agree" in told.out


@pytest.mark.plugin
def test_a_model_that_tenon_cannot_run_has_its_reasons(command, tmp_path):
    plain = saved(linear(), tmp_path)
    model, _ = quantize_model(onnx.load(plain), "nvfp4")
    path = saved(model, tmp_path, "nvfp4.onnx")
    excluded = ("--option", "exclude_nodes=W/dequantized")
    told = command("bench", path, "--cpu-model", plain, *excluded, *QUICK)
    assert told.status == 1 and "tenon cannot run this model" in told.out
    reasons = told.out[told.out.index("excluded by the option exclude_nodes") :]
    assert reasons.splitlines()[1].startswith("    DequantizeLinear")
    told = command("bench", path, *excluded, *QUICK)
    assert told.status == 1 and "DequantizeLinear 'W/dequantized'" in told.err


def timing(median, spread=0.0):
    return Timing("x", median, median - spread, median + spread, median + spread, median, 10)


def test_ratios_are_said_as_people_say_them():
    def said(ours, theirs, spread=0.0):
        return speed_text(timing(ours, spread), "it", timing(theirs, spread))

    assert said(1.0, 1.22) == "is 1.22x faster than it"
    assert said(1.3, 1.0) == "is 1.30x slower than it"
    assert said(1.0, 1.004) == "is as fast as it"
    assert said(1.0, 1.22, 0.5).endswith("but each median lies in the other's spread")


@pytest.mark.plugin
def test_a_result_of_another_rank_than_declared_is_timed(command, tmp_path):
    """Some exporters declare it wrongly; a Run that allocates its results only warns."""
    model = linear()
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    shape = model.graph.output[0].type.tensor_type.shape
    shape.dim.extend([onnx.TensorShapeProto.Dimension(dim_param=name) for name in "abc"])
    told = command("bench", saved(model, tmp_path), *QUICK)
    assert told.status == 0, told.err + told.out


@pytest.mark.plugin
def test_sequences_of_maps_are_timed(command, tmp_path):
    told = command("bench", saved(classifier(), tmp_path), *QUICK)
    assert told.status == 0, told.err + told.out


@pytest.mark.plugin
def test_no_speed_is_told_where_nothing_is_claimed(command, tmp_path):
    path = saved(linear(), tmp_path)
    told = command("bench", path, "--option", "exclude_ops=MatMul,Relu", *QUICK)
    assert told.status == 0, told.err + told.out
    assert "Tenon claims none of 2 nodes." in told.out and "Tenon claims nothing of it" in told.out
    assert "faster" not in told.out and "slower" not in told.out


@pytest.mark.plugin
def test_another_model_is_not_said_to_agree(command, tmp_path):
    path = saved(linear(), tmp_path)
    model, _ = quantize_model(onnx.load(path), "nvfp4")
    quantized = saved(model, tmp_path, "nvfp4.onnx")
    told = command("bench", quantized, "--cpu-model", path, *QUICK)
    assert told.status == 0, told.out
    assert "% (rms), the other model being model.onnx" in told.out and "agree" not in told.out
    told = command("bench", quantized, *QUICK)
    assert "cpu cannot run this model" in told.out and "--cpu-model FILE" in told.out
