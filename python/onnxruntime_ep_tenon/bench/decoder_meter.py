"""Measures one decoder: session creation, decode and prefill, beside another provider.

On a GPU the CUDA provider runs the same file, with its CUDA graph where it captures one. On the
host the CPU provider runs the INT4 file, which is the one that it has kernels for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import console
from ..genai_folder import GenaiFolder
from ..generation import TokenLoop
from ..host_memory import PeakMemory
from ..provider_sessions import open_cuda_session, session_options
from ..report import session_with_report
from .gpu_runs import back_to_back, first_line, run_options, runs_for
from .kernel_times import KernelTimes, profile
from .measure import side_by_side, timed
from .rows import Row

_SECONDS_PER_CALL = 0.05  # Runs are put in a row until they take so long
_LARGEST_DIFFERENCE = 0.03  # rms of the logits' difference over the rms of the logits
_ROOM = 64  # positions of the cache behind the past
_RUNS_TO_CAPTURE = 3  # a graph that cannot be captured fails within them

# What a case should reach, of the other's time; for these presets only.
_BARS = {
    ("llama-8b", "gpu"): {
        ("nvfp4", "decode", 1): 0.5,
        ("int4", "decode", 1): 0.55,
        ("nvfp4", "decode", 16): 0.4,
        ("int4", "decode", 16): 0.4,
        ("nvfp4", "prefill", 1): 0.75,
        ("int4", "prefill", 1): 0.9,
    },
    ("qwen2-0.5b", "cpu"): {
        ("nvfp4", "decode", 1): 0.95,
        ("int4", "decode", 1): 0.95,
        ("nvfp4", "prefill", 1): 0.8,
        ("int4", "prefill", 1): 0.8,
    },
}
_CREATION_SECONDS = {"gpu": 15, "cpu": 1.5}  # of the presets that have bars
_CREATION_MEMORY = 1.3  # times the file

# How long a part may take before it is taken for hung; on a host prefills take seconds each.
_SECONDS_TO_CREATE, _SECONDS_TO_MEASURE, _SECONDS_ON_A_HOST = 150.0, 60.0, 900.0


@dataclass(frozen=True)
class DecoderPlan:
    """What is measured."""

    preset: str
    device: str  # gpu or cpu
    formats: tuple[str, ...] = ("nvfp4", "int4")
    batches: tuple[int, ...] = (1, 16)
    past: int = 512
    prefill: int = 2048
    seconds: float = 1.0
    threads: int = 0
    kernels: bool = False  # tell what each adds to a Run, too

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("gpu")

    @property
    def bars(self) -> dict:
        return _BARS.get((self.preset, "gpu" if self.on_gpu else "cpu"), {})

    def cases(self) -> list[Case]:
        decode = [Case("decode", batch, self.past, 1) for batch in self.batches]
        return [*decode, Case("prefill", 1, 0, self.prefill)]


@dataclass(frozen=True)
class Case:
    kind: str  # decode or prefill
    batch: int
    past: int
    count: int  # tokens fed

    @property
    def name(self) -> str:
        behind = f"past {self.past}" if self.past else f"{self.count} tokens"
        return f"{self.kind}, batch {self.batch}, {behind}"


@dataclass(frozen=True)
class Begun:
    """Told before a part: what it is, and after how long it is given up."""

    part: str
    limit: float


@dataclass(frozen=True)
class Problem:
    """Something is wrong; what follows is measured all the same."""

    text: str


def write_model(plan: DecoderPlan, format: str, folder: Path) -> Path:
    from ..models.decoder import write_decoder
    from ..models.decoder_config import ACTIVATION_TYPES, PRESETS, Spelling
    from ..models.decoder_weights import DrawnWeights

    wanted = "f16" if plan.on_gpu else "f32"
    activations = format if format in ACTIVATION_TYPES else wanted
    level = 0 if plan.on_gpu else 4
    spelling = Spelling("genai", format, activations, packed_qkv=True, accuracy_level=level)
    write_decoder(folder, PRESETS[plan.preset], spelling, DrawnWeights())
    return folder


def file_bytes(plan: DecoderPlan, format: str) -> float:
    """About as large as the model's file will be."""
    from ..models.decoder_config import PRESETS

    config = PRESETS[plan.preset]
    bits = {"f32": 32, "f16": 16, "bf16": 16, "mxfp8": 8.25}.get(format, 4.5)
    attention = config.hidden * 2 * (config.query_width + config.kv_width)
    layers = config.layers * (attention + 3 * config.hidden * config.feed_forward)
    table = config.vocabulary * config.hidden
    return (layers + table) * bits / 8 + table * (2 if plan.on_gpu else 4)


def measure_format(
    plan: DecoderPlan, format: str, ours: Path, theirs: Path
) -> Iterator[Begun | Row | Problem | KernelTimes]:
    """The rows of one format as they come; both folders hold a written model."""
    yield Begun("creating the session", _SECONDS_TO_CREATE)
    opened = []
    with PeakMemory() as memory:
        created = timed(lambda: opened.append(_open_tenon(plan, ours)))
    session, report = opened[0]
    yield _creation_row(plan, format, ours, created, memory.grown, report)
    if left := report.left_out:
        yield Problem(
            f"{len(left)} nodes are not Tenon's, first {left[0]['op']}: {left[0]['reason']}"
        )
    tenon = DecoderSide(session, GenaiFolder.load(ours), plan.on_gpu)
    peer = _Peer(plan, theirs)
    for number, case in enumerate(plan.cases()):
        on_gpu = _SECONDS_TO_MEASURE if number else _SECONDS_TO_CREATE  # the other is created too
        yield Begun(case.name, on_gpu if plan.on_gpu else _SECONDS_ON_A_HOST)
        try:
            yield from _measure_case(plan, format, case, number, tenon, peer, theirs == ours)
        except Exception as error:
            yield Problem(f"{case.name}: {first_line(error)}")


def _open_tenon(plan: DecoderPlan, folder: Path):
    options = {"enable_cuda_graph": True} if plan.on_gpu else {"precision_mode": "int8"}
    settings = session_options(plan.threads)
    return session_with_report(folder / "model.onnx", plan.device, settings, **options)


class DecoderSide:
    """A provider's session, and steps bound to it."""

    def __init__(self, session, folder, captures: bool):
        self.session, self._folder = session, folder
        self._by_name = captures and session.get_providers()[0] == "CUDAExecutionProvider"
        self._captures = captures

    def bind(self, number: int, case: Case, cache: np.ndarray, ids: np.ndarray) -> Callable:
        """A function that makes so many Runs of the case's step; its first Runs are done."""
        stepping = case.kind == "decode"
        loop = TokenLoop(
            self.session, self._folder, case.batch, cache.shape[2], share_cache=True,
            fixed_mask=self._captures and stepping,
        )  # fmt: skip
        loop.assume(case.past, cache)
        binding, outputs = loop.bound_step(ids)
        # The CUDA provider keeps a graph per number; a prefill runs without one.
        entries = {"gpu_graph_id": str(number + 1 if stepping else -1)} if self._by_name else {}
        for _ in range(_RUNS_TO_CAPTURE if self._captures else 1):
            self.session.run_with_iobinding(binding, run_options(**entries))
        self.logits = loop.logits(outputs)[:, -1].astype(np.float32)
        self._kept = loop, outputs  # a binding knows addresses only
        return lambda runs: back_to_back(self.session, binding, runs, **entries)


class _Peer:
    """The other provider: with CUDA graphs, without them where it captures none, or not at all."""

    def __init__(self, plan: DecoderPlan, folder: Path):
        self._plan, self._folder = plan, folder
        self._left_to_try = [True, False] if plan.on_gpu else [False]
        self._side: DecoderSide | None = None
        self._notes: list[str] = []

    def bind(self, number: int, case: Case, cache: np.ndarray, ids: np.ndarray) -> Callable | None:
        while self._left_to_try:
            try:
                self._side = self._side or self._open(self._left_to_try[0])
                return self._side.bind(number, case, cache, ids)
            except Exception as error:
                self._side = None
                captures = self._left_to_try.pop(0)
                text = first_line(error)[:160]
                if not any(text in note for note in self._notes):
                    name = "the other with CUDA graphs" if captures else "the other"
                    self._notes.append(f"{name}: {text}")
        return None

    def take_notes(self) -> list[str]:
        """What went wrong since the last case: told once."""
        taken, self._notes = self._notes, []
        return taken

    @property
    def logits(self) -> np.ndarray:
        return self._side.logits

    def _open(self, captures: bool) -> DecoderSide:
        import onnxruntime

        path, settings = str(self._folder / "model.onnx"), session_options(self._plan.threads)
        if self._plan.on_gpu:
            options = {"enable_cuda_graph": "1"} if captures else {}
            session = open_cuda_session(path, settings, **options)
        else:
            session = onnxruntime.InferenceSession(
                path, settings, providers=["CPUExecutionProvider"]
            )
        return DecoderSide(session, GenaiFolder.load(self._folder), captures)


def _measure_case(
    plan: DecoderPlan,
    format: str,
    case: Case,
    number: int,
    tenon: DecoderSide,
    peer: _Peer,
    same: bool,
) -> Iterator[Row | Problem | KernelTimes]:
    from ..models.decoder_config import PRESETS

    config = PRESETS[plan.preset]
    random = np.random.default_rng(number)
    shape = (case.batch, config.kv_heads, case.past + case.count + _ROOM, config.head_size)
    cache = random.standard_normal(shape, np.float32) * np.float32(0.5)
    ids = random.integers(0, config.vocabulary, (case.batch, case.count))
    bound = {"tenon": tenon.bind(number, case, cache, ids)}
    if (theirs := peer.bind(number, case, cache, ids)) is not None:
        bound["other"] = theirs
    runs = {name: runs_for(call, _SECONDS_PER_CALL) for name, call in bound.items()}
    calls = {name: call(runs[name]) for name, call in bound.items()}
    timings = {t.name: t.median / runs[t.name] for t in side_by_side(calls, plan.seconds, 3)}
    ours, other = timings["tenon"], timings.get("other", math.nan)
    notes = [f"{case.batch * case.count / ours:.0f} tokens/s"]
    wrong = None
    if "other" in bound and same:
        difference = _difference(tenon.logits, peer.logits)
        notes.append(f"logits within {difference:.2%}")
        if difference > _LARGEST_DIFFERENCE:
            wrong = Problem(
                f"WRONG: {case.name}: logits differ by {difference:.1%} from the other's"
            )
    bar = plan.bars.get((format, case.kind, case.batch))
    yield Row(
        f"{format} {case.name}",
        ours,
        other,
        f"<= {bar}" if bar else "",
        None if bar is None or math.isnan(other) else ours <= bar * other,
        "; ".join(notes + peer.take_notes()),
    )
    if wrong:
        yield wrong
    if plan.kernels:
        yield KernelTimes(f"{format} {case.name}", profile(calls["tenon"], runs["tenon"]))


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    size = np.sqrt(np.mean(np.square(theirs, dtype=np.float64)))
    found = float(np.sqrt(np.mean(np.square(ours - theirs, dtype=np.float64))) / size)
    return math.inf if math.isnan(found) else found


def _creation_row(plan, format: str, folder: Path, seconds: float, grown: int, report) -> Row:
    size = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    most = _CREATION_SECONDS["gpu" if plan.on_gpu else "cpu"]
    met = seconds <= most and (not plan.on_gpu or grown <= _CREATION_MEMORY * size)
    bar = f"<= {most} s" + (f", {_CREATION_MEMORY} of the file" if plan.on_gpu else "")
    return Row(
        f"{format} session creation",
        seconds,
        math.nan,
        bar if plan.bars else "",
        met if plan.bars else None,
        f"{console.size(size)} file, host memory {grown / size:+.2f} of it; {report.coverage}, "
        f"{len(report.fusions)} fusions",
    )
