"""The table of cases on the host: 4-bit products, formats, the encoder, what a Run adds."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .. import console
from ..bindings import caller
from ..provider_sessions import session_options
from ..session import create_session
from .measure import fma_peak, read_bandwidth, side_by_side, timed
from .rows import Row, print_rows, write_rows

_SIZE = 4096


def run_host_suite(args) -> int:
    say = (lambda *_: None) if args.json else console.say
    say("measuring the machine ...")
    bandwidth, peak = read_bandwidth(), fma_peak()
    say(f"read bandwidth {bandwidth / 1e9:.1f} GB/s, matrix product {peak / 1e9:.0f} GFLOP/s")
    rows: list[Row] = []
    for case in _CASES:
        say(f"{case.__doc__.strip()} ...")
        rows += case(args, bandwidth, peak)
    result = {
        "read_bandwidth_bytes_s": bandwidth,
        "matrix_product_flop_s": peak,
        "rows": [row.as_json() for row in rows],
    }
    if args.out:
        write_rows(Path(args.out), result, rows)
    if args.json:
        console.print_json(result)
    else:
        print_rows(rows, "Against ONNX Runtime's CPU provider, same run, same threads")
    return 0


def _pair(model, inputs, args, other=None, **options) -> tuple[float, float]:
    """Median seconds of the model on Tenon, and of it or another one on the CPU provider."""
    import onnxruntime

    ours = create_session(model, "cpu", session_options(args.threads), **options)
    theirs = onnxruntime.InferenceSession(
        (other or model).SerializeToString(),
        session_options(args.threads),
        providers=["CPUExecutionProvider"],
    )
    timings = side_by_side(
        {"tenon": caller(ours, inputs), "cpu": caller(theirs, inputs)}, args.seconds
    )
    return timings[0].median, timings[1].median


def _stacked_nbits(rows: int, copies: int, accuracy_level: int):
    """Several 4-bit products of one input: together too large for the caches."""
    from ..models.builder import FLOAT, GraphBuilder

    random = np.random.default_rng(0)
    blocks = _SIZE // 32
    g = GraphBuilder("stacked", 21, ("com.microsoft",))
    x = g.input("x", FLOAT, [rows, _SIZE])
    for copy in range(copies):
        codes = random.integers(0, 256, (_SIZE, blocks, 16), np.uint8)
        scales = (random.random((_SIZE, blocks)) * 0.01).astype(np.float32)
        y = g.output(f"y{copy}", FLOAT, [rows, _SIZE])
        g.node(
            "MatMulNBits",
            [x, g.parameter(f"B{copy}", codes), g.parameter(f"scales{copy}", scales)],
            outputs=[y],
            domain="com.microsoft",
            K=_SIZE,
            N=_SIZE,
            bits=4,
            block_size=32,
            accuracy_level=accuracy_level,
        )
    return g.model(check=False), {"x": random.standard_normal((rows, _SIZE)).astype(np.float32)}


def _dots(args, bandwidth: float, peak: float) -> list[Row]:
    """4-bit products, 4096 x 4096"""
    rows = []
    weight_bytes = _SIZE * _SIZE // 2 + _SIZE * _SIZE // 32 * 4
    one_exact = 0.35 if platform.machine() == "aarch64" else 0.4
    for m, copies, level, bar, least in (
        (1, 24, 0, one_exact, 1 / 1.2),
        (1, 24, 4, 0.95, 1 / 1.15),
        (128, 2, 0, 0.9, 0.88),
        (128, 2, 4, 0.95, None),
    ):
        model, inputs = _stacked_nbits(m, copies, level)
        precision = "exact" if level == 0 else "int8"
        ours, theirs = _pair(model, inputs, args, precision_mode=precision)
        ours, theirs = ours / copies, theirs / copies
        limit = weight_bytes / bandwidth if m == 1 else 2 * m * _SIZE**2 / peak
        name = "read bandwidth" if m == 1 else "numpy's product"
        text = f"<= {bar}" + (f" or {least:.0%} of {name}" if least else "")
        met = ours <= bar * theirs or (least is not None and limit / ours >= least)
        share = f"{limit / ours:.0%} of {name}"
        rows.append(Row(f"4-bit dot M={m}, {precision}", ours, theirs, text, met, share))
    return rows


def _formats(args, _bandwidth: float, _peak: float) -> list[Row]:
    """NVFP4 and MXFP4 beside INT4, 4096 x 4096"""
    from ..models.builder import FLOAT, GraphBuilder
    from ..models.quantize import quantize_model

    copies, random = 4, np.random.default_rng(0)
    g = GraphBuilder("stacked", 21)
    x = g.input("x", FLOAT, ["rows", _SIZE])
    for copy in range(copies):
        weight = random.standard_normal((_SIZE, _SIZE), np.float32) * np.float32(0.02)
        y = g.output(f"y{copy}", FLOAT, ["rows", _SIZE])
        g.node("MatMul", [x, g.parameter(f"w{copy}", weight)], outputs=[y])
    plain = g.model(check=False)
    models = {form: quantize_model(plain, form)[0] for form in ("int4", "nvfp4", "mxfp4")}
    rows = []
    for precision in ("exact", "int8"):
        sessions = {
            form: create_session(
                model, "cpu", session_options(args.threads), precision_mode=precision
            )
            for form, model in models.items()
        }
        for m in (1, 128):
            inputs = {"x": random.standard_normal((m, _SIZE)).astype(np.float32)}
            calls = {form: caller(session, inputs) for form, session in sessions.items()}
            times = {timing.name: timing for timing in side_by_side(calls, args.seconds)}
            int4 = times["int4"].median / copies
            for form in ("nvfp4", "mxfp4"):
                ours = times[form].median / copies
                case = f"{form.upper()} dot M={m}, {precision}"
                rows.append(Row(case, ours, int4, "<= 1.15", ours <= 1.15 * int4, "other: INT4"))
    return rows


def _encoder(args, _bandwidth: float, _peak: float) -> list[Row]:
    """the sentence encoder in NVFP4, 128 tokens"""
    from ..models import encoder
    from ..models.quantize import quantize_model

    shape = encoder.EncoderShape()
    plain = encoder.build_encoder(encoder.load_weights(encoder.find_weights_folder(), shape))
    packed, _ = quantize_model(plain, "nvfp4")
    created = timed(lambda: create_session(packed, "cpu"))  # later ones share its kernels
    case, note = "encoder session creation", "the first of the process; other: the bar itself"
    rows = [Row(case, created, 0.4, "<= 0.4 s", created <= 0.4, note)]
    for precision, bar in (("exact", 0.9), ("int8", 0.5)):
        for batch in (1, 8):
            inputs = encoder.random_tokens(batch, 128)
            ours, theirs = _pair(packed, inputs, args, other=plain, precision_mode=precision)
            case = f"encoder NVFP4, batch {batch}, {precision}"
            met = ours <= bar * theirs
            rows.append(Row(case, ours, theirs, f"<= {bar}", met, "against the f32 model"))
    return rows


def _overhead(args, _bandwidth: float, _peak: float) -> list[Row]:
    """overhead of a Run"""
    from ..models.builder import FLOAT, GraphBuilder

    g = GraphBuilder("one_node", 17)
    g.node("Add", [g.input("a", FLOAT, [8]), g.input("b", FLOAT, [8])], outputs=["c"])
    g.output("c", FLOAT, [8])
    inputs = {name: np.ones(8, np.float32) for name in "ab"}
    ours, theirs = _pair(g.model(), inputs, args, claim="all")
    return [
        Row(
            "Run of one node",
            ours,
            theirs,
            "<= +5 us",
            ours - theirs <= 5e-6,
            f"{(ours - theirs) * 1e6:+.1f} us",
        )
    ]


_CASES: tuple[Callable, ...] = (_dots, _formats, _encoder, _overhead)
