"""Where compiled kernels are kept between processes, unless a session says otherwise."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

_VARIABLE = "TENON_CACHE_DIR"


def default_folder() -> str:
    """`cache_dir` of sessions on a GPU; "": kernels are not kept.

    $TENON_CACHE_DIR, where `off` means none; else `tenon` in the user's cache directory.
    """
    given = os.environ.get(_VARIABLE)
    if given is not None:
        return "" if given in ("", "off") else given
    # XDG: a relative path is to be ignored.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return str(Path(cache, "tenon"))
    try:
        return str(Path.home() / ".cache" / "tenon")
    except RuntimeError:  # nobody's home
        return ""


@functools.cache
def tell_once(folder: str) -> None:
    logging.getLogger(__package__).info(
        "compiled kernels are kept in %s; %s=off or cache_dir='' keeps none", folder, _VARIABLE
    )


def contents(folder: str) -> tuple[int, int]:
    """Entries in the folder and their bytes."""
    sizes = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.startswith("tenon-") and entry.is_file(follow_symlinks=False):
                    sizes.append(entry.stat(follow_symlinks=False).st_size)
    except OSError:
        pass  # not made yet, or not ours to look into: the session tells
    return len(sizes), sum(sizes)
