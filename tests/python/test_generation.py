"""Token loops: caches bound and never copied, tokens as the float64 decoder chooses them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from attention_inputs import runtime_knows
from onnxruntime_ep_tenon.commands import perplexity
from onnxruntime_ep_tenon.genai_folder import GenaiFolder
from onnxruntime_ep_tenon.generation import Pace, TokenLoop, generate, greedy, sampler
from onnxruntime_ep_tenon.inputs import InputError
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_reference import ReferenceDecoder
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from test_gpu import stub_driver
from test_ranks import free_port
from test_session import quiet

PROMPT, COUNT = (1, 2, 3, 4), 12
CONFIG = ARCHITECTURES["gpt_oss"]
EXAMPLE = Path(__file__).parents[2] / "examples/python/generate.py"


def written(folder: Path, form: str) -> Path:
    spelling = Spelling(form, "int4", "f32")
    decoder.write_decoder(folder, CONFIG, spelling, SeededWeights())
    return folder


@pytest.fixture(scope="module")
def genai(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("genai"), "genai")


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("exported"), "unfused")


@pytest.fixture(scope="module")
def wanted() -> list[int]:
    reference = ReferenceDecoder(CONFIG, Spelling("genai", "int4", "f32"), SeededWeights())
    tokens, feed = [], [PROMPT]
    for _ in range(COUNT):
        tokens.append(greedy(reference.step(feed)[0, -1]))
        feed = [[tokens[-1]]]
    return tokens


def tokens_of(folder: Path, session=None, **settings) -> list[int]:
    told = GenaiFolder.load(folder)
    session = session or tenon.create_session(told.model, "cpu", quiet())
    return list(generate(TokenLoop(session, told, **settings), PROMPT, COUNT))


@pytest.mark.plugin
@pytest.mark.parametrize("share_cache", [True, False])
def test_genai_form(genai, wanted, share_cache):
    assert tokens_of(genai, share_cache=share_cache) == wanted


def with_windows(folder: Path, target: Path) -> Path:
    """As the builder of GenAI 0.18 writes it: caches of windowed layers hold the window only."""

    def say(config):
        config["model"]["decoder"]["sliding_window"] = {
            "window_size": CONFIG.window, "slide_key_value_cache": False, "slide_inputs": False,
            "layers": [0], "cache_slack": 1,
        }  # fmt: skip

    changed(folder, target, say)
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    for node in model.graph.node:
        window = [a.i for a in node.attribute if a.name == "local_window_size"]
        if window and window[0] > 0:
            node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    for value in [*model.graph.input, *model.graph.output]:
        if ".0." in value.name:
            length = value.type.tensor_type.shape.dim[2]
            length.dim_param = length.dim_param.replace("sequence", "sliding")
    for name in ("model.onnx", "model.onnx.data"):  # no links: weights lie beside their model
        (target / name).unlink()
        shutil.copyfile(folder / name, target / name)
    (target / "model.onnx").write_bytes(model.SerializeToString())
    return target


@pytest.mark.plugin
@pytest.mark.skipif(
    not runtime_knows("GroupQueryAttention", "sliding_window_cache"),
    reason="this onnxruntime has no caches of windows",
)
def test_caches_of_windows(genai, wanted, tmp_path, command):
    folder = with_windows(genai, tmp_path)
    for share_cache in (True, False):
        assert tokens_of(folder, share_cache=share_cache) == wanted
    ran = cpp_example(folder, ",".join(map(str, PROMPT)), COUNT)
    assert [int(token) for token in ran.stdout.split()] == wanted, ran.stderr
    told = command("run", folder)
    assert told.status == 0 and f"past_sliding_length={CONFIG.window + 1} (by sli" in told.out
    plan = json.loads(command("explain", folder, "--ranks", 2, "--json").out)["by_rank"][0]
    row = 2 * CONFIG.kv_heads * CONFIG.head_size * 4  # keys and values of a token
    assert plan["caches"]["bytes_per_token"] == row
    assert plan["caches"]["window_bytes"] == row * (CONFIG.window + 1)


@pytest.mark.plugin
def test_exported_form(exported, wanted):
    assert tokens_of(exported) == wanted


@pytest.mark.plugin
def test_a_mask_of_fixed_length(genai, wanted):
    assert tokens_of(genai, max_length=40, fixed_mask=True) == wanted


@pytest.mark.parametrize("share_cache", [True, False])
def test_another_provider(genai, wanted, share_cache):
    told = GenaiFolder.load(genai)
    session = onnxruntime.InferenceSession(
        str(told.model), quiet(), providers=["CPUExecutionProvider"]
    )
    assert tokens_of(genai, session, share_cache=share_cache) == wanted


@pytest.mark.plugin
@pytest.mark.parametrize("fixed_mask", [True, False])
def test_what_lies_behind_the_tokens_is_not_read(genai, wanted, fixed_mask):
    told = GenaiFolder.load(genai)
    session = tenon.create_session(told.model, "cpu", quiet())
    loop = TokenLoop(session, told, max_length=40, fixed_mask=fixed_mask)
    for cache in loop._caches.values():
        cache.update_inplace(np.full(cache.shape(), np.nan, np.float32))
    assert list(generate(loop, PROMPT, COUNT)) == wanted


@pytest.mark.plugin
def test_shared_caches_stay_where_they_are(genai):
    told = GenaiFolder.load(genai)
    loop = TokenLoop(tenon.create_session(told.model, "cpu", quiet()), told, max_length=16)
    before = {name: value.data_ptr() for name, value in loop._caches.items()}
    loop.step([PROMPT])
    loop.step([[5]])
    assert {name: value.data_ptr() for name, value in loop._caches.items()} == before


@pytest.mark.plugin
def test_rows_of_a_batch_do_not_mix(genai):
    told = GenaiFolder.load(genai)
    session = tenon.create_session(told.model, "cpu", quiet())
    rows = [[1, 2, 3], [4, 5, 6]]
    together = TokenLoop(session, told, batch=2)
    together.step(rows)
    second = together.step([[7], [8]])
    for row, last, logits in zip(rows, (7, 8), second, strict=True):
        alone = TokenLoop(session, told)
        alone.step([row])
        np.testing.assert_allclose(alone.step([[last]])[0], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.plugin
def test_it_ends_with_the_cache_and_at_an_end_token(genai, wanted):
    assert tokens_of(genai, max_length=len(PROMPT) + 3) == wanted[:4]
    told = GenaiFolder.load(genai)
    loop = TokenLoop(tenon.create_session(told.model, "cpu", quiet()), told)
    stop = wanted[4]
    made = list(generate(loop, PROMPT, COUNT, end_tokens=[stop]))
    assert made == wanted[: wanted.index(stop)]


@pytest.mark.plugin
@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([[96]], "token ids lie from 0 to 95"),
        ([[-1]], "token ids lie from 0 to 95"),
        ([[1], [2]], r"expected tokens of shape \[1, 1 or more\], got \[2, 1\]"),
        ([[1] * 129], "129 more are beyond max_length, 128"),
    ],
)
def test_impossible_tokens_are_refused(genai, ids, text):
    told = GenaiFolder.load(genai)
    loop = TokenLoop(tenon.create_session(told.model, "cpu", quiet()), told)
    with pytest.raises(InputError, match=text):
        loop.step(ids)


def changed(folder: Path, target: Path, change) -> Path:
    config = json.loads((folder / "genai_config.json").read_text())
    change(config)
    (target / "genai_config.json").write_text(json.dumps(config))
    for name in ("model.onnx", "model.onnx.data"):
        (target / name).symlink_to(folder / name)
    return target


def test_folders_that_are_none(tmp_path, genai):
    with pytest.raises(InputError, match="is no folder"):
        GenaiFolder.load(tmp_path / "absent")
    with pytest.raises(InputError, match="there is no genai_config.json in"):
        GenaiFolder.load(tmp_path)
    (tmp_path / "genai_config.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        GenaiFolder.load(tmp_path)
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(InputError, match="no 'model' object"):
        GenaiFolder.load(tmp_path)
    (tmp_path / "genai_config.json").write_text((genai / "genai_config.json").read_text())
    with pytest.raises(InputError, match="names model.onnx, which is not there"):
        GenaiFolder.load(tmp_path)


@pytest.mark.plugin
def test_names_that_the_model_does_not_have(genai, tmp_path):
    def more_layers(config):
        config["model"]["decoder"]["num_hidden_layers"] = 3

    told = GenaiFolder.load(changed(genai, tmp_path, more_layers))
    session = tenon.create_session(told.model, "cpu", quiet())
    with pytest.raises(InputError, match=r"no past_key_values.2.key among its inputs"):
        TokenLoop(session, told)


def test_sampling():
    logits = np.array([0.0, 5.0, 4.9, -3.0])
    assert sampler(0.0)(logits) == 1
    draws = {sampler(1.0, top_k=2, seed=seed)(logits) for seed in range(40)}
    assert draws == {1, 2}
    assert sampler(1.0, seed=3)(logits) == sampler(1.0, seed=3)(logits)


def test_pace():
    pace = Pace(5, 1.0, [3.0, 3.5, 4.0])
    assert pace.first_token_s == 2.0
    assert pace.tokens_per_second == 2.0
    assert "3 tokens after a prompt of 5" in str(pace)


def example(*arguments, **environment) -> subprocess.CompletedProcess:
    if not EXAMPLE.is_file():
        pytest.skip("the examples are not beside the tests")
    return run([sys.executable, EXAMPLE, *arguments], environment)


def run(command: list, environment: dict) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


@pytest.mark.plugin
def test_the_example_streams_tokens(genai, wanted):
    tokens = ",".join(map(str, PROMPT))
    ran = example(genai, "--tokens", tokens, "--count", COUNT, "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    assert [int(token) for token in ran.stdout.split()] == wanted
    assert "tokens/s" in ran.stderr


def test_the_example_says_what_is_wrong(genai, tmp_path):
    for given, text in (
        ((tmp_path, "--tokens", "1"), "there is no genai_config.json"),
        ((genai, "--prompt", "hello"), "give --tokens instead"),
        ((genai, "--tokens", "1000", "--device", "cpu"), "token ids lie from 0 to 95"),
    ):
        ran = example(*given)
        assert ran.returncode == 1
        assert text in ran.stderr and "Traceback" not in ran.stderr


def test_perplexity_tells_the_whole_problem_and_the_size(genai, command, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("what the runtime says " * 12 + "to its end\nand details")

    monkeypatch.setattr(perplexity, "create_session", refuse)
    monkeypatch.setattr(perplexity, "tokens_of", lambda *_: np.arange(40))
    (tmp_path / "text").write_text("text")
    told = command("perplexity", genai, "--text", tmp_path / "text")
    assert told.status == 1 and " 0 B" not in told.out
    assert told.out.splitlines()[-1].startswith(f"{genai}: what the runtime says")
    assert told.out.endswith("to its end\n")


@pytest.mark.plugin
def test_an_absent_rank_is_an_error_of_one_line(genai):
    tokens = ",".join(map(str, PROMPT))
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    alone["MASTER_PORT"] = str(free_port())
    given = ("--tokens", tokens, "--device", "cpu", "--ranks", "2", "--deadline-ms", "200")
    ran = example(genai, *given, **alone)
    assert ran.returncode == 1 and "rank 1 did not join within 200 ms" in ran.stderr
    assert "Traceback" not in ran.stderr and "--ranks 2: waiting for the others" in ran.stderr


def cpp_example(*arguments, **environment) -> subprocess.CompletedProcess:
    """The program that is built beside the plugin, with the runtime of this process."""
    plugin = Path(tenon.get_library_path()).resolve()
    program = plugin.parents[1] / "bin/generate"
    if not program.is_file():
        pytest.skip("examples/cpp/generate.cc is not built")
    runtime = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    return run([program, runtime, plugin, *arguments], environment)


@pytest.mark.plugin
@pytest.mark.parametrize("form", ["genai", "exported"])
def test_the_cpp_example_makes_the_same_tokens(form, wanted, request):
    folder = request.getfixturevalue(form)
    ran = cpp_example(folder, ",".join(map(str, PROMPT)), COUNT)
    assert ran.returncode == 0, ran.stderr
    assert [int(token) for token in ran.stdout.split()] == wanted
    assert "tokens/s" in ran.stderr


@pytest.mark.plugin
def test_the_cpp_example_says_what_is_wrong(genai, tmp_path):
    assert "there is no genai_config.json in" in cpp_example(tmp_path, "1").stderr
    assert "at least one token id" in cpp_example(genai, "none").stderr


@pytest.mark.plugin
@pytest.mark.parametrize("form", ["genai", "exported"])
def test_on_a_gpu_that_the_stub_driver_plays(form, wanted, request):
    folder = request.getfixturevalue(form)
    tokens = ",".join(map(str, PROMPT))
    driver = {"TENON_DRIVER_LIBRARY": str(stub_driver())}
    for ran in (
        example(folder, "--tokens", tokens, "--count", 4, "--device", "gpu", **driver),
        cpp_example(folder, tokens, 4, **driver),
    ):
        assert ran.returncode == 0, ran.stderr
        assert [int(token) for token in ran.stdout.split()] == wanted[:4]


INSIDE_GENAI = """
import sys
import onnxruntime_ep_tenon as tenon
import onnxruntime_genai as og

og.register_execution_provider_library(tenon.get_ep_name(), tenon.get_library_path())
parameters = og.GeneratorParams(model := og.Model(sys.argv[1]))
parameters.set_search_options(max_length=int(sys.argv[2]), do_sample=False)
generator = og.Generator(model, parameters)
generator.append_tokens([int(token) for token in sys.argv[3].split(",")])
while not generator.is_done():
    generator.generate_next_token()
    print(generator.get_next_tokens()[0])
"""


@pytest.mark.plugin
def test_inside_onnxruntime_genai(tmp_path):
    """In a format that no other provider on the host has kernels for."""
    pytest.importorskip("onnxruntime_genai")
    config, spelling = ARCHITECTURES["gemma2"], Spelling("genai", "nvfp4", "f32")
    decoder.write_decoder(tmp_path / "whole", config, spelling, SeededWeights())

    def name_tenon(config):
        only = {"device_filtering_options": {"hardware_device_type": "CPU"}}
        options = config["model"]["decoder"]["session_options"]
        options["provider_options"] = [{tenon.get_ep_name(): only}]

    folder = tmp_path / "named"
    folder.mkdir()
    changed(tmp_path / "whole", folder, name_tenon)
    length, prompt = len(PROMPT) + COUNT, ",".join(map(str, PROMPT))
    ran = run([sys.executable, "-c", INSIDE_GENAI, folder, length, prompt], {})
    assert ran.returncode == 0, ran.stderr
    assert [int(token) for token in ran.stdout.split()] == tokens_of(tmp_path / "whole")
