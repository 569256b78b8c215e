"""Writes docs/conformance.md: every node case, on stock ONNX Runtime and with Tenon in front.

python tests/python/conformance/write_table.py [docs/conformance.md]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance import outcome  # noqa: E402
from conformance.judge import judge_all  # noqa: E402
from conformance.node_cases import FAMILIES, NEWER_ONNX, TREE, all_cases  # noqa: E402

OTHERS = "other operators"
ALLOWED = "## Differences that are allowed"


def family_table(results: list[dict]) -> list[str]:
    lines = ["| family | cases | stock passes | Tenon in front passes | claimed whole | refused "
             "| unreachable |", "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for family in [*FAMILIES, OTHERS, None]:
        rows = [r for r in results if family is None or r["family"] == family]
        stock, ours = (Counter(r[who] for r in rows) for who in ("stock", "tenon"))
        whole = sum(r["whole"] for r in rows if r["tenon"] == outcome.PASSED)
        refused = len(rows) - ours[outcome.PASSED] - ours[outcome.UNREACHABLE]
        lines.append(
            f"| {family or '**all**'} | {len(rows)} | {stock[outcome.PASSED]} "
            f"| {ours[outcome.PASSED]} | {whole} | {refused} | {ours[outcome.UNREACHABLE]} |"
        )
    return lines


def gained(results: list[dict]) -> list[str]:
    names = [r["name"] for r in results
             if r["tenon"] == outcome.PASSED and r["stock"] != outcome.PASSED]  # fmt: skip
    return [f"- `{name}`" for name in names]


def not_passed(results: list[dict]) -> list[str]:
    lines = ["| case | state | reason |", "|---|---|---|"]
    for r in results:
        if r["tenon"] not in (outcome.PASSED, outcome.UNREACHABLE):
            text = " ".join(r["text"].split())[:160].replace("|", "\\|")
            lines.append(f"| `{r['name']}` | {r['tenon']} | {text} |")
    return lines


def unreachable(results: list[dict]) -> list[str]:
    names = [r["name"] for r in results if r["tenon"] == outcome.UNREACHABLE]
    return [f"- `{name}`" for name in names]


def allowed_differences(page: str) -> list[str]:
    """The section that people write, as the page has it."""
    _, heading, rest = page.partition(f"{ALLOWED}\n")
    return [heading + rest.partition("\n## ")[0].rstrip("\n"), ""] if heading else []


def document(results: list[dict], page: str) -> str:
    newer = NEWER_ONNX.name.replace("-", " ")
    parts = [
        "# Conformance",
        "",
        f"ONNX's backend node cases (those stored in onnx {onnx.__version__}, and the attention "
        f"cases of {newer}) in onnxruntime {onnxruntime.__version__}, first on its CPU provider "
        "alone, then with Tenon in front of it and the option `claim=all`. "
        f"`tests/python/conformance/write_table.py` writes this page and keeps its section "
        f'"{ALLOWED.removeprefix("## ")}".',
        "",
        *family_table(results),
        "",
        "*Claimed whole*: every node of the case that reached the provider ran in Tenon. "
        "*Refused*: neither Tenon nor the CPU provider has a kernel, or the result differs. "
        "*Unreachable*: the runtime refuses the model before any provider is asked.",
        "",
        *allowed_differences(page),
        "## Cases that run only with Tenon",
        "",
        *gained(results),
        "",
        "## Cases that do not pass",
        "",
        *not_passed(results),
        "",
        "## Unreachable cases",
        "",
        *unreachable(results),
        "",
    ]
    return "\n".join(parts)


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TREE / "docs/conformance.md"
    names = [case.name for case in all_cases()]
    judged = judge_all(names)
    results = [judged[name] for name in names]
    for result in results:
        result["family"] = result["family"] or OTHERS
        result["whole"] = 0 < result["nodes"] == result["claimed"]
        if result["stock"] == outcome.UNREACHABLE:
            result["tenon"] = outcome.UNREACHABLE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(document(results, target.read_text() if target.exists() else ""))
    counts = Counter(r["tenon"] for r in results)
    print(f"{target}: " + ", ".join(f"{count} {state}" for state, count in counts.most_common()))
    lost = [r["name"] for r in results
            if r["stock"] == outcome.PASSED and r["tenon"] != outcome.PASSED
            or r["tenon"] == "crashed"]  # fmt: skip
    for name in lost:
        print(f"stock passes, Tenon does not: {name}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
