"""Contexts that are damaged, foreign or made for another machine: an error that says so."""

import json
import os
import shutil

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.context_models import ContextModel, compile_model
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot

pytestmark = pytest.mark.plugin
PROBLEM = Problem(n=32, k=64)


def quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    onnx.save(build_scaled_dot("int4", PROBLEM), folder / "model.onnx")
    for embed in (False, True):
        out = folder / ("embedded.onnx" if embed else "ctx.onnx")
        compile_model(folder / "model.onnx", out, "cpu", embed=embed, session_options=quiet())
    return folder


@pytest.fixture
def folder(compiled, tmp_path):
    """A copy to damage."""
    for path in (compiled / "ctx.onnx", data_of(compiled), compiled / "embedded.onnx"):
        shutil.copy(path, tmp_path)
    return tmp_path


def data_of(folder):
    (data,) = ContextModel.read(folder / "ctx.onnx").files
    return data


def open_and_run(path):
    return tenon.create_session(path, "cpu", quiet()).run(None, PROBLEM.inputs(2))[0]


def with_attribute(path, name, value):
    model = onnx.load(path)
    (node,) = model.graph.node
    (attribute,) = [a for a in node.attribute if a.name == name]
    attribute.CopyFrom(onnx.helper.make_attribute(name, value))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("where", ["absolute", "up", "link", "folder_link", "missing", "folder"])
def test_paths_that_leave_the_folder_or_lead_nowhere(folder, tmp_path_factory, where):
    outside = tmp_path_factory.mktemp("outside")
    data = data_of(folder)
    shutil.copy(data, outside / "data.bin")
    (folder / "link.bin").symlink_to(outside / "data.bin")
    (folder / "below").symlink_to(outside)
    (folder / "inside").mkdir()
    name, message = {
        "absolute": (str(data), "absolute path"),
        "up": (f"../{folder.name}/{data.name}", "leaves the model's folder"),
        "link": ("link.bin", "link that leaves the model's folder"),
        "folder_link": ("below/data.bin", "link that leaves the model's folder"),
        "missing": ("absent.bin", "keep both files together"),
        "folder": ("inside", "inside"),
    }[where]
    with pytest.raises(Exception, match=message):
        open_and_run(with_attribute(folder / "ctx.onnx", "ep_cache_context", name))


def test_a_context_of_another_provider_is_left_to_it(folder):
    path = with_attribute(folder / "ctx.onnx", "source", "SomeOtherProvider")
    with pytest.raises(Exception, match="EPContext"):
        open_and_run(path)


def test_another_partition_than_the_file_has(folder):
    path = with_attribute(folder / "ctx.onnx", "partition_name", "tenon_7")
    with pytest.raises(Exception, match="no partition 'tenon_7'"):
        open_and_run(path)


def test_a_node_that_names_nothing(folder):
    path = with_attribute(folder / "ctx.onnx", "ep_cache_context", "")
    with pytest.raises(Exception, match="neither holds a context nor names its file"):
        open_and_run(path)


def test_a_node_with_fewer_inputs_than_its_partition(folder):
    model = onnx.load(folder / "ctx.onnx")
    (node,) = model.graph.node
    del node.input[:]
    onnx.save(model, folder / "ctx.onnx")
    with pytest.raises(Exception, match="fewer than the partition|invalid model"):
        open_and_run(folder / "ctx.onnx")


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.6, 0.9, 0.999])
def test_a_file_that_was_cut(folder, share):
    path = data_of(folder)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(Exception, match=path.name):
        open_and_run(folder / "ctx.onnx")


def test_changed_bits_are_an_error_or_change_nothing(folder):
    """Padding between sections may change; nothing that is used may."""
    path = data_of(folder)
    data = path.read_bytes()
    expected = open_and_run(folder / "ctx.onnx").tobytes()
    refused = 0
    for seed in range(64):
        random = np.random.default_rng(seed)
        changed = bytearray(data)
        changed[random.integers(len(data))] ^= 1 << random.integers(8)
        path.write_bytes(changed)
        try:
            assert open_and_run(folder / "ctx.onnx").tobytes() == expected
        except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument as error:
            assert path.name in str(error)
            refused += 1
    assert refused > 32


def test_an_embedded_context_that_was_changed(folder):
    model = onnx.load(folder / "embedded.onnx")
    (attribute,) = [a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"]
    attribute.s = attribute.s[: len(attribute.s) // 2]
    onnx.save(model, folder / "embedded.onnx")
    with pytest.raises(Exception, match="context"):
        open_and_run(folder / "embedded.onnx")


@pytest.mark.parametrize("name", ["ctx.onnx", "embedded.onnx"])
def test_a_session_may_refuse_all_contexts(folder, name):
    with pytest.raises(Exception, match="contexts=refuse: node '.*' is a compiled context"):
        tenon.create_session(folder / name, "cpu", quiet(), contexts="refuse")
    tenon.create_session(folder / name, "cpu", quiet(), contexts="open")


def test_a_plain_model_is_no_context(compiled):
    session = tenon.create_session(compiled / "model.onnx", "cpu", quiet(), contexts="refuse")
    assert session.run(None, PROBLEM.inputs(2))[0].shape == (2, 32)


@pytest.mark.parametrize("harm", ["cut", "overwrite", "remove"])
def test_nobody_reaches_the_weights_of_an_open_session_that_copied_them(folder, harm):
    expected = open_and_run(folder / "ctx.onnx").tobytes()
    session = tenon.create_session(folder / "ctx.onnx", "cpu", quiet(), context_weights="copy")
    data = data_of(folder)
    if harm == "cut":
        os.truncate(data, 100)
    elif harm == "overwrite":
        data.open("r+b").write(bytes(data.stat().st_size))
    else:
        data.unlink()
    assert session.run(None, PROBLEM.inputs(2))[0].tobytes() == expected


def test_a_replaced_file_stays_as_it_was_for_who_has_it_open(folder):
    expected = open_and_run(folder / "ctx.onnx").tobytes()
    session = tenon.create_session(folder / "ctx.onnx", "cpu", quiet())
    data = data_of(folder)
    data.with_name("new").write_bytes(bytes(data.stat().st_size))
    data.with_name("new").replace(data)
    assert session.run(None, PROBLEM.inputs(2))[0].tobytes() == expected


def test_a_copied_file_that_was_cut_or_changed(folder):
    data = data_of(folder)
    whole = data.read_bytes()
    for changed in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole[:50]):
        data.write_bytes(changed)
        with pytest.raises(Exception, match=data.name):
            tenon.create_session(folder / "ctx.onnx", "cpu", quiet(), context_weights="copy")


def metadata(path) -> dict:
    return {p.key: p.value for p in onnx.load(path).metadata_props}


def test_the_model_says_what_it_was_compiled_for(folder):
    origin = metadata(folder / "ctx.onnx")["ep_compatibility_info.TenonExecutionProvider"]
    assert origin.startswith("tenon-context-2;version=")
    (target,) = ContextModel.read(folder / "ctx.onnx").targets
    assert f";targets={target};" in origin


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpus")
    onnx.save(build_scaled_dot("int4", PROBLEM), folder / "model.onnx")
    path = folder / "gpus.onnx"
    written, _ = compile_model(
        folder / "model.onnx", path, archs=["sm_90a", "sm_80"], session_options=quiet()
    )
    assert sorted(written.targets) == ["sm_80", "sm_90a"]
    return path


def test_both_targets_share_one_file(gpus):
    (context,) = ContextModel.read(gpus).contexts
    assert sorted(program["target"] for program in context.programs) == ["sm_80", "sm_90a"]
    assert all(program["kernels"] > 0 for program in context.programs)


def test_it_does_not_open_on_the_cpu(gpus):
    message = "compiled for sm_.*, sm_.*, a GPU that is not in this machine"
    with pytest.raises(Exception, match=message):
        tenon.create_session(gpus, "cpu", quiet())


def test_explain_needs_no_gpu(gpus, command):
    told = command("explain", gpus, "--device", "cpu")
    assert told.status == 0, told.err
    assert "a context model for sm_" in told.out
    assert "a GPU that is not in this machine" in told.out
    facts = json.loads(command("explain", gpus, "--device", "cpu", "--json").out)
    assert sorted(facts["targets"]) == ["sm_80", "sm_90a"]
    assert "not in this machine" in facts["error"]


def test_several_gpus_are_for_contexts_only(gpus):
    with pytest.raises(Exception, match="a session compiles for one"):
        tenon.create_session(
            gpus.parent / "model.onnx", "gpu", quiet(), target_arch=["sm_90a", "sm_80"]
        )


def test_a_gpu_twice_is_refused(gpus, tmp_path):
    with pytest.raises(Exception, match="names sm_80 twice"):
        compile_model(
            gpus.parent / "model.onnx", tmp_path / "c.onnx", archs=["sm_80", "sm_80"],
            session_options=quiet(),
        )  # fmt: skip
