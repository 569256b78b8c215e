"""Which suite `tenon bench --suite` runs; each measures its cases and tells a table of them."""

from __future__ import annotations

from .attention_suite import run_attention_suite
from .decoder_suite import run_decoder_suite
from .gpu_suite import run_gpu_suite
from .host_suite import run_host_suite
from .product_suite import run_product_suite
from .rank_suite import run_rank_suite
from .session_suite import run_session_suite

_SUITES = {
    "products": run_product_suite,
    "attention": run_attention_suite,
    "decoder": run_decoder_suite,
    "sessions": run_session_suite,
    "ranks": run_rank_suite,
}


def run_suite(args) -> int:
    general = run_gpu_suite if args.device.startswith("gpu") else run_host_suite
    return _SUITES.get(args.suite, general)(args)
