"""The provider's own account of a session: what it claimed, what it left, and why."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from .session import create_session


@dataclass(frozen=True)
class Coverage:
    nodes: int
    claimed: int
    partitions: int

    @property
    def share(self) -> float:
        return self.claimed / self.nodes if self.nodes else 1.0

    def __str__(self) -> str:
        if not self.claimed:
            return f"none of {self.nodes} nodes"
        plural = "" if self.partitions == 1 else "s"
        return f"{self.claimed} of {self.nodes} nodes in {self.partitions} partition{plural}"


def fusion_kind(fusion: dict) -> str:
    """The fusion's kind as people say it: tenon::ScaledDot is scaled_dot."""
    name = fusion["kind"].split("::")[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_MOST_REASONS = 5
_MOST_NAMES = 3
_LONGEST_TEXT = 160


def shortened(text: str, longest: int = _LONGEST_TEXT) -> str:
    """Symbolic sizes can fill screens: both ends stay, --json has the whole."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def readable(text: str) -> str:
    """Names of symbolic sizes as the model writes them: 'n:1', not 'n%3a1'."""
    return unquote(text)


def plain_reason(reason: str) -> str:
    """Without the names of kernels where all of them say the same, and not too long."""
    return shortened(readable(_without_kernels(reason)))


def _without_kernels(reason: str) -> str:
    said = {_KERNEL_PREFIX.sub("", part, count=1) for part in reason.split("; ")}
    return said.pop() if len(said) == 1 else reason


# 'tenon::ScaledDot: packed: ' or 'Concat: slices: ' in front of what one candidate says.
_KERNEL_PREFIX = re.compile(r"^(?:tenon::\w+: |\w+: (?=[a-z]\w*: ))?(?:[a-z]\w*: )?(?=\w+[ (])")
# What differs between reasons of one kind: names, shapes, symbolic sizes and numbers.
_DETAILS = re.compile(r"'[^']*'|\[.*\]|\w+\(.*\)|\d+")


@dataclass(frozen=True)
class ReasonGroup:
    """Nodes that were left out for one reason, or for one that differs in names and numbers."""

    reason: str  # of the first, and how many there are of its kind
    nodes: list[dict]

    @property
    def operators(self) -> str:
        """The ops and how many of each: 'Relu 5, Mul 3'."""
        counts = Counter(node["op"] for node in self.nodes)
        return ", ".join(f"{op} {count}" for op, count in counts.most_common())

    def names(self, most: int = _MOST_NAMES) -> str:
        shown = [f"{node['op']} '{shortened(node['node'], 80)}'" for node in self.nodes[:most]]
        more = len(self.nodes) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Report:
    """The JSON that the provider writes to report_file, with the questions people ask of it."""

    data: dict

    @staticmethod
    def load(path: Path) -> Report:
        return Report(json.loads(Path(path).read_text()))

    @property
    def graphs(self) -> list[dict]:
        return self.data.get("graphs", [])

    @property
    def partitions(self) -> list[dict]:
        return [part for graph in self.graphs for part in graph.get("partitions", [])]

    @property
    def fusions(self) -> list[dict]:
        return [fusion for part in self.partitions for fusion in part.get("fusions", [])]

    @property
    def apart(self) -> list[dict]:
        """Products of one input that no kernel runs as one, and why."""
        return [products for part in self.partitions for products in part.get("apart", [])]

    @property
    def kernels(self) -> list[dict]:
        """Name, compile_ms and whether it was shared, of every kernel that the session uses."""
        return [kernel for part in self.partitions for kernel in part.get("kernels", [])]

    def kinds(self) -> set[str]:
        return {fusion_kind(fusion) for fusion in self.fusions}

    @property
    def left_out(self) -> list[dict]:
        return [node for graph in self.graphs for node in graph.get("left_out", [])]

    @property
    def cut_costs(self) -> list[str]:
        """What each Run on a GPU pays for nodes that the CPU runs in between, a sentence each."""
        return [graph["cuts"]["text"] for graph in self.graphs if graph.get("cuts")]

    @property
    def coverage(self) -> Coverage:
        return Coverage(
            nodes=sum(graph["nodes"] for graph in self.graphs),
            claimed=sum(graph["claimed"] for graph in self.graphs),
            partitions=len(self.partitions),
        )

    def reason_groups(self) -> list[ReasonGroup]:
        """Nodes left out, by reason, the most frequent first."""
        kinds: dict[str, list[dict]] = {}
        for node in self.left_out:
            kinds.setdefault(_DETAILS.sub("…", _said_of(node)), []).append(node)
        groups = [ReasonGroup(_reason_of(nodes), nodes) for nodes in kinds.values()]
        return sorted(groups, key=lambda group: -len(group.nodes))

    def reasons(self) -> list[tuple[str, str, int]]:
        """Why nodes were left out: op, reason, how many; the most frequent first."""
        counts = Counter((node["op"], node["reason"]) for node in self.left_out)
        return [(op, reason, count) for (op, reason), count in counts.most_common()]


def _said_of(node: dict) -> str:
    """Its reason, without its own operator in front: that is told beside it."""
    return _without_kernels(node["reason"].removeprefix(f"{node['op']}: "))


def _reason_of(nodes: list[dict]) -> str:
    alike = {shortened(readable(_said_of(node))): None for node in nodes}
    first = next(iter(alike))
    return f"{first} (and {len(alike) - 1} more like this)" if len(alike) > 1 else first


class SessionError(RuntimeError):
    """ONNX Runtime refused a session; the text adds what Tenon left out of it, and why."""

    def __init__(self, problem: str, report: Report):
        super().__init__(f"{problem}\n{_reasons_text(problem, report)}")
        self.problem = problem
        self.report = report


def _reasons_text(problem: str, report: Report) -> str:
    groups = report.reason_groups()
    # The node that the runtime complains about is the one whose reason is asked for.
    groups.sort(key=lambda group: not any(f"'{n['node']}'" in problem for n in group.nodes))
    total = f"{len(report.left_out)} of {report.coverage.nodes} nodes"
    lines = [f"Tenon left {total} to other providers:"]
    for group in groups[:_MOST_REASONS]:
        lines += [f"  {group.reason}", f"    {group.names()}"]
    if len(groups) > _MOST_REASONS:
        more = len(groups) - _MOST_REASONS
        lines.append(f"  and {more} more reason{'s' * (more > 1)}: see `tenon explain`")
    return "\n".join(lines)


def session_with_report(model, device="auto", session_options=None, **options):
    """A session and the report that the provider wrote while making it."""
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        path = Path(options.pop("report_file", "") or Path(folder) / "report.json")
        before = _stamp(path)
        try:
            session = create_session(model, device, session_options, report_file=path, **options)
        except Exception as error:
            report = Report.load(path) if _stamp(path) != before else Report({})
            if not report.left_out:
                raise
            raise SessionError(str(error).strip(), report) from error
        # A model that ONNX Runtime folded to constants never reaches a provider.
        return session, Report.load(path) if _stamp(path) != before else Report({"graphs": []})


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells a report that was just published from one that an earlier session left there."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_mtime_ns
