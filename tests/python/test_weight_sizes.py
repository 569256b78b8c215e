"""NVFP4 as two DequantizeLinear with a 16-bit global scale, at sizes under and over what passes
once folded: the block scales that count are the products, rounded to that type."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime_ep_tenon import create_session

pytestmark = pytest.mark.plugin

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GLOBAL = 0.0123


def raw(name: str, kind: int, dims: list[int], data: np.ndarray) -> onnx.TensorProto:
    return TensorProto(name=name, data_type=kind, dims=dims, raw_data=data.tobytes())


def two_levels(n: int, k: int) -> tuple[bytes, np.ndarray]:
    """The model, and its weight as float64."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 16, (n, k), dtype=np.uint8)
    scales = random.integers(0x30, 0x40, (n, k // 16)).astype(np.uint8)
    initializers = [
        raw("w", TensorProto.FLOAT4E2M1, [n, k], codes[:, 0::2] | codes[:, 1::2] << 4),
        raw("s", TensorProto.FLOAT8E4M3FN, [n, k // 16], scales),
        raw("g", TensorProto.FLOAT16, [], np.float16(GLOBAL)),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["s", "g"], ["scale"]),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["weight"], axis=-1, block_size=16),
        helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_levels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["m", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["m", n])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    exact = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.float32(np.float16(GLOBAL))
    rounded = exact.astype(np.float16).astype(np.float64)
    assert (rounded != exact).any()
    return model.SerializeToString(), VALUES[codes] * np.repeat(rounded, 16, axis=1)


@pytest.mark.parametrize(("n", "k"), [(512, 1024), (4096, 2048)])
def test_nvfp4_with_an_f16_global_scale(n, k):
    model, weight = two_levels(n, k)
    session = create_session(model, claim="all", require_full_claim="1")
    x = np.random.default_rng(2).standard_normal((3, k)).astype(np.float16)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, x.astype(np.float64) @ weight.T, atol=4e-3)
