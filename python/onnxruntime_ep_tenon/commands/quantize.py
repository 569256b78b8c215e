"""A float model in, the same model with block-quantised weights out."""

from __future__ import annotations

from pathlib import Path

from .. import console
from ..requirements import require
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
        default="f32",
        choices=["f32", "f16", "bf16"],
        help="the type between the layers (default: f32)",
    )
    parser.add_argument("--out", help="where to write (default: MODEL.FORMAT.onnx)")
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
    arguments.add_json(parser)


def run(args) -> int:
    require("onnx", "to quantise a model")
    from ..models.quantize import quantize_file

    source = Path(args.model)
    target = Path(args.out) if args.out else source.with_suffix(f".{args.format}.onnx")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target} is the model itself; give another name with --out")
    with console.progress("quantising", not args.json) as update:
        report = quantize_file(
            source, target, args.format, args.activations, args.embeddings, args.exclude, update
        )
    if args.json:
        console.print_json(report.as_dict())
    else:
        print_report(report)
    return 0


def print_report(report) -> None:
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
    done = report.quantized_layers
    console.say()
    if not done:
        console.say("Nothing was quantised: no MatMul or Gemm with a fitting constant weight.")
    else:
        worst = max(done, key=lambda layer: layer.error)
        console.say(
            f"{len(done)} of {len(report.layers)} weights quantised to {report.format}; "
            f"the largest error is {100 * worst.error:.2f} % (rms) in {worst.node}"
        )
    ratio = report.bytes_before / report.bytes_after
    console.say(
        f"{console.size(report.bytes_before)} -> {console.size(report.bytes_after)} "
        f"({ratio:.1f}x smaller): {report.files[0]}"
    )
