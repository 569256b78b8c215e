"""Models through the plugin: claimed whole, right, and the same from many threads."""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import attention, decoder, encoder, mlp, reference, validate
from onnxruntime_ep_tenon.models.builder import BFLOAT16, FLOAT, FLOAT16
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.number_formats import FORMATS
from onnxruntime_ep_tenon.models.product_stack import ProductStack
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.scaled_dot import FORMS, Problem, build_scaled_dot, form_names
from onnxruntime_ep_tenon.models.tolerances import INT8_ACTIVATIONS, for_model
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

# Forms that a runtime refuses before any provider is asked, and from when on it loads them.
LOADS_SINCE = {
    "mxfp8": "1.27.0",
    "mxfp4": "1.27.0",
    "nvfp4_contrib": "1.30.0",
    "fp8_contrib": "1.30.0",
    "matmul_2bits": "1.25.0",
}


def skip_unless_loadable(form: str) -> None:
    since = LOADS_SINCE.get(form)
    if since and not runtime_at_least(since):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} loads {form} only from {since} on")


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def run_claimed(model, inputs, **options):
    """Runs with Tenon alone: nothing may be left to another provider."""
    session, report = session_with_report(model, session_options=quiet(), claim="all", **options)
    assert report.left_out == [], report.reasons()
    assert report.coverage.claimed == report.coverage.nodes > 0
    return tensors.run(session, inputs)


def check(model, inputs, tolerance=None, **options):
    results = run_claimed(model, inputs, **options)
    names = [value.name for value in model.graph.output]
    for verdict in validate.compare_all(
        names, results, reference.evaluate(model, inputs), tolerance
    ):
        assert verdict.ok, verdict


def products():
    for form in form_names():
        allowed = FORMS[form].activations if form in FORMS else (FLOAT, FLOAT16, BFLOAT16)
        for activations in allowed:
            for rows in (1, 5):
                name = onnx.TensorProto.DataType.Name(activations).lower()
                yield pytest.param(form, activations, rows, id=f"{form}-{name}-{rows}")


@pytest.mark.parametrize(("form", "activations", "rows"), list(products()))
def test_every_spelling_of_a_product(form, activations, rows):
    skip_unless_loadable(form)
    problem = Problem(n=72, k=128, activations=activations, bias=form in FORMS)
    model = build_scaled_dot(form, problem)
    inputs = problem.inputs(rows)
    if form in FORMATS:
        # The quantiser keeps float32 at the border and casts inside.
        inputs = {"x": inputs["x"].astype(np.float32)}
    tolerance = for_model(Problem(activations=activations).dtype)
    if form == "matmul_4bits_int8":
        tolerance = INT8_ACTIVATIONS  # its accuracy_level asks for them
    check(model, inputs, tolerance)


@pytest.mark.parametrize("form", attention.FORMS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 17), (33, 33)])
def test_attention(form, queries, keys):
    model = attention.build_attention(form)
    check(model, attention.inputs_for(model, queries=queries, keys=keys))


@pytest.mark.parametrize("activation", mlp.ACTIVATIONS)
@pytest.mark.parametrize("format", [None, "nvfp4", "int4"])
def test_gated_mlp(activation, format):
    model = mlp.build_gated_mlp(activation=activation)
    if format:
        model, _ = quantize_model(model, format)
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    check(model, {"x": x})


@pytest.mark.parametrize("format", [None, "nvfp4"])
@pytest.mark.parametrize(("sequence", "past"), [(1, 7), (5, 0), (1, 0)])
def test_decoder(format, sequence, past):
    config = DecoderConfig()
    model = decoder.build_decoder(config)
    if format:
        model, _ = quantize_model(model, format)
    check(model, decoder.inputs_for(config, None, 1, sequence, past))


@pytest.mark.parametrize("activations", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("format", [None, *FORMATS])
def test_encoder_in_every_format(format, activations):
    skip_unless_loadable(format)
    model = encoder.build_encoder(shape=encoder.SMALL)
    if format:
        model, _ = quantize_model(model, format, activations)
    elif activations != "f32":
        pytest.skip("the float model has float32 activations")
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": "bfloat16"}[activations]
    check(model, encoder.random_tokens(3, 9, 200), for_model(np.dtype(dtype)))


def test_encoder_is_one_partition():
    model, _ = quantize_model(encoder.build_encoder(shape=encoder.SMALL), "nvfp4")
    _, report = session_with_report(model, session_options=quiet())
    assert len(report.partitions) == 1
    assert report.coverage.claimed == report.coverage.nodes
    assert {"attention", "scaled_dot"} <= report.kinds()


def test_shapes_may_change_from_run_to_run():
    model, _ = quantize_model(encoder.build_encoder(shape=encoder.SMALL), "nvfp4")
    session = tenon.create_session(model, session_options=quiet())
    for batch, sequence in ((1, 1), (3, 7), (2, 33), (1, 64), (3, 7)):
        tokens = encoder.random_tokens(batch, sequence, 200, seed=sequence)
        (result,) = session.run(None, tokens)
        verdict = validate.compare("y", result, reference.evaluate(model, tokens)[0])
        assert verdict.ok, (batch, sequence, verdict)


def test_many_threads_get_the_same_bits():
    model, _ = quantize_model(encoder.build_encoder(shape=encoder.SMALL), "nvfp4")
    session = tenon.create_session(model, session_options=quiet())
    cases = [encoder.random_tokens(1 + i % 3, 5 + i, 200, seed=i) for i in range(8)]
    alone = [session.run(None, tokens)[0] for tokens in cases]

    def work(index: int) -> bool:
        which = index % len(cases)
        return np.array_equal(session.run(None, cases[which])[0], alone[which])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))


def test_a_path_bytes_and_a_proto_are_the_same_model(tmp_path):
    problem = Problem(n=32, k=64)
    model = build_scaled_dot("nvfp4", problem)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    results = [
        tenon.create_session(form, session_options=quiet()).run(None, problem.inputs(2))[0]
        for form in (path, str(path), model.SerializeToString(), model)
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_weights_in_another_file(tmp_path):
    problem = Problem(n=32, k=64)
    model = build_scaled_dot("nvfp4", problem)
    inputs = problem.inputs(2)
    expected = reference.evaluate(model, inputs)[0]
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    (result,) = tenon.create_session(path, session_options=quiet()).run(None, inputs)
    assert validate.compare("y", result, expected).ok


def test_weights_listed_as_inputs_may_be_replaced():
    problem = Problem(n=32, k=64)
    model = build_scaled_dot("nvfp4_weights_as_inputs", problem)
    session = tenon.create_session(model, session_options=quiet(), claim="all")
    inputs = problem.inputs(2)
    (default,) = tensors.run(session, inputs)
    assert validate.compare("y", default, reference.evaluate(model, inputs)[0]).ok
    scale = np.asarray([0.5], np.float32)
    try:
        (replaced,) = tensors.run(session, {**inputs, "W_scale_2": scale})
    except Exception as error:
        assert "W_scale_2" in str(error)
        return
    original = onnx.numpy_helper.to_array(
        next(t for t in model.graph.initializer if t.name == "W_scale_2")
    )
    np.testing.assert_allclose(replaced, default * 0.5 / original, rtol=1e-4)


def test_register_twice_is_harmless():
    tenon.register()
    tenon.register()
    assert [device.ep_name for device in tenon.devices()].count(tenon.get_ep_name()) >= 1


def test_int8_activations_are_near_and_only_on_request():
    problem = Problem(n=64, k=256)
    model = build_scaled_dot("int4", problem)
    inputs = problem.inputs(3)
    exact = reference.evaluate(model, inputs)[0]
    results = {}
    for mode in ("exact", "int8"):
        session = tenon.create_session(model, session_options=quiet(), precision_mode=mode)
        results[mode] = session.run(None, inputs)[0]
    assert validate.compare("y", results["exact"], exact).ok
    error = np.sqrt(np.mean((results["int8"] - exact) ** 2) / np.mean(exact**2))
    assert error < 0.02


def test_a_session_holds_weights_once_while_it_is_created(tmp_path):
    stack = ProductStack(tmp_path, "int4", 4096, 4096, 24)
    text = f"""
        from onnxruntime_ep_tenon import create_session
        from onnxruntime_ep_tenon.host_memory import PeakMemory
        with PeakMemory() as first:
            create_session({str(stack.model(1, 1))!r}, "cpu", claim="all")
        with PeakMemory() as memory:
            create_session({str(stack.model(1))!r}, "cpu", claim="all")
        print(memory.grown)
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    size = stack.path.stat().st_size
    assert 1.0 * size < int(ran.stdout) < 1.3 * size
