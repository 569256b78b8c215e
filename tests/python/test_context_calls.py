"""Context models that call cuDNN: compiled and explained on stubs of the driver and of cuDNN."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_ep_tenon as tenon
import pytest
from onnx import TensorProto
from onnxruntime_ep_tenon.models.builder import GraphBuilder
from test_gpu import command

pytestmark = pytest.mark.plugin


@pytest.fixture(scope="module")
def cudnn() -> str:
    path = Path(tenon.get_library_path()).parents[1] / "stub_cudnn" / "libtenon_stub_cudnn.so"
    if not path.is_file():
        pytest.skip("the stub of cuDNN is not built")
    return str(path)


@pytest.fixture(scope="module")
def context(cudnn, tmp_path_factory) -> Path:
    """Compiled where no GPU is."""
    folder = tmp_path_factory.mktemp("calls")
    g = GraphBuilder("convolution", 21)
    x = g.input("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    w = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    g.node("Conv", [x, g.parameter("w", w)], outputs=["y"], pads=[1, 1, 1, 1])
    g.output("y", TensorProto.FLOAT, ["batch", 4, 8, 8])
    onnx.save(g.model(), folder / "model.onnx")
    options = ("--arch", "sm_90a,sm_80", "--out", folder / "c.onnx")
    told = command(
        "compile", folder / "model.onnx", *options,
        TENON_DRIVER_LIBRARY="no driver", TENON_CUDNN_LIBRARY=cudnn,
    )  # fmt: skip
    assert "calls cuDNN (compiled with 9.19.0)" in told
    return folder / "c.onnx"


def test_the_command_says_that_it_calls_cudnn(context, cudnn):
    told = command(
        "explain", context, TENON_STUB_SCRIPT="devices 1; arch 9.0", TENON_CUDNN_LIBRARY=cudnn
    )
    assert "calls cuDNN (compiled with 9.19.0)" in told
    assert "opens as it was stored" in told


def test_each_program_and_the_compatibility_line_name_the_version(context, cudnn):
    told = json.loads(
        command(
            "explain", context, "--json",
            TENON_STUB_SCRIPT="devices 1; arch 9.0", TENON_CUDNN_LIBRARY=cudnn,
        )
    )  # fmt: skip
    versions = [p["cudnn"] for context in told["contexts"] for p in context["programs"]]
    assert versions == ["9.19.0", "9.19.0"]
    assert "cudnn=9.19.0" in told["origin"]
    assert not told["error"]


@pytest.mark.parametrize(
    ("options", "library", "reason"),
    [
        (("--option", "enable_cudnn=0"), "", "enable_cudnn is 0"),
        ((), "/nowhere/libcudnn.so.9", "nvidia-cudnn-cu13"),
    ],
)
def test_why_it_does_not_open_is_told(context, cudnn, options, library, reason):
    told = command(
        "explain", context, *options,
        TENON_STUB_SCRIPT="devices 1; arch 9.0", TENON_CUDNN_LIBRARY=library or cudnn,
    )  # fmt: skip
    assert reason in told
    assert "compile the model again with enable_cudnn=0" in told
