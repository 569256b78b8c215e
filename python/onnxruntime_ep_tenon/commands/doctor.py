"""What this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import console
from ..library import get_library_path, minimum_runtime_version, version_tuple
from ..requirements import has
from . import arguments

SUMMARY = "say what this machine has, what is missing and what to do"

# From which onnxruntime on a form of model loads at all, whatever a plugin does.
_FORMS_SINCE = (
    ("NVFP4, INT4, INT8, FP8, attention", None),
    ("MXFP8 and MXFP4 with e8m0 scales", "1.27.0"),
    ("MatMulBlockQuantizedFp4Weight", "1.30.0"),
)
_FEATURES = {
    "x86_64": ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"),
    "aarch64": ("asimd", "asimddp", "i8mm", "bf16", "sve"),
}
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
    checks = [*_machine(), *_runtime(), *_plugin(), *_tools()]
    usable = all(check.state != "missing" for check in checks)
    if args.json:
        console.print_json({"usable": usable, "checks": [asdict(check) for check in checks]})
    else:
        marks = {"ok": "ok", "note": "note", "missing": "MISSING"}
        rows = [(marks[c.state], c.what, c.found, c.advice) for c in checks]
        console.table(["", "what", "found", "what to do"], rows)
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
    gpu = Path("/proc/driver/nvidia/version").exists()
    checks.append(
        Check("NVIDIA driver", "note", "present", "this version runs on the host CPU only")
        if gpu
        else Check("NVIDIA driver", "note", "none", "not needed: the host CPU is used")
    )
    return checks


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

        kinds = [device.device.type.name for device in devices()]
    except Exception as error:
        checks.append(Check("registration", "missing", "failed", str(error)))
        return checks
    state = "ok" if kinds else "missing"
    checks.append(Check("devices", state, ", ".join(kinds) or "none offered"))
    if kinds and has("onnx"):
        checks.append(_trial())
    return checks


def _trial() -> Check:
    """Runs one 4-bit product and compares it with float64: the whole chain works, or says why."""
    from ..models import reference, validate
    from ..models.scaled_dot import Problem, build_scaled_dot
    from ..session import create_session

    what = "an NVFP4 product"
    problem = Problem(n=64, k=64)
    try:
        model = build_scaled_dot("nvfp4", problem)
        inputs = problem.inputs(3)
        result = create_session(model, claim="all").run(None, inputs)
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
            advice = f"for {purpose}: pip install 'onnxruntime-ep-tenon[tools]'"
            checks.append(Check(name, "note", "not installed", advice))
    return checks
