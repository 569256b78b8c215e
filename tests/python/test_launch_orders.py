"""Decoders on the GPU that the stub driver plays: launches in orders that a GPU permits, same bits.

Each in a process of its own; caches are shared, so that tokens are appended where keys are read.
"""

import pytest
from conftest import runtime_at_least
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from test_gpu import run_script

pytestmark = pytest.mark.plugin

ORDERS = 3

IN_ORDERS = """
    import ctypes
    import os

    import numpy as np
    from onnxruntime_ep_tenon.genai_folder import GenaiFolder
    from onnxruntime_ep_tenon.generation import TokenLoop
    from onnxruntime_ep_tenon.session import create_session

    stub = ctypes.CDLL(os.environ["TENON_DRIVER_LIBRARY"])
    stub.tenon_stub_calls.restype = ctypes.c_long
    stub.tenon_stub_reports.restype = ctypes.c_char_p
    folder = GenaiFolder.load({folder!r})
    session = create_session(folder.model, "gpu", enable_cuda_graph={graphs})

    def logits():
        loop = TokenLoop(session, folder, max_length=40, fixed_mask={graphs})
        steps = [[[1, 2, 3, 4, 5]]] + [[[token]] for token in (6, 7, 8, 9)]
        return np.concatenate([loop.run(step).ravel() for step in steps])

    wanted = logits().tobytes()
    print("early" if stub.tenon_stub_calls(b"cuLaunchKernelEx") > 0 else "never early")
    for seed in range({orders}):
        assert stub.tenon_stub_script(f"order {{seed}}".encode()) == 0
        print("same" if logits().tobytes() == wanted else f"order {{seed}} differs")
    print(stub.tenon_stub_reports().decode())
"""


@pytest.mark.parametrize(
    ("name", "weights", "cache", "graphs"),
    [
        ("llama", "int4", "", False),
        ("qwen3", "nvfp4", "", True),
        ("gpt_oss", "int4", "int8", True),
    ],
)
def test_a_decoder_gives_the_same_bits(name, weights, cache, graphs, tmp_path):
    if (cache or weights == "nvfp4") and not runtime_at_least("1.31"):
        pytest.skip("an older runtime does not load this decoder")
    spelling = Spelling("genai", weights, "f16", packed_qkv=not cache, cache=cache)
    decoder.write_decoder(tmp_path, ARCHITECTURES[name], spelling, SeededWeights())
    text = IN_ORDERS.format(folder=str(tmp_path), graphs=graphs, orders=ORDERS)
    assert run_script(text).split("\n") == ["early"] + ORDERS * ["same"] + ["", ""]
