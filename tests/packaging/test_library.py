"""The plugin as users get it: what it exports, what it asks of the machine."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# What the wheel's tag manylinux_2_34 promises.
GLIBC_CEILING = (2, 34)
ALLOWED_NEEDED = re.compile(r"^(libc|libm|libgcc_s|ld-linux-(x86-64|aarch64))\.so\.\d+$")


@pytest.fixture(scope="module")
def library() -> Path:
    path = Path(
        os.environ.get("TENON_LIBRARY_PATH", ROOT / "build/release/lib/libonnxruntime_ep_tenon.so")
    )
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_exports_exactly_the_entry_points(library):
    exported = {line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", str(library))}
    assert exported == {"CreateEpFactories", "ReleaseEpFactory", "TenonFitCosts"}


def test_needs_no_newer_glibc_than_the_wheel_says(library):
    too_new = [
        line
        for line in lines_of("objdump", "-T", str(library))
        if (match := re.search(r"GLIBC_(\d+)\.(\d+)", line))
        and (int(match[1]), int(match[2])) > GLIBC_CEILING
    ]
    assert not too_new, "\n".join(too_new)


def test_needs_only_the_c_runtime(library):
    dynamic = "\n".join(lines_of("readelf", "-d", str(library)))
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed and not [name for name in needed if not ALLOWED_NEEDED.match(name)], needed
    assert "RUNPATH" not in dynamic and "RPATH" not in dynamic


def test_the_library_for_gloo_exports_its_table_and_needs_gloo(library):
    gloo = library.parent / "libtenon_gloo.so"
    if not gloo.exists():
        pytest.skip("libtenon_gloo.so is not built: libgloo-dev was not installed")
    exported = {line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", str(gloo))}
    assert exported == {"tenon_gloo_table"}
    assert "[libgloo.so.0]" in "\n".join(lines_of("readelf", "-d", str(gloo)))
    test_needs_no_newer_glibc_than_the_wheel_says(gloo)


def test_is_stripped_and_fits_a_wheel(library):
    assert not any(".symtab" in line for line in lines_of("readelf", "-SW", str(library)))
    assert library.stat().st_size < 60e6
