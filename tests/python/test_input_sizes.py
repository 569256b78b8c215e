"""Sizes of inputs that nobody gave: chosen by name or by place, told, and the same for all."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from command_models import linear, saved
from onnxruntime_ep_tenon.genai_folder import sizes_beside
from onnxruntime_ep_tenon.inputs import InputError, make_inputs
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES
from onnxruntime_ep_tenon.models.genai_folder import write_config


def session(**inputs):
    """A session that only knows its inputs: name=(type, shape)."""
    values = [
        SimpleNamespace(name=name, type=f"tensor({dtype})", shape=shape)
        for name, (dtype, shape) in inputs.items()
    ]
    return SimpleNamespace(get_inputs=lambda: values)


def shapes(made) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in made.arrays.items()}


@pytest.mark.parametrize(
    ("dtype", "declared", "expected"),
    [
        ("float", ["N", 3, "height", "width"], [1, 3, 224, 224]),
        ("float", [None, 3, None, None], [1, 3, 224, 224]),
        ("float", ["unk__1", "unk__2", "unk__3", 3], [1, 224, 224, 3]),
        ("float", ["DynamicDimension.0", 3, 48, "DynamicDimension.1"], [1, 3, 48, 224]),
        ("int64", ["batch_size", "sequence_length"], [1, 32]),
        ("int64", [None, None], [1, 32]),
        ("float", ["s0", 80, "frames"], [1, 80, 32]),
        ("float", ["batch", 4, "latent_height", "latent_width"], [1, 4, 32, 32]),
        ("float", ["N", 3, "?", "?"], [1, 3, 224, 224]),
        ("float", [2, None, 128], [2, 1, 128]),
        ("float", [None, None], [1, 512]),
        ("float", [2, 5], [2, 5]),
        ("float", [], []),
    ],
)
def test_sizes_are_sensible(dtype, declared, expected):
    made = make_inputs(session(x=(dtype, declared)))
    assert shapes(made) == {"x": expected}
    assert len(made.chosen) == sum(not isinstance(size, int) for size in declared)


def test_sound_lasts_a_second_and_is_valid_throughout():
    """Feature extractors fail on one sample, and lengths of 0 or 1 say that nothing is there."""
    extractor = session(
        waveforms=("float", ["batch_size", "N"]), waveforms_lens=("int64", ["batch_size"])
    )
    made = make_inputs(extractor, {"batch_size": 2})
    assert shapes(made) == {"waveforms": [2, 16000], "waveforms_lens": [2]}
    assert made.arrays["waveforms_lens"].tolist() == [16000, 16000]
    made = make_inputs(extractor, {"N": 400})
    assert made.arrays["waveforms_lens"].tolist() == [400]
    encoder = session(text=("int64", ["batch", "seq"]), lengths=("int32", [None]))
    assert make_inputs(encoder).arrays["lengths"].tolist() == [32]
    made = make_inputs(encoder, shapes={"text": [7]})  # wrong, as the runtime will say
    assert shapes(made)["text"] == [7]


def test_a_choice_is_told_with_its_reason():
    made = make_inputs(session(x=("float", ["batch", 3, None, 7])))
    assert [str(size) for size in made.chosen] == [
        "batch=1 (one in a batch)",
        "x[2]=224 (an image's side)",
    ]
    assert "--dim" in made.chosen_text() and "batch=1" in made.chosen_text()
    assert make_inputs(session(x=("float", [3]))).chosen_text() == ""


def test_a_decoder_starts_with_no_tokens_before():
    decoder = session(
        input_ids=("int64", ["batch", "sequence_length"]),
        attention_mask=("int64", ["batch", "total_sequence_length"]),
        position_ids=("int64", ["batch", "sequence_length"]),
        past=("float16", ["batch", 2, "past_sequence_length", 16]),
        other=("int64", ["batch", "past_sequence_length + 1"]),
    )
    made = make_inputs(decoder, {"sequence_length": 4})
    expected = [[1, 4], [1, 4], [1, 4], [1, 2, 0, 16], [1, 1]]
    assert list(shapes(made).values()) == expected
    np.testing.assert_array_equal(made.arrays["position_ids"], [[0, 1, 2, 3]])
    made = make_inputs(decoder, {"sequence_length": 1, "past_sequence_length": 7})
    expected = [[1, 1], [1, 8], [1, 1], [1, 2, 7, 16], [1, 8]]
    assert list(shapes(made).values()) == expected


def test_the_name_of_an_input_tells_what_its_dimensions_do_not():
    """As torch's exporter writes a decoder that sees images; inputs in any order."""
    decoder = session(
        **{"past_key_values.0.key": ("float", ["s10", 4, "s15", 32])},
        **{"past_key_values.0.value": ("float", ["s10", "s15", 4, 32])},
        input_ids=("int64", ["s10", "s70"]),
        attention_mask=("int64", ["s10", "s15 + s70"]),
        mask=("int64", ["s10", "s99"]),
        cache_position=("int64", ["s70"]),
        pixel_values=("float", ["s11", "s12", "s13", "s14"]),
        encoder_attention_mask=("int64", ["s10", "s71"]),
    )
    first = [[1, 4, 0, 32], [1, 0, 4, 32], [1, 32], [1, 32], [1, 32], [32]]
    more = [[1, 3, 224, 224], [1, 32]]
    made = make_inputs(decoder)
    assert list(shapes(made).values()) == first + more
    assert "s15=0 (no tokens before)" in made.chosen_text()
    assert "s99=32 (past and new tokens)" in made.chosen_text()
    made = make_inputs(decoder, {"s15": 5, "s70": 2})
    given = [[1, 4, 5, 32], [1, 5, 4, 32], [1, 2], [1, 7], [1, 7], [2]]
    assert list(shapes(made).values()) == given + more


def test_four_dimensional_masks_and_stacked_caches():
    decoder = session(
        past_0=("float", [2, "a", "b", "c", "d"]),
        input_ids=("int64", ["a", "e"]),
        attention_mask=("bool", ["a", "f", "e", "g"]),
        position_ids=("int64", [3, "a", "e"]),
    )
    made = make_inputs(decoder, {"c": 6, "e": 4})
    assert list(shapes(made).values()) == [[2, 1, 1, 6, 64], [1, 4], [1, 1, 4, 10], [3, 1, 4]]


def test_a_file_for_ranks_says_how_many_heads_there_are():
    value = {"past_key_values.0.key": ("float", ["batch", "kv_heads_of_8", "past", 16])}
    made = make_inputs(session(**value))
    assert shapes(made) == {"past_key_values.0.key": [1, 8, 0, 16]}
    assert "kv_heads_of_8=8 (heads that this process binds)" in made.chosen_text()


def test_a_folder_says_what_its_model_leaves_open(tmp_path):
    """GenAI's model builder names the size of a head, and writes the number beside it."""
    names = ("input_ids", "attention_mask")
    write_config(tmp_path, ARCHITECTURES["llama"], True, names)
    (tmp_path / "model.onnx").touch()
    caches = session(
        **{"past_key_values.0.key": ("float", ["b", 2, "p", "kv_cache_dim"])},
        **{"past_key_values.0.value": ("uint8", ["b", "heads", "p", "packed"])},
        mask=("float", ["b", 2, "p", "kv_cache_dim"]),
    ).get_inputs()
    told = sizes_beside(tmp_path / "model.onnx", caches)
    assert {name: size for name, (size, _) in told.items()} == {
        "kv_cache_dim": 16, "heads": 2, "packed": 8,
    }  # fmt: skip
    assert told["kv_cache_dim"][1] == "by head_size in genai_config.json"
    assert sizes_beside(tmp_path / "other.onnx", caches) == {}
    (tmp_path / "genai_config.json").write_text("{}")
    assert sizes_beside(tmp_path / "model.onnx", caches) == {}


def test_a_given_shape_says_what_its_names_are(tmp_path):
    two = session(a=("int64", ["batch", "sequence"]), b=("float", ["batch", "sequence", 8]))
    made = make_inputs(two, shapes={"a": [2, 7]})
    assert shapes(made) == {"a": [2, 7], "b": [2, 7, 8]} and made.chosen == []
    np.save(tmp_path / "a.npy", np.ones((3, 5), np.int64))
    assert shapes(make_inputs(two, files={"a": tmp_path / "a.npy"}))["b"] == [3, 5, 8]
    with pytest.raises(InputError, match="'batch' is 2 in input 'a', but 4 elsewhere"):
        make_inputs(two, {"batch": 4}, shapes={"a": [2, 7]})


@pytest.mark.plugin
@pytest.mark.parametrize("name", ["run", "bench"])
def test_a_misspelt_dimension_is_an_error_that_lists_them(command, tmp_path, name):
    told = command(name, saved(linear(), tmp_path), "--dim", "rosw=3")
    assert told.status == 1
    assert told.err == ("tenon: error: the model has no dimension 'rosw'; its inputs have: rows\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "m.onnx", "--threads", "-1"),
        ("bench", "m.onnx", "--threads", "-1"),
        ("bench", "m.onnx", "--seconds", "-1"),
        ("bench", "m.onnx", "--seconds", "0"),
        ("bench", "m.onnx", "--seconds", "soon"),
        ("demo", "--threads", "-1"),
        ("run", "m.onnx", "--max-int", "-5"),
    ],
)
def test_negative_numbers_are_a_matter_of_usage(command, arguments):
    told = command(*arguments)
    assert told.status == 2 and "expected" in told.err


@pytest.mark.plugin
def test_run_tells_what_it_chose(command, tmp_path):
    path = saved(linear(), tmp_path)
    told = command("run", path)
    assert told.status == 0 and "Sizes chosen: rows=1 (one in a batch)." in told.out
    report = json.loads(command("run", path, "--json").out)
    assert report["chosen_sizes"] == [{"what": "rows", "size": 1, "why": "one in a batch"}]
    assert "Sizes chosen" not in command("run", path, "--dim", "rows=2").out
