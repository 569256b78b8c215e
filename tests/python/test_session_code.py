"""How much code opening a small network generates: what a session costs is LLVM's time for it.

The text of each kernel by itself, as dump_dir shows it; that some share loops comes on top.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from graph_text import read_text
from onnxruntime_ep_tenon import create_session
from onnxruntime_ep_tenon.provider_sessions import session_options

FOLDER = Path(__file__).with_name("exported")
# Kernels, and instructions that LLVM generates code from, by AVX-512 and by AVX2 at most.
MOST = {"bert.dynamo23": (25, 5400), "wav2vec2.dynamo23": (33, 6000)}


def instructions(text: str) -> int:
    return sum(
        line.startswith("  ") and not line.lstrip().startswith(";") for line in text.split("\n")
    )


@pytest.mark.plugin
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other vectors take other code")
@pytest.mark.parametrize("name", MOST)
def test_a_small_network_stays_small(name, tmp_path):
    model = read_text((FOLDER / f"{name}.txt").read_text()).model
    create_session(model, "cpu", session_options(1), dump_dir=str(tmp_path))
    texts = [path.read_text() for path in tmp_path.rglob("*.llvm.optimized.txt")]
    kernels, code = MOST[name]
    assert 0 < len(texts) <= kernels
    assert sum(map(instructions, texts)) <= code
