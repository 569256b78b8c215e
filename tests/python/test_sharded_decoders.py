"""Whole decoders over 2, 3, 4 and 8 ranks against one: ranks are sessions, each on a thread."""

import functools
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import helper
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, DecoderConfig, Spelling
from onnxruntime_ep_tenon.models.tolerances import for_logits
from onnxruntime_ep_tenon.models.validate import compare
from onnxruntime_ep_tenon.report import Report
from test_ranks import free_port

pytestmark = [
    pytest.mark.plugin,
    # 1.24.4 keeps Python's lock while it makes a session: ranks on threads would never meet.
    pytest.mark.skipif(not runtime_at_least("1.31"), reason="sessions are made one by one"),
]

BATCH = 2
COUNTS = (7, 1, 1)  # of tokens in each Run
RANKS = (2, 3, 4, 8)


def sized(architecture: str, heads: int, kv_heads: int, head_size: int, feed_forward: int, **more):
    """Small, but with weights that are worth an exchange: the last product is gathered."""
    return replace(
        ARCHITECTURES[architecture], hidden=448, heads=heads, kv_heads=kv_heads,
        head_size=head_size, feed_forward=feed_forward, vocabulary=4998, positions=64, **more,
    )  # fmt: skip


# Heads as the real ones have them, or a part of them that divides as badly.
DECODERS = {
    "llama": sized("llama", 16, 8, 32, 1024),
    "qwen2-0.5b": sized("qwen2", 14, 2, 32, 1216),
    "qwen2-7b": sized("qwen2", 28, 4, 16, 1184, tied=False),
    "qwen3": sized("qwen3", 16, 8, 16, 768),
    "gemma2": sized("gemma2", 8, 4, 32, 576),
    "gpt_oss": sized("gpt_oss", 16, 2, 32, 736),
}


def heads_of_ranks(config: DecoderConfig, ranks: int) -> list[slice]:
    """Heads of keys: whole ones for each rank, or one that several ranks share."""
    if config.kv_heads >= ranks:
        parts = np.array_split(np.arange(config.kv_heads), ranks)
        return [slice(part[0], part[-1] + 1) for part in parts]
    sharing = np.array_split(np.arange(ranks), config.kv_heads)
    return [slice(head, head + 1) for head, part in enumerate(sharing) for _ in part]


@dataclass
class Alone:
    """A decoder, and what one rank makes of it."""

    config: DecoderConfig
    folder: tempfile.TemporaryDirectory
    feeds: list[dict]  # of each Run, without caches
    results: list[dict]

    def path(self, caches: str) -> Path:
        return Path(self.folder.name) / f"{caches}.onnx"


def is_cache(name: str) -> bool:
    return name.startswith(("past", "present"))


def with_open_heads(model: onnx.ModelProto) -> onnx.ModelProto:
    """The head dim of caches is a symbol, so that a rank binds its own heads."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in (*changed.graph.input, *changed.graph.output):
        if is_cache(value.name):
            value.type.tensor_type.shape.dim[1].dim_param = "kv_heads"
    return changed


def draw_feeds(model: onnx.ModelProto, vocabulary: int, batch=BATCH, counts=COUNTS) -> list[dict]:
    """A prompt, then tokens one by one."""
    rng = np.random.default_rng(5)
    runs, past = [], 0
    for tokens in counts:
        places = np.arange(past, past + tokens)
        known = {
            "input_ids": rng.integers(0, vocabulary, (batch, tokens)),
            "attention_mask": np.ones((batch, past + tokens)),
            "position_ids": np.broadcast_to(places, (batch, tokens)),
        }
        inputs = {value.name: value for value in model.graph.input}
        runs.append({
            name: feed.astype(
                helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
            )
            for name, feed in known.items()
            if name in inputs
        })  # fmt: skip
        past += tokens
    return runs


def create(path: Path, sizes: dict | None = None, **options) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    for name, size in (sizes or {}).items():
        settings.add_free_dimension_override_by_name(name, size)
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    return tenon.create_session(path, "cpu", settings, **options)


def generate(session: onnxruntime.InferenceSession, runs: list[dict], kv_heads: int) -> list[dict]:
    """Each Run's outputs; caches of one are read by the next."""
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    caches = {
        value.name: np.zeros(
            (len(runs[0]["input_ids"]), kv_heads, 0, value.shape[3]), dtypes[value.type]
        )
        for value in session.get_inputs()
        if is_cache(value.name)
    }
    names = [output.name for output in session.get_outputs()]
    results = []
    for feeds in runs:
        results.append(dict(zip(names, session.run(None, feeds | caches), strict=True)))
        caches = {name: results[-1][name.replace("past_key_values", "present")] for name in caches}
    return results


@functools.cache
def alone(name: str, weights: str, activations: str, form: str, **sizes) -> Alone:
    config = replace(DECODERS[name], **sizes)
    model = decoder.build_decoder(config, Spelling(form, weights, activations))
    feeds = draw_feeds(model, config.vocabulary)
    made = Alone(config, tempfile.TemporaryDirectory(), feeds, [])
    onnx.save(model, made.path("whole"))
    onnx.save(with_open_heads(model), made.path("own"))
    made.results = generate(create(made.path("whole")), feeds, config.kv_heads)
    return made


def run_ranks(path: Path, ranks: int, feeds: list[dict], heads: list[int], reports: Path, sizes):
    """What each rank computes."""
    results, address = [None] * ranks, f"127.0.0.1:{free_port()}"

    def run(rank: int):
        try:
            session = create(
                path, sizes, tensor_parallel_size=ranks, tensor_parallel_rank=rank,
                collective_address=address, report_file=reports / f"{rank}.json",
            )  # fmt: skip
            results[rank] = generate(session, feeds, heads[rank])
        except Exception as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [result for result in results if isinstance(result, str)], results
    return results


def sharding_of(reports: Path, rank: int) -> dict:
    (graph,) = Report.load(reports / f"{rank}.json").data["graphs"]
    (partition,) = graph["partitions"]
    return partition["sharding"]


def expect_same(made: Alone, caches: str, ranks: int, reports: Path, sizes=None) -> list[dict]:
    own = heads_of_ranks(made.config, ranks)
    if caches == "whole":
        own = [slice(0, made.config.kv_heads)] * ranks
    heads = [part.stop - part.start for part in own]
    results = run_ranks(made.path(caches), ranks, made.feeds, heads, reports, sizes)
    for rank, runs in enumerate(results):
        for expected, got, first in zip(made.results, runs, results[0], strict=True):
            for name, values in expected.items():
                wanted = values[:, own[rank]] if is_cache(name) else values
                verdict = compare(name, got[name], wanted, for_logits(wanted.dtype, wanted))
                assert verdict.ok, f"rank {rank}: {verdict}"
                if name == "logits":
                    assert got[name].tobytes() == first[name].tobytes(), f"rank {rank}"
    return [sharding_of(reports, rank) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("weights", ["f32", "nvfp4", "int4", "mxfp8"])
@pytest.mark.parametrize("name", DECODERS)
def test_ranks_with_heads_of_their_own(tmp_path, name, weights, ranks):
    made = alone(name, weights, "f32", "genai")
    for sharding in expect_same(made, "own", ranks, tmp_path):
        assert not sharding["replicated"]
        assert max(sharding["bytes_by_rank"]) < sharding["constant_bytes"]


@pytest.mark.parametrize("name, ranks", [*zip(DECODERS, (2, 3, 4, 8, 3, 2), strict=True)])
def test_caches_of_all_heads(tmp_path, name, ranks):
    expect_same(alone(name, "int4", "f32", "genai"), "whole", ranks, tmp_path)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["qwen2-0.5b", "gpt_oss"])
def test_activations_of_16_bits(tmp_path, name, ranks):
    expect_same(alone(name, "nvfp4", "f16", "genai"), "own", ranks, tmp_path)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("form", ["attention", "unfused"])
def test_what_exporters_write(tmp_path, form, ranks):
    for sharding in expect_same(alone("qwen2-7b", "int4", "f32", form), "own", ranks, tmp_path):
        assert not sharding["replicated"]


def annotate(model: onnx.ModelProto, ranks: int, wanted: dict[str, int | None]) -> None:
    """Sharding specs of weights by what their names contain: the dim that is cut; None: whole."""
    model.ir_version = max(model.ir_version, 11)
    model.configuration.add(name="ranks", num_devices=ranks)
    for node in model.graph.node:
        for part, axis in wanted.items():
            if node.op_type != "MatMul" or part not in node.input[1]:
                continue
            spec = node.device_configurations.add(configuration_id="ranks").sharding_spec.add(
                tensor_name=node.input[1], device=range(ranks)
            )
            if axis is not None:
                spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=ranks)


def test_a_file_says_how_it_is_cut(tmp_path):
    made = alone("qwen3", "f32", "f32", "genai")
    model = onnx.load(made.path("own"))
    annotate(model, 2, {"o_proj": 1, "down_proj": None, "q_proj": 0, "lm_head": 0})
    onnx.save(model, made.path("annotated"))
    two, three = tmp_path / "two", tmp_path / "three"
    for folder in (two, three):
        folder.mkdir()
    for sharding in expect_same(made, "annotated", 2, two):
        answers = {(one["asked"], one["reason"]) for one in sharding["annotations"]}
        assert answers == {("columns", ""), ("whole", ""), ("rows", "")}
        assert len(sharding["annotations"]) == 3 * made.config.layers + 1
        assert "the file asks for it" in {one["reason"] for one in sharding["replicated"]}
    for sharding in expect_same(made, "annotated", 3, three):
        (answer,) = sharding["annotations"]
        assert answer["reason"] == "the file has them for 2 devices, not for 3 ranks"


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_divide_the_tokens_of_a_prompt(tmp_path, ranks):
    """Where the caller says how many there are, and sums are large enough for two exchanges."""
    tokens, hidden = 261, 1024
    made = alone("llama", "int4", "f32", "genai", hidden=hidden, positions=tokens, vocabulary=512)
    prompt = replace(made, feeds=draw_feeds(onnx.load(made.path("own")), 512, 1, [tokens]))
    prompt.results = generate(create(made.path("whole")), prompt.feeds, made.config.kv_heads)
    sizes = {"batch_size": 1, "sequence_length": tokens}
    for sharding in expect_same(prompt, "own", ranks, tmp_path, sizes):
        sums = [one for one in sharding["collectives"] if one["op"] == "ReduceScatter"]
        assert len(sums) == 2 * made.config.layers + 1, "o and down of each layer, the table"
        assert {one["bytes"] for one in sums} == {str(tokens * hidden * 4)}
        assert "5 scattered, 5 gathered" in sharding["tokens"]
