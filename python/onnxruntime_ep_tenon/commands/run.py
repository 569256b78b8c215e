"""Runs a model once with Tenon and, when asked, checks it against another result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import console, tensors, trace
from ..models.staged_folder import staged
from ..provider_sessions import cpu_session, session_options
from ..report import session_with_report
from ..requirements import require
from ..trial import first_line, run_original
from . import arguments

SUMMARY = "run a model once; compare it with a reference on request"

_JUDGES = {"reference": "the float64 reference", "cpu": "ONNX Runtime's CPU provider"}
_OTHER_JUDGES = "Others: --compare reference, or --compare with the model that it was made from."


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    arguments.add_session(parser)
    arguments.add_inputs(parser)
    parser.add_argument(
        "--compare",
        metavar="WITH",
        help="check the outputs: 'reference' (float64), 'cpu' (ONNX Runtime's CPU provider), or "
        "a model file, such as the float one that a quantised model was made from",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write what ran when, for chrome://tracing or Perfetto"
    )
    parser.add_argument("--save", metavar="FOLDER", help="write inputs and outputs as .npy files")
    arguments.add_json(parser)


def run(args) -> int:
    model = arguments.model_file(args.model)
    _check_judge(args.compare)
    settings = session_options(args.threads)
    with trace.recording(settings, args.trace) as recorded:
        session, report = session_with_report(model, args.device, settings, **dict(args.option))
        made = arguments.inputs_of(args, session)
        outputs = arguments.explaining_sizes(made, lambda: tensors.run(session, made.arrays))
        if args.trace:
            outputs = tensors.run(session, made.arrays)  # the first Run sets things up
        recorded.end(session)
    names = [output.name for output in session.get_outputs()]
    comparison = _compare(args, model, made.arrays, names, outputs) if args.compare else None
    if args.save:
        _save(Path(args.save), made.arrays, dict(zip(names, outputs, strict=True)))
    if args.json:
        console.print_json(_summary(report, made, names, outputs, comparison))
    else:
        _print(report, made, session.get_outputs(), outputs, comparison)
        for file in filter(None, (args.trace, args.save)):
            console.say(f"Written: {file}")
    return 0 if comparison is None or comparison.ok else 1


def _check_judge(judge: str | None) -> None:
    if judge is not None and judge not in _JUDGES and not Path(judge).is_file():
        known = ", ".join(f"'{name}'" for name in _JUDGES)
        raise ValueError(f"--compare takes {known} or a model file; there is none at {judge}")


@dataclass(frozen=True)
class Comparison:
    """What the outputs were held against; `problem`: there was nothing to hold them against."""

    judge: str
    verdicts: list = field(default_factory=list)
    note: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and all(verdict.ok for verdict in self.verdicts)


def _compare(args, model: Path, inputs, names, outputs) -> Comparison:
    onnx = require("onnx", "to compare results")
    from ..models import tolerances, validate

    judge = _JUDGES.get(args.compare, args.compare)
    try:
        expected = _expected(args, model, inputs)
    except Exception as error:
        problem = f"{judge} could not run it, so nothing is known: {first_line(error)}"
        if args.compare == "cpu":
            problem += f"\n{_OTHER_JUDGES}"
        return Comparison(judge, problem=problem)
    graph = onnx.load(model, load_external_data=False)
    if args.compare not in _JUDGES:
        original = onnx.load(args.compare, load_external_data=False)
        allowed = tolerances.against_original(graph, original)
        pairs = zip(names, outputs, expected, strict=True)
        verdicts = [validate.compare_with_original(*pair, allowed.rms) for pair in pairs]
        note = f"bound of the rms error, over the original's size: {allowed.why}"
        return Comparison(judge, verdicts, note)
    judged = tolerances.against_a_provider if args.compare == "cpu" else tolerances.for_activations
    bound = judged(graph, dict(args.option).get("precision_mode", ""))
    verdicts = validate.compare_rounded(names, outputs, expected, bound)
    return Comparison(judge, verdicts, bound.why if bound else "")


def _expected(args, model: Path, inputs) -> list:
    if args.compare == "reference":
        import onnx

        from ..models import reference

        return reference.evaluate(onnx.load(model), inputs)
    if args.compare == "cpu":
        session = cpu_session(model, session_options(args.threads), exact=True)
        return tensors.run(session, inputs)

    def settings():
        return session_options(args.threads)

    return run_original(Path(args.compare), inputs, settings, args.device)


def _save(folder: Path, inputs: dict, outputs: dict) -> None:
    with staged(folder) as work:
        for kind, arrays in (("input", inputs), ("output", outputs)):
            for name, array in arrays.items():
                with open(work / f"{kind}_{name.replace('/', '_')}.npy", "wb") as file:
                    # Of a file itself numpy would say how much of it is missing, but not why.
                    np.save(SimpleNamespace(write=file.write), array)


def _describe(array) -> str:
    array = np.asarray(array)
    if array.dtype.kind in "USO" or not array.size:
        return ""
    if array.dtype.kind in "iu":
        return f"{array.min()} .. {array.max()}"
    wide = array.astype(np.float64)
    return f"{wide.min():.4g} .. {wide.max():.4g}, mean {wide.mean():.4g}"


def _type_of(output, array: np.ndarray) -> str:
    return tensors.type_name(array) if tensors.is_tensor(output) else output.type


def _print(report, made, declared, outputs, comparison: Comparison | None) -> None:
    rows = [
        ("in", name, tensors.type_name(array), list(array.shape), _describe(array))
        for name, array in made.arrays.items()
    ]
    rows += [
        ("out", output.name, _type_of(output, array), list(np.shape(array)), _describe(array))
        for output, array in zip(declared, outputs, strict=True)
    ]
    console.table(["", "name", "type", "shape", "values"], rows)
    console.say()
    if made.chosen:
        console.say(made.chosen_text())
    console.say(f"Tenon ran {report.coverage}.")
    if comparison and comparison.problem:
        console.heading("Not compared")
        console.say(comparison.problem)
    elif comparison:
        console.heading(f"Compared with {comparison.judge}")
        if comparison.note:
            console.say(f"({comparison.note})")
        _print_verdicts(comparison.verdicts)


def _print_verdicts(verdicts: list) -> None:
    console.table(
        ["output", "verdict", "largest error", "rms error", "bound", "note"],
        [
            (
                v.name,
                "ok" if v.ok else "WRONG",
                f"{v.largest_error:.2e}",
                f"{v.rms_error:.2e}",
                "-" if v.bound is None else f"{v.bound:.2e}",
                v.problem or v.note,
            )
            for v in verdicts
        ],
        right=(2, 3, 4),
    )


def _summary(report, made, names, outputs, comparison: Comparison | None) -> dict:
    coverage = report.coverage
    arrays = made.arrays
    return {
        "inputs": {
            name: [tensors.type_name(array), list(array.shape)] for name, array in arrays.items()
        },
        "chosen_sizes": [asdict(size) for size in made.chosen],
        "outputs": {
            name: [tensors.type_name(array), list(np.shape(array))]
            for name, array in zip(names, outputs, strict=True)
        },
        "claimed": coverage.claimed,
        "nodes": coverage.nodes,
        "partitions": coverage.partitions,
        "compared": [verdict.as_dict() for verdict in comparison.verdicts] if comparison else [],
        "comparison_problem": comparison.problem if comparison else "",
    }
