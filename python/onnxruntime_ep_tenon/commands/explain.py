"""What Tenon takes of a model, with which kernels, and why it leaves the rest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .. import console
from ..bench.measure import read_bandwidth
from ..context_models import ContextModel, is_context_model
from ..library import PROVIDER
from ..mending import opened_graph
from ..models.staged_folder import write_whole
from ..provider_sessions import session_options
from ..report import Report, SessionError, fusion_kind, readable, session_with_report, shortened
from ..requirements import require
from ..session_facts import cost_model_text, device_text, extrapolation_texts, session_facts
from ..step_prediction import add_expected_times
from . import arguments
from .compile import print_context_model
from .explain_candidates import print_candidates, report_with_ways
from .explain_ranks import explain_ranks

# In front of what nodes cost that are left in the middle of a graph for a GPU.
_UNLESS_CUDA = "Without another GPU provider behind Tenon, "

SUMMARY = "show what is claimed, which kernels were chosen, and why the rest was left"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    arguments.add_session(parser)
    parser.add_argument("--svg", metavar="FILE", help="draw the graph as SVG")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page: the graph to zoom and search in, and tables"
    )
    parser.add_argument(
        "--candidates",
        action="store_true",
        help="also list every kernel that was asked: its ways to run each range of rows with "
        "their estimates, or why it cannot",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="also list how products were cut for a GPU and what came next in the ranking, "
        "or what runs on the host: instructions, tiles, bytes, operations, expected time",
    )
    parser.add_argument(
        "--ranks",
        type=arguments.count,
        default=0,
        metavar="N",
        help="what each of N ranks would hold and exchange, and how long a step is predicted to "
        "take; no other process and no GPU is needed",
    )
    parser.add_argument(
        "--context",
        type=arguments.count,
        default=4096,
        metavar="TOKENS",
        help="with --ranks: tokens in the caches (default: 4096)",
    )
    arguments.add_dimensions(
        parser, "with --ranks: a named dimension that neither tokens nor genai_config.json give"
    )
    arguments.add_json(parser)


def run(args) -> int:
    if args.ranks:
        return explain_ranks(arguments.model_file(args.model), args)
    if args.dim:
        raise ValueError("--dim is of --ranks N: what one process claims goes for all sizes")
    if args.svg or args.html or args.json:
        return _explain(arguments.model_file(args.model), args)
    return max([_explain(model, args) for model in arguments.model_files(args.model)])


def _explain(model: Path, args) -> int:
    if is_context_model(model):
        return _explain_contexts(model, args)
    report, problem = _report_of(model, args)
    if args.kernels and any(fusion.get("launches") for fusion in report.fusions):
        add_expected_times(report, read_bandwidth())
    if args.svg or args.html:  # first: whoever reads what is printed may stop reading
        _draw(model, report, problem, args)
    if args.json:
        console.print_json({**report.data, "error": problem} if problem else report.data)
    else:
        _print(model, report, args)
        if problem:
            console.heading("No session")
            console.say(problem)
    return 1 if problem else 0


def _explain_contexts(path: Path, args) -> int:
    """What is inside, and how it opens here; the model that it was compiled from is not needed."""
    if args.svg or args.html:
        raise ValueError(f"{path} holds compiled nodes only: draw the model that they come from")
    model = ContextModel.read(path)
    report, problem = _opened_here(path, args)
    if args.json:
        console.print_json({**model.as_dict(), "report": report.data, "error": problem})
        return 0
    console.say(f"{path}: a context model for {', '.join(model.targets) or 'unknown targets'}.")
    for source in sorted({context.source for context in model.contexts} - {PROVIDER}):
        console.say(f"Some contexts are of {source or 'a provider without a name'}.")
    print_context_model(model)
    console.heading("Here")
    if problem:
        console.say(problem)
        return 0
    console.say(device_text(report))
    for part in report.partitions:
        how = (part.get("context") or {}).get("recompiled")
        text = f"kernels were compiled again: {how}" if how else "opens as it was stored"
        console.say(f"{part['name']}: {text}, in {part.get('compile_ms', 0):.1f} ms")
    if report.fusions:
        console.heading("Fusions")
        console.table(FUSION_COLUMNS, fusion_rows(report), right=(0,))
    if args.kernels:
        _print_kernels(report)
    return 0


def _opened_here(path: Path, args) -> tuple[Report, str]:
    try:
        report, problem = _report_of(path, args)
    except Exception as error:  # whatever the runtime raises: a person asked what is in the file
        return Report({"graphs": []}), f"It does not open here: {error}"
    if args.kernels and any(fusion.get("launches") for fusion in report.fusions):
        add_expected_times(report, read_bandwidth())
    return report, problem


def _report_of(model: Path, args) -> tuple[Report, str]:
    """The report, and what the runtime said where it made no session of the model."""

    def opened(options: dict) -> tuple[Report, str]:
        settings = session_options(args.threads)
        try:
            return session_with_report(model, args.device, settings, **options)[1], ""
        except SessionError as error:
            return error.report, error.problem

    if args.candidates and not is_context_model(model):
        return report_with_ways(opened, dict(args.option))
    return opened(dict(args.option))


def partition_rows(report: Report) -> list[tuple]:
    return [
        (
            part["name"],
            len(part.get("nodes", [])),
            len(part.get("inputs", [])),
            len(part.get("outputs", [])),
            len(part.get("fusions", [])),
            console.size(part.get("weight_bytes", 0)),
            console.size(part.get("packed_bytes", 0)),
            f"{part.get('compile_ms', 0):.1f} ms",
            _longest_phases(part.get("phases_ms", {})),
        )
        for part in report.partitions
    ]


def _longest_phases(phases: dict[str, float], count: int = 2) -> str:
    longest = sorted(phases.items(), key=lambda phase: -phase[1])[:count]
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in longest)


PARTITION_COLUMNS = [
    "partition",
    "nodes",
    "inputs",
    "outputs",
    "fusions",
    "weights",
    "packed",
    "compiled in",
    "most of it",
]
FUSION_COLUMNS = ["times", "fusion", "problem", "kernel"]
CONFIG_COLUMNS = ["kernel for", "rank", "config"]
LAUNCH_COLUMNS = [
    "times",
    "kernel",
    "isa",
    "rows",
    "tile",
    "tasks",
    "weights",
    "MFLOP",
    "compute us",
    "read us",
    "expected us",
]
TUNING_COLUMNS = ["times", "fusion", "rows", "tuned"]
APART_COLUMNS = ["times", "products of one input", "run apart because"]
REASON_COLUMNS = ["nodes", "left because", "operators", "such as"]


def problem_and_note(fusion: dict) -> str:
    """What it computes; of a collective also what a rule made of it and what it runs beside."""
    return ": ".join(part for part in (fusion.get("problem"), fusion.get("note")) if part)


def fusion_rows(report: Report) -> list[tuple]:
    """Equal fusions are counted, in the order in which they first appear."""
    counts = Counter(
        (fusion_kind(f), problem_and_note(f), f.get("chosen", "")) for f in report.fusions
    )
    return [
        (count, kind, shortened(readable(problem), 120), kernel)
        for (kind, problem, kernel), count in counts.items()
    ]


def config_tables(report: Report) -> dict[str, list[tuple]]:
    """For each product: the config taken and the next of its ranking, one row each."""
    return {
        f"{fusion_kind(fusion)} {fusion.get('problem', '')}": [
            (config["problem"] if rank == 1 else "", rank, text)
            for config in fusion["configs"]
            for rank, text in enumerate([config["chosen"], *config["others"]], 1)
        ]
        for fusion in report.fusions
        if fusion.get("configs")
    }


def launch_rows(report: Report) -> list[tuple]:
    """Equal launches on the host are counted, in the order in which they first appear."""
    counts = Counter(
        _launch_row(launch, work)
        for fusion in report.fusions
        for launch in fusion.get("launches", [])
        for work in launch["work"] or [{}]
    )
    return [(count, *row) for row, count in counts.items()]


def _launch_row(launch: dict, work: dict) -> tuple:
    """`work` is empty where the launch is idle at the sizes that were asked for."""
    multiplies = "tile_rows" in launch

    def number(key: str, scale: float = 1, digits: int = 1) -> str:
        return f"{work[key] / scale:.{digits}f}" if key in work else ""

    return (
        launch["kernel"],
        launch["isa"],
        work.get("rows", ""),
        f"{launch['tile_rows']} x {launch['tile_columns']}" if multiplies else "",
        work.get("tasks", ""),
        console.size(launch["weight_bytes"]) if multiplies else "",
        number("flops", 1e6, 2),
        number("compute_us"),
        number("read_us") if multiplies else "",
        number("expected_us"),
    )


def tuning_rows(report: Report) -> list[tuple]:
    """What records had to do with each fusion, equal ones counted."""
    counts = Counter(
        (
            f"{fusion_kind(fusion)} {shortened(readable(fusion.get('problem', '')), 80)}",
            note["rows"],
            f"tuned: {note['text']}" if note["tuned"] else f"by estimate: {note['text']}",
        )
        for fusion in report.fusions
        for note in fusion.get("tuning", [])
    )
    return [(count, *row) for row, count in counts.items()]


def apart_rows(report: Report) -> list[tuple]:
    """The first products of each reason."""
    firsts = {apart["reason"]: apart["products"] for apart in reversed(report.apart)}
    counts = Counter(apart["reason"] for apart in report.apart)
    return [(count, shortened(readable(firsts[why]), 120), why) for why, count in counts.items()]


def reason_rows(report: Report) -> list[tuple]:
    return [
        (len(group.nodes), group.reason, group.operators, group.names())
        for group in report.reason_groups()
    ]


def _print(model: Path, report: Report, args) -> None:
    console.say(f"{model}: Tenon claims {report.coverage}.")
    console.say(device_text(report))
    if cost_model := cost_model_text(report):
        console.say(f"cost model: {cost_model}")
    for text in extrapolation_texts(report):
        console.say(f"cost model extrapolates: {text}")
    if report.partitions:
        console.heading("Partitions")
        console.table(PARTITION_COLUMNS, partition_rows(report), right=(1, 2, 3, 4, 5, 6, 7))
    if report.left_out:  # what people come for; fusions can fill screens
        console.heading("Left to other providers")
        for group in report.reason_groups():
            console.say(f"{len(group.nodes):5}  {group.reason}")
            console.say(f"       {group.names()}")
        for text in report.cut_costs:
            console.say(f"{_UNLESS_CUDA}{text}.")
    if report.partitions:
        console.heading("Fusions")
        console.table(FUSION_COLUMNS, fusion_rows(report), right=(0,))
    if tuning := tuning_rows(report):
        console.heading("Tuning")
        console.table(TUNING_COLUMNS, tuning, right=(0,))
    if report.apart:
        console.heading("Not merged")
        console.table(APART_COLUMNS, apart_rows(report), right=(0,))
    if args.candidates:
        print_candidates(report)
    if args.kernels:
        _print_kernels(report)


def _print_kernels(report: Report) -> None:
    launches = launch_rows(report)
    if launches:
        console.heading("Kernels")
        threads = report.data["device"]["threads"]
        bandwidth = report.data["read_bandwidth_bytes_s"] / 1e9
        console.say(
            f"Estimates for {threads} threads; {bandwidth:.1f} GB/s read, as measured now. "
            "Sizes that the model leaves open are 1, or give a product 128 rows; "
            "no numbers: idle there."
        )
        console.table(LAUNCH_COLUMNS, launches, right=(0, *range(3, len(LAUNCH_COLUMNS))))
        return
    console.heading("Configs")
    tables = config_tables(report)
    for product, rows in tables.items():
        console.say(product)
        console.table(CONFIG_COLUMNS, rows, right=(1,))
        console.say()
    if not tables:
        console.say("no kernel had configs to choose from")


def _draw(model: Path, report: Report, problem: str, args) -> None:
    require("onnx", "to draw a graph")
    from ..drawing.graph_drawing import Drawing

    drawing = Drawing(opened_graph(model, report), report)
    title = f"{model.name}: {report.coverage}"
    if args.svg:
        write_whole(Path(args.svg), drawing.document(title))
    if args.html:
        _write_page(Path(args.html), title, model, report, problem, drawing, args)


def _write_page(path: Path, title: str, model: Path, report, problem: str, drawing, args) -> None:
    from ..drawing.pages import Page

    page = Page(title)
    page.facts(session_facts(model, report, args.threads, dict(args.option)))
    page.text(
        f"The file has {drawing.nodes} nodes, in bodies of If, Loop and Scan as well. ONNX Runtime "
        f"folds and merges some before it asks providers, and may add others: Tenon was asked "
        f"about {report.coverage.nodes}, which the counts of what is claimed mean. The drawing "
        "shows and counts the nodes of the file."
    )
    if problem:
        page.heading("No session")
        page.code(problem)
    page.graph(drawing)
    add_tables(page, report)
    page.write(path)


def add_tables(page, report: Report) -> None:
    """What was claimed, fused and left, as tables of a page."""
    if report.partitions:
        page.heading("Partitions")
        page.table(PARTITION_COLUMNS, partition_rows(report), right=range(1, 8))
    if report.left_out:
        page.heading("Left to other providers")
        page.table(REASON_COLUMNS, reason_rows(report), right=(0,))
        for text in report.cut_costs:
            page.text(f"{_UNLESS_CUDA}{text}.")
    if report.partitions:
        page.heading("Fusions")
        page.table(FUSION_COLUMNS, fusion_rows(report), right=(0,))
