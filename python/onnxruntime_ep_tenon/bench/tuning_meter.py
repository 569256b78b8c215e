"""Times one case untuned and tuned, in turns, and what tuning it from nothing took.

With a seed the case is tuned once more with constants of the cost model that are wrong by random
factors (TENON_COST_FACTORS): what is tuned then should not be slower.
"""

from __future__ import annotations

import gc
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .. import tensors
from ..bindings import bind
from ..genai_folder import GenaiFolder
from ..provider_sessions import session_options
from ..report import Report, session_with_report
from ..tune_log import TuneLog
from .attention_cases import AttentionCase
from .attention_meter import AttentionBuffers, AttentionCheck
from .decoder_meter import DecoderPlan, DecoderSide, write_model
from .gpu_runs import Bound, back_to_back, runs_for
from .machine import Machine, this_machine
from .measure import side_by_side, timed
from .measuring_process import MeasuringProcess, WrongResultError
from .product_cases import Case
from .product_meter import check_product, product_results
from .tuning_cases import DecoderCase, TuningCase

_SECONDS_PER_SESSION = 0.15
_SECONDS_PER_CALL = 0.01
# Of what a side runs, the fastest of which counts: where a session's memory lies changes kernels of
# a microsecond by up to a tenth and of ten by a twentieth, for as long as it is open.
_SESSIONS_OF_KERNELS = 6
_FACTORS = "TENON_COST_FACTORS"
_LARGEST_DIFFERENCE = 0.03  # of a decoder's logits: rms of the difference over their rms


@dataclass
class MeasuredTuning:
    """Seconds per product, attention or step; what was not measured is NaN."""

    untuned: float = math.nan
    tuned: float = math.nan
    wrong: float = math.nan  # tuned with wrong constants
    tuning: float = math.nan  # seconds that tuning took
    tuning_wrong: float = math.nan
    notes: list[str] = field(default_factory=list)


class TuningMeter(MeasuringProcess):
    seconds_per_case = 560  # a decoder is written, tuned twice and opened three times

    def __init__(self, device: str, seed: int = 0, **given):
        super().__init__(partial(TuningBench, device=device, **given), seed)


class TuningBench:
    """`logs`: a folder for the tuner's logs; `plans`: tune_plans, if not the default."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        device: str,
        factor_seed: int | None = None,
        plans: int | None = None,
        logs: Path | None = None,
    ):
        self._folder, self._seed, self._device = folder, seed, device
        self._factor_seed, self._plans, self._logs = factor_seed, plans, logs
        self._on_gpu = device.startswith("gpu")

    def machine(self) -> Machine:
        return this_machine(self._on_gpu)

    def clean_up(self) -> None:
        gc.collect()

    def measure(self, case: TuningCase) -> MeasuredTuning:
        for old in self._folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        measured = MeasuredTuning()
        subject = _subject_of(case, self._folder, self._seed)
        sides = ["untuned", "tuned"]
        self._tune(subject, "tuned", measured)
        if self._factor_seed is not None:
            sides.append("wrong")
            with _environment(_FACTORS, str(self._factor_seed)):
                report = self._tune(subject, "wrong", measured)
            if report.data.get("device", {}).get("cost_factors") != self._factor_seed:
                measured.notes.append(f"the session did not see {_FACTORS}")
        self._keep_logs(case)
        self._time(subject, sides, measured)
        subject.check()
        return measured

    def _time(self, subject, sides: list[str], measured: MeasuredTuning) -> None:
        """Sides that run the same kernels are one program, with as many sessions as any other."""
        calls: dict[str, Bound] = {}
        sessions: dict[str, list[str]] = {}  # by program

        def add(side: str) -> str:
            session, report = self._open_to_time(subject, side)
            name, program = f"{side} {len(calls)}", program_of(report)
            calls[name] = subject.bind(name, session)
            sessions.setdefault(program, []).append(name)
            return program

        programs = {side: add(side) for side in sides}
        for _ in range(subject.sessions):
            for program, side in {program: side for side, program in programs.items()}.items():
                if len(sessions[program]) < subject.sessions:
                    add(side)
        for side in sides[1:]:
            if programs[side] == programs["untuned"]:
                measured.notes.append(f"{side} and untuned run the same kernels")
        seconds = self._seconds(calls, subject.copies)
        for side in sides:
            setattr(measured, side, min(seconds[name] for name in sessions[programs[side]]))

    @staticmethod
    def _seconds(calls: dict[str, Bound], copies: int) -> dict[str, float]:
        """Of each session, in turns."""
        runs = {name: runs_for(call, _SECONDS_PER_CALL) for name, call in calls.items()}
        repeated = {name: call(runs[name]) for name, call in calls.items()}
        timings = side_by_side(repeated, _SECONDS_PER_SESSION, at_least=9)
        return {each.name: each.median / runs[each.name] / copies for each in timings}

    def _open(self, subject, kernels: Path | str, tuning: dict) -> tuple:
        on_gpu = {"enable_cuda_graph": True, "cache_dir": kernels} if self._on_gpu else {}
        given = {**subject.options, **on_gpu, **tuning}
        return session_with_report(subject.path, self._device, session_options(0), **given)

    def _open_to_time(self, subject, side: str) -> tuple:
        """Who tunes finds no kernel of the untuned session; wrong constants those of the right."""
        if side == "untuned":
            return self._open(subject, "", {"tune": "off"})
        records = {"tune": "cached", "tune_file": self._file(side, "textproto")}
        return self._open(subject, self._kernels(), records)

    def _tune(self, subject, side: str, measured: MeasuredTuning) -> Report:
        log, opened = self._file(side, "jsonl"), []
        options = tuning_options(self._file(side, "textproto"), log, self._plans)
        seconds = timed(lambda: opened.append(self._open(subject, self._kernels(), options)))
        told = TuneLog()
        for line in log.read_text().splitlines() if log.exists() else ():
            told.take(line)
        setattr(measured, "tuning" if side == "tuned" else "tuning_wrong", told.seconds or seconds)
        measured.notes.append(_summary(side, told))
        return opened[0][1]

    def _kernels(self) -> Path:
        return self._folder / "kernels"

    def _file(self, side: str, kind: str) -> Path:
        return self._folder / f"{side}.{kind}"

    def _keep_logs(self, case: TuningCase) -> None:
        """Of a case, however often it is measured."""
        if self._logs is None:
            return
        self._logs.mkdir(parents=True, exist_ok=True)
        for side in ("tuned", "wrong"):
            if (log := self._file(side, "jsonl")).exists():
                shutil.copy(log, self._logs / f"{case.name.replace(' ', '_')}.{side}.jsonl")


def program_of(report: Report) -> str:
    """What a session runs, without what was expected of it."""
    return json.dumps([
        (
            fusion["nodes"],
            [launch["kernel"] for launch in fusion["launches"]],
            [
                {knob: value for knob, value in config["config"].items() if knob != "microseconds"}
                for config in fusion["configs"]
            ],
        )
        for fusion in report.fusions
    ])  # fmt: skip


def tuning_options(records: Path, log: Path, plans: int | None) -> dict:
    options = {"tune": "on", "tune_file": records, "tune_log": log}
    return options | ({"tune_plans": plans} if plans else {})


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Sessions that are made inside see it."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _summary(name: str, told: TuneLog) -> str:
    changed = sum(one.get("chosen", {}).get("config") != one.get("untuned", {}).get("config")
                  for one in told.ranges)  # fmt: skip
    statuses = ", ".join(f"{count} {status}" for status, count in told.statuses().items())
    return f"{name}: {len(told.ranges)} ranges, {changed} changed, plans: {statuses or 'none'}"


def _subject_of(case: TuningCase, folder: Path, seed: int):
    kinds = {Case: _Product, AttentionCase: _Attention, DecoderCase: _Decoder}
    return kinds[type(case)](case, folder, seed)


class _Product:
    """A stack of equal products, each with a weight of its own."""

    sessions = _SESSIONS_OF_KERNELS

    def __init__(self, case: Case, folder: Path, seed: int):
        from ..models.product_stack import ProductStack

        self._case, self._seed, self.copies = case, seed, case.copies
        self._stack = ProductStack(folder, case.format, case.n, case.k, case.copies, seed)
        self.path = self._stack.model(case.m, case.copies)
        self.options = {"claim": "all", "require_full_claim": True, **self._stack.format.options}
        self._inputs = self._stack.inputs(case.m, case.copies)
        self._feed: dict = {}
        self._results: dict[str, dict] = {}

    def bind(self, name: str, session) -> Bound:
        gpu = session.tenon_gpu
        self._feed = self._feed or {x: tensors.to_value(a, gpu) for x, a in self._inputs.items()}
        self._results[name] = product_results(self._case, self._stack, gpu)
        binding = bind(session, self._feed, self._results[name])
        return lambda runs: back_to_back(session, binding, runs)

    def check(self) -> None:
        for results in self._results.values():
            check_product(self._stack, self._case, self._inputs, results, self._seed)


class _Attention:
    """A stack of equal attentions with caches of their own, which all sessions write alike."""

    sessions = _SESSIONS_OF_KERNELS

    def __init__(self, case: AttentionCase, folder: Path, seed: int):
        from ..models.attention_stack import AttentionStack

        self._stack, self.copies = AttentionStack(case, seed), case.copies
        self.path = self._stack.model(folder)
        self.options = {"claim": "all", "require_full_claim": True}
        self._buffers: AttentionBuffers | None = None
        self._check = AttentionCheck(self._stack, seed)
        self._results: list[dict] = []

    def bind(self, name: str, session) -> Bound:
        self._buffers = self._buffers or AttentionBuffers(self._stack, session.tenon_gpu)
        results = self._buffers.results()
        self._results.append(results)
        binding = bind(session, self._buffers.feed, results)
        return lambda runs: back_to_back(session, binding, runs)

    def check(self) -> None:
        for results in self._results:
            self._check(results)


class _Decoder:
    """One step of a decoder after some past."""

    copies = sessions = 1

    def __init__(self, case: DecoderCase, folder: Path, seed: int):
        from ..models.decoder_config import PRESETS

        plan: DecoderPlan = case.plan
        self._plan, self._step = plan, plan.cases()[0]
        self._folder = write_model(plan, plan.formats[0], folder / "decoder")
        self.path = self._folder / "model.onnx"
        self.options = {} if plan.on_gpu else {"precision_mode": "int8"}
        config, random = PRESETS[plan.preset], np.random.default_rng(seed)
        shape = (self._step.batch, config.kv_heads, plan.past + 64, config.head_size)
        self._cache = random.standard_normal(shape, np.float32) * np.float32(0.5)
        self._ids = random.integers(0, config.vocabulary, (self._step.batch, 1))
        self._sides: dict[str, DecoderSide] = {}

    def bind(self, name: str, session) -> Bound:
        side = DecoderSide(session, GenaiFolder.load(self._folder), self._plan.on_gpu)
        self._sides[name] = side
        return side.bind(0, self._step, self._cache, self._ids)

    def check(self) -> None:
        """Logits of all sessions are those of the untuned one, up to sums in another order."""
        expected = self._sides["untuned 0"].logits.astype(np.float64)
        for name, side in self._sides.items():
            error = np.sqrt(np.mean(np.square(side.logits - expected)))
            if not error <= _LARGEST_DIFFERENCE * np.sqrt(np.mean(np.square(expected))):
                raise WrongResultError(f"WRONG: {name}: logits differ from the untuned session's")
