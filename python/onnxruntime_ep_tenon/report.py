"""The provider's own account of a session: what it claimed, what it left, and why."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

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
        plural = "" if self.partitions == 1 else "s"
        return f"{self.claimed} of {self.nodes} nodes in {self.partitions} partition{plural}"


def fusion_kind(fusion: dict) -> str:
    """The fusion's kind as people say it: tenon::ScaledDot is scaled_dot."""
    name = fusion["kind"].split("::")[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


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
    def coverage(self) -> Coverage:
        return Coverage(
            nodes=sum(graph["nodes"] for graph in self.graphs),
            claimed=sum(graph["claimed"] for graph in self.graphs),
            partitions=len(self.partitions),
        )

    def reasons(self) -> list[tuple[str, str, int]]:
        """Why nodes were left out: op, reason, how many; the most frequent first."""
        counts = Counter((node["op"], node["reason"]) for node in self.left_out)
        return [(op, reason, count) for (op, reason), count in counts.most_common()]


def session_with_report(model, device="auto", session_options=None, **options):
    """A session and the report that the provider wrote while making it."""
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        path = Path(options.pop("report_file", "") or Path(folder) / "report.json")
        session = create_session(model, device, session_options, report_file=path, **options)
        # A model that ONNX Runtime folded to constants never reaches a provider.
        return session, Report.load(path) if path.is_file() else Report({"graphs": []})
