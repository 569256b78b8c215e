"""How many kernels a decoder's layer takes on a GPU, which need not be here."""

import pytest
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig, Spelling
from onnxruntime_ep_tenon.report import fusion_kind, session_with_report
from test_session import quiet

pytestmark = pytest.mark.plugin

# q, k and v; attention; its projection; gate and up; down. Norms, residuals and rotary are inside.
LAYER = ["attention", "merged_dots", "merged_dots", "scaled_dot", "scaled_dot"]


def fusions(layers: int, spelling: Spelling) -> list[str]:
    config = DecoderConfig(
        layers=layers,
        hidden=512,
        heads=4,
        kv_heads=2,
        head_size=128,
        feed_forward=512,
        vocabulary=64,
        positions=64,
    )
    model = decoder.build_decoder(config, spelling)
    _, report = session_with_report(model, "gpu", quiet(), target_arch="sm_90a")
    assert report.left_out == []
    return sorted(fusion_kind(fusion) for fusion in report.fusions)


@pytest.mark.parametrize("form", ["genai", "attention"])
def test_five_kernels_a_layer(form):
    two, three = (fusions(layers, Spelling(form, "int4", "f16")) for layers in (2, 3))
    for kind in two:
        three.remove(kind)
    assert three == LAYER


def test_the_last_product_computes_its_norm():
    kinds = fusions(1, Spelling("genai", "int4", "f16"))
    # The first norm comes with the embedding; beside it only sequence lengths are computed.
    assert kinds.count("loop") == 3
    assert kinds.count("merged_dots") == 3
