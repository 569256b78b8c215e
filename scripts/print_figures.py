"""Prints the figures that the programs of two ranks wrote, and puts them into one JSON file.

Each file holds a JSON object a line: what was measured, its figures, and which engine did it. Its
name, less the ending, says how it was run ("mps", "alone").
"""

import argparse
import json
from pathlib import Path

NAMES = {"us": "us", "reported_after_ms": "ms"}


def read(path: Path) -> list[dict]:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    return [{"run": path.stem, **json.loads(line)} for line in lines]


def figure(row: dict) -> str:
    return ", ".join(f"{row[key]:,} {unit}" for key, unit in NAMES.items() if key in row)


def size(row: dict) -> str:
    return f"{row['bytes'] / 1024:,.0f} KiB" if "bytes" in row else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    arguments = parser.parse_args()

    rows = [row for path in arguments.files if path.exists() for row in read(path)]
    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        columns = [
            f"{row['run']:8}",
            f"{row['engine']:16}",
            f"{row['what']:45}",
            f"{size(row):>10}",
        ]
        print("  ".join([*columns, figure(row)]))


if __name__ == "__main__":
    main()
