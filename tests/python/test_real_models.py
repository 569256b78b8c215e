"""Models that people use, from their own packages, agree with the CPU provider."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

MODELS = Path(__file__).resolve().parents[2] / ".deps/models"
RANDOM = np.random.default_rng(7)


def noise(*shape) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def speech(samples: int) -> np.ndarray:
    """Something voiced: two harmonics with a little noise."""
    time = np.arange(samples) / 16000
    wave = 0.3 * np.sin(2 * np.pi * 180 * time) + 0.1 * np.sin(2 * np.pi * 360 * time)
    return (wave[None, :] + 0.01 * noise(1, samples)).astype(np.float32)


SILERO = {
    "input": speech(512),
    "state": np.zeros((2, 1, 128), np.float32),
    "sr": np.asarray(16000, np.int64),
}
CASES = {
    "silero_vad": ("silero-vad/silero_vad/data/silero_vad.onnx", SILERO),
    "magika": (
        "magika/magika/models/standard_v3_3/model.onnx",
        {"bytes": RANDOM.integers(0, 257, (3, 2048)).astype(np.int32)},
    ),
    "ppocr_detection": (
        "rapidocr-onnxruntime/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"x": noise(1, 3, 96, 160)},
    ),
    "ppocr_recognition": (
        "rapidocr-onnxruntime/rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"x": noise(2, 3, 48, 320)},
    ),
    "ppocr_direction": (
        "rapidocr-onnxruntime/rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": noise(1, 3, 48, 192)},
    ),
}


@pytest.mark.parametrize("claim", ["gainful", "all"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_cpu_provider(name, claim):
    path, inputs = CASES[name]
    if not (MODELS / path).is_file():
        pytest.skip(f"the model {name} was not fetched")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    stock = onnxruntime.InferenceSession(
        str(MODELS / path), options, providers=["CPUExecutionProvider"]
    )
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session, report = session_with_report(MODELS / path, session_options=settings, claim=claim)
    given = {value.name for value in stock.get_inputs()}
    feed = {key: value for key, value in inputs.items() if key in given}
    assert given == set(feed)
    if claim == "all":
        assert report.coverage.claimed > 0
    for expected, result in zip(stock.run(None, feed), session.run(None, feed), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=2e-5)
