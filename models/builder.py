"""A thin layer over onnx.helper: values are names, a node returns its outputs' names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# The IR version that first knew the opset's element types. Writing the oldest one
# that fits keeps a file loadable by the oldest runtime that could run it.
_IR_VERSION_SINCE_OPSET = {17: 8, 19: 9, 21: 10, 23: 11, 24: 12, 26: 13}


def ir_version_for(opset: int) -> int:
    """The oldest IR version that may carry a model of this opset."""
    return max(ir for since, ir in _IR_VERSION_SINCE_OPSET.items() if since <= max(opset, 17))


class GraphBuilder:
    """Collects nodes and constants of one graph and hands back a checked model."""

    def __init__(self, name: str, opset: int, domains: Sequence[str] = ()):
        self.name = name
        self.opset = opset
        self.domains = tuple(domains)
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._described: list[onnx.ValueInfoProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._scope = ""
        self._count = 0

    def scope(self, name: str) -> None:
        """Names given from here on begin with this path, as exporters name modules."""
        self._scope = name

    def input(self, name: str, dtype: int, shape: Sequence[int | str | None]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int, shape: Sequence[int | str | None]) -> str:
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def describe(self, name: str, dtype: int, shape: Sequence[int | str | None]) -> str:
        """States the type of a value between nodes, as exporters do, rightly or not."""
        self._described.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, name: str, value, as_input: bool = False) -> str:
        """Adds an initialiser. `as_input` also lists it as a graph input, as some exporters do."""
        array = np.asarray(value)
        path = self._path(name)
        if path not in self._constants:
            self._constants[path] = numpy_helper.from_array(array, path)
            if as_input:
                self.input(path, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        return path

    def parameter(self, name: str, value) -> str:
        """A trained tensor: it keeps its own name, whatever the scope."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def packed(self, name: str, dtype: int, shape: Sequence[int], data: bytes) -> str:
        """A trained tensor from the bytes that a file holds, two 4-bit codes in each."""
        self._constants.setdefault(
            name, TensorProto(name=name, data_type=dtype, dims=shape, raw_data=data)
        )
        return name

    def external(
        self, name: str, dtype: int, shape: Sequence[int], file: str, offset: int, size: int
    ) -> str:
        """A trained tensor whose bytes lie in a file beside the model."""
        tensor = TensorProto(name=name, data_type=dtype, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self._constants.setdefault(name, tensor)
        return name

    def integers(self, *values: int) -> str:
        """An int64 vector constant: axes, shapes, permutations given as inputs."""
        label = "_".join(str(v) for v in values).replace("-", "m")
        return self.constant(f"ints_{label}", np.asarray(values, np.int64))

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: int | Sequence[str] = 1,
        domain: str = "",
        **attributes,
    ):
        """Adds a node; returns its output's name, or a list of names when there are several."""
        path = self._path(f"{op}_{self._count}")
        self._count += 1
        if isinstance(outputs, int):
            names = [f"{path}_out{i}" if outputs > 1 else f"{path}_out" for i in range(outputs)]
        else:
            names = list(outputs)
        self._nodes.append(
            helper.make_node(op, list(inputs), names, name=path, domain=domain, **attributes)
        )
        return names[0] if len(names) == 1 else names

    def model(self, check: bool = True) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            self.name,
            self._inputs,
            self._outputs,
            list(self._constants.values()),
            value_info=self._described,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in self.domains]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="tenon.models")
        model.ir_version = ir_version_for(self.opset)
        if check:
            onnx.checker.check_model(model)
        return model

    def _path(self, name: str) -> str:
        return f"{self._scope}/{name}" if self._scope else name


FLOAT = TensorProto.FLOAT
FLOAT16 = TensorProto.FLOAT16
BFLOAT16 = TensorProto.BFLOAT16
INT32 = TensorProto.INT32
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL
