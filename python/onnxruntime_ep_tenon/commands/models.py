"""Models to try things with, written here: decoders of any size and a ResNet-50 with weights of no
meaning, and a small decoder that is trained."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from .. import console
from ..genai_folder import sizes_beside
from ..inputs import make_inputs
from ..provider_sessions import session_options
from ..requirements import require
from ..trial import TrialError, try_alone
from . import arguments

SUMMARY = "write a decoder of any size or a ResNet-50, or train a small decoder"

_SIZES = ("layers", "hidden", "heads", "kv-heads", "head-size", "feed-forward", "vocabulary")
_WEIGHTS = ("nvfp4", "int4", "mxfp8", "mxfp4", "f16", "bf16", "f32")


def add_arguments(parser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    _add_decoder(kinds)
    _add_tiny(kinds)
    _add_resnet(kinds)


def _add_decoder(kinds) -> None:
    decoder = kinds.add_parser("decoder", help="a folder with model.onnx and genai_config.json")
    decoder.add_argument("--preset", default="tiny-llama", help="sizes and architecture by name")
    for size in _SIZES:
        decoder.add_argument(f"--{size}", type=int, help="instead of the preset's")
    decoder.add_argument("--weights", default="nvfp4", choices=_WEIGHTS, help="how they are stored")
    decoder.add_argument(
        "--activations",
        choices=("f32", "f16", "bf16"),
        help="the type between the layers and of the caches (default: f16, or that of the weights)",
    )
    decoder.add_argument(
        "--cache",
        choices=("int8", "fp8", "int4"),
        help="genai: caches hold codes under fixed scales (default: numbers)",
    )
    decoder.add_argument(
        "--form",
        default="genai",
        choices=("genai", "attention", "unfused"),
        help="as ONNX Runtime GenAI writes it, or as torch's exporter does, with Attention or "
        "softmax(QK)V",
    )
    decoder.add_argument(
        "--use-qdq", action="store_true", help="genai: weights by DequantizeLinear"
    )
    decoder.add_argument(
        "--quantized-embedding", action="store_true", help="store the table as the weights are"
    )
    decoder.add_argument(
        "--separate-qkv", action="store_true", help="three products where one would do"
    )
    decoder.add_argument(
        "--last-token-only", action="store_true", help="logits of the last token, not of all"
    )
    decoder.add_argument(
        "--draw",
        default="codes",
        choices=("codes", "floats"),
        help="random codes, in seconds; or random floats, which are then quantised",
    )
    decoder.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    decoder.add_argument("--out", required=True, help="the folder to write")
    arguments.add_json(decoder)


def _add_tiny(kinds) -> None:
    tiny = kinds.add_parser("tiny", help="a character model, trained in a minute, in four formats")
    tiny.add_argument(
        "--text",
        action="append",
        metavar="FILE",
        help="what to learn from; may be given again (default: the project's documents)",
    )
    tiny.add_argument("--steps", type=int, default=500, help="of the training (default: 500)")
    tiny.add_argument("--seed", type=int, default=0, help="of the training (default: 0)")
    tiny.add_argument("--out", required=True, help="the folder to write")
    arguments.add_json(tiny)


def _add_resnet(kinds) -> None:
    resnet = kinds.add_parser("resnet50", help="a network of convolutions, random weights")
    resnet.add_argument("--type", default="f16", choices=("f16", "f32"), help="of all tensors")
    resnet.add_argument(
        "--batch", type=arguments.count, default=0, help="images of a Run (default: left open)"
    )
    resnet.add_argument("--image", type=arguments.count, default=224, help="its height and width")
    resnet.add_argument(
        "--keep-norms",
        action="store_true",
        help="BatchNormalization behind each Conv (default: folded, as exporters do)",
    )
    resnet.add_argument("--seed", type=int, default=0, help="of the weights (default: 0)")
    resnet.add_argument("--out", required=True, help="the folder to write")
    arguments.add_json(resnet)


def run(args) -> int:
    require("onnx", "to write a model")
    writers = {"decoder": _write_decoder, "tiny": _train_tiny, "resnet50": _write_resnet}
    return writers[args.kind](args)


def _write_resnet(args) -> int:
    from ..models.resnet import ResnetForm, ResnetShape, write_resnet

    if args.image < 32:
        raise ValueError(f"an image of {args.image} is too small: it is halved five times")
    form = ResnetForm(args.type, args.batch or "batch", args.keep_norms)
    begin = time.perf_counter()
    path = write_resnet(Path(args.out), ResnetShape(image=args.image), form, args.seed)
    _tell_written(args, path, "ResNet-50", time.perf_counter() - begin, {})
    return 0


def _write_decoder(args) -> int:
    from ..models.decoder import write_decoder
    from ..models.decoder_weights import DrawnWeights, SeededWeights

    config, spelling = _config(args), _spelling(args)
    source = {"codes": DrawnWeights, "floats": SeededWeights}[args.draw](args.seed)
    begin = time.perf_counter()
    path = write_decoder(Path(args.out), config, spelling, source)
    seconds = time.perf_counter() - begin
    _tell_written(args, path, f"{config.layers} layers", seconds, {"sequence_length": 2})
    return 0


def _tell_written(args, path: Path, what: str, seconds: float, sizes: dict[str, int]) -> None:
    written = sum(file.stat().st_size for file in path.parent.glob("model.onnx*"))
    check = _check(path, sizes)
    if args.json:
        console.print_json(
            {"model": str(path), "bytes": written, "seconds": seconds, "check": check}
        )
    else:
        size, took = console.size(written), console.duration(seconds)
        console.say(f"{path}: {what}, {size}, written in {took}")
        console.say(check)


def _check(model: Path, sizes: dict[str, int]) -> str:
    """One Run of a model that was just written; one that gives no numbers is removed."""

    def inputs(session) -> dict:
        told = sizes_beside(model, session.get_inputs())
        return make_inputs(session, sizes, told=told).arrays

    try:
        return try_alone(model, inputs, lambda: session_options(0))
    except TrialError as error:
        for file in model.parent.glob(f"{model.name}*"):
            file.unlink()
        raise TrialError(f"{model} was removed: {error}") from error


def _train_tiny(args) -> int:
    # Threads of the matrix library would spin against the training's own, and it reads its
    # environment once, when numpy is loaded.
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in one_thread.items()):
        again = [sys.executable, "-m", "onnxruntime_ep_tenon", "models", "tiny", "--out", args.out]
        again += ["--steps", str(args.steps), "--seed", str(args.seed)]
        again += [part for text in args.text or () for part in ("--text", text)]
        again += ["--json"] if args.json else []
        return subprocess.run(again, env={**os.environ, **one_thread}).returncode
    from ..models.tiny_model import document_files, write_tiny_models
    from ..models.training import Schedule

    texts = [Path(text) for text in args.text] if args.text else document_files()
    schedule = Schedule(steps=args.steps, seed=args.seed)
    begin = time.perf_counter()
    with console.progress("training", not args.json) as update:
        trained = write_tiny_models(Path(args.out), texts, schedule, progress=update)
    told = {
        "folders": {format: str(folder) for format, folder in trained.folders.items()},
        "held_out": str(trained.held_out),
        "seconds": time.perf_counter() - begin,
        "loss": trained.losses[-1],
        "check": {
            format: _check(folder / "model.onnx", {"sequence_length": 2})
            for format, folder in trained.folders.items()
        },
    }
    if args.json:
        console.print_json(told)
    else:
        console.say(f"{args.out}: {args.steps} steps in {console.duration(told['seconds'])}")
        for format, check in told["check"].items():
            console.say(f"{format}: {check}")
    return 0


def _config(args):
    from ..models.decoder_config import PRESETS

    if args.preset not in PRESETS:
        raise ValueError(f"unknown preset '{args.preset}'; one of: {', '.join(PRESETS)}")
    names = [size.replace("-", "_") for size in _SIZES]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(PRESETS[args.preset], **given)


def _spelling(args):
    from ..models.decoder_config import ACTIVATION_TYPES, Spelling

    plain = args.weights in ACTIVATION_TYPES
    return Spelling(
        form=args.form,
        weights=args.weights,
        activations=args.activations or (args.weights if plain else "f16"),
        packed_qkv=not args.separate_qkv,
        use_qdq=args.use_qdq,
        quantized_embedding=args.quantized_embedding,
        last_token_only=args.last_token_only,
        cache=args.cache or "",
    )
