"""The table of products: its models on the CPU, its measuring on the stub GPU, its rows by hand."""

import json
import math
from argparse import Namespace

import numpy as np
import onnx
import pytest
from conftest import runtime_at_least
from fake_meter import H200, FakeMeter
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.bench import product_suite
from onnxruntime_ep_tenon.bench.machine import Limits
from onnxruntime_ep_tenon.bench.product_cases import Bar, Case, random_cases, table_cases
from onnxruntime_ep_tenon.bench.product_meter import Measured, configs_of, products_of
from onnxruntime_ep_tenon.models import reference
from onnxruntime_ep_tenon.models.product_stack import (
    STACK_FORMATS,
    ProductStack,
    round_to_tf32,
)
from onnxruntime_ep_tenon.report import session_with_report
from test_gpu import python, run_script

N, K, COPIES = 96, 256, 3


@pytest.mark.plugin
@pytest.mark.parametrize("format", STACK_FORMATS)
@pytest.mark.parametrize("tokens", [1, 5])
def test_every_product_is_one_kernel_and_right(format, tokens, tmp_path):
    if format.startswith("mx") and not runtime_at_least("1.27"):
        pytest.skip("e8m0 scales load from onnxruntime 1.27 on")
    stack = ProductStack(tmp_path, format, N, K, COPIES)
    session, report = session_with_report(
        stack.model(tokens), "cpu", claim="all", require_full_claim=True
    )
    inputs = stack.inputs(tokens)
    names = [output.name for output in session.get_outputs()]
    feed = {name: tensors.to_ort_value(x) for name, x in inputs.items()}
    results = session.run_with_ort_values(names, feed)
    assert len(products_of(report.fusions)) == len(results) == COPIES
    for number, result in enumerate(results):
        y = tensors.from_ort_value(result)
        assert stack.error_over_bound(number, inputs[f"x{number}"], range(N), y) <= 1
        other = inputs[f"x{(number + 1) % COPIES}"]
        assert stack.error_over_bound(number, other, range(N), y) > 1


@pytest.mark.parametrize("format", [f for f, spec in STACK_FORMATS.items() if spec.emit_peer])
def test_the_peers_model_is_the_same_product(format, tmp_path):
    stack = ProductStack(tmp_path, format, N, K, COPIES)
    inputs = stack.inputs(2)
    results = reference.evaluate(onnx.load(stack.model(2, peer=True)), inputs)
    for number, y in enumerate(results):
        x = stack.format.multiplied(inputs[f"x{number}"])
        np.testing.assert_allclose(y, x @ stack.weight_rows(number, range(N)).T, rtol=1e-12)


@pytest.mark.plugin
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("format", [f for f, spec in STACK_FORMATS.items() if spec.quantized])
def test_quantised_rows_are_made_by_one_launch_and_pipelined(format, arch, tmp_path):
    stack = ProductStack(tmp_path, format, N, K, 1)
    _, report = session_with_report(
        stack.model(512), "gpu", claim="all", require_full_claim=True, target_arch=arch
    )
    (product,) = products_of(report.fusions)
    assert product["chosen"] == "pipelined" and " 1 stages" not in product["configs"][0]["chosen"]
    assert len(report.fusions) == 2


def test_one_wrong_element_is_seen(tmp_path):
    stack = ProductStack(tmp_path, "nvfp4", N, K, COPIES)
    x = stack.inputs(4)["x2"]
    y = (x.astype(np.float64) @ stack.weight_rows(2, range(N)).T).astype(np.float16)
    assert stack.error_over_bound(2, x, range(N), y) <= 1
    y[3, 17] += np.float16(0.01)
    assert stack.error_over_bound(2, x, range(N), y) > 1
    y[3, 17] = np.nan
    assert stack.error_over_bound(2, x, range(N), y) == math.inf


def test_tf32_may_round_both_operands_and_nothing_more(tmp_path):
    stack = ProductStack(tmp_path, "tf32", N, K, COPIES)
    x, weight = stack.inputs(4)["x1"], stack.weight_rows(1, range(N))
    rounded = round_to_tf32(x) @ round_to_tf32(weight).T
    for y in (x.astype(np.float64) @ weight.T, rounded):
        assert stack.error_over_bound(1, x, range(N), y.astype(np.float32)) <= 1
    one_sided = round_to_tf32(x) @ weight.T
    for y in (one_sided, rounded * (1 + 2.0**-10)):
        assert stack.error_over_bound(1, x, range(N), y.astype(np.float32)) > 1


def test_rounding_to_tf32():
    ties = np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 3 * 2.0**-11, 0, 1 + 2.0**-12], np.float32)
    expected = [1, -1, 1 + 2.0**-9, 0, 1]
    np.testing.assert_array_equal(round_to_tf32(ties), expected)


def test_tf32_has_half_the_limit():
    row = product_suite.ProductRow(Case("tf32", 4096, 4096, 4096), Limits.of(H200))
    half = product_suite.ProductRow(Case("f16", 4096, 4096, 4096), Limits.of(H200))
    assert row.limit == pytest.approx(2 * half.limit) and row.case.bytes == 2 * half.case.bytes


def test_fewer_products_and_other_tokens_read_the_same_weights(tmp_path):
    stack = ProductStack(tmp_path, "int4", N, K, COPIES)
    few, all_of_them = (onnx.load(stack.model(m, c)) for m, c in ((7, 2), (1, COPIES)))
    assert len(few.graph.node) == 2 and len(all_of_them.graph.node) == COPIES
    assert few.graph.initializer[0] == all_of_them.graph.initializer[0]
    assert all_of_them.graph.initializer[0].raw_data != all_of_them.graph.initializer[2].raw_data


def test_weights_rotate_past_the_cache():
    cases = table_cases() + random_cases(40, seed=3)
    for case in cases:
        assert 3 <= case.copies <= min(64, case.most_copies)
        assert case.copies == 64 or case.copies * case.bytes >= 600e6
    assert [case.copies for case in table_cases() if case.n == 128256] == [3] * 7


def test_the_table_has_every_case_once():
    names = [case.name for case in table_cases()]
    assert len(set(names)) == len(names) == 66
    quick = table_cases(quick=True)
    assert {case.format for case in quick} == {"nvfp4"} and len(quick) == 18
    quantised = [case for case in table_cases() if "_by_" in case.format]
    assert len(quantised) == 12 and {case.m for case in quantised} == {16, 512, 4096}
    assert all(str(case.bar) for case in table_cases() if case not in quantised)
    assert random_cases(40, seed=1) == random_cases(40, seed=1) != random_cases(40, seed=2)


def arguments(**changed):
    given = {"json": False, "out": None, "seed": 0, "random": 0, "device": "gpu"}
    return Namespace(**{**given, "quick": False, "only": None, **changed})


def test_rows_plots_and_verdicts(tmp_path, monkeypatch, capsys):
    answers = {
        Case("nvfp4", 4096, 4096, 1, Bar(4.5)): Measured(4.4e-6, 6.3e-6, 13.7e-6, "pipelined"),
        Case("nvfp4", 28672, 4096, 1024, Bar(teraflops=790, of_cublas=1.03)): Measured(
            300e-6, 455e-6, 290e-6
        ),
        Case("fp8", 28672, 4096, 1, Bar(read_share=0.75)): Measured(30e-6),
        Case("f16", 4096, 4096, 4096, Bar(of_cublas=1.03)): Measured(170e-6, 197e-6),
        Case("int4", 4096, 4096, 16, Bar(6)): RuntimeError("WRONG: product 2\nis off"),
        Case("mxfp4", 512, 640, 3, drawn=True): Measured(2e-6, kernel="pipelined 3 x u32[1152]"),
    }
    monkeypatch.setattr(product_suite, "_cases", lambda _: list(answers))
    meter = FakeMeter({case.name: answer for case, answer in answers.items()})
    code = product_suite.run_product_suite(arguments(out=str(tmp_path)), meter)
    assert code == 1 and meter.closed
    result = json.loads((tmp_path / "products.json").read_text())
    rows = {row["case"]: row for row in result["rows"]}
    assert [row["met"] for row in rows.values()] == [True, False, True, None, False, None]
    first = rows["nvfp4 M=1 4096x4096"]
    assert first["tenon_over_peer"] == pytest.approx(4.4 / 6.3)
    assert first["read_share"] == pytest.approx((4096 * 4096 * 9 / 16 + 16384) / 4.57e12 / 4.4e-6)
    assert rows["nvfp4 M=1024 28672x4096"]["teraflops"] == pytest.approx(801.7, rel=1e-3)
    assert rows["fp8 M=1 28672x4096"]["peer_us"] is None
    assert rows["int4 M=16 4096x4096"]["problem"] == "WRONG: product 2 is off"
    plots = sorted(path.name for path in tmp_path.glob("*.png"))
    assert plots == [
        f"products_{name}_tokens.png" for name in ("f16_many", "fp8_few", "nvfp4_few", "nvfp4_many")
    ]
    printed = capsys.readouterr().out
    assert "[1/6] nvfp4 M=1 4096x4096: 4.4 us, peer 6.3, cublas 13.7" in printed
    assert "FAILED  int4 M=16 4096x4096: WRONG: product 2 is off" in printed
    assert "random mxfp4 M=3 512x640" in printed and "pipelined 3 x u32[1152]" in printed


def test_a_bar_may_be_the_cuda_providers_time():
    case = Case("fp8_by_fp8", 4096, 4096, 512, Bar(of_peer=1.3))
    limits = Limits.of(H200)
    assert str(case.bar) == "<= 1.3 of the CUDA provider"
    measured = [Measured(130e-6, 103e-6), Measured(140e-6, 103e-6), Measured(130e-6)]
    rows = [product_suite.ProductRow(case, limits, one) for one in measured]
    assert [row.met for row in rows] == [True, False, None]


def test_time_that_is_over_begins_no_further_case(monkeypatch):
    monkeypatch.setattr(product_suite, "_MOST_SECONDS", -1.0)
    rows = product_suite._measure_all(
        table_cases(quick=True), FakeMeter({}), lambda _: None, arguments()
    )
    assert len(rows) == 18 and all("not begun" in row.problem for row in rows)


def test_patterns_choose_cases():
    chosen = product_suite._cases(arguments(only="int4 M=16 *"))
    assert {(case.format, case.m) for case in chosen} == {("int4", 16)} and len(chosen) == 5
    assert len(product_suite._cases(arguments(only="random *", random=4))) == 4
    with pytest.raises(ValueError, match="no case is named 'int5\\*'; there are: nvfp4 M=1"):
        product_suite._cases(arguments(only="int5*"))


def test_shapes_tell_what_was_chosen():
    fusions = [{"configs": [{"chosen": "128x8"}]}, {"configs": [{"chosen": "128x8"}]}, {}]
    assert configs_of(fusions) == ["128x8"]


@pytest.mark.plugin
def test_measuring_goes_on_after_a_case_that_fails():
    text = """
        from onnxruntime_ep_tenon.bench.product_cases import Case
        from onnxruntime_ep_tenon.bench.product_meter import Meter

        if __name__ == "__main__":
            meter = Meter()
            for format in ("int4", "no such format", "nvfp4"):
                try:
                    measured = meter.measure(Case(format, 96, 256, 5, drawn=True))
                    print(format, measured.tenon > 0, measured.kernel != "")
                except RuntimeError as error:
                    print("failed:", error)
            meter.close()
            print(meter.machine.gpu, meter.machine.copy_rate > 0)
    """
    assert run_script(text).splitlines() == [
        "int4 True True", "failed: 'no such format'", "nvfp4 True True", "Stub GPU 0 True",
    ]  # fmt: skip


@pytest.mark.plugin
def test_values_can_be_bound_by_their_addresses(tmp_path):
    path = ProductStack(tmp_path, "int4", N, K, 1).model(2)
    text = f"""
        import numpy as np
        from onnxruntime_ep_tenon import bindings, create_session, tensors
        from onnxruntime_ep_tenon.bench import gpu_runs
        from onnxruntime_ep_tenon.models.builder import FLOAT16
        session = create_session({str(path)!r}, "gpu", claim="all", require_full_claim=True)
        x = tensors.to_gpu_value(np.ones((2, {K}), np.float16), 0)
        results = []
        for bind in (bindings.bind, bindings.bind_addresses):
            y = tensors.gpu_value((2, {N}), FLOAT16, 0)
            gpu_runs.back_to_back(session, bind(session, {{"x0": x}}, {{"y0": y}}), 3)()
            results.append(tensors.from_gpu_value(y))
        assert results[0].any()
        np.testing.assert_array_equal(*results)
    """
    run_script(text)


@pytest.mark.plugin
def test_without_a_gpu_the_suite_says_so():
    command = ("-m", "onnxruntime_ep_tenon", "bench", "--suite", "products")
    result = python(*command, TENON_DRIVER_LIBRARY="/no/such/driver.so")
    assert result.returncode == 1
    assert "the suite of products needs a GPU" in result.stderr
    assert "/no/such/driver.so" in result.stderr and "Traceback" not in result.stderr
    result = python(*command, "--device", "cpu")
    assert "runs on the first GPU only, not on 'cpu'" in result.stderr
