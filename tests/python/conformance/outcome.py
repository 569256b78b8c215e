"""Runs one node case on stock ONNX Runtime and with Tenon in front, and says how each did."""

from __future__ import annotations

import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnxruntime
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.report import Report, session_with_report

PASSED, WRONG, REFUSED, UNREACHABLE = "passed", "wrong", "refused", "unreachable"

# What ONNX Runtime says while it loads a model, before any provider is asked.
_BEFORE_PROVIDERS = re.compile(
    r"Unsupported model IR version|is not a registered function/op|Unrecognized attribute"
    r"|under development and support for this is limited|Type Error|is till opset"
    r"|No opset import for domain|This is an invalid model|Failed to load model"
    r"|is not implemented|ShapeInferenceError|TypeInferenceError|Exception during loading",
)
_ROUNDING = {
    np.dtype(np.float16): 2e-3,
    np.dtype(ml_dtypes.bfloat16): 1.6e-2,
}


@dataclass(frozen=True)
class Outcome:
    state: str
    text: str = ""
    report: Report | None = None

    @property
    def whole(self) -> bool:
        """Tenon claimed every node that reached it."""
        return self.report is not None and self.report.coverage.claimed == (
            self.report.coverage.nodes
        )


def quiet_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def on_stock(case) -> Outcome:
    model = case.model
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        return Outcome(_refusal(error), str(error))
    return _run(case, model, session, None)


def on_tenon(case) -> Outcome:
    model = case.model
    try:
        session, report = session_with_report(model, session_options=quiet_options(), claim="all")
    except Exception as error:
        return Outcome(_refusal(error), str(error))
    return _run(case, model, session, report)


def _refusal(error: Exception) -> str:
    return UNREACHABLE if _BEFORE_PROVIDERS.search(str(error)) else REFUSED


def _run(case, model, session, report) -> Outcome:
    for inputs, expected in case.data_sets(model):
        try:
            results = _results(session, inputs)
        except Exception as error:
            return Outcome(REFUSED, str(error), report)
        problem = _difference(results, expected)
        if problem:
            return Outcome(WRONG, problem, report)
    return Outcome(PASSED, "", report)


def _results(session, inputs: dict) -> list:
    given = {value.name for value in session.get_inputs()}
    inputs = {name: value for name, value in inputs.items() if name in given}
    all_tensors = all(isinstance(value, np.ndarray) for value in inputs.values())
    text = any(v.dtype.kind in "USO" for v in inputs.values() if isinstance(v, np.ndarray))
    plain_outputs = all(
        value.type.startswith("tensor(") and value.type != "tensor(string)"
        for value in session.get_outputs()
    )
    if all_tensors and not text and plain_outputs:
        return tensors.run(session, inputs)
    return session.run(None, inputs)


def _difference(results: list, expected: list) -> str:
    for index, (result, wanted) in enumerate(zip(results, expected, strict=False)):
        problem = _tensor_difference(result, wanted)
        if problem:
            return f"output {index}: {problem}"
    return ""


def _tensor_difference(result, wanted) -> str:
    if isinstance(wanted, list):
        if len(result) != len(wanted):
            return f"{len(result)} elements instead of {len(wanted)}"
        pairs = zip(result, wanted, strict=True)
        return next((p for p in (_tensor_difference(r, w) for r, w in pairs) if p), "")
    if wanted is None:
        return "" if result is None else "a value instead of none"
    result, wanted = np.asarray(result), np.asarray(wanted)
    if result.shape != wanted.shape:
        return f"shape {result.shape} instead of {wanted.shape}"
    if wanted.dtype.kind in "USO":
        same = np.array_equal(result.astype(object), wanted.astype(object))
        return "" if same else "the strings differ"
    if result.dtype != wanted.dtype:
        return f"type {result.dtype} instead of {wanted.dtype}"
    if wanted.dtype.kind in "biu":
        return "" if np.array_equal(result, wanted) else "integers differ"
    return _float_difference(result, wanted)


def _float_difference(result: np.ndarray, wanted: np.ndarray) -> str:
    if wanted.dtype.kind == "c":
        close = np.allclose(result, wanted, rtol=1e-3, atol=1e-5)
        return "" if close else "complex numbers differ"
    relative = _ROUNDING.get(wanted.dtype, 1e-3 if wanted.dtype.itemsize >= 4 else 0)
    absolute = 1e-5 if relative else 0
    got, want = result.astype(np.float64), wanted.astype(np.float64)
    close = np.isclose(got, want, rtol=relative, atol=absolute, equal_nan=True)
    if close.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~close)[0])
    return (
        f"{(~close).sum()} of {close.size} differ; at {at} {got[at]:.6g} instead of {want[at]:.6g}"
    )
