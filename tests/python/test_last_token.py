"""Decoders that give the logits of their last token alone: the last product has one row of each."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, DecoderConfig, Spelling
from onnxruntime_ep_tenon.report import fusion_kind, session_with_report
from test_gpu import run_script
from test_session import quiet

pytestmark = pytest.mark.plugin

VOCABULARY = 96


def config() -> DecoderConfig:
    """Wide enough for the kernels of real models."""
    return DecoderConfig(
        layers=2,
        hidden=512,
        heads=4,
        kv_heads=2,
        head_size=128,
        feed_forward=512,
        vocabulary=VOCABULARY,
        positions=64,
    )


def add_constants(model: onnx.ModelProto, **values) -> None:
    for name, value in values.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))


def last_node(model: onnx.ModelProto) -> onnx.NodeProto:
    """What gives the logits, which are of one token from now on."""
    [logits] = [value for value in model.graph.output if value.name == "logits"]
    tokens = logits.type.tensor_type.shape.dim[1]
    tokens.ClearField("dim_param")
    tokens.dim_value = 1
    [node] = [node for node in model.graph.node if "logits" in node.output]
    return node


def slice_logits(model: onnx.ModelProto) -> None:
    """As people append it."""
    last_node(model).output[0] = "all_logits"
    add_constants(model, from_last=[-1], to_end=[2**62], of_tokens=[1])
    inputs = ["all_logits", "from_last", "to_end", "of_tokens"]
    model.graph.node.append(helper.make_node("Slice", inputs, ["logits"], name="last_logits"))


def gather_hidden(model: onnx.ModelProto) -> None:
    """As ONNX Runtime GenAI's model builder prunes the last product."""
    product = last_node(model)
    place = list(model.graph.node).index(product)
    add_constants(model, last_index=-1, of_tokens=[1])
    hidden = product.input[0]
    gather = helper.make_node("Gather", [hidden, "last_index"], ["picked"], name="pick", axis=1)
    apart = helper.make_node("Unsqueeze", ["picked", "of_tokens"], ["last_hidden"], name="apart")
    model.graph.node.insert(place, apart)
    model.graph.node.insert(place, gather)
    product.input[0] = "last_hidden"


def gather_logits_by_mask(model: onnx.ModelProto) -> None:
    """Rows of different lengths: the last token that counts of each, as many as keys here."""
    last_node(model).output[0] = "all_logits"
    add_constants(model, one=1, minus_one=[-1], of_tokens=[1], second=1)
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Shape", ["input_ids"], ["id_sizes"], name="id_sizes"),
            node("Gather", ["id_sizes", "second"], ["tokens"], name="tokens"),
            node("Sub", ["tokens", "one"], ["last_place"], name="last_place"),
            node("ReduceMin", ["attention_mask", "minus_one"], ["ones"], name="ones"),
            node("Mul", ["ones", "last_place"], ["places"], name="places"),
            node("GatherND", ["all_logits", "places"], ["picked"], name="pick", batch_dims=1),
            node("Unsqueeze", ["picked", "of_tokens"], ["logits"], name="apart"),
        ]
    )


SELECTIONS = {f.__name__: f for f in (slice_logits, gather_hidden, gather_logits_by_mask)}


def last_logits(session, feeds) -> np.ndarray:
    return tensors.run(session, feeds, ["logits"])[0][:, -1:]


def check_last_logits(form: str, name: str, device: str, select) -> None:
    """The same with a selection and without."""
    size, spelling = ARCHITECTURES[name], Spelling(form, "f16", "f16")
    feeds = decoder.inputs_for(size, spelling, batch=2, sequence=5)
    results = []
    for change in (lambda model: None, select):
        model = decoder.build_decoder(size, spelling)
        change(model)
        session, report = session_with_report(model, device, quiet(), claim="all")
        assert report.left_out == []
        results.append(last_logits(session, feeds).astype(np.float32))
    np.testing.assert_allclose(*results, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("form", ["genai", "attention"])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_gives_the_last_of_all_logits(selection, form, name):
    if name == "gemma2" and selection == "gather_hidden":
        pytest.skip("Gemma's logits come from a soft cap, which is no product")
    check_last_logits(form, name, "cpu", SELECTIONS[selection])


def test_on_a_gpu_that_the_stub_driver_plays(request):
    run_script(f"""
        import sys
        sys.path.insert(0, {str(request.path.parent)!r})
        from test_last_token import SELECTIONS, check_last_logits
        for select in SELECTIONS.values():
            check_last_logits("genai", "llama", "gpu", select)
    """)


@pytest.mark.parametrize("select", [slice_logits, gather_hidden])
@pytest.mark.parametrize("form", ["genai", "attention"])
def test_the_last_product_has_one_row_and_its_norm(select, form):
    kinds = []
    for change in (lambda model: None, select):
        model = decoder.build_decoder(config(), Spelling(form, "int4", "f16"))
        change(model)
        _, report = session_with_report(model, "gpu", quiet(), target_arch="sm_90a")
        assert report.left_out == []
        kinds.append([fusion_kind(fusion) for fusion in report.fusions])
    assert kinds[0] == kinds[1]
    result = report.fusions[-1]["problem"].split("->")[1]
    assert f",{VOCABULARY}]" in result
    assert ",sequence_length," not in result
