"""What the documents show must work: the README's snippet, and every relative link."""

import re
from pathlib import Path

import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


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
    onnx.save(build_scaled_dot("nvfp4", Problem(n=32, k=64)), tmp_path / "model.nvfp4.onnx")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet(), "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("(2, 32) ['TenonExecutionProvider'")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document):
    targets = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in targets if not (document.parent / link).exists()] == []
