"""Runs on a GPU that only the GPU bounds: memory bound beforehand, the host ahead."""

from __future__ import annotations

from collections.abc import Callable

from ..bindings import bind_addresses
from ..provider_sessions import gpu_of, open_cuda_session, session_options
from .measure import timed

_SECONDS_PER_CALL = 0.02  # of a call that is timed as one
_RUNS_TO_CAPTURE = 3  # a graph that cannot be captured fails within them

# A bound side: how many Runs in a row -> a call that makes them and waits for the last.
Bound = Callable[[int], Callable[[], None]]


def run_options(**entries: str):
    import onnxruntime

    options = onnxruntime.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options


def host_ahead(**entries: str):
    """Run options with which a Run does not wait for the GPU."""
    return run_options(disable_synchronize_execution_providers="1", **entries)


def back_to_back(session, binding, runs: int, **entries: str) -> Callable[[], None]:
    """Many Runs of which only the last waits, so that the GPU is never idle between them."""
    ahead, waiting = host_ahead(**entries), run_options(**entries)

    def many() -> None:
        for _ in range(runs - 1):
            session.run_with_iobinding(binding, ahead)
        session.run_with_iobinding(binding, waiting)

    return many


def runs_for(bound: Bound, seconds: float = _SECONDS_PER_CALL) -> int:
    """How many Runs in a row take about so long."""
    once = bound(1)
    for _ in range(3):  # graphs are captured by then
        once()
    return min(200, max(1, int(seconds / max(timed(once), 1e-6))))


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def bind_cuda_provider(
    model, feed: dict, make_results: Callable[[int], dict], notes: list[str], **options: str
) -> Bound:
    """ONNX Runtime's own CUDA provider, with its CUDA graph where that works."""

    def attempt(**more: str) -> Bound:
        session = open_cuda_session(str(model), session_options(0), **options, **more)
        results = make_results(gpu_of(session))
        binding = bind_addresses(session, feed, results)
        for _ in range(_RUNS_TO_CAPTURE):
            session.run_with_iobinding(binding)
        kept = feed, results  # the binding knows their addresses only
        return lambda runs, _kept=kept: back_to_back(session, binding, runs)

    try:
        return attempt(enable_cuda_graph="1")
    except Exception as error:
        without = attempt()
        notes.append(f"the CUDA provider captures no graph: {first_line(error)}")
        return without
