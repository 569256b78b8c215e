"""Ranks in network namespaces, as on several machines: an address each, a cable between them."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_rank_faults import Scene, wait_for
from test_ranks import decoder_job, finish, needs_gloo

pytestmark = [pytest.mark.plugin, needs_gloo]

HERE = Path(__file__).parent
ADDRESSES = ("10.231.77.1", "10.231.77.2")
PORT = 29777
SILENCE_MS = 2000
TOKEN = {"TENON_COLLECTIVE_TOKEN": "5e" * 32}  # addresses of several hosts ask for one
NUMBERS = itertools.count()


def call(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)


def checked(*words: str) -> None:
    done = call(*words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Hosts:
    """Two namespaces with a cable, which may be slow (ms) and lose a share of what it carries."""

    def __init__(self, delay: float = 0, lost: float = 0):
        tag = f"{os.getpid()}n{next(NUMBERS)}"
        self.names = [f"tenon{tag}a", f"tenon{tag}b"]
        self._cable: subprocess.Popen | None = None
        for name in self.names:
            checked("ip", "netns", "add", name)
        if delay or lost:
            self._lay_lossy_cable(delay, lost)
        else:
            self.within(0, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
            self.within(0, "ip", "link", "set", "v1", "netns", self.names[1])
        for host, address in enumerate(ADDRESSES):
            self.within(host, "ip", "address", "add", f"{address}/24", "dev", f"v{host}")
            self.within(host, "ip", "link", "set", f"v{host}", "up")
            self.within(host, "ip", "link", "set", "lo", "up")

    def _lay_lossy_cable(self, delay: float, lost: float) -> None:
        command = [sys.executable, HERE / "lossy_cable.py", *self.names, str(delay), str(lost)]
        self._cable = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self._cable.stdout.readline().strip() != "ready":
            why = self._cable.communicate()[1].strip().splitlines()[-1:]
            self.remove()
            pytest.skip(f"this machine makes no such cable: {why}")

    def prefix(self, host: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.names[host])

    def within(self, host: int, *words: str) -> None:
        checked(*self.prefix(host), *words)

    def remove(self) -> None:
        if self._cable is not None:
            self._cable.kill()
            self._cable.communicate()
        for name in self.names:
            call("ip", "netns", "del", name)


@pytest.fixture
def make_hosts():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces need root and iproute2")
    probe = f"tenon{os.getpid()}p"
    if call("ip", "netns", "add", probe).returncode != 0:
        pytest.skip("this machine makes no network namespaces")
    call("ip", "netns", "del", probe)
    made: list[Hosts] = []

    def make(*cable: float) -> Hosts:
        made.append(Hosts(*cable))
        return made[-1]

    yield make
    for hosts in made:
        hosts.remove()


@pytest.mark.parametrize("cable", [(), (5, 0), (2, 0.02)], ids=["fast", "5 ms", "2 ms, 2 % lost"])
def test_the_logits_are_those_of_one_rank(tmp_path, make_hosts, cable):
    hosts = make_hosts(*cable)
    job = decoder_job(tmp_path, "llama", "int4")
    assert finish([job.start("alone")]) == [""]
    ranks = [
        job.start(
            str(rank), TOKEN, prefix=hosts.prefix(rank), tensor_parallel_size=2,
            tensor_parallel_rank=rank, collective_address=f"{ADDRESSES[0]}:{PORT}",
            collective_backend="gloo",  # namespaces of one host would share memory
        )
        for rank in range(2)
    ]  # fmt: skip
    assert finish(ranks) == ["", ""]
    first, second = job.result("0"), job.result("1")
    for name, expected in job.result("alone").items():
        scale = np.sqrt(np.mean(np.square(expected)))
        # float32 sums in another order, two layers deep
        np.testing.assert_allclose(first[name], expected, rtol=1e-4, atol=2e-5 * scale)
        assert first[name].tobytes() == second[name].tobytes()


def test_a_cable_that_is_pulled_is_a_lost_rank(tmp_path, make_hosts, monkeypatch):
    hosts = make_hosts()
    monkeypatch.setenv("TENON_COLLECTIVE_TOKEN", TOKEN["TENON_COLLECTIVE_TOKEN"])
    scene = Scene(
        "waits", tmp_path, size=2, address=f"{ADDRESSES[0]}:{PORT}", prefix=hosts.prefix,
        deadline_ms=2 * SILENCE_MS, backend="gloo",
    )  # fmt: skip
    try:
        scene.begin(0)
        other, culprit = scene.ranks(0)
        wait_for(culprit, 0, "fault")
        pulled = time.time()
        hosts.within(1, "ip", "link", "set", "v1", "down")
        told = wait_for(other, 0, "error")
        # The store or TCP, whoever is first.
        why = f"(nothing was heard of it for {SILENCE_MS} ms|Connection timed out)"
        assert re.search(rf"rank 1 \(pid [^)]*\) is lost: {why}", told["error"]), told["error"]
        assert told["time"] - pulled < 10
    finally:
        scene.end()
