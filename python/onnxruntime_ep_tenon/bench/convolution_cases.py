"""Which networks of convolutions are timed, and the bars that they should reach on an H200."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

OCR_PACKAGE = "rapidocr_onnxruntime"
OCR_FILES = {
    "ppocr detection": "ch_PP-OCRv4_det_infer.onnx",
    "ppocr recognition": "ch_PP-OCRv4_rec_infer.onnx",
}


@dataclass(frozen=True)
class ConvolutionCase:
    """A network with all sizes of its input given."""

    network: str
    batch: int
    height: int
    width: int
    element: str = "f32"
    tf32: bool = False  # float32 may be rounded to TF32: Tenon by option, the other by default
    bar: float | None = None  # at most, of the other's time

    @property
    def name(self) -> str:
        size = f"{self.network} {self.batch}x3x{self.height}x{self.width} {self.element}"
        return size if self.element != "f32" else f"{size} {'tf32' if self.tf32 else 'exact'}"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, 3, self.height, self.width


_RESNET = ConvolutionCase("resnet50", 1, 224, 224, "f16", bar=0.8)
# The sizes that the package makes of a page and of a line of text.
_DETECTION = ConvolutionCase("ppocr detection", 1, 736, 736, bar=0.8)
_RECOGNITION = ConvolutionCase("ppocr recognition", 1, 48, 320, bar=0.8)


def table_cases() -> list[ConvolutionCase]:
    both = [replace(ocr, tf32=tf32) for ocr in (_DETECTION, _RECOGNITION) for tf32 in (True, False)]
    return [_RESNET, replace(_RESNET, batch=32, bar=1.05), *both]


def host_cases() -> list[ConvolutionCase]:
    """The same, small enough to try the table on a machine without a GPU."""
    return [
        replace(_RESNET, height=64, width=64, element="f32", bar=None),
        replace(_DETECTION, height=96, width=160, bar=None),
        replace(_RECOGNITION, bar=None),
    ]


def ocr_model(network: str, given: str | None) -> Path:
    """The file of a PP-OCR network: in the folder that was given, else where it is installed."""
    file = OCR_FILES[network]
    for folder in _folders(given):
        if found := next(iter(sorted(folder.rglob(file))), None):
            return found
    where = f"{given} holds no such file" if given else f"the package {OCR_PACKAGE} is not there"
    raise FileNotFoundError(
        f"no {file}: {where}. pip install rapidocr-onnxruntime, or name a folder of its models "
        "with --models-dir"
    )


def _folders(given: str | None) -> list[Path]:
    if given:
        return [Path(given)]
    spec = importlib.util.find_spec(OCR_PACKAGE)
    installed = [Path(spec.origin).parent / "models"] if spec and spec.origin else []
    unpacked = Path(__file__).resolve().parents[3] / ".deps/models/rapidocr-onnxruntime"
    return [*installed, unpacked]
