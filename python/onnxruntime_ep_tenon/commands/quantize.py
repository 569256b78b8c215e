"""A float model in, the same model with block-quantised weights out."""

from __future__ import annotations

import shutil
from pathlib import Path

from .. import console
from ..mending import tell
from ..provider_sessions import session_options
from ..requirements import require
from ..trial import Trial, TrialError, try_model, why_not_here
from . import arguments

SUMMARY = "quantise a model's weights to nvfp4, mxfp8, mxfp4, int4 or fp8"


def add_arguments(parser) -> None:
    arguments.add_model(parser)
    parser.add_argument(
        "--format",
        required=True,
        choices=["nvfp4", "mxfp8", "mxfp4", "int4", "fp8"],
        help="how weights are stored",
    )
    parser.add_argument(
        "--activations",
        choices=["f32", "f16", "bf16"],
        help="the type between the layers (default: as in the model)",
    )
    parser.add_argument(
        "--out",
        help="where to write: a file (default: MODEL.FORMAT.onnx), or a folder where the model is "
        "one, which also gets its configuration and tokenizer (default: FOLDER.FORMAT)",
    )
    parser.add_argument(
        "--embeddings", action="store_true", help="quantise large embedding tables too"
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave nodes whose name matches, e.g. '*lm_head*'; may be given again",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="write without opening the result with Tenon and comparing one Run with the original",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write it even where the file gets less than 1.05x smaller",
    )
    parser.add_argument("--device", default="auto", help="of that Run: auto, cpu, gpu, gpu:1")
    parser.add_argument("--threads", type=arguments.threads, default=0, help="of that Run (all)")
    arguments.add_inputs(parser)
    arguments.add_json(parser)


def run(args) -> int:
    require("onnx", "to quantise a model")
    from ..models.genai_folder import files_beside
    from ..models.quantize import NothingQuantizedError, quantize_file
    from ..models.rewrite import RewriteError
    from ..models.staged_folder import staged

    source, target = arguments.model_file(args.model), _target(args)
    beside = files_beside(source) if Path(args.model).is_dir() else []
    check = _Check(args, source, target)
    try:
        with console.progress("quantising", not args.json) as update, staged(target.parent) as work:
            report = quantize_file(
                source, work / target.name, args.format, args.activations, args.embeddings,
                args.exclude, update, check,
            )  # fmt: skip
            for name in beside:
                shutil.copyfile(source.parent / name, work / name)
    except (NothingQuantizedError, _RefusedError) as error:
        if error.report.layers and not args.json:
            print_layers(error.report)
            console.say()
        raise
    except RewriteError as error:
        if isinstance(error.__cause__, OSError):  # it names a folder that is gone
            raise OSError(*error.__cause__.args[:2], str(target)) from error
        raise
    tell(source, report.mended)
    report.files = [str(target.with_name(Path(file).name)) for file in report.files]
    if args.json:
        console.print_json({**report.as_dict(), "check": check.trial.as_dict()})
    else:
        print_report(report)
        if beside:
            console.say(f"Copied: {', '.join(beside)}")
        _print_check(check.trial)
    return 0


def _target(args) -> Path:
    """The model file to write: of the folder's model, in a folder."""
    given, source = Path(args.model), arguments.model_file(args.model)
    if given.is_dir():
        folder = given.resolve()
        default = folder.with_name(f"{folder.name}.{args.format}")
        target = (Path(args.out) if args.out else default) / source.name
        if target.parent.is_file():
            raise ValueError(f"{target.parent} is a file: the model is a folder, and so is --out")
    else:
        target = Path(args.out) if args.out else source.with_suffix(f".{args.format}.onnx")
        if target.is_dir():
            raise ValueError(f"{target} is a folder; give the name of a file")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the model itself; give another name with --out")
    return target


class _RefusedError(TrialError):
    """What was made is not worth a file, or nobody can run it; the layers tell why."""

    def __init__(self, text: str, report):
        super().__init__(text)
        self.report = report


class _Check:
    """Called with the file before it gets its name.

    Refuses one that is hardly smaller, and one that nobody can run.
    """

    def __init__(self, args, source: Path, target: Path):
        self._args, self._source, self._target = args, source, target
        self.trial = Trial(skipped="--no-check" if args.no_check else "")

    def __call__(self, written: Path, report) -> None:
        from ..models.rewrite import bytes_on_disk

        before, after = bytes_on_disk(self._source), bytes_on_disk(written)
        if not is_smaller(before, after) and not self._args.force:
            lines = [
                f"{self._target} was not written: it is {size_change(before, after)} than "
                f"{self._source} ({console.size(before)} -> {console.size(after)}); at least "
                f"{_WORTHWHILE}x is expected, --force writes it all the same",
                *report.advice,
            ]
            raise _RefusedError("\n".join(lines), report)
        if self.trial.skipped:
            return
        if reason := why_not_here(self._args.format, before):
            self.trial = Trial(skipped=reason)
            return
        try:
            self.trial = try_model(
                written,
                self._source,
                lambda session: arguments.inputs_of(self._args, session).arrays,
                lambda: session_options(self._args.threads),
                self._args.device,
            )
        except TrialError as error:
            raise _RefusedError(f"{self._target} was not written: {error}", report) from error


def _print_check(trial: Trial) -> None:
    if trial.skipped:
        console.say(f"Not checked: {trial.skipped}")
        return
    for verdict in trial.verdicts:
        how = f"differs from the original's by {100 * verdict.rms_error:.2g} % (rms)"
        said = [how, verdict.note] if verdict.rms_error else [verdict.note or how]
        console.say(f"Checked: '{verdict.name}' of one Run: {', '.join(filter(None, said))}")


_WORTHWHILE = 1.05  # a smaller gain does not pay for what rounding costs


def is_smaller(before: int, after: int) -> bool:
    return before >= _WORTHWHILE * after


def size_change(before: int, after: int) -> str:
    """What became of a file's size, in words that hold whichever way it went."""
    larger, smaller = after / before, before / after
    if larger >= _WORTHWHILE:
        return f"{larger:.1f}x larger"
    if smaller >= _WORTHWHILE:
        return f"{smaller:.1f}x smaller"
    if smaller >= 1.005:
        return f"only {smaller:.2f}x smaller"
    return "no smaller"


def print_layers(report) -> None:
    """The per-layer table: what was quantised and how well, what was left and why."""
    rows = [
        (
            layer.node or layer.weight,
            layer.op,
            "x".join(map(str, layer.shape)),
            f"{100 * layer.error:.2f} %" if layer.quantized else "-",
            f"{layer.bytes_before / layer.bytes_after:.1f}x" if layer.quantized else "-",
            "" if layer.quantized else f"left: {layer.reason}",
        )
        for layer in report.layers
    ]
    console.table(["layer", "op", "shape", "error", "smaller", "note"], rows, right=(2, 3, 4))


def print_report(report) -> None:
    print_layers(report)
    done = report.quantized_layers
    worst = max(done, key=lambda layer: layer.error)
    console.say()
    console.say(
        f"{len(done)} of {len(report.layers)} weights quantised to {report.format}; "
        f"the largest error is {100 * worst.error:.2f} % (rms) in {worst.node or worst.weight}"
    )
    console.say(
        f"{console.size(report.bytes_before)} -> {console.size(report.bytes_after)} "
        f"({size_change(report.bytes_before, report.bytes_after)}): {report.files[0]}"
    )
    for advice in report.advice:
        console.say(f"{advice[0].upper()}{advice[1:]}.")
