"""Whole decoders: a token at a time after some past, and a prompt, against another provider.

On a GPU the CUDA provider runs the same file, with its CUDA graph where it captures one. On the
host the CPU provider runs the INT4 file, which is the one that it has kernels for. Each format is
measured in a process of its own, so that the memory it took can be told and a crash costs only its
own rows.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import console, cuda
from .gpu_runs import runs_for
from .measure import side_by_side, timed
from .suite import Row, print_rows, write_rows

_MEMORY_FOLDER = Path("/dev/shm")
_SECONDS_PER_FORMAT = 900
_SECONDS_PER_CALL = 0.05  # Runs are put in a row until they take so long
_LARGEST_DIFFERENCE = 0.03  # rms of the logits' difference over the rms of the logits
_ROOM = 64  # positions of the cache behind the past

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
    ("qwen2-0.5b", "cpu"): {("nvfp4", "decode", 1): 1.0, ("int4", "decode", 1): 1.0},
}
_CREATION_SECONDS, _CREATION_MEMORY = 15.0, 1.3  # of the llama-8b on a GPU


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

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("gpu")

    @property
    def bars(self) -> dict:
        return _BARS.get((self.preset, "gpu" if self.on_gpu else "cpu"), {})

    def cases(self) -> list[tuple[str, int, int, int]]:
        """Kind, batch, past, tokens fed."""
        decode = [("decode", batch, self.past, 1) for batch in self.batches]
        return decode + [("prefill", 1, 0, self.prefill)]


def plan_of(args) -> DecoderPlan:
    from .models.decoder_config import PRESETS, WEIGHT_FORMATS
    from .session import devices

    device = args.device
    if device == "auto":
        device = devices()[0].device.type.name.lower()
    preset = args.preset or ("llama-8b" if device.startswith("gpu") else "qwen2-0.5b")
    if preset not in PRESETS:
        raise ValueError(f"unknown preset '{preset}'; one of: {', '.join(PRESETS)}")
    formats = tuple(args.weights.split(","))
    if unknown := [name for name in formats if name not in WEIGHT_FORMATS]:
        raise ValueError(f"unknown weights '{unknown[0]}'; one of: {', '.join(WEIGHT_FORMATS)}")
    batches = tuple(int(batch) for batch in args.batch.split(","))
    return DecoderPlan(
        preset, device, formats, batches, args.past, args.prefill, args.seconds, args.threads
    )


def run_decoder_suite(args) -> int:
    import onnxruntime

    plan = plan_of(args)
    say = (lambda *_: None) if args.json else console.say
    rows: list[Row] = []
    problems = {}
    for format in plan.formats:
        say(f"{plan.preset} in {format} ...")
        measured, problem = _in_a_process_of_its_own(plan, format)
        rows += measured
        if problem:
            problems[format] = problem
    gpu = cuda.find_driver().gpus[0] if plan.on_gpu else ""
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": gpu,
        "onnxruntime": onnxruntime.__version__,
        "preset": plan.preset,
        "rows": [_as_json(row) for row in rows],
        "problems": problems,
    }
    if args.out:
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    if args.json:
        console.print_json(result)
    else:
        print_rows(rows, f"{plan.preset} on {gpu or 'the host'}, {_peer_name(plan)} beside it")
        for format, text in problems.items():
            console.say(f"FAILED  {format}: {text}")
    return 1 if problems else 0


def _peer_name(plan: DecoderPlan) -> str:
    return "the CUDA provider" if plan.on_gpu else "the CPU provider on INT4"


def _as_json(row: Row) -> dict:
    fields = {**row.__dict__, "ratio": row.ratio}
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }


def _in_a_process_of_its_own(plan: DecoderPlan, format: str) -> tuple[list[Row], str]:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_measure_for_parent, args=(theirs, plan, format), daemon=True)
    process.start()
    theirs.close()
    rows: list[Row] = []
    problem = ""
    try:
        while True:
            if not pipe.poll(_SECONDS_PER_FORMAT):
                problem = f"no answer within {_SECONDS_PER_FORMAT} s: a kernel may hang"
                break
            told = pipe.recv()
            if told is None:
                break
            if isinstance(told, str):
                problem = told
                break
            rows.append(told)
    except EOFError:
        process.join()
        problem = f"the measuring process ended with {process.exitcode}"
    process.kill()
    process.join()
    return rows, problem


def _measure_for_parent(pipe, plan: DecoderPlan, format: str) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="tenon-", dir=_folder_for(plan, format)) as folder:
            for row in measure_format(plan, format, Path(folder)):
                pipe.send(row)
        pipe.send(None)
    except Exception as error:
        pipe.send((str(error).strip() or type(error).__name__)[:500])


def _folder_for(plan: DecoderPlan, format: str) -> Path | None:
    """In memory where there is room: writing and reading gigabytes is not what is measured."""
    needed = _file_bytes(plan, format) + (0 if plan.on_gpu else _file_bytes(plan, "int4"))
    fast = _MEMORY_FOLDER.is_dir() and shutil.disk_usage(_MEMORY_FOLDER).free > 1.5 * needed
    return _MEMORY_FOLDER if fast else None


def _file_bytes(plan: DecoderPlan, format: str) -> float:
    """About as large as the model's file will be."""
    from .models.decoder_config import PRESETS

    config = PRESETS[plan.preset]
    bits = {"f32": 32, "f16": 16, "bf16": 16, "mxfp8": 8.25}.get(format, 4.5)
    attention = config.hidden * 2 * (config.query_width + config.kv_width)
    layers = config.layers * (attention + 3 * config.hidden * config.feed_forward)
    table = config.vocabulary * config.hidden
    return (layers + table) * bits / 8 + table * (2 if plan.on_gpu else 4)


def measure_format(plan: DecoderPlan, format: str, folder: Path):
    """Yields the rows of one format as they come."""
    from .genai_folder import GenaiFolder

    ours = _write(plan, format, folder / format)
    theirs = ours if plan.on_gpu or format == "int4" else _write(plan, "int4", folder / "int4")
    before = _peak_memory()
    opened = []
    created = timed(lambda: opened.append(_open_tenon(plan, ours)))
    session = opened[0]
    yield _creation_row(plan, format, ours, created, _peak_memory() - before)
    tenon = _Side(session, GenaiFolder.load(ours), plan.on_gpu)
    peer = _Peer(plan, theirs)
    for number, case in enumerate(plan.cases()):
        yield _case_row(plan, format, case, number, tenon, peer, same_file=theirs == ours)


def _write(plan: DecoderPlan, format: str, folder: Path) -> Path:
    from .models.decoder import write_decoder
    from .models.decoder_config import ACTIVATION_TYPES, PRESETS, Spelling
    from .models.decoder_weights import DrawnWeights

    wanted = "f16" if plan.on_gpu else "f32"
    activations = format if format in ACTIVATION_TYPES else wanted
    level = 0 if plan.on_gpu else 4
    spelling = Spelling("genai", format, activations, packed_qkv=True, accuracy_level=level)
    write_decoder(folder, PRESETS[plan.preset], spelling, DrawnWeights())
    return folder


def _open_tenon(plan: DecoderPlan, folder: Path):
    from .commands.arguments import session_options
    from .session import create_session

    options = {"enable_cuda_graph": True} if plan.on_gpu else {"precision_mode": "int8"}
    options["require_full_claim"] = True
    settings = session_options(plan.threads)
    return create_session(folder / "model.onnx", plan.device, settings, **options)


class _Side:
    """A provider's session, and steps bound to it."""

    def __init__(self, session, folder, captures: bool):
        self.session, self._folder = session, folder
        self._by_name = captures and session.get_providers()[0] == "CUDAExecutionProvider"
        self._captures = captures

    def bind(self, number: int, case, cache: np.ndarray, ids: np.ndarray) -> Callable:
        """A function that makes so many Runs of the case's step; its first Run is done."""
        from .generation import TokenLoop
        from .gpu_runs import back_to_back, run_options

        kind, batch, past, count = case
        loop = TokenLoop(
            self.session, self._folder, batch, cache.shape[2], share_cache=True,
            fixed_mask=self._captures,
        )  # fmt: skip
        loop.assume(past, cache)
        binding, outputs = loop.bound_step(ids)
        # The CUDA provider keeps a graph per number; a prompt runs without one.
        entries = {"gpu_graph_id": str(number + 1 if kind == "decode" else -1)}
        entries = entries if self._by_name else {}
        self.session.run_with_iobinding(binding, run_options(**entries))
        self.logits = loop.logits(outputs)[:, -1].astype(np.float32)
        self._kept = loop, outputs  # a binding knows addresses only
        return lambda runs: back_to_back(self.session, binding, runs, **entries)


class _Peer:
    """The other provider: with CUDA graphs, without them where it captures none, or not at all."""

    def __init__(self, plan: DecoderPlan, folder: Path):
        self._plan, self._folder = plan, folder
        self._left_to_try = [True, False] if plan.on_gpu else [False]
        self._side: _Side | None = None
        self._notes: list[str] = []

    def bind(self, number: int, case, cache: np.ndarray, ids: np.ndarray) -> Callable | None:
        while self._left_to_try:
            try:
                self._side = self._side or self._open(self._left_to_try[0])
                return self._side.bind(number, case, cache, ids)
            except Exception as error:
                self._side = None
                captures = self._left_to_try.pop(0)
                text = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
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

    def _open(self, captures: bool) -> _Side:
        import onnxruntime

        from .commands.arguments import session_options
        from .commands.bench import open_cuda_session
        from .genai_folder import GenaiFolder

        path, settings = str(self._folder / "model.onnx"), session_options(self._plan.threads)
        if self._plan.on_gpu:
            options = {"enable_cuda_graph": "1"} if captures else {}
            session = open_cuda_session(path, settings, **options)
        else:
            session = onnxruntime.InferenceSession(
                path, settings, providers=["CPUExecutionProvider"]
            )
        return _Side(session, GenaiFolder.load(self._folder), captures)


def _case_row(
    plan: DecoderPlan, format: str, case, number: int, tenon: _Side, peer: _Peer, same_file: bool
) -> Row:
    from .models.decoder_config import PRESETS

    kind, batch, past, count = case
    config = PRESETS[plan.preset]
    random = np.random.default_rng(number)
    shape = (batch, config.kv_heads, past + count + _ROOM, config.head_size)
    cache = random.standard_normal(shape, np.float32) * np.float32(0.5)
    ids = random.integers(0, config.vocabulary, (batch, count))
    bound = {"tenon": tenon.bind(number, case, cache, ids)}
    if (theirs := peer.bind(number, case, cache, ids)) is not None:
        bound["other"] = theirs
    runs = {name: runs_for(call, _SECONDS_PER_CALL) for name, call in bound.items()}
    calls = {name: call(runs[name]) for name, call in bound.items()}
    timings = {t.name: t.median / runs[t.name] for t in side_by_side(calls, plan.seconds, 3)}
    notes = [f"{batch * count / timings['tenon']:.0f} tokens/s"]
    if "other" in bound and same_file:
        notes.append(_compared(f"{kind}, batch {batch}", tenon.logits, peer.logits))
    ours, other = timings["tenon"], timings.get("other", math.nan)
    bar = plan.bars.get((format, kind, batch))
    return Row(
        f"{format} {kind}, batch {batch}, " + (f"past {past}" if past else f"{count} tokens"),
        ours,
        other,
        f"<= {bar}" if bar else "",
        None if bar is None or math.isnan(other) else ours <= bar * other,
        "; ".join(notes + peer.take_notes()),
    )


def _compared(case: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    difference = _difference(ours, theirs)
    if difference > _LARGEST_DIFFERENCE:
        raise RuntimeError(f"WRONG: {case}: logits differ by {difference:.1%} from the other's")
    return f"logits within {difference:.2%}"


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    size = np.sqrt(np.mean(np.square(theirs, dtype=np.float64)))
    found = float(np.sqrt(np.mean(np.square(ours - theirs, dtype=np.float64))) / size)
    return math.inf if math.isnan(found) else found


def _creation_row(plan, format: str, folder: Path, seconds: float, grown: int) -> Row:
    size = sum(file.stat().st_size for file in folder.glob("model.onnx*"))
    judged = plan.on_gpu and bool(plan.bars)
    met = seconds <= _CREATION_SECONDS and grown <= _CREATION_MEMORY * size
    return Row(
        f"{format} session creation",
        seconds,
        math.nan,
        f"<= {_CREATION_SECONDS:.0f} s, {_CREATION_MEMORY} of the file" if judged else "",
        met if judged else None,
        f"{console.size(size)} file, host memory {grown / size:+.2f} of it",
    )


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
