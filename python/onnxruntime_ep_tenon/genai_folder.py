"""Reading a folder as ONNX Runtime GenAI takes it: genai_config.json beside a decoder's model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from .inputs import InputError

CONFIG_NAME = "genai_config.json"


@dataclass(frozen=True)
class GenaiFolder:
    """Where the model is, what its inputs and outputs are called, and how long it may run."""

    model: Path
    ids: str
    mask: str
    positions: str
    logits: str
    past: tuple[tuple[str, str], ...]  # keys and values, layer by layer
    present: tuple[tuple[str, str], ...]
    end_tokens: tuple[int, ...]
    context_length: int
    shares_cache: bool  # past and present may be the same memory
    kv_heads: int = 0  # of a cache on all ranks together; 0: the configuration does not say
    head_size: int = 0
    windows: dict[str, int] = field(default_factory=dict)  # rows of caches that only hold a window

    @property
    def tokenizer(self) -> Path:
        return self.model.parent / "tokenizer.json"

    def cache_width(self, element: str) -> int:
        """Elements that a head takes in a cache of this type: bytes hold two codes of 4 bits."""
        return (self.head_size + 1) // 2 if element == "tensor(uint8)" else self.head_size

    @staticmethod
    def load(path: Path | str) -> GenaiFolder:
        folder = Path(path)
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder; give one that holds {CONFIG_NAME}")
        config = _read(folder / CONFIG_NAME)
        model = _part(config, "model", folder)
        decoder = _part(model, "decoder", folder)
        inputs, outputs = _part(decoder, "inputs", folder), _part(decoder, "outputs", folder)
        layers = _number(decoder, "num_hidden_layers", folder)
        file = folder / decoder.get("filename", "model.onnx")
        past = _pairs(inputs, "past", "past_key_values.%d.", layers)
        if not file.is_file():
            raise InputError(f"{folder / CONFIG_NAME} names {file.name}, which is not there")
        return GenaiFolder(
            model=file,
            ids=inputs.get("input_ids", "input_ids"),
            mask=inputs.get("attention_mask", "attention_mask"),
            positions=inputs.get("position_ids", "position_ids"),
            logits=outputs.get("logits", "logits"),
            past=past,
            present=_pairs(outputs, "present", "present.%d.", layers),
            end_tokens=_end_tokens(model),
            context_length=_number(model, "context_length", folder),
            shares_cache=bool(config.get("search", {}).get("past_present_share_buffer", False)),
            kv_heads=_number(decoder, "num_key_value_heads", folder, least=0),
            head_size=_number(decoder, "head_size", folder, least=0),
            windows=_windows(decoder, past, folder),
        )


def sizes_beside(model: Path, inputs) -> dict[str, tuple[int, str]]:
    """Symbols of the caches' shapes that the configuration beside a decoder has numbers for.

    GenAI's model builder calls the size of a head 'kv_cache_dim' and writes the number there.
    """
    if not (model.parent / CONFIG_NAME).is_file():
        return {}
    try:
        folder = GenaiFolder.load(model.parent)
    except InputError:
        return {}  # not a decoder's: nothing in it is about these inputs
    if folder.model.name != model.name:
        return {}
    caches = {name for names in folder.past for name in names}
    sizes: dict[str, tuple[int, str]] = {}
    for value in inputs:
        if value.name not in caches or len(value.shape) != 4:
            continue
        _, heads, rows, width = value.shape
        for symbol, size, key in (
            (heads, folder.kv_heads, "num_key_value_heads"),
            (rows, folder.windows.get(value.name, 0), "sliding_window"),
            (width, folder.cache_width(value.type), "head_size"),
        ):
            if isinstance(symbol, str) and size:
                sizes.setdefault(symbol, (size, f"by {key} in {CONFIG_NAME}"))
    return sizes


def model_files(path: Path | str) -> list[Path]:
    """Every model that a folder's configuration names: the decoder, and encoders beside it."""
    folder = Path(path)
    parts = _part(_read(folder / CONFIG_NAME), "model", folder).values()
    names = [part["filename"] for part in parts if isinstance(part, dict) and "filename" in part]
    files = [folder / name for name in names] or [folder / "model.onnx"]
    for file in files:
        if not file.is_file():
            raise InputError(f"{folder / CONFIG_NAME} names {file.name}, which is not there")
    return files


def _read(path: Path) -> dict:
    if not path.is_file():
        raise InputError(
            f"there is no {path.name} in {path.parent}: it should be a folder as ONNX Runtime "
            "GenAI's model builder or `tenon models decoder` writes it"
        )
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} should hold an object, it holds {type(config).__name__}")
    return config


def _part(value: dict, key: str, folder: Path) -> dict:
    part = value.get(key)
    if not isinstance(part, dict):
        raise InputError(
            f"{folder / CONFIG_NAME} has no '{key}' object: only models with one decoder are run"
        )
    return part


def _number(value: dict, key: str, folder: Path, least: int = 1) -> int:
    """Of a key that must be there, unless `least` is 0."""
    number = value.get(key, None if least else 0)
    if not isinstance(number, int) or number < least:
        raise InputError(f"{folder / CONFIG_NAME}: '{key}' should be a positive number: {number!r}")
    return number


def _pairs(names: dict, kind: str, default: str, layers: int) -> tuple[tuple[str, str], ...]:
    key = names.get(f"{kind}_key_names", default + "key")
    value = names.get(f"{kind}_value_names", default + "value")
    return tuple(
        (key.replace("%d", str(layer)), value.replace("%d", str(layer))) for layer in range(layers)
    )


def _windows(decoder: dict, past: tuple[tuple[str, str], ...], folder: Path) -> dict[str, int]:
    """Caches of layers whose attention slides them: as long as the window from the first step on.

    Not those that a runtime slides (slide_key_value_cache), which grow as others do.
    """
    told = decoder.get("sliding_window")
    if not isinstance(told, dict) or told.get("slide_key_value_cache") or "layers" not in told:
        return {}
    rows = _number(told, "window_size", folder) + _number(told, "cache_slack", folder, least=0)
    layers = [layer for layer in told["layers"] if layer in range(len(past))]
    return {name: rows for layer in layers for name in past[layer]}


def _end_tokens(model: dict) -> tuple[int, ...]:
    told = model.get("eos_token_id", [])
    return tuple(told) if isinstance(told, list) else (told,)
