"""Runs one model of an exporter on Tenon and on the CPU provider: the same results, no slower?

One thread each, in turns, in CPU time: what other processes do to the clock is not counted. The
same file is planned for a GPU as well, which need not be there.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .. import genai_folder, tensors
from ..bindings import bind, caller
from ..inputs import dtype_of, make_inputs
from ..provider_sessions import cpu_session, session_options
from ..report import Report, SessionError, session_with_report, shortened
from .exported_cases import ExportedCase
from .machine import Machine, this_machine
from .measure import side_by_side
from .measuring_process import MeasuringProcess
from .open_session import one_node_model

MOST = 1.02  # of the CPU provider's time
PLANNED_FOR = "sm_90a"
# Of a framework's outputs, where it rounds activations to 8 and 4 bits in types of its own. Where
# the file itself computes something else, what it computes in float64 is what can be asked for.
_APART, _OF_THE_FILE = 0.03, 1.25
_THREADS = 1
# What is slower is measured again: a spell of the machine makes a ratio worse, never better.
_SECONDS_OF_TRIES = (0.15, 0.5, 1.0)


@dataclass
class Claim:
    """What of a model was claimed, and the ops that were not, with the first reason of each."""

    nodes: int = 0
    claimed: int = 0
    partitions: int = 0
    left: dict[str, list] = field(default_factory=dict)  # op: [how many, reason]

    @staticmethod
    def of(report: Report) -> Claim:
        coverage = report.coverage
        claim = Claim(coverage.nodes, coverage.claimed, coverage.partitions)
        for node in report.left_out:
            claim.left.setdefault(node["op"], [0, node["reason"]])[0] += 1
        return claim

    @property
    def is_whole(self) -> bool:
        return self.claimed == self.nodes and self.partitions <= 1

    def __str__(self) -> str:
        parts = f" in {self.partitions}" if self.partitions > 1 else ""
        return f"{self.claimed}/{self.nodes}{parts}"


@dataclass
class MeasuredExport:
    """Seconds of CPU time; what was not measured is NaN, and the texts say why."""

    tenon: float = math.nan
    peer: float = math.nan
    session: float = math.nan
    peer_session: float = math.nan
    difference: float = math.nan  # rms over the result's
    stored: float = math.nan  # the largest difference from outputs that lie beside the model
    file: float = math.nan  # and that of the model in float64
    wrong: str = ""  # the outputs differ
    refused: str = ""  # by Tenon
    peer_refused: str = ""  # by the CPU provider
    claim: Claim = field(default_factory=Claim)
    planned: Claim = field(default_factory=Claim)
    plan_refused: str = ""

    @property
    def ratio(self) -> float:
        return self.tenon / self.peer


class ExportedMeter(MeasuringProcess):
    seconds_per_case = 240

    def __init__(self, device: str, seed: int, options: dict):
        super().__init__(partial(ExportedBench, device=device, options=options), seed)


class ExportedBench:
    def __init__(self, folder: Path, seed: int, device: str, options: dict):
        self._seed, self._device, self._options = seed, device, options
        self._is_warm = False

    def machine(self) -> Machine:
        return this_machine(on_gpu=False)

    def clean_up(self) -> None:
        gc.collect()

    def measure(self, case: ExportedCase) -> MeasuredExport:
        measured = MeasuredExport()
        self._plan(case, measured)
        sessions = self._open_both(case, measured)
        if not sessions:
            return measured
        feed = self._inputs(case, next(iter(sessions.values())))
        outputs = {}
        for name, session in list(sessions.items()):
            try:
                outputs[name] = tensors.run(session, feed)
            except Exception as error:
                _refuse(measured, name, _problem_of(error))
                del sessions[name]
        if len(sessions) == 2:
            self._compare(case, sessions, outputs, feed, measured)
            _time(sessions, feed, measured)
        if "tenon" in outputs and case.stored():
            _compare_with_stored(case, sessions["tenon"], outputs["tenon"], feed, measured)
        return measured

    def _open_both(self, case: ExportedCase, measured: MeasuredExport) -> dict:
        openers = {"peer": self._open_peer, "tenon": self._open_tenon}
        sessions = {}
        for name, opener in openers.items():
            try:
                if name == "tenon":
                    self._start_compiler()
                begin = time.process_time()
                sessions[name] = opener(case, measured)
            except Exception as error:
                _refuse(measured, name, _problem_of(error))
                continue
            spent = time.process_time() - begin
            setattr(measured, "session" if name == "tenon" else "peer_session", spent)
        return sessions

    def _start_compiler(self) -> None:
        """Once in a process; not by the case, whose kernels would be there when it is measured."""
        if not self._is_warm:
            settings = session_options(_THREADS)
            session_with_report(one_node_model(), self._device, settings, claim="all")
            self._is_warm = True

    def _open_peer(self, case: ExportedCase, _: MeasuredExport):
        return cpu_session(case.path, session_options(_THREADS))

    def _open_tenon(self, case: ExportedCase, measured: MeasuredExport):
        settings = session_options(_THREADS)
        session, report = session_with_report(case.path, self._device, settings, **self._options)
        measured.claim = Claim.of(report)
        return session

    def _plan(self, case: ExportedCase, measured: MeasuredExport) -> None:
        """For a GPU that need not be there; what was left to others is in the report even then."""
        options = {**self._options, "target_arch": PLANNED_FOR, "cache_dir": ""}
        try:
            _, report = session_with_report(case.path, "cpu", session_options(_THREADS), **options)
            measured.planned = Claim.of(report)
        except SessionError as error:
            measured.planned = Claim.of(error.report)
            measured.plan_refused = _problem_of(error)
        except Exception as error:
            measured.plan_refused = _problem_of(error)

    def _inputs(self, case: ExportedCase, session) -> dict:
        inputs = session.get_inputs()
        if stored := case.stored():
            return {value.name: stored[value.name].astype(dtype_of(value.type)) for value in inputs}
        named = {size for value in inputs for size in value.shape or []}
        sizes = {name: size for name, size in case.sizes().items() if name in named}
        told = genai_folder.sizes_beside(case.path, inputs)
        return make_inputs(session, sizes, seed=self._seed, told=told).arrays

    def _compare(self, case: ExportedCase, sessions, outputs, feed, measured) -> None:
        import onnx

        from ..models import tolerances, validate

        names = [output.name for output in sessions["peer"].get_outputs()]
        bound = tolerances.against_a_provider(onnx.load(case.path, load_external_data=False))
        verdicts = validate.compare_rounded(names, outputs["tenon"], outputs["peer"], bound)
        if any(not verdict.ok for verdict in verdicts):
            # Its own fusions may round activations that the model does not, and caches that are
            # larger than what they hold it leaves as memory was.
            exact = cpu_session(case.path, session_options(_THREADS), exact=True)
            again = [_filled_run(exact, feed, outputs["peer"], filling) for filling in (0, 1)]
            ours = map(_where_alike, outputs["tenon"], *again)
            verdicts = validate.compare_rounded(names, list(ours), again[0], bound)
        measured.difference = max((verdict.rms_error for verdict in verdicts), default=0.0)
        measured.wrong = "; ".join(f"'{v.name}': {v.problem}" for v in verdicts if not v.ok)


def _compare_with_stored(case: ExportedCase, session, results, feed, measured) -> None:
    import onnx

    from ..models import reference, repair

    stored = case.stored()
    kept = [i for i, output in enumerate(session.get_outputs()) if output.name in stored]
    wanted = [stored[session.get_outputs()[i].name] for i in kept]
    model, _ = repair.mended_or_as_it_is(onnx.load(case.path))
    exact = reference.evaluate(model, feed)
    measured.stored = _farthest([results[i] for i in kept], wanted)
    measured.file = _farthest([exact[i] for i in kept], wanted)
    if not measured.stored <= max(_APART, _OF_THE_FILE * measured.file):
        measured.wrong = (
            f"{measured.stored:.4f} from the stored outputs, where the file in float64 is "
            f"{measured.file:.4f} from them"
        )


def _farthest(results: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    pairs = zip(results, wanted, strict=True)
    apart = [np.abs(ours.astype(np.float64) - theirs).max(initial=0) for ours, theirs in pairs]
    return float(np.max(apart)) if apart else math.nan


def _filled_run(session, feed: dict, results: list[np.ndarray], filling: int) -> list[np.ndarray]:
    """Outputs in memory that is filled before: what a Run does not write still is."""
    names = [output.name for output in session.get_outputs()]
    filled = [np.full_like(result, filling) for result in results]
    values = {name: tensors.to_value(array, None) for name, array in feed.items()}
    room = dict(zip(names, (tensors.to_value(array, None) for array in filled), strict=True))
    session.run_with_iobinding(bind(session, values, room))
    return [tensors.on_host(room[name]).copy() for name in names]


def _where_alike(ours: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Ours, but where both Runs of the CPU provider differ: nobody says what stands there."""
    if ours.shape != one.shape:
        return ours
    undefined = ~((one == other) | ((one != one) & (other != other)))
    return np.where(undefined, one, ours)


def _time(sessions: dict, feed: dict, measured: MeasuredExport) -> None:
    calls = {name: caller(session, feed) for name, session in sessions.items()}
    for seconds in _SECONDS_OF_TRIES:
        times = side_by_side(calls, seconds, at_least=3, clock=time.process_time)
        medians = {timing.name: timing.median for timing in times}
        if not measured.ratio <= medians["tenon"] / medians["peer"]:  # the first: NaN
            measured.tenon, measured.peer = medians["tenon"], medians["peer"]
        if measured.ratio <= MOST:
            return


def _refuse(measured: MeasuredExport, name: str, problem: str) -> None:
    setattr(measured, "refused" if name == "tenon" else "peer_refused", problem)


def _problem_of(error: Exception) -> str:
    """Both ends: the runtime begins with its place in its own source, and ends with the cause."""
    told = error.problem if isinstance(error, SessionError) else str(error)
    return shortened(" ".join(told.split()) or type(error).__name__, 300)
