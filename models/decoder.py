"""Decoders of any architecture and size, in the forms that exporters write.

`build_decoder` makes a model in memory, `write_decoder` a folder that token loops take; the
latter holds no more than one tensor at a time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from .decoder_config import DecoderConfig, Spelling
from .decoder_exported import AttentionGraph, UnfusedGraph
from .decoder_genai import GenaiGraph, cache_scales
from .decoder_weights import NUMPY_TYPES, SeededWeights
from .genai_folder import write_config
from .staged_folder import staged

_GRAPHS = {"genai": GenaiGraph, "attention": AttentionGraph, "unfused": UnfusedGraph}


def build_decoder(
    config: DecoderConfig | None = None,
    spelling: Spelling | None = None,
    source=None,
    data: Path | None = None,
) -> onnx.ModelProto:
    """The model; with `data`, its tensors lie in that file, to be saved beside it."""
    spelling = spelling or Spelling()
    graph = _GRAPHS[spelling.form]
    return graph(config or DecoderConfig(), spelling, source or SeededWeights(), data).build()


def write_decoder(folder: Path, config: DecoderConfig, spelling: Spelling, source) -> Path:
    """model.onnx, its tensors beside it, and genai_config.json."""
    genai = spelling.form == "genai"
    spelling = replace(spelling, names_head_size=genai)
    with staged(folder) as work:
        model = build_decoder(config, spelling, source, work / "model.onnx.data")
        (work / "model.onnx").write_bytes(model.SerializeToString())
        inputs = [value.name for value in model.graph.input]
        write_config(work, config, shares_cache=genai, inputs=inputs)
    return folder / "model.onnx"


def inputs_for(
    config: DecoderConfig,
    spelling: Spelling | None = None,
    batch: int = 1,
    sequence: int = 1,
    past: int = 7,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Random tokens after a random past, which all rows have in full."""
    spelling = spelling or Spelling()
    random = np.random.default_rng(seed)
    ids = random.integers(0, config.vocabulary, (batch, sequence))
    shape = (batch, config.kv_heads, past, config.head_size)
    caches = {}
    for layer in range(config.layers):
        for index, part in enumerate(("key", "value")):
            drawn = random.standard_normal(shape)
            if codes := spelling.cache_format:
                stored = codes.quantize(drawn, cache_scales(config, spelling, layer)[index])
            else:
                stored = drawn.astype(NUMPY_TYPES[spelling.activations])
            caches[f"past_key_values.{layer}.{part}"] = stored
    return step_inputs(spelling, ids, past) | caches


def step_inputs(spelling: Spelling, ids: np.ndarray, past: int) -> dict[str, np.ndarray]:
    """What a step feeds besides the caches."""
    batch, sequence = np.shape(ids)
    feed = {
        "input_ids": np.asarray(ids, np.int64),
        "attention_mask": np.ones((batch, past + sequence), np.int64),
    }
    if spelling.form != "genai":
        positions = np.arange(past, past + sequence, dtype=np.int64)
        feed["position_ids"] = np.broadcast_to(positions, (batch, sequence)).copy()
    return feed


def renamed_caches(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One step's grown caches under the names by which the next step takes them."""
    return {
        name.replace("present", "past_key_values"): value
        for name, value in outputs.items()
        if name.startswith("present")
    }
