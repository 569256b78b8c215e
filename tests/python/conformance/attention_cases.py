"""Writes the attention node cases of a newer onnx release into a folder, one per case.

Runs as a program of its own, with that release on PYTHONPATH: two releases of onnx cannot
live in one process.
"""

import sys
import warnings
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

# The newest IR version, and the newest Attention, that stock onnxruntime loads.
LOADABLE_IR, LOADABLE_ATTENTION = 13, 24
NEWER_ATTRIBUTES = {"left_window_size", "right_window_size"}


def lower(model: onnx.ModelProto) -> None:
    """Lowers version numbers where nothing in the model needs the newer ones."""
    model.ir_version = min(model.ir_version, LOADABLE_IR)
    nodes = list(model.graph.node)
    if not all(node.op_type == "Attention" for node in nodes):
        return
    if any(a.name in NEWER_ATTRIBUTES for node in nodes for a in node.attribute):
        return
    for entry in model.opset_import:
        if entry.domain == "":
            entry.version = min(entry.version, LOADABLE_ATTENTION)


def as_tensor(value, info: onnx.ValueInfoProto) -> onnx.TensorProto:
    if isinstance(value, onnx.TensorProto):
        return value
    return numpy_helper.from_array(value, info.name)


def write(case, folder: Path) -> None:
    model = case.model
    lower(model)
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{number}"
        data.mkdir(parents=True, exist_ok=True)
        for kind, values, infos in (
            ("input", inputs, model.graph.input),
            ("output", outputs, model.graph.output),
        ):
            for index, (value, info) in enumerate(zip(values, infos, strict=True)):
                path = data / f"{kind}_{index}.pb"
                path.write_bytes(as_tensor(value, info).SerializeToString())
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def main() -> None:
    target = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    for case in collect_testcases(None):
        if case.name.startswith("test_attention"):
            write(case, target / case.name)


if __name__ == "__main__":
    main()
