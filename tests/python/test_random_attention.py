"""Attention operators with random options and sizes, against float64.

A failing seed is its own reproduction: pytest tests/python/test_random_attention.py -k "[17]".
"""

import numpy as np
import onnxruntime
import pytest
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.library import version_tuple
from onnxruntime_ep_tenon.models import reference
from onnxruntime_ep_tenon.models.builder import BOOL, FLOAT, FLOAT16, INT32, GraphBuilder
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

SEEDS = 40
HEAD_SIZES = (8, 16, 24, 40, 64)
BOUNDS = {FLOAT: 2e-5, FLOAT16: 4e-3}
NUMPY = {FLOAT: np.float32, FLOAT16: np.float16}


def softmax_values(scores, v, sinks=None):
    """Rows that see no key give zeros; sinks take part in the sum and carry no value."""
    largest = scores.max(-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    largest = np.where(np.isfinite(largest), largest, 0)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - largest)
    return np.divide(
        weights @ v, total, out=np.zeros(weights.shape[:-1] + v.shape[-1:]), where=total > 0
    )


class Drawn:
    """Sizes and options of one operator, its model and its inputs."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)
        self.type = self.pick((FLOAT, FLOAT16))
        self.kv_heads = int(self.pick((1, 2, 3)))
        self.heads = self.kv_heads * int(self.pick((1, 2, 4)))
        self.size = int(self.pick(HEAD_SIZES))
        self.batch = int(self.pick((1, 2, 3)))
        self.queries = int(self.pick((1, 1, 2, 5, 17)))
        self.inputs: dict[str, np.ndarray] = {}
        self.options: dict = {}

    def pick(self, options):
        return options[self.random.integers(len(options))]

    def maybe(self, share=0.5) -> bool:
        return self.random.random() < share

    def floats(self, *shape, size=1.0):
        return (size * self.random.standard_normal(shape)).astype(NUMPY[self.type])

    def feed(self, g, name, array, shape=None, element=None):
        self.inputs[name] = array
        return g.input(name, element or self.type, list(shape or array.shape))

    def check(self, model, expected):
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        session, report = session_with_report(
            model, "cpu", settings, claim="all", require_full_claim=True
        )
        assert report.kinds() >= {"attention"}, (report.kinds(), self.options)
        results = tensors.run(session, self.inputs)
        for result, wanted in zip(results, expected, strict=True):
            assert result.shape == wanted.shape
            bound = BOUNDS[self.type]
            np.testing.assert_allclose(
                result.astype(np.float64), wanted, atol=bound, rtol=bound, err_msg=str(self.options)
            )


class GroupQuery(Drawn):
    """com.microsoft::GroupQueryAttention over a cache that keeps its size."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.cache = self.queries + int(self.pick((0, 3, 14, 40)))
        self.packed, self.rotary, self.norms = self.maybe(), self.maybe(), self.maybe(0.3)
        self.sinks = self.pick((None, None, "head_sink", "smooth_softmax"))
        self.same_lengths = self.maybe(0.3)
        self.biased = self.same_lengths and self.maybe()
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads}
        if self.maybe(0.3):
            attributes["scale"] = 0.3
        if self.maybe(0.3):
            attributes["softcap"] = 4.0
        if self.maybe(0.3):
            attributes["local_window_size"] = int(self.pick((1, 4, 19)))
        if self.sinks == "smooth_softmax":
            attributes["smooth_softmax"] = 1
        if self.rotary:
            attributes |= {"do_rotary": 1, "rotary_interleaved": int(self.maybe())}
        if self.norms:
            attributes["qk_norm_epsilon"] = 1e-3
        self.options = attributes | {"packed": self.packed, "cache": self.cache}

    def lengths(self):
        if self.same_lengths:
            return np.full(self.batch, self.cache - 1, np.int32)
        return self.random.integers(self.queries - 1, self.cache, self.batch).astype(np.int32)

    def model(self):
        g = GraphBuilder("grouped", 21, ("com.microsoft",))
        cache = ["B", self.kv_heads, "P", self.size]
        shape = (self.batch, self.kv_heads, self.cache, self.size)
        q, k, v = (self.floats(self.batch, self.queries, n * self.size) for n in self.counts())
        names = []
        if self.packed:
            packed = np.concatenate([q, k, v], -1)
            names += [self.feed(g, "qkv", packed, ["B", "S", packed.shape[-1]]), "", ""]
        else:
            for name, array in (("q", q), ("k", k), ("v", v)):
                names.append(self.feed(g, name, array, ["B", "S", array.shape[-1]]))
        names += [self.feed(g, f"past_{x}", self.floats(*shape), cache) for x in "kv"]
        names.append(self.feed(g, "lengths", self.lengths(), ["B"], INT32))
        names.append(self.feed(g, "total", np.array([self.cache], np.int32), [1], INT32))
        names += self.optional_inputs(g)
        g.node(
            "GroupQueryAttention", names, outputs=["y", "present_k", "present_v"],
            domain="com.microsoft",
            **{k: v for k, v in self.options.items() if k not in ("packed", "cache")},
        )  # fmt: skip
        g.output("y", self.type, ["B", "S", self.heads * self.size])
        for name in ("present_k", "present_v"):
            g.output(name, self.type, cache)
        self.fresh = q, k, v
        return g.model(check=False)

    def counts(self):
        return self.heads, self.kv_heads, self.kv_heads

    def optional_inputs(self, g):
        """cos, sin, positions, bias, sinks, scales of the cache, norms; empty at the end goes."""
        names = [""] * 9
        if self.rotary:
            width = self.size // 2 if self.maybe() or self.size % 16 else self.size // 4
            angles = np.outer(np.arange(self.cache), 0.7 ** np.arange(width))
            for at, function in ((0, np.cos), (1, np.sin)):
                table = function(angles).astype(NUMPY[self.type])
                names[at] = self.feed(g, f"table{at}", table, ["positions", width])
        if self.biased:
            heads, batch = self.pick((1, self.heads)), self.pick((1, self.batch))
            bias = self.floats(batch, heads, self.queries, self.cache)
            names[3] = self.feed(g, "bias", bias)
        if self.sinks == "head_sink":
            names[4] = self.feed(g, "sinks", self.floats(self.heads))
        if self.norms:
            names[7:9] = [self.feed(g, n, self.floats(self.size)) for n in ("norm_q", "norm_k")]
        while names and not names[-1]:
            names.pop()
        return names

    def expected(self):
        given = {name: value.astype(np.float64) for name, value in self.inputs.items()}
        counts = zip(self.fresh, self.counts(), strict=True)
        q, k, v = (reference.split_heads(x.astype(np.float64), n) for x, n in counts)
        ends = self.inputs["lengths"] + 1
        positions = ends[:, None] - self.queries + np.arange(self.queries)
        if self.norms:
            q, k = normed(q, given["norm_q"]), normed(k, given["norm_k"])
        if self.rotary:
            tables = [given[f"table{i}"][positions] for i in range(2)]
            interleaved = self.options["rotary_interleaved"]
            q, k = (reference.rotate(x, *tables, interleaved) for x in (q, k))
        presents = []
        for x, fresh in (("past_k", k), ("past_v", v)):
            present = given[x].copy()
            for row, at in enumerate(positions):
                present[row][:, at] = fresh[row]
            presents.append(present)
        keys, values = (np.repeat(x, self.heads // self.kv_heads, 1) for x in presents)
        scale = self.options.get("scale", self.size**-0.5)
        scores = scale * (q @ keys.swapaxes(-1, -2))
        if cap := self.options.get("softcap", 0):
            scores = cap * np.tanh(scores / cap)
        scores = scores + given.get("bias", 0.0)
        at, to = positions[:, None, :, None], np.arange(self.cache)
        allowed = to <= at
        if (window := self.options.get("local_window_size", -1)) > 0:
            allowed = allowed & (to > at - window)
        sinks = {
            "head_sink": lambda: given["sinks"][:, None, None],
            "smooth_softmax": lambda: np.zeros((self.heads, 1, 1)),
        }.get(self.sinks, lambda: None)()
        y = softmax_values(np.where(allowed, scores, -np.inf), values, sinks)
        return [reference.join_heads(y), *presents]

    def check_all(self):
        """Behind its length a row's present is nobody's."""
        model = self.model()
        expected = self.expected()
        behind = np.arange(self.cache) > self.inputs["lengths"][:, None]
        mask = np.broadcast_to(behind[:, None, :, None], expected[1].shape)
        for name in ("past_k", "past_v"):
            self.inputs[name][mask] = 0
        for present in expected[1:]:
            present[mask] = 0
        self.check(model, expected)


def normed(x, weight):
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + 1e-3) * weight


@pytest.mark.parametrize("seed", range(SEEDS))
def test_group_query_attention(seed):
    drawn = GroupQuery(seed)
    if drawn.norms and version_tuple(onnxruntime.__version__) < (1, 31):
        pytest.skip("1.24 knows no norms of queries and keys")
    drawn.check_all()


class OnnxAttention(Drawn):
    """ONNX Attention 23 and 24."""

    def __init__(self, seed: int):
        super().__init__(10_000 + seed)
        self.opset = int(self.pick((23, 24)))
        self.value_size = int(self.pick((self.size, 16)))
        self.past = int(self.pick((0, 0, 3, 12)))
        self.keys = self.queries if self.past else int(self.pick((self.queries, 7, 30)))
        self.flat = self.maybe()
        self.causal = self.maybe(0.4) and (self.past > 0 or self.keys == self.queries)
        self.mask = self.pick((None, "float", "bool"))
        self.options = {"opset": self.opset, "past": self.past, "mask": self.mask}
        attributes = {}
        if self.causal:
            attributes["is_causal"] = 1
        if self.maybe(0.3):
            attributes["scale"] = 0.2
        if self.mask is None and not self.causal and self.maybe():
            attributes["softcap"] = 3.0
        if self.flat:
            attributes |= {"q_num_heads": self.heads, "kv_num_heads": self.kv_heads}
        self.attributes = attributes
        self.options |= attributes

    def operand(self, g, name, heads, length, size, symbol):
        if self.flat:
            return self.feed(
                g, name, self.floats(self.batch, length, heads * size), ["B", symbol, heads * size]
            )
        return self.feed(
            g, name, self.floats(self.batch, heads, length, size), ["B", heads, symbol, size]
        )

    def model(self):
        g = GraphBuilder("attention", self.opset)
        names = [
            self.operand(g, "q", self.heads, self.queries, self.size, "S"),
            self.operand(g, "k", self.kv_heads, self.keys, self.size, "T"),
            self.operand(g, "v", self.kv_heads, self.keys, self.value_size, "T"),
            self.masked(g),
        ]
        outputs = ["y"]
        if self.past:
            for name, size in (("past_k", self.size), ("past_v", self.value_size)):
                past = self.floats(self.batch, self.kv_heads, self.past, size)
                names.append(self.feed(g, name, past, ["B", self.kv_heads, "P", size]))
            outputs += ["present_k", "present_v"]
        while not names[-1]:
            names.pop()
        g.node("Attention", names, outputs=outputs, **self.attributes)
        for name in outputs:
            g.output(name, self.type, None)
        return g.model(check=False)

    def masked(self, g):
        if self.mask is None:
            return ""
        shape = [self.queries, self.past + self.keys]
        for size in (self.heads, self.batch)[: self.random.integers(3)]:
            shape.insert(0, int(self.pick((1, size))))
        if self.mask == "float":
            return self.feed(g, "mask", self.floats(*shape))
        allowed = self.random.random(shape) < 0.7
        return self.feed(g, "mask", allowed, None, BOOL)

    def expected(self):
        """Written out here: onnx 1.22's own evaluator makes NaN of a bool mask that is causal."""
        given = {n: x if x.dtype == bool else x.astype(np.float64) for n, x in self.inputs.items()}
        q, k, v = (given[name] for name in "qkv")
        if self.flat:
            q = reference.split_heads(q, self.heads)
            k, v = (reference.split_heads(x, self.kv_heads) for x in (k, v))
        if self.past:
            k, v = (np.concatenate([given[f"past_{n}"], x], 2) for n, x in (("k", k), ("v", v)))
        keys, values = (np.repeat(x, self.heads // self.kv_heads, 1) for x in (k, v))
        scores = self.attributes.get("scale", self.size**-0.5) * (q @ keys.swapaxes(-1, -2))
        if cap := self.attributes.get("softcap", 0):
            scores = cap * np.tanh(scores / cap)
        mask = given.get("mask", 0.0)
        scores = np.where(mask, scores, -np.inf) if self.mask == "bool" else scores + mask
        if self.causal:
            at, to = np.arange(self.queries)[:, None] + self.past, np.arange(keys.shape[2])
            scores = np.where(to <= at, scores, -np.inf)
        y = softmax_values(scores, values)
        return [reference.join_heads(y) if self.flat else y, *((k, v) if self.past else ())]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_onnx_attention(seed):
    drawn = OnnxAttention(seed)
    drawn.check(drawn.model(), drawn.expected())


class MultiHead(Drawn):
    """com.microsoft::MultiHeadAttention."""

    def __init__(self, seed: int):
        super().__init__(20_000 + seed)
        self.kv_heads = self.heads
        self.keys = int(self.pick((self.queries, 6, 25)))
        self.padded, self.biased, self.projected = self.maybe(0.4), self.maybe(0.4), self.maybe(0.4)
        self.causal = self.keys == self.queries and self.maybe()
        self.attributes = {"num_heads": self.heads}
        if self.maybe(0.3):
            self.attributes["scale"] = 0.4
        if self.causal:
            self.attributes["unidirectional"] = 1
        self.options = self.attributes | {"padded": self.padded, "projected": self.projected}

    def model(self):
        g = GraphBuilder("multi_head", 21, ("com.microsoft",))
        width = self.heads * self.size
        names = [
            self.feed(g, name, self.floats(self.batch, length, width), ["B", symbol, width])
            for name, length, symbol in (
                ("q", self.queries, "S"), ("k", self.keys, "T"), ("v", self.keys, "T"),
            )
        ]  # fmt: skip
        names += ["", "", ""]
        if self.projected:
            names[3] = self.feed(g, "projection", self.floats(3 * width))
        if self.padded:
            kept = (np.arange(self.keys) < self.random.integers(1, self.keys + 1)).astype(np.int32)
            mask = np.broadcast_to(kept, (self.batch, self.keys)).copy()
            names[4] = self.feed(g, "padding", mask, ["B", "T"], INT32)
        if self.biased:
            shape = (
                self.pick((1, self.batch)),
                self.pick((1, self.heads)),
                self.queries,
                self.keys,
            )
            names[5] = self.feed(g, "bias", self.floats(*shape))
        while not names[-1]:
            names.pop()
        g.node(
            "MultiHeadAttention", names, outputs=["y"], domain="com.microsoft", **self.attributes
        )
        g.output("y", self.type, ["B", "S", width])
        return g.model(check=False)

    def expected(self):
        given = {name: value.astype(np.float64) for name, value in self.inputs.items()}
        shifts = np.split(given.get("projection", np.zeros(3 * self.heads * self.size)), 3)
        q, k, v = (
            reference.split_heads(given[name] + shift, self.heads)
            for name, shift in zip("qkv", shifts, strict=True)
        )
        scores = self.attributes.get("scale", self.size**-0.5) * (q @ k.swapaxes(-1, -2))
        scores = scores + given.get("bias", 0.0)
        if self.padded:
            scores = np.where(given["padding"][:, None, None] > 0, scores, -np.inf)
        if self.causal:
            scores = np.where(np.tri(self.queries, dtype=bool), scores, -np.inf)
        return [reference.join_heads(softmax_values(scores, v))]


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_multi_head_attention(seed):
    drawn = MultiHead(seed)
    drawn.check(drawn.model(), drawn.expected())
