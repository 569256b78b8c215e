"""`tenon explain --ranks`: what ranks would hold and exchange, with no other process."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from command_models import linear, saved
from conftest import runtime_at_least
from onnxruntime_ep_tenon import create_session
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import DrawnWeights
from onnxruntime_ep_tenon.models.rank_files import write_rank_file

pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(
        not runtime_at_least("1.30"),
        reason="MatMulBlockQuantizedFp4Weight came with 1.30",
    ),
]

SPELLING = Spelling("genai", "nvfp4", "f16")
# Weights that a rank holds, as a part of all: embedding, last product and norms included.
MOST = {2: 0.52, 3: 0.40, 4: 0.28, 8: 0.16}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A decoder as exported, and its file for ranks."""
    folder = tmp_path_factory.mktemp("decoder")
    config = replace(
        ARCHITECTURES["llama"], layers=2, hidden=512, heads=16, kv_heads=8, head_size=32,
        feed_forward=1536, vocabulary=16384, positions=64,
    )  # fmt: skip
    path = decoder.write_decoder(folder / "model", config, SPELLING, DrawnWeights())
    return path, write_rank_file(path, folder / "ranks").path


def plans(command, *arguments) -> dict:
    told = command("explain", *arguments, "--json")
    assert told.status == 0, told.err
    return json.loads(told.out)


@pytest.mark.parametrize("ranks", MOST)
@pytest.mark.parametrize("device", ["cpu", "sm_90a"])
def test_ranks_hold_their_share(command, files, ranks, device):
    target = () if device == "cpu" else ("--option", f"target_arch={device}")
    told = plans(command, files[1], "--ranks", ranks, "--context", 1000, *target)
    assert len(told["by_rank"]) == ranks
    shares = [plan["weight_bytes"] / told["weight_bytes"] for plan in told["by_rank"]]
    assert max(shares) <= MOST[ranks] and sum(shares) >= 1
    heads = [set(plan["kv_heads"].values()) for plan in told["by_rank"]]
    assert heads == [{8 // ranks + (rank < 8 % ranks)} for rank in range(ranks)]
    for plan, (own,) in zip(told["by_rank"], heads, strict=True):
        caches = plan["caches"]
        assert caches["whole_bytes_per_token"] == 2 * 2 * 8 * 32 * 2
        assert caches["bytes_per_token"] == caches["whole_bytes_per_token"] * own // 8
        for step in plan["predicted"].values():
            assert step["kernels_us"] > 0 and step["collectives_us"] > 0
    step = told["step"]["token"]["total_us"]
    assert step == max(plan["predicted"]["token"]["total_us"] for plan in told["by_rank"])


def test_collectives_are_told_with_their_bytes(command, files):
    told = plans(command, files[1], "--ranks", 4, "--option", "target_arch=sm_100a")
    assert told["link"] == "NVLink 5, 900 GB/s"
    ops = [one["op"] for one in told["collectives"]]
    # The table of embeddings, attention and MLP of both layers, the logits.
    assert ops == ["AllReduce"] * 5 + ["AllGather"]
    assert told["collectives"][1]["token_bytes"] == 512 * 2
    assert told["collectives"][1]["prompt_bytes"] == 128 * 512 * 2
    assert told["collectives"][-1]["token_bytes"] == 16384 * 2


@pytest.mark.parametrize(
    "arch, link",
    [("sm_80", "NVLink 3, 300"), ("sm_89", "PCIe 4 x16, 32"), ("sm_120a", "PCIe 5 x16, 64")],
)
def test_links_are_those_of_the_architecture(command, files, arch, link):
    told = command("explain", files[1], "--ranks", 2, "--option", f"target_arch={arch}")
    assert f"link: {link} GB/s one way" in told.out


def test_whole_caches_are_told_with_their_cost(command, files):
    told = command("explain", files[0], "--ranks", 4, "--context", 1024)
    assert told.status == 0, told.err
    assert "predicted" in told.out
    assert "all heads: 2.0 MiB instead of 512.0 KiB" in told.out and "`tenon ranks`" in told.out
    assert "the file says that its caches have 8 heads" in told.out
    by_heads = command("explain", files[1], "--ranks", 4, "--context", 1024)
    assert by_heads.status == 0 and "all heads" not in by_heads.out
    longer = plans(command, files[1], "--ranks", 2, "--option", "target_arch=sm_90a")
    short = plans(
        command, files[1], "--ranks", 2, "--option", "target_arch=sm_90a", "--context", 16
    )
    assert longer["step"]["token"]["total_us"] > short["step"]["token"]["total_us"]


def test_a_plan_does_not_run(files):
    session = create_session(
        files[1], "cpu", tensor_parallel_size=2, tensor_parallel_rank=1, tensor_parallel_plan=1
    )
    shapes = {value.name: (1, 4, 0, 32) for value in session.get_inputs() if "past" in value.name}
    feeds = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    feeds |= {name: np.ones((1, 1), np.int64) for name in ("input_ids", "attention_mask")}
    with pytest.raises(Exception, match="tensor_parallel_plan=1: .* cannot run"):
        session.run(None, feeds)


@pytest.mark.parametrize("rank, size", [(0, 1), (2, 2), (-1, 2), (0, 0)])
def test_a_plan_is_one_of_several(files, rank, size):
    options = {"tensor_parallel_size": size or "auto", "tensor_parallel_plan": 1}
    if rank >= 0:
        options["tensor_parallel_rank"] = rank
    with pytest.raises(Exception, match="give tensor_parallel_size and tensor_parallel_rank"):
        create_session(files[1], "cpu", **options)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (("--ranks", "1"), "a number from 2 on"),
        (("--ranks", "2", "--kernels"), "leave other views out"),
        (("--ranks", "2", "--option", "tensor_parallel_size=2"), "leave one out"),
        (("--ranks", "100"), "heads"),
    ],
)
def test_what_cannot_be_planned_has_a_reason(command, files, arguments, reason):
    told = command("explain", files[1], *arguments)
    assert reason in (told.err if told.status else told.out)


def test_a_model_that_nothing_is_claimed_of(command, tmp_path):
    told = command("explain", saved(linear(), tmp_path), "--device", "cpu", "--ranks", "2")
    assert told.status == 1 and "nothing to deal to ranks" in told.err


def test_a_head_s_size_that_nobody_says_is_asked_for(command, files, tmp_path):
    """A model alone, without the genai_config.json that has the number."""
    for name in ("model.onnx", "model.onnx.data"):
        shutil.copyfile(files[0].parent / name, tmp_path / name)
    path = tmp_path / "model.onnx"
    told = command("explain", path, "--ranks", 2)
    assert told.status == 1 and "give --dim kv_cache_dim=NUMBER" in told.err
    (given,) = {
        plans(command, model, "--ranks", 2, *more)["by_rank"][0]["caches"]["bytes_per_token"]
        for model, more in ((path, ("--dim", "kv_cache_dim=32")), (files[0], ()))
    }
    assert given == 2 * 2 * 8 * 32 * 2
    told = command("explain", path, "--dim", "kv_cache_dim=32")
    assert told.status == 1 and "--dim is of --ranks" in told.err
