"""HTML pages that fetch nothing from elsewhere: text, tables, plots, graphs to search in."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from ..models.staged_folder import write_whole
from .graph_drawing import Drawing, escaped

_FOLDER = Path(__file__).parent
_TOOLS = """<div class="bar">
<input type="search" placeholder="node, op type or tensor" aria-label="search the graph">
<output aria-live="polite"></output>
<button type="button" data-action="previous" title="previous (p)">‹</button>
<button type="button" data-action="next" title="next (n)">›</button>
<button type="button" data-action="farther" title="zoom out (-)">−</button>
<button type="button" data-action="nearer" title="zoom in (+)">+</button>
<button type="button" data-action="fit" title="all of it (0)">fit</button>
</div>
<noscript><p class="hint">Searching and zooming need JavaScript.</p></noscript>
"""


class Page:
    """Collects sections and writes them as one file."""

    def __init__(self, title: str):
        self.title = title
        self._script = ""
        self._parts = [f"<h1>{escaped(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escaped(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{escaped(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{escaped(text)}</pre>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence], right=()) -> None:
        head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{' class=number' if i in right else ''}>{escaped(str(cell))}</td>"
                for i, cell in enumerate(row)
            )
            + "</tr>"
            for row in rows
        )
        table = f"<table><tr>{head}</tr>{body}</table>"
        self._parts.append(f'<div class="table">{table}</div>')

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """What the page is about and where it comes from: a name and a text each."""
        rows = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>" for name, text in facts)
        self._parts.append(f'<dl class="facts">{rows}</dl>')

    def graph(self, drawing: Drawing) -> None:
        """The drawing with its legend, a search box and the details of what is chosen."""
        legend = "".join(
            f'<li><button type="button" aria-pressed="false" data-key="{escaped(entry.key)}">'
            f'<i style="background:{entry.fill};border-color:{entry.edge}"></i>'
            f"{escaped(entry.text)}</button></li>"
            for entry in drawing.legend()
        )
        # A name may hold "</script>": no "<" stands in what is inside one.
        data = json.dumps(drawing.data(), separators=(",", ":")).replace("<", "\\u003c")
        self._parts.append(
            f'<div class="graph-view"><ul class="legend">{legend}</ul>{_TOOLS}<div class="view">'
            '<div class="drawing" tabindex="0" role="application" aria-label="the graph">'
            f'{drawing.picture()}</div><aside class="details" aria-live="polite"></aside></div>'
            f'<script type="application/json">{data}</script></div>'
        )
        self._script = (_FOLDER / "graph_view.js").read_text(encoding="utf-8")

    def image(self, png: Path, alternative: str) -> None:
        data = base64.b64encode(png.read_bytes()).decode()
        text = escaped(alternative)
        self._parts.append(f'<p><img alt="{text}" src="data:image/png;base64,{data}"></p>')

    def write(self, path: Path) -> None:
        style = (_FOLDER / "page.css").read_text(encoding="utf-8")
        head = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escaped(self.title)}</title><style>{style}</style>\n"
        )
        script = f"<script>{self._script}</script>" if self._script else ""
        write_whole(path, f"{head}{chr(10).join(self._parts)}{script}</html>\n")
