"""Files that get their names once all of them are written: a full disk leaves nothing behind."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once all of it is on the disk, in place of an older one or a link.

    Where that fails the older one stays as it was. Where the file system has files without a name
    (O_TMPFILE), nothing stays behind of a process that is killed meanwhile.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: name a regular file or a new one")
    try:
        number = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError:
        with staged(path.parent) as work, open(work / path.name, "wb") as file:
            yield file
            _keep(file, path)
        return
    with open(number, "wb") as file:
        yield file
        _keep(file, path)
        _name(number, path)


def _keep(file: BinaryIO, path: Path) -> None:
    file.flush()
    if path.exists():
        os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
    os.fsync(file.fileno())


def _name(number: int, path: Path) -> None:
    """Only a name can take the place of another: the file has one for a moment."""
    with tempfile.TemporaryDirectory(prefix=".tenon-", dir=path.parent) as work:
        folder = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:  # with a folder of its own os.link() follows the link of /proc
            os.link(f"/proc/self/fd/{number}", path.name, dst_dir_fd=folder)
            os.replace(path.name, path, src_dir_fd=folder)
        except OSError as error:  # without the name of the moment
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(folder)
