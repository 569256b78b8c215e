"""com.microsoft::PagedAttention against float64: no stock provider of a host has it."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest
from attention_inputs import runtime_knows
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import reference
from onnxruntime_ep_tenon.models.builder import BFLOAT16, FLOAT, FLOAT16, INT32, GraphBuilder
from onnxruntime_ep_tenon.models.cache_formats import CACHE_FORMATS
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import run_script
from test_random_attention import normed, softmax_values
from test_session import quiet

NUMPY = {FLOAT16: np.float16, BFLOAT16: ml_dtypes.bfloat16}
BOUNDS = {FLOAT16: 5e-3, BFLOAT16: 4e-2}


pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(
        not runtime_knows("PagedAttention", "is_causal"), reason="an older PagedAttention"
    ),
]


@dataclass
class Paged:
    """Some sequences with their caches in pages of a shuffled order."""

    past: tuple = (0, 20, 47)
    fresh: tuple = (5, 1, 3)
    type: int = FLOAT16
    packed: bool = False
    rotary: bool = False
    norms: bool = False
    sinks: bool = False
    options: dict = field(default_factory=dict)
    heads: int = 4
    kv_heads: int = 2
    size: int = 32
    page: int = 16
    pages_of_one: int = 4
    codes: str = ""
    granularity: str = "PER_TENSOR"

    def __post_init__(self):
        random = np.random.default_rng(sum(self.past) + self.heads)
        tokens, count = sum(self.fresh), len(self.past)
        self.pages = count * self.pages_of_one + 3

        def floats(*shape):
            return random.standard_normal(shape).astype(NUMPY[self.type])

        widths = [heads * self.size for heads in (self.heads, self.kv_heads, self.kv_heads)]
        self.q, self.k, self.v = (floats(tokens, width) for width in widths)
        cache = (self.pages, self.page, self.kv_heads, self.size)
        order = random.permutation(self.pages)[: count * self.pages_of_one]
        self.format = CACHE_FORMATS.get(self.codes)
        caches = {name: floats(*cache) for name in ("key_cache", "value_cache")}
        if self.format:
            sizes = self.kv_heads, self.size
            scale = self.format.scales(*sizes, self.granularity)
            self.scale = scale.reshape(sizes[0], 1, sizes[1]) if scale.size > 1 else scale
            caches = {name: self.format.quantize(x, self.channels()) for name, x in caches.items()}
            caches |= {"k_scale": self.scale, "v_scale": self.scale}
        self.inputs = caches | {
            "starts": np.cumsum([0, *self.fresh]).astype(np.int32),
            "past": np.array(self.past, np.int32),
            "table": order.reshape(count, self.pages_of_one).astype(np.int32),
        }
        angles = np.outer(np.arange(64), 0.7 ** np.arange(self.size // 2))
        if self.rotary:
            self.inputs |= {
                name: function(angles).astype(NUMPY[self.type])
                for name, function in (("cos", np.cos), ("sin", np.sin))
            }
        if self.sinks:
            self.inputs["sinks"] = floats(self.heads)
        if self.norms:
            self.inputs |= {name: floats(self.size) for name in ("norm_q", "norm_k")}
        fresh = {"q": self.q, "k": self.k, "v": self.v}
        if self.packed:
            fresh = {"q": np.concatenate(list(fresh.values()), 1)}
        self.inputs |= fresh

    def channels(self):
        """The scales of [..., heads, size]."""
        return self.scale if self.scale.size == 1 else self.scale[:, 0]

    def numbers(self, cache):
        if not self.format:
            return cache.astype(np.float64)
        return self.format.dequantize(cache, self.channels())

    def model(self):
        g = GraphBuilder("paged", 21, ("com.microsoft",))
        symbols = {"q": "T", "k": "T", "v": "T"}

        def declared(name):
            if name not in self.inputs:
                return ""
            array = self.inputs[name]
            element = {"int32": INT32, "float32": FLOAT}.get(array.dtype.name, self.type)
            if name.endswith("cache"):
                element = self.cache_element
            return g.input(name, element, [symbols.get(name, array.shape[0]), *array.shape[1:]])

        order = ("q", "k", "v", "key_cache", "value_cache", "starts", "past", "table", "cos", "sin")
        order += ("slots", "sinks", "norm_q", "norm_k", "k_scale", "v_scale")
        names = [declared(name) for name in order]
        while not names[-1]:
            names.pop()
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads} | self.options
        if self.rotary:
            attributes["do_rotary"] = 1
        if self.norms:
            attributes["qk_norm_epsilon"] = 1e-3
        if self.format:
            attributes |= {"k_quant_type": self.granularity, "v_quant_type": self.granularity}
        g.node(
            "PagedAttention", names, outputs=["y", "keys", "values"], domain="com.microsoft",
            **attributes,
        )  # fmt: skip
        g.output("y", self.type, ["T", self.heads * self.size])
        for name in ("keys", "values"):
            g.output(name, self.cache_element, list(self.inputs["key_cache"].shape))
        return g.model(check=False)

    @property
    def cache_element(self):
        return self.format.element if self.format else self.type

    def expected(self):
        keys, values = (
            self.numbers(self.inputs[name]).reshape(-1, self.kv_heads, self.size)
            for name in ("key_cache", "value_cache")
        )
        rows, begin = [], 0
        for row, (past, fresh) in enumerate(zip(self.past, self.fresh, strict=True)):
            part = slice(begin, begin + fresh)
            begin += fresh
            q, k, v = (
                reference.split_heads(x[None, part].astype(np.float64), heads)
                for x, heads in (
                    (self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads),
                )
            )  # fmt: skip
            places = past + np.arange(fresh)
            if self.norms:
                weights = [self.inputs[name].astype(np.float64) for name in ("norm_q", "norm_k")]
                q, k = (normed(x, weight) for x, weight in zip((q, k), weights, strict=True))
            if self.rotary:
                tables = [self.inputs[n].astype(np.float64)[places][None] for n in ("cos", "sin")]
                q, k = (reference.rotate(x, *tables) for x in (q, k))
            seen = np.arange(past + fresh)
            slots = self.inputs["table"][row][seen // self.page] * self.page + seen % self.page
            for cache, fresh_heads in ((keys, k), (values, v)):
                stored = fresh_heads[0].swapaxes(0, 1)
                if self.format:
                    stored = self.numbers(self.format.quantize(stored, self.channels()))
                cache[slots[places]] = stored
            rows.append(self._attend(q[0], keys[slots], values[slots], places, seen))
        shape = self.inputs["key_cache"].shape
        return [np.concatenate(rows), keys.reshape(shape), values.reshape(shape)]

    def _attend(self, q, keys, values, places, seen):
        group = self.heads // self.kv_heads
        k, v = (np.repeat(x.swapaxes(0, 1), group, 0) for x in (keys, values))
        scores = q @ k.swapaxes(-1, -2) * self.options.get("scale", self.size**-0.5)
        if cap := self.options.get("softcap", 0):
            scores = cap * np.tanh(scores / cap)
        visible = seen <= places[:, None]
        if (window := self.options.get("local_window_size", -1)) > 0:
            visible &= seen > places[:, None] - window
        sinks = self.inputs["sinks"].astype(np.float64)[:, None, None] if self.sinks else None
        y = softmax_values(np.where(visible, scores, -np.inf), v, sinks)
        return y.swapaxes(0, 1).reshape(len(places), -1)

    def check(self, device="cpu"):
        session, report = session_with_report(self.model(), device, quiet())
        assert report.left_out == []
        y, *caches = tensors.run(session, self.inputs)
        results = [y.astype(np.float64), *map(self.numbers, caches)]
        for result, wanted in zip(results, self.expected(), strict=True):
            bound = BOUNDS[self.type]
            np.testing.assert_allclose(result, wanted, atol=bound, rtol=bound)


CASES = {
    "plain": Paged(),
    "bf16": Paged(type=BFLOAT16),
    "packed and turned": Paged(packed=True, rotary=True),
    "normed": Paged(rotary=True, norms=True, options={"scale": 0.3}),
    "sinks and a window": Paged(sinks=True, options={"local_window_size": 7}),
    "one token each": Paged(past=(3, 40, 0, 63), fresh=(1, 1, 1, 1), rotary=True, heads=8),
    "int8": Paged(codes="int8", options={"scale": 0.1}),
    "fp8 per channel": Paged(codes="fp8", granularity="PER_CHANNEL", type=BFLOAT16),
    "capped": Paged(options={"softcap": 2.0}, heads=2, size=64, page=32),
}


@pytest.mark.parametrize("name", CASES)
def test_paged_attention(name):
    CASES[name].check()


ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_paged_attention import CASES

    for name, case in CASES.items():
        case.check("gpu")
        print(name)
"""


def test_a_gpu_that_the_stub_driver_plays(request):
    text = ON_A_GPU.format(folder=str(request.path.parent))
    assert run_script(text).splitlines() == list(CASES)


def test_caches_in_place():
    case = CASES["packed and turned"]
    session, _ = session_with_report(case.model(), "cpu", quiet())
    values = {name: tensors.to_ort_value(array) for name, array in case.inputs.items()}
    binding = session.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    for name, cache in (("keys", "key_cache"), ("values", "value_cache")):
        binding.bind_ortvalue_output(name, values[cache])
    session.run_with_iobinding(binding)
    y, keys, _ = case.expected()
    bound = BOUNDS[case.type]
    np.testing.assert_allclose(binding.get_outputs()[0].numpy(), y, atol=bound, rtol=bound)
    np.testing.assert_allclose(values["key_cache"].numpy(), keys, atol=bound, rtol=bound)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"is_causal": 0}, "is_causal=0 is not supported"),
        ({"rotary_offset": 8}, "rotary_offset is not supported"),
        (
            {"k_quant_type": "PER_TENSOR"},
            "k_quant_type or v_quant_type is set, but the KV cache is not quantised",
        ),
    ],
)
def test_what_is_left_alone_says_why(options, reason):
    case = Paged(options=options)
    with pytest.raises(Exception, match=reason):
        session_with_report(case.model(), "cpu", quiet(), require_full_claim=True)
