"""A decoder as torch's exporter writes it: standard operators only, shapes computed in the graph.

Two spellings of attention: ONNX's operator (opset 23), and softmax(QK)V with shared heads
repeated by Expand. Norms, rotary and masks are spelled out in both.
"""

from __future__ import annotations

import numpy as np

from .builder import BOOL, FLOAT, INT64
from .decoder_graph import BATCH, SEQUENCE, DecoderGraph, attention_matrices


class ExportedGraph(DecoderGraph):
    """What both spellings share."""

    def prepare(self, ids: str, mask: str) -> None:
        g = self.g
        positions = g.input("position_ids", INT64, [BATCH, SEQUENCE])
        first = self.cache(0)
        self._caches = {0: first}
        g.scope("/model/mask")
        total = self.dimension(mask, 1)
        kept = g.node("Cast", [mask], to=BOOL)
        self._kept = g.node("Unsqueeze", [kept, g.integers(1, 2)])  # [batch, 1, 1, total]
        self._at = g.node("Unsqueeze", [self._places(ids, first[0][0]), g.integers(1)])
        zero, one = g.constant("zero", np.int64(0)), g.constant("one", np.int64(1))
        self._to = g.node("Range", [zero, g.node("Squeeze", [total]), one])
        self._masks: dict[int, str] = {}
        self._cos_sin = self._rotary(positions)

    def dimension(self, x: str, index: int) -> str:
        """One dimension of x as a vector of one element."""
        return self.g.node("Shape", [x], start=index, end=index + 1)

    def _places(self, ids: str, past: str) -> str:
        """Where the new tokens stand among all keys: [sequence]."""
        g = self.g
        begin = g.node("Squeeze", [self.dimension(past, 2)])
        end = g.node("Add", [begin, g.node("Squeeze", [self.dimension(ids, 1)])])
        return g.node("Range", [begin, end, g.constant("one", np.int64(1))])

    def mask(self, layer: int) -> str:
        """True where a query sees a key, [batch, 1, sequence, total]; one per kind of layer."""
        g, window = self.g, self.config.window_of(layer)
        if window not in self._masks:
            seen = g.node("LessOrEqual", [self._to, self._at])
            if window:
                begin = g.node("Sub", [self._at, g.constant(f"window_{window}", np.int64(window))])
                seen = g.node("And", [seen, g.node("Greater", [self._to, begin])])
            self._masks[window] = g.node("And", [seen, self._kept])
        return self._masks[window]

    def _rotary(self, positions: str) -> list[str]:
        """cos and sin of the given positions, [batch, 1, sequence, head_size]."""
        g, config = self.g, self.config
        g.scope("/model/rotary_emb")
        frequencies = config.theta ** (-np.arange(0, config.head_size, 2) / config.head_size)
        column = g.parameter("inv_freq", frequencies.astype(np.float32)[None, :, None])
        row = g.node("Cast", [g.node("Unsqueeze", [positions, g.integers(1)])], to=FLOAT)
        angles = g.node("Transpose", [g.node("MatMul", [column, row])], perm=[0, 2, 1])
        angles = g.node("Concat", [angles, angles], axis=-1)
        return [
            g.node("Unsqueeze", [self.narrow(g.node(op, [angles])), g.integers(1)])
            for op in ("Cos", "Sin")
        ]

    def widen(self, x: str) -> str:
        return x if self.spelling.element == FLOAT else self.g.node("Cast", [x], to=FLOAT)

    def narrow(self, x: str) -> str:
        element = self.spelling.element
        return x if element == FLOAT else self.g.node("Cast", [x], to=element)

    def norm(self, x: str, name: str, width: int = 0) -> str:
        g, config = self.g, self.config
        wide = self.widen(x)
        squares = g.node("Pow", [wide, g.constant("two", np.float32(2))])
        mean = g.node("ReduceMean", [squares, g.integers(-1)], keepdims=1)
        epsilon = g.constant("epsilon", np.float32(config.epsilon))
        root = g.node("Sqrt", [g.node("Add", [mean, epsilon])])
        normed = g.node("Mul", [wide, g.node("Reciprocal", [root])])
        weight = self.vector(f"{name}.weight", width or config.hidden)
        if not config.norm_offset:
            return g.node("Mul", [weight, self.narrow(normed)])
        offset = g.constant("offset", np.float32(config.norm_offset))
        weight = g.node("Add", [self.widen(weight), offset])
        return self.narrow(g.node("Mul", [normed, weight]))

    def add_and_norm(self, residual: str, added: str | None, name: str) -> tuple[str, str]:
        total = residual if added is None else self.g.node("Add", [residual, added])
        return self.norm(total, name), total

    def gelu(self, x: str) -> str:
        return self.g.node("Gelu", [x], approximate="tanh")

    def attention(self, layer: int, x: str) -> str:
        g, config = self.g, self.config
        name = f"model.layers.{layer}.self_attn"
        counts = (config.heads, config.kv_heads, config.kv_heads)
        q, k, v = (
            self._heads(self.linear(x, matrix, config.qkv_bias), count, x)
            for matrix, count in zip(attention_matrices(config, layer, False), counts, strict=True)
        )
        if config.qk_norm:
            q = self.norm(q, f"{name}.q_norm", config.head_size)
            k = self.norm(k, f"{name}.k_norm", config.head_size)
        q, k, v = (g.node("Transpose", [part], perm=[0, 2, 1, 3]) for part in (q, k, v))
        q, k = self._rotated(q), self._rotated(k)
        past, present = self._caches.get(layer) or self.cache(layer)
        k, v = (
            g.node("Concat", [old, new], outputs=[grown], axis=2)
            for old, new, grown in zip(past, (k, v), present, strict=True)
        )
        attended = g.node("Transpose", [self.attend(layer, q, k, v)], perm=[0, 2, 1, 3])
        flat = g.node("Reshape", [attended, self._shape_of(x, config.query_width)])
        return self.output_projection(layer, flat)

    def _shape_of(self, x: str, *rest: int) -> str:
        sizes = [self.dimension(x, 0), self.dimension(x, 1), self.g.integers(*rest)]
        return self.g.node("Concat", sizes, axis=0)

    def _heads(self, x: str, count: int, like: str) -> str:
        shape = self._shape_of(like, count, self.config.head_size)
        return self.g.node("Reshape", [x, shape])

    def _rotated(self, x: str) -> str:
        g, half = self.g, self.config.head_size // 2
        cos, sin = self._cos_sin
        last, step, end = g.integers(3), g.integers(1), g.integers(np.iinfo(np.int64).max)
        first = g.node("Slice", [x, g.integers(0), g.integers(half), last, step])
        second = g.node("Slice", [x, g.integers(half), end, last, step])
        turned = g.node("Concat", [g.node("Neg", [second]), first], axis=-1)
        return g.node("Add", [g.node("Mul", [x, cos]), g.node("Mul", [turned, sin])])

    def attend(self, layer: int, q: str, k: str, v: str) -> str:
        """[batch, heads, length, size] each; keys and values with the past."""
        raise NotImplementedError


class UnfusedGraph(ExportedGraph):
    """softmax(QK)V as eager attention is exported."""

    def attend(self, layer: int, q: str, k: str, v: str) -> str:
        g, config = self.g, self.config
        k, v = self._repeated(k), self._repeated(v)
        turned = g.node("Transpose", [k], perm=[0, 1, 3, 2])
        scale = self.scalar("scale", config.attention_scale)
        scores = g.node("Mul", [g.node("MatMul", [q, turned]), scale])
        if config.softcap:
            scores = self.capped(scores, config.softcap)
        lowest = {"f16": -65504.0}.get(self.spelling.activations, -3.0e38)
        barred = self.scalar("lowest", lowest)
        bias = g.node("Where", [self.mask(layer), self.scalar("zero", 0.0), barred])
        scores = g.node("Add", [scores, bias])
        return g.node("MatMul", [self._softmax(layer, scores), v])

    def _softmax(self, layer: int, scores: str) -> str:
        g, config = self.g, self.config
        if not config.sinks:
            return self.narrow(g.node("Softmax", [self.widen(scores)], axis=-1))
        name = f"model.layers.{layer}.self_attn.sinks"
        sinks = g.node("Reshape", [self.vector(name, config.heads), g.integers(1, -1, 1, 1)])
        first, third = self.dimension(scores, 0), self.dimension(scores, 2)
        shape = g.node("Concat", [first, g.integers(config.heads), third, g.integers(1)], axis=0)
        wide = g.node("Concat", [scores, g.node("Expand", [sinks, shape])], axis=-1)
        weights = self.narrow(g.node("Softmax", [self.widen(wide)], axis=-1))
        ends = [g.integers(0), g.integers(-1), g.integers(3), g.integers(1)]
        return g.node("Slice", [weights, *ends])

    def _repeated(self, x: str) -> str:
        """Every key head as often as query heads share it."""
        g, config = self.g, self.config
        group = config.heads // config.kv_heads
        if group == 1:
            return x
        wide = g.node("Unsqueeze", [x, g.integers(2)])
        wide = g.node("Expand", [wide, g.integers(1, 1, group, 1, 1)])
        first, length = self.dimension(x, 0), self.dimension(x, 2)
        sizes = [first, g.integers(config.heads), length, g.integers(config.head_size)]
        return g.node("Reshape", [wide, g.node("Concat", sizes, axis=0)])


class AttentionGraph(UnfusedGraph):
    """ONNX's Attention with the mask as an input; sinks, which it cannot say, stay unfused."""

    opset = 23

    def attend(self, layer: int, q: str, k: str, v: str) -> str:
        config = self.config
        if config.sinks:
            return super().attend(layer, q, k, v)
        attributes = {"scale": config.attention_scale, "softcap": config.softcap}
        return self.g.node("Attention", [q, k, v, self.mask(layer)], **attributes)
