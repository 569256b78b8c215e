"""Every command that README and docs show: run here, run by another test, or marked."""

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.__main__ import command_parser, main
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot
from onnxruntime_ep_tenon.provider_sessions import has_cuda_provider

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "python" / "README.md"]
PAGES += sorted(ROOT.glob("docs/*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
INLINE = re.compile(r"`([^`]+)`")
COMMANDS = "doctor|demo|explain|run|quantize|compile|tune|bench|models|perplexity"
TENON = re.compile(rf"(?:\.venv/bin/)?tenon ((?:{COMMANDS})\b.*)")

# Blocks of commands and code, by page and a word of theirs: who runs them, or what the page says
# that they need.
BLOCKS = {
    ("README.md", "make demo"): "needs: fresh clone on Debian 12",
    ("README.md", "create_session"): "test_docs.py",
    ("README.md", "make wheel"): "test_wheel.py",
    ("python/README.md", "pip install"): "test_wheel.py",
    ("python/README.md", "create_session"): "here",
    ("docs/adding_a_format.md", "rule.lowest"): "needs: The toy test",
    ("docs/compiler.md", "tenon explain"): "test_docs.py",
    ("docs/debugging.md", "report_file"): "here",
    ("docs/debugging.md", "dump_dir"): "here",
    ("docs/debugging.md", "TENON_STUB_SCRIPT"): "needs: built with the tests",
    ("docs/decoders.md", "tenon models"): "test_docs.py",
    ("docs/decoders.md", "onnxruntime_genai"): "needs: onnxruntime-genai",
    ("docs/distributed.md", "torchrun"): "needs: launcher",
    ("docs/distributed.md", "create_session"): "needs: launcher",
    ("docs/distributed.md", "--ranks auto"): "test_rank_examples.py",
    ("docs/distributed.md", "openssl rand"): "needs: Over several hosts",
    ("docs/distributed.md", "is outside"): "test_rank_faults.py",
    ("docs/formats.md", "export_models"): "needs: To make the files needs Model Optimizer",
    ("docs/install.md", "make wheel"): "test_wheel.py",
    ("docs/install.md", "--cross"): "needs: The other one is cross-built",
    ("docs/install.md", "register_execution_provider_library"): "test_docs.py",
    ("docs/install.md", "cmake_minimum_required"): "test_docs.py",
    ("docs/install.md", "#include"): "test_docs.py",
    ("docs/install.md", "cmake -B"): "test_docs.py",
    ("docs/options.md", "precision_mode"): "here",
    ("docs/options.md", "enable_fallback"): "test_docs.py",
    ("docs/perf_test.md", "onnxruntime_perf_test"): "needs: tried by hand",
    ("docs/performance.md", "export_models"): "needs: It needs torch",
    ("docs/sharding.md", "tenon ranks"): "test_ranks_command.py",
    ("docs/sharding.md", "local_kv_heads"): "test_rank_caches.py",
    ("docs/sharding.md", "--ranks 4"): "test_explain_ranks.py",
    ("docs/shipping.md", "onnxruntime_perf_test"): "needs: tried with the tool",
    ("docs/shipping.md", "tenon compile"): "test_docs.py",
    ("docs/shipping.md", "create_session"): "test_docs.py",
    ("docs/shipping.md", "ModelCompiler"): "test_docs.py",
    ("docs/tuning.md", "tune_file"): "test_tuned_sessions.py",
    ("docs/tuning.md", "record {"): "test_tuning_files.py",
    ("docs/tuning.md", "tenon tune llama"): "test_tune_command.py",
    ("docs/tuning.md", "tune --show"): "test_tuning_files.py",
    ("docs/tuning.md", "tune --fit"): "test_cost_fit.py",
}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    """Of code: not the output, graphs and tile programs that pages show as well."""
    shell = re.compile(r"^(tenon|make|pip|python3?|cmake|scripts/|onnxruntime_perf_test) ", re.M)
    found = BLOCK.findall(page.read_text())
    return [text for language, text in found if language or shell.search(text)]


def tenon_commands(page: Path) -> list[str]:
    """What follows `tenon`, in blocks and between backticks, without comments."""
    text = page.read_text()
    lines = [line for block in blocks(page) for line in block.splitlines()]
    spans = [span.replace("\n", " ") for span in INLINE.findall(BLOCK.sub("", text))]
    found = [TENON.match(line.strip()) for line in [*lines, *spans]]
    return [match[1].split("  #")[0].strip() for match in found if match]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_marked(page):
    listed = {word: how for (name, word), how in BLOCKS.items() if name == name_of(page)}
    for block in blocks(page):
        known = [how for word, how in listed.items() if word in block]
        assert known, f"{name_of(page)}: who runs this?\n{block}"
        tested, _, need = known[0].partition("needs: ")
        if need:
            assert need in " ".join(page.read_text().split()), f"the page does not say: {need}"
        elif tested != "here":
            assert list(ROOT.glob(f"tests/*/{tested}")), tested


# Texts may name a subcommand and an option of it, and leave the rest out.
OMITTED = ([], ["model.onnx"], ["model.onnx", "--format", "nvfp4"], ["--out", "folder"])


def understood(command: str) -> bool:
    words = shlex.split(command.replace("…", "1").replace("...", ""))
    for omitted in OMITTED:
        try:
            command_parser().parse_args([*words, *omitted])
        except SystemExit:
            continue
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_understood(page):
    assert [command for command in tenon_commands(page) if not understood(command)] == []


def test_pages_show_commands():
    """So that the tests above read something."""
    assert sum(len(tenon_commands(page)) for page in PAGES) > 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))
    onnx.save(build_scaled_dot("plain", Problem(n=32, k=64)), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ON_A_MODEL = sorted(
    {c for page in PAGES for c in tenon_commands(page) if re.search(r"\bmodel\.onnx\b", c)}
)


@pytest.mark.parametrize("command", ON_A_MODEL)
def test_commands_on_a_model_run(command, folder, capsys):
    """As they stand, but for the time that bench takes and what a product alone is claimed with."""
    words = shlex.split(command)
    more = {"bench": ["--seconds", "0.05"], "compile": ["--option", "claim=all"]}.get(words[0], [])
    absent = "cuda" in command and not has_cuda_provider()  # asked for, and cannot run
    assert main([*words, *more]) == int(absent), capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "word"), [key for key, how in BLOCKS.items() if how == "here"], ids=" ".join
)
def test_python_on_a_model_runs(page, word, folder):
    (code,) = [block for block in blocks(ROOT / page) if word in block]
    (value,) = tenon.create_session("model.onnx").get_inputs()
    inputs = {value.name: np.ones([2, 64], np.float32)}
    exec(code, {"onnxruntime_ep_tenon": tenon, "inputs": inputs})


def test_targets_and_scripts_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        text = page.read_text()
        named = re.findall(r"(?:`|^)make ([a-z-]+)\b", text, re.M)
        assert [target for target in named if target not in targets] == [], page
        scripts = re.findall(r"\bscripts/[\w.]+\.sh\b", text)
        assert [script for script in scripts if not (ROOT / script).exists()] == [], page
