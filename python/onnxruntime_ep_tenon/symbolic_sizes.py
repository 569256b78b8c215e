"""Sizes as reports write them, '512*batch*max(past,total)', as numbers."""

from __future__ import annotations

import math
import re

_TOKEN = re.compile(r"\s*('(?:[^'\\]|\\.)*'|[A-Za-z_][\w.]*|\d+|[-+*(),])")
_FUNCTIONS = {
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "broadcast": lambda *sizes: next((size for size in sizes if size != 1), 1),
    "unlessone": lambda size: int(size != 1),
    "product": lambda *sizes: math.prod(sizes),
}


def evaluate(text: str, sizes: dict[str, int]) -> int:
    """Symbols that `sizes` does not name are 1."""
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+(?=(?:[^']*'[^']*')*[^']*$)", "", text):
        raise ValueError(f"'{text}' is no size")
    value, rest = _sum(tokens, sizes)
    if rest:
        raise ValueError(f"'{text}' is no size: {rest[0]} is left over")
    return value


def _sum(tokens: list[str], sizes: dict[str, int]) -> tuple[int, list[str]]:
    value, tokens = _product(tokens, sizes)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens[0] == "+" else -1
        term, tokens = _product(tokens[1:], sizes)
        value += sign * term
    return value, tokens


def _product(tokens: list[str], sizes: dict[str, int]) -> tuple[int, list[str]]:
    value, tokens = _factor(tokens, sizes)
    while tokens and tokens[0] == "*":
        factor, tokens = _factor(tokens[1:], sizes)
        value *= factor
    return value, tokens


def _factor(tokens: list[str], sizes: dict[str, int]) -> tuple[int, list[str]]:
    if not tokens:
        raise ValueError("a size ends too early")
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        value, rest = _factor(rest, sizes)
        return -value, rest
    if first == "(" or (first in _FUNCTIONS and rest[:1] == ["("]):
        arguments, rest = _arguments(rest[first != "(" :], sizes)
        return _FUNCTIONS.get(first, lambda value: value)(*arguments), rest
    if first.isdigit():
        return int(first), rest
    name = re.sub(r"\\(.)", r"\1", first[1:-1]) if first.startswith("'") else first
    return sizes.get(name, 1), rest


def _arguments(tokens: list[str], sizes: dict[str, int]) -> tuple[list[int], list[str]]:
    """Up to the closing bracket, which goes with them."""
    values = []
    while True:
        value, tokens = _sum(tokens, sizes)
        values.append(value)
        end, tokens = tokens[:1], tokens[1:]
        if end == [")"]:
            return values, tokens
        if end != [","]:
            raise ValueError("a size lacks a closing bracket")


_OPERAND = re.compile(r"(-|[a-z]\w*)(?:\[((?:'(?:[^'\\]|\\.)*'|[^\]'])*)\])?")
_BITS = re.compile(r"\d+")


def operands(text: str, sizes: dict[str, int]) -> list[tuple[str, list[int], bool]]:
    """'f16[batch,4096], f4e2m1[64]': types, shapes, and whether any dim is a symbol."""
    found = []
    for kind, inner in _OPERAND.findall(text):
        if kind == "-" or inner == "?":
            continue
        dims = _split(inner)
        shape = [evaluate(dim, sizes) for dim in dims]
        found.append((kind, shape, not all(dim.isdigit() for dim in dims)))
    return found


def _split(dims: str) -> list[str]:
    """At commas outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for letter in dims:
        quoted ^= letter == "'"
        depth += 0 if quoted else (letter == "(") - (letter == ")")
        if letter == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def bytes_of(kind: str, shape: list[int]) -> float:
    """f4e2m1 has 4 bits, bf16 16, bool 8."""
    bits = int(_BITS.search(kind)[0]) if _BITS.search(kind) else 8
    return math.prod(shape) * bits / 8
