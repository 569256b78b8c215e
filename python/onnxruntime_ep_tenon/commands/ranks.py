"""A decoder's file for several ranks: each binds caches of its own heads."""

from __future__ import annotations

from pathlib import Path

from .. import console
from ..mending import tell
from ..requirements import require
from . import arguments

SUMMARY = "write a folder with the same weights in which a rank binds its own heads of caches"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help="a folder that is new or empty"
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="give weight files a second name (hard links) instead of copying them: the package "
        "onnx then opens neither folder until the other is gone",
    )
    arguments.add_json(parser)


def run(args) -> int:
    require("onnx", "to write a model")
    from ..models.rank_files import write_rank_file

    source = arguments.model_file(args.model)
    made = write_rank_file(source, Path(args.out), args.link)
    tell(source, made.mended)
    if args.json:
        console.print_json(made.as_dict())
        return 0
    counts = sorted(set(made.caches.values()))
    heads = ", ".join(map(str, counts))
    console.say(
        f"{made.path}: {console.size(made.path.stat().st_size)}, {len(made.caches)} caches of "
        f"{heads} heads; a rank binds its own."
    )
    for how, files in (
        ("linked", made.linked), ("shares its blocks", made.cloned), ("written", made.copied),
    ):  # fmt: skip
        for file in files:
            console.say(f"  {how}: {file} ({console.size(file.stat().st_size)})")
    return 0
