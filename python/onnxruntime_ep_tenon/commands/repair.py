"""A model that contradicts its own types in, one that every runtime loads out."""

from __future__ import annotations

from pathlib import Path

from .. import console
from ..requirements import require
from . import arguments

SUMMARY = "mend a model that contradicts its own types, as Model Optimizer writes them"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    parser.add_argument("--out", help="where to write (default: MODEL.repaired.onnx)")
    arguments.add_json(parser)


def run(args) -> int:
    require("onnx", "to mend a model")
    from ..models.repair import repair_file

    source = arguments.model_file(args.model)
    target = Path(args.out) if args.out else source.with_suffix(".repaired.onnx")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the model itself; give another name with --out")
    result = repair_file(source, target)
    if args.json:
        console.print_json({"model": str(source), **result.as_dict()})
    elif not result.mended:
        console.say(f"{source} does not contradict itself: nothing to mend, nothing written.")
    else:
        for note in result.mended:
            console.say(f"  {note}")
        for file in result.files:
            console.say(f"Written: {file} ({console.size(file.stat().st_size)})")
        for file in result.shared:
            console.say(f"It reads the weights of {file}, which must stay beside it.")
    return 0
