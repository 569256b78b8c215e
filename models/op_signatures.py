"""Which types an operator takes and gives.

From onnx's schemas and, where onnx has none, ONNX Runtime's; trt:: has none, so its are here.
Types are text, as schemas have them: 'tensor(float16)', 'seq(tensor(int64))'.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, TypeProto

FLOAT, BYTE, FP8, FP4 = (
    f"tensor({name})" for name in ("float", "uint8", "float8e4m3fn", "float4e2m1")
)
ONNX_DOMAINS = ("", "ai.onnx")
TRT = "trt"

_NUMBERS = {name.lower(): number for name, number in TensorProto.DataType.items()}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_TENSOR = re.compile(r"tensor\((\w+)\)")
_NESTED = re.compile(r"(seq|optional)\((.*)\)")


def type_of(element: int) -> str:
    """Of a tensor, by its element type; empty: undefined, or newer than this onnx."""
    return f"tensor({_NAMES[element]})" if element in _NAMES and element else ""


def element_of(text: str) -> int | None:
    """The element type of a tensor; None: it is another type."""
    found = _TENSOR.fullmatch(text)
    return _NUMBERS[found[1]] if found else None


def short(text: str) -> str:
    """'float16' of 'tensor(float16)'."""
    found = _TENSOR.fullmatch(text)
    return found[1] if found else text


def text_of(proto: TypeProto) -> str:
    """Empty where the type, or that of its elements, is not said."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return type_of(proto.tensor_type.elem_type)
    if kind in ("sequence_type", "optional_type"):
        inner = text_of(getattr(proto, kind).elem_type)
        name = {"sequence_type": "seq", "optional_type": "optional"}[kind]
        return f"{name}({inner})" if inner else ""
    return ""


def proto_of(text: str) -> TypeProto:
    proto = TypeProto()
    if (element := element_of(text)) is not None:
        proto.tensor_type.elem_type = element
    elif found := _NESTED.fullmatch(text):
        inner = proto.sequence_type if found[1] == "seq" else proto.optional_type
        inner.elem_type.CopyFrom(proto_of(found[2]))
    return proto


@dataclass(frozen=True)
class Parameter:
    type: str  # a type, or a name that stands for one
    alike: bool = True  # where it repeats: all of one type
    repeats: bool = False


@dataclass(frozen=True)
class Signature:
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by name
    attributes: frozenset[str] | None = None  # None: any
    schema: onnx.defs.OpSchema | None = None

    def input(self, index: int) -> Parameter | None:
        return _at(self.inputs, index)

    def output(self, index: int) -> Parameter | None:
        return _at(self.outputs, index)

    def takes(self, name: str, type: str) -> bool:
        """Whether what the name stands for may be of this type."""
        allowed = self.allowed.get(name)
        return type in allowed if allowed is not None else name == type


def _at(parameters: tuple[Parameter, ...], index: int) -> Parameter | None:
    if index < len(parameters):
        return parameters[index]
    return parameters[-1] if parameters and parameters[-1].repeats else None


def opset_of(domain: str, imports: Mapping[str, int]) -> int:
    names = ONNX_DOMAINS if domain in ONNX_DOMAINS else (domain,)
    return next((imports[name] for name in names if name in imports), 1)


def signature_of(node: onnx.NodeProto, imports: Mapping[str, int]) -> Signature | None:
    """None: nobody here knows the operator in this opset."""
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    return _look_up(node.op_type, opset_of(domain, imports), domain)


@functools.lru_cache(maxsize=1024)
def _look_up(op: str, opset: int, domain: str) -> Signature | None:
    if domain == TRT:
        return _TRT_SIGNATURE
    try:
        return _of_onnx(onnx.defs.get_schema(op, opset, domain))
    except onnx.defs.SchemaError:
        schemas = [s for s in _runtime_schemas().get((domain, op), ()) if s.since_version <= opset]
        return _of_runtime(max(schemas, key=lambda s: s.since_version)) if schemas else None


def first_opset(node: onnx.NodeProto, above: int, fits) -> int | None:
    """The first opset of ONNX's after `above` in which fits(signature) holds."""
    for opset in range(above + 1, onnx.defs.onnx_opset_version() + 1):
        found = _look_up(node.op_type, opset, "")
        if found is not None and found.schema is not None and fits(found):
            return opset
    return None


def _of_onnx(schema: onnx.defs.OpSchema) -> Signature:
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def parameters(formal) -> tuple[Parameter, ...]:
        return tuple(Parameter(p.type_str, p.is_homogeneous, p.option == variadic) for p in formal)

    allowed = {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    inputs, outputs = parameters(schema.inputs), parameters(schema.outputs)
    return Signature(inputs, outputs, allowed, frozenset(schema.attributes), schema)


def _of_runtime(schema) -> Signature:
    def parameters(formal) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(p.typeStr, p.isHomogeneous, p.option.name == "Variadic") for p in formal
        )

    allowed = {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }
    return Signature(parameters(schema.inputs), parameters(schema.outputs), allowed)


@functools.lru_cache(maxsize=1)
def _runtime_schemas() -> dict:
    """Those of ONNX Runtime's own operators, by domain and name, all versions."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
    except ImportError:  # only what onnx itself knows can be checked
        return {}
    found = {}
    for schema in get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def is_known_domain(domain: str) -> bool:
    """ONNX Runtime imports the domains of its own operators by itself."""
    return domain in ONNX_DOMAINS or any(known == domain for known, _ in _runtime_schemas())


def output_types(node: onnx.NodeProto, signature: Signature, bound: dict, inputs: dict) -> list:
    """The type of each output, empty where it does not follow.

    bound   what the names of the signature stand for
    inputs  the types of the node's inputs, by their names
    """
    if node.domain == TRT:
        return _of_trt(node, inputs)
    types = [_output_type(signature, index, bound) for index in range(len(node.output))]
    if all(types) or signature.schema is None:
        return types
    inferred = _inferred(node, signature.schema, inputs)
    return [type or inferred.get(name, "") for name, type in zip(node.output, types, strict=True)]


def _output_type(signature: Signature, index: int, bound: dict) -> str:
    parameter = signature.output(index)
    if parameter is None or (parameter.repeats and not parameter.alike):
        return ""
    if parameter.type in bound:
        return bound[parameter.type]
    allowed = signature.allowed.get(parameter.type)
    if allowed is None:
        return parameter.type if "(" in parameter.type else ""
    return next(iter(allowed)) if len(allowed) == 1 else ""


def _inferred(node: onnx.NodeProto, schema, inputs: dict) -> dict[str, str]:
    """What the schema's own inference says: of Cast, Constant, DequantizeLinear and so on."""
    given = {name: proto_of(type) for name, type in inputs.items() if type}
    if any(name and name not in given for name in node.input):
        return {}
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, given)
    except Exception:  # shapes and values that it asks for are not known here
        return {}
    return {name: text_of(proto) for name, proto in found.items()}


def _of_trt(node: onnx.NodeProto, inputs: dict) -> list[str]:
    """As the plugin registers them, which follows Model Optimizer: FP8 codes go as bytes."""
    given = [inputs.get(name, "") for name in node.input] + [""] * 3
    asked = next((type_of(a.i) for a in node.attribute if a.name == "output_dtype"), "")
    if node.op_type == "TRT_INT4QuantizeLinear" and given[2]:  # of int4 or uint4
        return [given[2]]
    if node.op_type == "TRT_FP4QDQ":
        return [given[0]]
    if node.op_type in _TRT_CODES:
        return list(_TRT_CODES[node.op_type][: len(node.output)])
    if node.op_type.endswith("DequantizeLinear"):
        # Scales of MX formats are exponents: without an attribute float32 is meant.
        return [asked or (FLOAT if node.op_type.startswith("TRT_MXFP8") else given[1])]
    if node.op_type == "QuantizeLinear":
        zero = given[2] or BYTE
        return [asked or (BYTE if zero == FP8 else zero)]
    return [""] * len(node.output)


_TRT_CODES = {
    "TRT_FP4DynamicQuantize": (FP4, FP8),
    "TRT_MXFP8DynamicQuantize": (FP8, BYTE),
    "TRT_FP8QuantizeLinear": (BYTE,),
    "TRT_INT8QuantizeLinear": ("tensor(int8)",),
    "TRT_INT4QuantizeLinear": ("tensor(int4)",),
}
# Each takes any float beside any codes: nothing has to agree.
_TRT_SIGNATURE = Signature((), ())
