"""Times one product on the GPU: Tenon, the CUDA provider and cuBLAS in turns, and checks it."""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import tensors
from ..bindings import bind
from ..provider_sessions import has_cuda_provider, session_options
from ..report import session_with_report
from .gpu_runs import Bound, back_to_back, bind_cuda_provider, first_line, runs_for
from .machine import Machine, this_machine
from .measure import side_by_side, timed
from .measuring_process import MeasuringProcess, WrongResultError
from .product_cases import Case

_SECONDS_PER_SIDE = 0.25
_CHECKED_TOKENS, _CHECKED_COLUMNS = 8, 64


@dataclass
class Measured:
    """Seconds per product; what was not measured is NaN."""

    tenon: float
    peer: float = math.nan
    cublas: float = math.nan
    kernel: str = ""
    packed_over_file: float = math.nan
    created: float = math.nan  # seconds until the session was there
    notes: list[str] = field(default_factory=list)


class Meter(MeasuringProcess):
    def __init__(self, seed: int = 0):
        super().__init__(_Bench, seed)


class _Bench:
    def __init__(self, folder: Path, seed: int):
        self._folder, self._seed = folder, seed
        self._stack = None
        self._cublas = _Cublas.find()

    def machine(self) -> Machine:
        return this_machine(on_gpu=True, torch=self._cublas.version if self._cublas else "")

    def clean_up(self) -> None:
        gc.collect()
        if self._cublas:
            self._cublas.release()

    def measure(self, case: Case) -> Measured:
        stack = self._stack_of(case)
        ours = _Tenon(stack, case)
        inputs = stack.inputs(case.m, case.copies)
        feed = {name: tensors.to_gpu_value(x, ours.session.tenon_gpu) for name, x in inputs.items()}
        measured = ours.measured
        calls = {"tenon": ours.bind(feed)}
        if not case.drawn:
            self._add_others(calls, measured.notes, stack, case, feed)
        runs = {name: runs_for(call) for name, call in calls.items()}
        repeated = {name: call(runs[name]) for name, call in calls.items()}
        for timing in side_by_side(repeated, _SECONDS_PER_SIDE, at_least=3):
            copies = self._cublas.copies(case) if timing.name == "cublas" else case.copies
            setattr(measured, timing.name, timing.median / runs[timing.name] / copies)
        ours.check(stack, case, inputs, self._seed)
        return measured

    def _stack_of(self, case: Case):
        from ..models.product_stack import ProductStack

        key = (case.format, case.n, case.k, case.most_copies)
        if self._stack is None or self._stack[0] != key:
            self._stack = None
            for old in self._folder.iterdir():
                shutil.rmtree(old)
            folder = self._folder / "_".join(map(str, key))
            folder.mkdir()
            self._stack = key, ProductStack(folder, *key, self._seed)
        return self._stack[1]

    def _add_others(self, calls: dict, notes: list[str], stack, case: Case, feed) -> None:
        others = {}
        if stack.format.emit_peer is None:
            notes.append("the CUDA provider does not know the format")
        elif has_cuda_provider():
            others["peer"] = lambda: _bind_peer(stack, case, feed, notes)
        if self._cublas:
            others["cublas"] = lambda: self._cublas.bind(case)
        for name, begin in others.items():
            try:
                calls[name] = begin()
            except Exception as error:
                notes.append(f"{name}: {first_line(error)}")


def products_of(fusions: list[dict]) -> list[dict]:
    """Without what quantises their rows in front of them."""
    return [fusion for fusion in fusions if fusion["kind"] != "tenon::Loop"]


def configs_of(fusions: list[dict]) -> list[str]:
    """What the heuristic chose, as the report tells it."""
    chosen = [config["chosen"] for fusion in fusions for config in fusion.get("configs", [])]
    return list(dict.fromkeys(chosen))


def product_results(case: Case, stack, gpu: int | None) -> dict:
    """Room for the outputs, where the session is."""
    return {
        f"y{number}": tensors.empty_value((case.m, case.n), stack.format.activations, gpu)
        for number in range(case.copies)
    }


class _Tenon:
    """A session of Tenon on a case, and its outputs."""

    def __init__(self, stack, case: Case):
        opened = []
        created = timed(lambda: opened.append(self._open(stack, case)))
        self.session, report = opened[0]
        self._results = product_results(case, stack, self.session.tenon_gpu)
        kernels = sorted({fusion.get("chosen", "") for fusion in products_of(report.fusions)})
        packed = sum(part.get("packed_bytes", 0) for part in report.partitions)
        self.measured = Measured(
            tenon=math.nan,
            kernel=": ".join([*kernels, *configs_of(report.fusions)]),
            packed_over_file=packed / (case.copies * case.weight_bytes),
            created=created,
        )
        products = products_of(report.fusions)
        if len(products) != case.copies:
            self.measured.notes.append(f"{len(products)} fusions, {case.copies} products")

    def _open(self, stack, case: Case):
        options = {"enable_cuda_graph": True, "claim": "all", "require_full_claim": True}
        options |= stack.format.options
        model = stack.model(case.m, case.copies)
        return session_with_report(model, "gpu", session_options(0), **options)

    def bind(self, feed) -> Bound:
        binding = bind(self.session, feed, self._results)
        return lambda runs: back_to_back(self.session, binding, runs)

    def check(self, stack, case: Case, inputs: dict, seed: int) -> None:
        took = f" (it took {self.measured.tenon * 1e6:.1f} us)"
        check_product(stack, case, inputs, self._results, seed, took)


def check_product(stack, case: Case, inputs: dict, results: dict, seed: int, took="") -> None:
    """Some elements of one product against float64, after all the replays."""
    random = np.random.default_rng((seed, case.m, case.n, case.k))
    number = int(random.integers(case.copies))
    tokens = random.permutation(case.m)[:_CHECKED_TOKENS]
    columns = random.permutation(case.n)[:_CHECKED_COLUMNS]
    y = tensors.on_host(results[f"y{number}"])[np.ix_(tokens, columns)]
    worst = stack.error_over_bound(number, inputs[f"x{number}"][tokens], columns, y)
    if worst > 1:
        raise WrongResultError(
            f"WRONG: product {number} is off by {worst:.3g} times what rounding explains{took}"
        )


def _bind_peer(stack, case: Case, feed, notes: list[str]) -> Bound:
    """The CUDA provider on the same inputs, with its CUDA graph where that works."""
    path = stack.model(case.m, case.copies, peer=True)
    return bind_cuda_provider(path, feed, lambda gpu: product_results(case, stack, gpu), notes)


class _Cublas:
    """cuBLAS through torch: products with plain weights in one CUDA graph, f32 ones as tf32."""

    def __init__(self, torch):
        self.torch, self.version = torch, torch.__version__
        self._alive = None
        torch.backends.cuda.matmul.allow_tf32 = True

    @staticmethod
    def find() -> _Cublas | None:
        try:
            import torch
        except ImportError:
            return None
        return _Cublas(torch) if torch.cuda.is_available() else None

    def copies(self, case: Case) -> int:
        plain = "tf32" if case.format == "tf32" else "f16"
        return Case(plain, case.n, case.k, case.m).copies

    def bind(self, case: Case) -> Bound:
        torch = self.torch
        dtype = {"bf16": torch.bfloat16, "tf32": torch.float32}.get(case.format, torch.float16)

        def stack(rows: int) -> list:
            shape = (rows, case.k)
            return [
                torch.randn(shape, device="cuda", dtype=dtype) for _ in range(self.copies(case))
            ]

        pairs = list(zip(stack(case.m), stack(case.n), strict=True))
        torch.matmul(pairs[0][0], pairs[0][1].T)  # cuBLAS takes its workspace before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [torch.matmul(x, weight.T) for x, weight in pairs]

        def repeated(runs: int) -> Callable[[], None]:
            def many() -> None:
                for _ in range(runs):
                    graph.replay()
                torch.cuda.synchronize()

            return many

        self._alive = graph, pairs, kept  # the graph holds addresses only
        return repeated

    def release(self) -> None:
        self._alive = None
        self.torch.cuda.empty_cache()
