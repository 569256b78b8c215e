"""ResNet as models/resnet.py writes it: the same in every form, with the sizes of its paper."""

import json
import math
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime_ep_tenon.models.resnet import ResnetForm, ResnetShape, build_resnet
from test_command import failed, succeeded
from test_command import tenon as command

SMALL = ResnetShape(blocks=(1, 2), width=8, image=32, classes=10)


def logits(form: ResnetForm, image: np.ndarray, seed: int = 0) -> np.ndarray:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    # Norms are computed where they stand, not folded by the runtime.
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = build_resnet(SMALL, form, seed).SerializeToString()
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return session.run(None, {"image": image})[0]


def test_every_form_is_the_same_network():
    image = np.random.default_rng(3).standard_normal((2, 3, 32, 32)).astype(np.float32)
    folded = logits(ResnetForm("f32"), image)
    kept = logits(ResnetForm("f32", batch=2, keep_norms=True), image)
    assert folded.shape == (2, 10) and 0.1 < folded.std() < 10
    np.testing.assert_allclose(kept, folded, rtol=1e-4, atol=1e-5)
    half = logits(ResnetForm("f16"), image.astype(np.float16))
    np.testing.assert_allclose(half.astype(np.float32), folded, atol=2e-2)
    assert np.abs(folded[0] - folded[1]).max() > 1e-3  # results depend on the image
    assert np.abs(logits(ResnetForm("f32"), image, seed=1) - folded).max() > 0.1


def test_sizes_are_those_of_resnet_50():
    model = build_resnet(form=ResnetForm("f16", batch=4))
    assert Counter(node.op_type for node in model.graph.node) == {
        "Conv": 53, "Relu": 49, "Add": 16, "MaxPool": 1, "GlobalAveragePool": 1, "Flatten": 1,
        "Gemm": 1,
    }  # fmt: skip
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    # 25.56 million parameters, of which norms have four a channel and folded ones one.
    assert sum(math.prod(dims) for dims in weights.values()) == 25_530_472
    strides = {
        tuple(node.attribute[0].ints): tuple(node.attribute[-1].ints) for node in model.graph.node
        if node.op_type == "Conv" and node.input[1] == "layer2.0.conv2.weight"
    }  # fmt: skip
    assert strides == {(3, 3): (2, 2)}
    shape = model.graph.input[0].type.tensor_type.shape
    assert [dim.dim_value for dim in shape.dim] == [4, 3, 224, 224]


@pytest.mark.plugin
def test_the_command_writes_and_tries_it(tmp_path):
    words = ("models", "resnet50", "--image", "32", "--batch", "1", "--out", tmp_path, "--json")
    told = json.loads(succeeded(command(*words)))
    assert told["check"].startswith("Checked: one Run gives finite numbers")
    loaded = onnx.load(told["model"], load_external_data=False)
    assert loaded.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    assert "too small" in failed(command("models", "resnet50", "--image", "8", "--out", tmp_path))
