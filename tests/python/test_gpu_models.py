"""Whole models of their real sizes on a GPU, weights from seeds, against float64."""

import numpy as np
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import decoder, encoder, reference, validate
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.tolerances import for_model
from onnxruntime_ep_tenon.report import session_with_report
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
