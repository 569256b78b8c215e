"""Tensors of more than 2^32 elements: what is picked behind the limits of 31 and 32 bits.

Inputs are zeros that the kernel of the system hands out without memory until they are written, but
for a few elements around those limits; each model ends in a slice of a few elements, which is fused
into the movement in front of it. So nothing is ever computed but what is compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.plugin

INT8, INT64, BOOL = TensorProto.INT8, TensorProto.INT64, TensorProto.BOOL
TWO_31, TWO_32 = 1 << 31, 1 << 32
LENGTH = TWO_32 + 4096 + 64
ROWS = LENGTH // 64
FAR_ROWS = [0, 1, TWO_31 // 64 - 1, TWO_31 // 64, TWO_32 // 64 - 1, TWO_32 // 64, ROWS - 1]


@pytest.fixture(scope="module")
def flat() -> np.ndarray:
    try:
        data = np.zeros(LENGTH, np.int8)
    except MemoryError:
        pytest.skip(f"this machine does not lend {LENGTH >> 20} MiB of memory, not even unused")
    random = np.random.default_rng(7)
    for place in (0, TWO_31, TWO_32, LENGTH):
        first, last = max(place - 128, 0), min(place + 128, LENGTH)
        data[first:last] = random.integers(1, 100, last - first)
    return data


def run(nodes, inputs: dict, constants: dict, dtype=INT8) -> np.ndarray:
    """Inputs: a name, its array and dims. The result is `y`."""
    types = {name: helper.np_dtype_to_tensor_dtype(a.dtype) for name, (a, _) in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "long",
        [helper.make_tensor_value_info(n, types[n], dims) for n, (_, dims) in inputs.items()],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = tenon.create_session(model, "cpu", options, claim="all", require_full_claim=1)
    return session.run(None, {name: array for name, (array, _) in inputs.items()})[0]


def node(op: str, inputs: str, output: str, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), **attributes)


def window(first: int, count: int = 8, axis: int = 0):
    """The last node, which leaves so many elements of `t`, and its constants."""
    constants = {"begin": [first], "end": [first + count], "axis": [axis]}
    return node("Slice", "t begin end axis", "y"), constants


SLICES = [
    (TWO_31 - 1, TWO_31 + 4, 1),
    (TWO_32 - 2, TWO_32 + 4, 1),
    (LENGTH - 3, LENGTH, 1),
    (LENGTH - 3, LENGTH + 7, 1),
    (-LENGTH, 5, 1),
    (5, TWO_31 - 1, TWO_31 // 4),  # an end that the runtime takes for all of it
    (LENGTH - 1, -LENGTH - 1, -(TWO_31 - 1)),
    (TWO_32 + 3, TWO_32 - 3, -1),
    (TWO_32 + 3, TWO_31 + 2, 1 - TWO_31),
]


@pytest.mark.parametrize(("first", "last", "step"), SLICES)
def test_slices(flat, first, last, step):
    constants = {"b": [first], "e": [last], "a": [0], "s": [step]}
    got = run([node("Slice", "x b e a s", "y")], {"x": (flat, ["n"])}, constants)
    endless = last == TWO_31 - 1
    np.testing.assert_array_equal(got, flat[first : None if endless else last : step])


@pytest.mark.parametrize("place", [TWO_31 - 4, TWO_32 - 4, LENGTH - 8])
def test_what_moves_a_long_axis(flat, place):
    last, constants = window(place)
    here = flat[place : place + 8]
    kept = {
        "a view": [node("Unsqueeze", "x zero", "u"), node("Squeeze", "u zero", "t")],
        "reversed": [node("Slice", "x last first zero last", "t")],
        "split": [node("Split", "x parts", "u t", axis=0)],
        "padded": [node("Pad", "x pads", "t")],
        "selected": [node("Cast", "x", "c", to=BOOL), node("Where", "c x nine", "t")],
    }
    constants |= {
        "zero": [0], "last": [-1], "first": [-(2**63)], "parts": [16, LENGTH - 16],
        "pads": [3, 9], "nine": np.array(9, np.int8),
    }  # fmt: skip
    expected = {
        "a view": here,
        "reversed": flat[::-1][place : place + 8],
        "split": flat[16 + place : 24 + place],
        "padded": flat[place - 3 : place + 5],
        "selected": np.where(here == 0, np.int8(9), here),
    }
    for name, nodes in kept.items():
        got = run([*nodes, last], {"x": (flat, ["n"])}, constants)
        np.testing.assert_array_equal(got, expected[name], err_msg=name)


def test_what_picks_from_far_rows(flat):
    rows = flat.reshape(ROWS, 64)
    given = {"x": (rows, ["r", 64]), "i": (np.array(FAR_ROWS), ["k"])}
    np.testing.assert_array_equal(run([node("Gather", "x i", "y")], given, {}), rows[FAR_ROWS])
    places = np.array([[row - ROWS, row % 64] for row in FAR_ROWS])
    given["i"] = (places, ["k", 2])
    got = run([node("GatherND", "x i", "y")], given, {})
    np.testing.assert_array_equal(got, rows[places[:, 0], places[:, 1]])
    far = np.array([0, -1, TWO_31, TWO_32, TWO_32 - 1])
    given = {"x": (flat, ["n"]), "i": (far, ["k"])}
    np.testing.assert_array_equal(run([node("GatherElements", "x i", "y")], given, {}), flat[far])


@pytest.mark.parametrize("row", [TWO_31 // 64 - 1, TWO_32 // 64 - 1, ROWS - 2])
def test_what_permutes_long_rows(flat, row):
    rows = flat.reshape(ROWS, 64)
    last, constants = window(row, 2, axis=1)
    got = run([node("Transpose", "x", "t", perm=[1, 0]), last], {"x": (rows, ["r", 64])}, constants)
    np.testing.assert_array_equal(got, rows[row : row + 2].T)
    last, constants = window(2 * row, 4)
    nodes = [node("Reshape", "x shape", "t"), last]
    got = run(nodes, {"x": (rows, ["r", 64])}, constants | {"shape": [-1, 32]})
    np.testing.assert_array_equal(got, rows[row : row + 2].reshape(4, 32))


@pytest.mark.parametrize("place", [TWO_31 - 4, TWO_32 - 4, LENGTH - 8])
def test_what_makes_a_long_axis(flat, place):
    last, constants = window(place)
    one = {"x": (np.array([5], np.int8), [1])}
    got = run([node("Expand", "x long", "t"), last], one, constants | {"long": [LENGTH]})
    np.testing.assert_array_equal(got, np.full(8, 5, np.int8))
    value = numpy_helper.from_array(np.array([7], np.int8))
    nodes = [node("Shape", "x", "s"), node("ConstantOfShape", "s", "t", value=value), last]
    np.testing.assert_array_equal(run(nodes, {"x": (flat, ["n"])}, constants), np.full(8, 7))
    nodes = [node("Size", "x", "s"), node("Neg", "s", "y")]
    assert run(nodes, {"x": (flat, ["n"])}, {}, INT64) == -LENGTH


def free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    kibibytes = dict(line.split(":") for line in lines)["MemAvailable"].split()[0]
    return int(kibibytes) * 1024


def need(count: int) -> None:
    if free_bytes() < 2 * count:
        pytest.skip(f"{free_bytes() >> 20} MiB of memory are free, and {2 * count >> 20} needed")


def test_a_result_that_is_written_past_the_limit():
    """2 GiB are written: every element, and the few that are not 0 where they belong."""
    length = TWO_31 + 4096
    need(length)
    tail = np.arange(1, 65, dtype=np.int8)
    inputs = {"x": (np.zeros(length, np.int8), ["n"]), "z": (tail, ["k"])}
    got = run([node("Concat", "z x z", "y", axis=0)], inputs, {})
    assert got.shape == (length + 128,)
    np.testing.assert_array_equal(got[:64], tail)
    np.testing.assert_array_equal(got[-64:], tail)
    assert np.count_nonzero(got) == 128


def test_a_copy_that_begins_past_the_limit():
    length = TWO_31 // 2 + 4096
    need(3 * length)
    row = np.zeros((1, length), np.int8)
    row[0, :2], row[0, -1] = [1, 2], 7
    got = run([node("Tile", "x thrice", "y")], {"x": (row, [1, "n"])}, {"thrice": [3, 1]})
    assert got.shape == (3, length)
    assert got[:, [0, 1, -1]].tolist() == [[1, 2, 7]] * 3
    assert np.count_nonzero(got) == 9
