"""`tenon ranks`: a small file over the same weights, or a reason why there is none."""

import errno
import json
import os
from dataclasses import replace

import onnx
import onnxruntime
import pytest
from command_models import linear, saved
from onnx import TensorProto, helper
from onnxruntime_ep_tenon.models import decoder, rank_files
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights

SPELLING = Spelling("genai", "int4", "f32")
HEADS = ["batch_size", "kv_heads_of_2", "past_sequence_length"]


@pytest.fixture
def folder(tmp_path):
    """A decoder as GenAI's model builder writes it: its weights in a file of their own."""
    decoder.write_decoder(tmp_path / "model", ARCHITECTURES["llama"], SPELLING, SeededWeights())
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    return tmp_path / "model"


def one_line(told) -> str:
    assert told.status == 1, told.out
    assert told.err.startswith("tenon: error: ") and told.err.count("\n") == 1, told.err
    return told.err


def attention(op: str, caches: int, domain: str = "com.microsoft") -> onnx.ModelProto:
    """An op that reads `past` as the input of that number."""
    inputs = ["x", *[""] * (caches - 1), "past"]
    node = helper.make_node(op, inputs, ["y"], name="attn", domain=domain)
    shapes = {"x": ["b", "s", 64], "past": ["b", 2, "p", 16], "y": ["b", "s", 64]}
    x, past, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in shapes.items()
    )
    return helper.make_model(helper.make_graph([node], "g", [x, past], [y]))


BESIDE = ("model.onnx.data", "genai_config.json", "tokenizer.json")


def test_both_folders_can_be_read_by_onnx(command, folder, tmp_path):
    """Which takes no file of two names: the original is not to suffer from what was made of it."""
    out = tmp_path / "ranks"
    told = command("ranks", folder, "--out", out)
    assert told.status == 0, told.err
    assert "4 caches of 2 heads" in told.out
    assert sorted(os.listdir(out)) == sorted(os.listdir(folder))
    for name in BESIDE:
        assert not (out / name).samefile(folder / name)
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    for path in (folder, out):
        onnx.load(path / "model.onnx")


def test_files_that_take_no_room_are_told_so(command, folder, tmp_path, monkeypatch):
    def clone(made, request, original):
        os.write(made.fileno(), os.pread(original, 1 << 20, 0))

    monkeypatch.setattr(rank_files.fcntl, "ioctl", clone)
    told = json.loads(command("ranks", folder, "--out", tmp_path / "out", "--json").out)
    assert not told["linked"] and not told["written"]
    assert sorted(told["cloned"]) == sorted(str(tmp_path / "out" / name) for name in BESIDE)


def test_weights_get_a_second_name_by_request(command, folder, tmp_path):
    out = tmp_path / "ranks"
    told = command("ranks", folder, "--out", out, "--link")
    assert told.status == 0, told.err
    for name in BESIDE:
        assert (out / name).samefile(folder / name)
    original, made = (onnx.load(f / "model.onnx", load_external_data=False) for f in (folder, out))
    assert (out / "model.onnx").stat().st_size < 100_000
    for value in [*made.graph.input, *made.graph.output]:
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.shape.dim[1].dim_value = 2
    assert made == original  # nothing else was changed
    session = onnxruntime.InferenceSession(out / "model.onnx")
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes["past_key_values.1.value"] == [*HEADS, "kv_cache_dim"]


def test_weights_within_a_model_are_written_once(command, tmp_path):
    source = saved(decoder.build_decoder(ARCHITECTURES["llama"], SPELLING), tmp_path)
    told = command("ranks", source, "--out", tmp_path / "ranks", "--json")
    made = json.loads(told.out)
    assert made["caches"]["past_key_values.0.key"] == 2 and not made["linked"]
    assert made["written"] == [str(tmp_path / "ranks" / "model.onnx.data")]
    assert made["bytes"] < source.stat().st_size / 2
    onnxruntime.InferenceSession(made["model"])


@pytest.mark.parametrize("form", ["attention", "unfused"])
def test_caches_that_exporters_join(command, tmp_path, form):
    model = decoder.build_decoder(ARCHITECTURES["gpt_oss"], replace(SPELLING, form=form))
    told = command("ranks", saved(model, tmp_path), "--out", tmp_path / "ranks")
    assert told.status == 0, told.err
    made = onnx.load(tmp_path / "ranks" / "model.onnx", load_external_data=False)
    dims = [d.dim_param or d.dim_value for d in made.graph.input[3].type.tensor_type.shape.dim]
    assert dims == [*HEADS, 16]


def test_a_file_system_without_links_has_advice(command, folder, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(rank_files.os, "link", refuse)
    out = tmp_path / "ranks"
    error = one_line(command("ranks", folder, "--out", out, "--link"))
    assert "same file system" in error and "leave --link out" in error and ".tenon-" not in error
    assert sorted(os.listdir(tmp_path)) == ["model"]
    assert command("ranks", folder, "--out", out).status == 0
    assert not (out / "model.onnx.data").samefile(folder / "model.onnx.data")
    onnxruntime.InferenceSession(out / "model.onnx")


def test_what_is_there_stays(command, folder, tmp_path):
    assert "is there already" in one_line(command("ranks", folder, "--out", folder))
    file = tmp_path / "file"
    file.write_text("kept")
    assert "is there already" in one_line(command("ranks", folder, "--out", file))
    assert file.read_text() == "kept"
    (tmp_path / "empty").mkdir()
    assert command("ranks", folder, "--out", tmp_path / "empty").status == 0


def test_what_needs_no_such_file_is_told_so(command, folder, tmp_path):
    error = one_line(command("ranks", saved(linear(), tmp_path), "--out", tmp_path / "a"))
    assert "no caches of keys and values" in error and "GroupQueryAttention" in error
    assert command("ranks", folder, "--out", tmp_path / "b").status == 0
    error = one_line(command("ranks", tmp_path / "b", "--out", tmp_path / "c"))
    assert "the symbol 'kv_heads_of_2' already" in error
    assert not (tmp_path / "a").exists() and not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "op, caches, domain, reason",
    [
        ("PagedAttention", 3, "com.microsoft", "caches in pages are whole on every rank"),
        ("Attention", 4, "com.microsoft", "keys and values are one tensor"),
        ("DecoderMaskedMultiHeadAttention", 5, "com.microsoft", "Tenon does not run it"),
        ("TensorScatter", 0, "", "caches that are written in place"),
    ],
)
def test_other_caches_are_refused(command, tmp_path, op, caches, domain, reason):
    model = attention(op, caches, domain)
    if not caches:
        model.graph.node[0].input[:] = ["past", "x"]
    error = one_line(command("ranks", saved(model, tmp_path), "--out", tmp_path / "out"))
    assert f"'past' is a cache of {op} 'attn'" in error and reason in error


def test_another_reader_is_refused(command, tmp_path):
    model = decoder.build_decoder(ARCHITECTURES["llama"], SPELLING)
    model.graph.node.append(helper.make_node("Neg", ["past_key_values.0.key"], ["n"], name="other"))
    error = one_line(command("ranks", saved(model, tmp_path), "--out", tmp_path / "out"))
    assert "also read by Neg 'other'" in error


def test_what_is_no_model_is_refused(command, tmp_path):
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no model")
    assert "is not an ONNX model" in one_line(command("ranks", junk, "--out", tmp_path / "out"))
    missing = command("ranks", tmp_path / "missing.onnx", "--out", tmp_path / "out")
    assert "there is no model file" in one_line(missing)
    broken = decoder.build_decoder(ARCHITECTURES["llama"], SPELLING)
    cache = broken.graph.input[2]
    cache.type.tensor_type.shape.dim[1].ClearField("dim_value")
    error = one_line(command("ranks", saved(broken, tmp_path), "--out", tmp_path / "out"))
    assert f"'{cache.name}' does not say how many heads" in error
