"""GridSample of every form gives stock's numbers, at places inside, outside and nowhere."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

PADDINGS, CORNERS = ("zeros", "border", "reflection"), (0, 1)
MODES = {4: ("nearest", "linear", "cubic"), 5: ("nearest", "linear")}


def quiet():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return options


def forms(rank):
    return list(itertools.product(MODES[rank], PADDINGS, CORNERS))


def model(rank, opset):
    """One node for each form, all of one image and one grid."""
    older = {"linear": "bilinear", "cubic": "bicubic"} if opset < 20 else {}
    nodes, outputs = [], []
    for number, (mode, padding, corners) in enumerate(forms(rank)):
        nodes.append(
            helper.make_node(
                "GridSample",
                ["x", "grid"],
                [f"s{number}"],
                mode=older.get(mode, mode),
                padding_mode=padding,
                align_corners=corners,
            )
        )
        nodes.append(helper.make_node("Neg", [f"s{number}"], [f"y{number}"]))
        outputs.append(helper.make_empty_tensor_value_info(f"y{number}"))
    spatial, places = ["d", "h", "w"][5 - rank :], ["o", "p", "q"][5 - rank :]
    float32 = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("x", float32, ["n", "c", *spatial]),
        helper.make_tensor_value_info("grid", float32, ["n", *places, rank - 2]),
    ]
    graph = helper.make_graph(nodes, "samples", inputs, outputs)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def feeds(image, places, reach=1.5, seed=0):
    random = np.random.default_rng(seed)
    grid = random.uniform(-reach, reach, (image[0], *places, len(places)))
    return {
        "x": random.standard_normal(image).astype(np.float32),
        "grid": grid.astype(np.float32),
    }


def sessions(rank, opset):
    data = model(rank, opset)
    ours, report = session_with_report(data, "cpu", quiet(), claim="all")
    assert not report.left_out, report.reasons()
    return ours, onnxruntime.InferenceSession(data, quiet(), providers=["CPUExecutionProvider"])


def compare(rank, ours, stock, given, tolerance=2e-5):
    for form, got, expected in zip(
        forms(rank), ours.run(None, given), stock.run(None, given), strict=True
    ):
        assert got.shape == expected.shape, form
        np.testing.assert_allclose(got, expected, tolerance, tolerance, err_msg=str(form))


@pytest.mark.parametrize("opset", [16, 20])
def test_images(opset):
    ours, stock = sessions(4, opset)
    for image, places in (((2, 3, 7, 5), (4, 9)), ((1, 1, 2, 2), (1, 1)), ((3, 2, 4, 8), (6, 3))):
        compare(4, ours, stock, feeds(image, places))
        compare(4, ours, stock, feeds(image, places, reach=6, seed=1))


def test_volumes():
    ours, stock = sessions(5, 20)
    for image, places in (((2, 3, 4, 3, 5), (2, 3, 4)), ((1, 2, 2, 2, 2), (1, 5, 1))):
        compare(5, ours, stock, feeds(image, places))
        compare(5, ours, stock, feeds(image, places, reach=4, seed=1))


def test_places_that_are_no_numbers():
    """What is weighed there is no number either; the nearest pixel is outside, or the border's."""
    ours, _ = sessions(4, 20)
    given = feeds((1, 2, 5, 4), (3, 4))
    usual = ours.run(None, given)
    odd = given["grid"].copy()
    odd[0, 0, :, 0] = [np.nan, np.inf, -np.inf, 1e30]
    odd[0, 1, :, 1] = [np.nan, np.inf, -np.inf, -1e30]
    odd[0, 1, 0, 0] = 40
    for (mode, padding, _), got, before in zip(
        forms(4), ours.run(None, {**given, "grid": odd}), usual, strict=True
    ):
        np.testing.assert_array_equal(got[:, :, 2], before[:, :, 2])
        nowhere = got[0, :, :2, :3]
        if mode != "nearest":
            assert np.isnan(nowhere).all(), (mode, padding)
        elif padding == "zeros":
            assert (nowhere == 0).all()
        else:
            assert np.isfinite(nowhere).all()
        if padding == "zeros":
            assert (got[0, :, :2, 3] == 0).all(), mode


def test_a_pixel_outside_of_the_image_is_zero_whatever_the_border_holds():
    ours, stock = sessions(4, 20)
    given = feeds((1, 1, 3, 3), (2, 2))
    given["x"][0, 0, 0, 0] = np.inf
    given["grid"][:] = [[[[-3, -3], [-3, 0.1]], [[0.2, -3], [0.9, 0.9]]]]
    for (mode, padding, _), got, expected in zip(
        forms(4), ours.run(None, given), stock.run(None, given), strict=True
    ):
        if padding == "zeros":
            np.testing.assert_allclose(got, expected, 1e-5, 1e-5, err_msg=mode)


def test_a_grid_of_another_batch_is_refused():
    ours, _ = sessions(4, 20)
    given = feeds((2, 3, 4, 4), (2, 2))
    with pytest.raises(Exception, match="grid|fit|expected"):
        ours.run(None, {**given, "grid": given["grid"][:1]})
