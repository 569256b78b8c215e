"""Small models that contradict their own types, each in one way that exporters are known for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F16, F32, I64, BOOL = (
    TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL,
)  # fmt: skip


def random() -> np.random.Generator:
    return np.random.default_rng(7)


def value(name: str, element: int, shape=(5, 7)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def constant(name: str, array) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def weight(name: str = "w", dtype=np.float16, shape=(7, 7)) -> onnx.TensorProto:
    return constant(name, random().standard_normal(shape).astype(dtype))


def model(nodes, inputs, outputs, constants=(), declared=(), opset=21, imports=None):
    graph = helper.make_graph(
        nodes, "contradictory", inputs, outputs, list(constants), value_info=list(declared)
    )
    imports = imports or {"": opset}
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(op: str, inputs, outputs, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **attributes)


def operands() -> onnx.ModelProto:
    """A float32 bias behind a float16 product, which is declared as float32: NVFP4 in float32."""
    nodes = [
        node("Cast", ["x"], ["h"], to=F16),
        node("MatMul", ["h", "w"], ["m"]),
        node("Add", ["b", "m"], ["y"]),
    ]
    bias = constant("b", random().standard_normal(7).astype(np.float32))
    return model(nodes, [value("x", F32)], [value("y", F32)], [weight(), bias], [value("m", F32)])


def two_halves() -> onnx.ModelProto:
    """bfloat16 and float16: only float32 holds the values of both."""
    nodes = [node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16), node("Mul", ["b", "w"], ["y"])]
    return model(nodes, [value("x", F32)], [value("y", F32)], [weight(shape=(7,))])


def scale_of_a_weight() -> onnx.ModelProto:
    """float32 weights over float16 scales: INT8 in float16. Until opset 23 they are of one type."""
    scale, zero = constant("s", np.full(7, 0.0625, np.float16)), constant("z", np.zeros(7, np.int8))
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=1),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=1),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    constants = [weight(dtype=np.float32), scale, zero]
    return model(nodes, [value("x", F16)], [value("y", F16)], constants, opset=20)


def output() -> onnx.ModelProto:
    """Two outputs of which one is read again inside."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    return model(nodes, [value("x", F16)], [value("m", F32), value("y", F16)], [weight()])


def constant_listed_as_input() -> onnx.ModelProto:
    inputs, stored = [value("x", F32), value("w", F16, (7, 7))], [weight(dtype=np.float32)]
    return model([node("MatMul", ["x", "w"], ["y"])], inputs, [value("y", F32)], stored)


def undefined() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    declared = [value("m", TensorProto.UNDEFINED)]
    outputs = [value("y", TensorProto.UNDEFINED)]
    return model(nodes, [value("x", F16)], outputs, [weight()], declared)


def type_of_a_later_opset() -> onnx.ModelProto:
    codes = constant("c", random().integers(-8, 8, (7, 7)).astype(ml_dtypes.int4))
    nodes = [node("DequantizeLinear", ["c", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"])]
    constants = [codes, constant("s", np.float32(0.5))]
    return model(nodes, [value("x", F32)], [value("y", F32)], constants, opset=20)


def operator_of_a_later_opset() -> onnx.ModelProto:
    return model([node("Gelu", ["x"], ["y"])], [value("x", F32)], [value("y", F32)], opset=17)


def attribute_of_a_later_opset() -> onnx.ModelProto:
    scales = constant("s", random().uniform(0.1, 1, (2, 8)).astype(np.float32))
    codes = constant("c", random().integers(-100, 100, (8, 8)).astype(np.int8))
    nodes = [
        node("DequantizeLinear", ["c", "s"], ["d"], axis=0, block_size=4),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    ends = [value("x", F32, (3, 8))], [value("y", F32, (3, 8))]
    return model(nodes, *ends, [codes, scales], opset=19)


def type_of_no_opset() -> onnx.ModelProto:
    """Scales of Resize are float32 in every opset."""
    scales = constant("s", np.array([1, 1, 2, 2], np.float16))
    nodes = [node("Resize", ["x", "", "s"], ["y"], mode="nearest")]
    ends = [value("x", F32, (1, 2, 3, 5))], [value("y", F32, (1, 2, 6, 10))]
    return model(nodes, *ends, [scales])


def bytes_of_fp8() -> onnx.ModelProto:
    stored = random().standard_normal((7, 7)).astype(ml_dtypes.float8_e4m3fn)
    zero = constant("z", np.zeros((), ml_dtypes.float8_e4m3fn))
    constants = [constant("c", stored.view(np.uint8)), constant("s", np.float32(0.5)), zero]
    nodes = [node("DequantizeLinear", ["c", "s", "z"], ["d"]), node("MatMul", ["x", "d"], ["y"])]
    return model(nodes, [value("x", F32)], [value("y", F32)], constants)


def branches() -> onnx.ModelProto:
    """One gives float16 and says float32, the other gives float32."""
    half = [node("Cast", ["x"], ["h"], to=F16), node("MatMul", ["h", "w"], ["t"])]
    then_branch = helper.make_graph(half, "then", [], [value("t", F32)])
    else_branch = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [value("e", F32)])
    test = [node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Greater", ["sum", "zero"], ["b"])]
    nodes = [*test, node("If", ["b"], ["y"], then_branch=then_branch, else_branch=else_branch)]
    zero = constant("zero", np.float32(0))
    return model(nodes, [value("x", F32)], [value("y", F32)], [weight(), zero])


def loop() -> onnx.ModelProto:
    """A float16 state enters a body of float32, which reads a float16 weight from around it."""
    body = helper.make_graph(
        [
            node("Identity", ["again"], ["again_after"]),
            node("MatMul", ["state", "w"], ["product"]),
            node("Tanh", ["product"], ["state_after"]),
        ],
        "body",
        [value("i", I64, ()), value("again", BOOL, ()), value("state", F32)],
        [value("again_after", BOOL, ()), value("state_after", F32)],
    )
    nodes = [node("Loop", ["count", "yes", "x"], ["y"], body=body)]
    constants = [weight(), constant("count", np.int64(3)), constant("yes", np.array(True))]
    return model(nodes, [value("x", F16)], [value("y", F32)], constants)


def function() -> onnx.ModelProto:
    """The contradiction is inside of a local function, and only for this caller."""
    own = helper.make_function(
        "own", "Scaled", ["a", "b"], ["c"],
        [helper.make_node("Mul", ["a", "b"], ["c"])], [helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [helper.make_node("Scaled", ["x", "w"], ["y"], "call", domain="own")]
    made = model(
        nodes, [value("x", F32, (7, 7))], [value("y", F32, (7, 7))], [weight()],
        imports={"": 21, "own": 1},
    )  # fmt: skip
    made.functions.append(own)
    return made


MENDED = {
    maker.__name__: maker
    for maker in (
        operands, two_halves, scale_of_a_weight, output, constant_listed_as_input, undefined,
        type_of_a_later_opset, operator_of_a_later_opset, attribute_of_a_later_opset,
        type_of_no_opset, bytes_of_fp8, branches, loop, function,
    )
}  # fmt: skip


def integers_with_floats() -> onnx.ModelProto:
    inputs = [value("x", F32), value("n", I64)]
    return model([node("Add", ["x", "n"], ["y"])], inputs, [value("y", F32)])


def output_of_integers() -> onnx.ModelProto:
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.UINT8)]
    return model(nodes, [value("x", F32)], [value("y", TensorProto.INT8)])


def branches_without_a_common_type() -> onnx.ModelProto:
    whole = helper.make_graph([node("Cast", ["x"], ["t"], to=I64)], "then", [], [value("t", I64)])
    real = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [value("e", F32)])
    nodes = [node("If", ["b"], ["y"], then_branch=whole, else_branch=real)]
    return model(nodes, [value("x", F32), value("b", BOOL, ())], [value("y", F32)])


def type_of_no_operator() -> onnx.ModelProto:
    return model([node("Softmax", ["x"], ["y"])], [value("x", I64)], [value("y", I64)])


# Each with what the error must name.
UNMENDABLE = {
    integers_with_floats: ("Add_y", "'x' (float)", "'n' (int64)"),
    output_of_integers: ("'y'", "int8", "uint8"),
    branches_without_a_common_type: ("If_y", "float", "int64"),
    type_of_no_operator: ("Softmax_y", "'x' (int64)"),
}
