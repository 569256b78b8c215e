"""The same model and inputs on several providers, in one process, in turns."""

from __future__ import annotations

import json
from pathlib import Path

from .. import console, tensors
from ..measure import Timing, side_by_side
from ..requirements import has
from ..session import create_session
from . import arguments

SUMMARY = "time a model on Tenon and on ONNX Runtime's own CPU provider"


def add_arguments(parser) -> None:
    parser.add_argument("model", nargs="?", help="an ONNX model file")
    parser.add_argument(
        "--suite", action="store_true", help="no model: the project's own table of cases"
    )
    parser.add_argument("--providers", default="tenon,cpu", help="comma-separated: tenon, cpu")
    parser.add_argument(
        "--cpu-model", metavar="FILE", help="the CPU provider runs this one instead"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="per provider (default: 2)")
    parser.add_argument("--out", metavar="FOLDER", help="write bench.json and bench.png there")
    arguments.add_session(parser)
    arguments.add_inputs(parser)
    arguments.add_json(parser)


def run(args) -> int:
    if args.suite:
        from ..suite import run_suite

        return run_suite(args)
    if not args.model:
        raise ValueError("give a model, or --suite")
    sessions, failures = _open(args)
    if not sessions:
        raise RuntimeError("; ".join(f"{name}: {text}" for name, text in failures.items()))
    first = next(iter(sessions.values()))
    inputs = arguments.inputs_of(args, first)
    calls = {name: caller(session, inputs) for name, session in sessions.items()}
    timings = side_by_side(calls, args.seconds)
    result = _result(args, inputs, timings, failures)
    if args.out:
        _write(Path(args.out), result, timings)
    if args.json:
        console.print_json(result)
    else:
        _print(result, timings, failures)
    return 0


def caller(session, inputs):
    """One Run with everything bound beforehand, so that only the runtime is timed."""
    names = [output.name for output in session.get_outputs()]
    feed = {name: tensors.to_ort_value(value) for name, value in inputs.items()}
    return lambda: session.run_with_ort_values(names, feed)


def _open(args) -> tuple[dict, dict[str, str]]:
    import onnxruntime

    sessions, failures = {}, {}
    for name in args.providers.split(","):
        settings = arguments.session_options(args.threads)
        try:
            if name == "tenon":
                sessions[name] = create_session(
                    args.model, args.device, settings, **dict(args.option)
                )
            elif name == "cpu":
                sessions[name] = onnxruntime.InferenceSession(
                    args.cpu_model or args.model, settings, providers=["CPUExecutionProvider"]
                )
            else:
                raise ValueError(f"unknown provider '{name}'; one of: tenon, cpu")
        except Exception as error:
            if isinstance(error, (ValueError, FileNotFoundError)):
                raise
            failures[name] = str(error)
    return sessions, failures


def _result(args, inputs, timings: list[Timing], failures) -> dict:
    import onnxruntime

    by_name = {timing.name: timing for timing in timings}
    ratio = None
    if {"tenon", "cpu"} <= set(by_name):
        ratio = by_name["tenon"].median / by_name["cpu"].median
    return {
        "model": args.model,
        "runtime": onnxruntime.__version__,
        "inputs": {name: [str(a.dtype), list(a.shape)] for name, a in inputs.items()},
        "timings": [timing.as_dict() for timing in timings],
        "failures": failures,
        "tenon_over_cpu": ratio,
    }


def _write(folder: Path, result: dict, timings: list[Timing]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(result, indent=2) + "\n")
    if has("matplotlib"):
        from .. import plots

        series = {t.name: [t.median * 1e3] for t in timings}
        plots.bars(
            folder / "bench.png", Path(result["model"]).name, "ms per Run", ["median"], series
        )


def _print(result: dict, timings: list[Timing], failures: dict[str, str]) -> None:
    rows = [
        (
            t.name,
            console.duration(t.median),
            console.duration(t.fast),
            console.duration(t.slow),
            t.calls,
        )
        for t in timings
    ]
    console.table(["provider", "median", "p10", "p90", "runs"], rows, right=(1, 2, 3, 4))
    for name, text in failures.items():
        console.say(f"{name} cannot run this model: {text}")
    if result["tenon_over_cpu"] is not None:
        console.say(f"Tenon takes {result['tenon_over_cpu']:.2f} of the CPU provider's time.")
