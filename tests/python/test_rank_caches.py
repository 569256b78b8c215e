"""Files of `tenon ranks` over several processes: each binds caches of its own heads."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from attention_inputs import runtime_knows
from onnxruntime_ep_tenon.models import decoder, validate
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.rank_files import write_rank_file
from onnxruntime_ep_tenon.models.tolerances import for_logits
from test_ranks import Job, finish

pytestmark = pytest.mark.plugin

STEPS = (6, 1, 1)
CASES = {
    "llama": ("llama", Spelling("genai", "nvfp4", "f32"), {}),
    "llama, Attention": ("llama", Spelling("attention", "int4", "f32"), {}),
    "qwen with odd heads": (
        "qwen2", Spelling("genai", "int4", "f32", packed_qkv=True), {"heads": 7, "kv_heads": 7},
    ),
    "qwen with shared odd heads, unfused": (
        "qwen2", Spelling("unfused", "nvfp4", "f32"), {"heads": 6, "kv_heads": 3},
    ),
    "gemma": ("gemma2", Spelling("genai", "nvfp4", "f32"), {}),
    "gemma, unfused": ("gemma2", Spelling("unfused", "int4", "f32"), {}),
    "gpt-oss": ("gpt_oss", Spelling("genai", "int4", "f32"), {}),
    "caches of codes": ("llama", Spelling("genai", "int4", "f32", cache="int8"), {}),
    "one head of keys": ("qwen3", Spelling("genai", "int4", "f32"), {"kv_heads": 1}),
}  # fmt: skip


def decoder_files(folder: Path, architecture: str, spelling: Spelling, **sizes):
    """The model as exported, and the file that `tenon ranks` writes of it."""
    common = {"hidden": 256, "heads": 8, "kv_heads": 4, "head_size": 32, "feed_forward": 512}
    config = replace(
        ARCHITECTURES[architecture], layers=2, vocabulary=512, positions=64, **common | sizes
    )
    model = folder / "model.onnx"
    onnx.save(decoder.build_decoder(config, spelling), model)
    return config, model, write_rank_file(model, folder / "ranks").path


def jobs(folder: Path, model: Path, for_ranks: Path) -> tuple[Job, Job]:
    ids = np.random.default_rng(5).integers(0, 512, (1, sum(STEPS)))
    return Job(model, {"input_ids": ids}, folder), Job(for_ranks, {"input_ids": ids}, folder)


def steps(counts=STEPS) -> str:
    return ",".join(map(str, counts))


@pytest.mark.parametrize(
    "case, size",
    [(case, 2) for case in CASES] + [(case, 3) for case in CASES if "odd" in case or "one" in case],
)
def test_ranks_bind_their_own_heads(tmp_path, case, size):
    architecture, spelling, sizes = CASES[case]
    if spelling.cache and not runtime_knows("GroupQueryAttention", "kv_cache_bit_width"):
        pytest.skip("this runtime knows no caches of codes")
    config, model, for_ranks = decoder_files(tmp_path, architecture, spelling, **sizes)
    alone, job = jobs(tmp_path, model, for_ranks)
    assert finish([alone.start("alone", steps=steps())]) == [""]
    assert finish(job.ranks(size, steps=steps())) == [""] * size
    wanted = job.result("alone")
    by_rank = [job.result(str(rank)) for rank in range(size)]
    for name, expected in wanted.items():
        results = [result[name] for result in by_rank]
        if name.startswith("logits"):
            bound = for_logits(expected.dtype, expected)
            verdict = validate.compare(name, results[0], expected, bound)
            assert verdict.ok, verdict
            assert all(result.tobytes() == results[0].tobytes() for result in results), name
        else:
            check_heads(name, results, expected, config.kv_heads)


def check_heads(name: str, results: list[np.ndarray], expected: np.ndarray, heads: int) -> None:
    """Each has its share, and all of them together what one rank has."""
    size = len(results)
    counts = [heads // size + (rank < heads % size) for rank in range(size)]
    counts = counts if heads >= size else [1] * size
    assert [result.shape[1] for result in results] == counts
    together = np.concatenate(results, axis=1) if heads >= size else results[0]
    if expected.dtype == np.float32:
        verdict = validate.compare(name, together, expected, for_logits(np.float32, expected))
        assert verdict.ok, verdict
    else:  # a sum's last bit may turn into the next code
        assert np.abs(together.astype(int) - expected.astype(int)).max() <= 1


def test_another_number_of_heads_is_refused(tmp_path):
    _, model, for_ranks = decoder_files(tmp_path, "llama", Spelling("genai", "int4", "f32"))
    _, job = jobs(tmp_path, model, for_ranks)
    for said in finish(job.ranks(2, steps=steps(), heads=4)):
        assert "sizes 4 (kv_heads_of_4) and 2 must be equal" in said, said


def test_alone_all_heads_are_bound(tmp_path):
    config, model, for_ranks = decoder_files(tmp_path, "llama", Spelling("genai", "int4", "f32"))
    _, job = jobs(tmp_path, model, for_ranks)
    assert finish([job.start("alone", steps=steps())]) == [""]
    inputs = [f"past_key_values.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    for path in (model, for_ranks):
        heads = tenon.local_kv_heads(tenon.create_session(path, "cpu"))
        assert heads == dict.fromkeys(inputs, config.kv_heads)
    (said,) = finish([job.start("alone", steps=steps(), heads=2)])
    assert "sizes 2 (kv_heads_of_4) and 4 must be equal" in said, said
