"""Models that contradict their own types: mended, opened with a warning, or refused and why."""

import json
import subprocess
import sys
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conformance.node_cases import stored_cases
from contradictions import MENDED, UNMENDABLE, operands, scale_of_a_weight
from onnx import helper
from onnxruntime_ep_tenon import provider_sessions
from onnxruntime_ep_tenon.mending import MendedModelWarning, UnmendableModelError
from onnxruntime_ep_tenon.models import op_signatures, reference, repair
from onnxruntime_ep_tenon.models.rewrite import default_opset, load_without_data
from onnxruntime_ep_tenon.report import session_with_report

WIDE = (np.float32, np.float16)


def copied(model):
    made = type(model)()
    made.CopyFrom(model)
    return made


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    constants = {tensor.name for tensor in model.graph.initializer}
    made = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name not in constants:
            made[value.name] = random.standard_normal(shape).astype(dtype)
    return made


def stock_session(model) -> onnxruntime.InferenceSession:
    settings = provider_sessions.session_options(1)
    # Products of 4-bit weights are not to round the other side to 8 bits.
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])


def assert_close(results, model: onnx.ModelProto, inputs) -> None:
    """Beside the model in float64, where no type contradicts another."""
    expected = reference.evaluate(model, inputs)
    half = any(t.data_type == onnx.TensorProto.FLOAT16 for t in model.graph.initializer)
    tolerance = 5e-3 if half else 1e-5  # a rounding to 16 bits on the way, or to 32
    for result, wanted in zip(results, expected, strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(result, wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("name", MENDED)
def test_a_contradiction_is_mended(name):
    model = MENDED[name]()
    with pytest.raises(Exception, match=r"Type|type|model|UNDEFINED"):
        stock_session(model)
    mended, notes = repair.repaired(copied(model))
    assert notes and all(len(note) < 400 for note in notes)
    inputs = inputs_of(model)
    session = stock_session(mended)
    assert_close(session.run(None, inputs), mended, inputs)
    declared = [value.type.tensor_type.elem_type for value in model.graph.output]
    kept = [value.type.tensor_type.elem_type for value in mended.graph.output]
    assert [new if not old else old for old, new in zip(declared, kept, strict=True)] == kept
    assert repair.repaired(mended)[1] == []


@pytest.mark.parametrize(
    ("make", "named"), UNMENDABLE.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_what_cannot_be_mended_says_why(make, named):
    with pytest.raises(repair.ContradictionError) as refused:
        repair.repaired(make())
    assert all(text in str(refused.value) for text in named), refused.value


def test_every_node_test_of_onnx_is_fine_as_it_is():
    """No operator's types are known wrongly: nothing is found in 1,700 models that are right."""
    cases = stored_cases()
    if not cases:
        pytest.skip("this onnx came without its node tests")
    newest = onnx.defs.onnx_opset_version()
    for case in cases:
        model = case.model
        if default_opset(model) <= newest:
            assert repair.repaired(model)[1] == [], case.name


def test_a_weight_is_converted_once_for_all_its_readers():
    model = operands()
    again = copied(model.graph.node[2])
    again.name, again.output[0] = "again", "z"
    model.graph.node.append(again)
    model.graph.output.append(helper.make_tensor_value_info("z", 1, (5, 7)))
    mended, _ = repair.repaired(model)
    assert [node.op_type for node in mended.graph.node].count("Cast") == 2


def test_new_names_do_not_meet_old_ones():
    model = operands()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "m_as_float"
    mended, _ = repair.repaired(model)
    assert_close(stock_session(mended).run(None, inputs_of(model)), mended, inputs_of(model))


def test_an_onnx_that_is_too_old_for_the_model_says_so():
    model = operands()
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(repair.RewriteError, match="pip install --upgrade onnx"):
        repair.repaired(model)


# The ops of TensorRT's domain, as Model Optimizer writes them into a float32 or float16 graph.


def modelopt_mxfp8() -> onnx.ModelProto:
    """Dequantised to float16, which the exporter sets, in a graph that stays float32."""
    random = np.random.default_rng(5)
    weight = random.standard_normal((64, 64)).astype(ml_dtypes.float8_e4m3fn)
    scales = random.integers(124, 130, (64, 2)).astype(np.uint8)
    attributes = {"axis": -1, "block_size": 32, "domain": "trt"}
    nodes = [
        helper.make_node(
            "TRT_MXFP8DynamicQuantize", ["x"], ["q", "e"], "q", output_dtype=17, **attributes
        ),
        helper.make_node(
            "TRT_MXFP8DequantizeLinear", ["q", "e"], ["a"], "a", output_dtype=10, **attributes
        ),
        helper.make_node(
            "TRT_MXFP8DequantizeLinear", ["w", "s"], ["b"], "b", output_dtype=10, **attributes
        ),
        helper.make_node("Transpose", ["b"], ["t"], "t", perm=[1, 0]),
        helper.make_node("MatMul", ["a", "t"], ["m"], "m"),
        helper.make_node("Add", ["m", "bias"], ["y"], "y"),
    ]
    constants = [
        onnx.numpy_helper.from_array(weight, "w"),
        onnx.numpy_helper.from_array(scales, "s"),
        onnx.numpy_helper.from_array(random.standard_normal(64).astype(np.float32), "bias"),
    ]
    values = [helper.make_tensor_value_info(name, 1, ("rows", 64)) for name in ("x", "y")]
    declared = [helper.make_tensor_value_info(name, 1, None) for name in ("a", "b", "t", "m")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], constants, value_info=declared)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def open_quietly(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MendedModelWarning)
        return session_with_report(model, "cpu", provider_sessions.session_options(1), **options)


@pytest.mark.plugin
def test_a_model_of_model_optimizers_form_runs_whole():
    model = modelopt_mxfp8()
    session, report = open_quietly(model, require_full_claim=True)
    assert report.data["mended"] == session.tenon_mended
    assert "Add" in report.data["mended"][0]
    inputs = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    assert_close(session.run(None, inputs), model, inputs)


@pytest.mark.plugin
def test_trt_is_imported_where_a_file_forgot():
    model = modelopt_mxfp8()
    del model.opset_import[1]
    session, _ = open_quietly(model)
    assert any("'trt'" in note for note in session.tenon_mended)


@pytest.mark.plugin
def test_tensorrts_ops_in_the_wrong_domain_are_moved():
    model = modelopt_mxfp8()
    for node in model.graph.node:
        node.domain = ""
    session, report = open_quietly(model, require_full_claim=True)
    assert any("TRT_MXFP8DequantizeLinear" in note for note in session.tenon_mended)
    inputs = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    assert_close(session.run(None, inputs), modelopt_mxfp8(), inputs)


@pytest.mark.plugin
@pytest.mark.parametrize("name", MENDED)
def test_a_session_mends_on_the_way_in(name):
    model = MENDED[name]()
    session, _ = open_quietly(model)
    mended, notes = repair.repaired(copied(model))
    assert session.tenon_mended == notes
    inputs = inputs_of(model)
    assert_close(session.run(None, inputs), mended, inputs)


@pytest.mark.plugin
def test_a_session_warns_once_and_writes_it_into_the_report(tmp_path):
    path, report = tmp_path / "model.onnx", tmp_path / "report.json"
    onnx.save(scale_of_a_weight(), path)
    before = path.read_bytes()
    with pytest.warns(MendedModelWarning, match="tenon repair") as told:
        session = tenon.create_session(path, "cpu", report_file=report)
    assert len(told) == 1 and str(path) in str(told[0].message)
    assert json.loads(report.read_text())["mended"] == session.tenon_mended
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path, report]


@pytest.mark.plugin
def test_a_model_that_loads_is_opened_as_it_is(monkeypatch, tmp_path):
    def never(model):
        raise AssertionError("a model that loads was looked at")

    monkeypatch.setattr(repair, "repaired", never)
    mended = tmp_path / "mended.onnx"
    monkeypatch.undo()
    onnx.save(repair.repaired(operands())[0], mended)
    monkeypatch.setattr(repair, "repaired", never)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session, report = session_with_report(mended, "cpu")
    assert session.tenon_mended == [] and "mended" not in report.data


@pytest.mark.plugin
def test_a_session_that_cannot_be_mended_says_both_what_failed_and_why():
    make, named = next(iter(UNMENDABLE.items()))
    with pytest.raises(UnmendableModelError) as refused:
        tenon.create_session(make(), "cpu")
    assert "Type Error" in str(refused.value)
    assert all(text in str(refused.value) for text in named)


@pytest.mark.plugin
def test_external_data_is_read_where_it_is(tmp_path):
    path = with_external_data(tmp_path / "model.onnx")
    session, _ = open_quietly(path)
    inputs = inputs_of(operands())
    assert_close(session.run(None, inputs), onnx.load(path), inputs)


def with_external_data(path):
    """The model's weights are in `weights.bin`, in a folder of their own beside it."""
    (path.parent / "data").mkdir()
    onnx.save(
        operands(), path, save_as_external_data=True, location="data/weights.bin",
        size_threshold=0, convert_attribute=False,
    )  # fmt: skip
    assert load_without_data(path).graph.initializer[0].external_data
    return path


# The command.


def test_repair_writes_a_model_that_loads(tmp_path, command):
    path, out = tmp_path / "model.onnx", tmp_path / "mended.onnx"
    onnx.save(scale_of_a_weight(), path)
    told = command("repair", path, "--out", out)
    assert told.status == 0 and str(out) in told.out and "QuantizeLinear" in told.out
    inputs = inputs_of(scale_of_a_weight())
    assert_close(stock_session(out).run(None, inputs), onnx.load(out), inputs)
    onnx.checker.check_model(onnx.load(out), full_check=True)


def test_repair_leaves_a_fine_model_alone(tmp_path, command):
    path, out = tmp_path / "model.onnx", tmp_path / "mended.onnx"
    onnx.save(repair.repaired(operands())[0], path)
    told = command("repair", path, "--out", out, "--json")
    assert told.status == 0 and json.loads(told.out)["mended"] == []
    assert list(tmp_path.iterdir()) == [path]


def test_repair_beside_the_model_shares_its_weights(tmp_path, command):
    path = with_external_data(tmp_path / "model.onnx")
    told = command("repair", path, "--json")
    out = tmp_path / "model.repaired.onnx"
    result = json.loads(told.out)
    assert result["files"] == [str(out)]
    assert result["shared"] == [str(tmp_path / "data" / "weights.bin")]
    inputs = inputs_of(operands())
    assert_close(stock_session(out).run(None, inputs), onnx.load(out), inputs)


def test_repair_into_another_folder_copies_the_weights(tmp_path, command):
    path = with_external_data(tmp_path / "model.onnx")
    (tmp_path / "other").mkdir()
    out = tmp_path / "other" / "model.onnx"
    assert command("repair", path, "--out", out).status == 0
    path.unlink()
    (tmp_path / "data" / "weights.bin").unlink()
    inputs = inputs_of(operands())
    assert_close(stock_session(out).run(None, inputs), onnx.load(out), inputs)


def test_repair_never_loads_weights_that_stay(tmp_path):
    """A file of 3 GiB that is nearly all hole is mended as fast as a small one."""
    path = with_external_data(tmp_path / "model.onnx")
    model = load_without_data(path)
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.dims[:] = [7, 1 << 28]
    for entry in tensor.external_data:
        if entry.key == "length":
            entry.value = str(7 << 29)
    onnx.save(model, path)
    with open(tmp_path / "data" / "weights.bin", "r+b") as file:
        file.truncate((7 << 29) + 4096)
    made = repair.repair_file(path, tmp_path / "mended.onnx")
    assert made.files[0].stat().st_size < 10_000


@pytest.mark.parametrize("place", ["model.onnx", "absent/mended.onnx", "."])
def test_repair_refuses_places_where_it_cannot_write(tmp_path, command, place):
    path = tmp_path / "model.onnx"
    onnx.save(operands(), path)
    before = path.read_bytes()
    told = command("repair", path, "--out", tmp_path / place)
    assert told.status == 1 and told.err.startswith("tenon: error:")
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_repair_leaves_nothing_on_a_full_disk(tmp_path):
    """A limit on the size of files stands in for it: the write fails in the middle."""
    path = with_external_data(tmp_path / "model.onnx")
    (tmp_path / "other").mkdir()
    words = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
from onnxruntime_ep_tenon.__main__ import main
sys.exit(main(["repair", {str(path)!r}, "--out", {str(tmp_path / "other" / "m.onnx")!r}]))
"""
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True)
    assert told.returncode == 1 and "cannot be written" in told.stderr, told.stderr
    assert "Traceback" not in told.stderr
    assert list((tmp_path / "other").iterdir()) == []


def test_repair_says_what_it_cannot_mend(tmp_path, command):
    make, named = next(iter(UNMENDABLE.items()))
    path = tmp_path / "model.onnx"
    onnx.save(make(), path)
    told = command("repair", path)
    assert told.status == 1 and all(text in told.err for text in named)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.plugin
@pytest.mark.parametrize("words", [("explain",), ("run",), ("run", "--compare", "cpu")])
def test_commands_go_on_and_say_what_was_mended(tmp_path, command, words):
    path = tmp_path / "model.onnx"
    onnx.save(operands(), path)
    told = command(words[0], path, *words[1:], "--device", "cpu")
    assert told.status == 0, told.err
    assert told.err.startswith("tenon: note: ") and "Add" in told.err
    assert "note:" not in told.out


@pytest.mark.plugin
def test_compile_mends_too(tmp_path, command):
    path, out = tmp_path / "model.onnx", tmp_path / "compiled.onnx"
    onnx.save(modelopt_mxfp8(), path)
    told = command("compile", path, "--out", out, "--device", "cpu")
    assert told.status == 0 and "tenon: note: " in told.err, told.err
    inputs = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    session = tenon.create_session(out, "cpu")
    assert_close(session.run(None, inputs), modelopt_mxfp8(), inputs)


@pytest.mark.plugin
def test_quantize_mends_its_model(tmp_path, command):
    path, out = tmp_path / "model.onnx", tmp_path / "quantized.onnx"
    onnx.save(wide_operands(), path)
    told = command("quantize", path, "--format", "int4", "--out", out, "--device", "cpu")
    assert told.status == 0, told.err
    assert told.err.count("tenon: note: ") == 1
    assert "mended" not in session_with_report(out, "cpu")[1].data


@pytest.mark.plugin
def test_a_page_shows_what_was_mended(tmp_path, command):
    path, page = tmp_path / "model.onnx", tmp_path / "page.html"
    onnx.save(operands(), path)
    assert command("explain", path, "--device", "cpu", "--html", page).status == 0
    assert "operands of Add were converted to float" in page.read_text()


def wide_operands() -> onnx.ModelProto:
    """A float16 product of a size that is worth quantising, added to a float32 bias."""
    random = np.random.default_rng(2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    constants = [
        onnx.numpy_helper.from_array(random.standard_normal((64, 64)).astype(np.float16), "w"),
        onnx.numpy_helper.from_array(random.standard_normal(64).astype(np.float32), "b"),
    ]
    ends = [
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, (3, 64))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 64))],
    ]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_types_of_tensorrts_domain_follow_scales_and_attributes():
    """FP8 codes go as bytes, as Model Optimizer declares them; the rest as its exporters set it."""
    half, wide = np.float16(0.5), np.float32(0.5)
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    cases = [
        ("QuantizeLinear", {}, (half, zero), ["uint8"]),
        ("QuantizeLinear", {"output_dtype": onnx.TensorProto.INT8}, (half,), ["int8"]),
        ("TRT_FP8QuantizeLinear", {}, (half,), ["uint8"]),
        ("TRT_INT4QuantizeLinear", {}, (half,), ["int4"]),
        ("TRT_INT4QuantizeLinear", {}, (half, np.zeros((), ml_dtypes.uint4)), ["uint4"]),
        ("TRT_FP8DequantizeLinear", {}, (half,), ["float16"]),
        ("DequantizeLinear", {"block_size": 16}, (wide,), ["float"]),
        ("TRT_INT4DequantizeLinear", {"output_dtype": 16}, (wide,), ["bfloat16"]),
        ("TRT_MXFP8DequantizeLinear", {}, (np.uint8(127),), ["float"]),
        ("TRT_MXFP8DequantizeLinear", {"output_dtype": 10}, (np.uint8(127),), ["float16"]),
        ("TRT_FP4DynamicQuantize", {}, (wide,), ["float4e2m1", "float8e4m3fn"]),
        ("TRT_FP4QDQ", {"block_size": 16}, (), ["float"]),
        ("TRT_MXFP8DynamicQuantize", {}, (), ["float8e4m3fn", "uint8"]),
        ("AnotherOfTensorRTs", {}, (), [""]),
    ]
    for op, attributes, constants, expected in cases:
        names = [f"c{index}" for index in range(len(constants))]
        outputs = [f"y{index}" for index in range(len(expected))]
        node = helper.make_node(op, ["x", *names], outputs, domain="trt", **attributes)
        elements = [helper.np_dtype_to_tensor_dtype(np.asarray(c).dtype) for c in constants]
        inputs = dict(zip(names, map(op_signatures.type_of, elements), strict=True))
        signature = op_signatures.signature_of(node, {"": 21, "trt": 1})
        types = op_signatures.output_types(node, signature, {}, {"x": "tensor(float)", **inputs})
        assert [op_signatures.short(type) for type in types] == expected, op


def test_a_conversion_and_a_later_opset_in_one_model():
    """What was converted before the node that needs the opset stays converted."""
    first = operands()
    codes = onnx.numpy_helper.from_array(np.full((7, 7), 3, ml_dtypes.int4), "c")
    scale = onnx.numpy_helper.from_array(np.float16(0.5), "s")
    first.graph.node[2].output[0] = "sum"
    first.graph.node.extend(
        [
            helper.make_node("DequantizeLinear", ["c", "s"], ["d"], "d"),
            helper.make_node("MatMul", ["sum", "d"], ["y"], "y"),
        ]
    )
    first.graph.initializer.extend([codes, scale])
    first.opset_import[0].version = 20
    mended, notes = repair.repaired(copied(first))
    assert [note.split(":")[0] for note in notes] == [
        "operands of Add were converted to float",
        "operands of MatMul were converted to float",
        "declared types that nodes contradict were dropped",
        "ONNX's opset was raised from 20 to 21",
    ]
    inputs = inputs_of(first)
    assert_close(stock_session(mended).run(None, inputs), mended, inputs)
