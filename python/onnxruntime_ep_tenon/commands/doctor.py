"""What this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import console, cuda, kernel_cache
from ..library import E8M0_SINCE, get_library_path, minimum_runtime_version, version_tuple
from ..requirements import has
from . import arguments

SUMMARY = "say what this machine has, what is missing and what to do"

# From which onnxruntime on a form of model loads at all, whatever a plugin does.
_FORMS_SINCE = (
    ("NVFP4, INT4, INT8, FP8, attention", None),
    ("MXFP8 and MXFP4 with e8m0 scales", E8M0_SINCE),
    ("MatMulBlockQuantizedFp4Weight", "1.30.0"),
)
_FEATURES = {
    "x86_64": ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"),
    "aarch64": ("asimd", "asimddp", "i8mm", "bf16", "sve"),
}
_WIDTH = 100  # of the table in a file or a pipe
_OLDEST_DRIVER = 12000  # CUDA 12.0
_ASSEMBLERS = (  # what it is called, its library, where it comes from
    ("nvJitLink", "nvJitLink", "nvidia-nvjitlink"),
    ("NVRTC", "nvrtc", "nvidia-cuda-nvrtc"),
)
_TOOLS = {
    "onnx": "quantize, explain drawings, demo",
    "ml_dtypes": "4-bit and 8-bit tensors",
    "matplotlib": "plots of bench and demo",
    "rich": "nicer tables",
    "tokenizers": "the demo's own tokenizer",
}


@dataclass
class Check:
    what: str
    state: str  # ok, note, missing
    found: str
    advice: str = ""


def add_arguments(parser) -> None:
    arguments.add_json(parser)


def run(args) -> int:
    checks = [*_machine(), *_gpu(), _kernel_cache(), *_runtime(), *_plugin(), *_tools()]
    usable = all(check.state != "missing" for check in checks)
    if args.json:
        console.print_json({"usable": usable, "checks": [asdict(check) for check in checks]})
    else:
        marks = {"ok": "ok", "note": "note", "missing": "MISSING"}
        rows = [(marks[c.state], c.what, c.found, c.advice) for c in checks]
        console.table(["", "what", "found", "what to do"], rows, width=_WIDTH)
        console.say()
        console.say("Tenon is ready." if usable else "Tenon cannot run yet: see MISSING above.")
    return 0 if usable else 1


def _machine() -> list[Check]:
    machine = platform.machine()
    checks = [Check("system", "ok", f"{platform.system()} {machine}, {os.cpu_count()} CPUs")]
    if machine not in _FEATURES or platform.system() != "Linux":
        checks[0] = Check(
            "system",
            "missing",
            f"{platform.system()} {machine}",
            "Tenon is built for Linux on x86_64 and aarch64",
        )
        return checks
    present = _cpu_flags()
    found = [feature for feature in _FEATURES[machine] if feature in present]
    checks.append(Check("vector units", "ok", " ".join(found) or "none beyond the baseline"))
    return checks


def _gpu() -> list[Check]:
    """A GPU is never needed: what is missing of one is a note."""
    driver = cuda.find_driver()
    if not driver.version:
        advice = "the host CPU is used; for a GPU install NVIDIA's driver, or pass the GPU into "
        advice += "the container (docker run --gpus all)"
        return [Check("NVIDIA driver", "note", f"none ({driver.problem})", advice)]
    found = f"CUDA {driver.cuda} ({driver.path})"
    if driver.version < _OLDEST_DRIVER:
        advice = "too old for Tenon: update the driver to release 525 or newer"
        return [Check("NVIDIA driver", "note", found, advice)]
    if driver.problem:
        advice = "check nvidia-smi and CUDA_VISIBLE_DEVICES; the host CPU is used until then"
        return [Check("NVIDIA driver", "note", f"{found}: {driver.problem}", advice)]
    checks = [Check("NVIDIA driver", "ok", found)]
    checks += [Check(f"GPU {number}", "ok", name) for number, name in enumerate(driver.gpus)]
    major = driver.version // 1000
    return checks + [_assembler(*names, major) for names in _ASSEMBLERS] + [_cudnn()]


def _assembler(name: str, library: str, package: str, newest: int) -> Check:
    path = cuda.find_library(library, tuple(str(v) for v in range(newest, 11, -1)))
    if path:
        return Check(name, "ok", path)
    advice = f"the driver assembles kernels instead, which takes longer: pip install {package}"
    return Check(name, "note", "not found", advice)


def _cudnn() -> Check:
    if path := cuda.find_library("cudnn", ("9",)):
        return Check("cuDNN", "ok", path)
    advice = "convolutions are left to other providers: pip install nvidia-cudnn-cu13"
    return Check("cuDNN", "note", "not found", advice)


def _kernel_cache() -> Check:
    what = "kernel cache"
    folder = kernel_cache.default_folder()
    if not folder:
        advice = "kernels for a GPU are compiled by each process: unset TENON_CACHE_DIR"
        return Check(what, "note", "off", advice)
    entries, size = kernel_cache.contents(folder)
    found = f"{folder}: {entries} entries, {size / 2**20:.1f} MiB"
    if problem := _folder_problem(Path(folder)):
        return Check(what, "note", found, problem)
    return Check(what, "ok", found)


def _folder_problem(folder: Path) -> str:
    """Why a session would not use the folder, and what to do; one that is absent is made."""
    if folder.is_symlink():
        return "not used, it is a symlink: name the folder itself in TENON_CACHE_DIR"
    if not folder.exists():
        return ""
    known = folder.stat()
    if not folder.is_dir() or known.st_uid != os.geteuid():
        return "not used, it is no folder of this user: name one in TENON_CACHE_DIR"
    if known.st_mode & 0o022:
        return f"not used, others may write to it: chmod go-w {folder}"
    return ""


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _runtime() -> list[Check]:
    floor = minimum_runtime_version()
    try:
        import onnxruntime
    except ImportError:
        advice = f"pip install 'onnxruntime>={floor}'"
        return [Check("onnxruntime", "missing", "not installed", advice)]
    version = onnxruntime.__version__
    if version_tuple(version) < version_tuple(floor):
        advice = f"it must be at least {floor}: pip install --upgrade onnxruntime"
        return [Check("onnxruntime", "missing", version, advice)]
    checks = [Check("onnxruntime", "ok", version)]
    for form, since in _FORMS_SINCE:
        if since is None or version_tuple(version) >= version_tuple(since):
            checks.append(Check(form, "ok", "loads"))
        else:
            advice = f"needs onnxruntime {since}: pip install --upgrade onnxruntime"
            checks.append(Check(form, "note", "this runtime refuses it", advice))
    return checks


def _plugin() -> list[Check]:
    try:
        path = get_library_path()
    except FileNotFoundError as error:
        return [Check("plugin library", "missing", "not found", str(error))]
    checks = [Check("plugin library", "ok", f"{path} ({console.size(Path(path).stat().st_size)})")]
    try:
        from ..session import devices

        offered = devices()
    except Exception as error:
        checks.append(Check("registration", "missing", "failed", str(error)))
        return checks
    state = "ok" if offered else "missing"
    checks.append(Check("devices", state, ", ".join(map(_named, offered)) or "none offered"))
    if has("onnx"):
        checks += [_trial(number, _named(device)) for number, device in enumerate(offered)]
    return checks


def _named(device) -> str:
    name = device.ep_metadata.get("cuda_device_name")
    return f"{device.device.type.name} ({name})" if name else device.device.type.name


def _trial(device: int, name: str) -> Check:
    """Runs one 4-bit product and compares it with float64: the whole chain works, or says why."""
    from ..models import reference, validate
    from ..models.scaled_dot import Problem, build_scaled_dot
    from ..session import create_session

    what = f"an NVFP4 product on {name}"
    problem = Problem(n=64, k=64)
    try:
        model = build_scaled_dot("nvfp4", problem)
        inputs = problem.inputs(3)
        result = create_session(model, device, claim="all").run(None, inputs)
        verdict = validate.compare("y", result[0], reference.evaluate(model, inputs)[0])
    except Exception as error:
        return Check(what, "missing", "does not run", str(error))
    if not verdict.ok:
        return Check(what, "missing", "gives wrong numbers", verdict.problem)
    return Check(what, "ok", f"runs, largest error {verdict.largest_error:.1e}")


def _tools() -> list[Check]:
    checks = []
    for name, purpose in _TOOLS.items():
        if has(name):
            checks.append(Check(name, "ok", "installed"))
        else:
            advice = f"for {purpose}: pip install {name}"
            checks.append(Check(name, "note", "not installed", advice))
    return checks
