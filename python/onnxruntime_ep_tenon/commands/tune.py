"""Kernels measured for a model on this machine; files of the records, shown and merged."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import console
from ..report import shortened
from ..tuning_records import (
    TuningRecords,
    as_dict,
    kernel_text,
    read_records,
    rows_text,
    write_records,
)
from . import arguments
from .tune_fit import fit
from .tune_model import tune_model

SUMMARY = "measure which kernels run a model best here; show and merge files of such records"

COLUMNS = ["fusion", "rows", "machine", "kernel", "us", "untuned us", "date"]


def add_arguments(parser) -> None:
    parser.add_argument(
        "model", nargs="?", help="measure the kernels of this ONNX model, or GenAI folder"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--show", metavar="FILE", help="print the records of a file")
    what.add_argument(
        "--merge", nargs="+", metavar="FILE", help="of equal keys the newest record stays"
    )
    what.add_argument(
        "--fit",
        nargs="+",
        metavar="LOG",
        help="refit the constants of the cost model from logs of the tuner",
    )
    parser.add_argument(
        "--arch", default="", help="with --fit: of these plans (default: the log's first machine)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write records (default: MODEL with .tuning.textproto for .onnx)",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="what became of every plan, JSON lines (default: --out with .jsonl for .textproto)",
    )
    arguments.add_session(parser)
    arguments.add_json(parser)


def run(args) -> int:
    if args.model and (args.show or args.merge or args.fit):
        raise ValueError("give a model to tune, or --show, --merge or --fit")
    if args.fit:
        return fit(args)
    if args.show:
        if args.out:
            raise ValueError("--out is for a model, and for --merge")
        return _show(read_records(Path(args.show)), args.json)
    if args.merge:
        return _merge(args)
    if not args.model:
        raise ValueError("give a model to tune, --show FILE, --merge FILE … or --fit LOG …")
    return tune_model(args)


def _merge(args) -> int:
    if not args.out:
        raise ValueError("--merge needs --out FILE, where to write")
    merged = TuningRecords()
    for name in args.merge:
        merged.merge(read_records(Path(name)))
    _warn(merged)
    write_records(merged, Path(args.out))
    if args.json:
        console.print_json(_as_json(merged))
    else:
        console.say(f"{args.out}: {len(merged.records)} records of {len(args.merge)} files.")
    return 0


def _show(records: TuningRecords, json: bool) -> int:
    _warn(records)
    if json:
        console.print_json(_as_json(records))
        return 0
    console.table(COLUMNS, [_row(record) for record in records.records], right=(4, 5))
    return 0


def _as_json(records: TuningRecords) -> dict:
    return {
        "records": [as_dict(record) for record in records.records],
        "problems": records.problems,
    }


def _row(record) -> tuple:
    machine = record.machine

    def time(microseconds: float) -> str:
        return f"{microseconds:.1f}" if microseconds else ""

    return (
        shortened(record.fusion, 80),
        rows_text(record.rows),
        f"{shortened(machine.arch, 24)} x {machine.sm_count}",
        kernel_text(record.kernel),
        time(record.microseconds),
        time(record.untuned_microseconds),
        record.date[:10],
    )


def _warn(records: TuningRecords) -> None:
    for problem in records.problems:
        print(f"tenon: warning: {problem}", file=sys.stderr)
