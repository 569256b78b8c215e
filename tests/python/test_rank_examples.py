"""The examples over two ranks, as docs/distributed.md starts them: the tokens of one rank, once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from onnxruntime_ep_tenon.models import decoder
from onnxruntime_ep_tenon.models.decoder_config import ARCHITECTURES, Spelling
from onnxruntime_ep_tenon.models.decoder_weights import SeededWeights
from test_ranks import KNOWN, free_port

pytestmark = pytest.mark.plugin

EXAMPLE = Path(__file__).parents[2] / "examples/python/generate.py"
SECONDS = 120


def python_example(folder: Path, ranks: str) -> list:
    options = ["--tokens", "1,2,3", "--count", "10", "--device", "cpu"]
    return [sys.executable, EXAMPLE, folder, *options, "--ranks", ranks]


def cpp_example(folder: Path, ranks: str) -> list:
    plugin = Path(tenon.get_library_path()).resolve()
    program = plugin.parent.parent / "bin" / "generate"
    if not program.is_file():
        pytest.skip(f"{program} is not built")
    capi = Path(onnxruntime.__file__).parent / "capi"
    runtime = sorted(capi.glob("libonnxruntime.so.*"))[0]
    return [program, runtime, plugin, folder, "1,2,3", "10", f"tensor_parallel_size={ranks}"]


def environment(**more: str) -> dict:
    return {key: value for key, value in os.environ.items() if key not in KNOWN} | more


def by_hand(command: list, **more: str) -> list[str]:
    """RANK and WORLD_SIZE, as a loop of a shell sets them; what each rank printed."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True,
            env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                            MASTER_PORT=port, **more),
        )
        for rank in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=SECONDS)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return printed


def by_torchrun(command: list) -> list[str]:
    """Its variables; the program itself comes with a package of gigabytes."""
    return by_hand(command, TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE="2", OMP_NUM_THREADS="1")


def by_mpirun(command: list) -> list[str]:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("there is no mpirun (Debian: openmpi-bin)")
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [mpirun, "-n", "2", "--oversubscribe", *command],
        stdout=subprocess.PIPE, text=True, timeout=SECONDS, env=environment(**allowed), check=True,
    )  # fmt: skip
    return [done.stdout.strip(), ""]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    spelling = Spelling("genai", "int4", "f32")
    decoder.write_decoder(folder, ARCHITECTURES["llama"], spelling, SeededWeights())
    return folder


@pytest.fixture(scope="module")
def by_heads(whole, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ranks") / "decoder"
    command = [sys.executable, "-m", "onnxruntime_ep_tenon", "ranks", whole / "model.onnx"]
    subprocess.run([*command, "--out", out], check=True, timeout=SECONDS)
    return out


@pytest.fixture(scope="module")
def expected(whole) -> str:
    done = subprocess.run(
        python_example(whole, "1"), stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True,
        env=environment(),
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize("caches", ["whole", "by_heads"])
@pytest.mark.parametrize("example", [python_example, cpp_example])
@pytest.mark.parametrize("launch", [by_hand, by_torchrun, by_mpirun])
def test_two_ranks_print_what_one_does(request, expected, launch, example, caches):
    assert len(expected.split()) == 10
    folder = request.getfixturevalue(caches)
    assert launch(example(folder, "auto")) == [expected, ""]


@pytest.mark.parametrize("example", [python_example, cpp_example])
def test_without_a_launcher_auto_is_one_rank(by_heads, expected, example):
    done = subprocess.run(
        example(by_heads, "auto"), stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True,
        env=environment(),
    )  # fmt: skip
    assert done.stdout.strip() == expected
