"""A GroupQueryAttention over a cache that keeps its size, and inputs for it in guarded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.bindings import bind
from onnxruntime_ep_tenon.models.builder import FLOAT16, INT32, GraphBuilder

HEADS, KV_HEADS, SIZE, CACHE = 4, 2, 32, 16
CANARY = np.float16(-1234.0)
_GUARDED_ROWS = 64  # of a head, on either side of a tensor


def runtime_knows(op: str, attribute: str) -> bool:
    """Whether the runtime's schema of an operator has that attribute."""
    return any(
        schema.name == op and attribute in schema.attributes for schema in get_all_operator_schema()
    )


def grouped_attention(heads=HEADS, kv_heads=KV_HEADS, size=SIZE, key_width=None, rotary=False):
    """The cache's length is one symbol for past and present, as where they share memory."""
    key_width = key_width or kv_heads * size
    g = GraphBuilder("grouped", 21, ("com.microsoft",))
    cache = ["B", kv_heads, "P", size]
    inputs = [
        g.input("q", FLOAT16, ["B", "S", heads * size]),
        g.input("k", FLOAT16, ["B", "S", key_width]),
        g.input("v", FLOAT16, ["B", "S", key_width]),
        g.input("past_k", FLOAT16, cache),
        g.input("past_v", FLOAT16, cache),
        g.input("lengths", INT32, ["B"]),
        g.input("total", INT32, [1]),
    ]
    if rotary:
        angles = np.outer(np.arange(CACHE), 0.5 ** np.arange(size // 2))
        inputs += [
            g.constant("cos", np.cos(angles).astype(np.float16)),
            g.constant("sin", np.sin(angles).astype(np.float16)),
        ]
    g.node(
        "GroupQueryAttention", inputs, outputs=["y", "present_k", "present_v"],
        domain="com.microsoft", num_heads=heads, kv_num_heads=kv_heads, do_rotary=int(rotary),
    )  # fmt: skip
    g.output("y", FLOAT16, ["B", "S", heads * size])
    g.output("present_k", FLOAT16, cache)
    g.output("present_v", FLOAT16, cache)
    return g.model(check=False)


class Guarded:
    """A tensor with canaries before and behind it, on the host or on a GPU."""

    def __init__(self, array: np.ndarray, gpu: int | None):
        self._guard = _GUARDED_ROWS * SIZE
        self._shape, self._gpu = array.shape, gpu
        guard = np.full(self._guard, CANARY, np.float16)
        whole = np.concatenate([guard, array.reshape(-1), guard])
        self._whole = (
            tensors.to_ort_value(whole) if gpu is None else tensors.to_gpu_value(whole, gpu)
        )

    @property
    def address(self) -> int:
        return self._whole.data_ptr() + 2 * self._guard

    def bind(self, bind_one, name: str, shift: int = 0) -> None:
        place = ("cpu", 0) if self._gpu is None else ("cuda", self._gpu)
        bind_one(name, *place, np.float16, list(self._shape), self.address + 2 * shift)

    def value(self) -> np.ndarray:
        """The tensor, once its guards were found whole."""
        on_host = tensors.from_ort_value if self._gpu is None else tensors.from_gpu_value
        whole = on_host(self._whole).copy()  # it may be a view of memory that goes
        outside = np.concatenate([whole[: self._guard], whole[-self._guard :]])
        assert (outside == CANARY).all(), "written outside of a tensor"
        return whole[self._guard : -self._guard].reshape(self._shape)


@dataclass
class Step:
    """One Run of grouped_attention with everything in guarded memory."""

    lengths: list[int]
    tokens: int = 1
    cache: int = CACHE
    total: int | None = None
    shared: str = "kv"  # caches whose present is their past
    shift: int = 0  # elements between a shared past and its present
    seed: int = 0
    results: dict = field(default_factory=dict)

    def __post_init__(self):
        random = np.random.default_rng(self.seed)
        batch = len(self.lengths)

        def draw(*shape):
            return random.standard_normal(shape).astype(np.float16)

        self.feed = {name: draw(batch, self.tokens, KV_HEADS * SIZE) for name in "kv"}
        self.feed["q"] = draw(batch, self.tokens, HEADS * SIZE)
        for name in "kv":
            self.feed[f"past_{name}"] = draw(batch, KV_HEADS, self.cache, SIZE)

    def run(self, session) -> dict[str, np.ndarray]:
        gpu = session.tenon_gpu
        put = tensors.to_ort_value if gpu is None else lambda x: tensors.to_gpu_value(x, gpu)
        guarded = {name: Guarded(array, gpu) for name, array in self.feed.items()}
        lengths = put(np.array(self.lengths, np.int32))
        total = tensors.to_ort_value(np.array([self.total or self.cache], np.int32))
        binding = bind(session, {"lengths": lengths, "total": total}, {})
        for name, tensor in guarded.items():
            tensor.bind(binding.bind_input, name)
        kept = {"y": Guarded(np.zeros_like(self.feed["q"]), gpu)}
        for name in "kv":
            own = Guarded(np.zeros_like(self.feed[f"past_{name}"]), gpu)
            kept[f"present_{name}"] = guarded[f"past_{name}"] if name in self.shared else own
        for name, tensor in kept.items():
            shift = self.shift if name[-1] in self.shared and name != "y" else 0
            tensor.bind(binding.bind_output, name, shift)
        try:
            session.run_with_iobinding(binding)
        finally:  # whatever was wrong, nothing outside is written
            for tensor in (*guarded.values(), *kept.values()):
                tensor.value()
        return {name: tensor.value() for name, tensor in kept.items()}


def expected(step: Step, row: int) -> tuple[np.ndarray, np.ndarray]:
    """The result and the key cache of one batch row in float64, its length being right."""
    length, tokens = step.lengths[row] + 1, step.tokens
    caches = {}
    for name in "kv":
        cache = step.feed[f"past_{name}"][row].astype(np.float64)
        fresh = step.feed[name][row].reshape(tokens, KV_HEADS, SIZE).transpose(1, 0, 2)
        cache[:, length - tokens : length] = fresh
        caches[name] = cache
    q = step.feed["q"][row].reshape(tokens, HEADS, SIZE).astype(np.float64)
    y = np.zeros_like(q)
    for token in range(tokens):
        seen = length - tokens + token + 1
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = caches["k"][group, :seen] @ q[token, head] / np.sqrt(SIZE)
            weights = np.exp(scores - scores.max())
            y[token, head] = weights @ caches["v"][group, :seen] / weights.sum()
    return y.reshape(tokens, -1), caches["k"]


def check_rows(step, results, rows):
    for row in rows:
        y, keys = expected(step, row)
        np.testing.assert_allclose(results["y"][row], y, atol=4e-3, rtol=4e-3)
        # Behind the length a present of its own holds whatever it held.
        seen = CACHE if "k" in step.shared else step.lengths[row] + 1
        present = results["present_k"][row]
        np.testing.assert_array_equal(present[:, :seen], keys[:, :seen].astype(np.float16))
