"""Takes some files out of a wheel without fetching all of it.

    python scripts/fetch_wheel_members.py nvidia-cudnn-cu13==9.19.0.56 '*/include/*.h' FOLDER

Reads the wheel's directory and the wanted members by range requests; where the index does not
answer those, pip downloads the whole wheel. The index is pip's own: its configuration, else its
default.
"""

import fnmatch
import html.parser
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import urldefrag, urljoin

from pip._internal.models.index import PyPI
from pip._vendor import requests

READ_AHEAD = 1 << 18  # a wheel's directory and small members come in one or two requests


class NoRanges(Exception):
    """Why the wheel must be fetched whole."""


class RemoteFile(io.RawIOBase):
    """A file behind an address, read piece by piece."""

    def __init__(self, session: requests.Session, url: str):
        self.session, self.url = session, url
        self.position, self.held_from, self.held = 0, 0, b""
        probe = self.fetch(0, 0)
        self.size = int(probe.headers["Content-Range"].rpartition("/")[2])

    def fetch(self, first: int, last: int) -> requests.Response:
        answer = self.session.get(self.url, headers={"Range": f"bytes={first}-{last}"}, stream=True)
        if answer.status_code != 206 or "Content-Range" not in answer.headers:
            answer.close()
            raise NoRanges(f"the index answers {answer.status_code} to a range request")
        return answer

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.size}[whence]
        self.position = max(0, start + offset)
        return self.position

    def read(self, count: int = -1) -> bytes:
        end = self.size if count < 0 else min(self.size, self.position + count)
        if self.position < self.held_from or end > self.held_from + len(self.held):
            # Near the end zipfile looks for the directory, backwards.
            first = min(self.position, max(0, self.size - READ_AHEAD))
            last = min(self.size, max(end, first + READ_AHEAD)) - 1
            self.held_from, self.held = first, self.fetch(first, last).content
            if len(self.held) != last - first + 1:
                raise NoRanges("the index answers less than was asked for")
        start = self.position - self.held_from
        self.position = max(self.position, end)
        return self.held[start : start + max(0, end - self.held_from - start)]


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def index_address() -> str:
    for line in pip("config", "list").splitlines():
        key, _, value = line.partition("=")
        if key.strip().endswith(".index-url"):
            return value.strip().strip("'\"").rstrip("/")
    return PyPI.simple_url.rstrip("/")


class Links(html.parser.HTMLParser):
    """Addresses that a page of the index links to."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for key, value in attrs if tag == "a" and key == "href" and value]


def wheel_address(session: requests.Session, name: str, version: str) -> str:
    """Any of the version's wheels for Linux: what is taken out is the same in all."""
    answer = session.get(f"{index_address()}/{name}/", headers={"Accept": "text/html"})
    answer.raise_for_status()
    wanted = f"{name.replace('-', '_')}-{version}-*manylinux*.whl"
    for link in Links(answer.text).found:
        address = urldefrag(urljoin(answer.url, link)).url
        if fnmatch.fnmatch(address.rpartition("/")[2], wanted):
            return address
    raise NoRanges(f"the index links to no wheel of {name} {version}")


def take(wheel: zipfile.ZipFile, pattern: str, folder: Path) -> int:
    """Members by their own names alone, as one flat folder; how many there were."""
    members = [name for name in wheel.namelist() if fnmatch.fnmatch(name, pattern)]
    for name in members:
        (folder / Path(name).name).write_bytes(wheel.read(name))
    return len(members)


def take_from_index(name: str, version: str, pattern: str, folder: Path) -> int:
    with requests.Session() as session:
        session.verify = os.environ.get("PIP_CERT") or True
        try:
            remote = RemoteFile(session, wheel_address(session, name, version))
            with zipfile.ZipFile(remote) as wheel:
                return take(wheel, pattern, folder)
        except (NoRanges, requests.RequestException, zipfile.BadZipFile) as why:
            print(f"      fetching the whole wheel of {name}: {why}")
    with tempfile.TemporaryDirectory() as stage:
        options = ("-q", "--no-deps", "--only-binary", ":all:", "-d", stage)
        pip("download", *options, f"{name}=={version}")
        with zipfile.ZipFile(next(Path(stage).glob("*.whl"))) as wheel:
            return take(wheel, pattern, folder)


def main(requirement: str, pattern: str, folder: str) -> None:
    name, _, version = requirement.partition("==")
    stage = Path(f"{folder}.part")
    stage.mkdir(parents=True, exist_ok=True)
    if take_from_index(name, version, pattern, stage) == 0:
        raise SystemExit(f"fetch: {requirement} holds nothing like {pattern}")
    stage.rename(folder)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit("usage: fetch_wheel_members.py NAME==VERSION PATTERN FOLDER")
    main(*sys.argv[1:])
