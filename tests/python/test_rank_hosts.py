"""Ranks in network namespaces, as on several machines: an address each, a cable between them."""

import itertools
import os
import shutil
import subprocess
import time

import numpy as np
import pytest
from test_rank_faults import Scene, wait_for
from test_ranks import decoder_job, finish, needs_gloo

pytestmark = [pytest.mark.plugin, needs_gloo]

ADDRESSES = ("10.231.77.1", "10.231.77.2")
PORT = 29777
SILENCE_MS = 2000
NUMBERS = itertools.count()


def call(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)


def checked(*words: str) -> None:
    done = call(*words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class Hosts:
    """Two namespaces with a cable."""

    def __init__(self):
        tag = f"{os.getpid()}n{next(NUMBERS)}"
        self.names = [f"tenon{tag}a", f"tenon{tag}b"]
        for name in self.names:
            checked("ip", "netns", "add", name)
        self.within(0, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        self.within(0, "ip", "link", "set", "v1", "netns", self.names[1])
        for host, address in enumerate(ADDRESSES):
            self.within(host, "ip", "address", "add", f"{address}/24", "dev", f"v{host}")
            self.within(host, "ip", "link", "set", f"v{host}", "up")
            self.within(host, "ip", "link", "set", "lo", "up")

    def prefix(self, host: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.names[host])

    def within(self, host: int, *words: str) -> None:
        checked(*self.prefix(host), *words)

    def remove(self) -> None:
        for name in self.names:
            call("ip", "netns", "del", name)


@pytest.fixture
def hosts():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces need root and iproute2")
    probe = f"tenon{os.getpid()}p"
    if call("ip", "netns", "add", probe).returncode != 0:
        pytest.skip("this machine makes no network namespaces")
    call("ip", "netns", "del", probe)
    made = Hosts()
    yield made
    made.remove()


def spoil(hosts: Hosts, *netem: str) -> None:
    for host in range(2):
        words = ("tc", "qdisc", "add", "dev", f"v{host}", "root", "netem", *netem)
        done = call(*hosts.prefix(host), *words)
        if done.returncode != 0:
            pytest.skip(f"no netem here: {done.stderr.strip()}")


@pytest.mark.parametrize("netem", [(), ("delay", "5ms"), ("delay", "2ms", "loss", "2%")])
def test_the_logits_are_those_of_one_rank(tmp_path, hosts, netem):
    if netem:
        spoil(hosts, *netem)
    job = decoder_job(tmp_path, "llama", "int4")
    assert finish([job.start("alone")]) == [""]
    ranks = [
        job.start(
            str(rank), prefix=hosts.prefix(rank), tensor_parallel_size=2,
            tensor_parallel_rank=rank, collective_address=f"{ADDRESSES[0]}:{PORT}",
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


def test_a_cable_that_is_pulled_is_a_lost_rank(tmp_path, hosts):
    scene = Scene(
        "waits", tmp_path, size=2, address=f"{ADDRESSES[0]}:{PORT}", prefix=hosts.prefix,
        deadline_ms=2 * SILENCE_MS,
    )  # fmt: skip
    try:
        scene.begin(0)
        other, culprit = scene.ranks(0)
        wait_for(culprit, 0, "fault")
        pulled = time.time()
        hosts.within(1, "ip", "link", "set", "v1", "down")
        told = wait_for(other, 0, "error")
        assert "rank 1 (pid" in told["error"]
        assert f"is lost: nothing was heard of it for {SILENCE_MS} ms" in told["error"]
        assert told["time"] - pulled < 10
    finally:
        scene.end()
