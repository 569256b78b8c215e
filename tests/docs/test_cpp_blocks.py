"""The C++ that pages for contributors show compiles against the tree's headers."""

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDENTED_BLOCK = re.compile(r"^ +```cpp\n(.*?)^ +```", re.S | re.M)

# What stands around the blocks of a page, in their order.
SURROUNDINGS = {
    "adding_a_backend.md": """
#include "kernels/planning/library_call.h"
#include "kernels/planning/lowered.h"
namespace tenon::kernels {
%s
void FastGemm::enqueue(void*, std::span<void* const>, std::span<const int64_t>) const {}
Lowered lower(std::shared_ptr<const FastGemm> call, ir::ValueId x, ir::ValueId y,
              BufferArgument weights, Dim bytes, Dim rows) {
%s
  return lowered;
}
}  // namespace tenon::kernels
""",
}


@pytest.mark.parametrize("page", SURROUNDINGS)
def test_blocks_compile(page, tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    blocks = INDENTED_BLOCK.findall((ROOT / "docs" / page).read_text())
    source = tmp_path / "page.cc"
    source.write_text(SURROUNDINGS[page] % tuple(textwrap.dedent(block) for block in blocks))
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}"]
    built = subprocess.run([compiler, *flags, source], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[:4000]
