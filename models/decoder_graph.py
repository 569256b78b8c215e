"""The order of a decoder's parts, which every form of writing one shares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from .builder import INT64, GraphBuilder
from .decoder_config import DecoderConfig, Spelling
from .decoder_products import FileSink, Products, embedding_sink
from .decoder_weights import NUMPY_TYPES, Matrix

# Dimensions as exporters call them.
BATCH, SEQUENCE = "batch_size", "sequence_length"
PAST, TOTAL = "past_sequence_length", "total_sequence_length"

# What clamped_silu keeps its gate below, and how steep its sigmoid is.
CLAMP_LIMIT, CLAMP_SLOPE = 7.0, 1.702


def attention_matrices(config: DecoderConfig, layer: int, packed: bool) -> list[Matrix]:
    """The weights of query, key and value: three, or one that stacks them."""
    prefix = f"model.layers.{layer}.self_attn"
    widths = {"q": config.query_width, "k": config.kv_width, "v": config.kv_width}
    if not packed:
        return [Matrix(f"{prefix}.{p}_proj", n, config.hidden) for p, n in widths.items()]
    parts = tuple((f"{prefix}.{p}_proj.weight", n) for p, n in widths.items())
    return [Matrix(f"{prefix}.qkv_proj", sum(widths.values()), config.hidden, parts)]


def embedding_matrix(config: DecoderConfig) -> Matrix:
    return Matrix("model.embed_tokens", config.vocabulary, config.hidden)


def head_matrix(config: DecoderConfig) -> Matrix:
    name = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return Matrix("lm_head", config.vocabulary, config.hidden, ((name, config.vocabulary),))


class DecoderGraph:
    """Token ids, mask and caches in; logits and the grown caches out."""

    opset = 21
    domains: tuple[str, ...] = ()

    def __init__(self, config: DecoderConfig, spelling: Spelling, source, data: Path | None):
        self.config, self.spelling, self.source = config, spelling, source
        self.g = GraphBuilder("decoder", self.opset_for(spelling), self.domains)
        self._file = FileSink(self.g, data) if data else None
        sink = self._file or embedding_sink(self.g)
        self.products = Products(self.g, source, spelling, sink)

    def opset_for(self, spelling: Spelling) -> int:
        """Standard spellings of block-scaled weights came with newer opsets."""
        newest = {"nvfp4": 23, "mxfp8": 24, "mxfp4": 24}.get(spelling.weights, 0)
        return max(self.opset, newest)

    def build(self) -> onnx.ModelProto:
        config, g = self.config, self.g
        ids = g.input("input_ids", INT64, [BATCH, SEQUENCE])
        mask = g.input("attention_mask", INT64, [BATCH, TOTAL])
        self.prepare(ids, mask)
        residual, added = self.embed(ids), None
        for layer in range(config.layers):
            g.scope(f"/model/layers.{layer}")
            prefix = f"model.layers.{layer}"
            x, residual = self.add_and_norm(residual, added, f"{prefix}.input_layernorm")
            added = self.attention(layer, x)
            after = f"{prefix}.post_attention_layernorm"
            if config.post_norms:
                added = self.norm(added, after)
                after = f"{prefix}.pre_feedforward_layernorm"
            x, residual = self.add_and_norm(residual, added, after)
            added = self.mlp(f"{prefix}.mlp", x)
            if config.post_norms:
                added = self.norm(added, f"{prefix}.post_feedforward_layernorm")
        g.scope("/lm_head")
        x, _ = self.add_and_norm(residual, added, "model.norm")
        self.head(x)
        if self._file:
            self._file.close()
        return g.model(check=False)

    def prepare(self, ids: str, mask: str) -> None:
        """What all layers share, from the model's inputs."""
        raise NotImplementedError

    def norm(self, x: str, name: str, width: int = 0) -> str:
        raise NotImplementedError

    def add_and_norm(self, residual: str, added: str | None, name: str) -> tuple[str, str]:
        """The norm of the sum, and the sum."""
        raise NotImplementedError

    def attention(self, layer: int, x: str) -> str:
        raise NotImplementedError

    def gelu(self, x: str) -> str:
        raise NotImplementedError

    def scalar(self, name: str, value: float) -> str:
        return self.g.constant(name, np.asarray(value, NUMPY_TYPES[self.spelling.activations]))

    def vector(self, name: str, size: int) -> str:
        return self.products.tensor(name, self.source.values(name, (size,)))

    def linear(self, x: str, matrix: Matrix, bias: bool = False) -> str:
        y = self.products.emit(x, matrix)
        if not bias:
            return y
        parts = [(name.removesuffix("weight") + "bias", n) for name, n in matrix.rows()]
        values = np.concatenate([self.source.values(name, (n,)) for name, n in parts])
        return self.g.node("Add", [y, self.products.tensor(f"{matrix.name}.bias", values)])

    def embed(self, ids: str) -> str:
        config = self.config
        self.g.scope("/model/embed_tokens")
        x = self.products.gather(ids, embedding_matrix(config))
        if not config.scaled_embedding:
            return x
        return self.g.node("Mul", [x, self.scalar("scale", config.embedding_scale)])

    def cache(self, layer: int) -> tuple[list[str], list[str]]:
        """Declares a layer's caches: what comes in, what goes out; keys first."""
        element, parts = self.spelling.element, ("key", "value")
        heads, width = self.config.kv_heads, self.cache_width()
        if codes := self.spelling.cache_format:
            element = codes.element
        past, total = ([BATCH, heads, length, width] for length in (PAST, TOTAL))
        come = [self.g.input(f"past_key_values.{layer}.{p}", element, past) for p in parts]
        return come, [self.g.output(f"present.{layer}.{p}", element, total) for p in parts]

    def cache_width(self) -> int | str:
        """What the caches' shapes say of the elements that a head takes."""
        return self.config.head_size

    def output_projection(self, layer: int, x: str) -> str:
        config = self.config
        name = f"model.layers.{layer}.self_attn.o_proj"
        return self.linear(x, Matrix(name, config.hidden, config.query_width), config.output_bias)

    def mlp(self, name: str, x: str) -> str:
        hidden, inner = self.config.hidden, self.config.feed_forward
        gate = self.linear(x, Matrix(f"{name}.gate_proj", inner, hidden))
        up = self.linear(x, Matrix(f"{name}.up_proj", inner, hidden))
        return self.linear(self.gated(gate, up), Matrix(f"{name}.down_proj", hidden, inner))

    def gated(self, gate: str, up: str) -> str:
        g = self.g
        if self.config.activation == "gelu_tanh":
            return g.node("Mul", [self.gelu(gate), up])
        if self.config.activation == "silu":
            return g.node("Mul", [g.node("Mul", [gate, g.node("Sigmoid", [gate])]), up])
        low, high = self.scalar("lowest", -CLAMP_LIMIT), self.scalar("highest", CLAMP_LIMIT)
        gate, up = g.node("Clip", [gate, "", high]), g.node("Clip", [up, low, high])
        steep = g.node("Mul", [gate, self.scalar("slope", CLAMP_SLOPE)])
        active = g.node("Mul", [gate, g.node("Sigmoid", [steep])])
        return g.node("Mul", [g.node("Add", [up, self.scalar("one", 1.0)]), active])

    def head(self, x: str) -> None:
        g, config = self.g, self.config
        length = 1 if self.spelling.last_token_only else SEQUENCE
        if self.spelling.last_token_only:
            end = np.iinfo(np.int64).max
            x = g.node("Slice", [x, g.integers(-1), g.integers(end), g.integers(1)])
        logits = self.linear(x, head_matrix(config))
        if config.final_softcap:
            logits = self.capped(logits, config.final_softcap)
        g.node("Identity", [logits], outputs=["logits"])
        g.output("logits", self.spelling.element, [BATCH, length, config.vocabulary])

    def capped(self, x: str, limit: float) -> str:
        g, cap = self.g, self.scalar("softcap", limit)
        return g.node("Mul", [g.node("Tanh", [g.node("Div", [x, cap])]), cap])
