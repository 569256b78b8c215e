"""A decoder's tensors on their way into a model, and the products that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from .builder import FLOAT, FLOAT16, GraphBuilder
from .decoder_config import Spelling
from .decoder_weights import NUMPY_TYPES, Matrix, Stored

MICROSOFT = "com.microsoft"
_ALIGNMENT = 4096  # so that the file's tensors can be mapped
_SMALLEST_OUTSIDE = 1024  # bytes; what is smaller stays in the model

# Embeds a tensor, or writes it beside the model: (name, element type, shape, pieces) -> its name.
Sink = Callable[[str, int, tuple[int, ...], Iterable[np.ndarray]], str]


def embedding_sink(g: GraphBuilder) -> Sink:
    def keep(name, element, shape, pieces) -> str:
        return g.packed(name, element, shape, b"".join(piece.tobytes() for piece in pieces))

    return keep


class FileSink:
    """Appends tensors to one file beside the model, a piece at a time."""

    def __init__(self, g: GraphBuilder, path: Path):
        self._g, self._name = g, path.name
        self._file = path.open("wb")
        self._embed = embedding_sink(g)

    def __call__(self, name: str, element: int, shape, pieces) -> str:
        if helper.tensor_dtype_to_np_dtype(element).itemsize * np.prod(shape) < _SMALLEST_OUTSIDE:
            return self._embed(name, element, shape, pieces)
        self._file.seek(-(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT)
        begin = self._file.tell()
        for piece in pieces:
            self._file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))
        size = self._file.tell() - begin
        return self._g.external(name, element, shape, self._name, begin, size)

    def close(self) -> None:
        self._file.close()


class Products:
    """Emits y = x W^T in the format and the spelling that a model asks for."""

    def __init__(self, g: GraphBuilder, source, spelling: Spelling, sink: Sink):
        self.g, self._source, self._spelling, self._sink = g, source, spelling, sink

    def emit(self, x: str, matrix: Matrix) -> str:
        spelling = self._spelling
        kind = _PLAIN if spelling.weights in NUMPY_TYPES else spelling.weights
        by_operator = _OPERATORS.get((kind, spelling.element)) if spelling.by_operator else None
        return (by_operator or _STANDARD[kind])(self, x, matrix)

    def gather(self, ids: str, table: Matrix) -> str:
        """Rows of the embedding."""
        if not self._spelling.packs_table:
            name, shape = f"{table.name}.weight", (table.n, table.k)
            pieces = self._source.table(name, shape, self._spelling.activations)
            rows = self._sink(name, self._spelling.element, shape, pieces)
        elif self._spelling.by_operator and self._spelling.weights == "int4":
            return self._gather_block_quantized(ids, table)
        else:
            rows = _DEQUANTIZED[self._spelling.weights](self, table)
        return self.g.node("Gather", [rows, ids])

    def tensor(self, name: str, values: np.ndarray) -> str:
        """A float tensor that stays one, in the activations' type."""
        values = values.astype(NUMPY_TYPES[self._spelling.activations])
        return self._sink(name, self._spelling.element, values.shape, [values])

    def _stored(self, matrix: Matrix, k_major: bool = False) -> Stored:
        spelling = self._spelling
        return self._source.matrix(matrix, spelling.weights, spelling.activations, k_major)

    def _plain(self, x: str, m: Matrix) -> str:
        stored = self._stored(m, k_major=True)
        element = self._spelling.element
        weight = self._sink(f"{m.name}.weight", element, (m.k, m.n), stored.codes)
        return self.g.node("MatMul", [x, weight])

    def _two_dequantizers(self, m: Matrix) -> str:
        stored = self._stored(m)
        codes = self._sink(f"{m.name}.codes", TensorProto.FLOAT4E2M1, (m.n, m.k), stored.codes)
        scales = self._scales(m, TensorProto.FLOAT8E4M3FN, stored)
        overall = self.g.parameter(f"{m.name}.global_scale", np.asarray(stored.overall))
        widened = self.g.node("DequantizeLinear", [scales, overall])
        weight = self.g.node("DequantizeLinear", [codes, widened], axis=-1, block_size=16)
        if self._spelling.element == FLOAT:
            return weight
        return self.g.node("Cast", [weight], to=self._spelling.element)

    def _powers_of_two(self, m: Matrix) -> str:
        stored = self._stored(m)
        wide = self._spelling.weights == "mxfp8"
        element = TensorProto.FLOAT8E4M3FN if wide else TensorProto.FLOAT4E2M1
        codes = self._sink(f"{m.name}.codes", element, (m.n, m.k), stored.codes)
        scales = self._scales(m, TensorProto.FLOAT8E8M0, stored)
        attributes = {"axis": -1, "block_size": 32, "output_dtype": self._spelling.element}
        return self.g.node("DequantizeLinear", [codes, scales], **attributes)

    def _rows_of_integers(self, m: Matrix) -> str:
        stored = self._stored(m)
        codes = self._sink(f"{m.name}.codes", TensorProto.INT4, (m.n, m.k), stored.codes)
        scales = self._scales(m, self._spelling.element, stored)
        return self.g.node("DequantizeLinear", [codes, scales], axis=-1, block_size=32)

    def _gather_block_quantized(self, ids: str, m: Matrix) -> str:
        stored = self._stored(m)
        codes = self._sink(f"{m.name}.codes", TensorProto.INT4, (m.n, m.k), stored.codes)
        scales = self._scales(m, self._spelling.element, stored)
        axes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 32}
        return self.g.node("GatherBlockQuantized", [codes, ids, scales], domain=MICROSOFT, **axes)

    def _blocks_of_integers(self, x: str, m: Matrix) -> str:
        stored = self._stored(m, k_major=True)
        codes = self._sink(f"{m.name}.codes", TensorProto.INT4, (m.k, m.n), stored.codes)
        scales = self._scales(m, self._spelling.element, stored)
        weight = self.g.node("DequantizeLinear", [codes, scales], axis=0, block_size=32)
        return self.g.node("MatMul", [x, weight])

    def _matmul_nbits(self, x: str, m: Matrix) -> str:
        stored = self._stored(m)
        # Its codes are unsigned around 8, the quantiser's are signed: the top bit differs.
        turned = (piece ^ np.uint8(0x88) for piece in stored.codes)
        shape = (m.n, m.k // 32, 16)
        codes = self._sink(f"{m.name}.codes", TensorProto.UINT8, shape, turned)
        scales = self._scales(m, self._spelling.element, stored)
        attributes = {"K": m.k, "N": m.n, "bits": 4, "block_size": 32}
        attributes["accuracy_level"] = self._spelling.accuracy_level
        return self.g.node("MatMulNBits", [x, codes, scales], domain=MICROSOFT, **attributes)

    def _fp4_weight(self, x: str, m: Matrix) -> str:
        stored = self._stored(m)
        codes = self._sink(f"{m.name}.codes", TensorProto.UINT8, (m.n, m.k // 2), stored.codes)
        scales = self._scales(m, TensorProto.UINT8, stored)
        overall = self.g.parameter(f"{m.name}.global_scale", np.asarray([stored.overall]))
        op = "MatMulBlockQuantizedFp4Weight"
        return self.g.node(op, [x, codes, scales, overall], domain=MICROSOFT, block_size=16)

    def _scales(self, m: Matrix, element: int, stored: Stored) -> str:
        return self._sink(f"{m.name}.scales", element, stored.scales.shape, [stored.scales])

    def _dequantized_product(self, x: str, m: Matrix) -> str:
        weight = _DEQUANTIZED[self._spelling.weights](self, m)
        return self.g.node("MatMul", [x, self.g.node("Transpose", [weight], perm=[1, 0])])


# A weight or a table as [N,K].
_DEQUANTIZED: dict[str, Callable[[Products, Matrix], str]] = {
    "nvfp4": Products._two_dequantizers,
    "mxfp8": Products._powers_of_two,
    "mxfp4": Products._powers_of_two,
    "int4": Products._rows_of_integers,
}
_PLAIN = "plain"
_STANDARD: dict[str, Callable[[Products, str, Matrix], str]] = {
    _PLAIN: Products._plain,
    "nvfp4": Products._dequantized_product,
    "mxfp8": Products._dequantized_product,
    "mxfp4": Products._dequantized_product,
    "int4": Products._blocks_of_integers,
}
# ONNX Runtime's own operators, and the activations that they take.
_OPERATORS = {
    ("int4", FLOAT): Products._matmul_nbits,
    ("int4", FLOAT16): Products._matmul_nbits,
    ("int4", TensorProto.BFLOAT16): Products._matmul_nbits,
    ("nvfp4", FLOAT16): Products._fp4_weight,
    ("nvfp4", TensorProto.BFLOAT16): Products._fp4_weight,
}
