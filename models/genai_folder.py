"""A decoder's folder: the configuration that tells a token loop what inputs and outputs are called,
and the files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .decoder_config import DecoderConfig

CONFIG_NAME = "genai_config.json"
# What a token loop reads beside a model.
_BESIDE = (".json", ".jinja", ".model", ".txt")


def write_config(
    folder: Path,
    config: DecoderConfig,
    shares_cache: bool,
    inputs: Sequence[str],
    end_tokens: Sequence[int] = (),
) -> Path:
    """Writes the file as ONNX Runtime GenAI reads it; `inputs` are the model's."""
    named = ("input_ids", "attention_mask", "position_ids")
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": config.head_size,
        "hidden_size": config.hidden,
        "inputs": {
            **{name: name for name in named if name in inputs},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
    }
    model = {
        "type": config.architecture,
        "vocab_size": config.vocabulary,
        "context_length": config.positions,
        "eos_token_id": list(end_tokens),
        "decoder": decoder,
    }
    search = {"max_length": config.positions, "past_present_share_buffer": shares_cache}
    path = folder / CONFIG_NAME
    path.write_text(json.dumps({"model": model, "search": search}, indent=2) + "\n")
    return path


def files_beside(model: Path) -> list[str]:
    """Names of what a token loop reads in a model's folder; none where it is no such folder."""
    if not (model.parent / CONFIG_NAME).is_file():
        return []
    return sorted(path.name for path in model.parent.iterdir() if path.suffix in _BESIDE)
