"""What the documents show must work: the README's snippet, installing, and every relative link."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.__main__ import main
from onnxruntime_ep_tenon.models import encoder
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
SOURCE = re.compile(r"`((?:base|codegen|graph_partitioner|kernels|models|provider|tests)/[^`\s]+)`")


def snippet() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return code


def test_the_snippet_is_seven_lines():
    assert len(snippet().splitlines()) == 7


def test_the_snippet_runs(tmp_path, monkeypatch, capsys):
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))
    demo = tmp_path / "build" / "demo"  # as `make demo` writes it, smaller
    demo.mkdir(parents=True)
    plain = encoder.build_encoder(shape=encoder.SMALL)
    onnx.save(quantize_model(plain, "nvfp4", embeddings=True)[0], demo / "encoder.nvfp4.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet(), "README.md", "exec"), {})
    width = encoder.SMALL.hidden
    assert capsys.readouterr().out.startswith(f"(2, {width}) ['TenonExecutionProvider'")


def test_a_plain_session_hides_an_error_unless_made_as_the_options_page_says(tmp_path, monkeypatch):
    try:
        device = next(d for d in tenon.devices() if d.ep_metadata["tenon_target"] == "cpu")
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "options.md").read_text(), re.S)
    (code,) = (block for block in blocks if "enable_fallback" in block)
    onnx.save(build_scaled_dot("plain", Problem(n=32, k=64)), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)

    def settings(**options):
        made = onnxruntime.SessionOptions()
        made.add_provider_for_devices([device], options)
        return made

    names = {"onnxruntime": onnxruntime, "settings": settings()}
    exec(code, names)
    assert names["session"].get_providers()[0] == "TenonExecutionProvider"
    names["settings"] = settings(no_such_option="1")
    with pytest.raises(Exception, match="no_such_option"):
        exec(code, names)
    hidden = onnxruntime.InferenceSession("model.onnx", settings(no_such_option="1"))
    assert hidden.get_providers() == ["CPUExecutionProvider"]


def block(page: str, language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    return code


@pytest.fixture
def model_folder(tmp_path):
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))
    onnx.save(build_scaled_dot("nvfp4", Problem(n=32, k=64)), tmp_path / "model.nvfp4.onnx")
    return tmp_path


def test_the_plugin_installs_into_plain_onnxruntime_as_the_page_says(model_folder):
    """In a process that has never heard of our package."""
    (model_folder / "app.py").write_text(block("install.md", "python"))
    ran = subprocess.run(
        [sys.executable, "app.py", tenon.get_library_path()],
        cwd=model_folder, env={**os.environ, "TENON_DRIVER_LIBRARY": "no driver"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    devices, result = ran.stdout.splitlines()
    assert "'tenon_target': 'cpu'" in devices
    assert result.startswith("(2, 32) ['TenonExecutionProvider'")


def test_models_are_shipped_as_the_page_says(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder)
    onnx.save(build_scaled_dot("int4", Problem(n=32, k=64)), "model.onnx")
    for line in next(b for b in shell_blocks("shipping.md") if "compile" in b).splitlines():
        assert main(shlex.split(line, comments=True)[1:]) == 0
    opening, compiling = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "shipping.md").read_text(), re.S
    )
    device = next(d for d in tenon.devices() if d.ep_metadata["tenon_target"] == "cpu")
    (model_folder / "model_ctx.onnx").unlink()
    exec(compiling, {"onnxruntime": onnxruntime, "device": device})
    (model_folder / "model.onnx").unlink()
    names = {"onnxruntime_ep_tenon": tenon}
    exec(opening, names)
    assert names["session"].get_providers()[0] == "TenonExecutionProvider"


def test_the_plugin_installs_into_a_cmake_project_as_the_page_says(model_folder):
    (runtime,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    release = model_folder / "onnxruntime"  # laid out like an unpacked release
    (release / "lib").mkdir(parents=True)
    (release / "lib" / "libonnxruntime.so").symlink_to(runtime)
    (release / "lib" / "libonnxruntime.so.1").symlink_to(runtime)
    headers = ROOT / ".deps" / "onnxruntime-headers"
    if not headers.is_dir() or not shutil.which("cmake"):
        pytest.skip("needs cmake and the headers that `make setup` brings")
    (release / "include").symlink_to(headers.resolve())
    (model_folder / "CMakeLists.txt").write_text(block("install.md", "cmake"))
    (model_folder / "main.cc").write_text(block("install.md", "cpp"))
    build, run = [b for b in shell_blocks("install.md") if "cmake -B" in b][0].splitlines()
    commands = build.replace("/opt/onnxruntime", str(release)) + "\n"
    commands += run.replace("/absolute/path/libonnxruntime_ep_tenon.so", tenon.get_library_path())
    ran = subprocess.run(
        ["bash", "-ec", commands], cwd=model_folder,
        env={**os.environ, "TENON_DRIVER_LIBRARY": "no driver"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("64 numbers\n")


def shell_blocks(page: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)


def test_nothing_names_a_package_that_is_not_published():
    """`onnxruntime-ep-tenon` is the name of our wheel; no index has it."""
    places = [*DOCUMENTS, ROOT / "python" / "README.md"]
    for folder in ("python", "models", "examples", "scripts"):
        places += (
            file for kind in ("py", "md", "sh") for file in ROOT.glob(f"{folder}/**/*.{kind}")
        )
    for folder in ("base", "codegen", "graph_partitioner", "kernels", "provider"):
        places += (
            file for kind in ("cc", "h", "md") for file in ROOT.glob(f"{folder}/**/*.{kind}")
        )
    assert ROOT / "python/onnxruntime_ep_tenon/commands/doctor.py" in places
    # The wheel's file name is written with underscores, the package of an index with hyphens.
    unpublished = re.compile(r"pip\s+install[^`]{0,80}?onnxruntime-ep-tenon")
    assert [str(place) for place in places if unpublished.search(place.read_text())] == []


def test_provider_options_on_the_page_of_perf_test_exist():
    """The tool itself is in no package; the page was tried by hand."""
    page = (ROOT / "docs" / "perf_test.md").read_text()
    given = re.findall(r'--plugin_ep_options "([^"]+)"', page)
    keys = {key for text in given for key in re.findall(r"(\w+)\\\|", text)}
    known = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "options.md").read_text(), re.M))
    assert len(keys) >= 3 and keys <= known


def test_the_readme_and_the_page_install_alike():
    (readme,) = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (line,) = [line for line in readme.splitlines() if line.startswith("pip install")]
    command = line.split("  #")[0].strip()
    assert command in shell_blocks("install.md")[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    targets = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in targets if not (document.parent / link).exists()] == []


def sources_named_in(text: str) -> list[str]:
    """Paths between backticks; `ir.{h,cc}` are two."""
    named = []
    for path in SOURCE.findall(text):
        stem, brace, rest = path.partition("{")
        named += [stem + end for end in rest.rstrip("}").split(",")] if brace else [path]
    return named


@pytest.mark.parametrize("page", ["compiler.md", "adding_a_format.md"])
def test_named_sources_are_there(page):
    named = sources_named_in((ROOT / "docs" / page).read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_what_the_compiler_page_shows_can_be_made(tmp_path):
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))
    page = (ROOT / "docs" / "compiler.md").read_text()
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.S)
    commands = commands.replace("python -c", f"{sys.executable} -c")
    commands = commands.replace(
        "tenon explain", f"{sys.executable} -m onnxruntime_ep_tenon explain"
    )
    environment = {**os.environ, "TENON_DRIVER_LIBRARY": "no driver"}
    result = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "kernel for    rank  config" in result.stdout

    dump = tmp_path / "dump" / "tenon_0"
    shown = set(re.findall(r"`((?:\d\d|pipelined_dot_\d)\.[\w.]+\.txt)`", page))
    assert len(shown) >= 4
    assert [name for name in shown if not (dump / name).is_file()] == []
    (fused,) = re.findall(r"^%y: .*ScaledDot.*$", page, re.M)
    (last_pass,) = dump.glob("*.separate_outputs.graph.txt")
    assert fused in last_pass.read_text()
    kernels = {name.split(".")[0] for name in shown if name.startswith("pipelined_dot")}
    for kernel in kernels:
        assert "registers" in (dump / f"{kernel}.tile.layouts.txt").read_text()


@pytest.fixture
def command_line():
    try:
        tenon.get_library_path()
    except tenon.LibraryNotFoundError as error:
        pytest.skip(str(error))

    def run(line: str, folder: Path) -> str:
        line = re.sub(r"\bpython (?=examples)", f"{sys.executable} {ROOT}/", line)
        line = re.sub(r"^tenon ", f"{sys.executable} -m onnxruntime_ep_tenon ", line)
        ran = subprocess.run(
            ["bash", "-ec", line], cwd=folder, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, line + ran.stdout + ran.stderr
        return ran.stdout

    return run


def test_what_the_page_on_decoders_shows_runs(tmp_path, command_line):
    """As it stands there, but for the size of the model."""
    page = (ROOT / "docs" / "decoders.md").read_text()
    (block,) = [b for b in re.findall(r"```\n(.*?)```", page, re.S) if b.startswith("tenon models")]
    write, generate = block.replace("llama-8b", "tiny-llama").strip().splitlines()
    command_line(write, tmp_path)
    assert len(command_line(generate, tmp_path).split()) == 64


@pytest.mark.parametrize("page", ["decoders.md", "performance.md"])
def test_options_of_decoders_and_suites_exist(page, command_line, tmp_path):
    text = (ROOT / "docs" / page).read_text()
    known = command_line("tenon models decoder --help", tmp_path)
    known += command_line("tenon bench --help", tmp_path)
    for suite in re.findall(r"tenon bench --suite (\w+)", text):
        assert suite in known
    rows = re.findall(r"^\| (`--.*?) \|", text, re.M)
    options = {option for row in rows for option in re.findall(r"--[a-z-]+", row)}
    assert options and [option for option in sorted(options) if option not in known] == []
