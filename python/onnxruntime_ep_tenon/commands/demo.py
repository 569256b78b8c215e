"""A sentence encoder in 4-bit floats, from weights to answers, in a few steps one can watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import console
from ..bench.measure import side_by_side, timed
from ..bindings import caller
from ..drawing import plots
from ..provider_sessions import session_options
from ..report import Report, session_with_report
from ..requirements import has, require
from ..session_facts import session_facts
from . import arguments, explain

SUMMARY = "quantise a sentence encoder to NVFP4 and run it; leaves a page with plots"

PAIRS = (
    ("A man is eating food.", "Someone is having a meal."),
    ("The cat sits on the window sill.", "A kitten rests by the window."),
    ("The stock market fell sharply today.", "Shares dropped a lot this afternoon."),
    ("She plays the violin in an orchestra.", "He repairs bicycles in his garage."),
    ("How do I reset my password?", "I forgot the password of my account."),
    ("The train to Berlin leaves at noon.", "Bake the bread for forty minutes."),
    ("Quantised models need less memory.", "Smaller weights save RAM."),
    ("The weather is lovely this morning.", "It is sunny outside."),
)
_TOKENS = 128


@dataclass
class Variant:
    """One file of the same encoder: its size and, when it runs on Tenon, what came of it."""

    name: str
    path: Path
    bytes: int
    report: Report | None = None
    session: object = None
    created_s: float = 0.0
    error: float = 0.0
    similarity: list[float] = field(default_factory=list)


def add_arguments(parser) -> None:
    parser.add_argument("--out", default="tenon-demo", help="folder for models and page")
    parser.add_argument(
        "--seconds", type=arguments.seconds, default=2.0, help="per timing (default: 2)"
    )
    parser.add_argument(
        "--threads", type=arguments.threads, default=0, help="threads (default: all)"
    )


def run(args) -> int:
    require("onnx", "for the demo")
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    plain, tokens, real = _build(folder)
    variants = {name: _quantize(plain, folder, name) for name in ("nvfp4", "int4")}
    refusal = _show_refusal(variants["nvfp4"])
    float_session = _float_session(plain.path, args.threads)
    plain.similarity = _similarities(float_session.run(None, tokens)[0])
    for variant in variants.values():
        _run(variant, tokens, args.threads)
    _print_similarities(plain, variants)
    timings = _time(args, float_session, variants)
    _print_summary(plain, variants, timings)
    page = _write_page(folder, plain, variants, refusal, timings, real, args.threads)
    console.say()
    console.say(f"The page with plots and the graph: {page}")
    return 0 if all(variant.error < 1e-4 for variant in variants.values()) else 1


def _build(folder: Path) -> tuple[Variant, dict, bool]:
    import onnx

    from ..models import encoder, tokenizer

    weights = encoder.find_weights_folder()
    console.heading("1. A float32 sentence encoder (MiniLM, 6 layers)")
    shape = encoder.EncoderShape()
    model = encoder.build_encoder(encoder.load_weights(weights, shape))
    path = folder / "encoder.onnx"
    onnx.save(model, path)
    origin = "trained weights" if weights else "seeded weights: no trained ones are installed"
    console.say(f"{len(model.graph.node)} nodes, {origin}, {console.size(path.stat().st_size)}")
    sentences = [sentence for pair in PAIRS for sentence in pair]
    loaded = tokenizer.load_tokenizer(weights, shape.vocabulary)
    plain = Variant("float32", path, path.stat().st_size)
    return plain, tokenizer.tokenize(loaded, sentences), weights is not None


def _quantize(plain: Variant, folder: Path, name: str) -> Variant:
    from ..models.quantize import quantize_file

    if name == "nvfp4":
        console.heading("2. Quantise its weights")
    target = folder / f"encoder.{name}.onnx"
    with console.progress(name) as update:
        report = quantize_file(plain.path, target, name, embeddings=True, progress=update)
    worst = max(layer.error for layer in report.quantized_layers)
    console.say(
        f"{name}: {len(report.quantized_layers)} weights, largest error {worst:.1%} rms, "
        f"{console.size(report.bytes_after)} "
        f"({report.bytes_before / report.bytes_after:.1f}x smaller)"
    )
    return Variant(name, target, report.bytes_after)


def _show_refusal(variant: Variant) -> str:
    import onnxruntime

    console.heading("3. Stock ONNX Runtime and the NVFP4 file")
    settings = session_options(0)
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            str(variant.path), settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        console.say(f"refused: {error}")
        return str(error)
    console.say("this runtime loads it without help")
    return ""


def _float_session(path: Path, threads: int):
    import onnxruntime

    settings = session_options(threads)
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def _similarities(vectors: np.ndarray) -> list[float]:
    return [float(a @ b) for a, b in zip(vectors[0::2], vectors[1::2], strict=True)]


def _run(variant: Variant, tokens: dict, threads: int) -> None:
    import onnx

    from ..models import reference

    if variant.name == "nvfp4":
        console.heading("4. The same runtime with Tenon")
    made = []
    variant.created_s = timed(
        lambda: made.append(
            session_with_report(variant.path, session_options=session_options(threads))
        )
    )
    variant.session, variant.report = made[0]
    vectors = variant.session.run(None, tokens)[0]
    variant.similarity = _similarities(vectors)
    few = {name: value[:2] for name, value in tokens.items()}
    exact = reference.evaluate(onnx.load(variant.path), few)[0]
    variant.error = float(np.max(np.abs(variant.session.run(None, few)[0] - exact)))
    console.say(
        f"{variant.name}: {variant.report.coverage}, ready in "
        f"{console.duration(variant.created_s)}, largest error against float64 of the same file "
        f"{variant.error:.1e}"
    )


def _similarity_rows(plain: Variant, variants: dict[str, Variant]) -> list[tuple]:
    return [
        (
            first,
            second,
            f"{plain.similarity[i]:.3f}",
            *(f"{variant.similarity[i]:.3f}" for variant in variants.values()),
        )
        for i, (first, second) in enumerate(PAIRS)
    ]


def _print_similarities(plain: Variant, variants: dict[str, Variant]) -> None:
    console.heading("5. How alike are these sentences?")
    columns = ["sentence", "and", "float32", *variants]
    console.table(columns, _similarity_rows(plain, variants), right=(2, 3, 4))


def _time(args, float_session, variants: dict[str, Variant]) -> dict[int, list]:
    from ..models import encoder

    timings = {}
    for batch in (1, 8):
        inputs = encoder.random_tokens(batch, _TOKENS)
        calls = {"ONNX Runtime, float32": caller(float_session, inputs)}
        for name, variant in variants.items():
            calls[f"Tenon, {name}"] = caller(variant.session, inputs)
        timings[batch] = side_by_side(calls, args.seconds)
    return timings


def _timing_rows(timings: dict[int, list]) -> list[tuple]:
    rows = []
    for batch, measured in timings.items():
        base = measured[0].median
        rows += [
            (
                f"batch {batch}, {_TOKENS} tokens",
                timing.name,
                console.duration(timing.median),
                f"{timing.median / base:.2f}",
            )
            for timing in measured
        ]
    return rows


_TIMING_COLUMNS = ["input", "who", "median", "of float32's time"]
_ERROR_NOTE = (
    "The error of computing is the largest against float64 of the same file; what rounding weights "
    "to 4 bits costs shows in the similarities."
)
_SIZE_COLUMNS = ["file", "size", "claimed", "ready in", "error of computing"]


def _size_rows(plain: Variant, variants: dict[str, Variant]) -> list[tuple]:
    rows = [(plain.path.name, console.size(plain.bytes), "-", "-", "-")]
    for v in variants.values():
        rows.append(
            (
                v.path.name,
                console.size(v.bytes),
                str(v.report.coverage),
                console.duration(v.created_s),
                f"{v.error:.1e}",
            )
        )
    return rows


def _print_summary(plain: Variant, variants: dict[str, Variant], timings) -> None:
    console.heading("6. Size and speed")
    console.table(_SIZE_COLUMNS, _size_rows(plain, variants), right=(1,))
    console.say(_ERROR_NOTE)
    console.say()
    console.table(_TIMING_COLUMNS, _timing_rows(timings), right=(2, 3))


def _write_page(folder, plain, variants, refusal, timings, real: bool, threads: int) -> Path:
    import onnx

    from ..drawing.graph_drawing import Drawing
    from ..drawing.pages import Page

    report, shown = variants["nvfp4"].report, variants["nvfp4"].path
    page = Page("Tenon: a sentence encoder in 4-bit floats")
    page.facts(session_facts(shown, report, threads, {}))
    if not real:
        page.text(
            "The trained weights were not installed: seeded ones stand in, so the "
            "similarities mean nothing, but sizes, errors and times hold."
        )
    page.heading("Stock ONNX Runtime refuses the NVFP4 file")
    page.code(refusal or "It did not: this runtime has a kernel for it.")
    page.heading("With Tenon it runs")
    page.table(_SIZE_COLUMNS, _size_rows(plain, variants), right=(1,))
    page.text(_ERROR_NOTE)
    page.table(
        ["sentence", "and", "float32", *variants],
        _similarity_rows(plain, variants),
        right=(2, 3, 4),
    )
    page.heading("How fast")
    page.table(_TIMING_COLUMNS, _timing_rows(timings), right=(2, 3))
    if has("matplotlib"):
        _add_plots(page, folder, plain, variants, timings)
    page.heading("What was claimed")
    drawing = Drawing(onnx.load(shown, load_external_data=False), report)
    title = f"{shown.name}: {report.coverage}"
    (folder / "graph.svg").write_text(drawing.document(title), encoding="utf-8")
    page.graph(drawing)
    explain.add_tables(page, report)
    path = folder / "index.html"
    page.write(path)
    return path


def _add_plots(page, folder: Path, plain: Variant, variants: dict, timings) -> None:
    names = [timing.name for timing in timings[1]]
    series = {
        name: [measured[i].median * 1e3 for measured in timings.values()]
        for i, name in enumerate(names)
    }
    groups = [f"batch {batch}" for batch in timings]
    plots.bars(folder / "latency.png", f"One Run, {_TOKENS} tokens", "ms", groups, series)
    sizes = {"MiB": [v.bytes / 2**20 for v in (plain, *variants.values())]}
    plots.bars(folder / "size.png", "Size of the file", "MiB", ["float32", *variants], sizes)
    points = {name: (plain.similarity, v.similarity) for name, v in variants.items()}
    plots.scatter(folder / "similarity.png", "Sentence similarity", ("float32", "4 bits"), points)
    for name, text in (
        ("latency", "time of one Run"),
        ("size", "file sizes"),
        ("similarity", "similarities, float32 and 4 bits"),
    ):
        page.image(folder / f"{name}.png", text)
