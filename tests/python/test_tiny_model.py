"""The trained model: gradients, a short training, tokens and perplexity in every format."""

import json

import numpy as np
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnxruntime_ep_tenon.genai_folder import GenaiFolder
from onnxruntime_ep_tenon.generation import TokenLoop, generate
from onnxruntime_ep_tenon.inputs import InputError
from onnxruntime_ep_tenon.models import tiny_model
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig, Spelling
from onnxruntime_ep_tenon.models.decoder_reference import ReferenceDecoder
from onnxruntime_ep_tenon.models.decoder_weights import TrainedWeights
from onnxruntime_ep_tenon.models.training import (
    Schedule,
    first_weights,
    loss_and_gradients,
    train,
)
from onnxruntime_ep_tenon.perplexity import measure, tokens_of
from test_command import failed, succeeded
from test_command import tenon as command
from test_session import quiet

SMALL = DecoderConfig(vocabulary=20)
SHORT = Schedule(steps=25, batch=8, length=48)
TEXT = "\n\n".join(f"Paragraph {n} says that a block of {n * 7} has one scale." for n in range(80))


def test_gradients_are_those_of_the_loss():
    weights = {name: w.astype(np.float64) for name, w in first_weights(SMALL).items()}
    random = np.random.default_rng(0)
    windows = random.integers(0, SMALL.vocabulary, (2, 9))
    _, gradients = loss_and_gradients(SMALL, weights, windows)
    assert gradients.keys() == weights.keys()
    for name, weight in weights.items():
        direction = random.standard_normal(weight.shape)
        step, losses = 1e-4, []
        for sign in (1, -1):
            moved = weights | {name: weight + sign * step * direction}
            losses.append(loss_and_gradients(SMALL, moved, windows)[0])
        slope = (losses[0] - losses[1]) / (2 * step)
        # Tables and scale are float32: the loss is exact to some 1e-7 only.
        assert slope == pytest.approx(np.sum(gradients[name] * direction), rel=1e-3, abs=1e-6), name


def test_the_loss_is_that_of_the_reference():
    weights = first_weights(SMALL)
    windows = np.random.default_rng(0).integers(0, SMALL.vocabulary, (1, 9))
    loss, _ = loss_and_gradients(SMALL, weights, windows)
    logits = ReferenceDecoder(SMALL, Spelling(), TrainedWeights(weights)).step(windows[:, :-1])[0]
    chosen = logits[np.arange(8), windows[0, 1:]]
    wanted = np.mean(np.log(np.exp(logits).sum(-1)) - chosen)
    assert loss == pytest.approx(wanted, rel=1e-5)


def test_training_learns_and_repeats_itself():
    tokens = np.tile(np.arange(20), 30)
    first, losses = train(SMALL, tokens, SHORT)
    assert losses[-1] < 0.5 * losses[0]
    again, _ = train(SMALL, tokens, SHORT)
    for name, weight in first.items():
        np.testing.assert_array_equal(weight, again[name])


def test_too_short_a_text_is_refused():
    with pytest.raises(ValueError, match="20 tokens are too few: windows of 48"):
        train(SMALL, np.arange(20), SHORT)
    with pytest.raises(ValueError, match="give --text FILE"):
        tiny_model.write_tiny_models(None, [], SHORT)


def test_one_paragraph_of_ten_is_held_out():
    learned, held_out = tiny_model.split_text(TEXT)
    assert len(held_out.split("\n\n")) == 8
    assert len(learned.split("\n\n")) == 72
    assert "Paragraph 9 " in held_out and "Paragraph 9 " not in learned


def test_the_documents_are_found():
    names = [path.name for path in tiny_model.document_files()]
    if not names:
        pytest.skip("an installed package has no documents beside it")
    assert "architecture.md" in names and names.count("README.md") > 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("tokenizers")
    out = tmp_path_factory.mktemp("tiny")
    text = out / "text.md"
    text.write_text(TEXT)
    return tiny_model.write_tiny_models(out, [text], SHORT)


def skip_unless_loadable(format: str) -> None:
    if format == "mxfp8" and not runtime_at_least("1.27"):
        pytest.skip("e8m0 scales load from onnxruntime 1.27 on")


def stored_weights(folder: GenaiFolder) -> TrainedWeights:
    """What the f32 folder holds, under the checkpoint's names."""
    import onnx
    from onnx import numpy_helper

    tensors = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder.model).graph.initializer}
    named = {}
    for name, tensor in tensors.items():
        if name.endswith("qkv_proj.weight"):
            parts = np.split(tensor.T, np.cumsum([128, 64]))
            for part, values in zip("qkv", parts, strict=True):
                named[name.replace("qkv", part)] = values
        else:
            named[name] = tensor.T if name.endswith(("proj.weight", "head.weight")) else tensor
    return TrainedWeights(named)


@pytest.mark.plugin
@pytest.mark.parametrize("format", tiny_model.FORMATS)
def test_tokens_are_those_of_the_reference(trained, format):
    skip_unless_loadable(format)
    folder = GenaiFolder.load(trained.folders[format])
    prompt = tokens_of(folder, "Paragraph 3")
    loop = TokenLoop(tenon.create_session(folder.model, "cpu", quiet()), folder)
    made = list(generate(loop, prompt, 40))

    source = stored_weights(GenaiFolder.load(trained.folders["f32"]))
    config = tiny_model.config_for(loop.run([[0]]).shape[-1])
    spelling = Spelling("genai", format, "f32", packed_qkv=True)
    reference, feed = ReferenceDecoder(config, spelling, source), prompt[None]
    for token in made:
        logits = reference.step(feed)[0, -1]
        assert logits[token] >= logits.max() - 1e-4
        feed = np.array([[token]])


@pytest.mark.plugin
def test_perplexity(trained):
    text = trained.held_out.read_text()
    found = {}
    for format in ("f32", "nvfp4", "int4"):
        folder = GenaiFolder.load(trained.folders[format])
        session = tenon.create_session(folder.model, "cpu", quiet())
        found[format] = measure(session, folder, tokens_of(folder, text), 32)
    # It has learned something, and quantisation forgets little of it.
    assert 1 < found["f32"] < 30
    for format in ("nvfp4", "int4"):
        assert found[format] == pytest.approx(found["f32"], rel=0.1)
        assert found[format] != found["f32"]
    with pytest.raises(InputError, match="are no window of 100000"):
        measure(session, folder, tokens_of(folder, text), 100000)


@pytest.mark.plugin
def test_the_command_prints_a_table_and_json(trained, tmp_path):
    folders = [trained.folders[format] for format in ("f32", "nvfp4")]
    arguments = (*folders, "--text", trained.held_out, "--length", 32, "--device", "cpu")
    text = succeeded(command("perplexity", *arguments, "--out", tmp_path / "perplexity.json"))
    assert "against the first" in text
    written = json.loads((tmp_path / "perplexity.json").read_text())
    told = json.loads(succeeded(command("perplexity", *arguments, "--json")))
    assert told == written
    assert [row["problem"] for row in told["rows"]] == ["", ""]


def test_the_command_needs_a_tokenizer(trained, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in trained.folders["f32"].iterdir():
        if file.name != "tokenizer.json":
            (bare / file.name).symlink_to(file)
    ran = command("perplexity", bare, "--text", trained.held_out)
    assert "there is no tokenizer.json in" in failed(ran)


def test_the_command_trains(tmp_path):
    (tmp_path / "text.md").write_text(TEXT * 2)
    ran = command(
        "models", "tiny", "--steps", 2, "--text", tmp_path / "text.md", "--out", tmp_path, "--json"
    )
    told = json.loads(succeeded(ran))
    assert set(told["folders"]) == set(tiny_model.FORMATS)
    assert (tmp_path / "nvfp4" / "tokenizer.json").is_file()
