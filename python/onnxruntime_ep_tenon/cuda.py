"""What this machine has of CUDA: the driver, its GPUs, and libraries from wheels."""

from __future__ import annotations

import ctypes
import os
import site
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS_VARIABLE = "TENON_LIBRARY_DIRS"
_DRIVER_VARIABLE = "TENON_DRIVER_LIBRARY"
_NO_DEVICE = 100


@dataclass
class Driver:
    """The NVIDIA driver as a process sees it."""

    path: str = ""
    version: int = 0  # 13000: CUDA 13.0
    gpus: list[str] = field(default_factory=list)
    problem: str = ""  # empty: it works

    @property
    def cuda(self) -> str:
        return f"{self.version // 1000}.{self.version % 1000 // 10}"


def find_driver() -> Driver:
    """Asks the driver itself; a broken or absent one is told, never raised."""
    driver = Driver(os.environ.get(_DRIVER_VARIABLE) or "libcuda.so.1")
    try:
        library = ctypes.CDLL(driver.path)
    except OSError as error:
        driver.problem = str(error)
        return driver
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    driver.version = version.value
    result = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if result == _NO_DEVICE:
        driver.problem = "it sees no GPU"
    elif result:
        driver.problem = f"it does not start (error {result})"
    for number in range(count.value):
        name = ctypes.create_string_buffer(256)
        library.cuDeviceGetName(name, len(name), number)
        driver.gpus.append(name.value.decode(errors="replace"))
    return driver


def library_folders() -> list[str]:
    """Folders of CUDA libraries that came as wheels: site-packages/nvidia/*/lib."""
    roots = {*site.getsitepackages(), sysconfig.get_path("purelib")}
    if site.ENABLE_USER_SITE:  # else Python takes no code from there: -I, -s, virtual environments
        roots.add(site.getusersitepackages())
    folders = [folder for root in sorted(roots) for folder in Path(root).glob("nvidia/*/lib")]
    return [str(folder) for folder in sorted(folders) if folder.is_dir()]


def point_to_libraries() -> None:
    """Tells the plugin of the wheels' folders, after those that the user named."""
    named = [folder for folder in os.environ.get(FOLDERS_VARIABLE, "").split(":") if folder]
    folders = named + [folder for folder in library_folders() if folder not in named]
    if folders:
        os.environ[FOLDERS_VARIABLE] = ":".join(folders)


def find_library(name: str, versions: tuple[str, ...]) -> str | None:
    """Where lib<name>.so.<version> would be loaded from, as the plugin looks for it."""
    named = [folder for folder in os.environ.get(FOLDERS_VARIABLE, "").split(":") if folder]
    for version in versions:
        file = f"lib{name}.so.{version}"
        for candidate in (file, *(f"{folder}/{file}" for folder in named + library_folders())):
            try:
                ctypes.CDLL(candidate)
            except OSError:
                continue
            return candidate
    return None
