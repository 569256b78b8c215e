"""Which suite `tenon bench --suite` runs; each measures its cases and tells a table of them."""

from __future__ import annotations

from .attention_suite import run_attention_suite
from .convolution_suite import run_convolution_suite
from .decoder_suite import run_decoder_suite
from .exported_suite import run_exported_suite
from .gpu_rank_suite import run_gpu_rank_suite
from .gpu_suite import run_gpu_suite
from .host_rank_suite import run_host_rank_suite
from .host_suite import run_host_suite
from .product_suite import run_product_suite
from .session_suite import run_session_suite
from .tuning_suite import run_tuning_suite

_SUITES = {
    "products": run_product_suite,
    "attention": run_attention_suite,
    "convolution": run_convolution_suite,
    "decoder": run_decoder_suite,
    "exported": run_exported_suite,
    "sessions": run_session_suite,
    "tuning": run_tuning_suite,
}


# The same name for the host and for a GPU.
_BY_DEVICE = {
    "general": (run_host_suite, run_gpu_suite),
    "ranks": (run_host_rank_suite, run_gpu_rank_suite),
}


def run_suite(args) -> int:
    if args.suite in _BY_DEVICE:
        return _BY_DEVICE[args.suite][args.device.startswith("gpu")](args)
    return _SUITES[args.suite](args)
