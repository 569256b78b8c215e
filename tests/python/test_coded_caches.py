"""Caches of codes (int8, fp8, 4 bits): one node against float64 and the stock provider, then whole
decoders and token loops."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from attention_inputs import runtime_knows
from onnxruntime_ep_tenon import create_session, tensors
from onnxruntime_ep_tenon.bench.attention_cases import AttentionCase
from onnxruntime_ep_tenon.bench.attention_meter import AttentionBench
from onnxruntime_ep_tenon.genai_folder import GenaiFolder
from onnxruntime_ep_tenon.generation import TokenLoop, generate
from onnxruntime_ep_tenon.models import decoder, reference
from onnxruntime_ep_tenon.models.builder import FLOAT, FLOAT16, INT32, GraphBuilder
from onnxruntime_ep_tenon.models.cache_formats import CACHE_FORMATS
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_reference import ReferenceDecoder
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import run_script
from test_random_attention import softmax_values
from test_session import quiet

GRANULARITIES = ("PER_TENSOR", "PER_CHANNEL")
NUMPY = {FLOAT: np.float32, FLOAT16: np.float16}
BOUNDS = {FLOAT: 2e-5, FLOAT16: 4e-3}
EXAMPLE = Path(__file__).parents[2] / "examples/python/generate.py"


pytestmark = [
    pytest.mark.plugin,
    pytest.mark.skipif(
        not runtime_knows("GroupQueryAttention", "kv_cache_bit_width"),
        reason="this runtime knows no caches of codes",
    ),
]


@dataclass
class Node:
    """One GroupQueryAttention over caches of codes that keep their size, with inputs."""

    codes: str
    keys: str = "PER_TENSOR"
    values: str = "PER_TENSOR"
    type: int = FLOAT
    rotary: bool = False
    batch: int = 2
    queries: int = 1
    rows: int = 19
    heads: int = 4
    kv_heads: int = 2
    size: int = 16

    def __post_init__(self):
        self.format = CACHE_FORMATS[self.codes]
        self.random = np.random.default_rng(len(self.codes) + self.queries)
        drawn = (self.kv_heads, self.size)
        self.scales = [
            self.format.scales(*drawn, kind, seed)
            for seed, kind in enumerate((self.keys, self.values))
        ]
        # Turns by quarters are exact, so that every code is decided.
        quarters = self.random.integers(0, 4, (self.rows, self.size // 2))
        self.tables = [np.array([1, 0, -1, 0])[(quarters + shift) % 4] for shift in (0, 3)]
        self.inputs = self._draw()

    def _floats(self, heads):
        shape = (self.batch, self.queries, heads * self.size)
        return self.random.standard_normal(shape).astype(NUMPY[self.type])

    def _draw(self):
        lengths = self.random.integers(self.queries - 1, self.rows, self.batch).astype(np.int32)
        lengths[0] = self.rows - 1
        shape = (self.batch, self.kv_heads, self.rows, self.size)
        behind = (np.arange(self.rows) > lengths[:, None])[:, None, :, None]
        past = [
            np.where(behind, 0, self.format.quantize(self.random.standard_normal(shape), scale))
            for scale in self.scales
        ]
        given = {
            "q": self._floats(self.heads),
            "k": self._floats(self.kv_heads),
            "v": self._floats(self.kv_heads),
            "past_k": past[0].astype(self.format.stored),
            "past_v": past[1].astype(self.format.stored),
            "lengths": lengths,
            "total": np.array([self.rows], np.int32),
        }
        if self.rotary:
            given |= {
                name: table.astype(NUMPY[self.type])
                for name, table in zip(("cos", "sin"), self.tables, strict=True)
            }
        return given | {"k_scale": self.scales[0], "v_scale": self.scales[1]}

    def model(self):
        g = GraphBuilder("coded", 21, ("com.microsoft",))
        cache = ["B", self.kv_heads, "P", self.format.width(self.size)]
        fresh = {name: ["B", "S", self.inputs[name].shape[-1]] for name in "qkv"}
        names = [g.input(name, self.type, shape) for name, shape in fresh.items()]
        names += [g.input(f"past_{x}", self.format.element, cache) for x in "kv"]
        names += [g.input("lengths", INT32, ["B"]), g.input("total", INT32, [1])]
        tables = [
            g.input(name, self.type, list(table.shape)) if self.rotary else ""
            for name, table in zip(("cos", "sin"), self.tables, strict=True)
        ]
        scales = [
            g.input(f"{x}_scale", FLOAT, list(scale.shape))
            for x, scale in zip("kv", self.scales, strict=True)
        ]
        g.node(
            "GroupQueryAttention", [*names, *tables, "", "", "", *scales],
            outputs=["y", "present_k", "present_v"], domain="com.microsoft",
            num_heads=self.heads, kv_num_heads=self.kv_heads, do_rotary=int(self.rotary),
            **self.format.attributes(self.keys, self.values),
        )  # fmt: skip
        g.output("y", self.type, ["B", "S", self.heads * self.size])
        for name in ("present_k", "present_v"):
            g.output(name, self.format.element, cache)
        return g.model(check=False)

    def expected(self):
        given = self.inputs
        positions = given["lengths"][:, None] + 1 - self.queries + np.arange(self.queries)
        q, k, v = (
            reference.split_heads(given[name].astype(np.float64), heads)
            for name, heads in zip("qkv", (self.heads, self.kv_heads, self.kv_heads), strict=True)
        )
        if self.rotary:
            angles = [table[positions].astype(np.float64) for table in self.tables]
            q, k = (reference.rotate(x, *angles) for x in (q, k))
        presents, numbers = [], []
        for name, fresh, scale in zip("kv", (k, v), self.scales, strict=True):
            present = given[f"past_{name}"].copy()
            for row, at in enumerate(positions):
                present[row][:, at] = self.format.quantize(fresh[row : row + 1], scale)[0]
            presents.append(present)
            wide = self.format.dequantize(present, scale)
            numbers.append(np.repeat(wide, self.heads // self.kv_heads, 1))
        scores = self.size**-0.5 * (q @ numbers[0].swapaxes(-1, -2))
        seen = np.arange(self.rows) <= positions[:, None, :, None]
        y = softmax_values(np.where(seen, scores, -np.inf), numbers[1])
        return [reference.join_heads(y), *presents]

    def check(self, results, bound):
        y, *presents = self.expected()
        np.testing.assert_allclose(results[0].astype(np.float64), y, atol=bound, rtol=bound)
        for result, present in zip(results[1:], presents, strict=True):
            assert result.tobytes() == present.tobytes()


def nodes():
    for codes in CACHE_FORMATS:
        for at, type in enumerate(NUMPY):
            yield Node(codes, GRANULARITIES[at], GRANULARITIES[at], type, rotary=True)
            yield Node(codes, GRANULARITIES[1 - at], GRANULARITIES[at], type, queries=6)
            yield Node(codes, "PER_CHANNEL", "PER_CHANNEL", type, kv_heads=4, size=64, rotary=True)


@pytest.mark.parametrize(
    "node", list(nodes()), ids=lambda n: f"{n.codes}-{n.type}-{n.queries}-{n.size}"
)
def test_one_node(node):
    session, report = session_with_report(
        node.model(), "cpu", quiet(), claim="all", require_full_claim=True
    )
    assert report.kinds() >= {"attention"}
    node.check(tensors.run(session, node.inputs), BOUNDS[node.type])


@pytest.mark.parametrize("codes", ["int8", "int4"])
@pytest.mark.parametrize("kind", GRANULARITIES)
def test_the_stock_provider_reads_and_writes_the_same_codes(codes, kind):
    node = Node(codes, kind, kind, rotary=True)
    try:
        session = onnxruntime.InferenceSession(
            node.model().SerializeToString(), quiet(), providers=["CPUExecutionProvider"]
        )
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        pytest.skip("this runtime's CPU provider has no caches of codes")
    # It may round queries and probabilities, too.
    node.check(tensors.run(session, node.inputs), 3e-2)


ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_coded_caches import BOUNDS, nodes, tensors
    from onnxruntime_ep_tenon.report import session_with_report

    for node in nodes():
        session, report = session_with_report(node.model(), "gpu")
        assert report.left_out == []
        node.check(tensors.run(session, node.inputs), BOUNDS[node.type])
        print("ok")
"""


def test_one_node_on_a_gpu_that_the_stub_driver_plays(request):
    text = ON_A_GPU.format(folder=str(request.path.parent))
    assert run_script(text).split() == ["ok"] * len(list(nodes()))


# A key near the edge between two codes falls on either side of it, by how its product was summed.
DECODER_BOUNDS = {"int8": 0.02, "fp8": 0.04, "int4": 0.1}
CONFIG = ARCHITECTURES["llama"]


def check_decoder(name, codes, activations, device):
    config = ARCHITECTURES[name]
    spelling = Spelling("genai", activations, activations, cache=codes)
    session, report = session_with_report(decoder.build_decoder(config, spelling), device, quiet())
    assert report.left_out == []
    judge = ReferenceDecoder(config, spelling, SeededWeights())
    names = [output.name for output in session.get_outputs()]
    random = np.random.default_rng(1)
    caches = decoder.inputs_for(config, spelling, 2, 1, past=0)
    past = 0
    for length in (7, 1, 1, 2, 1):
        ids = random.integers(0, config.vocabulary, (2, length))
        feed = caches | decoder.step_inputs(spelling, ids, past)
        results = dict(zip(names, tensors.run(session, feed), strict=True))
        wanted = judge.step(ids)
        error = np.sqrt(np.mean(np.square(results["logits"] - wanted)) / np.mean(np.square(wanted)))
        assert error < DECODER_BOUNDS[codes], (past, error)
        past += length
        caches = decoder.renamed_caches(results)


@pytest.mark.parametrize("codes", CACHE_FORMATS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_decoder(name, codes):
    check_decoder(name, codes, "f32", "cpu")


DECODERS_ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_coded_caches import CACHE_FORMATS, check_decoder

    for codes in CACHE_FORMATS:
        check_decoder({name!r}, codes, "f16", "gpu")
        print(codes)
"""


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt_oss"])
def test_a_decoder_on_a_gpu_that_the_stub_driver_plays(name, request):
    text = DECODERS_ON_A_GPU.format(folder=str(request.path.parent), name=name)
    assert run_script(text).split() == list(CACHE_FORMATS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    made = {}
    for codes in CACHE_FORMATS:
        made[codes] = tmp_path_factory.mktemp(codes)
        spelling = Spelling("genai", "int4", "f32", cache=codes)
        decoder.write_decoder(made[codes], CONFIG, spelling, SeededWeights())
    return made


@pytest.mark.parametrize("codes", CACHE_FORMATS)
def test_a_token_loop_with_one_buffer_for_each_cache(folders, codes):
    told = GenaiFolder.load(folders[codes])
    session = create_session(told.model, "cpu", quiet())

    def tokens(**settings):
        return list(generate(TokenLoop(session, told, **settings), (1, 2, 3, 4), 10))

    assert told.shares_cache
    handed_on = tokens(share_cache=False)
    assert tokens() == handed_on
    assert tokens(max_length=40, fixed_mask=True) == handed_on


TIMED = AttentionCase(2, 1, 40, heads=4, kv_heads=2, head_size=32)


@pytest.mark.parametrize("codes", CACHE_FORMATS)
def test_what_is_timed_is_right(codes, tmp_path):
    measured = AttentionBench(tmp_path, 3, "cpu").measure(replace(TIMED, cache=codes))
    assert measured.tenon > 0 and 0 < measured.error <= 1


def test_timed_bytes_count_codes():
    numbers, eight, four = (replace(TIMED, cache=codes).bytes for codes in ("", "int8", "int4"))
    assert numbers - eight == 2 * (eight - four) == 2 * 2 * 40 * 32 * 2


LOOP_ON_A_GPU = """
    import sys
    sys.path.insert(0, {folder!r})
    from test_coded_caches import GenaiFolder, TokenLoop, create_session, generate

    told = GenaiFolder.load({model!r})
    for device, settings in (("cpu", {{}}), ("gpu", {{}}), ("gpu", {{"enable_cuda_graph": 1}})):
        session = create_session(told.model, device, **settings)
        loop = TokenLoop(session, told, max_length=40, fixed_mask=bool(settings))
        print(*generate(loop, (1, 2, 3, 4), 8))
"""


@pytest.mark.parametrize("codes", CACHE_FORMATS)
def test_a_token_loop_on_a_gpu_that_the_stub_driver_plays(codes, tmp_path, request):
    spelling = Spelling("genai", "int4", "f16", cache=codes)
    decoder.write_decoder(tmp_path, CONFIG, spelling, SeededWeights())
    text = LOOP_ON_A_GPU.format(folder=str(request.path.parent), model=str(tmp_path))
    host, gpu, captured = run_script(text).splitlines()
    assert len(host.split()) == 8
    assert gpu == captured == host


@pytest.mark.parametrize("codes", CACHE_FORMATS)
def test_the_example_and_the_command(codes, tmp_path):
    arguments = ["--preset", "tiny-llama", "--weights", "int4", "--cache", codes]
    command = [sys.executable, "-m", "onnxruntime_ep_tenon", "models", "decoder", *arguments]
    subprocess.run([*command, "--out", str(tmp_path), "--json"], check=True, capture_output=True)
    heads = json.loads((tmp_path / "genai_config.json").read_text())["model"]["decoder"]
    assert heads["num_key_value_heads"] > 0
    if not EXAMPLE.is_file():
        pytest.skip("the examples are not beside the tests")
    made = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path, "--tokens", "1,2,3", "--count", "5", "--device", "cpu"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "tokens/s" in made.stdout + made.stderr
