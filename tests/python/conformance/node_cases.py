"""ONNX's own backend node cases: where they are, and which operators are Tenon's families."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import onnx
from onnx import numpy_helper

TREE = Path(__file__).resolve().parents[3]
NEWER_ONNX = TREE / ".deps/onnx-1.23.2"

# Tenon's own families: a case made of these alone must be claimed whole and pass.
POINTWISE = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr
BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish
Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor""".split()
SOFTMAX = ["Softmax", "LogSoftmax"]
NORMS = [
    "LayerNormalization",
    "RMSNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LpNormalization",
]
PRODUCTS = ["MatMul", "Gemm"]
QUANTISATION = ["DequantizeLinear", "QuantizeLinear"]
ATTENTION = ["Attention", "RotaryEmbedding", "TensorScatter"]
FAMILIES = {
    "attention": ATTENTION,
    "norms": NORMS,
    "pointwise": POINTWISE,
    "products": PRODUCTS,
    "quantisation": QUANTISATION,
    "softmax": SOFTMAX,
}
_FAMILY_OF = {op: family for family, ops in FAMILIES.items() for op in ops}

# Their results are random by definition: no provider can be right or wrong.
RANDOM = ("test_bernoulli", "test_training_dropout")


@dataclass(frozen=True)
class NodeCase:
    name: str
    folder: Path

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.folder / "model.onnx")

    def data_sets(self, model: onnx.ModelProto):
        """Pairs of inputs by name and expected outputs."""
        for folder in sorted(self.folder.glob("test_data_set_*")):
            yield (
                _read(folder, "input", model.graph.input),
                list(_read(folder, "output", model.graph.output).values()),
            )


def _read(folder: Path, kind: str, infos) -> dict:
    values = {}
    for index, info in enumerate(infos):
        path = folder / f"{kind}_{index}.pb"
        if path.is_file():
            values[info.name] = _value(path.read_bytes(), info.type)
    return values


def _value(data: bytes, kind: onnx.TypeProto):
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def family_of(model: onnx.ModelProto) -> str | None:
    """The family when every node belongs to one, named after the first node's; else None.

    Strings, sequences and optionals belong to no family: no kernel of Tenon's takes them.
    """
    values = [*model.graph.input, *model.graph.output]
    if any(v.type.tensor_type.elem_type in (0, onnx.TensorProto.STRING) for v in values):
        return None
    families = [_FAMILY_OF.get(node.op_type) for node in model.graph.node if not node.domain]
    if not families or len(families) != len(model.graph.node) or None in families:
        return None
    return families[0]


def stored_cases() -> list[NodeCase]:
    """None where onnx was installed without its test data."""
    folder = Path(onnx.__file__).parent / "backend/test/data/node"
    return [NodeCase(path.name, path) for path in sorted(folder.glob("*")) if _usable(path)]


def _usable(path: Path) -> bool:
    return (path / "model.onnx").is_file() and not path.name.startswith(RANDOM)


@lru_cache
def newer_attention_cases() -> list[NodeCase]:
    """The attention cases of a newer onnx, generated once into build/; none when it is absent."""
    if not NEWER_ONNX.is_dir():
        return []
    target = TREE / "build/conformance" / NEWER_ONNX.name
    if not (target / "complete").is_file():
        target.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).with_name("attention_cases.py")
        environment = {**os.environ, "PYTHONPATH": str(NEWER_ONNX)}
        subprocess.run([sys.executable, program, target], env=environment, check=True)
        (target / "complete").touch()
    folders = sorted(path for path in target.iterdir() if path.is_dir())
    return [NodeCase(f"{path.name}@{NEWER_ONNX.name}", path) for path in folders]


def all_cases() -> list[NodeCase]:
    return [*stored_cases(), *newer_attention_cases()]
