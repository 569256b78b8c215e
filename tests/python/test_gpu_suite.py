"""The benchmark of GPUs, small, on the GPU that the stub driver plays: every row comes out."""

import json

import pytest
from test_gpu import run_script

pytestmark = pytest.mark.plugin

# A chain stands in for the encoder, whose products compile slowly for the stub.
SCRIPT = """
    from argparse import Namespace
    from onnxruntime_ep_tenon.bench import gpu_suite
    chain, reads = gpu_suite.chain_model("norm + residual", 4, 64)
    gpu_suite.Bench.encoders = (chain, chain)
    gpu_suite.Bench.encoder_inputs = lambda self, batch: gpu_suite.chain_inputs(reads, 4, 64)
    scale = gpu_suite.Scale(
        chain_rows=8, chain_columns=64, copied_bytes=1 << 16, batches=(1,), tokens=4,
        sessions=2, runs=6, seconds=0.01,
    )
    gpu_suite.run_gpu_suite(Namespace(json=True, out={out!r}), scale)
"""


def test_every_case_gives_its_rows(tmp_path):
    run_script(SCRIPT.format(out=str(tmp_path)))
    result = json.loads((tmp_path / "bench.json").read_text())
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    cases = [row["case"] for row in result["rows"]]
    expected = [
        "pointwise chain", "norm + residual", "softmax", "encoder NVFP4 f16, 1 x 4",
        "captured Run, one kernel", "captured Run, encoder", "encoder, compile cold",
        "encoder, second session", "2 sessions, 6 Runs",
    ]  # fmt: skip
    assert len(cases) == len(expected)
    assert all(case.startswith(start) for case, start in zip(cases, expected, strict=True)), cases
    assert all(row["tenon"] > 0 for row in result["rows"])
    by_case = dict(zip(cases, result["rows"], strict=True))
    assert by_case["2 sessions, 6 Runs"]["other"] is None
    assert by_case["captured Run, encoder"]["other"] > 0
