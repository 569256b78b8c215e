"""Sentences to token ids: the `tokenizers` library when it is there, else plain WordPiece."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
import zlib
from pathlib import Path

import numpy as np

_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


class WordPiece:
    """Lower-cased greedy WordPiece over a vocab.txt; without one, words hash to ids."""

    def __init__(self, vocabulary: Path | None, size: int):
        self.size = size
        self.ids: dict[str, int] = {}
        if vocabulary is not None and vocabulary.is_file():
            words = vocabulary.read_text(encoding="utf-8").splitlines()
            self.ids = {word: index for index, word in enumerate(words)}

    def encode(self, text: str) -> list[int]:
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
        pieces = [p for word in _WORD_OR_MARK.findall(plain) for p in self._pieces(word)]
        return [self._special("[CLS]", 1), *pieces, self._special("[SEP]", 2)]

    def _special(self, name: str, default: int) -> int:
        return self.ids.get(name, default)

    def _pieces(self, word: str) -> list[int]:
        if not self.ids:
            return [3 + zlib.crc32(word.encode()) % (self.size - 3)]
        pieces, begin = [], 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                candidate = word[begin:end] if begin == 0 else "##" + word[begin:end]
                if candidate in self.ids:
                    pieces.append(self.ids[candidate])
                    begin = end
                    break
            else:
                return [self._special("[UNK]", 0)]
        return pieces


class _HuggingFaceTokenizer:
    def __init__(self, path: Path):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids


def load_tokenizer(folder: Path | None, vocabulary_size: int):
    """The model's own tokenizer where folder and library allow, else WordPiece."""
    if folder is not None and (folder / "tokenizer.json").is_file():
        if importlib.util.find_spec("tokenizers") is not None:
            return _HuggingFaceTokenizer(folder / "tokenizer.json")
        return WordPiece(folder / "vocab.txt", vocabulary_size)
    return WordPiece(None, vocabulary_size)


def tokenize(tokenizer, sentences: list[str], longest: int = 512) -> dict[str, np.ndarray]:
    """One padded batch: input_ids, attention_mask, token_type_ids."""
    rows = [tokenizer.encode(sentence)[:longest] for sentence in sentences]
    width = max(len(row) for row in rows)
    ids = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
