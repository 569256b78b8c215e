"""Generates text or tokens with a decoder in a folder as ONNX Runtime GenAI takes it.

python examples/python/generate.py FOLDER --prompt "The provider"
python examples/python/generate.py FOLDER --tokens 1,2,3 --count 64
mpirun -n 2 python examples/python/generate.py FOLDER --tokens 1,2,3 --ranks auto
"""

import argparse
import os
import sys
from pathlib import Path

import onnxruntime
import onnxruntime_ep_tenon as tenon
from onnxruntime_ep_tenon.genai_folder import GenaiFolder
from onnxruntime_ep_tenon.generation import Pace, TokenLoop, generate, sampler
from onnxruntime_ep_tenon.inputs import InputError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="holds genai_config.json and the model it names")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="text; needs tokenizer.json in the folder")
    prompt.add_argument("--tokens", help="token ids instead, separated by commas")
    parser.add_argument("--count", type=int, default=128, help="tokens to make (default: 128)")
    parser.add_argument("--max-length", type=int, default=0, help="of prompt and answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many only")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu, gpu:1")
    parser.add_argument("--copy-cache", action="store_true", help="past and present apart")
    parser.add_argument("--ranks", default="1", help="auto: as many as the launcher started")
    parser.add_argument(
        "--deadline-ms", type=int, help="how long to wait for other ranks (default: a minute)"
    )
    return parser.parse_args()


class Words:
    """Text to tokens and back, a piece at a time."""

    def __init__(self, file: Path):
        if not file.is_file():
            raise InputError(f"there is no {file.name} in {file.parent}: give --tokens instead")
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokens: list[int] = []
        self._shown = ""

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def __call__(self, token: int) -> str:
        """What the token adds; nothing while a character is incomplete."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\ufffd"):
            return ""
        added, self._shown = text[len(self._shown) :], text
        return added


def launched(*names: str) -> int:
    """A number that the launcher says: torchrun, Open MPI or Slurm."""
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), 0)


def open_session(args: argparse.Namespace, model: Path, **options):
    settings = onnxruntime.SessionOptions()
    if args.ranks != "1":
        options["tensor_parallel_size"] = args.ranks
        if args.deadline_ms:
            options["collective_deadline_ms"] = args.deadline_ms
        print(f"--ranks {args.ranks}: waiting for the others", file=sys.stderr)
        here = launched("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "WORLD_SIZE")
        # Ranks on one host share its cores.
        settings.intra_op_num_threads = max(1, os.cpu_count() // max(1, here))
    return tenon.create_session(model, args.device, settings, **options)


def main() -> None:
    args = arguments()
    folder = GenaiFolder.load(args.folder)
    words = Words(folder.tokenizer) if args.prompt is not None else None
    prompt = words.encode(args.prompt) if words else [int(t) for t in args.tokens.split(",")]
    shared = folder.shares_cache and not args.copy_cache
    on_gpu = args.device != "cpu" and tenon.devices()[0].device.type.name == "GPU"
    # With shared caches shapes and addresses stay from step to step: a GPU replays one graph.
    options = {"enable_cuda_graph": True} if on_gpu and shared else {}
    session = open_session(args, folder.model, **options)
    length = args.max_length or min(folder.context_length, len(prompt) + args.count)
    loop = TokenLoop(session, folder, 1, length, shared, fixed_mask=on_gpu)
    pace = Pace()
    choose = sampler(args.temperature, args.top_k, args.seed)
    # All ranks get the same logits, choose alike, and one of them speaks.
    rank = launched("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID") if args.ranks != "1" else 0
    show = print if rank == 0 else lambda *_, **__: None
    if words:
        show(args.prompt, end="", flush=True)
    for token in generate(loop, prompt, args.count, choose, pace, folder.end_tokens):
        show(words(token) if words else f"{token} ", end="", flush=True)
    show(f"\n{pace}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        # What the runtime and Tenon say of a model, a folder or an absent rank tells what to do.
        said = isinstance(error, (ValueError, RuntimeError, OSError))
        if not said and not type(error).__module__.startswith("onnxruntime"):
            raise
        sys.exit(f"generate: {error}")
