"""Folders of onnxruntime-genai's builder, from configs with random weights: no download."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

# The precision, and what it is for where that is not plain: fp16 is for the CUDA provider.
WAYS = ("int4", "fp16", "fp32", "int4-qdq", "int4-cuda")

_PLAIN = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 256,
    "max_position_embeddings": 512, "head_dim": 32, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip

# The prefix of transformers' classes, and the config's fields.
CONFIGS: Mapping[str, tuple[str, dict]] = {
    "llama": ("Llama", _PLAIN),
    "mistral": ("Mistral", {**_PLAIN, "sliding_window": None}),
    "qwen2": ("Qwen2", _PLAIN),
    "qwen3": ("Qwen3", _PLAIN),
    "gemma": ("Gemma", _PLAIN),
    "gemma2": ("Gemma2", {**_PLAIN, "sliding_window": 64}),
    "phi": ("Phi", {**_PLAIN, "num_key_value_heads": 4}),
    "phi3": ("Phi3", {**_PLAIN, "original_max_position_embeddings": 512}),
    "gpt-oss": ("GptOss", {**_PLAIN, "num_local_experts": 4, "num_experts_per_tok": 2,
                "sliding_window": 64}),
    "granite": ("Granite", _PLAIN),
    "olmo": ("Olmo", _PLAIN),
    "smollm3": ("SmolLM3", _PLAIN),
    "nemotron": ("Nemotron", _PLAIN),
}  # fmt: skip


def save_config(name: str, folder: Path) -> None:
    """A folder as `save_pretrained` leaves it, which the builder reads."""
    kind, fields = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**fields)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    words = {f"<{number}>": number for number in range(fields["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<0>"))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<0>", bos_token="<1>", eos_token="<2>",
        pad_token="<0>",
    )  # fmt: skip
    fast.save_pretrained(folder)


def build(name: str, way: str, folder: Path) -> None:
    """As `python -m onnxruntime_genai.models.builder` does."""
    source = folder / "source"
    save_config(name, source)
    precision, _, variant = way.partition("-")
    provider = "cuda" if precision == "fp16" or variant == "cuda" else "cpu"
    options = ["use_qdq=true"] * (variant == "qdq") + ["int4_block_size=32"] * (precision == "int4")
    asked = ["-i", source, "-o", folder, "-p", precision, "-e", provider, "-c", folder / "cache"]
    sys.argv = ["builder", *map(str, asked), *(["--extra_options", *options] if options else [])]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    if not (folder / "model.onnx").is_file():
        raise RuntimeError("the builder wrote no model.onnx")
    shutil.rmtree(source)
    shutil.rmtree(folder / "cache", ignore_errors=True)
