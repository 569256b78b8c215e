"""A decoder in the operators that ONNX Runtime GenAI writes."""

from __future__ import annotations

import numpy as np

from .builder import INT32
from .decoder_config import DecoderConfig, Spelling
from .decoder_graph import DecoderGraph, attention_matrices
from .decoder_products import MICROSOFT

HEAD_SIZE = "kv_cache_dim"  # a dimension, as GenAI calls it


def rotary_tables(config: DecoderConfig) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of every position times every frequency, [positions, head_size/2]."""
    frequencies = config.theta ** (-np.arange(0, config.head_size, 2) / config.head_size)
    angles = np.arange(config.positions)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def cache_scales(config: DecoderConfig, spelling: Spelling, layer: int) -> list[np.ndarray]:
    """Of a layer's keys and values."""
    sizes = config.kv_heads, config.head_size
    return [spelling.cache_format.scales(*sizes, seed=2 * layer + part) for part in range(2)]


class GenaiGraph(DecoderGraph):
    domains = (MICROSOFT,)

    def cache_width(self) -> int | str:
        """The model builder of GenAI 0.18 writes a name, but where one byte holds two codes."""
        codes = self.spelling.cache_format
        width = codes.width(self.config.head_size) if codes else self.config.head_size
        packs = width != self.config.head_size
        return HEAD_SIZE if self.spelling.names_head_size and not packs else width

    def prepare(self, ids: str, mask: str) -> None:
        self.g.scope("/model/attn_mask_reformat")
        by_shape = self.spelling.lengths == "shape"
        self._lengths = self._by_shape(mask) if by_shape else self._by_values(mask)
        self._rotary = [
            self.products.tensor(name, table)
            for name, table in zip(
                ("cos_cache", "sin_cache"), rotary_tables(self.config), strict=True
            )
        ]

    def _by_shape(self, mask: str) -> list[str]:
        """The last position of each row, and the mask's length."""
        g = self.g
        counts = g.node("ReduceSum", [mask, g.integers(1)], keepdims=0)
        last = g.node("Sub", [counts, g.constant("one", np.int64(1))])
        total = g.node("Gather", [g.node("Shape", [mask]), g.constant("axis", np.int64(1))])
        return [g.node("Cast", [value], to=INT32) for value in (last, total)]

    def _by_values(self, mask: str) -> list[str]:
        """The last position of each row, and the longest row: no shape is asked for."""
        g = self.g
        counts = g.node("ReduceSum", [g.node("Cast", [mask], to=INT32), g.integers(1)], keepdims=0)
        last = g.node("Sub", [counts, g.constant("one", np.int32(1))])
        return [last, g.node("ReduceMax", [counts], keepdims=0)]

    def norm(self, x: str, name: str, width: int = 0) -> str:
        attributes = {"axis": -1, "epsilon": self.config.epsilon, "stash_type": 1}
        return self.g.node(
            "SimplifiedLayerNormalization", [x, self._scale(name, width)], **attributes
        )

    def add_and_norm(self, residual: str, added: str | None, name: str) -> tuple[str, str]:
        if added is None:
            return self.norm(residual, name), residual
        path = f"/{name.replace('.', '/')}"
        normed, total = f"{path}/normed", f"{path}/sum"
        outputs = [normed] if name == "model.norm" else [normed, "", "", total]
        self.g.node(
            "SkipSimplifiedLayerNormalization",
            [residual, added, self._scale(name)],
            outputs=outputs,
            domain=MICROSOFT,
            epsilon=self.config.epsilon,
        )
        return normed, total

    def _scale(self, name: str, width: int = 0) -> str:
        """The offset of a norm is added when the file is written."""
        values = self.source.values(f"{name}.weight", (width or self.config.hidden,))
        return self.products.tensor(f"{name}.weight", values + np.float32(self.config.norm_offset))

    def gelu(self, x: str) -> str:
        return self.g.node("FastGelu", [x], domain=MICROSOFT)

    def attention(self, layer: int, x: str) -> str:
        config = self.config
        packed = self.spelling.packed_qkv and not config.qk_norm
        matrices = attention_matrices(config, layer, packed)
        qkv = [self.linear(x, matrix, config.qkv_bias) for matrix in matrices]
        if config.qk_norm:
            name = f"model.layers.{layer}.self_attn"
            qkv[0] = self._head_norm(qkv[0], f"{name}.q_norm", config.query_width)
            qkv[1] = self._head_norm(qkv[1], f"{name}.k_norm", config.kv_width)
        past, present = self.cache(layer)
        more, attributes = [""] * 5, {}  # positions, bias, sinks, scales of the caches
        if config.sinks:
            more[2] = self.vector(f"model.layers.{layer}.self_attn.sinks", config.heads)
        if codes := self.spelling.cache_format:
            more[3:] = [
                self.g.parameter(f"model.layers.{layer}.self_attn.{part}_scale", scale)
                for part, scale in zip(
                    "kv", cache_scales(config, self.spelling, layer), strict=True
                )
            ]
            attributes = codes.attributes()
        while more and not more[-1]:
            more.pop()
        attended = f"/model/layers.{layer}/attn/output"
        self.g.node(
            "GroupQueryAttention",
            [*(qkv if len(qkv) == 3 else [*qkv, "", ""]), *past, *self._lengths, *self._rotary]
            + more,
            outputs=[attended, *present],
            domain=MICROSOFT,
            num_heads=config.heads,
            kv_num_heads=config.kv_heads,
            scale=config.attention_scale,
            do_rotary=1,
            rotary_interleaved=0,
            local_window_size=config.window_of(layer) or -1,
            softcap=config.softcap,
            **attributes,
        )
        return self.output_projection(layer, attended)

    def _head_norm(self, x: str, name: str, width: int) -> str:
        g, size = self.g, self.config.head_size
        heads = g.node("Reshape", [x, g.integers(0, -1, size)])
        return g.node("Reshape", [self.norm(heads, name, size), g.integers(0, -1, width)])
