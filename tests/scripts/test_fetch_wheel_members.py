"""Set-up takes headers out of wheels of hundreds of megabytes, piece by piece where it can."""

import http.server
import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "scripts/fetch_wheel_members.py"
WHEEL = "some_wheel-1.2-py3-none-manylinux_2_27_x86_64.manylinux_2_27_aarch64.whl"
HEADERS = {"some/include/a.h": b"// a\n", "some/include/b.h": b"// b\n" * 40000}


def wheel_bytes() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as wheel:  # stored, so that the library keeps its size
        wheel.writestr("some/include/a.h", HEADERS["some/include/a.h"])
        wheel.writestr("some/lib/libsome.so", os.urandom(3 << 20))
        wheel.writestr("some/include/b.h", HEADERS["some/include/b.h"])
        name = "some_wheel-1.2.dist-info"
        metadata = "Metadata-Version: 2.1\nName: some-wheel\nVersion: 1.2\n"
        wheel.writestr(f"{name}/METADATA", metadata)
        wheel.writestr(
            f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{name}/RECORD", "")
    return made.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """Lists one wheel and counts the bytes of it that it sent."""

    def __init__(self, ranges: bool):
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges, self.wheel, self.sent = ranges, wheel_bytes(), 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if not self.path.endswith(".whl"):
            return self.reply(200, f'<a href="/files/{WHEEL}">w</a>'.encode(), "text/html")
        body, asked = self.server.wheel, re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")
        if not (asked and self.server.ranges):
            return self.reply(200, body, "application/zip")
        first, last = int(asked[1]), int(asked[2])
        part = body[first : last + 1]
        self.server.sent += len(part)
        return self.reply(206, part, "application/zip", f"bytes {first}-{last}/{len(body)}")

    def reply(self, code: int, body: bytes, kind: str, range_: str = ""):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if range_:
            self.send_header("Content-Range", range_)
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass


def fetch(index: Index, folder: Path, requirement="some-wheel==1.2", pattern="*/include/*.h"):
    environment = {**os.environ, "PIP_INDEX_URL": index.address, "PIP_CONFIG_FILE": os.devnull}
    environment = {key: value for key, value in environment.items() if key.lower() != "http_proxy"}
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1"
    command = [sys.executable, SCRIPT, requirement, pattern, folder]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_members_come_without_the_rest(tmp_path):
    index = Index(ranges=True)
    result = fetch(index, tmp_path / "headers")
    assert result.returncode == 0, result.stderr
    found = {path.name: path.read_bytes() for path in (tmp_path / "headers").iterdir()}
    assert found == {Path(name).name: content for name, content in HEADERS.items()}
    assert index.sent < len(index.wheel) / 2


def test_nothing_that_fits_is_an_error_and_leaves_no_folder(tmp_path):
    result = fetch(Index(ranges=True), tmp_path / "headers", pattern="*.cuh")
    assert result.returncode != 0 and "holds nothing like *.cuh" in result.stderr
    assert not (tmp_path / "headers").exists()


@pytest.mark.parametrize("requirement", ["some-wheel==1.2", "some-wheel==9.9"])
def test_without_ranges_the_whole_wheel_is_asked_for(tmp_path, requirement):
    result = fetch(Index(ranges=False), tmp_path / "headers", requirement)
    assert "fetching the whole wheel" in result.stdout
    is_there = requirement.endswith("1.2")
    assert (result.returncode == 0) == is_there, result.stderr
    assert (tmp_path / "headers" / "b.h").exists() == is_there
