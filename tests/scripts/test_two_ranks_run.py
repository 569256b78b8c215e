"""./run --nccl and --nvshmem of the bundle, with stand-ins for the programs of a GPU machine."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Says which variables it was given, and leaves what the real one leaves.
PROGRAM = """#!/bin/bash
for word in "$@"; do
  case $word in
    --gtest_output=xml:*) xml=${word#--gtest_output=xml:} ;;
    --gtest_filter=*) filter=${word#--gtest_filter=} ;;
  esac
done
echo "$(basename "$0") filter=${filter:-} mps=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-none}" \
  "library=${TENON_NCCL_LIBRARY:-}${TENON_NVSHMEM_LIBRARY:-}" >>calls
if [ -n "${TENON_TEST_FIGURES:-}" ]; then
  echo '{"engine": "nccl 2.32.3", "what": "all-reduce", "bytes": 8192, "us": 10.25}' \
    >>"$TENON_TEST_FIGURES"
fi
echo '<testsuites><testcase name="a" classname="b" status="run"/></testsuites>' >"$xml"
"""
MPS = """#!/bin/bash
[ -n "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 1
if [ "${1:-}" = -d ]; then echo "mps start" >>calls; else read -r word; echo "mps $word" >>calls; fi
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    write_program(folder / "run", (ROOT / "scripts/bundle_run.sh").read_text())
    for name in ("two_ranks_gpu_test", "nccl_gpu_test"):
        write_program(folder / "bin" / name, PROGRAM)
    write_program(tmp_path / "path/nvidia-cuda-mps-control", MPS)
    (folder / "python").symlink_to(ROOT / "python")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    return folder


def write_parts(folder: Path, engine: str, library: str) -> None:
    folder.mkdir(exist_ok=True)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as packed:
        content = b"a library"
        entry = tarfile.TarInfo(library)
        entry.size = len(content)
        packed.addfile(entry, io.BytesIO(content))
    parts = {f"{engine}.aa": archive.getvalue()[:100], f"{engine}.ab": archive.getvalue()[100:]}
    sums = "".join(f"{hashlib.sha256(part).hexdigest()}  {name}\n" for name, part in parts.items())
    (folder / f"{engine}.sha256").write_text(sums)
    for name, part in parts.items():
        (folder / name).write_bytes(part)


def run(
    bundle: Path, *arguments: str, python: Path | str = sys.executable
) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "PYTHON": str(python),
        "PATH": f"{bundle.parent / 'path'}:{os.environ['PATH']}",
    }
    return subprocess.run(
        [bundle / "run", *arguments],
        cwd=bundle.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nccl_runs_under_mps_and_without_it(bundle: Path):
    write_parts(bundle.parent / "parts", "nccl", "libnccl.so.2")
    done = run(bundle, "--nccl", "parts")
    assert done.returncode == 0, done.stdout + done.stderr
    library = bundle.parent / "parts/libnccl.so.2"
    assert library.read_bytes() == b"a library"
    calls = (bundle / "calls").read_text().splitlines()
    two = "two_ranks_gpu_test filter=*/TwoRanks"
    assert calls == [
        "mps start",
        f"{two}GpuTest.*/nccl* mps=50 library={library}",
        "mps quit",
        f"{two}GpuTest.*/nccl*:-*TimeOf* mps=none library={library}",
        f"{two}FaultGpuTest.*/nccl* mps=none library={library}",
        f"nccl_gpu_test filter= mps=none library={library}",
    ]
    figures = json.loads((bundle / "results/nccl/nccl.json").read_text())
    assert [row["run"] for row in figures] == ["mps", "alone", "lost"]
    assert figures[0]["us"] == 10.25
    assert "all-reduce" in done.stdout and "8 KiB  10.25 us" in done.stdout
    assert "4 passed, 0 failed" in done.stdout


def test_nvshmem_runs_under_mps_only(bundle: Path):
    write_parts(bundle.parent / "parts", "nvshmem", "libnvshmem_host.so.3")
    done = run(bundle, "--nvshmem", "parts")
    assert done.returncode == 0, done.stdout + done.stderr
    calls = (bundle / "calls").read_text().splitlines()
    assert [call.split(" ")[0] for call in calls] == ["mps", "two_ranks_gpu_test", "mps"]


def test_sessions_are_measured_under_mps(bundle: Path):
    write_parts(bundle.parent / "parts", "nccl", "libnccl.so.2")
    # Instead of Python, which asks for a GPU.
    stand_in = bundle.parent / "path/python"
    write_program(
        stand_in,
        f"""#!/bin/bash
case "$*" in
  *bench*)
    echo "$* mps=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE library=$TENON_NCCL_LIBRARY" >>calls
    exit 5
    ;;
  *) exec {sys.executable} "$@" ;;
esac
""",
    )
    done = run(bundle, "--nccl", "parts", "--bench", "--preset", "llama-8b", python=stand_in)
    assert done.returncode == 5, done.stdout + done.stderr
    calls = (bundle / "calls").read_text().splitlines()
    assert [calls[0], calls[2]] == ["mps start", "mps quit"]
    assert calls[1].startswith("-m onnxruntime_ep_tenon bench --suite ranks --device gpu --out ")
    library = bundle.parent / "parts/libnccl.so.2"
    assert calls[1].endswith(f"/nccl/sessions --preset llama-8b mps=50 library={library}")


def test_what_is_missing_or_broken_is_said(bundle: Path):
    assert "--nccl needs the folder of libnccl.so.2" in run(bundle, "--nccl").stderr
    (bundle.parent / "empty").mkdir()
    missing = run(bundle, "--nccl", "empty")
    assert missing.returncode != 0
    assert "has neither libnccl.so.2 nor its parts" in missing.stderr

    write_parts(bundle.parent / "parts", "nccl", "libnccl.so.2")
    part = bundle.parent / "parts/nccl.ab"
    part.write_bytes(part.read_bytes()[:-1])
    broken = run(bundle, "--nccl", "parts")
    assert broken.returncode != 0
    assert "nccl.ab: FAILED" in broken.stderr
    assert not (bundle / "calls").exists()


def test_without_mps_the_rest_runs_and_the_whole_fails(bundle: Path):
    write_program(bundle.parent / "path/nvidia-cuda-mps-control", "#!/bin/bash\nexit 3\n")
    write_parts(bundle.parent / "parts", "nccl", "libnccl.so.2")
    done = run(bundle, "--nccl", "parts")
    assert done.returncode != 0
    assert "MPS does not start" in done.stderr
    assert "mps: did not finish" in done.stdout
    assert "3 passed, 1 failed" in done.stdout
