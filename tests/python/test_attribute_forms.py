"""Lists and numbers that older opsets have as attributes and newer ones as inputs.

Both spellings of one node give the same bits, which are those of the CPU provider.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.plugin

FIRST, LAST = -(2**63), 2**63 - 1
X = np.random.default_rng(0).standard_normal((3, 4, 6)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass
class Forms:
    """One node with attributes, and the same with inputs ('' where one is left out)."""

    op: str
    attributes: dict
    inputs: list
    old_opset: int
    new_opset: int
    kept: dict = field(default_factory=dict)  # attributes of both
    outputs: int = 1
    x: np.ndarray = field(default_factory=lambda: X)

    def model(self, old: bool) -> bytes:
        given = [] if old else self.inputs
        names = ["x", *("" if isinstance(v, str) else f"i{n}" for n, v in enumerate(given))]
        tensors = [
            numpy_helper.from_array(value, name)
            for name, value in zip(names[1:], given, strict=True)
            if name
        ]
        attributes = self.kept | (self.attributes if old else {})
        outputs = [f"y{n}" for n in range(self.outputs)]
        # All but one size are open, so that nothing is folded before a provider is asked.
        element = helper.np_dtype_to_tensor_dtype(self.x.dtype)
        dims = [f"d{axis}" for axis in range(self.x.ndim - 1)] + [self.x.shape[-1]]
        graph = helper.make_graph(
            [helper.make_node(self.op, names, outputs, **attributes)],
            "forms",
            [helper.make_tensor_value_info("x", element, dims)],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            tensors,
        )
        opset = self.old_opset if old else self.new_opset
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        return model.SerializeToString()


def sliced(starts, ends, axes=None) -> Forms:
    lists = {"starts": starts, "ends": ends} | ({} if axes is None else {"axes": axes})
    return Forms("Slice", lists, [ints(*values) for values in lists.values()], 9, 13)


ONES = X[:, :1, :]  # [3, 1, 6]
FORMS = {
    "slice to the end": sliced([1], [LAST]),
    "slice to nearly the end": sliced([1, 0], [LAST - 1, LAST], [2, 0]),
    "slice by 32 bits": sliced([1], [2**31 - 1], [1]),
    "slice from the beginning": sliced([FIRST], [-1], [-1]),
    "slice from before the beginning": sliced([-100, FIRST + 1], [2, LAST], [0, 1]),
    "slice of nothing": sliced([2], [FIRST], [1]),
    "slice beyond": sliced([100], [LAST], [2]),
    "slice from the last integer": sliced([LAST], [LAST], [2]),
    "squeeze": Forms("Squeeze", {"axes": [1]}, [ints(1)], 11, 13, x=ONES),
    "squeeze from the end": Forms("Squeeze", {"axes": [-2]}, [ints(-2)], 11, 13, x=ONES),
    "unsqueeze": Forms("Unsqueeze", {"axes": [0, 3]}, [ints(0, 3)], 11, 13),
    "unsqueeze from the end": Forms("Unsqueeze", {"axes": [-1, 1]}, [ints(-1, 1)], 11, 13),
    "split": Forms("Split", {"split": [1, 3]}, [ints(1, 3)], 11, 13, {"axis": 1}, 2),
    "split into nothing": Forms("Split", {"split": [0, 6]}, [ints(0, 6)], 11, 13, {"axis": -1}, 2),
    "pad": Forms("Pad", {"pads": [0, 1, 2, 1, 0, 0]}, [ints(0, 1, 2, 1, 0, 0)], 10, 13),
    "pad by a value": Forms(
        "Pad", {"pads": [0, 0, 1, 0, 0, 1], "value": 7.5},
        [ints(0, 0, 1, 0, 0, 1), np.float32(7.5)], 10, 13,
    ),
    "pad by the edge": Forms(
        "Pad", {"pads": [0, 0, 3, 0, 0, 9]}, [ints(0, 0, 3, 0, 0, 9)], 10, 13, {"mode": "edge"}
    ),
    "pad by reflection": Forms(
        "Pad", {"pads": [0, 0, 5, 0, 0, 2]}, [ints(0, 0, 5, 0, 0, 2)], 10, 13, {"mode": "reflect"}
    ),
    "pad and cut": Forms("Pad", {"pads": [0, 0, -2, 0, 0, 3]}, [ints(0, 0, -2, 0, 0, 3)], 10, 13),
    "clip": Forms("Clip", {"min": -0.5, "max": 0.25}, [np.float32(-0.5), np.float32(0.25)], 6, 13),
    "clip from below": Forms("Clip", {"min": -0.5}, [np.float32(-0.5)], 6, 13),
    "clip from above": Forms("Clip", {"max": 0.25}, ["", np.float32(0.25)], 6, 13),
    "clip what is not finite": Forms(
        "Clip", {"min": -0.5, "max": 0.25}, [np.float32(-0.5), np.float32(0.25)], 6, 13,
        x=np.array([np.inf, -np.inf, np.nan, 1], np.float32),
    ),
    "top of k": Forms("TopK", {"k": 2}, [ints(2)], 9, 11, {"axis": -1}, 2),
    "dropout": Forms("Dropout", {"ratio": 0.5}, [np.float32(0.5)], 11, 13),
    "upsample": Forms(
        "Upsample", {"scales": [1.0, 1.0, 2.0, 3.0]}, [np.array([1, 1, 2, 3], np.float32)], 7, 9,
        {"mode": "nearest"}, x=X[None],
    ),
}  # fmt: skip
# The opset in which a reduction's axes became an input.
REDUCTIONS = {"ReduceSum": 13} | {
    f"Reduce{name}": 18
    for name in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
}
for _op, _opset in REDUCTIONS.items():
    for _axes in ([1], [-1, 0]):
        FORMS[f"{_op} {_axes}"] = Forms(
            _op, {"axes": _axes}, [ints(*_axes)], _opset - 1, _opset, x=np.abs(X)
        )


def run(model: bytes, x: np.ndarray, provider: str) -> list[np.ndarray]:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    if provider == "cpu":
        session = onnxruntime.InferenceSession(model, settings, ["CPUExecutionProvider"])
    else:
        session = tenon.create_session(model, "cpu", settings, claim="all")
    return session.run(None, {"x": x})


@pytest.mark.parametrize("name", FORMS)
def test_both_forms_agree_with_each_other_and_with_the_cpu_provider(name):
    forms = FORMS[name]
    old, new = (run(forms.model(old), forms.x, "tenon") for old in (True, False))
    stock = run(forms.model(True), forms.x, "cpu")
    for as_attribute, as_input, expected in zip(old, new, stock, strict=True):
        np.testing.assert_array_equal(as_attribute, as_input)
        assert as_attribute.shape == expected.shape
        if name.startswith("Reduce"):  # sums in another order
            np.testing.assert_allclose(as_attribute, expected, rtol=1e-6, atol=0)
        else:
            np.testing.assert_array_equal(as_attribute, expected)


def test_the_slices_of_older_opsets_are_claimed():
    for name in ("slice to the end", "slice from the beginning"):
        settings = onnxruntime.SessionOptions()
        tenon.create_session(
            FORMS[name].model(old=True), "cpu", settings, claim="all", require_full_claim=True
        )


def test_a_constant_keeps_integers_that_a_double_does_not():
    """Constants become tensors of their own while a graph is fused."""
    value = 2**53 + 1
    nodes = [
        helper.make_node("Constant", [], ["c"], value_ints=[value, LAST, FIRST]),
        helper.make_node("Expand", ["c", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "constants",
        [helper.make_tensor_value_info("shape", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = tenon.create_session(model.SerializeToString(), "cpu", claim="all")
    (y,) = session.run(None, {"shape": ints(2, 3)})
    assert y.tolist() == [[value, LAST, FIRST]] * 2
