"""Runs a model once with Tenon and, when asked, checks it against another result."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import console, tensors, trace
from ..report import session_with_report
from ..requirements import require
from . import arguments

SUMMARY = "run a model once; compare it with a reference on request"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    arguments.add_session(parser)
    arguments.add_inputs(parser)
    parser.add_argument(
        "--compare",
        choices=["reference", "cpu"],
        help="check the outputs: float64 reference, or ONNX Runtime's CPU provider",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write what ran when, for chrome://tracing or Perfetto"
    )
    parser.add_argument("--save", metavar="FOLDER", help="write inputs and outputs as .npy files")
    arguments.add_json(parser)


def run(args) -> int:
    settings = arguments.session_options(args.threads)
    with trace.recording(settings, args.trace) as recorded:
        session, report = session_with_report(
            args.model, args.device, settings, **dict(args.option)
        )
        inputs = arguments.inputs_of(args, session)
        outputs = tensors.run(session, inputs)
        if args.trace:
            outputs = tensors.run(session, inputs)  # the first Run sets things up
        recorded.end(session)
    names = [output.name for output in session.get_outputs()]
    verdicts = _compare(args, inputs, names, outputs) if args.compare else []
    if args.save:
        _save(Path(args.save), inputs, dict(zip(names, outputs, strict=True)))
    if args.json:
        console.print_json(_summary(report, inputs, names, outputs, verdicts))
    else:
        _print(report, inputs, names, outputs, verdicts, args.compare)
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _compare(args, inputs, names, outputs) -> list:
    require("onnx", "to compare results")
    from ..models import validate

    return validate.compare_all(names, outputs, _expected(args, inputs))


def _expected(args, inputs) -> list:
    if args.compare == "cpu":
        import onnxruntime

        settings = arguments.session_options(args.threads)
        other = onnxruntime.InferenceSession(
            args.model, sess_options=settings, providers=["CPUExecutionProvider"]
        )
        return tensors.run(other, inputs)
    import onnx

    from ..models import reference

    return reference.evaluate(onnx.load(args.model), inputs)


def _save(folder: Path, inputs: dict, outputs: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for name, array in arrays.items():
            np.save(folder / f"{kind}_{name.replace('/', '_')}.npy", array)


def _describe(array) -> str:
    array = np.asarray(array)
    if array.dtype.kind in "USO" or not array.size:
        return ""
    wide = array.astype(np.float64)
    return f"{wide.min():.4g} .. {wide.max():.4g}, mean {wide.mean():.4g}"


def _print(report, inputs, names, outputs, verdicts, compared_with) -> None:
    rows = [
        ("in", name, array.dtype, list(array.shape), _describe(array))
        for name, array in inputs.items()
    ]
    rows += [
        ("out", name, np.asarray(array).dtype, list(np.shape(array)), _describe(array))
        for name, array in zip(names, outputs, strict=True)
    ]
    console.table(["", "name", "type", "shape", "values"], rows)
    console.say()
    console.say(f"Tenon ran {report.coverage}.")
    if verdicts:
        console.heading(f"Compared with {compared_with}")
        console.table(
            ["output", "verdict", "largest error", "rms error", "problem"],
            [
                (
                    v.name,
                    "ok" if v.ok else "WRONG",
                    f"{v.largest_error:.2e}",
                    f"{v.rms_error:.2e}",
                    v.problem,
                )
                for v in verdicts
            ],
            right=(2, 3),
        )


def _summary(report, inputs, names, outputs, verdicts) -> dict:
    coverage = report.coverage
    return {
        "inputs": {name: [str(array.dtype), list(array.shape)] for name, array in inputs.items()},
        "outputs": {
            name: [str(np.asarray(array).dtype), list(np.shape(array))]
            for name, array in zip(names, outputs, strict=True)
        },
        "claimed": coverage.claimed,
        "nodes": coverage.nodes,
        "partitions": coverage.partitions,
        "compared": [verdict.as_dict() for verdict in verdicts],
    }
