"""How surprised a decoder is by a text: e to the mean loss of predicting each token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .genai_folder import GenaiFolder
from .generation import TokenLoop
from .inputs import InputError
from .requirements import require

_ROWS = 16  # windows that go through the model together


@dataclass(frozen=True)
class Perplexity:
    """Of one folder; `problem` says why there is none."""

    folder: str
    perplexity: float = float("nan")
    tokens: int = 0
    bytes: int = 0
    problem: str = ""

    def as_dict(self) -> dict:
        value = None if np.isnan(self.perplexity) else self.perplexity
        return {**self.__dict__, "perplexity": value}


def tokens_of(folder: GenaiFolder, text: str) -> np.ndarray:
    if not folder.tokenizer.is_file():
        raise InputError(f"there is no tokenizer.json in {folder.tokenizer.parent}")
    tokenizers = require("tokenizers", "to read tokenizer.json")
    return np.array(tokenizers.Tokenizer.from_file(str(folder.tokenizer)).encode(text).ids)


def measure(session, folder: GenaiFolder, tokens: np.ndarray, length: int) -> float:
    """The text is cut into windows of `length`, each predicted from its own beginning."""
    count = (len(tokens) - 1) // length
    if count == 0:
        raise InputError(f"{len(tokens)} tokens are no window of {length}: take a longer text")
    starts = np.arange(count)[:, None] * length
    windows = tokens[starts + np.arange(length + 1)]
    losses = [
        _losses(TokenLoop(session, folder, len(rows), length).run(rows[:, :-1]), rows[:, 1:])
        for rows in np.split(windows, range(_ROWS, count, _ROWS))
    ]
    return float(np.exp(np.concatenate(losses).mean()))


def _losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    if logits.shape[1] != targets.shape[1]:
        raise InputError("the model gives logits of the last token only: perplexity needs all")
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(logits).sum(-1)) - chosen).reshape(-1)


def bytes_of(folder: GenaiFolder) -> int:
    files = folder.model.parent.glob(folder.model.name + "*")
    return sum(Path(file).stat().st_size for file in files)
