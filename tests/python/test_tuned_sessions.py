"""Sessions with tuning records: what they change, what is dropped, what a miss says."""

import numpy as np
import pytest
from command_models import linear, saved
from google.protobuf import text_format
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.quantize import quantize_model
from onnxruntime_ep_tenon.report import session_with_report
from onnxruntime_ep_tenon.tuning_records import message_class
from test_gpu import run_script

pytestmark = pytest.mark.plugin

GPU = {"device": "gpu", "target_arch": "sm_90a"}
X = np.random.default_rng(3).standard_normal((5, 128)).astype(np.float32)


@pytest.fixture
def model(tmp_path):
    quantized, _ = quantize_model(linear(k=128, n=64), "int4")
    return saved(quantized, tmp_path)


def write(path, *records):
    path.write_text(text_format.MessageToString(message_class()(form=1, record=records)))
    return path


def ways_of(model, path, **options):
    """(the report, its fusion that has a choice) of a session that has a file without records."""
    _, report = session_with_report(model, tune_file=write(path), **options)
    (fusion,) = [fusion for fusion in report.fusions if fusion["tuning"]]
    return report, fusion


def record_of(report, fusion, note, way):
    tuning = report.data["tuning"]
    made = message_class("Record")(
        fusion=fusion["problem"],
        fingerprint=fusion["fingerprint"],
        microseconds=1.0,
        untuned_microseconds=2.0,
        date="2026-11-18T12:00:00Z",
        machine=tuning["machine"],
        versions=tuning["versions"],
    )
    made.rows.first, made.rows.last = note["first"], note["last"]
    made.kernel.candidate, made.kernel.skeleton = way["candidate"], way["skeleton"]
    for name, value in way["knobs"].items():
        made.kernel.knob.add(name=name, value=value)
    return made


def records_of(report, fusion, pick):
    return [record_of(report, fusion, note, pick(note["ways"])) for note in fusion["tuning"]]


def fusion_of(report, fingerprint):
    (fusion,) = [one for one in report.fusions if one["fingerprint"] == fingerprint]
    return fusion


def test_records_flip_the_kernel_on_the_host(model, tmp_path):
    path = tmp_path / "tune.textproto"
    report, fusion = ways_of(model, path, device="cpu")
    assert fusion["chosen"] == "packed"
    assert report.data["tuning"]["usable"] == 0
    write(path, *records_of(report, fusion, lambda ways: ways[-1]))
    session, tuned = session_with_report(model, "cpu", tune_file=path, require_tuned=1)
    changed = fusion_of(tuned, fusion["fingerprint"])
    assert changed["chosen"] == "plain" and all(note["tuned"] for note in changed["tuning"])
    assert tuned.data["tuning"]["usable"] == len(fusion["tuning"])
    untuned, report = session_with_report(model, "cpu", tune_file=path, tune="off")
    assert report.data["tuning"] is None
    for rows in (1, 5):
        (got,), (wanted,) = session.run(None, {"x": X[:rows]}), untuned.run(None, {"x": X[:rows]})
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_records_choose_configs_for_a_gpu(model, tmp_path):
    path = tmp_path / "tune.textproto"
    report, fusion = ways_of(model, path, **GPU)
    assert fusion["chosen"] == "pipelined"
    write(path, *records_of(report, fusion, lambda ways: ways[1]))
    _, tuned = session_with_report(model, tune_file=path, require_tuned=1, **GPU)
    changed = fusion_of(tuned, fusion["fingerprint"])
    assert changed["chosen"] == "pipelined"
    assert all(note["tuned"] for note in changed["tuning"]), changed["tuning"]
    before = [config["chosen"] for config in fusion["configs"]]
    after = [config["chosen"] for config in changed["configs"]]
    assert len(before) == len(after) and all(a != b for a, b in zip(before, after, strict=True))


def check_on_a_gpu(folder):
    """Where a driver plays a GPU: other configs, the same numbers."""
    model = saved(quantize_model(linear(k=128, n=64), "int4")[0], folder)
    path = folder / "tune.textproto"
    report, fusion = ways_of(model, path, device="gpu")
    assert report.data["tuning"]["versions"]["driver"]
    write(path, *records_of(report, fusion, lambda ways: ways[1]))
    tuned, report = session_with_report(model, "gpu", tune_file=path, require_tuned=1)
    untuned, _ = session_with_report(model, "gpu")
    changed = fusion_of(report, fusion["fingerprint"])
    assert changed["configs"][0]["chosen"] != fusion["configs"][0]["chosen"]
    for rows in (1, 5):
        (got,), (wanted,) = tuned.run(None, {"x": X[:rows]}), untuned.run(None, {"x": X[:rows]})
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def logits_of(session, config, spelling):
    """Of a prefill and of steps that come to every kernel of its attention and products."""
    names = [output.name for output in session.get_outputs()]
    random = np.random.default_rng(1)
    caches, past, told = decoder.inputs_for(config, spelling, 2, 1, past=0), 0, []
    for length in (7, 1, 1, 12, 1, 20):
        ids = random.integers(0, config.vocabulary, (2, length))
        feed = caches | decoder.step_inputs(spelling, ids, past)
        results = dict(zip(names, tensors.run(session, feed), strict=True))
        told.append(results["logits"].astype(np.float32))
        past += length
        caches = decoder.renamed_caches(results)
    return told


def check_decoder_on_a_gpu(folder):
    """Every choice of a decoder made otherwise, rows of one attention by different candidates."""
    config, spelling = ARCHITECTURES["llama"], Spelling("genai", "int4", "f16")
    model = saved(decoder.build_decoder(config, spelling), folder, "decoder.onnx")
    path = folder / "tune.textproto"
    untuned, report = session_with_report(model, "gpu", tune_file=write(path))
    records = {}
    for fusion in report.fusions:
        for note in fusion["tuning"]:
            key = fusion["fingerprint"], note["first"]
            records[key] = record_of(report, fusion, note, note["ways"][1])
    write(path, *records.values())
    tuned, report = session_with_report(model, "gpu", tune_file=path, require_tuned=1)
    assert any("flash_decode (rows" in fusion["chosen"] for fusion in report.fusions)
    wanted = logits_of(untuned, config, spelling)
    for got, logits in zip(logits_of(tuned, config, spelling), wanted, strict=True):
        error = np.sqrt(np.mean(np.square(got - logits)) / np.mean(np.square(logits)))
        assert error < 0.01, error


ON_A_GPU = """
    import pathlib, sys
    sys.path.insert(0, {tests!r})
    from test_tuned_sessions import check_decoder_on_a_gpu, check_on_a_gpu
    check_on_a_gpu(pathlib.Path({folder!r}))
    check_decoder_on_a_gpu(pathlib.Path({folder!r}))
    print("ok")
"""


def test_records_on_a_gpu_that_the_stub_driver_plays(request, tmp_path):
    text = ON_A_GPU.format(tests=str(request.path.parent), folder=str(tmp_path))
    assert run_script(text).split() == ["ok"]


def test_explain_shows_what_is_tuned_and_why_not(model, tmp_path, command):
    path = tmp_path / "tune.textproto"
    report, fusion = ways_of(model, path, device="cpu")
    records = records_of(report, fusion, lambda ways: ways[-1])
    write(path, records[0])
    told = command("explain", model, "--device", "cpu", "--option", f"tune_file={path}")
    assert told.status == 0
    assert "tuned: plain: " in told.out and "1.0 us measured, untuned 2.0 us" in told.out
    assert "by estimate: no record" in told.out


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: setattr(one.machine, "arch", "sm_80"), "measured on sm_80"),
        (lambda one: setattr(one.machine, "sm_count", 4096), "4096 threads"),
        (lambda one: setattr(one.versions, "tenon", "0.0.1"), "measured with Tenon 0.0.1"),
        (lambda one: setattr(one.kernel.knob[0], "value", 12345), "plain does not offer"),
        (lambda one: setattr(one.kernel, "candidate", "other"), "no candidate 'other'"),
    ],
)
def test_a_record_that_does_not_fit_is_ignored_with_a_reason(model, tmp_path, change, reason):
    path = tmp_path / "tune.textproto"
    report, fusion = ways_of(model, path, device="cpu")
    records = records_of(report, fusion, lambda ways: ways[-1])
    for record in records:
        change(record)
    write(path, *records)
    _, tuned = session_with_report(model, "cpu", tune_file=path)
    same = fusion_of(tuned, fusion["fingerprint"])
    assert same["chosen"] == "packed"
    assert all(not note["tuned"] and reason in note["text"] for note in same["tuning"])
    with pytest.raises(Exception, match="require_tuned=1: node .* has no tuning record"):
        session_with_report(model, "cpu", tune_file=path, require_tuned=1)


def test_a_truncated_file_costs_its_last_record(model, tmp_path):
    path = tmp_path / "tune.textproto"
    report, fusion = ways_of(model, path, device="cpu")
    write(path, *records_of(report, fusion, lambda ways: ways[-1]))
    path.write_text(path.read_text()[:-10])
    _, tuned = session_with_report(model, "cpu", tune_file=path)
    (problem,) = tuned.data["tuning"]["problems"]
    assert "was dropped" in problem and str(path) in problem
    notes = fusion_of(tuned, fusion["fingerprint"])["tuning"]
    assert [note["tuned"] for note in notes].count(False) == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tune": "always"}, "it takes: off | cached | on"),
        ({"tune_file": "/nowhere/file"}, "tuning file '/nowhere/file': No such file"),
        ({"tune_file": "/"}, "it is not a regular file"),
        ({"require_tuned": 1}, "require_tuned=1 needs records"),
        ({"require_tuned": 1, "tune": "off", "tune_file": "x"}, "require_tuned=1 needs records"),
    ],
)
def test_bad_options_fail_the_session(model, options, reason):
    with pytest.raises(Exception) as raised:
        session_with_report(model, "cpu", **options)
    assert reason in str(raised.value)


def test_records_travel_in_a_context_model(model, tmp_path, command):
    path, out = tmp_path / "tune.textproto", tmp_path / "model_ctx.onnx"
    report, fusion = ways_of(model, path, device="cpu")
    write(path, *records_of(report, fusion, lambda ways: ways[-1]))
    session, _ = session_with_report(model, "cpu", tune_file=path)
    told = command(
        "compile", model, "--device", "cpu", "--option", f"tune_file={path}", "--out", out
    )
    assert told.status == 0, told.err
    path.unlink()
    opened, report = session_with_report(out, "cpu")
    (kept,) = [one for one in report.fusions if one["chosen"] == "plain"]
    assert kept["tuning"] and all(note["tuned"] for note in kept["tuning"])
    (got,), (wanted,) = opened.run(None, {"x": X}), session.run(None, {"x": X})
    np.testing.assert_array_equal(got, wanted)
