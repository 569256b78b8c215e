"""A whole decoder in float64, written from its definition and not from a graph.

It reads the weights as a file stores them, so quantisation error is no part of a comparison.
"""

from __future__ import annotations

import numpy as np

from .decoder_config import DecoderConfig, Spelling
from .decoder_genai import cache_scales, rotary_tables
from .decoder_graph import (
    CLAMP_LIMIT,
    CLAMP_SLOPE,
    attention_matrices,
    embedding_matrix,
    head_matrix,
)
from .decoder_weights import NUMPY_TYPES, FloatWeights, Matrix
from .reference import causal_attention, join_heads, rotate, split_heads


class ReferenceDecoder:
    """Feeds tokens in steps and keeps the caches, as a caller of the model does."""

    def __init__(self, config: DecoderConfig, spelling: Spelling, source: FloatWeights):
        self.config, self.spelling, self.source = config, spelling, source
        self.caches: list[list[np.ndarray]] = []
        self._length = 0
        self._matrices: dict[str, np.ndarray] = {}

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Logits [batch, sequence, vocabulary] of these tokens after all that came before."""
        config = self.config
        ids = np.asarray(ids)
        x = self._embedding()[ids] * self._rounded(config.embedding_scale)
        for layer in range(config.layers):
            prefix = f"model.layers.{layer}"
            added = self._attention(layer, self._norm(x, f"{prefix}.input_layernorm"))
            after = f"{prefix}.post_attention_layernorm"
            if config.post_norms:
                added = self._norm(added, after)
                after = f"{prefix}.pre_feedforward_layernorm"
            x = x + added
            added = self._mlp(f"{prefix}.mlp", self._norm(x, after))
            if config.post_norms:
                added = self._norm(added, f"{prefix}.post_feedforward_layernorm")
            x = x + added
        self._length += ids.shape[1]
        x = self._norm(x, "model.norm")
        if self.spelling.last_token_only:
            x = x[:, -1:]
        logits = x @ self._matrix(head_matrix(config)).T
        return _capped(logits, config.final_softcap)

    def _embedding(self) -> np.ndarray:
        table = embedding_matrix(self.config)
        if self.spelling.packs_table:
            return self._matrix(table)
        return self._floats(f"{table.name}.weight", (table.n, table.k))

    def _attention(self, layer: int, x: np.ndarray) -> np.ndarray:
        config = self.config
        q, k, v = (
            split_heads(part, heads)
            for part, heads in zip(
                self._query_key_value(layer, x),
                (config.heads, config.kv_heads, config.kv_heads),
                strict=True,
            )
        )
        name = f"model.layers.{layer}.self_attn"
        if config.qk_norm:
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        positions = self._length + np.arange(x.shape[1])[None]
        cos, sin = (self._rounded(table)[positions] for table in rotary_tables(config))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if codes := self.spelling.cache_format:
            scales = cache_scales(config, self.spelling, layer)
            k, v = (
                codes.dequantize(codes.quantize(x, scale), scale)
                for x, scale in zip((k, v), scales, strict=True)
            )
        if len(self.caches) > layer:
            k, v = (
                np.concatenate([old, new], 2)
                for old, new in zip(self.caches[layer], (k, v), strict=True)
            )
            self.caches[layer] = [k, v]
        else:
            self.caches.append([k, v])
        sinks = self._floats(f"{name}.sinks", (config.heads,)) if config.sinks else None
        scale, window = config.attention_scale, config.window_of(layer)
        attended = join_heads(
            causal_attention(q, k, v, scale, self._length, config.softcap, window, sinks)
        )
        return self._linear(
            attended, Matrix(f"{name}.o_proj", config.hidden, config.query_width),
            config.output_bias,
        )  # fmt: skip

    def _query_key_value(self, layer: int, x: np.ndarray) -> list[np.ndarray]:
        config = self.config
        packed = self.spelling.packed_qkv and not config.qk_norm
        matrices = attention_matrices(config, layer, packed)
        results = [self._linear(x, matrix, config.qkv_bias) for matrix in matrices]
        if not packed:
            return results
        return np.split(results[0], np.cumsum([config.query_width, config.kv_width]), -1)

    def _mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        hidden, inner = self.config.hidden, self.config.feed_forward
        gate = self._linear(x, Matrix(f"{name}.gate_proj", inner, hidden))
        up = self._linear(x, Matrix(f"{name}.up_proj", inner, hidden))
        gated = _GATES[self.config.activation](gate, up)
        return self._linear(gated, Matrix(f"{name}.down_proj", hidden, inner))

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        offset = np.float32(self.config.norm_offset)
        weight = self._rounded(self.source.values(f"{name}.weight", x.shape[-1:]) + offset)
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.config.epsilon) * weight

    def _linear(self, x: np.ndarray, matrix: Matrix, bias: bool = False) -> np.ndarray:
        y = x @ self._matrix(matrix).T
        if not bias:
            return y
        parts = [(name.removesuffix("weight") + "bias", n) for name, n in matrix.rows()]
        return y + np.concatenate([self._floats(name, (n,)) for name, n in parts])

    def _matrix(self, matrix: Matrix) -> np.ndarray:
        if matrix.name not in self._matrices:
            spelling = self.spelling
            if spelling.weights in NUMPY_TYPES:
                values = self._rounded(self.source.floats(matrix))
            else:
                stored = self.source.quantized(matrix, spelling.weights, spelling.activations)
                values = stored.dequantize()
            self._matrices[matrix.name] = values
        return self._matrices[matrix.name]

    def _floats(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return self._rounded(self.source.values(name, shape))

    def _rounded(self, values) -> np.ndarray:
        """As the file holds it: in the activations' type."""
        dtype = NUMPY_TYPES[self.spelling.activations]
        return np.asarray(values).astype(dtype).astype(np.float64)


def _capped(x: np.ndarray, limit: float) -> np.ndarray:
    return limit * np.tanh(x / limit) if limit else x


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _silu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return gate * _sigmoid(gate) * up


def _gelu_tanh(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + np.tanh(inner)) * up


def _clamped_silu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    gate, up = np.minimum(gate, CLAMP_LIMIT), np.clip(up, -CLAMP_LIMIT, CLAMP_LIMIT)
    return (up + 1) * gate * _sigmoid(CLAMP_SLOPE * gate)


_GATES = {"silu": _silu, "gelu_tanh": _gelu_tanh, "clamped_silu": _clamped_silu}
