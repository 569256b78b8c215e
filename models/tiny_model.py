"""A character-level decoder trained on the project's own documents, in a minute.

It says nothing wise, but what it says is readable, and its perplexity after quantisation means
something, which that of random weights does not.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .decoder import write_decoder
from .decoder_config import DecoderConfig, Spelling
from .decoder_weights import TrainedWeights
from .training import Progress, Schedule, train

FORMATS = ("f32", "nvfp4", "mxfp8", "int4")
HELD_OUT = "held_out.txt"
_EVERY = 10  # of so many paragraphs one is held out


@dataclass(frozen=True)
class Trained:
    folders: dict[str, Path]  # by format
    held_out: Path
    losses: list[float]


def document_files() -> list[Path]:
    """The documents of the source tree that this file stands in; none in an installed package."""
    tree = Path(__file__).resolve().parent.parent
    return sorted([*tree.glob("*.md"), *tree.glob("[!.bd]*/README.md"), *tree.glob("docs/*.md")])


def split_text(text: str) -> tuple[str, str]:
    """What is learned from, and every tenth paragraph, which is not."""
    paragraphs = text.split("\n\n")
    learned = [p for number, p in enumerate(paragraphs) if (number + 1) % _EVERY]
    return "\n\n".join(learned), "\n\n".join(paragraphs[_EVERY - 1 :: _EVERY])


def characters_of(text: str) -> list[str]:
    """Those of the text, and all that a keyboard has, so that any prompt can be fed."""
    return sorted(set(text) | set(string.printable[:95]) | {"\n"})


def config_for(vocabulary: int) -> DecoderConfig:
    sizes = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_size": 32}
    return DecoderConfig(**sizes, feed_forward=384, vocabulary=vocabulary, positions=256)


def write_tiny_models(
    out: Path,
    texts: Sequence[Path],
    schedule: Schedule,
    formats: Sequence[str] = FORMATS,
    progress: Progress | None = None,
) -> Trained:
    """Trains once, then writes a folder per format, each with its tokenizer."""
    if not texts:
        raise ValueError("there are no documents to learn from: give --text FILE")
    learned, held_out = split_text("\n\n".join(path.read_text() for path in texts))
    characters = characters_of(learned + held_out)
    numbers = {character: number for number, character in enumerate(characters)}
    config = config_for(len(characters))
    tokens = np.array([numbers[character] for character in learned])
    weights, losses = train(config, tokens, schedule, progress)
    folders = {}
    for format in formats:
        folders[format] = out / format
        spelling = Spelling("genai", format, "f32", packed_qkv=True)
        write_decoder(folders[format], config, spelling, TrainedWeights(weights))
        write_tokenizer(folders[format] / "tokenizer.json", numbers)
    (out / HELD_OUT).write_text(held_out)
    return Trained(folders, out / HELD_OUT, losses)


def write_tokenizer(path: Path, numbers: dict[str, int]) -> None:
    """A token per character, in the form that the package `tokenizers` reads."""
    one_by_one = {
        "type": "Split",
        "pattern": {"Regex": "[\\s\\S]"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": one_by_one,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": numbers, "unk_token": " "},
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
