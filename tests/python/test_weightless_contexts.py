"""Context models whose weights stay in the model's external data: the same bits, or an error."""

import json
import re
import shutil
import struct
from hashlib import sha256

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from context_bytes import name_data, table_of, with_table
from onnxruntime_ep_tenon import tensors
from onnxruntime_ep_tenon.context_models import ContextModel, compile_model
from onnxruntime_ep_tenon.models import decoder, mlp
from onnxruntime_ep_tenon.models.decoder_config import DecoderConfig
from onnxruntime_ep_tenon.models.scaled_dot import Problem, build_scaled_dot
from test_context_models import in_fresh_process, loadable, quantized, quiet
from test_context_models import two_partitions_around_a_convolution as around_conv

pytestmark = pytest.mark.plugin

PROBLEM = Problem(n=256, k=512)
PRODUCTS = ["plain", "nvfp4", "int4", "mxfp8", "fp8", "matmul_4bits", "nvfp4_weights_as_inputs"]
KEYS = [
    "ep.enable_weightless_ep_context_nodes",
    "ep.enable_weightless",
    "ep.enable_weightless_mode",
]


def cases() -> dict:
    """Name: what makes (the model, its inputs)."""
    found = {
        form: lambda form=form: (build_scaled_dot(form, PROBLEM), PROBLEM.inputs(5))
        for form in PRODUCTS
    }
    config = DecoderConfig()
    for format in (None, "nvfp4", "int4"):
        found[f"decoder-{format}"] = lambda format=format: (
            quantized(decoder.build_decoder(config), format),
            decoder.inputs_for(config, None, 1, 3, 4),
        )
    x = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    found["mlp"] = lambda: (mlp.build_gated_mlp(activation=next(iter(mlp.ACTIVATIONS))), {"x": x})
    found["around-conv"] = around_conv
    return found


def save(model, folder, location: str = "w.data", least: int = 256):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location=location, size_threshold=least)
    return path


def compiled(path, name: str = "c.onnx", **options) -> ContextModel:
    settings = options.pop("session_options", None) or quiet()
    options.setdefault("weights", False)
    return compile_model(
        path, path.with_name(name), "cpu", session_options=settings, claim="all", **options
    )[0]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For each case and form: what the model gives, and its context in a new process."""
    root = tmp_path_factory.mktemp("weightless")
    expected, written, jobs = {}, {}, []
    for name, make in cases().items():
        if not loadable(name):
            continue
        model, inputs = make()
        path = save(model, root / name)
        session = tenon.create_session(path, "cpu", quiet(), claim="all")
        expected[name] = [array.tobytes() for array in tensors.run(session, inputs)]
        for embed in (False, True):
            made = compiled(path, f"ctx_{embed}.onnx", embed=embed)
            written[name, embed] = made
            jobs.append(((name, embed), str(made.path), inputs))
        path.unlink()
    return expected, written, in_fresh_process(jobs, root)


@pytest.mark.parametrize("embed", [False, True], ids=["beside", "embedded"])
@pytest.mark.parametrize("name", cases())
def test_the_same_bits_with_weights_from_the_models_file(results, name, embed):
    if not loadable(name):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not load {name}")
    expected, written, found = results
    outputs, contexts = found[name, embed]
    assert outputs == expected[name], outputs if isinstance(outputs, str) else "other bits"
    assert any("w.data" in context["weight_files"] for context in contexts if context)
    assert all(context["recompiled"] == "" for context in contexts if context)
    model = written[name, embed]
    assert [(file.path.name, file.problem) for file in model.weight_files] == [("w.data", "")]
    assert "weights=outside" in model.origin
    assert not any(program["has_weights"] for c in model.contexts for program in c.programs)


def test_the_context_is_as_small_as_its_program(tmp_path):
    path = save(build_scaled_dot("int4", Problem(n=2048, k=2048)), tmp_path)
    without, whole = compiled(path, "small.onnx"), compiled(path, "whole.onnx", weights=True)
    small, large = (model.files[0].stat().st_size for model in (without, whole))
    weights = (tmp_path / "w.data").stat().st_size
    assert large > weights > 2 << 20
    assert small < 100_000


@pytest.mark.parametrize("key", KEYS)
def test_each_of_the_runtimes_keys_asks_for_it(tmp_path, key):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    settings = quiet()
    settings.add_session_config_entry(key, "1")
    model = compiled(path, session_options=settings, weights=True)
    assert [file.path.name for file in model.weight_files] == ["w.data"]


@pytest.mark.parametrize("key", KEYS)
def test_a_value_that_no_key_has(tmp_path, key):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    settings = quiet()
    settings.add_session_config_entry(key, "yes")
    with pytest.raises(Exception, match=key):
        compiled(path, session_options=settings, weights=True)


def test_weights_in_the_model_file_cannot_stay_there(tmp_path):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    settings = quiet()
    settings.add_session_config_entry("ep.enable_weightless_mode", "2")
    with pytest.raises(Exception, match="ep.enable_weightless_mode"):
        compiled(path, session_options=settings)


def test_weights_of_the_model_file_are_stored(tmp_path):
    """Nothing else could be read once the model is gone."""
    onnx.save(build_scaled_dot("nvfp4", PROBLEM), tmp_path / "model.onnx")
    expected = open_and_run(tmp_path / "model.onnx")
    model = compiled(tmp_path / "model.onnx")
    (tmp_path / "model.onnx").unlink()
    assert model.weight_files == []
    assert open_and_run(model.path) == expected


def test_the_context_moves_with_its_weights(tmp_path):
    """They may lie in a folder of their own, below the model's."""
    path = save(build_scaled_dot("nvfp4", PROBLEM), tmp_path / "a", "weights/w.data")
    expected = open_and_run(path)
    compiled(path)
    path.unlink()
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert open_and_run(tmp_path / "b" / "c.onnx") == expected


def test_a_context_elsewhere_wants_the_weights_there(tmp_path):
    path = save(build_scaled_dot("nvfp4", PROBLEM), tmp_path / "a")
    (tmp_path / "b").mkdir()
    out = tmp_path / "b" / "c.onnx"
    model, _ = compile_model(path, out, "cpu", session_options=quiet(), weights=False)
    assert [file.problem for file in model.weight_files] == ["missing"]
    with pytest.raises(Exception, match=r"weight file 'w\.data' is not there, in '.*b'.*put the"):
        open_and_run(out)
    shutil.copy(tmp_path / "a" / "w.data", tmp_path / "b")
    assert open_and_run(out) == open_and_run(path)


def test_a_session_that_writes_such_a_context_runs_as_well(tmp_path):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    settings = quiet()
    settings.add_session_config_entry("ep.context_enable", "1")
    settings.add_session_config_entry(KEYS[0], "1")
    (found,) = tenon.create_session(path, "cpu", settings).run(None, PROBLEM.inputs(5))
    assert found.tobytes() == open_and_run(path)
    assert open_and_run(tmp_path / "model_ctx.onnx") == found.tobytes()


def open_and_run(path) -> bytes:
    return tenon.create_session(path, "cpu", quiet()).run(None, PROBLEM.inputs(5))[0].tobytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path_factory.mktemp("whole"))
    compiled(path)
    path.unlink()
    return path.parent


@pytest.fixture
def folder(whole, tmp_path):
    """A copy to damage."""
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.999])
def test_a_changed_byte_of_a_weight_fails_the_session(folder, share):
    data = bytearray((folder / "w.data").read_bytes())
    data[int(share * len(data))] ^= 1
    (folder / "w.data").write_bytes(data)
    with pytest.raises(Exception, match=r"weight file 'w\.data': bytes .*SHA-256 differs"):
        open_and_run(folder / "c.onnx")


@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_weight_file_that_was_cut(folder, share):
    data = (folder / "w.data").read_bytes()
    (folder / "w.data").write_bytes(data[: int(share * len(data))])
    with pytest.raises(Exception, match=r"weight file 'w\.data' has \d+ bytes.*it was cut"):
        open_and_run(folder / "c.onnx")
    assert "cut" in ContextModel.read(folder / "c.onnx").weight_files[0].problem


def test_an_empty_weight_file(folder):
    (folder / "w.data").write_bytes(b"")
    with pytest.raises(Exception, match="weight file.*it is empty"):
        open_and_run(folder / "c.onnx")


def test_more_behind_the_weights_changes_nothing(folder, whole):
    """Somebody may have appended: what is used is the same."""
    with open(folder / "w.data", "ab") as file:
        file.write(b"more")
    assert open_and_run(folder / "c.onnx") == open_and_run(whole / "c.onnx")


@pytest.mark.parametrize("link", ["within", "out", "folder"])
def test_links_are_not_followed(folder, tmp_path, link):
    if link == "within":
        (folder / "w.data").rename(folder / "real.data")
        (folder / "w.data").symlink_to("real.data")
    else:
        (folder / "w.data").rename(tmp_path / "w.data")
        (folder / "w.data").symlink_to(tmp_path / "w.data")
    if link == "folder":
        (folder / "w.data").unlink()
        (folder / "w.data").mkdir()
    message = {"within": "symlink", "out": "link that leaves", "folder": "no regular file"}[link]
    with pytest.raises(Exception, match=message):
        open_and_run(folder / "c.onnx")


def test_a_link_is_refused_when_the_model_is_compiled(tmp_path):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    (tmp_path / "w.data").rename(tmp_path / "real.data")
    (tmp_path / "w.data").symlink_to("real.data")
    with pytest.raises(Exception, match="weight file.*symlink"):
        compiled(path)
    assert not (tmp_path / "c.onnx").exists() and not list(tmp_path.glob("*.bin"))


def renamed_in_context(model, name: bytes, other: bytes) -> None:
    """Calls a file by another name of the same length, with every digest right again."""
    (path,) = ContextModel.read(model).files
    old = path.read_bytes()
    table = table_of(old)
    data = old[: -len(table)].replace(name, other)
    (start,) = [m.start() for m in re.finditer(b"outside/", table)]
    name_size = struct.unpack_from("<Q", table, start - 8)[0]
    offset, length = struct.unpack_from("<QQ", table, start + name_size + 1)
    digests = [sha256(d[offset : offset + length]).digest() for d in (old, data)]
    data = with_table(data + table, table.replace(*digests))
    path.write_bytes(data)
    name_data(model, data)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (b"../w.d", "leaves the model's folder"),
        (b"/w.dat", "is an absolute path"),
        (b"w.dat2", "is not there"),
        (b"w\0data", "is no file name"),
    ],
)
def test_names_that_nobody_may_write(folder, name, message):
    """A context with sound digests that leads elsewhere."""
    shutil.copy(folder / "w.data", folder.parent / "w.d")
    renamed_in_context(folder / "c.onnx", b"w.data", name)
    with pytest.raises(Exception, match=message) as told:
        open_and_run(folder / "c.onnx")
    assert "weight file" in str(told.value)


@pytest.mark.parametrize("where", ["up", "absolute"])
def test_weights_outside_of_the_models_folder_cannot_stay_there(tmp_path, where):
    """Newer runtimes do not open such a model at all, and say so in words of their own."""
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path / "a")
    (tmp_path / "a" / "w.data").rename(tmp_path / "w.data")
    model = onnx.load(path, load_external_data=False)
    location = {"up": "../w.data", "absolute": str(tmp_path / "w.data")}[where]
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    onnx.save(model, path)
    with pytest.raises(
        Exception, match="leaves the model's folder|[Aa]bsolute path|escapes|outside"
    ):
        compiled(path)
    assert not (tmp_path / "a" / "c.onnx").exists()


def test_the_command_compiles_and_explains(command, tmp_path):
    path = save(build_scaled_dot("int4", PROBLEM), tmp_path)
    told = command("compile", path, "--device", "cpu", "--no-weights")
    assert told.status == 0, told.err
    assert "w.data" in told.out and "is there" in told.out
    explained = command("explain", tmp_path / "model_ctx.onnx", "--device", "cpu")
    assert explained.status == 0 and "opens as it was stored" in explained.out
    (tmp_path / "w.data").unlink()
    explained = command("explain", tmp_path / "model_ctx.onnx", "--device", "cpu")
    assert explained.status == 0, explained.err
    assert "missing" in explained.out and "put the file there" in explained.out
    told = command("explain", tmp_path / "model_ctx.onnx", "--device", "cpu", "--json")
    (file,) = json.loads(told.out)["weight_files"]
    assert file["problem"] == "missing" and file["bytes"] is None and file["needed_bytes"] > 0


def test_a_device_says_that_external_data_may_stay_outside():
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "TenonExecutionProvider"]
    assert devices
    assert {d.ep_metadata["weightless_support"] for d in devices} == {"external_only"}
