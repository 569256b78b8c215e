"""Bad models, options and places: a clear error or a reason, never a crash or a wrong number."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from conftest import runtime_at_least
from onnx import TensorProto
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import reference
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot
from onnxruntime_ep_tenon.report import session_with_report

pytestmark = pytest.mark.plugin

PROBLEM = Problem(n=32, k=64)


def open_session(model, **options):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    return tenon.create_session(model, session_options=settings, **options)


@pytest.mark.parametrize("keep", [0, 1, 10, 100, 0.5, 0.99])
def test_truncated_models(keep):
    data = build_scaled_dot("nvfp4", PROBLEM).SerializeToString()
    cut = data[: int(keep * len(data)) if isinstance(keep, float) else keep]
    with pytest.raises(Exception, match=r".+"):
        open_session(cut)


def test_corrupted_models_never_crash():
    """Any error is an answer; a dead process or an endless run is none."""
    data = build_scaled_dot("nvfp4", PROBLEM).SerializeToString()
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        broken = bytearray(data)
        for place in random.integers(0, len(broken), 3):
            broken[place] = random.integers(0, 256)
        try:
            open_session(bytes(broken)).run(None, PROBLEM.inputs(1))
        except Exception:
            refused += 1
    assert 0 < refused < 200


def test_an_unknown_option_lists_the_valid_ones():
    with pytest.raises(Exception, match=r"(?s)no_such_option.*precision_mode"):
        open_session(build_scaled_dot("plain", PROBLEM), no_such_option=1)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("precision_mode", "float7", "exact"),
        ("claim", "some", "gainful"),
        ("target", "toaster", "cpu"),
        ("require_full_claim", "perhaps", "require_full_claim"),
        ("device_id", "minus one", "device_id"),
    ],
)
def test_a_bad_value_names_the_option_and_what_is_valid(option, value, expected):
    with pytest.raises(Exception, match=option) as caught:
        open_session(build_scaled_dot("plain", PROBLEM), **{option: value})
    assert expected in str(caught.value)


def test_an_unwritable_report_file_is_an_error(tmp_path):
    path = tmp_path / "no" / "such" / "folder" / "report.json"
    with pytest.raises(Exception, match="report"):
        open_session(build_scaled_dot("plain", PROBLEM), report_file=path)
    assert not path.parent.exists()


def test_a_missing_model_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.onnx"):
        tenon.create_session(tmp_path / "absent.onnx")


@pytest.mark.parametrize("device", ["gpu:7", "toaster", 99])
def test_an_absent_device_lists_what_is_there(device):
    with pytest.raises(ValueError, match="Tenon offers"):
        tenon.create_session(build_scaled_dot("plain", PROBLEM), device=device)


def test_a_model_of_the_wrong_python_type():
    with pytest.raises(TypeError, match="path, bytes or an onnx.ModelProto"):
        tenon.create_session(3)


def blocked(scale: np.ndarray, block: int = 16, codes_shape=(32, 64)) -> onnx.ModelProto:
    """One NVFP4-like weight with a scale of any shape, never checked by onnx itself."""
    g = GraphBuilder("blocked", 23)
    x = g.input("x", FLOAT, ["M", 64])
    codes = np.ones(codes_shape, np.float32).astype(ml_dtypes.float4_e2m1fn)
    weight = g.node(
        "DequantizeLinear", [g.parameter("codes", codes), g.parameter("scale", scale)],
        axis=-1, block_size=block,
    )  # fmt: skip
    g.node("MatMul", [x, g.node("Transpose", [weight], perm=[1, 0])], outputs=["y"])
    g.output("y", FLOAT, ["M", 32])
    return g.model(check=False)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(blocked(np.ones((32, 3), np.float32)), id="scale-too-short"),
        pytest.param(blocked(np.ones((31, 4), np.float32)), id="scale-of-other-rows"),
        pytest.param(blocked(np.ones((4,), np.float32)), id="scale-of-other-rank"),
        pytest.param(blocked(np.ones((32, 4), np.float32), block=24), id="block-does-not-divide"),
        pytest.param(blocked(np.ones((32, 4), np.float32), block=-16), id="negative-block"),
        pytest.param(blocked(np.ones((0, 4), np.float32)), id="empty-scale"),
    ],
)
def test_scales_that_do_not_fit_are_refused_with_a_message(model):
    with pytest.raises(Exception, match=r"(DequantizeLinear|scale|block)"):
        session = open_session(model, claim="all")
        session.run(None, {"x": np.ones((2, 64), np.float32)})


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 0.0])
def test_special_scales_give_what_the_arithmetic_gives(special):
    scale = np.full((32, 4), 0.5, np.float32)
    scale[3, 1] = special
    model = blocked(scale)
    inputs = {"x": np.ones((2, 64), np.float32)}
    (result,) = open_session(model, claim="all").run(None, inputs)
    np.testing.assert_array_equal(result, reference.evaluate(model, inputs)[0])


@pytest.mark.parametrize("rows", [0, 1])
def test_zero_rows_give_zero_rows(rows):
    model = build_scaled_dot("nvfp4", PROBLEM)
    (result,) = open_session(model).run(None, PROBLEM.inputs(rows))
    assert result.shape == (rows, PROBLEM.n)


def test_zero_size_everywhere():
    g = GraphBuilder("empty", 17)
    x = g.input("x", FLOAT, ["A", "B"])
    y = g.node("Softmax", [g.node("Add", [x, x])], axis=-1)
    g.node("ReduceSum", [y, g.integers(1)], outputs=["y"], keepdims=0)
    g.output("y", FLOAT, ["A"])
    session = open_session(g.model(), claim="all")
    for shape in ((0, 3), (3, 0), (0, 0)):
        (result,) = session.run(None, {"x": np.zeros(shape, np.float32)})
        assert result.shape == shape[:1]
        assert not result.any()


def test_absurd_dimensions_are_an_error():
    g = GraphBuilder("absurd", 17)
    x = g.input("x", FLOAT, [1])
    size = g.constant("size", np.asarray([2**40, 2**20], np.int64))
    g.node("Add", [g.node("Expand", [x, size]), x], outputs=["y"])
    g.output("y", FLOAT, [None, None])
    with pytest.raises(Exception, match=r".+"):
        open_session(g.model(), claim="all").run(None, {"x": np.ones(1, np.float32)})


def test_a_wrong_input_shape_is_an_error():
    session = open_session(build_scaled_dot("nvfp4", PROBLEM))
    with pytest.raises(Exception, match=r"(?i)(dimension|shape|expected)"):
        session.run(None, {"x": np.ones((2, PROBLEM.k + 1), np.float32)})


def test_nodes_left_out_carry_a_reason():
    g = GraphBuilder("mixed", 17)
    x = g.input("x", FLOAT, ["M", 64])
    y = g.node("MatMul", [x, g.parameter("W", np.ones((64, 32), np.float32))])
    values, _ = g.node("Unique", [y], outputs=2)
    g.node("Identity", [values], outputs=["y"])
    g.output("y", FLOAT, [None])
    _, report = session_with_report(g.model(), claim="all")
    assert report.left_out
    assert all(node["reason"] for node in report.left_out)


def test_require_full_claim_names_what_was_left():
    g = GraphBuilder("mixed", 17)
    x = g.input("x", FLOAT, ["M"])
    values, _ = g.node("Unique", [x], outputs=2)
    g.node("Identity", [values], outputs=["y"])
    g.output("y", FLOAT, [None])
    with pytest.raises(Exception, match="Unique"):
        open_session(g.model(), require_full_claim=True)


@pytest.mark.parametrize("how", ["exclude_ops", "exclude_nodes"])
def test_excluded_nodes_are_left_to_the_cpu_provider(how):
    model = build_scaled_dot("plain", PROBLEM)
    node = next(n for n in model.graph.node if n.op_type == "MatMul")
    value = node.op_type if how == "exclude_ops" else node.name
    session, report = session_with_report(model, claim="all", **{how: value})
    left = {entry["node"]: entry["reason"] for entry in report.left_out}
    assert how in left[node.name] or "exclude" in left[node.name]
    (result,) = session.run(None, PROBLEM.inputs(2))
    np.testing.assert_allclose(
        result, reference.evaluate(model, PROBLEM.inputs(2))[0], rtol=1e-4, atol=1e-5
    )


def test_a_failed_session_leaves_the_next_one_working():
    with pytest.raises(Exception, match=r".+"):
        open_session(b"nonsense")
    with pytest.raises(Exception, match="no_such_option"):
        open_session(build_scaled_dot("plain", PROBLEM), no_such_option=1)
    model = build_scaled_dot("nvfp4", PROBLEM)
    (result,) = open_session(model).run(None, PROBLEM.inputs(2))
    np.testing.assert_allclose(
        result, reference.evaluate(model, PROBLEM.inputs(2))[0], rtol=1e-4, atol=1e-4
    )


def test_every_e8m0_scale_code_is_exact():
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(256, 1)
    if not runtime_at_least("1.27.0"):
        pytest.skip("this runtime refuses e8m0 scales")
    g = GraphBuilder("scales", 24)
    ones = np.ones((256, 32), np.float32).astype(ml_dtypes.float8_e4m3fn)
    value = g.node(
        "DequantizeLinear", [g.input("x", TensorProto.FLOAT8E4M3FN, [256, 32]),
                             g.parameter("scale", codes)],
        axis=-1, block_size=32, output_dtype=FLOAT,
    )  # fmt: skip
    g.node("Identity", [value], outputs=["y"])
    g.output("y", FLOAT, [256, 32])
    session = open_session(g.model(check=False), claim="all")
    (result,) = tensors.run(session, {"x": ones})
    expected = np.repeat(codes.astype(np.float32), 32, 1)
    np.testing.assert_array_equal(result, expected)
