"""A gated MLP: down(act(gate(x)) * up(x)), the half of a decoder block without attention."""

from __future__ import annotations

import numpy as np
import onnx

from .builder import FLOAT, GraphBuilder

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "gelu_erf")


def weights(random: np.random.Generator, inputs: int, outputs: int) -> np.ndarray:
    """[K,N], scaled so that activations keep their size through the layer."""
    values = random.standard_normal((inputs, outputs)) / np.sqrt(inputs)
    return values.astype(np.float32)


def emit_activation(g: GraphBuilder, x: str, kind: str) -> str:
    if kind == "silu":
        return g.node("Mul", [x, g.node("Sigmoid", [x])])
    if kind in ("gelu", "gelu_tanh"):
        return g.node("Gelu", [x], approximate="tanh" if kind == "gelu_tanh" else "none")
    scaled = g.node("Div", [x, g.constant("sqrt_2", np.float32(np.sqrt(2)))])
    raised = g.node("Add", [g.node("Erf", [scaled]), g.constant("one", np.float32(1))])
    return g.node("Mul", [g.node("Mul", [x, raised]), g.constant("half", np.float32(0.5))])


def emit_gated_mlp(
    g: GraphBuilder, x: str, name: str, hidden: int, inner: int, random, activation: str = "silu"
) -> str:
    gate = g.node("MatMul", [x, g.parameter(f"{name}.gate", weights(random, hidden, inner))])
    up = g.node("MatMul", [x, g.parameter(f"{name}.up", weights(random, hidden, inner))])
    product = g.node("Mul", [emit_activation(g, gate, activation), up])
    return g.node("MatMul", [product, g.parameter(f"{name}.down", weights(random, inner, hidden))])


def build_gated_mlp(
    hidden: int = 64, inner: int = 128, activation: str = "silu", seed: int = 0
) -> onnx.ModelProto:
    g = GraphBuilder("gated_mlp", opset=21)
    x = g.input("x", FLOAT, ["batch", "sequence", hidden])
    y = emit_gated_mlp(g, x, "mlp", hidden, inner, np.random.default_rng(seed), activation)
    g.node("Identity", [y], outputs=["y"])
    g.output("y", FLOAT, ["batch", "sequence", hidden])
    return g.model()
