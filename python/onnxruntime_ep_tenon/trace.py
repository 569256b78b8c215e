"""What ran when: ONNX Runtime's profile, Tenon's events among it, as a trace that browsers show."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .models.staged_folder import write_whole


class Recording:
    """One profile, from the session's settings to the file."""

    def __init__(self, target: str | None):
        self._target = Path(target) if target else None

    def end(self, session) -> None:
        if self._target is None:
            return
        profile = Path(session.end_profiling())
        # Not strict: seen on a GPU machine, a control character in the runtime's own text.
        events = json.loads(profile.read_text(), strict=False)
        document = {"displayTimeUnit": "ms", "traceEvents": [_readable(e) for e in events if e]}
        write_whole(self._target, json.dumps(document, indent=1) + "\n")


@contextmanager
def recording(settings, target: str | None) -> Iterator[Recording]:
    """Profiles a session made with these settings; nothing happens where no file is wanted."""
    if not target:
        yield Recording(None)
        return
    if not Path(target).resolve().parent.is_dir():
        raise FileNotFoundError(f"--trace {target}: there is no such folder")
    with tempfile.TemporaryDirectory(prefix="tenon-") as folder:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(folder) / "profile")
        yield Recording(target)


def _readable(event: dict) -> dict:
    """Tenon's events name the fusion; the nodes that it was made of go into the arguments."""
    nodes = event.get("args", {}).get("onnx_nodes")
    if nodes:
        event = {**event, "args": {**event["args"], "onnx_nodes": nodes.split("\n")}}
    return event
