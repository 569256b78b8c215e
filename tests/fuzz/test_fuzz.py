"""Some cases of the fuzzer with a fixed seed: no crash, no hang, no unexplained difference."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from .case import make_case
from .declarations import Declared
from .graph import Graph
from .judge import difference
from .plugin import needs_plugin
from .pool import judge_all

TREE = Path(__file__).resolve().parents[2]


def fuzz(*arguments: str, seconds: int = 480) -> subprocess.CompletedProcess:
    paths = [str(TREE), *sys.path]
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=TREE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@needs_plugin
def test_the_first_cases_find_nothing():
    """So many, and not so long: what a fast machine sees, a slow one sees too."""
    done = fuzz("--cases", "1500", "--seed", "19")
    told = done.stdout[-6000:] + done.stderr[-2000:]
    assert done.returncode == 0, told
    assert re.search(r"^fuzz: 1500 cases in .* 0 findings$", done.stdout, re.M), told


def test_a_case_follows_from_its_numbers():
    first, second = (make_case(7, 31) for _ in range(2))
    assert first.model == second.model
    assert [sorted(f) for f in first.feeds] == [sorted(f) for f in second.feeds]
    for a, b in zip(first.feeds, second.feeds, strict=True):
        assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert make_case(7, 32).model != first.model


def test_declarations_lie_now_and_then():
    g = Graph(np.random.default_rng(0))
    drawn = {Declared.draw(g) for _ in range(400)}
    assert {d.outputs for d in drawn} == {"nothing", "truth", "stale", "names"}
    assert {"clashing", "rankless", "numbers"} <= {d.inputs for d in drawn}


def test_differences_are_seen():
    a = np.linspace(-1, 1, 32, dtype=np.float32)
    assert difference(a, a + np.float32(1e-7), 1, 0.0) == ""
    assert "differ" in difference(a, a * np.float32(1.01), 1, 0.0)
    assert "shape" in difference(a, a[:-1], 1, 0.0)
    assert "differ" in difference(np.where(a > 0, np.nan, a), a, 1, 0.0)
    assert "integers" in difference(np.arange(4), np.array([0, 1, 2, 4]), 1, 0.0)


def test_a_heap_that_a_case_broke_is_seen_when_its_worker_leaves():
    """Nothing else happens after the last case: nobody would trip over it."""

    def judge(number: int, entering_tenon) -> dict:
        if number == 1:
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            blocks = [libc.malloc(ctypes.c_size_t(1000)) for _ in range(2)]
            for block in blocks:
                libc.free(ctypes.c_void_p(block))
            ctypes.memset(blocks[1], 77, 8)
        return {"state": "same"}

    whole = list(judge_all(iter([0, 2]), judge, 1))
    assert [answer.case for answer in whole] == [0, 2]
    *answered, died = judge_all(iter([0, 1]), judge, 1)
    assert all(answer.result for answer in answered)
    assert died.result is None
    assert (died.leaving, died.case, died.before) == (True, 1, (0,))
    assert "signal" in died.how


def test_reading_past_a_guarded_array_ends_the_process():
    program = (
        "import ctypes, numpy as np; from tests.fuzz.guarded import GuardedArrays;"
        "a = GuardedArrays().copy(np.arange(5, dtype=np.int32)); print(a.sum(), flush=True);"
        "ctypes.string_at(a.ctypes.data + a.nbytes, 1)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=TREE, capture_output=True, text=True)
    assert done.stdout.strip() == "10"
    assert done.returncode < 0
