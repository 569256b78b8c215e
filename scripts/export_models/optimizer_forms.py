"""Which files of TensorRT Model Optimizer there are: small nets in each form that it exports.

A configuration that is not here release 0.47 does not export: MXFP4, MXFP6, MXINT8, NVFP4 with
scales per block from calibration, quantised caches, experts; blocks over a convolution's kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_OF_EVERY_NET = ("FP8_DEFAULT", "INT8_DEFAULT", "INT8_SMOOTHQUANT")
_WITHOUT_CONVOLUTIONS = (
    "INT4_AWQ", "INT4_BLOCKWISE_WEIGHT_ONLY", "MXFP8_DEFAULT", "NVFP4_DEFAULT", "NVFP4_AWQ_LITE",
)  # fmt: skip
_OF_PRODUCTS = (
    "INT8_WEIGHT_ONLY", "MAMBA_MOE_FP8_AGGRESSIVE", "MAMBA_MOE_FP8_CONSERVATIVE",
    "MAMBA_MOE_NVFP4_AGGRESSIVE", "MAMBA_MOE_NVFP4_CONSERVATIVE", "NVFP4_AWQ_CLIP",
    "NVFP4_AWQ_FULL", "NVFP4_KV_ROTATE", "NVFP4_SVDQUANT_DEFAULT", "W4A16_NVFP4", "W4A8_NVFP4_FP8",
)  # fmt: skip
# By its name of NVFP4, but without caches it quantises to INT8 what is left.
_INTEGERS_BY_ANOTHER_NAME = "NVFP4_KV_ROTATE"


@dataclass(frozen=True)
class Form:
    network: str
    config: str
    weights: str  # the type that the exporter is asked for
    is_half: bool  # torch's own type is float16

    @property
    def name(self) -> str:
        way = f"half-{self.weights}" if self.is_half else self.weights
        return f"optimizer-{self.network}.{self.config.lower().replace('_', '-')}.{way}"

    @property
    def needs_gpu(self) -> bool:
        """Model Optimizer has kernels for these on a GPU only."""
        return _is_fp4(self.config) or self.config.startswith("MX")


def _is_fp4(config: str) -> bool:
    return "NVFP4" in config and config != _INTEGERS_BY_ANOTHER_NAME


def _forms() -> Iterator[Form]:
    configs = {
        "mlp": (*_OF_EVERY_NET, *_WITHOUT_CONVOLUTIONS, *_OF_PRODUCTS),
        "attention": (*_OF_EVERY_NET, *_WITHOUT_CONVOLUTIONS),
        "convolution": _OF_EVERY_NET,
    }
    for network, names in configs.items():
        for config in names:
            # For float16 of NVFP4 it asks for TensorRT itself; INT4 AWQ of float32 fails in torch.
            types = ("fp32",) if _is_fp4(config) else ("fp32", "fp16")
            if config != "INT4_AWQ":
                yield from (Form(network, config, weights, False) for weights in types)
            if config in _OF_PRODUCTS:
                continue
            halves = types if network == "mlp" else ("fp32",)
            yield from (Form(network, config, weights, True) for weights in halves)


FORMS = tuple(_forms())
