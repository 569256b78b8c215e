"""Small models with sizes that only a Run tells, and what to feed them."""

from __future__ import annotations

import numpy as np
from guarded_runs import Case
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)
TYPES = {
    "float32": FLOAT,
    "int64": INT64,
    "int32": INT32,
    "bool": BOOL,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
}
CASES: dict[str, Case] = {}
# Static shapes that contradict each other: nobody of ours takes the node, and stock reports it.
LEFT_TO_STOCK: set[str] = set()
# An error of ours where stock runs, with the reason.
ALLOWED_ERRORS: dict[str, str] = {}
# A result of ours where stock has an error, with the reason.
ALLOWED_RESULTS: dict[str, str] = {}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def indices(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def node(op: str, inputs: str, outputs: str = "y", **attributes):
    """Names without spaces; `_` leaves an operand out."""
    names = [name if name != "_" else "" for name in inputs.split()]
    domain = "com.microsoft" if op.startswith("ms.") else ""
    made = helper.make_node(op.removeprefix("ms."), names, outputs.split(), **attributes)
    made.name = f"the_{op.removeprefix('ms.')}_of_{made.output[0]}"
    made.domain = domain
    return made


def tail(name: str) -> list:
    """Two ops behind `name`, up to y: with them, two others are enough to be worth claiming."""
    return [node("Sigmoid", name, f"{name}_s"), node("Tanh", f"{name}_s")]


def model(nodes, inputs, outputs, constants=None, opset=21, told=()):
    """Inputs: name -> (type, dims); outputs: name -> dims or None; told: declared shapes inside."""
    made = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info(n, TYPES[t], dims) for n, (t, dims) in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, dims) for n, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
        value_info=[helper.make_tensor_value_info(n, FLOAT, dims) for n, dims in told],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()


def case(
    name: str,
    nodes,
    inputs: dict,
    *feeds: dict,
    outputs=None,
    constants=None,
    opset=21,
    told=(),
    left_to_stock=False,
    allowed_error="",
    allowed_result="",
    options=None,
    bound=(),
):
    """`inputs`: name -> dims, of the type that the first feed has."""
    typed = {n: (str(feeds[0][n].dtype), dims) for n, dims in inputs.items()}
    data = model(
        nodes if isinstance(nodes, list) else [nodes],
        typed,
        outputs or {"y": None},
        constants,
        opset,
        told,
    )
    assert name not in CASES
    CASES[name] = Case(name, data, list(feeds), options or {}, list(bound))
    if left_to_stock:
        LEFT_TO_STOCK.add(name)
    if allowed_error:
        ALLOWED_ERRORS[name] = allowed_error
    if allowed_result:
        ALLOWED_RESULTS[name] = allowed_result
