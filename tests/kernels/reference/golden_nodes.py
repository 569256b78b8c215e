"""Writes ONNX's own node tests in the text form of the graph, with their data beside them.

    golden_nodes.py OUTPUT_FOLDER

<case>.ir      the graph; inputs have the dims of the data
<case>.in<i>   bytes of input i
<case>.out<i>  bytes of output i, as ONNX stores them
Cases with strings, sequences, optionals or subgraphs have no such form and are left out.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

NAMES = {
    TensorProto.BOOL: "bool",
    TensorProto.INT2: "i2",
    TensorProto.UINT2: "u2",
    TensorProto.INT4: "i4",
    TensorProto.UINT4: "u4",
    TensorProto.INT8: "i8",
    TensorProto.UINT8: "u8",
    TensorProto.INT16: "i16",
    TensorProto.UINT16: "u16",
    TensorProto.INT32: "i32",
    TensorProto.UINT32: "u32",
    TensorProto.INT64: "i64",
    TensorProto.UINT64: "u64",
    TensorProto.FLOAT4E2M1: "f4e2m1",
    TensorProto.FLOAT8E4M3FN: "f8e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "f8e4m3fnuz",
    TensorProto.FLOAT8E5M2: "f8e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "f8e5m2fnuz",
    TensorProto.FLOAT8E8M0: "f8e8m0",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.FLOAT: "f32",
    TensorProto.DOUBLE: "f64",
}


class NoTextForm(Exception):
    pass


def name_of(tensor_type):
    if tensor_type not in NAMES:
        raise NoTextForm
    return NAMES[tensor_type]


def packed(array):
    return numpy_helper.from_array(np.ascontiguousarray(array)).raw_data


def tensor_text(tensor):
    dims = ",".join(map(str, tensor.dims))
    return f"{name_of(tensor.data_type)}[{dims}]", packed(numpy_helper.to_array(tensor)).hex()


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def number(value):
    text = repr(float(np.float32(value)))
    return text if any(c in text for c in ".ein") else text + ".0"


def attribute_text(attribute):
    value = helper.get_attribute_value(attribute)
    kind = attribute.type
    if kind == onnx.AttributeProto.INT:
        return str(value)
    if kind == onnx.AttributeProto.FLOAT:
        return number(value)
    if kind == onnx.AttributeProto.STRING:
        return quoted(value.decode())
    if kind == onnx.AttributeProto.INTS:
        return "[" + ",".join(map(str, value)) + "]"
    if kind == onnx.AttributeProto.FLOATS and value:
        return "[" + ",".join(map(number, value)) + "]"
    if kind == onnx.AttributeProto.TENSOR:
        form, data = tensor_text(value)
        return f"{form} hex:{data}"
    raise NoTextForm


def value_types(model):
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = [*graph.value_info, *graph.output, *graph.input]
    return {v.name: v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")}


def since_version(node, opset):
    return onnx.defs.get_schema(node.op_type, opset[node.domain], node.domain).since_version


def node_text(node, types, dims, version):
    def output(name):
        if not name:
            return "_"
        kind = NAMES.get(types.get(name, 0), "undefined")
        return f'%"{name}": {kind}[{dims[name]}]' if name in dims else f'%"{name}": {kind}[*]'

    domain = f"{node.domain}::" if node.domain else ""
    inputs = ", ".join(f'%"{i}"' if i else "_" for i in node.input)
    attributes = ", ".join(f"{a.name}={attribute_text(a)}" for a in node.attribute)
    text = ", ".join(map(output, node.output))
    text += f" = {domain}{node.op_type}@{version}({inputs})"
    return f"  {text} {{{attributes}}}" if attributes else f"  {text}"


def load(path):
    proto = onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    name_of(proto.data_type)
    return proto


def write_case(folder, case):
    model = onnx.load(case / "model.onnx")
    opset = {o.domain: o.version for o in model.opset_import}
    data = case / "test_data_set_0"
    inputs = [load(data / f"input_{i}.pb") for i in range(len(list(data.glob("input_*.pb"))))]
    outputs = [load(data / f"output_{i}.pb") for i in range(len(model.graph.output))]
    if len(inputs) != len(model.graph.input) or any(
        n.type.HasField("sequence_type") or n.type.HasField("optional_type")
        for n in model.graph.input
    ):
        raise NoTextForm
    lines = ["graph case {"]
    for value, tensor in zip(model.graph.input, inputs, strict=True):
        lines.append(f'  input %"{value.name}": {tensor_text(tensor)[0]}')
    for tensor in model.graph.initializer:
        form, text = tensor_text(tensor)
        lines.append(f'  const %"{tensor.name}": {form} = hex:{text}')
    dims = {
        v.name: ",".join(map(str, t.dims)) for v, t in zip(model.graph.output, outputs, strict=True)
    }
    types = value_types(model)
    lines += [node_text(n, types, dims, since_version(n, opset)) for n in model.graph.node]
    lines += [f'  output %"{v.name}"' for v in model.graph.output]
    (folder / f"{case.name}.ir").write_text("\n".join(lines) + "\n}\n")
    for kind, tensors in (("in", inputs), ("out", outputs)):
        for i, tensor in enumerate(tensors):
            array = numpy_helper.to_array(tensor)
            (folder / f"{case.name}.{kind}{i}").write_bytes(packed(array))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cases = Path(onnx.__file__).parent / "backend/test/data/node"
    for case in sorted(cases.iterdir()):
        try:
            write_case(folder, case)
        except (NoTextForm, FileNotFoundError, ValueError, onnx.defs.SchemaError, DecodeError):
            pass


if __name__ == "__main__":
    main()
