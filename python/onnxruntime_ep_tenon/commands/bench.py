"""The same model and inputs on several providers, in one process, in turns."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .. import console, tensors
from ..bench.measure import Timing, side_by_side, speed_text
from ..bindings import caller
from ..drawing import plots
from ..host_memory import PeakMemory
from ..models.staged_folder import write_whole
from ..provider_sessions import cpu_session, open_cuda_session, session_options
from ..report import Report, session_with_report
from ..requirements import has, require
from ..session_facts import threads_text
from . import arguments

SUMMARY = "time a model on Tenon and on ONNX Runtime's own providers"

_SUITES = (
    "general", "products", "attention", "convolution", "decoder", "exported", "sessions", "tuning",
    "ranks",
)  # fmt: skip


def add_arguments(parser) -> None:
    parser.add_argument("model", nargs="?", help="an ONNX model file, or a GenAI folder")
    _add_suite(parser)
    _add_decoder_sizes(parser)
    parser.add_argument(
        "--providers",
        help="comma-separated: tenon, cuda (of onnxruntime-gpu), cpu; inputs and outputs of the "
        "first two stay on the GPU (default: tenon,cpu, where the CPU provider may fail)",
    )
    parser.add_argument(
        "--cpu-model", metavar="FILE", help="the CPU provider runs this one instead"
    )
    parser.add_argument(
        "--cuda-model", metavar="FILE", help="the CUDA provider runs this one instead"
    )
    parser.add_argument(
        "--seconds", type=arguments.seconds, default=2.0, help="per provider (default: 2)"
    )
    parser.add_argument(
        "--limit",
        type=arguments.seconds,
        default=float("inf"),
        metavar="SECONDS",
        help="decoder, exported, tuning: what is not done by then is left out",
    )
    parser.add_argument("--out", metavar="FOLDER", help="write results and plots there")
    arguments.add_session(parser)
    arguments.add_inputs(parser)
    arguments.add_json(parser)


def _add_suite(parser) -> None:
    parser.add_argument(
        "--suite",
        nargs="?",
        const="general",
        choices=_SUITES,
        help="no model: the project's own table of cases, that of block-scaled products on a GPU, "
        "of attentions, convolutions, whole decoders, models that exporters wrote, how long "
        "sessions take to open, what tuning gains, or ranks",
    )
    parser.add_argument(
        "--quick", action="store_true", help="products: NVFP4 only; attention: cases with a bar"
    )
    parser.add_argument(
        "--random",
        type=arguments.count,
        default=0,
        metavar="COUNT",
        help="products: random shapes besides the table, drawn with --seed",
    )
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="products, attention, convolution, exported, tuning: cases of this name, e.g. "
        "'int4 M=16 *'",
    )
    parser.add_argument(
        "--models-dir",
        metavar="FOLDER",
        help="convolution: holds the models of PP-OCR (default: those of rapidocr-onnxruntime); "
        "exported: NAME/model.onnx each, as scripts/export_models makes them",
    )
    parser.add_argument(
        "--constants-factor-seed",
        type=arguments.count,
        metavar="SEED",
        help="tuning: also tune with constants of the cost model that are wrong by random factors",
    )
    parser.add_argument(
        "--tune-plans",
        type=arguments.count,
        metavar="COUNT",
        help="tuning: so many configs of a kernel are measured at first; 1000: all",
    )
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help="exported, tuning: what this bench.json has measured is not measured again; one table "
        "of all",
    )


def _add_decoder_sizes(parser) -> None:
    parser.add_argument(
        "--preset",
        help="decoder, sessions, tuning: of `tenon models decoder` (llama-8b on a GPU, else "
        "qwen2-0.5b)",
    )
    parser.add_argument(
        "--weights", default="nvfp4,int4", help="decoder, sessions: formats, by comma"
    )
    parser.add_argument("--batch", default="1,16", help="decoder: rows of a step, by comma")
    parser.add_argument(
        "--past", type=arguments.count, default=512, help="decoder: tokens before a step"
    )
    parser.add_argument(
        "--prefill", type=arguments.count, default=2048, help="decoder: tokens of a prefill"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="decoder: what each kernel of a GPU adds (torch)"
    )


def run(args) -> int:
    if args.suite:
        require("onnx", "to build the benchmark's models")
        from ..bench.suites import run_suite  # all suites, which need onnx

        return run_suite(args)
    if not args.model:
        raise ValueError("give a model, or --suite")
    sides, failures = _open_all(args)
    if not sides:
        raise RuntimeError("\n".join(f"{name}: {text}" for name, text in failures.items()))
    made, calls = _first_runs(args, sides, failures)
    checks = _check_outputs(args, sides)
    timings = side_by_side(calls, args.seconds)
    result = _result(args, sides, made, timings, failures, checks)
    if args.out:
        _write(Path(args.out), result, timings)
    if args.json:
        console.print_json(result)
    else:
        _print(result, sides, made, timings, checks)
    required = args.providers.split(",") if args.providers else ["tenon"]
    failed = any(name in failures for name in required)
    return 1 if failed or any(check.differs for check in checks) else 0


@dataclass
class Side:
    """One provider's session, what it took to make it and what its first Run gave."""

    name: str
    session: object
    report: Report | None  # Tenon's only
    opened_s: float
    memory: int  # at the peak of opening and the first Run, over what there was before
    outputs: list = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """Tenon's outputs of the first Run against another provider's."""

    other: str
    text: str
    differs: bool = False
    verdicts: list = field(default_factory=list)


def _first_runs(args, sides: list[Side], failures: dict[str, str]):
    """One Run each, which sets things up and is compared; then what is timed."""
    made, calls = arguments.inputs_of(args, sides[0].session), {}
    for side in list(sides):

        def first_run(session=side.session):
            return tensors.run(session, made.arrays)

        try:
            with PeakMemory() as memory:
                side.outputs = arguments.explaining_sizes(made, first_run)
        except Exception as error:
            if len(sides) == 1:
                raise
            failures[side.name] = str(error)
            sides.remove(side)
            continue
        side.memory += max(0, memory.grown)
        calls[side.name] = caller(side.session, made.arrays)
    return made, calls


def _check_outputs(args, sides: list[Side]) -> list[Check]:
    by_name = {side.name: side for side in sides}
    ours = by_name.get("tenon")
    others = [side for side in sides if side is not ours]
    if ours is None or not others:
        return []
    if not has("onnx"):
        return [Check(side.name, "not compared: that needs the package onnx") for side in others]
    return [_check(args, ours, side) for side in others]


def _check(args, ours: Side, theirs: Side) -> Check:
    import onnx

    from ..models import tolerances, validate

    names = [output.name for output in ours.session.get_outputs()]
    if _model_of(args, theirs.name) != _model_of(args, "tenon"):
        pairs = zip(names, ours.outputs, theirs.outputs, strict=True)
        verdicts = [validate.compare_with_original(*pair) for pair in pairs]
        check = _judged(theirs.name, verdicts)
        if check.differs:
            return check
        name = _model_of(args, theirs.name).name
        text = f"differ by {100 * _largest(verdicts):.2g} % (rms), the other model being {name}"
        return Check(theirs.name, text, verdicts=verdicts)
    graph = onnx.load(_model_of(args, "tenon"), load_external_data=False)
    bound = tolerances.against_a_provider(graph, dict(args.option).get("precision_mode", ""))
    if theirs.name == "cuda":  # which multiplies float32 in TF32
        bound = bound or tolerances.MODEL_F16
    check = _judged(
        theirs.name, validate.compare_rounded(names, ours.outputs, theirs.outputs, bound)
    )
    if not check.differs and bound:
        return Check(check.other, f"{check.text} ({bound.why})", verdicts=check.verdicts)
    if not check.differs or theirs.name != "cpu":
        return check
    exact = cpu_session(_model_of(args, "cpu"), session_options(args.threads), exact=True)
    inputs = arguments.inputs_of(args, exact).arrays
    again = _judged("cpu", validate.compare_all(names, ours.outputs, tensors.run(exact, inputs)))
    if again.differs:
        return check
    text = f"{again.text}, once it rounds no activations to 8 bits; as timed it differs by "
    return Check("cpu", f"{text}{_largest(check.verdicts):.1e} (rms)", verdicts=again.verdicts)


def _judged(other: str, verdicts: list) -> Check:
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if wrong:
        text = f"DIFFER: '{wrong[0].name}': {wrong[0].problem}"
    else:
        text = f"agree, rms error {_largest(verdicts):.1e}"
    return Check(other, text, bool(wrong), verdicts)


def _largest(verdicts: list) -> float:
    return max((verdict.rms_error for verdict in verdicts), default=0.0)


def _open_all(args) -> tuple[list[Side], dict[str, str]]:
    sides, failures = [], {}
    for name in (args.providers or "tenon,cpu").split(","):
        if name not in _OPENERS:
            raise ValueError(f"unknown provider '{name}'; one of: {', '.join(_OPENERS)}")
        settings = session_options(args.threads)
        begin = time.perf_counter()
        try:
            with PeakMemory() as memory:
                session, report = _OPENERS[name](args, settings)
        except Exception as error:
            if isinstance(error, (ValueError, FileNotFoundError)):
                raise
            failures[name] = str(error)
            continue
        opened = time.perf_counter() - begin
        sides.append(Side(name, session, report, opened, max(0, memory.grown)))
    return sides, failures


def _model_of(args, provider: str) -> Path:
    other = {"cpu": args.cpu_model, "cuda": args.cuda_model}.get(provider)
    return arguments.model_file(other or args.model)


def _open_tenon(args, settings):
    return session_with_report(_model_of(args, "tenon"), args.device, settings, **dict(args.option))


def _open_cuda(args, settings):
    return open_cuda_session(str(_model_of(args, "cuda")), settings), None


def _open_cpu(args, settings):
    return cpu_session(_model_of(args, "cpu"), settings), None


_OPENERS = {"tenon": _open_tenon, "cuda": _open_cuda, "cpu": _open_cpu}


def _result(args, sides, made, timings: list[Timing], failures, checks) -> dict:
    import onnxruntime

    by_name = {timing.name: timing for timing in timings}
    ratios = {
        f"tenon_over_{other}": by_name["tenon"].median / by_name[other].median
        for other in by_name
        if other != "tenon" and "tenon" in by_name
    }
    sessions = {side.name: side for side in sides}
    return {
        "model": args.model,
        "runtime": onnxruntime.__version__,
        "threads": args.threads or None,
        "inputs": {name: [tensors.type_name(a), list(a.shape)] for name, a in made.arrays.items()},
        "chosen_sizes": [asdict(size) for size in made.chosen],
        "claimed": _coverage(sides),
        "timings": [
            {
                **timing.as_dict(),
                "session_s": sessions[timing.name].opened_s,
                "peak_bytes": sessions[timing.name].memory,
            }
            for timing in timings
        ],
        "failures": failures,
        "checks": [{"other": c.other, "differs": c.differs, "text": c.text} for c in checks],
        "tenon_over_cpu": None,
        **ratios,
    }


def _coverage(sides) -> dict | None:
    for side in sides:
        if side.report is not None:
            return asdict(side.report.coverage)
    return None


def _write(folder: Path, result: dict, timings: list[Timing]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "bench.json", json.dumps(result, indent=2) + "\n")
    if has("matplotlib"):
        series = {t.name: [t.median * 1e3] for t in timings}
        plots.bars(
            folder / "bench.png", Path(result["model"]).name, "ms per Run", ["median"], series
        )


def _print(result: dict, sides, made, timings: list[Timing], checks: list[Check]) -> None:
    threads = threads_text(result["threads"])
    console.say(f"{result['model']} in onnxruntime {result['runtime']}, threads: {threads}")
    for name, (dtype, shape) in result["inputs"].items():
        console.say(f"input {name}: {dtype} {shape}")
    if made.chosen:
        console.say(made.chosen_text())
    for side in sides:
        if side.report is not None:
            console.say(f"Tenon claims {side.report.coverage}.")
    for check in checks:
        console.say(f"Outputs of Tenon and the {_named(check.other)}: {check.text}")
    console.say()
    opened = {side.name: side for side in sides}
    rows = [
        (
            t.name,
            console.duration(opened[t.name].opened_s),
            console.size(opened[t.name].memory),
            *map(console.duration, (t.median, t.slow, t.slowest)),
            f"{t.per_second:.1f}",
            t.calls,
        )
        for t in timings
    ]
    columns = ["provider", "session", "memory", "median", "p90", "p99", "per second", "runs"]
    console.table(columns, rows, right=range(1, len(columns)))
    console.say(
        "(memory of the host: the most that opening and the first Run added to this process)"
    )
    for name, text in result["failures"].items():
        console.say(f"{name} cannot run this model: {text}")
        if name in ("cpu", "cuda") and "NOT_IMPLEMENTED" in text:
            console.say(f"To time the model that it was made from there: --{name}-model FILE.")
    by_name = {timing.name: timing for timing in timings}
    claimed = result["claimed"]
    if claimed and not claimed["claimed"]:
        console.say("Tenon claims nothing of it: its session runs what the CPU provider runs.")
        return
    for other in by_name:
        if other != "tenon" and "tenon" in by_name:
            speed = speed_text(by_name["tenon"], f"the {_named(other)}", by_name[other])
            console.say(f"Tenon {speed}.")


def _named(provider: str) -> str:
    return f"{provider.upper()} provider"
