"""Times one network of convolutions: Tenon and ONNX Runtime's own provider in turns, and checks it.

Both get the same file, in which the sizes of the input are numbers: shapes are then constants for
both, and the CUDA provider, which captures no network that computes shapes on the host, can.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from .. import tensors
from ..bindings import bind
from ..provider_sessions import cpu_session, has_cuda_provider, session_options
from ..report import session_with_report
from .convolution_cases import ConvolutionCase, ocr_model
from .gpu_runs import Bound, back_to_back, bind_cuda_provider, first_line, runs_for
from .machine import Machine, this_machine
from .measure import side_by_side, timed
from .measuring_process import MeasuringProcess, WrongResultError

_SECONDS_PER_SIDE = 0.5


@dataclass
class MeasuredConvolution:
    """Seconds per Run; what was not measured is NaN."""

    tenon: float = math.nan
    peer: float = math.nan
    created: float = math.nan  # seconds until the session was there
    error: float = math.nan  # rms over the result's, against the CPU provider
    notes: list[str] = field(default_factory=list)


class ConvolutionMeter(MeasuringProcess):
    def __init__(self, device: str, seed: int, models_dir: str | None, options: dict):
        given = {"device": device, "models_dir": models_dir, "options": options}
        super().__init__(partial(ConvolutionBench, **given), seed)


class ConvolutionBench:
    def __init__(
        self, folder: Path, seed: int, device: str, models_dir: str | None = None, options=None
    ):
        self._folder, self._seed, self._models_dir = folder, seed, models_dir
        self._options: dict = options or {}
        self._device, self._on_gpu = device, device.startswith("gpu")
        self._expected: tuple | None = None

    def machine(self) -> Machine:
        return this_machine(self._on_gpu)

    def clean_up(self) -> None:
        gc.collect()

    def measure(self, case: ConvolutionCase) -> MeasuredConvolution:
        path = write_model(case, self._folder, self._models_dir, self._seed)
        measured = MeasuredConvolution()
        session = self._open(path, case, measured)
        feed, expected = self._expectation(case, path)
        values = {name: tensors.to_value(array, session.tenon_gpu) for name, array in feed.items()}
        results = self._room(expected, session.tenon_gpu)
        binding = bind(session, values, results)
        session.run_with_iobinding(binding)
        calls: dict[str, Bound] = {"tenon": lambda runs: back_to_back(session, binding, runs)}
        self._add_peer(calls, path, case, values, expected, measured.notes)
        runs = {name: runs_for(call) for name, call in calls.items()}
        repeated = {name: call(runs[name]) for name, call in calls.items()}
        for timing in side_by_side(repeated, _SECONDS_PER_SIDE, at_least=3):
            setattr(measured, timing.name, timing.median / runs[timing.name])
        found = {name: tensors.on_host(value) for name, value in results.items()}
        measured.error = check_results(case, found, expected)
        return measured

    def _open(self, path: Path, case: ConvolutionCase, measured: MeasuredConvolution):
        options: dict = {"precision_mode": "tf32"} if case.tf32 else {}
        if self._on_gpu:
            options["enable_cuda_graph"] = True
        options |= self._options
        opened = []
        measured.created = timed(
            lambda: opened.append(
                session_with_report(path, self._device, session_options(0), **options)
            )
        )
        session, report = opened[0]
        coverage = report.coverage
        measured.notes.append(f"Tenon: {coverage}")
        if left := Counter(node["op"] for node in report.left_out):
            most = ", ".join(f"{op} {count}" for op, count in left.most_common(3))
            measured.notes.append(
                f"left to the CPU provider: {most}{' …' if len(left) > 3 else ''}"
            )
        return session

    def _expectation(self, case: ConvolutionCase, path: Path) -> tuple[dict, dict]:
        """An input and what the CPU provider makes of it; both precisions share them."""
        key = (case.network, case.shape, case.element)
        if self._expected is None or self._expected[0] != key:
            session = cpu_session(path, session_options(0))
            kind = np.float16 if case.element == "f16" else np.float32
            image = page_of_glyphs(case.shape, self._seed).astype(kind)
            feed = {session.get_inputs()[0].name: image}
            names = [output.name for output in session.get_outputs()]
            self._expected = key, feed, dict(zip(names, session.run(names, feed), strict=True))
        return self._expected[1:]

    def _add_peer(
        self, calls: dict, path: Path, case: ConvolutionCase, feed, expected, notes: list[str]
    ) -> None:
        try:
            if not self._on_gpu:
                session = cpu_session(path, session_options(0))
                binding = bind(session, feed, self._room(expected, None))
                calls["peer"] = lambda runs: back_to_back(session, binding, runs)
            elif has_cuda_provider():
                exact = {} if case.tf32 or case.element != "f32" else {"use_tf32": "0"}
                calls["peer"] = bind_cuda_provider(
                    path, feed, lambda gpu: self._room(expected, gpu), notes, **exact
                )
        except Exception as error:
            notes.append(f"the other: {first_line(error)}")

    def _room(self, expected: dict, gpu: int | None) -> dict:
        return {name: tensors.to_value(np.zeros_like(y), gpu) for name, y in expected.items()}


def write_model(case: ConvolutionCase, folder: Path, models_dir: str | None, seed: int) -> Path:
    """The case's network with the sizes of its input as numbers."""
    import onnx

    path = folder / "model.onnx"
    if case.network == "resnet50":
        from ..models.resnet import ResnetForm, ResnetShape, build_resnet

        form = ResnetForm(case.element, case.batch)
        onnx.save(build_resnet(ResnetShape(image=case.height), form, seed), path)
        return path
    model = onnx.load(ocr_model(case.network, models_dir))
    fix_input(model, case.shape)
    onnx.save(model, path)
    return path


def fix_input(model, shape: tuple[int, ...]) -> None:
    """Numbers in place of what the file leaves open; outputs have sizes that follow from them."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    for dim, size in zip(dims, shape, strict=True):
        if dim.dim_value > 0 and dim.dim_value != size:
            raise ValueError(f"the model's input has a size of {dim.dim_value}, not {size}")
        dim.Clear()
        dim.dim_value = size
    for output in model.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if dim.dim_value <= 0:
                dim.Clear()


def page_of_glyphs(shape: tuple[int, int, int, int], seed: int) -> np.ndarray:
    """Lines of random marks on white: of noise a detector of text makes zeros, right or wrong."""
    random = np.random.default_rng(seed)
    batch, _, height, width = shape
    page = np.ones(shape, np.float32)
    for number in range(batch):
        for top in range(8, height - 23, 40):
            for left in range(0, width - 15, 16):
                ink = random.random((6, 4)) < random.choice([0.5, 0.5, 0.5, 0.0])
                glyph = np.kron(ink, np.full((4, 3), 2, np.float32))
                page[number, :, top : top + 24, left : left + 12] -= glyph
    return page


# Of the difference's rms over the result's. A detector of some 60 layers passes on a rounding of
# its weights, 2^-11 in TF32, as 1.1 %, at single pixels as 20 times that; sums in float32 differ by
# their order alone, some thousand times less.
_BOUNDS = {"f16": 2e-2, "tf32": 4e-2, "exact": 2e-4}


def check_results(case: ConvolutionCase, results: dict, expected: dict) -> float:
    """Against the CPU provider's: the same function, rounded as the case says; how far off."""
    from ..models.validate import compare_with_original

    bound = _BOUNDS["f16" if case.element == "f16" else "tf32" if case.tf32 else "exact"]
    verdicts = [compare_with_original(n, y, expected[n], bound) for n, y in results.items()]
    for verdict in verdicts:
        if not verdict.ok:
            raise WrongResultError(f"WRONG: output '{verdict.name}': {verdict.problem}")
    return max(verdict.rms_error for verdict in verdicts)
