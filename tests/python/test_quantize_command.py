"""`tenon quantize`: what it writes runs and is like its original, or is not written."""

import json
import os
import re
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from command_models import (
    behind_nonzero,
    classifier,
    linear,
    mixed_types,
    saved,
    shared_with_loop,
    weight,
)
from conftest import runtime_at_least
from onnx import TensorProto
from onnxruntime_ep_tenon import report, trial
from onnxruntime_ep_tenon.commands.quantize import size_change
from onnxruntime_ep_tenon.models import decoder, quantize, reference, rewrite, validate
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from onnxruntime_ep_tenon.models.number_formats import FORMATS


def one_line(error: str) -> str:
    """An error is one line that names no temporary file."""
    assert error.startswith("tenon: error: ") and error.count("\n") == 1, error
    assert ".partial" not in error and ".tenon-" not in error
    return error


@pytest.mark.plugin
@pytest.mark.parametrize("format", FORMATS)
def test_a_float16_model_stays_one(command, tmp_path, format):
    if format.startswith("mx") and not runtime_at_least("1.27.0"):
        pytest.skip("this onnxruntime loads no e8m0 scales")
    source, target = saved(linear(TensorProto.FLOAT16), tmp_path), tmp_path / "out.onnx"
    told = command("quantize", source, "--format", format, "--out", target)
    assert told.status == 0, told.err
    assert "Checked: 'y' of one Run: differs from the original's by" in told.out
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float16)
    wanted, got = (tenon.create_session(path).run(None, {"x": x})[0] for path in (source, target))
    assert got.dtype == np.float16
    assert validate.compare_with_original("y", got, wanted).rms_error < 0.2


@pytest.mark.plugin
def test_each_layer_of_a_mixed_model_keeps_its_type(command, tmp_path):
    source = saved(mixed_types(), tmp_path)
    told = command("quantize", source, "--format", "int4", "--json")
    assert told.status == 0, told.err
    report = json.loads(told.out)
    assert report["activations"] == "f32,f16"
    assert report["check"]["outputs"][0]["ok"]


def test_other_activations_are_refused_where_they_cannot_be_given(command, tmp_path):
    source = saved(linear(TensorProto.FLOAT16), tmp_path)
    told = command("quantize", source, "--format", "int4", "--activations", "f32")
    assert told.status == 1 and "computes in float16" in one_line(told.err)
    assert os.listdir(tmp_path) == ["model.onnx"]


@pytest.fixture
def nobody_dequantizes_w(monkeypatch):
    """As if no kernel took the weight that the quantised model reads as W."""
    excluded = partial(tenon.create_session, exclude_nodes="W/dequantized")
    monkeypatch.setattr(report, "create_session", excluded)


@pytest.mark.plugin
def test_a_product_of_as_many_rows_as_a_run_finds_is_quantized(command, tmp_path):
    told = command("quantize", saved(behind_nonzero(), tmp_path), "--format", "nvfp4")
    assert told.status == 0, told.err


@pytest.mark.plugin
@pytest.mark.usefixtures("nobody_dequantizes_w")
def test_a_file_that_nobody_can_run_is_not_written(command, tmp_path):
    target = saved(linear(), tmp_path, "out.onnx")
    before = target.read_bytes()
    source = saved(behind_nonzero(), tmp_path)
    told = command("quantize", source, "--format", "nvfp4", "--out", target)
    assert told.status == 1
    assert "out.onnx was not written" in told.err and "--exclude 'MatMul_" in told.err
    assert re.search(r"excluded by the option exclude_nodes.*\n    DequantizeLinear", told.err)
    assert target.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "out.onnx"]


@pytest.mark.plugin
def test_a_file_that_does_something_else_is_not_written(command, tmp_path, monkeypatch):
    rounded = quantize.quantize
    monkeypatch.setattr(quantize, "quantize", lambda rows, *more: rounded(-rows, *more))
    told = command("quantize", saved(linear(), tmp_path), "--format", "int4")
    assert told.status == 1
    assert "'y' is not the original's: it differs by" in one_line(told.err)
    assert os.listdir(tmp_path) == ["model.onnx"]


@pytest.mark.plugin
def test_an_original_that_fails_is_not_held_against_its_copy(command, tmp_path):
    """[rows, 64] with 5 columns: the runtime refuses them, whichever file it is."""
    source = saved(linear(), tmp_path)
    told = command("quantize", source, "--format", "int4", "--shape", "x=2,5")
    assert told.status == 0
    assert "Not checked: it opens, but was not compared: the original itself" in told.out
    assert (tmp_path / "model.int4.onnx").is_file()


@pytest.mark.plugin
def test_an_index_out_of_bounds_is_told_with_what_bounds_it(command, tmp_path):
    g = GraphBuilder("lookup", 21)
    ids = g.input("ids", TensorProto.INT64, ["rows"])
    rows = g.node("Gather", [g.parameter("T", np.ones([2, 64], np.float32)), ids])
    g.node("MatMul", [rows, g.parameter("W", np.ones([64, 64], np.float32))], outputs=["y"])
    g.output("y", FLOAT, ["rows", 64])
    source = saved(g.model(), tmp_path)
    many = ("--dim", "rows=40", "--max-int", 30)
    told = command("quantize", source, "--format", "fp8", *many)
    assert told.status == 0 and "give another --max-int" in told.out
    told = command("run", source, "--max-int", 30)
    assert told.status == 1 and "Or give another --max-int" in told.err


def test_nothing_to_quantise_writes_nothing(command, tmp_path):
    source = saved(linear(k=40), tmp_path)
    told = command("quantize", source, "--format", "nvfp4")
    assert told.status == 1
    assert "nothing was quantised, and nothing written: K=40" in one_line(told.err)
    told = command("quantize", source, "--format", "int4", "--exclude", "*")
    assert told.status == 1 and "excluded by name" in one_line(told.err)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_absent_weights_are_named(command, tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    (tmp_path / "weights.bin").unlink()
    told = command("quantize", path, "--format", "int4")
    assert told.status == 1 and "keeps weights in weights.bin, which is not" in one_line(told.err)


@pytest.mark.parametrize("content", [b"", onnx.ModelProto(ir_version=10).SerializeToString()])
def test_a_model_without_nodes_is_refused(command, tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    told = command("quantize", path, "--format", "int4")
    assert told.status == 1 and "holds no ONNX graph with nodes" in one_line(told.err)


@pytest.mark.parametrize(
    ("out", "message"),
    [(".", ". is a folder; give the name of a file"), ("model.onnx", "is the model itself")],
)
def test_a_target_that_cannot_be_is_refused_first(command, tmp_path, monkeypatch, out, message):
    source = saved(linear(), tmp_path)
    monkeypatch.chdir(tmp_path)
    told = command("quantize", source, "--format", "int4", "--out", out)
    assert told.status == 1 and message in one_line(told.err)


def test_a_full_disk_is_told_without_temporary_names(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device", "/x/.tenon-1/out.onnx")

    monkeypatch.setattr(rewrite.Path, "write_bytes", no_space)
    with pytest.raises(rewrite.RewriteError, match=r"out.onnx cannot be written: No space left"):
        rewrite.save_model(linear(), tmp_path / "out.onnx", tmp_path)
    assert os.listdir(tmp_path) == []


def test_chosen_classes_are_counted_not_judged():
    verdict = validate.compare_with_original("cls", np.array([1, 2, 3]), np.array([1, 2, 4]))
    assert verdict.ok and verdict.note == "1 of 3 elements differ from the original's"
    verdict = validate.compare_with_original("found", np.zeros([2, 4]), np.zeros([3, 4]))
    assert verdict.ok and verdict.note == "its shape is [2, 4], the original's [3, 4]"
    assert not validate.compare_with_original("y", np.zeros([4]), np.zeros([1, 4])).ok
    assert not validate.compare_with_original("y", np.array([np.nan]), np.array([1.0])).ok


def test_weights_in_bodies_are_not_said_to_be_absent(command, tmp_path):
    """An If whose branches multiply: the quantiser does not look there, and says so."""
    branch = onnx.helper.make_graph(
        list(linear().graph.node), "branch", [], [linear().graph.output[0]],
        list(linear().graph.initializer),
    )  # fmt: skip
    g = GraphBuilder("bodies", 21)
    g.input("x", FLOAT, ["rows", 64])
    which = g.input("which", TensorProto.BOOL, [])
    g.node("If", [which], outputs=["z"], then_branch=branch, else_branch=branch)
    g.output("z", FLOAT, ["rows", 48])
    told = command("quantize", saved(g.model(), tmp_path), "--format", "int4")
    assert told.status == 1 and "bodies of If, Loop and Scan are not searched" in one_line(told.err)


def test_sizes_are_told_as_they_are():
    assert size_change(300, 100) == "3.0x smaller"
    assert size_change(102, 100) == "only 1.02x smaller"
    assert size_change(100, 100) == "no smaller"
    assert size_change(100, 102) == "no smaller"
    assert size_change(100, 130) == "1.3x larger"


@pytest.mark.plugin
@pytest.mark.parametrize("more", [(), ("--no-check",)])
def test_a_file_that_is_no_smaller_is_not_written(command, tmp_path, more):
    """One small layer quantised beside a large one that is left."""
    model = linear()
    large = np.random.default_rng(0).standard_normal((2048, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(large, "table"))
    model.graph.node.insert(0, onnx.helper.make_node("Gather", ["table", "i"], ["g"], "look_up"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("i", TensorProto.INT64, ["n"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("g", FLOAT, ["n", 64]))
    source, target = saved(model, tmp_path), tmp_path / "out.onnx"
    arguments = ("quantize", source, "--format", "int4", "--max-int", 9, "--out", target, *more)
    told = command(*arguments)
    assert told.status == 1 and not target.exists(), told.out
    assert f"{target} was not written: it is only 1.0" in one_line(told.err)
    assert "--force writes it all the same" in told.err
    assert re.search(r"^MatMul_0 .* 64x48 .*%", told.out, re.M), "the layers stand in front"
    told = command(*arguments, "--force")
    assert told.status == 0 and target.exists() and "(only 1.0" in told.out, told.err


@pytest.mark.plugin
def test_a_decoder_is_run_once_before_it_is_called_written(command, tmp_path, monkeypatch):
    arguments = ("models", "decoder", "--preset", "tiny-llama", "--weights", "int4", "--out")
    told = command(*arguments, tmp_path / "good")
    assert told.status == 0 and "Checked: one Run gives finite numbers" in told.out

    def no_numbers(session, inputs):
        return [np.full([1], np.nan, np.float16) for _ in session.get_outputs()]

    monkeypatch.setattr(trial.tensors, "run", no_numbers)
    told = command(*arguments, tmp_path / "bad")
    assert told.status == 1 and "was removed: output" in one_line(told.err)
    assert not list((tmp_path / "bad").glob("model.onnx*"))


@pytest.mark.plugin
@pytest.mark.usefixtures("nobody_dequantizes_w")
def test_only_layers_that_nobody_runs_are_advised_to_be_left(command, tmp_path):
    """Not just any product that was left out: there are float ones in bodies of loops."""
    model = behind_nonzero()
    plain = onnx.helper.make_node("MatMul", ["x", "V"], ["z"], "innocent")
    product = next(node for node in model.graph.node if node.op_type == "MatMul")
    model.graph.node.append(plain)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones([64, 64], "f4"), "V"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", FLOAT, ["rows", 64]))
    source = saved(model, tmp_path)
    told = command("quantize", source, "--format", "nvfp4")
    advice = told.err.splitlines()[-1]
    assert told.status == 1
    assert advice == f"Leave such layers as they are: --exclude '{product.name}'"
    told = command("quantize", source, "--format", "nvfp4", "--exclude", product.name)
    assert told.status == 0, told.err


@pytest.mark.plugin
def test_a_weight_that_a_body_reads_too_is_left(command, tmp_path):
    """Its float copy would stay, and the file would grow."""
    source = saved(shared_with_loop(), tmp_path)
    told = command("quantize", source, "--format", "nvfp4")
    assert told.status == 0, told.err
    assert "1 of 2 weights quantised" in told.out
    assert "reads its weight too, and keeps it in float" in told.out


def test_a_result_far_from_the_original_is_remarked():
    wanted = np.array([1.0, 1.0, 1.0, 1.0])
    near = validate.compare_with_original("y", wanted * 1.1, wanted)
    assert near.ok and not near.note
    far = validate.compare_with_original("y", wanted * 1.7, wanted)
    assert far.ok and "--exclude" in far.note


def test_blocks_that_do_not_fit_are_told_with_what_does(command, tmp_path):
    told = command("quantize", saved(linear(k=40), tmp_path), "--format", "int4")
    assert told.status == 1 and "block of 32; try --format fp8, which has no blocks" in one_line(
        told.err
    )


@pytest.mark.plugin
def test_a_model_with_results_that_are_no_tensors_is_checked(command, tmp_path):
    told = command("quantize", saved(classifier(), tmp_path), "--format", "fp8")
    assert told.status == 0, told.err
    assert "Checked: 'z' of one Run: differs" in told.out


def test_a_quantised_model_is_told_to_be_one(command, tmp_path):
    model, _ = quantize.quantize_model(linear(), "int4")
    told = command("quantize", saved(model, tmp_path), "--format", "nvfp4")
    assert told.status == 1 and "it is quantised already" in one_line(told.err)


@pytest.mark.plugin
@pytest.mark.parametrize("wrong", [("--dim", "rosw=3"), ("--input", "z=z.npy")])
def test_a_misspelt_name_is_an_error_and_nothing_is_written(command, tmp_path, wrong):
    told = command("quantize", saved(linear(), tmp_path), "--format", "int4", *wrong)
    assert told.status == 1 and "the model has no" in one_line(told.err)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_pattern_that_matches_nothing_is_an_error(command, tmp_path):
    """A model with a layer quantised that was to be left would be found out much later."""
    source = saved(linear(), tmp_path)
    told = command("quantize", source, "--format", "int4", "--exclude", "*MatMul_O*")
    assert told.status == 1 and os.listdir(tmp_path) == ["model.onnx"]
    assert "'*MatMul_O*' matches no layer; the nearest are 'MatMul_0'" in one_line(told.err)


def tied(rows: int = 2048, width: int = 512) -> onnx.ModelProto:
    """A table that ids look rows up in, and that the last product reads turned."""
    g = GraphBuilder("tied", 21)
    ids = g.input("ids", TensorProto.INT64, ["rows"])
    table = g.parameter("emb", np.random.default_rng(0).standard_normal((rows, width), np.float32))
    x = g.node("Gather", [table, ids])
    turned = g.node("Transpose", [table], perm=[1, 0])
    g.node("MatMul", [x, turned], outputs=["y"])
    g.output("y", FLOAT, ["rows", rows])
    return g.model()


@pytest.mark.plugin
@pytest.mark.parametrize("format", FORMATS)
def test_a_tied_table_is_quantised_once(command, tmp_path, format):
    if format.startswith("mx") and not runtime_at_least("1.27.0"):
        pytest.skip("this onnxruntime loads no e8m0 scales")
    source, target = saved(tied(), tmp_path), tmp_path / "out.onnx"
    told = command("quantize", source, "--format", format, "--embeddings", "--out", target)
    assert told.status == 0, told.err
    assert "2 of 2 weights quantised" in told.out and "--embeddings" not in told.out
    assert target.stat().st_size < source.stat().st_size / (3 if "8" in format else 6)
    onnx.checker.check_model(onnx.load(target))


def test_a_table_that_stays_beside_its_copy_is_told(command, tmp_path):
    told = command("quantize", saved(tied(), tmp_path), "--format", "nvfp4")
    assert told.status == 1 and "1.1x larger" in told.err
    assert "'emb' (4.0 MiB) stays in float beside its quantised copy: --embeddings" in told.err
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_weight_that_is_read_both_ways_keeps_both_meanings():
    """Square: nothing but the numbers would tell that one was taken for the other."""
    g = GraphBuilder("both", 21)
    x, w = g.input("x", FLOAT, ["rows", 64]), g.parameter("W", weight(64, 64))
    plain = g.node("MatMul", [x, w])
    g.node("MatMul", [plain, g.node("Transpose", [w], perm=[1, 0])], outputs=["y"])
    g.output("y", FLOAT, ["rows", 64])
    x = {"x": np.random.default_rng(2).standard_normal((3, 64), np.float32)}
    for format in FORMATS:
        made, _ = quantize.quantize_model(g.model(), format)
        onnx.checker.check_model(made)
        got, wanted = (reference.evaluate(model, x)[0] for model in (made, g.model()))
        assert validate.compare_with_original("y", got, wanted).rms_error < 0.25, format


@pytest.mark.plugin
def test_a_folder_makes_a_folder(command, tmp_path):
    """With all that a token loop reads, and no files of other models."""
    spelling = Spelling("genai", "f32", "f32", packed_qkv=True)
    source = tmp_path / "decoder"
    config = replace(ARCHITECTURES["llama"], hidden=128, feed_forward=512)
    decoder.write_decoder(source, config, spelling, SeededWeights())
    (source / "tokenizer.json").write_text("{}")
    (source / "other.bin").write_bytes(b"of another")
    for out in (tmp_path / "decoder.int4", tmp_path / "new" / "folder"):
        more = () if out.name == "decoder.int4" else ("--out", out)
        told = command("quantize", source, "--format", "int4", "--force", *more)
        assert told.status == 0, told.err
        names = sorted(os.listdir(out))
        assert names == ["genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json"]
        assert f"{out / 'model.onnx'}" in told.out and "Checked: 'logits'" in told.out
        assert command("run", out).status == 0
    told = command("quantize", source, "--format", "int4", "--out", source)
    assert told.status == 1 and "is the model itself" in one_line(told.err)


@pytest.mark.plugin
def test_the_folder_of_out_is_made_and_goes_with_a_failure(command, tmp_path):
    source, out = saved(linear(), tmp_path), tmp_path / "new" / "folder" / "out.onnx"
    told = command("quantize", source, "--format", "int4", "--out", out, "--dim", "rosw=3")
    assert told.status == 1 and not (tmp_path / "new").exists()
    told = command("quantize", source, "--format", "int4", "--out", out)
    assert told.status == 0 and os.listdir(out.parent) == ["out.onnx"]
