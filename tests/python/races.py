"""Launches that overlap must give the bits of launches one by one: random problems on a GPU, for
minutes. Not a test that pytest collects: `./run --races` of the bundle runs it.

    python races.py [--seconds 180] [--seed 1] [--only products,…] [--out FILE]

Each problem's bits are those of one Run without a CUDA graph, in a session of its own. They are
compared with Runs of a session that captures: one by one, back to back with no wait between them,
and from two threads at once. Outputs are poisoned before every Run that is looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.bench.attention_cases import AttentionCase
from onnxruntime_ep_tenon.bench.gpu_runs import host_ahead, run_options
from onnxruntime_ep_tenon.bindings import bind
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.attention_stack import AttentionStack
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, FORMS, Spelling
from onnxruntime_ep_tenon.models.product_stack import STACK_FORMATS, ProductStack
from onnxruntime_ep_tenon.provider_sessions import session_options
from onnxruntime_ep_tenon.session import create_session
from test_random_graphs import RandomGraph

TOKENS = (1, 1, 2, 3, 5, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 100, 128, 200, 256)
DEPTHS = (2880, 2048, 1536, 1024, 3072, 896, 5120, 5760, 4864, 3584, 2560, 7168, 1408, 960)
RUN_BYTES = 3e7  # of weights in a Run: several launches at once
WAITED, BACK_TO_BACK, OF_A_THREAD, THREADS = 8, 24, 8, 2


class Problem:
    """A model, the inputs of its Runs, and session options."""

    def __init__(self, name: str, model, inputs: dict[str, np.ndarray], **options):
        self.name, self.model, self.inputs, self.options = name, model, inputs, options


def products(random: np.random.Generator, folder: Path) -> Problem:
    """Independent products of one shape, which nothing orders."""
    form = str(random.choice(list(STACK_FORMATS)))
    m, k, n = (
        int(random.choice(TOKENS)),
        int(random.choice(DEPTHS)),
        64 * int(random.integers(1, 90)),
    )
    stack_bytes = STACK_FORMATS[form].weight_bytes(n, k)
    copies = int(np.clip(RUN_BYTES / stack_bytes, 2, 24))
    stack = ProductStack(folder, form, n, k, copies, int(random.integers(1 << 30)))
    inputs = stack.inputs(m)
    name = f"{form} m {m} n {n} k {k} copies {copies}"
    return Problem(name, str(stack.model(m)), inputs, **STACK_FORMATS[form].options)


def attentions(random: np.random.Generator, folder: Path) -> Problem:
    """Independent attentions over caches, of one token, a few or many."""
    kv_heads = int(random.choice((1, 2, 8)))
    case = AttentionCase(
        batch=int(random.choice((1, 2, 5))),
        queries=int(random.choice((1, 1, 1, 3, 16, 130))),
        keys=int(random.choice((160, 511, 1024, 3000))),
        head_size=int(random.choice((64, 128))),
        heads=kv_heads * int(random.choice((1, 4, 7))),
        kv_heads=kv_heads,
        element=str(random.choice(("f16", "bf16"))),
        cache=str(random.choice(("", "", "int8", "fp8", "int4"))),
    )
    case = replace(case, cache="" if case.element == "bf16" else case.cache)
    copies = min(case.copies, 6)
    stack = AttentionStack(_Copies(case, copies), int(random.integers(1 << 30)))
    inputs = {name: stack.fresh(name) for name in "qkv"} | stack.lengths()
    for number in range(copies):
        inputs |= {f"past_{x}{number}": stack.past(x, number) for x in "kv"}
    name = f"{case.name} queries {case.queries} heads {case.heads}/{case.kv_heads} copies {copies}"
    return Problem(name, str(stack.model(folder)), inputs)


class _Copies:
    """A case with another number of copies."""

    def __init__(self, case: AttentionCase, copies: int):
        self._case, self.copies = case, copies

    def __getattr__(self, name: str):
        return getattr(self._case, name)


def decoders(random: np.random.Generator, _: Path) -> Problem:
    """Layers with norms, merged products, attention with caches, a gated MLP: work that depends."""
    name = str(random.choice(list(ARCHITECTURES)))
    spelling = Spelling(
        str(random.choice(list(FORMS))), str(random.choice(("nvfp4", "int4", "f16"))), "f16"
    )
    head_size = int(random.choice((64, 128)))
    kv_heads = int(random.choice((1, 2)))
    config = replace(
        ARCHITECTURES[name],
        layers=int(random.integers(1, 5)),
        hidden=int(random.choice((512, 960, 1536, 2880))) // 64 * 64,
        heads=kv_heads * int(random.choice((2, 4))),
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=int(random.choice((512, 1408, 2880))) // 64 * 64,
        vocabulary=512,
        positions=256,
    )
    sizes = {
        "batch": int(random.choice((1, 1, 2, 16))),
        "sequence": int(random.choice((1, 1, 1, 5, 40))),
        "past": int(random.choice((7, 64, 100))),
    }
    inputs = decoder.inputs_for(config, spelling, **sizes, seed=int(random.integers(1 << 30)))
    text = f"{name} {spelling.form} {spelling.weights} hidden {config.hidden} {sizes}"
    return Problem(text, decoder.build_decoder(config, spelling), inputs)


def graphs(random: np.random.Generator, _: Path) -> Problem:
    """Chains of everything else: loops, reductions, data movement, small products."""
    seed = int(random.integers(1 << 30))
    grown = RandomGraph(seed)
    return Problem(f"random graph {seed}", grown.model(), grown.inputs, claim="all")


KINDS = {"products": products, "attentions": attentions, "decoders": decoders, "graphs": graphs}


class Runs:
    """A session of a problem on the GPU, and bindings whose outputs can be poisoned and read."""

    def __init__(self, problem: Problem, **options):
        self.session = create_session(
            problem.model, "gpu", session_options(0), **problem.options, **options
        )
        gpu = self.session.tenon_gpu
        self._feed = {name: tensors.to_gpu_value(x, gpu) for name, x in problem.inputs.items()}
        names = [output.name for output in self.session.get_outputs()]
        made = self.session.run_with_ort_values(names, self._feed)
        self._poison = {
            name: self._poisoned(value, gpu) for name, value in zip(names, made, strict=True)
        }
        self._gpu = gpu

    @staticmethod
    def _poisoned(value, gpu: int):
        poison = tensors.to_ort_value(np.full(value.shape(), 77, tensors.dtype_of(value)))
        return poison, tensors.gpu_value_like(poison, gpu)

    def results(self) -> dict:
        return {
            name: tensors.gpu_value_like(poison, self._gpu)
            for name, (poison, _) in self._poison.items()
        }

    def bits(self, results: dict, options: list) -> dict[str, np.ndarray]:
        """Poisons, runs once for each of `options`, and reads."""
        import onnxruntime

        for name, value in results.items():
            onnxruntime.copy_tensors([self._poison[name][0]], [value])
        binding = bind(self.session, self._feed, results)
        for option in options:
            self.session.run_with_iobinding(binding, option)
        return {name: _bytes(tensors.from_gpu_value(value)) for name, value in results.items()}


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def differing(expected: dict, got: dict) -> dict[str, int]:
    """Outputs that differ, and in how many bytes."""
    counts = {name: int((expected[name] != got[name]).sum()) for name in expected}
    return {name: count for name, count in counts.items() if count}


def hunt(problem: Problem) -> list[dict]:
    """What differed: in which kind of Run, in which of them, where."""
    plain = Runs(problem, enable_cuda_graph=False)
    waiting, ahead = run_options(), host_ahead()
    expected = plain.bits(plain.results(), [waiting])
    del plain
    captured, found = Runs(problem, enable_cuda_graph=True), []

    def look(how: str, number: int, results: dict, options: list) -> None:
        counts = differing(expected, captured.bits(results, options))
        if counts:
            found.append({"problem": problem.name, "how": how, "run": number, "outputs": counts})

    results = captured.results()
    for number in range(WAITED):
        look("waited for", number, results, [waiting])
    for number in range(2):
        look("back to back", number, results, [ahead] * BACK_TO_BACK + [waiting])

    def thread(which: int) -> None:
        own = captured.results()
        for number in range(OF_A_THREAD):
            look(f"thread {which}", number, own, [ahead, waiting])

    threads = [threading.Thread(target=thread, args=(which,)) for which in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found")
    arguments = parser.parse_args()
    kinds = arguments.only.split(",")
    random, end = np.random.default_rng(arguments.seed), time.monotonic() + arguments.seconds
    tried, found, failed = dict.fromkeys(kinds, 0), [], []
    while time.monotonic() < end:
        kind = kinds[sum(tried.values()) % len(kinds)]
        with tempfile.TemporaryDirectory() as folder:
            problem = KINDS[kind](random, Path(folder))
            try:
                differences = hunt(problem)
            except Exception as error:  # said, and counted as a failure
                failed.append({"problem": problem.name, "error": str(error).splitlines()[0][:200]})
                print(f"FAILED {problem.name}: {failed[-1]['error']}", flush=True)
                differences = []
        tried[kind] += 1
        for difference in differences:
            print(f"DIFFERS {json.dumps(difference)}", flush=True)
        found += differences
    if arguments.out:
        arguments.out.write_text(json.dumps({"tried": tried, "found": found, "failed": failed}))
    differ = len({difference["problem"] for difference in found})
    counts = ", ".join(f"{count} {kind}" for kind, count in tried.items())
    print(f"races, seed {arguments.seed}: {counts}; {differ} differ, {len(failed)} could not run")
    return 1 if found or failed else 0


if __name__ == "__main__":
    sys.exit(main())
