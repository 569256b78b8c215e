"""A decoder block: norm, grouped attention with rotary and a key-value cache, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from .builder import FLOAT, INT32, INT64, GraphBuilder
from .mlp import emit_gated_mlp, weights

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class DecoderShape:
    layers: int = 1
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 128
    positions: int = 128

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def rotary_tables(shape: DecoderShape) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of every position times every frequency, [positions, head_size/2]."""
    frequencies = 10000.0 ** (-np.arange(0, shape.head_size, 2) / shape.head_size)
    angles = np.arange(shape.positions)[:, None] * frequencies
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _emit_attention(g, x: str, lengths, layer: int, shape: DecoderShape, random) -> str:
    kv_width = shape.kv_heads * shape.head_size
    name = f"layer.{layer}.attention"
    query, key, value = (
        g.node("MatMul", [x, g.parameter(f"{name}.{part}", weights(random, shape.hidden, width))])
        for part, width in (("query", shape.hidden), ("key", kv_width), ("value", kv_width))
    )
    cache = ["batch", shape.kv_heads, "past", shape.head_size]
    past_key = g.input(f"past_key_{layer}", FLOAT, cache)
    past_value = g.input(f"past_value_{layer}", FLOAT, cache)
    cos, sin = rotary_tables(shape)
    grown = ["batch", shape.kv_heads, "total", shape.head_size]
    present = [g.output(f"present_{part}_{layer}", FLOAT, grown) for part in ("key", "value")]
    attended, *_ = g.node(
        "GroupQueryAttention",
        [
            query,
            key,
            value,
            past_key,
            past_value,
            *lengths,
            g.parameter("rotary.cos", cos),
            g.parameter("rotary.sin", sin),
        ],
        outputs=[f"{name}.context", *present],
        domain=MICROSOFT,
        num_heads=shape.heads,
        kv_num_heads=shape.kv_heads,
        do_rotary=1,
    )
    output = g.parameter(f"{name}.output", weights(random, shape.hidden, shape.hidden))
    return g.node("MatMul", [attended, output])


def _emit_lengths(g: GraphBuilder) -> tuple[str, str]:
    """The last position of each row and the longest total, from the mask, as exporters do it."""
    mask = g.input("attention_mask", INT64, ["batch", "total"])
    counts = g.node("ReduceSum", [mask, g.integers(1)], keepdims=0)
    last = g.node("Sub", [counts, g.constant("one", np.int64(1))])
    total = g.node("Gather", [g.node("Shape", [mask]), g.constant("axis", np.int64(1))])
    return g.node("Cast", [last], to=INT32), g.node("Cast", [total], to=INT32)


def build_decoder(shape: DecoderShape | None = None, seed: int = 0) -> onnx.ModelProto:
    """Embeddings in, hidden states and the grown cache out; quantise it for other formats."""
    shape = shape or DecoderShape()
    random = np.random.default_rng(seed)
    g = GraphBuilder("decoder", opset=21, domains=(MICROSOFT,))
    x = g.input("x", FLOAT, ["batch", "sequence", shape.hidden])
    lengths = _emit_lengths(g)

    def norm(value: str, name: str) -> str:
        scale = (1 + 0.1 * random.standard_normal(shape.hidden)).astype(np.float32)
        return g.node(
            "SimplifiedLayerNormalization", [value, g.parameter(name, scale)], axis=-1, epsilon=1e-6
        )

    for layer in range(shape.layers):
        attended = _emit_attention(
            g, norm(x, f"layer.{layer}.norm_1"), lengths, layer, shape, random
        )
        x = g.node("Add", [x, attended])
        inner = emit_gated_mlp(
            g,
            norm(x, f"layer.{layer}.norm_2"),
            f"layer.{layer}.mlp",
            shape.hidden,
            shape.feed_forward,
            random,
        )
        x = g.node("Add", [x, inner])
    g.node("Identity", [x], outputs=["y"])
    g.output("y", FLOAT, ["batch", "sequence", shape.hidden])
    return g.model(check=False)


def inputs_for(shape: DecoderShape, batch=1, sequence=1, past=7, seed=0) -> dict:
    random = np.random.default_rng(seed)

    def values(*dims: int) -> np.ndarray:
        return random.standard_normal(dims).astype(np.float32)

    result = {
        "x": values(batch, sequence, shape.hidden),
        "attention_mask": np.ones((batch, past + sequence), np.int64),
    }
    for layer in range(shape.layers):
        for part in ("key", "value"):
            cache = values(batch, shape.kv_heads, past, shape.head_size)
            result[f"past_{part}_{layer}"] = cache
    return result
