"""Models that other people wrote, as cases: shipped inputs first, then fresh ones.

The onnx packages ship models for backends; packages that are fetched anyway have theirs inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from .case import Case

TREE = Path(__file__).resolve().parents[2]
_SHIPPED = "backend/test/data"
_GROUPS = ("light", "node", "pytorch-converted", "pytorch-operator", "real", "simple")
# Their results are random by definition.
_RANDOM_OPS = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip
# Sizes for what a package's model leaves open, by the dimension's place in the input.
_OPEN = {
    "ch_PP-OCRv4_det_infer": {"x": (1, 3, 64, 96)},
    "ch_PP-OCRv4_rec_infer": {"x": (2, 3, 48, 160)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": (1, 3, 48, 192)},
    "model": {"bytes": (2, 2048)},
    "silero_vad": {"input": (1, 512), "state": (2, 1, 128), "sr": ()},
    "silero_vad_half": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "silero_vad_16k_op15": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    "silero_vad_op18_ifless": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
}
_FIXED = {"sr": 16000}


@dataclass(frozen=True)
class OtherModel:
    name: str
    path: Path

    def case(self, number: int) -> Case | None:
        """None where its inputs are no tensors, or its result is random."""
        model = onnx.load(self.path)
        if not _is_plain(model):
            return None
        random = np.random.default_rng([19, number])
        shipped = list(_shipped_feeds(self.path.parent, model))
        fresh = _fresh_like(shipped[0], random) if shipped else self._drawn(model, random)
        return Case(0, number, self.name, model.SerializeToString(), [*shipped[:2], fresh],
                    {"claim": "all"}, True, len(model.graph.node))  # fmt: skip

    def _drawn(self, model: onnx.ModelProto, random) -> dict[str, np.ndarray]:
        open_sizes = _OPEN.get(self.path.stem, {})
        constants = {tensor.name for tensor in model.graph.initializer}
        feed = {}
        for value in model.graph.input:
            if value.name in constants:
                continue
            tensor = value.type.tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            declared = tuple(d.dim_value or 2 for d in tensor.shape.dim)
            shape = open_sizes.get(value.name, declared)
            if value.name in _FIXED:
                feed[value.name] = np.full(shape, _FIXED[value.name], dtype)
            elif dtype.kind in "iu":
                feed[value.name] = np.asarray(random.integers(0, 100, shape)).astype(dtype)
            else:
                feed[value.name] = (0.1 * random.standard_normal(shape)).astype(dtype)
        return feed


def all_models() -> list[OtherModel]:
    """Each file once, however many packages carry it."""
    found: dict[str, OtherModel] = {}
    for name, path in _files():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.setdefault(digest, OtherModel(name, path))
    return sorted(found.values(), key=lambda model: model.name)


def _files() -> Iterator[tuple[str, Path]]:
    newer = sorted((TREE / ".deps").glob("onnx-*/onnx"))
    for package in [Path(onnx.__file__).parent, *newer]:
        mark = f"@{package.parent.name}" if package in newer else ""
        for group in _GROUPS:
            for path in sorted((package / _SHIPPED / group).rglob("*.onnx")):
                own = path.stem if path.stem != "model" else path.parent.name
                yield f"{group}/{own}{mark}", path
    for package in sorted((TREE / ".deps/models").glob("*")):
        for path in sorted(package.rglob("*.onnx")):
            yield f"{package.name}/{path.stem}", path
    for path in sorted((Path(onnxruntime.__file__).parent / "datasets").glob("*.onnx")):
        yield f"onnxruntime/{path.stem}", path


def _is_plain(model: onnx.ModelProto) -> bool:
    if {node.op_type for node in model.graph.node} & _RANDOM_OPS:
        return False
    if any(node.op_type == "Dropout" and len(node.input) > 2 for node in model.graph.node):
        return False  # training mode drops at random
    values = [*model.graph.input, *model.graph.output]
    return all(
        v.type.WhichOneof("value") == "tensor_type"
        and v.type.tensor_type.elem_type != onnx.TensorProto.STRING
        for v in values
    )


def _shipped_feeds(folder: Path, model: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    for data in sorted(folder.glob("test_data_set_*")):
        feed = {}
        for index, value in enumerate(model.graph.input):
            path = data / f"input_{index}.pb"
            if path.is_file():
                tensor = onnx.TensorProto.FromString(path.read_bytes())
                feed[value.name] = numpy_helper.to_array(tensor)
        yield feed


def _fresh_like(feed: dict[str, np.ndarray], random) -> dict[str, np.ndarray]:
    """Other numbers of the same shapes; what may be an index, a shape or a setting is kept."""
    return {
        name: random.standard_normal(value.shape).astype(value.dtype)
        if value.dtype.kind == "f" and value.size > 1
        else value
        for name, value in feed.items()
    }
