"""What memory holds that nobody has written: a byte of our choice, so that reading it shows."""

from __future__ import annotations

import ctypes

_M_PERTURB = -6
BY_STOCK, BY_TENON = 0x5B, 0xA7


def fill_fresh_memory(byte: int) -> None:
    """From now on in this process, blocks of the C library's allocator come filled so."""
    ctypes.CDLL(None).mallopt(_M_PERTURB, ~byte & 0xFF)
