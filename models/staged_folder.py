"""Files that get their names once all of them are written: a full disk leaves nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder to write in, whose files move into `folder` at the end, in place of older ones.

    Where that fails, what was there before stays as it was, and a folder that was made goes.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".tenon-", dir=folder) as work:
            yield Path(work)
            for file in sorted(Path(work).iterdir()):
                file.replace(folder / file.name)
    except BaseException as error:
        for path in made:
            path.rmdir()
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def write_whole(path: Path, text: str) -> None:
    """A file of text, or none; what is no file, such as a pipe, gets it as it comes."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with staged(path.parent) as work:
        (work / path.name).write_text(text, encoding="utf-8")
