"""Arrays that end where a page begins that may be neither read nor written."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_READ_WRITE, _PRIVATE_ANONYMOUS = 3, 0x22
_FAILED = ctypes.c_void_p(-1).value


class GuardedArrays:
    """Hands out copies before a guard page; `release` gives their memory back."""

    def __init__(self):
        self._blocks: list[tuple[int, int]] = []

    def copy(self, array: np.ndarray) -> np.ndarray:
        if array.nbytes == 0:
            return np.asarray(array, order="C")
        block = -(-array.nbytes // _PAGE) * _PAGE
        base = _libc.mmap(None, block + _PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if base == _FAILED:
            raise MemoryError(f"mmap of {block} bytes failed")
        _libc.mprotect(base + block, _PAGE, 0)
        self._blocks.append((base, block + _PAGE))
        memory = (ctypes.c_char * array.nbytes).from_address(base + block - array.nbytes)
        copy = np.frombuffer(memory, array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def release(self) -> None:
        for base, size in self._blocks:
            _libc.munmap(base, size)
        self._blocks.clear()
