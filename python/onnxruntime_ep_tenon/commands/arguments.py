"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse

from ..inputs import make_inputs


def key_and_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got '{text}'")
    return key, value


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got '{text}'")
    return int(text)


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
    parser.add_argument("model", help="an ONNX model file")


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
    parser.add_argument("--threads", type=count, default=0, help="threads (default: all)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        metavar="NAME=FILE",
        type=key_and_value,
        action="append",
        default=[],
        help="take this input from a .npy file; the others are random",
    )
    parser.add_argument(
        "--dim",
        metavar="NAME=NUMBER",
        type=name_and_number,
        action="append",
        default=[],
        help="the size of a named dimension, e.g. sequence=128",
    )
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


def inputs_of(args, session) -> dict:
    """The inputs that the shared arguments ask for."""
    return make_inputs(
        session, dict(args.dim), dict(args.input), args.seed, args.max_int, dict(args.shape)
    )


def session_options(threads: int):
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    if threads:
        settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    # A session's threads spin on after a Run, and would take the cores from the session whose
    # turn comes next.
    settings.add_session_config_entry("session.force_spinning_stop", "1")
    return settings
