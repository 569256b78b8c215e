"""Attention in the spellings that exporters write, over ready-made q, k and v."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from .builder import FLOAT, GraphBuilder

HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 16


def _inputs(g: GraphBuilder, kv_heads: int) -> tuple[str, str, str]:
    """Four-dimensional q, k, v: [batch, heads, length, size]."""
    q = g.input("q", FLOAT, ["batch", HEADS, "queries", HEAD_SIZE])
    k = g.input("k", FLOAT, ["batch", kv_heads, "keys", HEAD_SIZE])
    v = g.input("v", FLOAT, ["batch", kv_heads, "keys", HEAD_SIZE])
    return q, k, v


def _onnx_23(g: GraphBuilder) -> None:
    q, k, v = _inputs(g, KV_HEADS)
    g.node("Attention", [q, k, v], outputs=["y"], is_causal=1)


def _onnx_masked(g: GraphBuilder) -> None:
    q, k, v = _inputs(g, KV_HEADS)
    mask = g.input("mask", FLOAT, ["batch", 1, "queries", "keys"])
    g.node("Attention", [q, k, v, mask], outputs=["y"], softcap=20.0)


def _unfused(g: GraphBuilder, scores: Callable[[GraphBuilder, str, str], str]) -> None:
    q, k, v = _inputs(g, HEADS)
    mask = g.input("mask", FLOAT, ["batch", 1, "queries", "keys"])
    masked = g.node("Add", [scores(g, q, g.node("Transpose", [k], perm=[0, 1, 3, 2])), mask])
    g.node("MatMul", [g.node("Softmax", [masked], axis=-1), v], outputs=["y"])


def _scaled_after(g: GraphBuilder, q: str, turned_k: str) -> str:
    root = g.constant("root", np.float32(np.sqrt(HEAD_SIZE)))
    return g.node("Div", [g.node("MatMul", [q, turned_k]), root])


def _scaled_on_both_sides(g: GraphBuilder, q: str, turned_k: str) -> str:
    """torch's scaled_dot_product_attention: each side carries the root of the scale."""
    root = g.constant("root", np.float32(HEAD_SIZE**-0.25))
    return g.node("MatMul", [g.node("Mul", [q, root]), g.node("Mul", [turned_k, root])])


def _unfused_grouped(g: GraphBuilder) -> None:
    """Shared key heads repeated by Unsqueeze, Expand, Reshape, as optimum exports Llama."""
    q, k, v = _inputs(g, KV_HEADS)

    def repeat(x: str) -> str:
        wide = g.node("Unsqueeze", [x, g.integers(2)])
        ones = g.integers(1, 1, HEADS // KV_HEADS, 1, 1)
        wide = g.node("Expand", [wide, ones])
        return g.node("Reshape", [wide, g.integers(0, HEADS, -1, HEAD_SIZE)])

    turned = g.node("Transpose", [repeat(k)], perm=[0, 1, 3, 2])
    weights = g.node("Softmax", [_scaled_after(g, q, turned)], axis=-1)
    g.node("MatMul", [weights, repeat(v)], outputs=["y"])


FORMS: dict[str, tuple[int, Callable[[GraphBuilder], None]]] = {
    "onnx_23": (23, _onnx_23),
    "onnx_24_masked": (24, _onnx_masked),
    "unfused": (17, lambda g: _unfused(g, _scaled_after)),
    "unfused_both_sides": (17, lambda g: _unfused(g, _scaled_on_both_sides)),
    "unfused_grouped": (17, _unfused_grouped),
}


def build_attention(form: str) -> onnx.ModelProto:
    opset, emit = FORMS[form]
    g = GraphBuilder(f"attention_{form}", opset)
    emit(g)
    g.output("y", FLOAT, ["batch", HEADS, "queries", HEAD_SIZE])
    return g.model()


def inputs_for(model: onnx.ModelProto, batch=2, queries=5, keys=5, seed=0) -> dict:
    """Random inputs; the mask bars a fifth of the keys but never a whole row."""
    random = np.random.default_rng(seed)
    sizes = {"batch": batch, "queries": queries, "keys": keys}
    result = {}
    for value in model.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        if value.name == "mask":
            barred = random.random(shape) < 0.2
            barred[..., 0] = False
            result["mask"] = np.where(barred, np.float32(-10000), np.float32(0))
        else:
            result[value.name] = random.standard_normal(shape).astype(np.float32)
    return result
