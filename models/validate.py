"""Compares what a provider computed with what should have come out."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from .tolerances import Tolerance, at_size, for_model


@dataclass(frozen=True)
class Verdict:
    """One output's comparison; `problem` is empty when it passed."""

    name: str
    ok: bool
    largest_error: float
    rms_error: float
    problem: str = ""
    note: str = ""  # what a passed comparison could not say in numbers
    bound: float | None = None  # of rms_error, where that was what it was judged by

    def as_dict(self) -> dict:
        return asdict(self)


def compare(
    name: str, result: np.ndarray, reference: np.ndarray, tolerance: Tolerance | None = None
) -> Verdict:
    result, reference = np.asarray(result), np.asarray(reference)
    if result.shape != reference.shape:
        problem = f"expected shape {list(reference.shape)}, got {list(result.shape)}"
        return Verdict(name, False, np.inf, np.inf, problem)
    if result.dtype.kind in "USO":
        same = bool(np.array_equal(result, reference))
        return Verdict(name, same, 0.0, 0.0, "" if same else "the strings differ")
    tolerance = tolerance or for_model(result.dtype)
    got, wanted = result.astype(np.float64), reference.astype(np.float64)
    if problem := _special_values_differ(got, wanted):
        return Verdict(name, False, np.inf, np.inf, problem)
    finite = np.isfinite(wanted)
    got, wanted = got[finite], wanted[finite]
    if got.size == 0:
        return Verdict(name, True, 0.0, 0.0)
    return _judge(name, got, wanted, tolerance)


def _special_values_differ(got: np.ndarray, wanted: np.ndarray) -> str:
    if not np.array_equal(np.isnan(got), np.isnan(wanted)):
        return f"NaN at {np.isnan(got).sum()} places, expected at {np.isnan(wanted).sum()}"
    infinite = np.isinf(wanted)
    if not np.array_equal(np.isinf(got), infinite) or np.any(got[infinite] != wanted[infinite]):
        return f"Inf at {np.isinf(got).sum()} places, expected at {infinite.sum()}"
    return ""


def _judge(name: str, got: np.ndarray, wanted: np.ndarray, tolerance: Tolerance) -> Verdict:
    error = np.abs(got - wanted)
    size = np.sqrt(np.mean(np.square(wanted)))
    error_rms = np.sqrt(np.mean(np.square(error)))
    rms = float(error_rms / size) if size > 0 else float(error_rms)
    largest = float(error.max())
    excess = error - (tolerance.absolute + tolerance.relative * np.abs(wanted))
    problem = ""
    if np.any(excess > 0):
        worst = int(np.argmax(excess))
        problem = (
            f"{np.count_nonzero(excess > 0)} of {error.size} elements are out of bounds; "
            f"the worst is {got[worst]:.6g}, expected {wanted[worst]:.6g}"
        )
    elif error_rms > tolerance.rms * size + 0.1 * tolerance.absolute:
        # A tenth of the absolute bound, so that outputs near zero are not judged by their noise.
        problem = f"rms error {rms:.2e} is above {tolerance.rms:.0e}"
    return Verdict(name, not problem, largest, rms, problem)


def compare_all(names, results, references, tolerance: Tolerance | None = None) -> list[Verdict]:
    return [compare(n, r, w, tolerance) for n, r, w in zip(names, results, references, strict=True)]


def compare_rounded(names, results, references, bound: Tolerance | None) -> list[Verdict]:
    """As compare_all; `bound` is that of activations which were rounded by wish, if they were."""
    return [
        compare(name, result, wanted, _bound_of(bound, np.asarray(wanted)))
        for name, result, wanted in zip(names, results, references, strict=True)
    ]


def _bound_of(bound: Tolerance | None, wanted: np.ndarray) -> Tolerance | None:
    floats = np.issubdtype(wanted.dtype, np.floating) and wanted.size and np.isfinite(wanted).all()
    return at_size(bound, wanted.astype(np.float64)) if bound and floats else None


# Rounded weights change every result, and by how much is the model's affair; but a result that is
# further from the original than zeros would be has nothing to do with it any more.
_FURTHEST_FROM_ORIGINAL = 1.0
# Short of that, what a person would want to look into: random inputs can be at fault as well.
_FAR_FROM_ORIGINAL = 0.3
_FAR_NOTE = (
    "far off, as random inputs often are: try real ones (--input), a finer format, or fewer layers "
    "(--exclude)"
)


def compare_with_original(
    name: str, result: np.ndarray, original: np.ndarray, bound: float | None = None
) -> Verdict:
    """A quantised model's output against the float model's: is it the same function, rounded?

    rms_error is relative, and so is `bound`; without one, only what has nothing to do with the
    original is wrong. Integers and booleans, such as chosen classes, are counted, not judged.
    """
    result, original = np.asarray(result), np.asarray(original)
    if result.ndim != original.ndim:
        problem = f"expected rank {original.ndim}, got {result.ndim}"
        return Verdict(name, False, np.inf, np.inf, problem)
    if result.shape != original.shape:  # as many as NonZero found: other numbers, other count
        note = f"its shape is {list(result.shape)}, the original's {list(original.shape)}"
        return Verdict(name, True, 0.0, 0.0, note=note)
    if not original.size:
        return Verdict(name, True, 0.0, 0.0)
    if original.dtype.kind in "USObiu":
        differing = int(np.count_nonzero(result != original))
        note = f"{differing} of {original.size} elements differ from the original's"
        return Verdict(name, True, 0.0, 0.0, note=note)
    got, wanted = result.astype(np.float64), original.astype(np.float64)
    if lost := np.count_nonzero(np.isfinite(wanted) & ~np.isfinite(got)):
        problem = f"{lost} of {got.size} elements are NaN or Inf, in the original they are not"
        return Verdict(name, False, np.inf, np.inf, problem)
    finite = np.isfinite(wanted) & np.isfinite(got)
    error = np.abs(got - wanted)[finite]
    if not error.size:
        return Verdict(name, True, 0.0, 0.0)
    size = float(np.sqrt(np.mean(np.square(wanted[finite]))))
    spread = float(np.sqrt(np.mean(np.square(error))))
    relative = spread / size if size > 0 else spread
    problem = ""
    if relative > _FURTHEST_FROM_ORIGINAL:
        problem = f"it differs by {relative:.0%} (rms): zeros would be nearer"
    elif bound is not None and relative > bound:
        problem = f"it differs by {100 * relative:.3g} % (rms), more than {100 * bound:.3g} %"
    note = _FAR_NOTE if _FAR_FROM_ORIGINAL < relative and not problem else ""
    return Verdict(name, not problem, float(error.max()), relative, problem, note, bound)
