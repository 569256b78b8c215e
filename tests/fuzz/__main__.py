"""python -m tests.fuzz --seconds 600 --seed 1: graphs at random, judged by stock ONNX Runtime.

`--cases 2000` tries so many instead: its outcome hangs on no clock.
`--in-place` binds outputs to memory of inputs and of each other, on the host or on a GPU.
`--case N` repeats one case and says what happened in it; `--write FOLDER` keeps its model.
Exit status 1 means findings: each is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="how long (60, where --cases is not given)")
    parser.add_argument("--cases", type=int, help="how many, however long they take")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", default="", help="a family or graph: products, movement.concat")
    parser.add_argument("--honest", action="store_true", help="declare nothing that is not so")
    parser.add_argument(
        "--in-place", action="store_true", help="bind every output to every input of its size"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--case", type=int, nargs="+", help="repeat these in one process and say what happens"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", type=Path, default=Path("build/fuzz"), help="where findings go")
    arguments = parser.parse_args()
    if arguments.case is not None:
        return campaign.repeat(arguments)
    return campaign.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
