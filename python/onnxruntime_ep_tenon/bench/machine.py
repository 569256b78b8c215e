"""The machine that a table was measured on, and what it can do at best."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import cuda
from ..provider_sessions import has_cuda_provider
from .driver_clock import DriverClock


@dataclass(frozen=True)
class Machine:
    """What measures, as told by itself."""

    gpu: str  # empty: the host
    driver: str
    onnxruntime: str
    torch: str  # empty: there is none that sees the GPU
    has_peer: bool
    copy_rate: float  # bytes read and written per second


@dataclass(frozen=True)
class Limits:
    """What the machine can do at best, and how that is known."""

    read: float  # bytes per second
    flops: float  # 16-bit, dense
    source: str

    @staticmethod
    def of(machine: Machine) -> Limits:
        if "H200" in machine.gpu:
            return Limits(
                4.57e12, 989e12, "assumed: bulk copies read 4.57 TB/s; data sheet's FLOPs"
            )
        return Limits(machine.copy_rate, math.nan, "the copy rate of this run")

    def seconds(self, case, operand_bytes: int = 2) -> float:
        """Of anything that tells its bytes and its flops, of operands so long."""
        reading = case.bytes / self.read
        multiplying = case.flops / self.flops * (operand_bytes / 2)
        return reading if math.isnan(multiplying) else max(reading, multiplying)


def this_machine(on_gpu: bool, torch: str = "", copied_bytes: int = 1 << 30) -> Machine:
    import onnxruntime

    version = onnxruntime.__version__
    if not on_gpu:
        return Machine("", "", version, "", has_peer=True, copy_rate=math.nan)
    driver = cuda.find_driver()
    return Machine(
        gpu=driver.gpus[0],
        driver=driver.cuda,
        onnxruntime=version,
        torch=torch,
        has_peer=has_cuda_provider(),
        copy_rate=DriverClock().copy_rate(copied_bytes),
    )


def absent_peer_text() -> str:
    """Told before anything is measured: which onnxruntime was found is often a surprise."""
    import onnxruntime

    return (
        f"onnxruntime {onnxruntime.__version__} from {onnxruntime.__file__} has no CUDA provider, "
        "only Tenon is timed: pip install onnxruntime-gpu"
    )
