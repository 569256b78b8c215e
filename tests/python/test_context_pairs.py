"""A context model and its data belong together: any other pair is an error, no other result."""

import errno
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from itertools import permutations

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from context_bytes import attribute_of, digest_of, edit_node, edit_notes, name_data
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.context_models import ContextModel, compile_model
from onnxruntime_ep_tenon.models import staged_folder

pytestmark = pytest.mark.plugin

Unusable = (
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)
F32, F64, F16 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
I64, I32, I8, U8 = TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def model_of(inputs, outputs, weight: float = 2.0):
    """Every output is the sum of all inputs' last axes' means and a weight, cast."""
    one = numpy_helper.from_array(np.array([weight], np.float32), "w")
    nodes, sums = [], []
    for i in range(len(inputs)):
        nodes.append(helper.make_node("Cast", [f"x{i}"], [f"f{i}"], to=F32))
        sums.append(f"f{i}")
    nodes += [
        helper.make_node("Sum", sums, ["s"]),
        helper.make_node("Mul", ["s", "w"], ["p"]),
        helper.make_node("Tanh", ["p"], ["t"]),
    ]
    for i, (kind, rank) in enumerate(outputs):
        last = f"t{i}"
        if rank == 1:
            nodes.append(helper.make_node("ReduceSum", ["t"], [last], keepdims=0))
        else:
            nodes.append(helper.make_node("Neg", ["t"], [last]))
        nodes.append(helper.make_node("Cast", [last], [f"y{i}"], to=kind))
    shapes = {1: [], 2: ["m", 8], 3: ["m", 2, 4]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(f"x{i}", k, shapes[r]) for i, (k, r) in enumerate(inputs)],
        [helper.make_tensor_value_info(f"y{i}", k, shapes[r]) for i, (k, r) in enumerate(outputs)],
        [one],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    made.ir_version = 10
    return made


MODELS = {
    "f32": ([(F32, 2)], [(F32, 2)]),
    "f32 of other weights": ([(F32, 2)], [(F32, 2)], 3.0),
    "f64": ([(F64, 2)], [(F64, 2)]),
    "f16": ([(F16, 2)], [(F16, 2)]),
    "i64": ([(I64, 2)], [(I64, 2)]),
    "i32 to f32": ([(I32, 2)], [(F32, 2)]),
    "f32 to f64": ([(F32, 2)], [(F64, 2)]),
    "f32 to i8": ([(F32, 2)], [(I8, 2)]),
    "u8 to f32": ([(U8, 2)], [(F32, 2)]),
    "rank 3": ([(F32, 3)], [(F32, 3)]),
    "to a scalar": ([(F32, 2)], [(F32, 1)]),
    "two inputs": ([(F32, 2), (F32, 2)], [(F32, 2)]),
    "two outputs": ([(F32, 2)], [(F32, 2), (F32, 2)]),
    "two of different types": ([(F32, 2), (I64, 2)], [(F32, 2), (F64, 1)]),
}


@pytest.fixture(scope="module", params=[False, True], ids=["beside", "embedded"])
def compiled(request, tmp_path_factory):
    """Name: the context model of it, each in a folder of its own."""
    root = tmp_path_factory.mktemp("pairs")
    made = {}
    for number, (name, parts) in enumerate(MODELS.items()):
        folder = root / str(number)
        folder.mkdir()
        onnx.save(model_of(*parts), folder / "model.onnx")
        made[name], _ = compile_model(
            folder / "model.onnx", folder / "c.onnx", "cpu",
            embed=request.param, session_options=quiet(), claim="all",
        )  # fmt: skip
        assert made[name].other_nodes == 0 and len(made[name].contexts) == 1
    return made


def data_of(model: ContextModel) -> bytes:
    if model.files:
        return model.files[0].read_bytes()
    return attribute_of(onnx.load(model.path).graph.node[0], "ep_cache_context").s


def with_data_of(model: ContextModel, other: ContextModel, folder):
    """A copy of the model in `folder`, where it finds the other's data as its own."""
    path = folder / "c.onnx"
    shutil.copy(model.path, path)
    if model.files:
        (folder / model.files[0].name).write_bytes(data_of(other))
    else:

        def take(node):
            attribute_of(node, "ep_cache_context").s = data_of(other)

        edit_node(path, take)
    return path


def opened(path):
    return tenon.create_session(path, "cpu", quiet())


def test_no_model_opens_with_the_data_of_another(compiled, tmp_path):
    for model, other in permutations(compiled.values(), 2):
        assert digest_of(data_of(model)) != digest_of(data_of(other))
        path = with_data_of(model, other, tmp_path)
        with pytest.raises(Unusable, match="is not what the context model was compiled with"):
            opened(path)


def test_no_model_opens_a_program_of_other_types_or_ranks(compiled, tmp_path):
    """Also where its node was told that the data is its own."""
    accepted = set()
    for (name, model), (other_name, other) in permutations(compiled.items(), 2):
        path = with_data_of(model, other, tmp_path)
        name_data(path, data_of(other))
        try:
            opened(path)
            accepted.add((name, other_name))
        except Unusable as error:
            assert "compile the model again" in str(error), (name, other_name)
    same = ("f32", "f32 of other weights")
    fewer = ("two inputs", "two outputs", "two of different types")
    assert {same, same[::-1]} <= accepted
    for name, other in accepted - {same, same[::-1]}:  # who reads fewer values than it is given
        assert name in fewer and MODELS[other][0][0] == (F32, 2) == MODELS[other][1][0]


def values_of(model):
    return [*model.graph.input, *model.graph.output]


@pytest.mark.parametrize("name", ["f32", "u8 to f32", "two of different types"])
def test_another_type_of_any_input_or_output_is_refused(compiled, tmp_path, name):
    path = tmp_path / "c.onnx"
    source = compiled[name]
    for file in source.files:
        shutil.copy(file, tmp_path)
    whole = onnx.load(source.path)
    for number, value in enumerate(values_of(whole)):
        for kind in TensorProto.DataType.values():
            if kind in (TensorProto.UNDEFINED, value.type.tensor_type.elem_type):
                continue
            edited = onnx.load(source.path)
            values_of(edited)[number].type.tensor_type.elem_type = kind
            onnx.save(edited, path)
            with pytest.raises(Unusable):
                opened(path)
    onnx.save(whole, path)
    opened(path)


def reshaped(value, dims) -> None:
    value.type.tensor_type.shape.CopyFrom(
        helper.make_tensor_value_info("v", F32, dims).type.tensor_type.shape
    )


@pytest.mark.parametrize("dims", [[], [8], ["m", 8, 1], ["m", 9]])
def test_another_shape_of_any_input_or_output_is_refused(compiled, tmp_path, dims):
    path = tmp_path / "c.onnx"
    source = compiled["two outputs"]
    for file in source.files:
        shutil.copy(file, tmp_path)
    for number in range(3):
        edited = onnx.load(source.path)
        reshaped(values_of(edited)[number], dims)
        onnx.save(edited, path)
        with pytest.raises(Unusable, match="when the context was compiled"):
            opened(path)


def test_a_node_of_before_says_that_it_is_to_be_compiled_again(compiled, tmp_path):
    path = with_data_of(compiled["f32"], compiled["f32"], tmp_path)
    edit_notes(path, lambda notes: notes.pop("digest"))
    with pytest.raises(Unusable, match="does not say which data .*compile the model again"):
        opened(path)
    edit_notes(path, lambda notes: notes.update(digest=7))
    with pytest.raises(Unusable, match="does not say which data"):
        opened(path)


# ---- a place that is compiled to again


def saved(folder, weight: float):
    path = folder / f"model{weight}.onnx"
    onnx.save(model_of(*MODELS["f32"][:2], weight), path)
    return path


def compiled_to(folder, weight: float, **options) -> ContextModel:
    return compile_model(
        saved(folder, weight), folder / "c.onnx", "cpu",
        session_options=quiet(), claim="all", **options,
    )[0]  # fmt: skip


def run(path) -> bytes:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    return opened(path).run(None, {"x0": x})[0].tobytes()


def test_a_new_pair_takes_the_place_of_the_old_one(tmp_path):
    old = compiled_to(tmp_path, 2.0)
    (tmp_path / "c.onnx").chmod(0o640)
    first = run(old.path)
    new = compiled_to(tmp_path, 3.0)
    assert run(new.path) != first
    assert sorted(tmp_path.glob("c*")) == sorted([new.path, *new.files])
    assert new.files != old.files and new.path.stat().st_mode & 0o777 == 0o640
    embedded = compiled_to(tmp_path, 2.0, embed=True)
    assert list(tmp_path.glob("c*")) == [embedded.path] and run(embedded.path) == first


def test_an_old_model_never_finds_new_data(tmp_path):
    old = compiled_to(tmp_path, 2.0)
    shutil.copy(old.path, tmp_path / "kept.onnx")
    compiled_to(tmp_path, 3.0)
    with pytest.raises(Unusable, match="is not beside it.*keep both files together"):
        opened(tmp_path / "kept.onnx")


def test_a_compilation_that_fails_leaves_the_old_pair(command, tmp_path, monkeypatch):
    old = compiled_to(tmp_path, 2.0)
    first, before = run(old.path), sorted(tmp_path.iterdir())

    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(staged_folder, "_keep", no_space)
    model = saved(tmp_path, 3.0)
    options = ("--device", "cpu", "--option", "claim=all")
    told = command("compile", model, "--out", tmp_path / "c.onnx", *options)
    assert told.status == 1 and "No space left" in told.err
    model.unlink()
    assert run(old.path) == first and sorted(tmp_path.iterdir()) == before


def test_what_the_runtime_cannot_write_leaves_the_old_pair(tmp_path, monkeypatch):
    """Data is there already when the model itself does not fit."""
    old = compiled_to(tmp_path, 2.0)
    first, before = run(old.path), sorted(tmp_path.iterdir())
    whole_file = staged_folder.whole_file

    def full(path):
        made = whole_file(path)
        file = made.__enter__()

        class Full:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                return made.__exit__(*error)

            def write(self, data):
                file.write(data[:10])
                raise OSError(errno.ENOSPC, "No space left on device")

        return Full()

    monkeypatch.setattr(staged_folder, "whole_file", full)
    with pytest.raises(Exception, match="No space left"):
        compiled_to(tmp_path, 3.0)
    (tmp_path / "model3.0.onnx").unlink()
    assert run(old.path) == first and sorted(tmp_path.iterdir()) == before


def test_what_is_no_file_is_left_alone(command, tmp_path):
    (tmp_path / "c.onnx").mkdir()
    model = saved(tmp_path, 2.0)
    told = command("compile", model, "--out", tmp_path / "c.onnx", "--device", "cpu")
    assert told.status == 1 and "c.onnx is no regular file" in told.err
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "c.onnx", model])


def test_a_report_that_does_not_fit_takes_the_data_back(tmp_path):
    """It is written last, and longest of all."""
    model, report = saved(tmp_path, 2.0), tmp_path / "report.json"
    command = [sys.executable, "-m", "onnxruntime_ep_tenon", "compile", model, "--device", "cpu"]
    command += ["--out", tmp_path / "c.onnx", "--option", "claim=all"]
    command += ["--option", f"report_file={report}"]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    most = report.stat().st_size - 200  # its times have more or fewer digits
    for path in tmp_path.glob("c*"):
        assert path.stat().st_size < most
        path.unlink()

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    told = subprocess.run(command, capture_output=True, text=True, timeout=120, preexec_fn=limited)
    assert told.returncode == 1 and "report_file" in told.stderr, told.stderr
    assert not list(tmp_path.glob("c*"))


def test_what_fails_behind_the_publishing_leaves_the_new_pair(tmp_path, monkeypatch):
    old = compiled_to(tmp_path, 2.0)
    first = run(old.path)
    whole_file = staged_folder.whole_file

    @contextmanager
    def fails_late(path):
        with whole_file(path) as file:
            yield file
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(staged_folder, "whole_file", fails_late)
    with pytest.raises(OSError, match="Input/output error"):
        compiled_to(tmp_path, 3.0)
    assert run(old.path) != first


def test_an_older_report_costs_nobody_a_file(tmp_path):
    """It names the data of another compilation, and this one fails before it writes its own."""
    other = tmp_path / "other"
    other.mkdir()
    report = tmp_path / "report.json"
    kept = compiled_to(other, 2.0, report_file=report)
    for out in (tmp_path / "c.onnx", kept.path):
        (tmp_path / "broken.onnx").write_bytes(b"no model")
        with pytest.raises(Exception, match="parsing failed"):
            compile_model(
                tmp_path / "broken.onnx", out, "cpu", session_options=quiet(), report_file=report
            )
        assert run(kept.path)


def test_a_file_system_without_unnamed_files(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_folder, "_unnamed", lambda _: None)
    old = compiled_to(tmp_path, 2.0)
    first = run(old.path)
    new = compiled_to(tmp_path, 3.0)
    assert run(new.path) != first
    assert sorted(tmp_path.glob("*c*")) == sorted([new.path, *new.files])


KILLED = textwrap.dedent("""
    import os, signal, sys
    from onnxruntime_ep_tenon.context_models import compile_model
    from onnxruntime_ep_tenon.models import staged_folder
    staged_folder._keep = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    compile_model(sys.argv[1], sys.argv[2], "cpu", claim="all")
""")


def test_a_process_that_is_killed_leaves_the_old_pair(tmp_path):
    old = compiled_to(tmp_path, 2.0)
    first, model = run(old.path), saved(tmp_path, 3.0)
    arguments = [sys.executable, "-c", KILLED, str(model), str(old.path)]
    assert subprocess.run(arguments, timeout=120).returncode == -signal.SIGKILL
    assert run(old.path) == first
    new = compiled_to(tmp_path, 3.0)
    assert run(new.path) != first
    assert sorted(tmp_path.glob("c*")) == sorted([new.path, *new.files])
