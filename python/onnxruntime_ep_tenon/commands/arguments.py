"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from .. import genai_folder
from ..inputs import MadeInputs, make_inputs
from ..trial import other_inputs_text


def key_and_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got '{text}'")
    return key, value


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got '{text}'")
    return int(text)


def threads(text: str) -> int:
    """More than there are CPUs wait for each other, and thousands take minutes to start."""
    number, cpus = count(text), len(os.sched_getaffinity(0))
    if number > cpus:
        print(
            f"tenon: warning: --threads {number} is more than the {cpus} CPUs that this process "
            "may use: ONNX Runtime starts them all, and they will wait for each other",
            file=sys.stderr,
        )
    return number


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got '{text}'")
    return value


def name_and_number(text: str) -> tuple[str, int]:
    key, value = key_and_value(text)
    if not value.isdigit():
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER, got '{text}'")
    return key, int(value)


def name_and_shape(text: str) -> tuple[str, list[int]]:
    key, value = key_and_value(text)
    sizes = value.split(",")
    if not all(size.isdigit() for size in sizes):
        raise argparse.ArgumentTypeError(f"expected NAME=1,2,3, got '{text}'")
    return key, [int(size) for size in sizes]


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="an ONNX model file, or a folder of ONNX Runtime GenAI's")


def model_files(given: str) -> list[Path]:
    """The file itself, or what the configuration of a GenAI folder names."""
    path = Path(given)
    if path.is_dir():
        return genai_folder.model_files(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file at {path}")
    return [path]


def model_file(given: str) -> Path:
    """As model_files, where only one model will do."""
    found = model_files(given)
    if len(found) > 1:
        names = ", ".join(str(file) for file in found)
        raise ValueError(f"{given} holds several models; give one of: {names}")
    return found[0]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu, gpu:1 (default: auto)")
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        type=key_and_value,
        action="append",
        default=[],
        help="a provider option, e.g. precision_mode=int8; may be given again",
    )
    parser.add_argument("--threads", type=threads, default=0, help="threads (default: all)")


def add_dimensions(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--dim",
        metavar="NAME=NUMBER",
        type=name_and_number,
        action="append",
        default=[],
        help=help,
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        metavar="NAME=FILE",
        type=key_and_value,
        action="append",
        default=[],
        help="take this input from a .npy file; the others are random",
    )
    add_dimensions(parser, "the size of a named dimension, e.g. sequence=128")
    parser.add_argument(
        "--shape",
        metavar="NAME=1,2,3",
        type=name_and_shape,
        action="append",
        default=[],
        help="the whole shape of an input, where its dimensions have no names",
    )
    parser.add_argument("--seed", type=count, default=0, help="of the random inputs (default: 0)")
    parser.add_argument(
        "--max-int",
        type=count,
        default=1,
        help="largest random integer, e.g. a vocabulary's size - 1",
    )


def inputs_of(args, session) -> MadeInputs:
    """The inputs that the shared arguments ask for."""
    told = genai_folder.sizes_beside(model_file(args.model), session.get_inputs())
    return make_inputs(
        session, dict(args.dim), dict(args.input), args.seed, args.max_int, dict(args.shape), told
    )


def explaining_sizes(made: MadeInputs, run: Callable):
    """What run() gives; where it fails, the error says which sizes had been chosen."""
    try:
        return run()
    except Exception as error:
        if not made.chosen:
            raise
        text = f"{str(error).strip()}\n{made.chosen_text()}"
        if "--max-int" in (advice := other_inputs_text(error)):
            text += f"\nOr {advice}."
        raise RuntimeError(text) from error
