"""Whole models of their real sizes on a GPU, weights from seeds, against float64."""

from dataclasses import replace

import numpy as np
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.genai_folder import GenaiFolder
from onnxruntime_ep_tenon.generation import TokenLoop
from onnxruntime_ep_tenon.models import decoder, encoder, reference, validate
from onnxruntime_ep_tenon.models.decoder_config import (
    ARCHITECTURES,
    FORMS,
    DecoderConfig,
    Spelling,
)
from onnxruntime_ep_tenon.models.decoder_reference import ReferenceDecoder
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.tolerances import for_logits, for_model
from onnxruntime_ep_tenon.report import session_with_report
from test_decoder import check_generation, skip_unless_loadable
from test_session import quiet

pytestmark = pytest.mark.plugin

TYPES = {"f32": np.float32, "f16": np.float16}


@pytest.fixture(scope="module", autouse=True)
def gpu():
    if tenon.devices()[0].device.type.name != "GPU":
        pytest.skip("the driver offers no GPU")


def captured_session(model):
    """Everything on the GPU, replayed as a graph from the third Run of a shape on."""
    session, report = session_with_report(
        model, "gpu", quiet(), enable_cuda_graph=True, require_full_claim=True
    )
    assert report.coverage.partitions == 1
    return session


def agree(model, inputs, results, activations) -> None:
    names = [value.name for value in model.graph.output]
    wanted = reference.evaluate(model, inputs)
    for verdict in validate.compare_all(names, results, wanted, for_model(TYPES[activations])):
        assert verdict.ok, verdict


@pytest.mark.parametrize("activations", TYPES)
def test_sentence_encoder(activations):
    shape = encoder.EncoderShape()
    plain = encoder.build_encoder(encoder.seeded_weights(shape), shape)
    model, _ = quantize_model(plain, "nvfp4", activations)
    session = captured_session(model)
    for batch, length in ((1, 128), (3, 37)):
        tokens = encoder.random_tokens(batch, length)
        results = [session.run(None, tokens) for _ in range(4)]
        agree(model, tokens, results[0], activations)
        for again in results[1:]:
            np.testing.assert_array_equal(again[0], results[0][0])


@pytest.mark.parametrize("activations", TYPES)
def test_decoder_that_feeds_its_cache_back(activations):
    config = DecoderConfig(
        layers=3, hidden=512, heads=8, kv_heads=2, head_size=64, feed_forward=1024
    )
    model, _ = quantize_model(decoder.build_decoder(config), "nvfp4", activations)
    session = captured_session(model)
    names = [value.name for value in model.graph.output]
    past, cache = 0, {}
    for sequence in (9, 1, 1, 1):
        inputs = decoder.inputs_for(config, None, 1, sequence, past, seed=past) | cache
        results = tensors.run(session, inputs)
        agree(model, inputs, results, activations)
        past += sequence
        cache = decoder.renamed_caches(dict(zip(names, results, strict=True)))


@pytest.mark.parametrize("weights", ["nvfp4", "int4", "f16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_decoders_step_by_step(name, form, weights):
    """Sizes as real models have them, so that the tensor cores' kernels are taken."""
    sizes = {"hidden": 256, "heads": 4, "head_size": 64, "feed_forward": 512}
    config = replace(ARCHITECTURES[name], **sizes)
    spelling = Spelling(form, weights, "f16", packed_qkv=form == "genai")
    skip_unless_loadable(spelling)
    session = captured_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling)
    check_generation(session, config, spelling, batch=3)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_token_loop_with_shared_caches(name, tmp_path):
    """One graph serves all steps of one token: addresses and shapes stay."""
    config, spelling = ARCHITECTURES[name], Spelling("genai", "int4", "f32", packed_qkv=True)
    decoder.write_decoder(tmp_path, config, spelling, SeededWeights())
    folder = GenaiFolder.load(tmp_path)
    session = captured_session(folder.model)
    loop = TokenLoop(session, folder, max_length=40, fixed_mask=True)
    reference = ReferenceDecoder(config, spelling, SeededWeights())
    feed = np.array([[1, 2, 3, 4, 5, 6, 7]])
    for _ in range(8):
        logits, wanted = loop.step(feed)[0], reference.step(feed)[0, -1]
        verdict = validate.compare("logits", logits, wanted, for_logits(np.float32, wanted))
        assert verdict.ok, verdict
        feed = np.array([[int(np.argmax(wanted))]])
