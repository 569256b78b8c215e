"""Whether two results are the same, and what may differ between right ones.

A result may differ from the judge's by a few roundings of its type per node of the graph, relative
to the largest number around (sums round at that size). Where that is exceeded, the judge's own
results for inputs moved by one rounding say how much the graph magnifies: a difference within some
multiple of that is the graph's doing, not a kernel's.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

# Some roundings: what a sum of a hundred terms in another order, or an exponential of a score of
# 20, may add. float16: stock keeps it between nodes, and sums in it for some operators.
_ROUNDINGS = {
    np.dtype(np.float64): 2.0**-48,
    np.dtype(np.float32): 2.0**-16,
    np.dtype(np.float16): 2.0**-8,
    np.dtype(ml_dtypes.bfloat16): 2.0**-5,
}
MAGNIFIED = 16.0


def is_float(dtype) -> bool:
    return np.dtype(dtype) in _ROUNDINGS


def difference(result, wanted, depth: int, coarsest) -> str:
    """Empty where they agree. `coarsest` is the roughest float type in the graph."""
    if result is None or wanted is None:
        return "" if result is wanted else "one of them is missing"
    result, wanted = np.asarray(result), np.asarray(wanted)
    if result.shape != wanted.shape:
        return f"shape {result.shape} instead of {wanted.shape}"
    if result.dtype != wanted.dtype:
        return f"type {result.dtype} instead of {wanted.dtype}"
    if result.tobytes() == wanted.tobytes():
        return ""
    if not is_float(result.dtype):
        # Quantised codes may fall to either side of a tie; everything else is exact.
        return _integer_difference(result, wanted)
    tolerance = max(_ROUNDINGS[result.dtype], coarsest) * (1 + depth / 4)
    return _float_difference(result.astype(np.float64), wanted.astype(np.float64), tolerance)


def _integer_difference(result, wanted) -> str:
    if result.dtype in (np.dtype(np.uint8), np.dtype(np.int8)):
        off = np.abs(result.astype(np.int64) - wanted.astype(np.int64))
        if off.max(initial=0) <= 1 and off.mean() < 0.05 + 1 / max(off.size, 1):
            return ""
    wrong = (result != wanted).reshape(-1)
    if not wrong.any():
        return ""
    at, count = int(np.flatnonzero(wrong)[0]), int(wrong.sum())
    return (
        f"{count} of {result.size} integers differ, first [{at}]: {result.reshape(-1)[at]} "
        f"instead of {wanted.reshape(-1)[at]}"
    )


def _float_difference(result: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    with np.errstate(invalid="ignore", over="ignore"):
        same = (result == wanted) | (np.isnan(result) & np.isnan(wanted))
        finite = np.isfinite(result) & np.isfinite(wanted)
        largest = np.abs(wanted[finite]).max(initial=0)
        near = finite & (np.abs(result - wanted) <= tolerance * (np.abs(wanted) + largest) + 1e-30)
    wrong = ~(same | near)
    if not wrong.any():
        return ""
    at = np.unravel_index(int(np.flatnonzero(wrong.reshape(-1))[0]), wrong.shape)
    off = np.abs(result - wanted)[finite & wrong].max(initial=0)
    return (
        f"{int(wrong.sum())} of {result.size} differ, by up to {off:.3g} where the largest is "
        f"{largest:.3g}, first {[int(i) for i in at]}: {result[at]:.9g} instead of {wanted[at]:.9g}"
    )


def coarsest_of(dtypes) -> float:
    return max((_ROUNDINGS.get(np.dtype(d), 0.0) for d in dtypes), default=0.0)


def within_movement(result, wanted, moved: list, depth: int, coarsest) -> bool:
    """Whether the judge itself moves that much when its inputs move by a rounding."""
    result, wanted = np.asarray(result), np.asarray(wanted)
    if result.shape != wanted.shape or result.dtype != wanted.dtype:
        return False
    with np.errstate(all="ignore"):
        off = result.astype(np.float64) - wanted.astype(np.float64)
        reach = np.zeros(off.shape)
        for other in moved:
            other = np.asarray(other)
            if other.shape != wanted.shape:
                return True  # even the shape hangs on a rounding
            step = np.abs(other.astype(np.float64) - wanted.astype(np.float64))
            reach = np.maximum(reach, np.where(np.isnan(step), np.inf, step))
        largest = np.abs(wanted.astype(np.float64)[np.isfinite(wanted.astype(np.float64))]).max(
            initial=0
        )
        base = max(_ROUNDINGS.get(result.dtype, 0.0), coarsest) * (1 + depth / 4) * largest
        unlike = np.isnan(off) & ~(
            np.isnan(result.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
        )
        # A graph magnifies alike all over a tensor: elements stand for their neighbours.
        spread = np.maximum(reach, np.median(reach) if reach.size else 0)
        far = np.abs(off) > MAGNIFIED * spread + base
    return not (far | (unlike & ~np.isinf(reach))).any()
