"""Differences from the stock provider that are allowed, each with its reason."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    state: str
    family: str  # a prefix of the graph's name
    text: str  # a pattern of the outcome's text
    reason: str

    def fits(self, state: str, family: str, text: str) -> bool:
        return (
            state == self.state
            and family.startswith(self.family)
            and bool(re.search(self.text, text))
        )


KNOWN: tuple[Known, ...] = ()


def known_difference(state: str, family: str, text: str) -> Known | None:
    return next((known for known in KNOWN if known.fits(state, family, text)), None)
