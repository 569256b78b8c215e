"""How many kernels a decoder's layer takes on a GPU, which need not be here."""

from collections import Counter
from dataclasses import replace

import pytest
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, FORMS, Spelling
from onnxruntime_ep_tenon.report import fusion_kind, session_with_report
from test_session import quiet

pytestmark = pytest.mark.plugin

# q, k and v; attention; its projection; gate and up; down. Norms, also those of heads, residuals
# and rotary are inside.
LAYER = {"attention": 1, "merged_dots": 2, "scaled_dot": 2}
# What is normed behind a projection is a residual as well: the norms around it have a kernel.
MORE = {"gemma2": {"loop": 2}}


def fusions(layers: int, spelling: Spelling, name: str = "llama") -> Counter:
    config = replace(
        ARCHITECTURES[name],
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
    return Counter(fusion_kind(fusion) for fusion in report.fusions)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_five_kernels_a_layer(name, form):
    """Windows come in every other layer, so two layers are added."""
    two, four = (fusions(layers, Spelling(form, "int4", "f16"), name) for layers in (2, 4))
    layer = Counter(LAYER | MORE.get(name, {}))
    assert four - two == layer + layer


def test_the_last_product_computes_its_norm():
    kinds = fusions(1, Spelling("genai", "int4", "f16"))
    # The first norm comes with the embedding; beside it one loop computes sequence lengths.
    assert kinds["loop"] == 2
    assert kinds["merged_dots"] == 3
