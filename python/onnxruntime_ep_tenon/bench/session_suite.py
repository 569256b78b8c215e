"""How long sessions take to open: nothing cached, kernels cached, from a context, and shared.

Each session is opened in a process of its own whose CUDA context is there; files are in the page
cache. Medians of three. On a GPU the CUDA provider opens the same files.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .. import console, cuda
from ..context_models import compile_model
from ..provider_sessions import has_cuda_provider, session_options
from .decoder_meter import DecoderPlan, write_model
from .decoder_suite import folder_for, plan_of
from .machine import absent_peer_text
from .rows import Row, print_rows, write_rows

_TIMES = 3


@dataclass(frozen=True)
class Opened:
    seconds: float
    anonymous_bytes: int = 0
    note: str = ""


def run_session_suite(args) -> int:
    plan = plan_of(args)
    if plan.on_gpu and not has_cuda_provider():
        console.say(absent_peer_text())
    rows: list[Row] = []
    for name in plan.formats:
        with tempfile.TemporaryDirectory(prefix="tenon-", dir=folder_for(plan, name)) as folder:
            console.say(f"{name}: writing {plan.preset} ...")
            model = write_model(plan, name, Path(folder) / name) / "model.onnx"
            rows += _rows_of(plan, name, model, Path(folder))
    if plan.on_gpu:
        with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
            rows += _encoder_rows(plan, Path(folder))
    print_rows(rows, f"sessions on {cuda.find_driver().gpus[0] if plan.on_gpu else 'the host'}")
    if args.out:
        result = {"date": time.strftime("%Y-%m-%d"), "rows": [row.as_json() for row in rows]}
        write_rows(Path(args.out), result, [row for row in rows if not math.isnan(row.other)])
    return 0


def _rows_of(plan: DecoderPlan, name: str, model: Path, folder: Path) -> list[Row]:
    if not plan.on_gpu:
        return _host_rows(plan, name, model, folder)
    other = _median("cuda", model, {}, {}).seconds if has_cuda_provider() else math.nan
    bytes_of_file = sum(f.stat().st_size for f in model.parent.glob("model.onnx*"))
    no_cache = {"CUDA_CACHE_DISABLE": "1"}
    caches = {"CUDA_CACHE_PATH": str(folder / "driver")}  # of what the driver assembles
    kept = {"device": plan.device, "cache_dir": str(folder / "kernels")}
    first = _median("tenon", model, {"device": plan.device, "cache_dir": ""}, no_cache)
    rows = [Row(f"{name}, nothing cached", first.seconds, other, "<= 4 s", first.seconds <= 4,
                first.note)]  # fmt: skip
    _open_once("tenon", model, kept, caches)
    rows.append(_against(f"{name}, kernels cached", "tenon", model, kept, caches, other, 1.5))
    context = folder / "ctx.onnx"
    console.say(f"{name}: compiling ...")
    compile_model(model, context, plan.device, None, False, session_options(0))
    _open_once("tenon", context, kept, caches)
    opened = _median("tenon", context, kept, caches)
    memory = opened.anonymous_bytes / bytes_of_file
    rows.append(Row(f"{name}, from a context", opened.seconds, other, "<= 1.0",
                    None if math.isnan(other) else opened.seconds <= other and memory <= 0.1,
                    f"RssAnon grows by {memory:.3f} of the file; {opened.note}"))  # fmt: skip
    second = _median("shared", context, kept, caches)
    rows.append(Row(f"{name}, second session that shares", second.seconds, math.nan, "<= 0.2 s",
                    second.seconds <= 0.2, second.note))  # fmt: skip
    return rows


def _host_rows(plan: DecoderPlan, name: str, model: Path, folder: Path) -> list[Row]:
    on_host = {"device": plan.device}
    direct = _median("tenon", model, on_host, {})
    context = folder / "ctx.onnx"
    compile_model(model, context, plan.device, None, False, session_options(plan.threads))
    return [_against(f"{name}, from a context", "tenon", context, on_host, {}, direct.seconds, 0.6,
                     "; other: from the model")]  # fmt: skip


def _encoder_rows(plan: DecoderPlan, folder: Path) -> list[Row]:
    from .gpu_suite import Bench

    console.say("the sentence encoder ...")
    model, context = folder / "model.onnx", folder / "ctx.onnx"
    model.write_bytes(Bench().encoders[0].SerializeToString())
    caches = {"CUDA_CACHE_PATH": str(folder / "driver")}
    kept = {"device": plan.device, "cache_dir": str(folder / "kernels")}
    rows = []
    compile_model(model, context, plan.device, None, False, session_options(0))
    for case, path, most in (("from a context", context, 0.06), ("kernels cached", model, 0.12)):
        _open_once("tenon", path, kept, caches)
        opened = _median("tenon", path, kept, caches)
        bar = f"<= {most * 1e3:.0f} ms"
        rows.append(Row(f"encoder NVFP4, {case}", opened.seconds, math.nan, bar,
                        opened.seconds <= most, opened.note))  # fmt: skip
    return rows


def _against(
    case: str, provider: str, model: Path, options: dict, environment: dict, other: float,
    most: float, note: str = "",
) -> Row:  # fmt: skip
    opened = _median(provider, model, options, environment)
    met = None if math.isnan(other) else opened.seconds <= most * other
    return Row(case, opened.seconds, other, f"<= {most}", met, opened.note + note)


def _median(provider: str, model: Path, options: dict, environment: dict) -> Opened:
    opened = [_open_once(provider, model, options, environment) for _ in range(_TIMES)]
    median = statistics.median(one.seconds for one in opened)
    return min(opened, key=lambda one: abs(one.seconds - median))


def _open_once(provider: str, model: Path, options: dict, environment: dict) -> Opened:
    told = subprocess.run(
        [sys.executable, "-m", f"{__package__}.open_session", provider, str(model)]
        + [f"{key}={value}" for key, value in options.items()],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(f"{provider} did not open {model}: {told.stderr.strip()[-400:]}")
    answer = json.loads(told.stdout.splitlines()[-1])
    phases = sorted(answer.get("phases_ms", {}).items(), key=lambda phase: -phase[1])[:3]
    note = ", ".join(f"{name} {ms:.0f} ms" for name, ms in phases)
    return Opened(answer["seconds"], answer.get("anonymous_bytes", 0), note)
