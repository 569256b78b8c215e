"""The table of cases on a GPU: memory-bound chains, the encoder, what a Run adds, compiling,
memory that goes back."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from .. import console, cuda
from ..bindings import bound_to_gpu, caller
from ..provider_sessions import has_cuda_provider, session_options
from ..report import session_with_report
from ..session import create_session
from .driver_clock import DriverClock
from .gpu_runs import back_to_back, host_ahead
from .measure import side_by_side, timed
from .rows import Row, print_rows, write_rows

_NO_OTHER = float("nan")
_ENCODER_BAR = 0.6  # of the time that the f16 model takes on the CUDA provider


@dataclass(frozen=True)
class Scale:
    """How much is measured; tests measure less."""

    chain_rows: int = 65536
    chain_columns: int = 4096
    copied_bytes: int = 1 << 30
    batches: tuple[int, ...] = (1, 32)
    tokens: int = 128
    sessions: int = 1000
    runs: int = 100_000
    leak_seconds: float = 85.0  # no further session is begun after this
    seconds: float = 1.0  # per side of a comparison


@dataclass
class Bench:
    """What the cases share."""

    scale: Scale = field(default_factory=Scale)
    clock: DriverClock = field(default_factory=DriverClock)

    @cached_property
    def encoders(self) -> tuple:
        """The sentence encoder with f16 activations: weights in NVFP4, and in f16."""
        from ..models import encoder
        from ..models.quantize import quantize_model

        shape = encoder.EncoderShape()
        plain = encoder.build_encoder(encoder.load_weights(encoder.find_weights_folder(), shape))
        packed, _ = quantize_model(plain, "nvfp4", activations="f16")
        half, _ = quantize_model(plain, "nvfp4", activations="f16", exclude=["*"])
        return packed, half

    def encoder_inputs(self, batch: int) -> dict[str, np.ndarray]:
        from ..models.encoder import random_tokens

        return random_tokens(batch, self.scale.tokens)


def _back_to_back(session, inputs, runs: int = 20) -> float:
    """Seconds of one Run when the host is always ahead of the device: median of five."""
    many = back_to_back(session, bound_to_gpu(session, inputs), runs)
    many()
    return float(np.median([timed(many) for _ in range(5)])) / runs


def chain_model(kind: str, rows: int, columns: int):
    """A memory-bound chain in f16, and how many tensors it reads."""
    from ..models.builder import FLOAT16, GraphBuilder

    g = GraphBuilder(kind, 23)
    x = g.input("x", FLOAT16, [rows, columns])
    y = g.output("y", FLOAT16, [rows, columns])
    if kind == "softmax":
        g.node("Softmax", [x], outputs=[y], axis=-1)
        return g.model(check=False), 1
    r = g.input("r", FLOAT16, [rows, columns])
    if kind == "pointwise chain":
        scaled = g.node("Mul", [x, g.constant("scale", np.float16(1.5))])
        active = g.node("Mul", [scaled, g.node("Sigmoid", [scaled])])
        g.node("Add", [active, r], outputs=[y])
    else:
        total = g.node("Add", [x, r])
        weight = g.parameter("weight", np.ones(columns, np.float16))
        g.node("RMSNormalization", [total, weight], outputs=[y], axis=-1, epsilon=1e-6)
    return g.model(check=False), 2


def chain_inputs(reads: int, rows: int, columns: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    drawn = min(rows, 4096)  # drawing all of them takes longer than all that is measured
    return {
        name: np.resize(random.standard_normal((drawn, columns), np.float32), (rows, columns))
        .astype(np.float16)
        for name in ("x", "r")[:reads]
    }  # fmt: skip


def memory_bound(bench: Bench) -> list[Row]:
    """chains over large tensors"""
    rate = bench.clock.copy_rate(bench.scale.copied_bytes)
    height, width = bench.scale.chain_rows, bench.scale.chain_columns
    rows = []
    for kind in ("pointwise chain", "norm + residual", "softmax"):
        model, reads = chain_model(kind, height, width)
        session = create_session(model, "gpu", session_options(0), claim="all")
        seconds = _back_to_back(session, chain_inputs(reads, height, width))
        moved = (reads + 1) * height * width * 2
        floor = moved / rate
        rows.append(
            Row(
                f"{kind}, {moved / 1e9:.1f} GB",
                seconds,
                floor,
                ">= 85 % of the copy rate",
                seconds <= floor / 0.85,
                f"{floor / seconds:.0%} of {rate / 1e12:.2f} TB/s",
            )
        )
    return rows


def encoder(bench: Bench) -> list[Row]:
    """the sentence encoder in NVFP4 with f16 activations"""
    import onnxruntime

    packed, half = bench.encoders
    rows = []
    for batch in bench.scale.batches:
        inputs = bench.encoder_inputs(batch)
        ours = create_session(packed, "gpu", session_options(0), enable_cuda_graph=True)
        calls = {"tenon": caller(ours, inputs)}
        note = "no CUDA provider here"
        if has_cuda_provider():
            theirs = onnxruntime.InferenceSession(
                half.SerializeToString(),
                session_options(0),
                providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
            )
            calls["cuda"] = caller(theirs, inputs)
            note = "other: f16 model, CUDA provider"
        mine, *others = side_by_side(calls, bench.scale.seconds)
        other = others[0].median if others else _NO_OTHER
        met = mine.median <= _ENCODER_BAR * other if others else None
        case = f"encoder NVFP4 f16, {batch} x {bench.scale.tokens}"
        rows.append(Row(case, mine.median, other, f"<= {_ENCODER_BAR}", met, note))
    return rows


def run_over_replay(bench: Bench) -> list[Row]:
    """a captured Run against the replay of its launches alone"""
    packed, _ = bench.encoders
    small, _ = chain_model("norm + residual", 64, 1024)
    cases = {
        "captured Run, one kernel": (small, chain_inputs(2, 64, 1024)),
        "captured Run, encoder": (packed, bench.encoder_inputs(1)),
    }
    return [_run_over_replay(bench, case, *given) for case, given in cases.items()]


def _run_over_replay(bench: Bench, case: str, model, inputs) -> Row:
    # The other side: the same launches captured by us while a session without graphs runs once on
    # our stream, then launched and waited for with two calls of the driver. Both from Python.
    clock, stream = bench.clock, bench.clock.stream()
    on_stream = {"claim": "all", "user_compute_stream": stream.value}
    ours, report = session_with_report(
        model, "gpu", session_options(0), enable_cuda_graph=True, **on_stream
    )
    recorded = create_session(model, "gpu", session_options(0), **on_stream)
    bindings = [bound_to_gpu(session, inputs) for session in (ours, recorded)]
    ahead = host_ahead()
    recorded.run_with_iobinding(bindings[1])
    graph = clock.capture(lambda: recorded.run_with_iobinding(bindings[1], ahead), stream)

    def replay() -> None:
        clock.launch(graph, stream)
        clock.synchronize(stream)

    calls = {"run": lambda: ours.run_with_iobinding(bindings[0]), "replay": replay}
    run, alone = (timing.median for timing in side_by_side(calls, bench.scale.seconds))
    on_device = np.median(
        [clock.elapsed(lambda: clock.launch(graph, stream), stream) for _ in range(20)]
    )
    note = f"{(run - alone) * 1e6:+.1f} us; the GPU itself {console.duration(float(on_device))}"
    if report.coverage.partitions != 1:
        note += f"; {report.coverage.partitions} partitions"
    return Row(case, run, alone, "<= +10 us", run - alone <= 10e-6, note)


def compile_cold(bench: Bench) -> list[Row]:
    """compiling the encoder's kernels in a fresh process"""
    packed, _ = bench.encoders
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        path = Path(folder) / "encoder.onnx"
        path.write_bytes(packed.SerializeToString())
        script = "from onnxruntime_ep_tenon.bench import gpu_suite; gpu_suite.tell_cold_sessions()"
        child = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, timeout=300
        )
        if child.returncode:
            raise RuntimeError(f"the process that compiles failed: {child.stderr[-2000:]}")
        told = json.loads(child.stdout.splitlines()[-1])
    slowest = told["slowest"]
    return [
        Row(
            "encoder, compile cold, slowest kernel",
            slowest,
            0.3,
            "<= 0.3 s",
            slowest <= 0.3,
            f"{told['kernels']} kernels in parallel, session {told['first']:.2f} s",
        ),
        Row(
            "encoder, second session, same process",
            told["second"],
            told["first"],
            "",
            None,
            "other: the first session, which is closed by then",
        ),
    ]


def tell_cold_sessions() -> None:
    """In a process of its own: the encoder's first and second session, in seconds, as JSON."""
    model, reports = sys.argv[1], []

    def open_one(model) -> None:
        _, report = session_with_report(model, "gpu", session_options(0), claim="all", cache_dir="")
        reports.append(report)

    warm_up, _ = chain_model("softmax", 8, 64)
    # The driver's own start is not a kernel's, and the GPU stays open.
    still_open = create_session(warm_up, "gpu", session_options(0), claim="all")
    first = timed(lambda: open_one(model))
    second = timed(lambda: open_one(model))
    kernels = reports[0].kernels
    slowest = max(kernel["compile_ms"] for kernel in kernels) / 1e3
    told = {"first": first, "second": second, "slowest": slowest, "kernels": len(kernels)}
    print(json.dumps(told))
    del still_open


def leaks(bench: Bench) -> list[Row]:
    """memory after many sessions and Runs"""
    from ..models.builder import FLOAT, GraphBuilder

    g = GraphBuilder("small", 17)
    g.node("Add", [g.input("a", FLOAT, ["n"]), g.input("b", FLOAT, ["n"])], outputs=["c"])
    g.output("c", FLOAT, ["n"])
    model = g.model().SerializeToString()
    inputs = {name: np.ones(4096, np.float32) for name in "ab"}
    per_session = bench.scale.runs // bench.scale.sessions

    def cycle() -> None:
        session = create_session(
            model, "gpu", session_options(1), claim="all", enable_cuda_graph=True
        )
        call = caller(session, inputs)
        for _ in range(per_session):
            call()

    for _ in range(min(20, bench.scale.sessions)):
        cycle()
    free, resident = bench.clock.free_memory(), _resident()
    begin, done = time.perf_counter(), 0
    while done < bench.scale.sessions and time.perf_counter() - begin < bench.scale.leak_seconds:
        cycle()
        done += 1
    seconds = (time.perf_counter() - begin) / done
    lost, grown = free - bench.clock.free_memory(), _resident() - resident
    return [
        Row(
            f"{done} sessions, {done * per_session} Runs",
            seconds,
            _NO_OTHER,
            "memory flat",
            lost <= 4 << 20 and grown <= 64 << 20,
            f"per session; device {lost / 2**20:+.1f} MiB, host {grown / 2**20:+.1f} MiB",
        )
    ]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


CASES = (memory_bound, encoder, run_over_replay, compile_cold, leaks)


def run_gpu_suite(args, scale: Scale | None = None) -> int:
    import onnxruntime

    say = (lambda *_: None) if args.json else console.say
    bench = Bench(scale or Scale())
    rows: list[Row] = []
    for case in CASES:
        say(f"{case.__doc__.strip()} ...")
        rows += case(bench)
    driver = cuda.find_driver()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": driver.gpus[0],
        "driver": driver.cuda,
        "onnxruntime": onnxruntime.__version__,
        "rows": [row.as_json() for row in rows],
    }
    if args.out:
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    if args.json:
        console.print_json(result)
    else:
        print_rows(rows, f"On {result['gpu']}, onnxruntime {result['onnxruntime']}")
    return 0
