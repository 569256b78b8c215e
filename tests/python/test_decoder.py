"""Decoders of every architecture and form, step by step against float64."""

import json
import platform

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import runtime_at_least
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import decoder, validate
from onnxruntime_ep_tenon.models.decoder_config import (
    ARCHITECTURES,
    FORMS,
    PRESETS,
    DecoderConfig,
    Spelling,
)
from onnxruntime_ep_tenon.models.decoder_reference import ReferenceDecoder
from onnxruntime_ep_tenon.models.decoder_weights import NUMPY_TYPES, DrawnWeights, SeededWeights
from onnxruntime_ep_tenon.models.tolerances import for_logits
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import run_script
from test_session import quiet

PREFILL = 7
LENGTHS = (PREFILL, 1, 1, 1, 1, 1)
# Weights and activations; the stock CPU provider has kernels for the first three alone.
TYPES = {
    "f32": ("f32", "f32"),
    "f16": ("f16", "f16"),
    "int4": ("int4", "f32"),
    "nvfp4": ("nvfp4", "f16"),
}
STOCK = ("f32", "f16", "int4")


def spelled(form: str, types: str, **more) -> Spelling:
    return Spelling(form, *TYPES[types], **more)


def skip_unless_loadable(spelling: Spelling) -> None:
    if spelling.weights == "nvfp4" and spelling.by_operator and spelling.activations != "f32":
        if not runtime_at_least("1.30"):
            pytest.skip("MatMulBlockQuantizedFp4Weight came with onnxruntime 1.30")
    if spelling.weights.startswith("mx") and not runtime_at_least("1.27"):
        pytest.skip("e8m0 scales load from onnxruntime 1.27 on")


def stock_session(model):
    options = quiet()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def tenon_session(model):
    session, report = session_with_report(model, "cpu", quiet(), claim="all")
    assert report.left_out == []
    assert report.coverage.partitions == 1
    return session


def judge(name: str, result, wanted, spelling: Spelling) -> None:
    bound = for_logits(NUMPY_TYPES[spelling.activations], wanted)
    verdict = validate.compare(name, result, wanted, bound)
    assert verdict.ok, verdict


def check_generation(session, config, spelling, batch=1, source=None, lengths=LENGTHS) -> None:
    """A prefill and some decode steps, the caches fed back as they come."""
    reference = ReferenceDecoder(config, spelling, source or SeededWeights())
    names = [output.name for output in session.get_outputs()]
    random = np.random.default_rng(1)
    caches = decoder.inputs_for(config, spelling, batch, 1, past=0)
    past = 0
    for length in lengths:
        ids = random.integers(0, config.vocabulary, (batch, length))
        feed = caches | decoder.step_inputs(spelling, ids, past)
        results = dict(zip(names, tensors.run(session, feed), strict=True))
        judge(f"logits after {past}", results["logits"], reference.step(ids), spelling)
        past += length
        caches = decoder.renamed_caches(results)
    for layer, wanted in enumerate(reference.caches):
        for part, values in zip(("key", "value"), wanted, strict=True):
            name = f"past_key_values.{layer}.{part}"
            judge(name, caches[name], values, spelling)


@pytest.mark.parametrize("types", STOCK)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_stock_provider(name, form, types):
    if (name, form, types) == ("gpt_oss", "genai", "f16") and platform.machine() == "aarch64":
        pytest.skip("ONNX Runtime's own attention is off by 0.7 there: f16, sinks (1.24.4, 1.31.1)")
    config, spelling = ARCHITECTURES[name], spelled(form, types)
    session = stock_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling)


@pytest.mark.plugin
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tenon_takes_it_whole(name, form, types):
    config, spelling = ARCHITECTURES[name], spelled(form, types)
    skip_unless_loadable(spelling)
    session = tenon_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling)


@pytest.mark.plugin
@pytest.mark.parametrize(
    "spelling",
    [
        Spelling("genai", "nvfp4", "bf16"),
        Spelling("genai", "nvfp4", "f16", use_qdq=True),
        Spelling("genai", "mxfp8", "f16"),
        Spelling("genai", "mxfp4", "bf16"),
        Spelling("genai", "int4", "f16", packed_qkv=True),
        Spelling("genai", "int4", "f32", use_qdq=True),
        Spelling("genai", "f32", "f32", packed_qkv=True, last_token_only=True),
        Spelling("genai", "int4", "f16", quantized_embedding=True),
        Spelling("genai", "nvfp4", "f32", quantized_embedding=True),
        Spelling("unfused", "int4", "f32", quantized_embedding=True),
        Spelling("attention", "mxfp8", "f16", quantized_embedding=True),
        Spelling("attention", "mxfp8", "f32"),
        Spelling("unfused", "bf16", "bf16"),
        Spelling("unfused", "int4", "f16", last_token_only=True),
    ],
    ids=str,
)
def test_tenon_takes_other_spellings(spelling):
    skip_unless_loadable(spelling)
    config = ARCHITECTURES["qwen2"]
    session = tenon_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling, batch=2)


ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_decoder import ARCHITECTURES, FORMS, Spelling, check_generation, decoder
    from onnxruntime_ep_tenon.report import session_with_report

    for form in FORMS:
        config, spelling = ARCHITECTURES[{name!r}], Spelling(form, "int4", "f16")
        session, report = session_with_report(decoder.build_decoder(config, spelling), "gpu")
        assert report.left_out == []
        check_generation(session, config, spelling, batch=2)
        print(form)
"""


@pytest.mark.plugin
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_kernels_of_a_gpu_that_the_stub_driver_plays(name, request):
    text = ON_A_GPU.format(folder=str(request.path.parent), name=name)
    assert run_script(text).split() == list(FORMS)


@pytest.mark.plugin
def test_tenon_takes_lengths_by_value():
    config, spelling = ARCHITECTURES["llama"], Spelling(lengths="values")
    session = tenon_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling)


def attention_with_a_total(heads=4, kv_heads=2, size=16, longest=24):
    """GroupQueryAttention whose total is an input and whose caches keep their length."""
    helper, f32, i32 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
    cache = ["batch", kv_heads, longest, size]
    inputs = {
        "qkv": (f32, ["batch", "sequence", (heads + 2 * kv_heads) * size]),
        "past_k": (f32, cache),
        "past_v": (f32, cache),
        "seqlens_k": (i32, ["batch"]),
        "total": (i32, [1]),
    }
    outputs = {
        "y": (f32, ["batch", "sequence", heads * size]),
        "present_k": (f32, cache),
        "present_v": (f32, cache),
    }
    node = helper.make_node(
        "GroupQueryAttention",
        ["qkv", "", "", "past_k", "past_v", "seqlens_k", "total"],
        list(outputs),
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=kv_heads,
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, *type) for name, type in inputs.items()],
        [helper.make_tensor_value_info(name, *type) for name, type in outputs.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


@pytest.mark.plugin
def test_a_total_that_is_an_input():
    model = attention_with_a_total()
    sessions = tenon_session(model), stock_session(model)
    random = np.random.default_rng(5)
    caches = {name: np.zeros((2, 2, 24, 16), np.float32) for name in ("past_k", "past_v")}
    past = 0
    for length in (6, 1, 1, 1):
        past += length
        given = {
            "qkv": random.standard_normal((2, length, 128)).astype(np.float32),
            "seqlens_k": np.full(2, past - 1, np.int32),
            "total": np.array([past], np.int32),
            **caches,
        }
        ours, theirs = (session.run(None, given) for session in sessions)
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
        caches = {"past_k": ours[1], "past_v": ours[2]}


@pytest.mark.parametrize(
    "spelling",
    [
        Spelling(lengths="values"),
        Spelling("genai", "int4", "f32", quantized_embedding=True),
        Spelling("unfused", "int4", "f32", quantized_embedding=True),
    ],
    ids=str,
)
def test_stock_provider_takes_other_spellings(spelling):
    config = ARCHITECTURES["llama"]
    session = stock_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling)


@pytest.mark.plugin
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_a_prompt_in_pieces(name, form):
    config, spelling = ARCHITECTURES[name], Spelling(form)
    session = tenon_session(decoder.build_decoder(config, spelling))
    check_generation(session, config, spelling, lengths=(5, 4, 1, 3, 1))


# Windows of the exported forms count places in the cache, which padding takes up.
PADDED = [("llama", form) for form in FORMS] + [("gemma2", "genai"), ("gpt_oss", "genai")]


@pytest.mark.plugin
@pytest.mark.parametrize(("name", "form"), PADDED)
def test_rows_of_different_lengths(name, form):
    config, spelling = ARCHITECTURES[name], Spelling(form)
    session = tenon_session(decoder.build_decoder(config, spelling))
    random = np.random.default_rng(0)
    rows = [random.integers(0, config.vocabulary, length) for length in (3, 6)]
    references = [ReferenceDecoder(config, spelling, SeededWeights()) for _ in rows]
    ids, mask = (np.zeros((2, 6), np.int64) for _ in range(2))
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    caches = decoder.inputs_for(config, spelling, 2, 6, past=0)
    names = [output.name for output in session.get_outputs()]
    for _ in range(2):
        places = np.maximum(np.cumsum(mask, 1) - 1, 0)[:, -ids.shape[1] :]
        feed = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
        wanted = {value.name for value in session.get_inputs()}
        feed = {name: value for name, value in (caches | feed).items() if name in wanted}
        results = dict(zip(names, tensors.run(session, feed), strict=True))
        for number, row in enumerate(rows):
            logits = results["logits"][number, : len(row)]
            judge(f"row {number}", logits, references[number].step(row[None])[0], spelling)
        rows = [np.array([7]), np.array([9])]
        ids, mask = np.stack(rows), np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        caches = decoder.renamed_caches(results)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_weight_is_seen(name):
    config, spelling = ARCHITECTURES[name], Spelling()
    session = stock_session(decoder.build_decoder(config, spelling, SeededWeights(seed=0)))
    with pytest.raises(AssertionError, match="out of bounds"):
        check_generation(session, config, spelling, source=SeededWeights(seed=1))


@pytest.mark.parametrize(
    "change", [{"window": 6}, {"softcap": 20.0}, {"final_softcap": 0.0}, {"norm_offset": 0.0}]
)
def test_every_feature_changes_the_result(change):
    config = ARCHITECTURES["gemma2"]
    session = stock_session(decoder.build_decoder(config))
    other = DecoderConfig(**{**config.__dict__, **change})
    with pytest.raises(AssertionError, match="out of bounds"):
        check_generation(session, other, Spelling())


@pytest.mark.parametrize("form", ["attention", "unfused"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exported_forms_are_standard(name, form):
    model = decoder.build_decoder(ARCHITECTURES[name], Spelling(form))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_divide_into_blocks_and_groups(preset):
    config = PRESETS[preset]
    assert config.heads % config.kv_heads == 0
    for width in (config.hidden, config.feed_forward, config.query_width):
        assert width % 32 == 0


def test_the_order_of_drawing_does_not_matter():
    source = SeededWeights()
    first = source.values("model.norm.weight", (8,))
    source.values("lm_head.weight", (4, 8))
    np.testing.assert_array_equal(first, source.values("model.norm.weight", (8,)))


@pytest.mark.plugin
@pytest.mark.parametrize("weights", ["nvfp4", "int4", "mxfp8", "mxfp4", "f16"])
def test_drawn_weights_give_sane_numbers(weights, tmp_path):
    spelling = Spelling("genai", weights, "f16", packed_qkv=True)
    skip_unless_loadable(spelling)
    config = ARCHITECTURES["llama"]
    path = decoder.write_decoder(tmp_path, config, spelling, DrawnWeights())
    session, _ = session_with_report(path, "cpu", quiet())
    feed = decoder.inputs_for(config, spelling, 1, PREFILL, past=0)
    logits = tensors.run(session, feed)[0].astype(np.float32)
    assert np.all(np.isfinite(logits))
    assert 0.05 < logits.std() < 20


def test_a_written_folder_tells_how_to_run_it(tmp_path):
    config, spelling = ARCHITECTURES["qwen3"], Spelling("unfused", "f16", "f16")
    path = decoder.write_decoder(tmp_path, config, spelling, SeededWeights())
    told = json.loads((tmp_path / "genai_config.json").read_text())
    model = onnx.load(path)
    names = {value.name for value in [*model.graph.input, *model.graph.output]}
    parts = told["model"]["decoder"]
    for name in [*parts["inputs"].values(), *parts["outputs"].values()]:
        assert name.replace("%d", "1") in names
    assert told["search"]["past_present_share_buffer"] is False
    assert path.stat().st_size < path.with_name("model.onnx.data").stat().st_size
    session = onnxruntime.InferenceSession(str(path), quiet())
    check_generation(session, config, spelling)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"form": "torch"}, "unknown form 'torch'; one of: genai"),
        ({"weights": "int3"}, "unknown weights 'int3'"),
        ({"weights": "f16", "activations": "f32"}, "f16 with f32 cannot be written"),
    ],
)
def test_impossible_spellings_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        Spelling(**given)
