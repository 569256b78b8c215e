"""Times one attention: Tenon and ONNX Runtime's own provider in turns, caches written in place.

On a GPU the other is the CUDA provider, on the host the CPU provider; both get the same file, the
same caches and the same queries.
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .. import tensors
from ..bindings import bind
from ..library import version_tuple
from ..provider_sessions import has_cuda_provider, session_options
from ..report import Report, session_with_report
from .attention_cases import AttentionCase
from .forced_candidates import forcing_records, no_records
from .gpu_runs import Bound, back_to_back, bind_cuda_provider, first_line, runs_for
from .machine import Machine, this_machine
from .measure import side_by_side, timed
from .measuring_process import MeasuringProcess, WrongResultError

_SECONDS_PER_SIDE = 0.25
_CHECKED_ROWS = 8


@dataclass
class MeasuredAttention:
    """Seconds per attention; what was not measured is NaN."""

    tenon: float = math.nan
    peer: float = math.nan
    kernel: str = ""
    created: float = math.nan  # seconds until the session was there
    error: float = math.nan  # the largest, over what rounding explains
    notes: list[str] = field(default_factory=list)
    own: float = math.nan  # by the first of Tenon's kernels, where cuDNN's was chosen
    cudnn: float = math.nan  # by cuDNN's, where Tenon's was chosen


class AttentionMeter(MeasuringProcess):
    def __init__(self, device: str, seed: int = 0):
        super().__init__(partial(AttentionBench, device=device), seed)


class AttentionBench:
    def __init__(self, folder: Path, seed: int, device: str):
        self._folder, self._seed, self._device = folder, seed, device
        self._on_gpu = device.startswith("gpu")

    def machine(self) -> Machine:
        return this_machine(self._on_gpu)

    def clean_up(self) -> None:
        gc.collect()

    def measure(self, case: AttentionCase) -> MeasuredAttention:
        from ..models.attention_stack import AttentionStack

        stack = AttentionStack(case, self._seed)
        path = stack.model(self._folder)
        measured = MeasuredAttention()
        session, report = self._open(path, measured)
        buffers = AttentionBuffers(stack, session.tenon_gpu)
        results = buffers.results()
        binding = bind(session, buffers.feed, results)
        session.run_with_iobinding(binding)
        check = AttentionCheck(stack, self._seed)
        measured.error = check(results, with_caches=True)
        calls: dict[str, Bound] = {"tenon": lambda runs: back_to_back(session, binding, runs)}
        self._add_peer(calls, path, buffers, measured.notes)
        others = self._add_other_backend(calls, path, report, buffers, measured.notes)
        runs = {name: runs_for(call) for name, call in calls.items()}
        repeated = {name: call(runs[name]) for name, call in calls.items()}
        for timing in side_by_side(repeated, _SECONDS_PER_SIDE, at_least=3):
            setattr(measured, timing.name, timing.median / runs[timing.name] / case.copies)
        measured.error = max(measured.error, *map(check, (results, *others)))
        return measured

    def _options(self, records: Path) -> dict:
        options = {"claim": "all", "require_full_claim": True, "tune_file": records}
        return {**options, "enable_cuda_graph": True} if self._on_gpu else options

    def _open(self, path: Path, measured: MeasuredAttention) -> tuple:
        options = self._options(no_records(self._folder))
        opened = []
        measured.created = timed(
            lambda: opened.append(
                session_with_report(path, self._device, session_options(0), **options)
            )
        )
        session, report = opened[0]
        measured.kernel = _kernels_of(report)
        return session, report

    def _add_other_backend(
        self, calls: dict, path: Path, report: Report, buffers: AttentionBuffers, notes: list[str]
    ) -> list[dict]:
        """cuDNN beside Tenon's own kernel, or the other way round; where its results go."""
        if not self._on_gpu:
            return []
        side = "own" if _is_cudnn(_kernels_of(report)) else "cudnn"
        records, text = forcing_records(
            report, lambda name: _is_cudnn(name) == (side == "cudnn"), self._folder
        )
        if records is None:
            notes += [f"{side}: {text}"] if text else []
            return []
        try:
            session, forced = session_with_report(
                path, self._device, session_options(0), **self._options(records)
            )
            if _is_cudnn(_kernels_of(forced)) != (side == "cudnn"):
                raise RuntimeError(f"{_kernels_of(forced)} runs in place of {text}")
            results = buffers.results()
            binding = bind(session, buffers.feed, results)
            session.run_with_iobinding(binding)
        except Exception as error:
            notes.append(f"{side}: {first_line(error)}")
            return []
        calls[side] = lambda runs: back_to_back(session, binding, runs)
        notes.append(f"{side}: {text}")
        return [results]

    def _add_peer(
        self, calls: dict, path: Path, buffers: AttentionBuffers, notes: list[str]
    ) -> None:
        try:
            if not self._on_gpu:
                calls["peer"] = _bind_cpu_provider(path, buffers)
            elif has_cuda_provider():
                calls["peer"] = bind_cuda_provider(
                    path, buffers.feed, lambda _: buffers.results(), notes
                )
        except Exception as error:
            notes.append(f"the other: {first_line(error)}")


def _kernels_of(report: Report) -> str:
    return ", ".join(sorted({fusion.get("chosen", "") for fusion in report.fusions}))


def _is_cudnn(chosen: str) -> bool:
    """Of one candidate, or of all that a report says of a session's fusions and their rows."""
    return "cudnn_" in chosen


def cpu_provider_writes_in_place() -> bool:
    """1.24.4 crashes where GroupQueryAttention has its caches as outputs too, 1.31.1 does not."""
    import onnxruntime

    return version_tuple(onnxruntime.__version__) >= (1, 31)


def _bind_cpu_provider(path: Path, buffers: AttentionBuffers) -> Bound:
    import onnxruntime

    if not cpu_provider_writes_in_place():
        raise RuntimeError(f"onnxruntime {onnxruntime.__version__} cannot write caches in place")
    session = onnxruntime.InferenceSession(
        str(path), session_options(0), providers=["CPUExecutionProvider"]
    )
    binding = bind(session, buffers.feed, buffers.results())
    session.run_with_iobinding(binding)
    return lambda runs: back_to_back(session, binding, runs)


class AttentionBuffers:
    """Inputs where the session wants them; the caches are outputs as well."""

    def __init__(self, stack, gpu: int | None):
        self._stack, self._gpu = stack, gpu
        lengths = stack.lengths()
        self.feed = {name: self._put(stack.fresh(name)) for name in "qkv"}
        self.feed["seqlens_k"] = self._put(lengths["seqlens_k"])
        self.feed["total"] = tensors.to_ort_value(lengths["total"])
        for number in range(stack.case.copies):
            for name in "kv":
                self.feed[f"past_{name}{number}"] = self._put(stack.past(name, number))

    def results(self) -> dict:
        """Outputs of their own, and the caches, which are written in place."""
        bound = {}
        for number in range(self._stack.case.copies):
            bound[f"y{number}"] = self._put(np.zeros_like(self._stack.fresh("q")))
            for name in "kv":
                bound[f"present_{name}{number}"] = self.feed[f"past_{name}{number}"]
        return bound

    def _put(self, array: np.ndarray):
        return tensors.to_value(array, self._gpu)


class AttentionCheck:
    """Some rows of one attention against float64, and that only the fresh keys were written."""

    def __init__(self, stack, seed: int):
        self._stack = stack
        case = stack.case
        random = np.random.default_rng(seed)
        self._number = int(random.integers(case.copies))
        last = case.queries - 1
        self._rows = [
            tuple(int(random.integers(size)) for size in (case.batch, case.heads, case.queries))
            for _ in range(_CHECKED_ROWS - 1)
        ] + [(case.batch - 1, case.heads - 1, last)]
        self._caches = {name: stack.present(name, self._number) for name in "kv"}

    def __call__(self, results: dict, with_caches: bool = False) -> float:
        if with_caches:
            for name, expected in self._caches.items():
                found = tensors.on_host(results[f"present_{name}{self._number}"])
                if not np.array_equal(found.view(np.uint8), expected.view(np.uint8)):
                    raise WrongResultError(
                        f"WRONG: cache {name}{self._number} is not the past with the fresh "
                        f"{'keys' if name == 'k' else 'values'} behind it"
                    )
        y = tensors.on_host(results[f"y{self._number}"])
        worst = self._stack.error_over_bound(self._caches, y, self._rows)
        if worst > 1:
            raise WrongResultError(
                f"WRONG: attention {self._number} is off by {worst:.3g} times what rounding "
                "explains"
            )
        return worst
