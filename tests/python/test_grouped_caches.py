"""GroupQueryAttention over caches that are a window, or another node's, and over operands whose
shape only the operator's definition tells; against float64."""

from dataclasses import dataclass

import numpy as np
import pytest
from attention_inputs import runtime_knows
from onnx import TensorProto
from onnxruntime_ep_tenon import create_session
from onnxruntime_ep_tenon.models.builder import FLOAT, INT32, GraphBuilder

pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(
        not runtime_knows("GroupQueryAttention", "kv_cache_bit_width"),
        reason="this runtime knows no caches of codes",
    ),
]

HEADS, KV_HEADS, SIZE, TABLE = 4, 2, 16, 64
INT8 = TensorProto.INT8
OUTPUTS = ["y", "present_k", "present_v"]


@dataclass
class Case:
    """Lengths count the new tokens; the past holds what came before them, or its last rows."""

    tokens: int
    lengths: tuple[int, ...]
    rows: int  # of the cache
    window: int = -1
    sliding: bool = False
    shared: bool = False  # no new keys: the past has them all
    rotary: bool = False
    norms: bool = False

    def __post_init__(self):
        self.random = np.random.default_rng(sum(self.lengths) + self.rows)
        batch, longest = len(self.lengths), max(self.lengths)
        draw = self.random.standard_normal
        self.q = draw((batch, HEADS, self.tokens, SIZE)).astype(np.float32)
        self.k, self.v = (
            draw((batch, KV_HEADS, longest, SIZE)).astype(np.float32) for _ in range(2)
        )
        self.weights = [draw(SIZE).astype(np.float32) for _ in range(2)]
        angles = np.outer(np.arange(TABLE), 0.6 ** np.arange(SIZE // 2))
        self.cos, self.sin = np.cos(angles), np.sin(angles)

    def normed(self, x, weight):
        if not self.norms:
            return x.astype(np.float64)
        x = x.astype(np.float64)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def turned(self, x, positions):
        if not self.rotary:
            return x
        first, second = np.split(x, 2, axis=-1)
        cos, sin = self.cos[positions], self.sin[positions]
        return np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)

    def keys(self, b):
        """All keys of a row as the cache holds them: normed and turned."""
        length = self.lengths[b]
        return self.turned(self.normed(self.k[b, :, :length], self.weights[1]), np.arange(length))

    def past_length(self, b):
        return self.lengths[b] if self.shared else max(0, self.lengths[b] - self.tokens)

    def past(self, values):
        batch = len(self.lengths)
        cache = np.zeros((batch, KV_HEADS, self.rows, SIZE), np.float32)
        for b in range(batch):
            whole = self.v[b] if values else self.keys(b)
            kept = whole[:, : self.past_length(b)][:, -self.rows :]
            cache[b, :, : kept.shape[1]] = kept
        return cache

    def fresh(self, x):
        batch, width = len(self.lengths), KV_HEADS * SIZE
        if self.shared:
            return np.zeros((batch, 0, width), np.float32)
        rows = np.zeros((batch, self.tokens, width), np.float32)
        for b, length in enumerate(self.lengths):
            new = x[b, :, self.past_length(b) : length]
            rows[b, : new.shape[1]] = new.transpose(1, 0, 2).reshape(new.shape[1], width)
        return rows

    def inputs(self):
        batch = len(self.lengths)
        given = {
            "q": self.q.transpose(0, 2, 1, 3).reshape(batch, self.tokens, HEADS * SIZE),
            "k": self.fresh(self.k),
            "v": self.fresh(self.v),
            "past_k": self.past(values=False),
            "past_v": self.past(values=True),
            "lengths": np.array(self.lengths, np.int32) - 1,
            "total": np.array([max(self.lengths)], np.int32),
        }
        if self.rotary:
            given |= {"cos": self.cos.astype(np.float32), "sin": self.sin.astype(np.float32)}
        if self.norms:
            given |= dict(zip(("q_norm", "k_norm"), self.weights, strict=True))
        return given

    def expected(self):
        """The result, rows of padding as NaN, and the caches' rows that count."""
        batch = len(self.lengths)
        y = np.full((batch, self.tokens, HEADS, SIZE), np.nan)
        for b, length in enumerate(self.lengths):
            first = max(0, length - self.tokens)
            keys, values = self.keys(b), self.v[b, :, :length].astype(np.float64)
            for i in range(min(self.tokens, length)):
                place = first + i
                lowest = 0 if self.window < 0 else max(0, place - self.window + 1)
                seen = slice(lowest, place + 1)
                query = self.turned(self.normed(self.q[b, :, i], self.weights[0]), place)
                for h in range(HEADS):
                    group = h // (HEADS // KV_HEADS)
                    scores = keys[group, seen] @ query[h] / np.sqrt(SIZE)
                    weights = np.exp(scores - scores.max())
                    y[b, i, h] = weights @ values[group, seen] / weights.sum()
        return y.reshape(batch, self.tokens, HEADS * SIZE)

    def model(self):
        g = GraphBuilder("grouped", 21, ("com.microsoft",))
        given = self.inputs()
        shapes = {
            "q": ["B", "S", HEADS * SIZE],
            "k": ["B", 0 if self.shared else "S", KV_HEADS * SIZE],
            "v": ["B", 0 if self.shared else "S", KV_HEADS * SIZE],
            "past_k": ["B", KV_HEADS, "P", SIZE],
            "past_v": ["B", KV_HEADS, "P", SIZE],
            "lengths": ["B"],
            "total": [1],
            "cos": [TABLE, SIZE // 2],
            "sin": [TABLE, SIZE // 2],
            "q_norm": [SIZE],
            "k_norm": [SIZE],
        }
        places = dict.fromkeys(shapes, "")
        for name, array in given.items():
            kind = INT32 if array.dtype == np.int32 else FLOAT
            places[name] = g.input(name, kind, shapes[name])
        order = [*list(shapes)[:9], "", "", "", "", "", "q_norm", "k_norm"]
        names = [places.get(name, "") for name in order]
        while not names[-1]:
            names.pop()
        attributes = {"sliding_window_cache": 1} if self.sliding else {}
        g.node(
            "GroupQueryAttention", names, outputs=OUTPUTS, domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=int(self.rotary),
            local_window_size=self.window, **attributes,
        )  # fmt: skip
        g.output("y", FLOAT, ["B", "S", HEADS * SIZE])
        for name in OUTPUTS[1:]:
            g.output(name, FLOAT, ["B", KV_HEADS, "P", SIZE])
        return g.model(check=False)


def run(case):
    session = create_session(case.model().SerializeToString(), claim="all", require_full_claim="1")
    return dict(zip(OUTPUTS, session.run(None, case.inputs()), strict=True))


def check(case, result):
    expected = case.expected()
    counts = ~np.isnan(expected)
    np.testing.assert_allclose(result["y"][counts], expected[counts], atol=2e-5)


SLIDING = {
    "a token, room left": Case(1, (5, 3), rows=8, window=4, sliding=True),
    "a token, the window is full": Case(1, (9, 8), rows=8, window=8, sliding=True),
    "a token far behind": Case(1, (30, 12), rows=8, window=6, sliding=True, rotary=True),
    "some tokens at the end": Case(3, (20,), rows=8, window=5, sliding=True, rotary=True),
    "a prefill longer than the cache": Case(12, (12, 7), rows=8, window=5, sliding=True),
    "norms": Case(1, (30, 12), rows=8, window=8, sliding=True, rotary=True, norms=True),
}


@pytest.mark.skipif(
    not runtime_knows("GroupQueryAttention", "sliding_window_cache"),
    reason="this runtime knows no windowed caches",
)
@pytest.mark.parametrize("name", SLIDING)
def test_a_windowed_cache_keeps_its_last_rows(name):
    case = SLIDING[name]
    result = run(case)
    check(case, result)
    for output, values in (("present_k", False), ("present_v", True)):
        assert result[output].shape == (len(case.lengths), KV_HEADS, case.rows, SIZE)
        for b, length in enumerate(case.lengths):
            whole = case.v[b, :, :length] if values else case.keys(b)
            kept = whole[:, -case.rows :]
            np.testing.assert_allclose(result[output][b, :, : kept.shape[1]], kept, atol=1e-6)


@pytest.mark.skipif(
    not runtime_knows("GroupQueryAttention", "sliding_window_cache"),
    reason="this runtime knows no windowed caches",
)
def test_a_windowed_cache_that_is_shorter_than_its_window_is_refused():
    with pytest.raises(Exception, match="GroupQueryAttention"):
        run(Case(1, (5, 3), rows=7, window=8, sliding=True))


SHARED = {
    "a token": Case(1, (9, 4), rows=10, shared=True),
    "a token with norms and rotary": Case(1, (9, 4), rows=10, shared=True, rotary=True, norms=True),
    "a prefill, a row of which is padded": Case(
        6, (6, 4), rows=6, shared=True, rotary=True, norms=True
    ),
    "tokens behind others, in a window": Case(
        3, (9,), rows=12, window=4, shared=True, rotary=True, norms=True
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_queries_over_another_nodes_cache(name):
    case = SHARED[name]
    result = run(case)
    check(case, result)
    np.testing.assert_array_equal(result["present_k"], case.inputs()["past_k"])
    np.testing.assert_array_equal(result["present_v"], case.inputs()["past_v"])


def test_norms_are_claimed_with_default_options():
    """The CPU provider has a kernel for the op, which refuses norms when it runs."""
    case = SHARED["a token with norms and rotary"]
    session = create_session(case.model().SerializeToString(), require_full_claim="1")
    check(case, dict(zip(OUTPUTS, session.run(None, case.inputs()), strict=True)))


KINDS = ("PER_TENSOR", "PER_CHANNEL")


def coded_model(keys, values, shapes):
    """int8 caches; `shapes` of the scales, None where the model declares none."""
    g = GraphBuilder("coded", 21, ("com.microsoft",))
    cache = ["B", KV_HEADS, "P", SIZE]
    names = [
        g.input(x, FLOAT, ["B", "S", n * SIZE])
        for x, n in zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)
    ]
    names += [g.input(f"past_{x}", INT8, cache) for x in "kv"]
    names += [g.input("lengths", INT32, ["B"]), g.input("total", INT32, [1]), "", "", "", "", ""]
    names += [g.input(f"{x}_scale", FLOAT, shape) for x, shape in zip("kv", shapes, strict=True)]
    g.node(
        "GroupQueryAttention", names, outputs=OUTPUTS, domain="com.microsoft", num_heads=HEADS,
        kv_num_heads=KV_HEADS, k_quant_type=keys, v_quant_type=values, kv_cache_bit_width=8,
    )  # fmt: skip
    g.output("y", FLOAT, ["B", "S", HEADS * SIZE])
    for name in OUTPUTS[1:]:
        g.output(name, INT8, cache)
    return g.model(check=False).SerializeToString()


def coded_inputs(keys, values):
    random = np.random.default_rng(3)

    def scale(kind):
        shape = (1,) if kind == "PER_TENSOR" else (1, KV_HEADS, 1, SIZE)
        return (0.01 + 0.02 * random.random(shape)).astype(np.float32)

    floats = {
        x: random.standard_normal((2, 1, n * SIZE))
        for x, n in zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)
    }
    return {name: x.astype(np.float32) for name, x in floats.items()} | {
        "past_k": random.integers(-99, 99, (2, KV_HEADS, 8, SIZE)).astype(np.int8),
        "past_v": random.integers(-99, 99, (2, KV_HEADS, 8, SIZE)).astype(np.int8),
        "lengths": np.array([7, 3], np.int32),
        "total": np.array([8], np.int32),
        "k_scale": scale(keys),
        "v_scale": scale(values),
    }


@pytest.mark.parametrize("keys", KINDS)
@pytest.mark.parametrize("values", KINDS)
def test_scales_without_a_declared_rank(keys, values):
    given = coded_inputs(keys, values)
    told = [given["k_scale"].shape, given["v_scale"].shape]
    results = []
    for shapes in ([list(shape) for shape in told], [None, None]):
        model = coded_model(keys, values, shapes)
        session = create_session(model, claim="all", require_full_claim="1")
        results.append(session.run(None, given))
    for declared, inferred in zip(*results, strict=True):
        np.testing.assert_array_equal(declared, inferred)


def test_a_scale_of_another_shape_is_refused_at_run():
    given = coded_inputs("PER_TENSOR", "PER_TENSOR")
    model = coded_model("PER_TENSOR", "PER_TENSOR", [None, None])
    session = create_session(model, claim="all", require_full_claim="1")
    with pytest.raises(Exception, match="k_scale"):
        session.run(None, given | {"k_scale": np.ones((2, 3), np.float32)})
