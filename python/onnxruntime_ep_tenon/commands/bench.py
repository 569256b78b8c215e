"""The same model and inputs on several providers, in one process, in turns."""

from __future__ import annotations

import json
from pathlib import Path

from .. import console, tensors
from ..measure import Timing, side_by_side
from ..requirements import has
from ..session import create_session
from . import arguments

SUMMARY = "time a model on Tenon and on ONNX Runtime's own providers"


def add_arguments(parser) -> None:
    parser.add_argument("model", nargs="?", help="an ONNX model file")
    parser.add_argument(
        "--suite",
        nargs="?",
        const="general",
        choices=("general", "products", "attention", "decoder"),
        help="no model: the project's own table of cases, that of block-scaled products on a GPU, "
        "of attentions, or whole decoders",
    )
    parser.add_argument(
        "--quick", action="store_true", help="products: NVFP4 only; attention: cases with a bar"
    )
    parser.add_argument(
        "--random",
        type=int,
        default=0,
        metavar="COUNT",
        help="products: random shapes besides the table, drawn with --seed",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="products, attention: cases of this name, e.g. 'int4 M=16 *'",
    )
    _add_decoder_sizes(parser)
    parser.add_argument(
        "--providers",
        default="tenon,cpu",
        help="comma-separated: tenon, cuda (of onnxruntime-gpu), cpu; inputs and outputs of the "
        "first two stay on the GPU",
    )
    parser.add_argument(
        "--cpu-model", metavar="FILE", help="the CPU provider runs this one instead"
    )
    parser.add_argument(
        "--cuda-model", metavar="FILE", help="the CUDA provider runs this one instead"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="per provider (default: 2)")
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="decoder: what is not done by then is left out",
    )
    parser.add_argument("--out", metavar="FOLDER", help="write results and plots there")
    arguments.add_session(parser)
    arguments.add_inputs(parser)
    arguments.add_json(parser)


def _add_decoder_sizes(parser) -> None:
    parser.add_argument(
        "--preset", help="decoder: of `tenon models decoder` (llama-8b on a GPU, else qwen2-0.5b)"
    )
    parser.add_argument("--weights", default="nvfp4,int4", help="decoder: formats, by comma")
    parser.add_argument("--batch", default="1,16", help="decoder: rows of a step, by comma")
    parser.add_argument("--past", type=int, default=512, help="decoder: tokens before a step")
    parser.add_argument("--prefill", type=int, default=2048, help="decoder: tokens of a prompt")
    parser.add_argument(
        "--kernels", action="store_true", help="decoder: what each kernel of a GPU adds (torch)"
    )


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
    gpu = gpu_of(session)
    names = [output.name for output in session.get_outputs()]
    feed = {name: tensors.to_ort_value(value) for name, value in inputs.items()}
    if gpu is None:
        return lambda: session.run_with_ort_values(names, feed)
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, tensors.to_gpu_value(value, gpu))
    for name, value in zip(names, session.run_with_ort_values(names, feed), strict=True):
        binding.bind_ortvalue_output(name, tensors.gpu_value_like(value, gpu))
    return lambda: session.run_with_iobinding(binding)


def gpu_of(session) -> int | None:
    """The number of the GPU that the session's first provider runs on."""
    provider = session.get_providers()[0]
    options = session.get_provider_options().get(provider, {})
    if provider == "CUDAExecutionProvider":
        return int(options.get("device_id", 0))
    return getattr(session, "tenon_gpu", None)


def _open(args) -> tuple[dict, dict[str, str]]:
    openers = {"tenon": _open_tenon, "cuda": _open_cuda, "cpu": _open_cpu}
    sessions, failures = {}, {}
    for name in args.providers.split(","):
        if name not in openers:
            raise ValueError(f"unknown provider '{name}'; one of: {', '.join(openers)}")
        try:
            sessions[name] = openers[name](args, arguments.session_options(args.threads))
        except Exception as error:
            if isinstance(error, (ValueError, FileNotFoundError)):
                raise
            failures[name] = str(error)
    return sessions, failures


def _open_tenon(args, settings):
    return create_session(args.model, args.device, settings, **dict(args.option))


def _open_cuda(args, settings):
    return open_cuda_session(args.cuda_model or args.model, settings)


def open_cuda_session(model, settings, **options):
    """A session on ONNX Runtime's own CUDA provider, or the reason why there is none."""
    import onnxruntime

    name = "CUDAExecutionProvider"
    if name not in onnxruntime.get_available_providers():
        raise RuntimeError("this onnxruntime has no CUDA provider: pip install onnxruntime-gpu")
    session = onnxruntime.InferenceSession(
        model, settings, providers=[(name, options), "CPUExecutionProvider"], enable_fallback=0
    )
    if name not in session.get_providers():
        raise RuntimeError("the CUDA provider did not start: see its message above")
    return session


def _open_cpu(args, settings):
    import onnxruntime

    return onnxruntime.InferenceSession(
        args.cpu_model or args.model, settings, providers=["CPUExecutionProvider"]
    )


def _result(args, inputs, timings: list[Timing], failures) -> dict:
    import onnxruntime

    by_name = {timing.name: timing for timing in timings}
    ratios = {
        f"tenon_over_{other}": by_name["tenon"].median / by_name[other].median
        for other in by_name
        if other != "tenon" and "tenon" in by_name
    }
    return {
        "model": args.model,
        "runtime": onnxruntime.__version__,
        "inputs": {name: [str(a.dtype), list(a.shape)] for name, a in inputs.items()},
        "timings": [timing.as_dict() for timing in timings],
        "failures": failures,
        "tenon_over_cpu": None,
        **ratios,
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
    for other in ("cpu", "cuda"):
        if result.get(f"tenon_over_{other}") is not None:
            ratio = result[f"tenon_over_{other}"]
            console.say(f"Tenon takes {ratio:.2f} of the {other.upper()} provider's time.")
