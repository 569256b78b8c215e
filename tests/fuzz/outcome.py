"""Runs one case with the stock provider and with Tenon in front, and says how they compare."""

from __future__ import annotations

import re
import warnings
from dataclasses import asdict, dataclass, replace

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.library import PROVIDER
from onnxruntime_ep_tenon.models import reference

from .case import Case, session_options
from .fresh_memory import BY_STOCK, BY_TENON, fill_fresh_memory
from .graph import element_type
from .guarded import GuardedArrays
from .judge import coarsest_of, difference, is_float, within_movement

SAME, BOTH_REFUSE = "same", "both refuse"
TENON_REFUSES, STOCK_REFUSES = "Tenon refuses", "stock refuses"
DIFFERS, UNJUDGED, STOCK_IS_OFF = "differs", "unjudged", "only stock differs"
NAMES_CONTRADICT, STALE = "names contradict: ", "stale declarations: "
NOTHING = "our outputs are empty: "
CRASH, HANG = "crash", "hang"

# The stock provider has no kernel for the types: somebody else must judge.
_NO_KERNEL = re.compile(
    r"NOT_IMPLEMENTED|Could not find an implementation|not supported (for|with)"
)
# A rounding more or less is a whole number here. Tenon keeps float32 within a kernel, and so x - x
# is a rounding of x where one of the two was a float16 on the way.
_STEPS = {"Ceil", "Floor", "Round", "Sign", "Equal", "Less", "Greater", "LessOrEqual"}
_STEPS |= {"GreaterOrEqual", "ThresholdedRelu", "Shrink", "ArgMax", "ArgMin", "Hardmax"}
_NAN_IS_OPEN = {"ArgMax", "ArgMin", "Hardmax"}  # stock's answer depends on the tensor's rank
PACKED = ("int2", "uint2", "int4", "uint4", "float4_e2m1fn")  # several to a byte
# The runtime itself holds inputs to their declared sizes.
_BY_RUNTIME = re.compile(r"Got invalid dimensions for input|Invalid rank for input")


@dataclass
class Outcome:
    state: str
    text: str = ""
    run: int = -1  # which Run, -1: while the session was made
    claimed: bool = False

    def as_dict(self) -> dict:
        return asdict(self)


class Refused(Exception):
    """What a runtime said instead of a result, on one line."""

    def __init__(self, error: Exception):
        text = " ".join(str(error).split("Status Message:")[-1].split())
        # Some begin with a signature of many lines and end with what is the matter.
        super().__init__(text if len(text) <= 400 else f"{text[:120]} … {text[-280:]}")


class Judged:
    """A session and its Runs; results are arrays, or Refused."""

    def __init__(self, case: Case, device=None):
        settings = session_options(case.optimised)
        try:
            if device is None:
                self.session = onnxruntime.InferenceSession(
                    case.model, settings, providers=["CPUExecutionProvider"]
                )
            else:
                settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
                settings.add_provider_for_devices([device], case.options)
                self.session = onnxruntime.InferenceSession(
                    case.model, settings, enable_fallback=False
                )
        except Exception as error:
            raise Refused(error) from None
        self.names = [output.name for output in self.session.get_outputs()]

    def run(self, feed: dict) -> list[np.ndarray] | Refused:
        try:
            values = {name: _value(array) for name, array in feed.items()}
            results = self.session.run_with_ort_values(self.names, values)
            return [np.array(tensors.from_ort_value(value)) for value in results]
        except Exception as error:
            return Refused(error)

    def run_bound(self, feed: dict, outputs: list[np.ndarray]) -> Refused | None:
        """Into the caller's arrays."""
        try:
            binding = self.session.io_binding()
            for name, array in feed.items():
                binding.bind_ortvalue_input(name, _value(array))
            for name, array in zip(self.names, outputs, strict=True):
                binding.bind_output(
                    name, "cpu", 0, element_type(array.dtype), array.shape, array.ctypes.data
                )
            self.session.run_with_iobinding(binding)
            return None
        except Exception as error:
            return Refused(error)

    def providers(self) -> set[str]:
        """Who runs parts of the graph."""
        return {part.ep_name for part in self.session.get_provider_graph_assignment_info()}


def _value(array: np.ndarray):
    """An OrtValue over the array's own memory: a guard page behind it stays behind it."""
    array = np.asarray(array, order="C")
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    if array.dtype.name in PACKED:
        return tensors.to_ort_value(array)
    width = {1: np.uint8, 2: np.uint16}[array.dtype.itemsize]
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(width), element_type(array.dtype)
    )


def judge_case(case: Case, device, entering_tenon) -> Outcome:
    """`entering_tenon` is called once stock is done: what dies afterwards is Tenon's."""
    guarded = GuardedArrays()
    try:
        stock = _stock_results(case, guarded)
        entering_tenon(case.family)
        return _compare_runs(case, device, stock, guarded)
    finally:
        guarded.release()


def run_stock(case: Case) -> str:
    """What the stock provider does alone, as `judge_case` has it do."""
    guarded = GuardedArrays()
    try:
        results = _stock_results(case, guarded)
        return str(results) if isinstance(results, Refused) else ""
    finally:
        guarded.release()


def run_tenon(case: Case, device, entering_tenon) -> None:
    """What Tenon does alone; parts that are stock's may die while the session is made."""
    guarded = GuardedArrays()
    fill_fresh_memory(BY_TENON)
    try:
        session = Judged(case, device)
        if session.providers() != {PROVIDER}:
            return
        entering_tenon(case.family)
        for feed in case.feeds:
            session.run({k: guarded.copy(v) for k, v in feed.items()})
    except Refused:
        pass
    finally:
        guarded.release()


def _stock_results(case: Case, guarded: GuardedArrays):
    """A Refused for the session, or a list with results or Refused per Run.

    Guard pages for stock too: some of its kernels read past the end, and Tenon is not to blame.
    """
    fill_fresh_memory(BY_STOCK)
    try:
        session = Judged(case)
    except Refused as refused:
        return refused
    return [session.run({k: guarded.copy(v) for k, v in feed.items()}) for feed in case.feeds]


def _compare_runs(case: Case, device, stock, guarded: GuardedArrays) -> Outcome:
    fill_fresh_memory(BY_TENON)
    try:
        session = Judged(case, device)
    except Refused as refused:
        if isinstance(stock, Refused):
            return Outcome(BOTH_REFUSE, str(stock))
        if all(isinstance(result, Refused) for result in stock):
            return Outcome(BOTH_REFUSE, str(stock[0]))
        return Outcome(TENON_REFUSES, str(refused))
    claimed = PROVIDER in session.providers()
    if isinstance(stock, Refused) and _NO_KERNEL.search(str(stock)):
        stock = _reference_results(case, case.feeds)
    elif isinstance(stock, Refused):
        stock = [stock] * len(case.feeds)
    worst = Outcome(SAME, claimed=claimed)
    buffers: dict[str, np.ndarray] = {}
    for number, feed in enumerate(case.feeds):
        own = _in_place(feed, buffers, guarded)
        found = _compare_run(case, session, number, own, stock[number], guarded)
        found.claimed = claimed
        if found.state in (DIFFERS, STOCK_REFUSES, TENON_REFUSES):
            # Where nothing was claimed, stock ran twice and disagrees with itself.
            return found if claimed else Outcome(UNJUDGED, f"stock alone: {found.text}", number)
        if found.state != SAME:
            worst = found
    return worst


def _in_place(feed: dict, buffers: dict, guarded: GuardedArrays) -> dict:
    """The same memory as in the Run before where the shape is the same, as callers do."""
    for name, array in feed.items():
        kept = buffers.get(name)
        if kept is not None and kept.shape == array.shape and kept.size:
            kept[...] = array
        else:
            buffers[name] = guarded.copy(array)
    return {name: buffers[name] for name in feed}


def _compare_run(case, session, number, feed, wanted, guarded) -> Outcome:
    results = session.run(feed)
    if isinstance(wanted, Refused) and isinstance(results, Refused):
        return Outcome(BOTH_REFUSE, f"{wanted} | {results}", number)
    if isinstance(results, Refused) and _BY_RUNTIME.search(str(results)):
        return Outcome(BOTH_REFUSE, str(results), number)
    if isinstance(results, Refused):
        contradicts = NAMES_CONTRADICT if _names_contradict(case.model, feed) else ""
        text = f"{contradicts}{STALE if case.stale else ''}{results}"
        return Outcome(UNJUDGED if wanted is None else TENON_REFUSES, text, number)
    if isinstance(wanted, Refused):
        if _NO_KERNEL.search(str(wanted)):
            return Outcome(UNJUDGED, str(wanted), number)
        empty = NOTHING if all(result.size == 0 for result in results) else ""
        return Outcome(STOCK_REFUSES, f"{empty}{wanted}", number)
    if wanted is None:
        return Outcome(UNJUDGED, "stock has no kernel, and the reference cannot tell", number)
    coarsest = coarsest_of([v.dtype for v in [*feed.values(), *results]])
    problem = _difference(case, session.names, feed, results, wanted, coarsest)
    if not problem:
        return _compare_bound(session, number, feed, results, guarded)
    exact = _reference_results(case, [case.feeds[number]])[0]
    if exact is not None and not _difference(case, session.names, feed, results, exact, coarsest):
        return Outcome(STOCK_IS_OFF, problem, number)
    rounded = _rounded_results(case, case.feeds[number])
    if rounded is not None and not _difference(
        case, session.names, feed, results, rounded, coarsest
    ):
        return Outcome(STOCK_IS_OFF, f"as ONNX rounds between nodes: {problem}", number)
    if _overflows_between(case, case.feeds[number]):
        return Outcome(UNJUDGED, f"float16 overflows between nodes: {problem}", number)
    operators = {node.op_type for node in _graph(case).node}
    if _NAN_IS_OPEN & operators and _has_nan(feed):
        return Outcome(UNJUDGED, f"the largest or smallest of NaN: {problem}", number)
    if "ReduceProd" in operators and ": nan instead of" in problem:
        return Outcome(UNJUDGED, f"a factor beyond the type's range: {problem}", number)
    if coarsest >= 2.0**-8 and _STEPS & operators:
        return Outcome(UNJUDGED, f"a step over what was rounded: {problem}", number)
    return Outcome(DIFFERS, problem, number)


def _graph(case: Case) -> onnx.GraphProto:
    return onnx.load_from_string(case.model).graph


def _has_nan(feed: dict) -> bool:
    return any(is_float(v.dtype) and np.isnan(v.astype(np.float64)).any() for v in feed.values())


def _names_contradict(model: bytes, feed: dict) -> bool:
    """Whether this Run feeds two sizes where the model's inputs say one name."""
    sizes: dict[str, int] = {}
    for value in onnx.load_from_string(model).graph.input:
        shape = feed[value.name].shape if value.name in feed else ()
        for dim, size in zip(value.type.tensor_type.shape.dim, shape, strict=False):
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                return True
    return False


def _difference(case, names, feed, results, wanted, coarsest) -> str:
    """What differs beyond roundings and what the graph makes of them."""
    for index, (name, result) in enumerate(zip(names, results, strict=True)):
        expected = np.asarray(wanted[index])
        if expected.dtype == np.float64 and is_float(result.dtype):
            with np.errstate(over="ignore"):
                expected = expected.astype(result.dtype)
        problem = difference(result, expected, case.depth, coarsest)
        if problem and not _magnified(case, feed, index, result, expected, coarsest):
            return f"{name}: {problem}"
    return ""


def _compare_bound(session, number, feed, results, guarded) -> Outcome:
    """The same Run into the caller's own arrays, which end at a guard page: the same bits."""
    packed = any(r.dtype.name in PACKED for r in results)
    if packed or session.providers() != {PROVIDER}:
        return Outcome(SAME, "", number)
    bound = [guarded.copy(np.full(r.shape, 77).astype(r.dtype)) for r in results]
    refused = session.run_bound(feed, bound)
    if refused is not None and "Got invalid dimensions for output" in str(refused):
        return Outcome(SAME, "", number)  # the runtime holds bound outputs to what is declared
    if refused is not None:
        return Outcome(TENON_REFUSES, f"with bound outputs: {refused}", number)
    for name, first, second in zip(session.names, results, bound, strict=True):
        if first.tobytes() != second.tobytes():
            return Outcome(
                DIFFERS, f"{name}: a second Run with bound outputs gives other bits", number
            )
    return Outcome(SAME, "", number)


def _magnified(case: Case, feed, output: int, result, expected, coarsest) -> bool:
    """Whether the difference is what the graph makes of one rounding of its inputs."""
    run = _judges_run(case)
    # Twice with the very same inputs: some kernels leave memory as it was.
    moved = []
    for byte in (0x11, 0xEE):
        fill_fresh_memory(byte)
        again = run(feed)
        if isinstance(again, list):
            moved.append(again[output])
    random = np.random.default_rng(1)
    for _ in range(4):
        stirred = {name: _stirred(value, random, coarsest) for name, value in feed.items()}
        results = run(stirred)
        if isinstance(results, list):
            moved.append(results[output])
    return bool(moved) and within_movement(result, expected, moved, case.depth, coarsest)


def _judges_run(case: Case):
    """Stock's Run, or the reference's where stock has no kernel."""
    try:
        return Judged(case).run
    except Refused:
        model = onnx.load_from_string(case.model)
        return lambda feed: _reference(model, feed)


def _stirred(value: np.ndarray, random, coarsest: float) -> np.ndarray:
    if not is_float(value.dtype):
        return np.array(value)
    # Less than the type's own step would round back to what it was.
    step = max(coarsest / 32, float(ml_dtypes.finfo(value.dtype).eps))
    amount = step * random.choice([-1.0, 1.0], value.shape)
    with np.errstate(all="ignore"):
        return (value.astype(np.float64) * (1 + amount)).astype(value.dtype)


def _overflows_between(case: Case, feed) -> bool:
    """Whether a value inside of a float16 graph is infinite by its type alone.

    Tenon has it so, as ONNX does; stock keeps float32 between nodes without float16 kernels.
    """
    model = onnx.load_from_string(case.model)
    graph = model.graph
    if all(value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT16 for value in graph.output):
        return False
    del graph.output[:]
    for name in (name for node in graph.node for name in node.output if name):
        graph.output.add().name = name
    (values,) = _reference_results(replace(case, model=model.SerializeToString()), [feed])
    most = float(np.finfo(np.float16).max)
    floats = [v for v in values or [] if np.asarray(v).dtype == np.float64]
    return any((np.isfinite(v) & (np.abs(v) > most)).any() for v in floats)


def _reference_results(case: Case, feeds: list) -> list:
    """What float64 gives for each feed; None where it cannot tell."""
    model = onnx.load_from_string(case.model)
    return [_reference(model, feed) for feed in feeds]


def _rounded_results(case: Case, feed) -> list | None:
    """float64 again, rounded after each node where all that is fed has one 16-bit type."""
    floats = {value.dtype for value in feed.values() if is_float(value.dtype)}
    if len(floats) != 1 or (kind := floats.pop()).itemsize != 2:
        return None
    return _reference(onnx.load_from_string(case.model), feed, kind)


def _reference(model: onnx.ModelProto, feed, rounded_to=None) -> list | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reference.evaluate(model, feed, rounded_to)
    except Exception:
        return None
