"""What pyproject.toml cannot say: the version, and that the wheel holds a native library."""

import re
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent


def project_version() -> str:
    """The version in CMakeLists.txt, copied beside this file where a wheel is staged."""
    staged = HERE / "VERSION"
    if staged.exists():
        return staged.read_text().strip()
    text = (HERE.parent / "CMakeLists.txt").read_text()
    return re.search(r"project\(tenon VERSION (\S+)", text).group(1)


class NativeDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


class AnyPythonWheel(bdist_wheel):
    """The library speaks ONNX Runtime's C interface, not Python's: any Python 3 loads it."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    version=project_version(),
    distclass=NativeDistribution,
    cmdclass={"bdist_wheel": AnyPythonWheel},
)
