"""How many heads of keys and values this rank binds: what a token loop makes its caches of."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

from .input_sizes import is_cache

_SYMBOL = re.compile(r"kv_heads_of_(\d+)")
_HEADS, _SIZE, _CACHE_DIMS = 1, 3, 4


def local_kv_heads(session) -> dict[str, int]:
    """Of a session from `create_session`: each cache among its inputs, and its heads here.

    With several ranks and a file that `tenon ranks` wrote these are the rank's own; else all.
    """
    own = getattr(session, "tenon_own_heads", {})
    heads = {value.name: declared_heads(value) for value in session.get_inputs()}
    return {name: own.get(name, count) for name, count in heads.items() if count or name in own}


def declared_heads(value) -> int | None:
    """How many heads an input has on all ranks together; None: it is no cache."""
    dims = value.shape or []
    if len(dims) != _CACHE_DIMS:
        return None
    if isinstance(dims[_HEADS], int):
        # A size that the model leaves open: the name has to tell a cache from an image.
        return dims[_HEADS] if isinstance(dims[_SIZE], int) or is_cache(value.name) else None
    symbol = _SYMBOL.fullmatch(dims[_HEADS] or "")
    return int(symbol[1]) if symbol else None


@contextmanager
def reported_heads(options: dict):
    """Options to open a session with, and where its heads are to be found afterwards.

    What ranks were dealt is in the provider's report: one that nobody asked for is thrown away.
    """
    if str(options.get("tensor_parallel_size", 1)) == "1":
        yield options, dict
    elif options.get("report_file"):
        yield options, lambda: _own_heads(Path(options["report_file"]))
    else:
        with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
            file = Path(folder) / "report.json"
            yield {**options, "report_file": str(file)}, lambda: _own_heads(file)


def _own_heads(report: Path) -> dict[str, int]:
    if not report.is_file():
        return {}  # a model that ONNX Runtime folded to constants never reaches a provider
    graphs = json.loads(report.read_text(encoding="utf-8"))["graphs"]
    parts = [part["sharding"] for graph in graphs for part in graph["partitions"]]
    return {
        name: cache["heads"][sharding["rank"]]
        for sharding in parts
        if sharding
        for cache in sharding["caches"]
        for name in cache["inputs"]
    }
