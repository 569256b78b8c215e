"""The table of block-scaled products on a GPU: Tenon, the CUDA provider, cuBLAS, and the limit."""

from __future__ import annotations

import fnmatch
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import console, cuda
from ..drawing import plots
from ..requirements import has
from .machine import Limits, Machine, absent_peer_text
from .measuring_process import measure_in_turn
from .product_cases import Case, random_cases, table_cases
from .product_meter import Measured, Meter
from .rows import VERDICT, SuiteRow, microseconds, none_for_nan

_MOST_SECONDS, _MORE_PER_RANDOM_CASE = 400.0, 5.0  # no further case is begun after this
_FEW_TOKENS = 16  # up to here a plot of its own
_MEMORY_BOUND_UP_TO, _COMPUTE_BOUND_FROM = 64, 64  # tokens: which figure a row shows


@dataclass(frozen=True)
class ProductRow(SuiteRow):
    case: Case
    limits: Limits
    measured: Measured | None = None

    @property
    def limit(self) -> float:
        return self.limits.seconds(self.case, self.case.operand_bytes)

    @property
    def read_share(self) -> float:
        return self.case.bytes / self.limits.read / self.seconds("tenon")

    @property
    def teraflops(self) -> float:
        return self.case.flops / self.seconds("tenon") / 1e12

    @property
    def met(self) -> bool | None:
        """None: no bar, or one that cannot be judged without what was not measured."""
        if self.measured is None:
            return False
        bar, tenon = self.case.bar, self.seconds("tenon")
        conditions = [
            (tenon * 1e6, bar.microseconds),
            (-self.teraflops, bar.teraflops and -bar.teraflops),
            (-self.read_share, bar.read_share and -bar.read_share),
            (tenon / self.seconds("cublas"), bar.of_cublas),
            (tenon / self.seconds("peer"), bar.of_peer),
        ]
        reached = [
            None if math.isnan(value) else value <= most
            for value, most in conditions
            if most is not None
        ]
        if False in reached:
            return False
        return None if None in reached or not reached else True

    def as_json(self) -> dict:
        case = self.case
        figures = {
            "tenon_us": self.seconds("tenon") * 1e6,
            "peer_us": self.seconds("peer") * 1e6,
            "cublas_us": self.seconds("cublas") * 1e6,
            "limit_us": self.limit * 1e6,
            "tenon_over_peer": self.ratio,
            "tenon_over_cublas": self.seconds("tenon") / self.seconds("cublas"),
            "read_share": self.read_share,
            "teraflops": self.teraflops,
            "packed_over_file": self.seconds("packed_over_file"),
            "created_s": self.seconds("created"),
        }
        return {
            "case": case.name,
            **{name: getattr(case, name) for name in ("format", "n", "k", "m", "copies")},
            **none_for_nan(figures),
            "bar": str(case.bar),
            "met": self.met,
            "kernel": self.measured.kernel if self.measured else "",
            "notes": self.measured.notes if self.measured else [],
            "problem": self.problem,
        }


def run_product_suite(args, meter: Meter | None = None) -> int:
    cases = _cases(args)
    if meter is None:
        _require_gpu(args.device)
        meter = Meter(args.seed)
    say = (lambda *_: None) if args.json else console.say
    try:
        rows = _measure_all(cases, meter, say, args)
    finally:
        meter.close()
    result = _result(rows, meter.machine, args)
    if args.out:
        _write(Path(args.out), result)
        _plot(Path(args.out), rows)
    if args.json:
        console.print_json(result)
    else:
        _print(rows, meter.machine)
    return 1 if any(row.problem for row in rows) else 0


def _cases(args) -> list[Case]:
    cases = table_cases(args.quick) + random_cases(args.random, args.seed)
    if args.only:
        chosen = [case for case in cases if fnmatch.fnmatch(case.name, args.only)]
        if not chosen:
            names = ", ".join(case.name for case in cases)
            raise ValueError(f"no case is named '{args.only}'; there are: {names}")
        return chosen
    return cases


def _require_gpu(device: str) -> None:
    if device not in ("auto", "gpu", "gpu:0"):
        raise ValueError(f"the suite of products runs on the first GPU only, not on '{device}'")
    driver = cuda.find_driver()
    if driver.problem:
        raise RuntimeError(
            f"the suite of products needs a GPU, but the driver {driver.path} cannot be used: "
            f"{driver.problem}. `tenon doctor` says more."
        )


def _measure_all(cases: list[Case], meter, say, args) -> list[ProductRow]:
    limits = Limits.of(meter.machine)
    if not meter.machine.has_peer:
        say(absent_peer_text())
    if args.random:
        say(f"random shapes from seed {args.seed}")
    most = _MOST_SECONDS + _MORE_PER_RANDOM_CASE * args.random
    rows: list[ProductRow] = []
    for case, measured, problem, spent in measure_in_turn(cases, meter, most):
        rows.append(ProductRow(case, limits, measured, problem))
        say(f"[{len(rows)}/{len(cases)}] {case.name}: {_summary(rows[-1])} ({spent:.1f} s)")
        if args.out:
            # A run that is cut short leaves what it has.
            _write(Path(args.out), _result(rows, meter.machine, args))
    return rows


def _summary(row: ProductRow) -> str:
    if row.problem:
        return f"FAILED: {row.problem}"
    sides = {side: microseconds(row.seconds(side)) for side in ("peer", "cublas")}
    others = "".join(f", {side} {time}" for side, time in sides.items() if time)
    return f"{microseconds(row.seconds('tenon'))} us{others}"


def _result(rows: list[ProductRow], machine: Machine, args) -> dict:
    limits = Limits.of(machine)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": asdict(machine),
        "read_limit_bytes_s": limits.read,
        "flop_limit_s": None if math.isnan(limits.flops) else limits.flops,
        "limits": limits.source,
        "seed": args.seed,
        "rows": [row.as_json() for row in rows],
    }


def _write(folder: Path, result: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "products.json").write_text(json.dumps(result, indent=2) + "\n")


def _plot(folder: Path, rows: list[ProductRow]) -> None:
    """One plot per format for few tokens and one for many: how much of the limit each reaches."""
    if not has("matplotlib"):
        return
    groups: dict[str, list[ProductRow]] = {}
    for row in rows:
        if row.measured and not row.case.drawn:
            size = "few" if row.case.m <= _FEW_TOKENS else "many"
            groups.setdefault(f"{row.case.format}_{size}_tokens", []).append(row)
    sides = {"Tenon": "tenon", "CUDA provider": "peer", "cuBLAS, plain weights": "cublas"}
    for name, members in groups.items():
        shares = {
            label: [_share_of_limit(row, side) for row in members] for label, side in sides.items()
        }
        shown = {label: values for label, values in shares.items() if any(values)}
        labels = [f"M={row.case.m}\n{row.case.n}x{row.case.k}" for row in members]
        title = f"{name.replace('_', ' ')}: share of the limit"
        plots.bars(folder / f"products_{name}.png", title, "limit / time", labels, shown)


def _share_of_limit(row: ProductRow, side: str) -> float:
    share = row.limit / row.seconds(side)
    return 0.0 if math.isnan(share) else share


_COLUMNS = [
    "case", "tenon us", "CUDA provider us", "cuBLAS us", "ratio", "limit us", "reached", "bar", "",
    "kernel", "note",
]  # fmt: skip


def _print(rows: list[ProductRow], machine: Machine) -> None:
    limits = Limits.of(machine)
    console.heading(f"Products on {machine.gpu}, onnxruntime {machine.onnxruntime}")
    console.say(f"cuBLAS from torch {machine.torch}" if machine.torch else "no torch: no cuBLAS")
    console.say(
        f"read limit {limits.read / 1e12:.2f} TB/s ({limits.source}); copies in this run "
        f"{machine.copy_rate / 1e12:.2f} TB/s, read and written"
    )
    console.table(_COLUMNS, [_cells(row) for row in rows], right=(1, 2, 3, 4, 5))
    for row in rows:
        if row.problem:
            console.say(f"FAILED  {row.case.name}: {row.problem}")


def _cells(row: ProductRow) -> tuple:
    return (
        row.case.name,
        *(microseconds(row.seconds(side)) for side in ("tenon", "peer", "cublas")),
        "" if math.isnan(row.ratio) else f"{row.ratio:.2f}",
        microseconds(row.limit),
        _reached(row),
        str(row.case.bar),
        "FAILED" if row.problem else VERDICT[row.met],
        row.measured.kernel if row.measured else "",
        "; ".join(row.measured.notes) if row.measured else "see below",
    )


def _reached(row: ProductRow) -> str:
    if row.measured is None:
        return ""
    figures = []
    if row.case.m <= _MEMORY_BOUND_UP_TO:
        figures.append(f"{row.read_share:.0%} of read")
    if row.case.m >= _COMPUTE_BOUND_FROM:
        figures.append(f"{row.teraflops:.0f} TFLOP/s")
    return ", ".join(figures)
