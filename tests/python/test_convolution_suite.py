"""The table of convolutions: measured on the host and on the stub GPU, its rows judged by hand."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import onnx
import pytest
from fake_meter import FakeMeter
from onnxruntime_ep_tenon.bench import convolution_suite
from onnxruntime_ep_tenon.bench.convolution_cases import (
    OCR_FILES,
    ConvolutionCase,
    host_cases,
    ocr_model,
    table_cases,
)
from onnxruntime_ep_tenon.bench.convolution_meter import (
    ConvolutionBench,
    MeasuredConvolution,
    fix_input,
    page_of_glyphs,
)
from onnxruntime_ep_tenon.bench.measuring_process import WrongResultError
from onnxruntime_ep_tenon.models.resnet import ResnetForm, ResnetShape, build_resnet
from test_command import failed, succeeded
from test_command import tenon as command
from test_gpu import run_script

SMALL = ConvolutionCase("resnet50", 1, 32, 32, "f32")


def test_the_table_has_every_bar():
    assert {case.name: case.bar for case in table_cases()} == {
        "resnet50 1x3x224x224 f16": 0.8,
        "resnet50 32x3x224x224 f16": 1.05,
        "ppocr detection 1x3x736x736 f32 tf32": 0.8,
        "ppocr detection 1x3x736x736 f32 exact": 0.8,
        "ppocr recognition 1x3x48x320 f32 tf32": 0.8,
        "ppocr recognition 1x3x48x320 f32 exact": 0.8,
    }
    assert all(case.bar is None for case in host_cases())


@pytest.mark.plugin
@pytest.mark.parametrize("case", [SMALL, replace(SMALL, element="f16")], ids=str)
def test_a_network_is_right_and_timed_beside_the_cpu_provider(case, tmp_path):
    measured = ConvolutionBench(tmp_path, 3, "cpu").measure(case)
    assert measured.tenon > 0 and measured.peer > 0 and measured.error < 2e-2
    assert "of 122 nodes" in measured.notes[0]


@pytest.mark.plugin
def test_a_wrong_result_is_told(tmp_path):
    bench = ConvolutionBench(tmp_path, 3, "cpu")
    bench.measure(SMALL)
    key, feed, expected = bench._expected
    bench._expected = key, feed, {name: y + 0.1 for name, y in expected.items()}
    with pytest.raises(WrongResultError, match="'logits'.*more than 0.02 %"):
        bench.measure(SMALL)


@pytest.mark.plugin
def test_a_network_on_a_gpu_that_the_stub_driver_plays():
    text = f"""
        from pathlib import Path
        from tempfile import TemporaryDirectory
        from onnxruntime_ep_tenon.bench.convolution_cases import ConvolutionCase
        from onnxruntime_ep_tenon.bench.convolution_meter import ConvolutionBench

        with TemporaryDirectory() as folder:
            bench = ConvolutionBench(Path(folder), 0, "gpu")
            print(bench.machine().gpu)
            print(bench.measure({replace(SMALL, tf32=True)!r}).error < 1e-2)
    """
    assert run_script(text).splitlines() == ["Stub GPU 0", "True"]


def test_pages_have_lines_of_marks():
    page = page_of_glyphs((2, 3, 96, 160), 0)
    assert set(np.unique(page)) == {-1.0, 1.0}
    assert 0.02 < (page < 0).mean() < 0.3 and not np.array_equal(page[0], page[1])


def test_sizes_are_fixed_and_those_of_the_file_kept():
    model = build_resnet(ResnetShape((1,), 8, 32, 10), ResnetForm("f32"))
    fix_input(model, (5, 3, 32, 32))
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    dims = inferred.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [5, 10]
    with pytest.raises(ValueError, match="a size of 32, not 64"):
        fix_input(model, (5, 3, 64, 64))


def test_models_are_found_in_a_folder_or_the_way_to_them_is_told(tmp_path):
    file = tmp_path / "inner" / OCR_FILES["ppocr detection"]
    file.parent.mkdir()
    file.touch()
    assert ocr_model("ppocr detection", str(tmp_path)) == file
    with pytest.raises(FileNotFoundError, match="rec_infer.onnx.*--models-dir"):
        ocr_model("ppocr recognition", str(tmp_path))


def arguments(**given) -> Namespace:
    usual = {"json": False, "out": None, "seed": 0, "device": "gpu", "only": None}
    return Namespace(**{**usual, "models_dir": None, "option": [], **given})


def test_rows_and_verdicts(tmp_path, capsys):
    names = [case.name for case in table_cases()]
    answers = [
        MeasuredConvolution(0.7e-3, 1e-3, 2.0, 1e-3, ["Tenon: all"]),
        MeasuredConvolution(3e-3, 2e-3, error=1e-3),
        MeasuredConvolution(1e-3, error=1e-3),
        WrongResultError("WRONG: output 'y'\nis off"),
        FileNotFoundError("no model"),
        MeasuredConvolution(1e-3, 2e-3, error=1e-6),
    ]
    meter = FakeMeter(dict(zip(names, answers, strict=True)))
    assert convolution_suite.run_convolution_suite(arguments(out=str(tmp_path)), meter) == 1
    assert meter.closed
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [row["met"] for row in written["rows"]] == [True, False, None, False, False, True]
    assert written["rows"][2]["other"] is None and written["rows"][3]["tenon"] is None
    assert written["problems"] == {names[3]: "WRONG: output 'y' is off", names[4]: "no model"}
    printed = capsys.readouterr().out
    assert f"{names[0]}: 700.0 us, other 1.00 ms, met; Tenon: all; error 1.0e-03" in printed
    assert "FAILED: no model" in printed and "nan" not in printed


def test_json_alone_is_printed(capsys):
    meter = FakeMeter({table_cases()[0].name: MeasuredConvolution(1e-3, 2e-3, error=0.0)})
    given = arguments(json=True, only="resnet50 1x*")
    assert convolution_suite.run_convolution_suite(given, meter) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ratio"] == pytest.approx(0.5) and row["bar"] == "<= 0.8"


@pytest.mark.plugin
def test_the_command_on_the_host(tmp_path):
    suite = ("bench", "--suite", "convolution", "--device")
    options = ("--option", "claim=all", "--option", "exclude_ops=Gemm")
    told = succeeded(command(*suite, "cpu", "--only", "resnet50*", "--out", tmp_path, *options))
    assert "Convolutions on the host" in told and (tmp_path / "bench.svg").is_file()
    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["options"] == {"claim": "all", "exclude_ops": "Gemm"}
    assert "Gemm 1" in written["rows"][0]["note"]
    assert "not 'gpu:3'" in failed(command(*suite, "gpu:3"))
    assert "no case is named 'x'" in failed(command(*suite, "cpu", "--only", "x"))
