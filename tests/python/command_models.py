"""Small models that the tests of the command write to files."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder

_NUMPY = {FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def weight(*shape, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def linear(dtype: int = FLOAT, k: int = 64, n: int = 48) -> onnx.ModelProto:
    """x [rows, k] times a constant, and a Relu."""
    g = GraphBuilder("linear", 21)
    x = g.input("x", dtype, ["rows", k])
    w = g.parameter("W", weight(k, n, dtype=_NUMPY[dtype]))
    g.node("Relu", [g.node("MatMul", [x, w])], outputs=["y"])
    g.output("y", dtype, ["rows", n])
    return g.model()


def mixed_types() -> onnx.ModelProto:
    """A float16 product between float32 ones."""
    g = GraphBuilder("mixed", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    first = g.node("MatMul", [x, g.parameter("A", weight(64, 64))])
    half = g.node("Cast", [first], to=TensorProto.FLOAT16)
    second = g.node("MatMul", [half, g.parameter("B", weight(64, 64, dtype=np.float16))])
    g.node("Cast", [second], outputs=["y"], to=FLOAT)
    g.output("y", FLOAT, ["rows", 64])
    return g.model()


def behind_nonzero() -> onnx.ModelProto:
    """A product of as many rows as NonZero finds: no kernel of Tenon's takes it."""
    g = GraphBuilder("behind_nonzero", 21)
    x = g.input("x", FLOAT, ["rows", 64])
    found = g.node("Transpose", [g.node("NonZero", [x])], perm=[1, 0])
    shape = g.parameter("shape", np.array([-1, 64], np.int64))
    rows = g.node("Reshape", [g.node("GatherND", [x, found]), shape])
    w = g.parameter("W", weight(64, 64))
    g.node("MatMul", [rows, w], outputs=["y"])
    g.output("y", FLOAT, ["found", 64])
    return g.model()


def saved(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(model, path)
    return path
