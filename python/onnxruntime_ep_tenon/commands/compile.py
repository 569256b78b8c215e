"""A model in, a context model out: compiled ahead, for GPUs that need not be here."""

from __future__ import annotations

import time
from pathlib import Path

from .. import console
from ..context_models import ContextModel, compile_model
from ..provider_sessions import session_options
from . import arguments

SUMMARY = "compile a model ahead, for this machine or for GPUs that need not be here"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    parser.add_argument(
        "--arch",
        metavar="SM,…",
        default="",
        help="GPUs to compile for, e.g. sm_90a,sm_100a (default: the device itself)",
    )
    parser.add_argument("--out", help="where to write (default: MODEL_ctx.onnx)")
    parser.add_argument(
        "--embed", action="store_true", help="one file: the contexts inside of the model (< 2 GiB)"
    )
    parser.add_argument(
        "--no-weights",
        action="store_true",
        help="leave weights in the model's external data, which must stay beside the result",
    )
    arguments.add_session(parser)
    arguments.add_json(parser)


def run(args) -> int:
    source = arguments.model_file(args.model)
    target = Path(args.out) if args.out else source.with_name(f"{source.stem}_ctx.onnx")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the model itself; give another name with --out")
    archs = [arch for arch in args.arch.split(",") if arch]
    if archs and args.device == "cpu":
        raise ValueError("--arch names GPUs, and --device cpu is none: leave one out")
    if not args.json:
        console.say(f"Compiling {source} for {', '.join(archs) or f'this {_kind(args.device)}'} …")
    start = time.monotonic()
    model, report = compile_model(
        source,
        target,
        args.device,
        archs,
        args.embed,
        session_options(args.threads),
        not args.no_weights,
        **dict(args.option),
    )
    seconds = time.monotonic() - start
    if args.json:
        console.print_json({**model.as_dict(), "seconds": seconds, "report": report.data})
        return 0
    print_context_model(model)
    if report.left_out:
        console.say(f"Tenon compiled {report.coverage}; `tenon explain {source}` says why not all.")
    console.say(f"Written in {seconds:.1f} s.")
    return 0


def _kind(device: str) -> str:
    return {"auto": "machine", "cpu": "CPU"}.get(device, "GPU")


CONTEXT_COLUMNS = [
    "partition",
    "nodes",
    "fusions",
    "target",
    "launches",
    "kernels",
    "machine code",
    "weights",
]


def context_rows(model: ContextModel) -> list[tuple]:
    return [
        (
            context.partition,
            context.notes.get("nodes", "?"),
            context.notes.get("fusions", "?"),
            program["target"],
            program.get("launches", "?"),
            program.get("kernels", "?"),
            program.get("machine_code", "?"),
            console.size(program.get("weight_bytes", 0)),
        )
        for context in model.contexts
        for program in context.programs
    ]


def print_context_model(model: ContextModel) -> None:
    console.heading("Contexts")
    console.table(CONTEXT_COLUMNS, context_rows(model), right=(1, 2, 4, 5, 6, 7))
    if model.other_nodes:
        console.say(f"and {model.other_nodes} nodes for other providers")
    if model.cudnn:
        console.say(f"It calls cuDNN (compiled with {model.cudnn}), which must be where it opens.")
    console.heading("Files")
    rows = [(model.path, console.size(model.path.stat().st_size))]
    for file in model.files:
        rows.append((file, console.size(file.stat().st_size) if file.is_file() else "missing"))
    console.table(["file", "size"], rows, right=(1,))
    if model.weight_files:
        console.heading("Weight files that it needs")
        console.table(
            ["file", "size", "needed", ""],
            [
                (
                    file.path,
                    "" if file.bytes is None else console.size(file.bytes),
                    console.size(file.needed),
                    file.problem or "is there",
                )
                for file in model.weight_files
            ],
            right=(1, 2),
        )
