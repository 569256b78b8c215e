"""Context models: the same bits in a fresh process, with the original model gone."""

import json
import pickle
import re
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
from onnx import TensorProto, helper
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.context_models import ContextModel, compile_model
from onnxruntime_ep_tenon.models import attention, decoder, encoder, mlp
from onnxruntime_ep_tenon.models.builder import FLOAT, FLOAT16, GraphBuilder
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot
from onnxruntime_ep_tenon.report import session_with_report
from test_body_claims import loop_model
from test_real_models import CASES as REAL_MODELS
from test_real_models import MODELS

pytestmark = pytest.mark.plugin

SINCE = {"mxfp8": "1.27.0", "mxfp4": "1.27.0", "nvfp4_contrib": "1.30.0", "matmul_2bits": "1.25.0"}
PRODUCTS = ["plain", "nvfp4", "mxfp8", "mxfp4", "int4", "fp8", "nvfp4_contrib", "matmul_2bits"]
PRODUCTS += ["matmul_4bits", "nvfp4_weights_as_inputs"]


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def quantized(model, format):
    return quantize_model(model, format)[0] if format else model


def two_partitions_around_a_convolution():
    """Nobody of ours runs Conv: nodes of both kinds stand in the context model."""
    random = np.random.default_rng(3)
    g = GraphBuilder("around", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    w = g.parameter("A", random.standard_normal((64, 64)).astype(np.float32))
    first = g.node("Relu", [g.node("MatMul", [x, w])])
    image = g.node("Reshape", [first, g.parameter("s", np.array([-1, 1, 8, 8], np.int64))])
    k = g.parameter("K", random.standard_normal((1, 1, 3, 3)).astype(np.float32))
    turned = g.node("Conv", [image, k], pads=[1, 1, 1, 1])
    flat = g.node("Reshape", [turned, g.parameter("t", np.array([-1, 64], np.int64))])
    w = g.parameter("B", random.standard_normal((64, 32)).astype(np.float32))
    g.node("Softmax", [g.node("MatMul", [flat, w])], outputs=["y"])
    g.output("y", FLOAT, ["rows", 32])
    return g.model(), {"x": random.standard_normal((5, 64)).astype(np.float32)}


def around_a_convolution_and_past_it():
    """A value that only contexts write and read."""
    random = np.random.default_rng(6)
    g = GraphBuilder("past", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    w = g.parameter("A", random.standard_normal((64, 64)).astype(np.float32))
    first = g.node("Relu", [g.node("MatMul", [x, w])])
    other = g.node("Softmax", [first])
    image = g.node("Reshape", [first, g.parameter("s", np.array([-1, 1, 8, 8], np.int64))])
    k = g.parameter("K", random.standard_normal((1, 1, 3, 3)).astype(np.float32))
    turned = g.node("Conv", [image, k], pads=[1, 1, 1, 1])
    flat = g.node("Reshape", [turned, g.parameter("t", np.array([-1, 64], np.int64))])
    w = g.parameter("B", random.standard_normal((64, 32)).astype(np.float32))
    g.node("MatMul", [g.node("Add", [flat, other]), w], outputs=["y"])
    g.output("y", FLOAT, ["rows", 32])
    return g.model(), {"x": random.standard_normal((5, 64)).astype(np.float32)}


def overridable_weight():
    """Its weight is an input with a default."""
    g = GraphBuilder("overridable", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    w = g.parameter("W", np.random.default_rng(4).standard_normal((64, 48)).astype(np.float32))
    g.node("Relu", [g.node("MatMul", [x, w])], outputs=["y"])
    g.output("y", FLOAT, ["rows", 48])
    model = g.model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("W", FLOAT, [64, 48]))
    return model, {"x": np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)}


def product(form: str):
    activations = FLOAT16 if form == "nvfp4_contrib" else FLOAT
    problem = Problem(n=72, k=128, activations=activations)
    return build_scaled_dot(form, problem), problem.inputs(5)


def cases() -> dict:
    """Name: (what makes the model, its inputs)."""
    found = {form: lambda form=form: product(form) for form in PRODUCTS}
    for form in attention.FORMS:
        found[f"attention-{form}"] = lambda form=form: (
            attention.build_attention(form),
            attention.inputs_for(attention.build_attention(form), queries=5, keys=17),
        )
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    found["mlp"] = lambda: (mlp.build_gated_mlp(activation=next(iter(mlp.ACTIVATIONS))), {"x": x})
    config = DecoderConfig()
    for format in (None, "nvfp4", "int4"):
        found[f"decoder-{format}"] = lambda format=format: (
            quantized(decoder.build_decoder(config), format),
            decoder.inputs_for(config, None, 1, 3, 4),
        )
        found[f"encoder-{format}"] = lambda format=format: (
            quantized(encoder.build_encoder(shape=encoder.SMALL), format),
            encoder.random_tokens(3, 9, 200),
        )
    found["around-conv"] = two_partitions_around_a_convolution
    found["past-conv"] = around_a_convolution_and_past_it
    found["overridable"] = overridable_weight
    return found


def loadable(name: str) -> bool:
    return runtime_at_least(SINCE.get(name, "1.24.0"))


CHILD = textwrap.dedent("""
    import pickle, sys
    import onnxruntime
    from onnxruntime_ep_tenon import tensors
    from onnxruntime_ep_tenon.report import session_with_report
    results = {}
    for key, path, inputs in pickle.load(open(sys.argv[1], "rb")):
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        try:
            session, report = session_with_report(path, "cpu", settings, claim="all")
            outputs = [array.tobytes() for array in tensors.run(session, inputs)]
            results[key] = outputs, [part["context"] for part in report.partitions]
        except Exception as error:
            results[key] = str(error), []
    pickle.dump(results, open(sys.argv[2], "wb"))
""")


def in_fresh_process(jobs: list, folder) -> dict:
    """Runs each (key, path of a model, inputs) in one new process."""
    given, answered = folder / "jobs.pickle", folder / "results.pickle"
    given.write_bytes(pickle.dumps(jobs))
    command = [sys.executable, "-c", CHILD, str(given), str(answered)]
    subprocess.run(command, check=True, timeout=600)
    return pickle.loads(answered.read_bytes())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For each case and form: what the model gives, and what its context gives in a new process."""
    root = tmp_path_factory.mktemp("contexts")
    expected, jobs = {}, []
    for name, make in cases().items():
        if not loadable(name):
            continue
        model, inputs = make()
        folder = root / name
        folder.mkdir()
        path = folder / "model.onnx"
        onnx.save(model, path)
        session = tenon.create_session(path, "cpu", quiet(), claim="all")
        expected[name] = [array.tobytes() for array in tensors.run(session, inputs)]
        for embed in (False, True):
            out = folder / f"ctx_{embed}.onnx"
            written, _ = compile_model(
                path, out, "cpu", embed=embed, session_options=quiet(), claim="all"
            )
            assert [file.is_file() for file in written.files] == ([] if embed else [True])
            jobs.append(((name, embed), str(out), inputs))
        path.unlink()
    return expected, in_fresh_process(jobs, root)


@pytest.mark.parametrize("embed", [False, True], ids=["beside", "embedded"])
@pytest.mark.parametrize("name", cases())
def test_the_same_bits_without_the_model(results, name, embed):
    if not loadable(name):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not load {name}")
    expected, found = results
    outputs, contexts = found[name, embed]
    assert outputs == expected[name], outputs if isinstance(outputs, str) else "other bits"
    assert any(contexts), "nothing was opened from a context"
    assert all(context["recompiled"] == "" for context in contexts if context)


def test_a_session_that_writes_a_context_runs_as_well(tmp_path):
    model, inputs = two_partitions_around_a_convolution()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    settings = quiet()
    settings.add_session_config_entry("ep.context_enable", "1")
    session, report = session_with_report(path, "cpu", settings, claim="all")
    (written,) = tensors.run(session, inputs)
    (plain,) = tensors.run(tenon.create_session(path, "cpu", quiet(), claim="all"), inputs)
    assert written.tobytes() == plain.tobytes()
    (data,) = ContextModel.read(tmp_path / "model_ctx.onnx").files
    assert report.data["context"]["file"] == str(data) and data.parent == tmp_path
    (opened,) = tensors.run(
        tenon.create_session(tmp_path / "model_ctx.onnx", "cpu", quiet()), inputs
    )
    assert opened.tobytes() == plain.tobytes()


def test_all_partitions_share_one_file(tmp_path):
    model, _ = two_partitions_around_a_convolution()
    onnx.save(model, tmp_path / "model.onnx")
    written, report = compile_model(
        tmp_path / "model.onnx", tmp_path / "c.onnx", "cpu", session_options=quiet(), claim="all"
    )
    assert len(report.partitions) == len(written.contexts) > 1
    (data,) = written.files
    assert re.fullmatch(r"c_tenon_[0-9a-f]{16}\.bin", data.name) and data.is_file()
    nodes = [n for n in onnx.load(tmp_path / "c.onnx").graph.node if n.op_type == "EPContext"]
    mains = [a.i for n in nodes for a in n.attribute if a.name == "main_context"]
    assert mains == [1] + [0] * (len(nodes) - 1)


def test_a_default_is_inside_and_no_input_any_more(tmp_path):
    """So that nobody can feed another value, which a plain session refuses at Run."""
    model, inputs = overridable_weight()
    onnx.save(model, tmp_path / "model.onnx")
    path = tmp_path / "c.onnx"
    compile_model(tmp_path / "model.onnx", path, "cpu", session_options=quiet(), claim="all")
    assert not onnx.load(path).graph.initializer
    session = tenon.create_session(path, "cpu", quiet())
    assert [value.name for value in session.get_inputs()] == ["x"]
    with pytest.raises(Exception, match="W"):
        session.run(None, {**inputs, "W": np.zeros((64, 48), np.float32)})


def test_the_prefix_is_in_front_of_the_partitions_names(tmp_path):
    onnx.save(build_scaled_dot("int4", Problem(n=32, k=64)), tmp_path / "model.onnx")
    settings = quiet()
    settings.add_session_config_entry("ep.context_node_name_prefix", "left/")
    written, _ = compile_model(
        tmp_path / "model.onnx", tmp_path / "c.onnx", "cpu", session_options=settings
    )
    assert [context.partition for context in written.contexts] == ["left/tenon_0"]
    session = tenon.create_session(tmp_path / "c.onnx", "cpu", quiet())
    assert session.run(None, Problem(n=32, k=64).inputs(2))[0].shape == (2, 32)


def test_sessions_that_open_one_file_at_once_concurrently(tmp_path):
    problem = Problem(n=72, k=128)
    onnx.save(build_scaled_dot("nvfp4", problem), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "c.onnx", "cpu", session_options=quiet())

    def opened(_) -> bytes:
        session = tenon.create_session(tmp_path / "c.onnx", "cpu", quiet())
        return session.run(None, problem.inputs(5))[0].tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(opened, range(24)))) == 1


def test_values_may_be_renamed(tmp_path):
    """Who joins models renames values: contexts know their inputs by number."""
    problem = Problem(n=32, k=64)
    onnx.save(build_scaled_dot("int4", problem), tmp_path / "model.onnx")
    path = tmp_path / "c.onnx"
    compile_model(tmp_path / "model.onnx", path, "cpu", session_options=quiet(), claim="all")
    (plain,) = tenon.create_session(path, "cpu", quiet()).run(None, problem.inputs(2))
    renamed = onnx.load(path)
    (node,) = renamed.graph.node
    renamed.graph.input[0].name = node.input[0] = "left/x"
    renamed.graph.output[0].name = node.output[0] = "left/y"
    onnx.save(renamed, path)
    inputs = {"left/x": problem.inputs(2)["x"]}
    (found,) = tenon.create_session(path, "cpu", quiet()).run(None, inputs)
    assert found.tobytes() == plain.tobytes()


def test_an_8_bit_float_input_is_refused_by_name(tmp_path):
    g = GraphBuilder("fp8", 21)
    x = g.input("codes", TensorProto.FLOAT8E4M3FN, ["rows", 64])
    scale = g.parameter("scale", np.array(0.5, np.float32))
    plain = g.node("DequantizeLinear", [x, scale])
    w = g.parameter("W", np.ones((64, 32), np.float32))
    g.node("Relu", [g.node("MatMul", [plain, w])], outputs=["y"])
    g.output("y", FLOAT, ["rows", 32])
    onnx.save(g.model(), tmp_path / "model.onnx")
    with pytest.raises(Exception, match="'codes' is f8e4m3fn, which no node of a context model"):
        compile_model(
            tmp_path / "model.onnx",
            tmp_path / "c.onnx",
            "cpu",
            session_options=quiet(),
            claim="all",
        )
    assert not (tmp_path / "c.onnx").exists() and not list(tmp_path.glob("*.bin"))


def test_a_model_of_which_nothing_is_claimed_is_not_written(command, tmp_path):
    onnx.save(build_scaled_dot("plain", Problem(n=32, k=64)), tmp_path / "model.onnx")
    told = command("compile", tmp_path / "model.onnx", "--device", "cpu")
    assert told.status == 1 and "Tenon claims nothing of" in told.err
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_claims_in_bodies_are_not_denied(command, tmp_path):
    """Sessions have them, context models do not."""
    onnx.save(loop_model("main"), tmp_path / "model.onnx")
    assert "Tenon claims 15 of 16 nodes" in command("explain", tmp_path / "model.onnx").out
    told = command("compile", tmp_path / "model.onnx", "--device", "cpu")
    assert told.status == 1 and "15 of its 16 nodes stand in bodies of If, Loop" in told.err
    assert "claims nothing" not in told.err


def test_the_command_compiles_and_explains(command, tmp_path):
    model, _ = two_partitions_around_a_convolution()
    onnx.save(model, tmp_path / "model.onnx")
    options = ("--device", "cpu", "--option", "claim=all")
    told = command("compile", tmp_path / "model.onnx", *options)
    assert told.status == 0, told.err
    assert "model_ctx_tenon_" in told.out and "tenon_1" in told.out
    (tmp_path / "model.onnx").unlink()
    explained = command("explain", tmp_path / "model_ctx.onnx", "--device", "cpu")
    assert explained.status == 0, explained.err
    assert "tenon_1: opens as it was stored" in explained.out
    facts = json.loads(
        command("explain", tmp_path / "model_ctx.onnx", "--device", "cpu", "--json").out
    )
    assert [context["partition"] for context in facts["contexts"]] == ["tenon_0", "tenon_1"]
    assert facts["other_nodes"] > 0 and facts["error"] == ""
    drawn = command("explain", tmp_path / "model_ctx.onnx", "--svg", tmp_path / "graph.svg")
    assert drawn.status == 1 and "draw the model that they come from" in drawn.err


def test_the_command_refuses_what_contradicts_itself(command, tmp_path):
    onnx.save(build_scaled_dot("int4", Problem(n=32, k=64)), tmp_path / "model.onnx")
    for arguments, message in (
        (("--arch", "sm_90a", "--device", "cpu"), "--arch names GPUs"),
        (("--out", tmp_path / "model.onnx"), "is the model itself"),
        (("--arch", "sm_1"), "sm_90a"),
    ):
        told = command("compile", tmp_path / "model.onnx", *arguments)
        assert told.status == 1 and message in told.err, told.err


def test_bodies_of_control_flow_stay_nodes(tmp_path):
    """The runtime keeps no contexts there; a session compiles them as it does the model's."""
    if not runtime_at_least("1.31.0"):
        pytest.skip("this onnxruntime forgets the types of what only a body reads")
    then, other = (
        helper.make_graph(
            [helper.make_node("MatMul", ["h", "W"], ["m"]), helper.make_node(op, ["m"], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, FLOAT, None)],
        )  # fmt: skip
        for op in ("Softmax", "Gelu")
    )
    g = GraphBuilder("branches", 21)
    x, choice = g.input("x", FLOAT, ["rows", 64]), g.input("choice", TensorProto.BOOL, [])
    w = g.parameter("W", np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32))
    g.node("Relu", [g.node("MatMul", [x, w])], outputs=["h"])
    g.node("If", [choice], outputs=["y"], then_branch=then, else_branch=other)
    g.output("y", FLOAT, ["rows", 64])
    path, out = tmp_path / "model.onnx", tmp_path / "c.onnx"
    onnx.save(g.model(), path)
    _, report = compile_model(path, out, "cpu", session_options=quiet(), claim="all")
    assert any("where a context model has no contexts" in n["reason"] for n in report.left_out)
    inputs = {
        "x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32),
        "choice": np.array(True),
    }
    plain, opened = (
        tenon.create_session(p, "cpu", quiet(), claim="all").run(None, inputs)[0].tobytes()
        for p in (path, out)
    )
    assert opened == plain


def test_bodies_with_weights_are_more_than_the_runtime_writes(command, tmp_path):
    silero = MODELS / "silero-vad/silero_vad/data/silero_vad.onnx"
    if not silero.is_file():
        pytest.skip("the model silero_vad was not fetched")
    options = ("--device", "cpu", "--option", "claim=all")
    told = command("compile", silero, "--out", tmp_path / "c.onnx", *options)
    if told.status == 0:
        return  # a runtime that can
    assert "bodies of its If, Loop or Scan hold weights" in told.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["magika", "ppocr_detection", "ppocr_direction"])
def test_models_that_people_use(tmp_path, name):
    path, inputs = REAL_MODELS[name]
    if not (MODELS / path).is_file():
        pytest.skip(f"the model {name} was not fetched")
    compile_model(MODELS / path, tmp_path / "c.onnx", "cpu", session_options=quiet(), claim="all")
    plain, opened = (
        [array.tobytes() for array in session.run(None, inputs)]
        for session in (
            tenon.create_session(model, "cpu", quiet(), claim="all")
            for model in (MODELS / path, tmp_path / "c.onnx")
        )
    )
    assert opened == plain


def test_a_context_model_is_not_compiled_again(tmp_path):
    onnx.save(build_scaled_dot("int4", Problem(n=32, k=64)), tmp_path / "model.onnx")
    compile_model(tmp_path / "model.onnx", tmp_path / "c.onnx", "cpu", session_options=quiet())
    with pytest.raises(Exception, match="is a context already"):
        compile_model(tmp_path / "c.onnx", tmp_path / "d.onnx", "cpu", session_options=quiet())


def test_a_model_from_memory_needs_a_place_for_its_data(tmp_path):
    model = build_scaled_dot("int4", Problem(n=32, k=64)).SerializeToString()
    settings = quiet()
    device = next(d for d in tenon.devices() if d.ep_metadata["tenon_target"] == "cpu")
    settings.add_provider_for_devices([device], {})
    with pytest.raises(Exception, match="give ep.context_file_path, or keep"):
        onnxruntime.ModelCompiler(settings, model).compile_to_bytes()
    settings = quiet()
    settings.add_provider_for_devices([device], {})
    compiler = onnxruntime.ModelCompiler(settings, model, embed_compiled_data_into_model=True)
    session = tenon.create_session(compiler.compile_to_bytes(), "cpu", quiet())
    assert session.run(None, Problem(n=32, k=64).inputs(2))[0].shape == (2, 32)


def test_a_context_model_from_memory_finds_its_data_by_the_path_it_would_have(tmp_path):
    problem = Problem(n=32, k=64)
    onnx.save(build_scaled_dot("int4", problem), tmp_path / "model.onnx")
    path = tmp_path / "c.onnx"
    compile_model(tmp_path / "model.onnx", path, "cpu", session_options=quiet())
    with pytest.raises(
        Exception, match="came from memory and its context or weights stand in files"
    ):
        tenon.create_session(path.read_bytes(), "cpu", quiet())
    settings = quiet()
    settings.add_session_config_entry("ep.context_file_path", str(path))
    session = tenon.create_session(path.read_bytes(), "cpu", settings)
    assert session.run(None, problem.inputs(2))[0].shape == (2, 32)
