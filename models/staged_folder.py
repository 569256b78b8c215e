"""Files that get their names once all of them are written: a full disk leaves nothing behind."""

from __future__ import annotations

import os
import secrets
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
            raise _told_of(folder, error) from error
        raise


def _told_of(place: Path, error: OSError) -> OSError:
    return OSError(error.errno, error.strerror, str(place))


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
    number = _unnamed(path.parent)
    if number is None:
        with staged(path.parent) as work, open(work / path.name, "wb") as file:
            yield file
            _keep(file, path)
        return
    with open(number, "wb") as file:
        yield file
        try:
            _keep(file, path)
            _name(number, path)
        except OSError as error:  # which has no name, or the one of a moment
            raise _told_of(path, error) from error


def _unnamed(folder: Path) -> int | None:
    """None: the file system has no such files, or nothing could name one later."""
    if not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError:
        return None


def _keep(file: BinaryIO, path: Path) -> None:
    file.flush()
    if path.exists():
        os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
    os.fsync(file.fileno())


def _name(number: int, path: Path) -> None:
    """Only a name can take the place of another: the file has one for a moment."""
    name = f".tenon-{secrets.token_hex(16)}.tmp"
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:  # with a folder's number os.link() follows the link of /proc
        os.link(f"/proc/self/fd/{number}", name, dst_dir_fd=folder)
        try:
            os.replace(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(name, dir_fd=folder)
            raise
    finally:
        os.close(folder)
