"""What a page says of the session that it shows: model, machine, threads, versions, options."""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from pathlib import Path

from . import console, cuda
from .library import version
from .report import Report


def threads_text(threads: int) -> str:
    return str(threads) if threads else f"ONNX Runtime's choice of {_cpus()} CPUs"


def device_text(report: Report) -> str:
    """Where the session runs, or which GPU it was compiled for without there being one."""
    device = report.data.get("device", {})
    arch = report.data.get("options", {}).get("target_arch")
    if arch and not device.get("present"):
        return f"compiled for {arch}; such a GPU need not be here, and the session does not run"
    details = " ".join(device.get("features", [])) or device.get("arch", "")
    return f"device: {device.get('kind', '?')} {device.get('name', '')} ({details})"


def cost_model_text(report: Report) -> str:
    """Where the times were measured that a GPU's configs are ranked by; empty on the host."""
    return report.data.get("device", {}).get("cost_model", "")


def extrapolation_texts(report: Report) -> list[str]:
    """Where the cost model goes past what it was fitted to, of the machine and of fusions."""
    device = report.data.get("device", {})
    texts = list(device.get("extrapolates", []))
    if (seed := device.get("cost_factors")) is not None:
        texts.append(f"constants are times random factors of seed {seed} (TENON_COST_FACTORS)")
    sizes = Counter(text for fusion in report.fusions if (text := fusion.get("extrapolates")))
    return texts + [
        f"{count} fusion{'s' if count > 1 else ''} of sizes that were not fitted: {text}"
        for text, count in sizes.items()
    ]


def session_facts(model: Path, report: Report, threads: int, options: dict) -> list[tuple]:
    """Names and texts, as pages.Page.facts takes them."""
    import onnxruntime

    given = ", ".join(f"{key}={value}" for key, value in options.items())
    return [
        ("model", f"{model} ({console.size(_bytes_on_disk(model))})"),
        *(("mended", note) for note in report.data.get("mended", [])),
        ("claimed", f"{report.coverage} by Tenon"),
        ("session", device_text(report).removeprefix("device: ")),
        *([("cost model", text)] if (text := cost_model_text(report)) else []),
        *(("extrapolates", text) for text in extrapolation_texts(report)),
        *machine_facts(report),
        ("threads", threads_text(threads)),
        ("runtime", f"onnxruntime {onnxruntime.__version__}, Tenon {version()}"),
        ("options", given or "defaults"),
        ("date", time.strftime("%Y-%m-%d %H:%M %Z")),
    ]


def machine_facts(report: Report) -> list[tuple]:
    cpu = f"{_cpu_name(report)}, {_cpus()} CPUs, {platform.system()} {platform.machine()}"
    driver = cuda.find_driver()
    names = ", ".join(driver.gpus)
    gpus = f"{names} (CUDA {driver.cuda})" if names else f"none ({driver.problem})"
    return [("machine", cpu), ("GPU", gpus)]


def _bytes_on_disk(model: Path) -> int:
    """With the files that hold its weights, as far as they are there."""
    import onnx

    from .models.rewrite import external_files

    names = external_files(onnx.load(model, load_external_data=False))
    beside = [model.parent / name for name in names]
    return sum(file.stat().st_size for file in (model, *beside) if file.is_file())


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


def _cpu_name(report: Report) -> str:
    """As the kernel names it; on aarch64 it does not, and the compiler's name has to do."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return report.data.get("host") or platform.processor() or "unnamed CPU"
