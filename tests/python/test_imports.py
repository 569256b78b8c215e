"""Modules of the package import each other one way: no circle, also not inside of functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnxruntime_ep_tenon
import pytest

PACKAGE = Path(onnxruntime_ep_tenon.__file__).parent
LAYERS = ("commands", "bench", "drawing", "")  # each may import those behind it, and models
SLOW = ("onnx", "onnxruntime", "matplotlib", "torch")  # to import

Imports = dict[str, set[str]]


def modules_under(folder: Path) -> dict[str, Path]:
    """Files by the name that Python knows them by; a package by that of its folder."""
    found = {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    # Path.rglob does not follow links, and models is one in the source tree.
    if (models := folder / "models").is_symlink():
        prefix = f"{folder.name}.models"
        for name, path in modules_under(models.resolve()).items():
            found[prefix + name.removeprefix(models.resolve().name)] = path
    return found


def imported_names(name: str, path: Path) -> Iterator[str]:
    """What the file's imports name, at its top or inside of functions, most exact first."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def import_graph(modules: Mapping[str, Path]) -> Imports:
    """The modules that each imports; a name that is none is an attribute of the one before it."""
    graph: Imports = {}
    for name, path in modules.items():
        graph[name] = set()
        for imported in imported_names(name, path):
            module = imported if imported in modules else imported.rpartition(".")[0]
            if module in modules:
                graph[name].add(module)
    return graph


def find_circle(graph: Imports) -> list[str]:
    """Names from one module back to itself; empty: there is no circle."""
    done: set[str] = set()

    def search(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for imported in sorted(graph[name]):
            if circle := search(imported, [*path, name]):
                return circle
        done.add(name)
        return []

    return next((circle for name in sorted(graph) if (circle := search(name, []))), [])


def layer_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") > 1 else ""


@pytest.fixture(scope="module")
def graph() -> Imports:
    return import_graph(modules_under(PACKAGE))


def test_every_kind_of_import_is_seen(graph):
    bench = graph["onnxruntime_ep_tenon.commands.bench"]
    assert "onnxruntime_ep_tenon.console" in bench  # from .. import console
    assert "onnxruntime_ep_tenon.bench.measure" in bench  # from ..bench.measure import Timing
    assert "onnxruntime_ep_tenon.bench.suites" in bench  # inside of a function
    assert "onnxruntime_ep_tenon.session" in graph["onnxruntime_ep_tenon"]
    assert "onnxruntime_ep_tenon.models.builder" in graph["onnxruntime_ep_tenon.models.mlp"]


def test_a_circle_is_named(tmp_path):
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from .. import first\n")
    (package / "first.py").write_text("def late():\n    from .second import name\n")
    (package / "second.py").write_text("import package.inner\n")
    names = ["package.first", "package.second", "package.inner", "package.first"]
    assert find_circle(import_graph(modules_under(package))) == names


def test_there_is_no_circle(graph):
    circle = find_circle(graph)
    assert not circle, f"a circle of imports: {' -> '.join(circle)}"


def test_imports_go_down_the_layers(graph):
    """__main__ finds its commands by name."""
    wrong = [
        f"{name} imports {imported}"
        for name, imports in graph.items()
        for imported in imports
        if layer_of(name) in LAYERS and layer_of(imported) in LAYERS
        if LAYERS.index(layer_of(name)) > LAYERS.index(layer_of(imported))
    ]
    wrong += [
        f"{name} imports {imported}"
        for name, imports in graph.items()
        if layer_of(name) == "models"
        for imported in imports
        if layer_of(imported) != "models"
    ]
    assert not wrong


def test_help_waits_for_no_large_package():
    program = (
        "import sys; from onnxruntime_ep_tenon.__main__ import command_parser; command_parser();"
        f"print([name for name in {SLOW} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stderr
