"""Plain HTML pages with nothing fetched from elsewhere: text, tables, drawings, plots."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: left; padding: .25em .9em .25em 0; border-bottom: 1px solid #ddd;
         vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f5f5f5; padding: .8em; white-space: pre-wrap; overflow-wrap: anywhere }
.drawing { overflow: auto; max-height: 80vh; border: 1px solid #ddd }
img { max-width: 100% }
"""


class Page:
    """Collects sections and writes them as one file."""

    def __init__(self, title: str):
        self.title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence], right=()) -> None:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{' class=number' if i in right else ''}>{html.escape(str(cell))}</td>"
                for i, cell in enumerate(row)
            )
            + "</tr>"
            for row in rows
        )
        self._parts.append(f"<table><tr>{head}</tr>{body}</table>")

    def drawing(self, svg: str) -> None:
        self._parts.append(f'<div class="drawing">{svg}</div>')

    def image(self, png: Path, alternative: str) -> None:
        data = base64.b64encode(png.read_bytes()).decode()
        text = html.escape(alternative)
        self._parts.append(f'<p><img alt="{text}" src="data:image/png;base64,{data}"></p>')

    def write(self, path: Path) -> None:
        head = (
            f'<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style>"
        )
        path.write_text(head + "\n".join(self._parts) + "</html>\n", encoding="utf-8")
