"""The table of cases on a GPU: memory-bound chains, the encoder, memory that goes back."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np

from . import console, cuda
from .commands.arguments import session_options
from .commands.bench import caller
from .measure import side_by_side, timed
from .session import create_session
from .suite import Row, print_rows, write_rows


class DriverClock:
    """Device-to-device copies timed by the driver's own events: the rate that memory allows."""

    def __init__(self, ordinal: int = 0):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)
        self._call("cuCtxSetCurrent", self._context)

    def _call(self, name: str, *arguments) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} failed with error {result}")

    def copy_rate(self, size: int = 1 << 30, times: int = 20) -> float:
        """Bytes read and written per second."""
        source, target = ctypes.c_uint64(), ctypes.c_uint64()
        for buffer in (source, target):
            self._call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in events:
            self._call("cuEventCreate", ctypes.byref(event), 0)
        rates = []
        for _ in range(times):
            self._call("cuEventRecord", events[0], None)
            self._call("cuMemcpyDtoDAsync_v2", target, source, ctypes.c_size_t(size), None)
            self._call("cuEventRecord", events[1], None)
            self._call("cuEventSynchronize", events[1])
            elapsed = ctypes.c_float()
            self._call("cuEventElapsedTime", ctypes.byref(elapsed), *events)
            rates.append(2 * size / (elapsed.value * 1e-3))
        for buffer in (source, target):
            self._call("cuMemFree_v2", buffer)
        return float(np.median(rates))

    def free_memory(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def _back_to_back(session, inputs, runs: int = 20) -> float:
    """Seconds of one Run when the host is always ahead of the device: median of five."""
    import onnxruntime

    from . import tensors

    gpu = session.tenon_gpu
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, tensors.to_gpu_value(value, gpu))
    for output in session.get_outputs():
        binding.bind_output(output.name, *tensors.gpu_place(gpu))
    ahead = onnxruntime.RunOptions()
    ahead.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def many() -> None:
        for _ in range(runs - 1):
            session.run_with_iobinding(binding, ahead)
        session.run_with_iobinding(binding)

    many()
    return float(np.median([timed(many) for _ in range(5)])) / runs


def _chain_model(kind: str, rows: int, columns: int):
    from .models.builder import FLOAT16, GraphBuilder

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


def memory_bound(clock: DriverClock, _peers: bool) -> list[Row]:
    """chains over large tensors"""
    rate = clock.copy_rate()
    rows = []
    height, width = 65536, 4096
    random = np.random.default_rng(0)
    for kind in ("pointwise chain", "norm + residual", "softmax"):
        model, reads = _chain_model(kind, height, width)
        inputs = {
            name: random.standard_normal((height, width), np.float32).astype(np.float16)
            for name in ("x", "r")[:reads]
        }
        session = create_session(model, "gpu", session_options(0), claim="all")
        seconds = _back_to_back(session, inputs)
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


def encoder(_clock: DriverClock, peers: bool) -> list[Row]:
    """the sentence encoder in NVFP4 with f16 activations, 128 tokens"""
    import onnxruntime

    from .models import encoder as models
    from .models.quantize import quantize_model

    shape = models.EncoderShape()
    plain = models.build_encoder(models.load_weights(models.find_weights_folder(), shape))
    packed, _ = quantize_model(plain, "nvfp4", activations="f16")
    half, _ = quantize_model(plain, "nvfp4", activations="f16", exclude=["*"])
    rows = []
    for batch in (1, 32):
        inputs = models.random_tokens(batch, 128)
        ours = create_session(packed, "gpu", session_options(0), enable_cuda_graph=True)
        calls = {"tenon": caller(ours, inputs)}
        if peers:
            theirs = onnxruntime.InferenceSession(
                half.SerializeToString(),
                session_options(0),
                providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
            )
            calls["cuda"] = caller(theirs, inputs)
        timings = side_by_side(calls, 1.0)
        mine = timings[0].median
        other = timings[1].median if peers else float("nan")
        met = mine <= other if peers else None
        note = "f16 model on the CUDA provider" if peers else "no CUDA provider here"
        rows.append(Row(f"encoder NVFP4 f16, {batch} x 128", mine, other, "<= 1.0", met, note))
    begin = time.perf_counter()
    create_session(packed, "gpu", session_options(0))
    created = time.perf_counter() - begin
    rows.append(Row("encoder session, kernels cached", created, 2.0, "", None, "other: 2 s"))
    return rows


def leaks(clock: DriverClock, _peers: bool, sessions: int = 50, runs: int = 2000) -> list[Row]:
    """memory after many sessions and Runs"""
    from .models.builder import FLOAT, GraphBuilder

    g = GraphBuilder("small", 17)
    g.node("Add", [g.input("a", FLOAT, ["n"]), g.input("b", FLOAT, ["n"])], outputs=["c"])
    g.output("c", FLOAT, ["n"])
    model = g.model()
    inputs = {name: np.ones(4096, np.float32) for name in "ab"}

    def cycle(count: int) -> None:
        session = create_session(model, "gpu", session_options(0), claim="all")
        call = caller(session, inputs)
        for _ in range(count):
            call()

    cycle(10)
    before, resident = clock.free_memory(), _resident()
    begin = time.perf_counter()
    for _ in range(sessions):
        cycle(runs // sessions)
    seconds = (time.perf_counter() - begin) / sessions
    lost = before - clock.free_memory()
    grown = _resident() - resident
    return [
        Row(
            f"{sessions} sessions, {runs} Runs",
            seconds,
            float("nan"),
            "memory flat",
            lost <= 1 << 22 and grown <= 1 << 26,
            f"device {lost / 2**20:+.1f} MiB, host {grown / 2**20:+.1f} MiB",
        )
    ]


def run_gpu_suite(args) -> int:
    import onnxruntime

    say = (lambda *_: None) if args.json else console.say
    peers = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    clock = DriverClock()
    rows: list[Row] = []
    for case in (memory_bound, encoder, leaks):
        say(f"{case.__doc__.strip()} ...")
        rows += case(clock, peers)
    result = {
        "gpu": cuda.find_driver().gpus[0],
        "driver": cuda.find_driver().cuda,
        "onnxruntime": onnxruntime.__version__,
        "rows": [{**row.__dict__, "ratio": row.ratio} for row in rows],
    }
    if args.out:
        write_rows(Path(args.out), result, rows)
    if args.json:
        console.print_json(result)
    else:
        print_rows(rows, f"On {result['gpu']}, onnxruntime {result['onnxruntime']}")
    return 0


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
