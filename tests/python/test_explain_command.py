"""`tenon explain`, and the reasons that every command gives when there is no session."""

import json
import re
import shutil

import numpy as np
import onnx
import pytest
from command_models import linear, saved, unsorted
from onnxruntime_ep_tenon.commands.explain import fusion_rows, launch_rows
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.report import Report, plain_reason, session_with_report, shortened
from onnxruntime_ep_tenon.session_facts import device_text

# No provider runs the model of `refused` with these.
EXCLUDED = {"exclude_nodes": "W/dequantized"}
OPTION = ("--option", "exclude_nodes=W/dequantized")


@pytest.fixture
def refused(tmp_path):
    """A model with a 4-bit weight."""
    model, _ = quantize_model(linear(), "nvfp4")
    return saved(model, tmp_path)


@pytest.mark.plugin
def test_explain_tells_why_there_is_no_session(command, refused):
    told = command("explain", refused, *OPTION)
    assert told.status == 1 and told.err == ""
    assert "Left to other providers" in told.out and "No session" in told.out
    assert re.search(r"excluded by the option exclude_nodes.*\n\s+DequantizeLinear", told.out)
    report = json.loads(command("explain", refused, "--json", *OPTION).out)
    assert "W/dequantized" in report["error"] and report["graphs"][0]["left_out"]


@pytest.mark.plugin
def test_run_puts_the_asked_reason_first(command, refused):
    told = command("run", refused, *OPTION)
    assert told.status == 1
    lines = told.err.splitlines()
    assert lines[0].startswith("tenon: error: ") and "'W/dequantized'" in lines[0]
    assert "nodes to other providers:" in lines[1]
    assert "excluded by" in lines[2] and "DequantizeLinear 'W/dequantized'" in lines[3]


@pytest.mark.plugin
def test_a_report_of_an_earlier_session_is_not_taken_for_this_one(command, refused, tmp_path):
    file = tmp_path / "report.json"
    shutil.copy(_report_of(refused, tmp_path), file)
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"no model")
    told = command("run", junk, "--option", f"report_file={file}")
    assert told.status == 1 and "DequantizeLinear" not in told.err


def _report_of(path, folder):
    file = folder / "first.json"
    with pytest.raises(RuntimeError):
        session_with_report(path, report_file=file, **EXCLUDED)
    return file


@pytest.mark.plugin
def test_an_op_that_kernels_know_is_not_called_unknown(tmp_path):
    """Mul and Exp behind a Reshape whose rank only Run knows; Det is known to nobody."""
    g = GraphBuilder("ranks", 21)
    x = g.input("x", FLOAT, ["rows", 4])
    shape = g.input("shape", onnx.TensorProto.INT64, ["rank"])
    y = g.node("Reshape", [x, shape])
    g.node("ReduceSum", [g.node("Exp", [g.node("Mul", [y, y])])], outputs=["y"], keepdims=0)
    square = g.input("square", FLOAT, [3, 3])
    g.node("Det", [square], outputs=["d"])
    g.output("y", FLOAT, [])
    g.output("d", FLOAT, [])
    _, report = session_with_report(saved(g.model(), tmp_path), "cpu", claim="all")
    reasons = {node["op"]: node["reason"] for node in report.left_out}
    assert reasons["Det"] == "no kernel for this op"
    for op in ("Mul", "Exp"):
        assert "not known before Run" in reasons[op]


@pytest.mark.plugin
def test_a_form_without_a_kernel_is_not_an_unknown_op(tmp_path):
    g = GraphBuilder("training", 21)
    x = g.input("x", FLOAT, [2, 3, 4])
    ones = g.parameter("ones", np.ones(3, np.float32))
    inputs = [x, ones, ones, ones, ones]
    g.node("BatchNormalization", inputs, outputs=["y", "m", "v"], training_mode=1)
    for name, shape in (("y", [2, 3, 4]), ("m", [3]), ("v", [3])):
        g.output(name, FLOAT, shape)
    _, report = session_with_report(saved(g.model(), tmp_path), "cpu", claim="all")
    (left,) = report.left_out
    assert "attributes" in left["reason"] and "this op" not in left["reason"]


def test_reasons_are_grouped_and_short():
    size = "floordiv(" * 200 + "rows" + ",2)" * 200
    same = f"shape [{size}] of 'x': too long to tell"
    nodes = [
        {
            "node": f"m{i}",
            "op": "MatMul",
            "reason": f"tenon::ScaledDot: int8: {same}; packed: {same}",
        }
        for i in range(5)
    ]
    nodes.append({"node": "c", "op": "Conv", "reason": "no kernel for this op"})
    report = Report({"graphs": [{"nodes": 9, "claimed": 3, "left_out": nodes}]})
    first, second = report.reason_groups()
    assert len(first.nodes) == 5 and len(first.reason) <= 160
    assert first.reason.startswith("shape [floordiv(") and first.reason.endswith("too long to tell")
    assert first.names() == "MatMul 'm0', MatMul 'm1', MatMul 'm2' and 2 more"
    assert second.reason == "no kernel for this op" and second.operators == "Conv 1"


def left_out(*nodes):
    """A report that left these out: op and reason of each."""
    told = [{"node": f"n{i}", "op": op, "reason": why} for i, (op, why) in enumerate(nodes)]
    return Report({"graphs": [{"nodes": 9, "claimed": 0, "left_out": told}]})


def test_reasons_that_differ_in_names_and_numbers_are_one():
    """An exported network had eleven lines for tensors of one unknown rank."""
    unknown = [("Add", f"the rank of 'x{i}' is not known before Run") for i in range(3)]
    little = [("Relu", f"gain nothing: at most {i} ops (4 pay off)") for i in (1, 0)]
    ranks, ops = left_out(*unknown, *little).reason_groups()
    assert ranks.reason == "the rank of 'x0' is not known before Run (and 2 more like this)"
    assert len(ranks.nodes) == 3 and ranks.operators == "Add 3"
    assert ops.reason == "gain nothing: at most 1 ops (4 pay off) (and 1 more like this)"
    sizes = [
        ("Cast", "tenon::Loop: one_kernel: at_most(broadcast(a,b),7) of 'x': size 'a' is unknown"),
        ("Slice", "Concat: slices: at_most(broadcast(c,d),7) of 'y': size 'c' is unknown"),
    ]
    (size,) = left_out(*sizes).reason_groups()
    assert size.reason.startswith("at_most(broadcast(a,b),7) of 'x'") and len(size.nodes) == 2


def test_an_operator_is_not_named_in_front_of_its_own_reason():
    loops = [("Loop", "Loop: no kernel for this op"), ("Conv", "no kernel for this op")]
    (group,) = left_out(*loops).reason_groups()
    assert group.reason == "no kernel for this op" and group.operators == "Loop 1, Conv 1"


def test_symbolic_sizes_are_written_as_the_model_writes_them():
    (group,) = left_out(("Add", "size 'floor%28n/2%29' cannot be told")).reason_groups()
    assert group.reason == "size 'floor(n/2)' cannot be told"
    fusion = {"kind": "tenon::Loop", "problem": "(f32['add%3a0'])", "chosen": "one_kernel"}
    report = Report({"graphs": [{"partitions": [{"fusions": [fusion]}]}]})
    assert fusion_rows(report) == [(1, "loop", "(f32['add:0'])", "one_kernel")]


def test_what_was_made_of_a_collective_is_told():
    fusion = {"kind": "tenon::AllReduce", "problem": "(f16[8])", "note": "one for 2 equal ones"}
    report = Report({"graphs": [{"partitions": [{"fusions": [fusion, dict(fusion, note="")]}]}]})
    told = [row[2] for row in fusion_rows(report)]
    assert told == ["(f16[8]): one for 2 equal ones", "(f16[8])"]


def test_a_model_of_which_nothing_is_claimed_is_said_to_be_so():
    assert str(left_out(("Conv", "no kernel for this op")).coverage) == "none of 9 nodes"


def test_only_names_of_kernels_are_taken_off_a_reason():
    assert plain_reason("LSTM: no kernel for this op") == "LSTM: no kernel for this op"
    assert plain_reason("packed: too wide; plain: too deep") == "packed: too wide; plain: too deep"
    assert shortened("x" * 30, 10) == "xxxxxx…xxx"


@pytest.mark.plugin
def test_a_compiled_for_gpu_is_not_named_as_a_device(command, tmp_path):
    # The CPU's device: a machine with such a GPU would name it.
    arguments = ("--device", "cpu", "--option", "target_arch=sm_90a")
    told = command("explain", saved(linear(), tmp_path), *arguments)
    assert told.status == 0, told.err
    assert "compiled for sm_90a" in told.out
    assert "H200" not in told.out and "device:" not in told.out
    told = command("explain", saved(linear(), tmp_path), *arguments, "--json")
    device = json.loads(told.out)["device"]
    assert device["arch"] == "sm_90a" and device["present"] is False
    assert "H200" not in told.out


def test_a_gpu_that_is_there_is_named_although_it_was_asked_for():
    device = {"kind": "gpu", "name": "NVIDIA H200", "arch": "sm_90a", "present": True}
    asked = {"options": {"target_arch": "sm_90a"}}
    assert device_text(Report(asked | {"device": device})) == "device: gpu NVIDIA H200 (sm_90a)"
    absent = device_text(Report(asked | {"device": device | {"present": False}}))
    assert absent.startswith("compiled for sm_90a; such a GPU need not be here")


@pytest.mark.plugin
@pytest.mark.parametrize(
    "arch, cost_model",
    [("sm_90a", "measured on "), ("sm_120a", "not measured: constants of sm_90a")],
)
def test_explain_says_whether_costs_were_measured(command, tmp_path, arch, cost_model):
    model = saved(linear(), tmp_path)
    arguments = ("--device", "gpu", "--option", f"target_arch={arch}")
    told = command("explain", model, *arguments)
    assert f"\ncost model: {cost_model}" in told.out, told.err
    told = command("explain", model, *arguments, "--json")
    assert json.loads(told.out)["device"]["cost_model"].startswith(cost_model)
    page = tmp_path / "page.html"
    command("explain", model, *arguments, "--html", page)
    assert cost_model in page.read_text()


@pytest.mark.plugin
def test_the_host_has_no_cost_model_to_tell_of(command, tmp_path):
    told = command("explain", saved(linear(), tmp_path), "--device", "cpu")
    assert told.status == 0 and "cost model" not in told.out


@pytest.mark.plugin
def test_explain_takes_a_genai_folder(command, tmp_path):
    folder = tmp_path / "decoder"
    written = command(
        "models", "decoder", "--preset", "tiny-llama", "--weights", "int4", "--out", folder
    )
    assert written.status == 0, written.err
    told = command("explain", folder)
    assert told.status == 0, told.err
    assert "decoder/model.onnx: Tenon claims" in told.out and "attention" in told.out
    told = command("explain", tmp_path)
    assert told.status == 1 and "genai_config.json" in told.err


@pytest.mark.plugin
def test_every_model_of_a_folder_is_explained(command, tmp_path):
    saved(linear(), tmp_path, "encoder.onnx")
    saved(linear(), tmp_path, "decoder.onnx")
    parts = {"encoder": {"filename": "encoder.onnx"}, "decoder": {"filename": "decoder.onnx"}}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": parts}))
    told = command("explain", tmp_path)
    assert "encoder.onnx: Tenon claims" in told.out and "decoder.onnx: Tenon claims" in told.out
    told = command("explain", tmp_path, "--json")
    assert told.status == 1 and "holds several models; give one of:" in told.err


@pytest.mark.plugin
def test_a_model_whose_nodes_are_out_of_order_is_drawn(command, tmp_path):
    page = tmp_path / "page.html"
    told = command("explain", saved(unsorted(), tmp_path), "--html", page)
    assert told.status == 0, told.err
    assert "Relu" in page.read_text()


@pytest.fixture
def four_bits(tmp_path):
    """64 x 48 in 4 bits, one scale for 32, and any number of rows."""
    model, _ = quantize_model(linear(), "int4")
    return saved(model, tmp_path)


@pytest.mark.plugin
def test_explain_estimates_kernels_of_the_host(command, four_bits):
    told = command("explain", four_bits, "--device", "cpu", "--kernels", "--json")
    report = json.loads(told.out)
    bandwidth = report["read_bandwidth_bytes_s"]
    assert bandwidth > 0 and report["device"]["threads"] > 0
    partition = report["graphs"][0]["partitions"][0]
    (product,) = [f for f in partition["fusions"] if f["kind"] == "tenon::ScaledDot"]
    compiled = {kernel["name"] for kernel in partition["kernels"]}
    assert {launch["kernel"] for launch in product["launches"]} <= compiled
    multiplies = [launch for launch in product["launches"] if "tile_rows" in launch]
    flops = {}
    for launch in multiplies:
        assert launch["isa"] and launch["tile_rows"] > 0 and launch["tile_columns"] > 0
        assert launch["weight_bytes"] >= 64 * 48 // 2
        for work in launch["work"]:
            flops[work["rows"]] = work["flops"]
            assert work["read_us"] == pytest.approx(launch["weight_bytes"] / bandwidth * 1e6)
            assert work["expected_us"] == max(work["read_us"], work["compute_us"]) > 0
    assert flops == {rows: 2 * rows * 64 * 48 for rows in (1, 128)}


@pytest.mark.plugin
def test_explain_prints_kernels_of_the_host(command, four_bits):
    told = command("explain", four_bits, "--device", "cpu", "--kernels").out
    assert "\nKernels\n" in told and "GB/s read" in told
    assert re.search(r"1  dot_row\w*_\d+ +\w+ +1 +1 x \d+ ", told)
    assert re.search(r"1  dot_rows\w*_\d+ +\w+ +128 +\d+ x \d+ ", told)


@pytest.mark.plugin
def test_only_asked_explain_measures_the_memory(command, four_bits):
    report = json.loads(command("explain", four_bits, "--device", "cpu", "--json").out)
    assert "read_bandwidth_bytes_s" not in report


def test_equal_launches_are_one_row_and_idle_ones_are_named():
    work = {"rows": 1, "tasks": 4, "flops": 2_000_000, "compute_us": 3.0, "read_us": 5.0}
    product = {
        "kernel": "dot_row_0",
        "isa": "neon",
        "tile_rows": 1,
        "tile_columns": 16,
        "weight_bytes": 2048,
        "work": [{**work, "expected_us": 5.0}],
    }
    idle = {"kernel": "attention_1", "isa": "neon", "work": []}
    fusions = [{"kind": "tenon::ScaledDot", "launches": [product, idle]}] * 2
    report = Report({"graphs": [{"partitions": [{"fusions": fusions}]}]})
    assert launch_rows(report) == [
        (2, "dot_row_0", "neon", 1, "1 x 16", 4, "2.0 KiB", "2.00", "3.0", "5.0", "5.0"),
        (2, "attention_1", "neon", "", "", "", "", "", "", "", ""),
    ]
