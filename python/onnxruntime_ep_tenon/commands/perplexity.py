"""What quantisation costs, in the only unit that a language model has."""

from __future__ import annotations

import json
from pathlib import Path

from .. import console
from ..genai_folder import GenaiFolder
from ..inputs import InputError
from ..models.staged_folder import write_whole
from ..perplexity import Perplexity, bytes_of, measure, tokens_of
from ..provider_sessions import session_options
from ..session import create_session
from ..trial import first_line
from . import arguments

SUMMARY = "how well decoders predict a text, side by side"


def add_arguments(parser) -> None:
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="with genai_config.json")
    parser.add_argument("--text", required=True, metavar="FILE", help="what is to be predicted")
    parser.add_argument(
        "--length", type=int, default=128, help="tokens in a window, predicted from its own start"
    )
    parser.add_argument("--out", metavar="FILE", help="write the numbers there, as JSON")
    arguments.add_session(parser)
    arguments.add_json(parser)


def run(args) -> int:
    text = Path(args.text).read_text()
    rows = [_measured(folder, text, args) for folder in args.folders]
    result = {"text": args.text, "length": args.length, "rows": [row.as_dict() for row in rows]}
    if args.out:
        write_whole(Path(args.out), json.dumps(result, indent=2) + "\n")
    if args.json:
        console.print_json(result)
    else:
        _print(rows)
    return 1 if any(row.problem for row in rows) else 0


def _measured(folder: str, text: str, args):
    told = GenaiFolder.load(folder)
    tokens = tokens_of(told, text)
    settings = session_options(args.threads)
    try:
        session = create_session(told.model, args.device, settings, **dict(args.option))
        value = measure(session, told, tokens, args.length)
    except InputError:
        raise
    except Exception as error:  # of a runtime that cannot load this format: the others still count
        return Perplexity(folder, bytes=bytes_of(told), problem=first_line(error))
    return Perplexity(folder, value, len(tokens), bytes_of(told))


def _print(rows) -> None:
    first = rows[0]
    console.table(
        ["model", "size", "perplexity", "against the first", "note"],
        [
            (
                row.folder,
                console.size(row.bytes),
                "" if row.problem else f"{row.perplexity:.4f}",
                "" if row.problem or first.problem else _change(row, first),
                "see below" if row.problem else "",
            )
            for row in rows
        ],
        right=(1, 2, 3),
    )
    for row in rows:
        if row.problem:
            console.say(f"{row.folder}: {row.problem}")


def _change(row, first) -> str:
    return f"{100 * (row.perplexity / first.perplexity - 1):+.2f} %"
