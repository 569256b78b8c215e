"""Which GPU a process of several takes: that of its number on the machine."""

from types import SimpleNamespace

import pytest
from onnxruntime_ep_tenon import session


def offer(monkeypatch, gpus: int, **variables: str) -> None:
    kinds = ["GPU"] * gpus + ["CPU"]
    offered = [SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name=k))) for k in kinds]
    monkeypatch.setattr(session, "devices", lambda: offered)
    for name in session._LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("variable", session._LOCAL_RANK)
def test_each_process_takes_its_own(monkeypatch, variable):
    offer(monkeypatch, 4, **{variable: "2"})
    for wanted in ("gpu", "auto"):
        assert session._of_local_rank(wanted, {"tensor_parallel_size": "auto"}) == "gpu:2"


@pytest.mark.parametrize("wanted", ["cpu", "gpu:1", 0])
def test_who_names_a_device_gets_it(monkeypatch, wanted):
    offer(monkeypatch, 4, LOCAL_RANK="2")
    assert session._of_local_rank(wanted, {"tensor_parallel_size": 4}) == wanted


def test_one_visible_gpu_is_the_one(monkeypatch):
    offer(monkeypatch, 1, LOCAL_RANK="3")
    assert session._of_local_rank("gpu", {"tensor_parallel_size": 4}) == "gpu"


@pytest.mark.parametrize("options", [{}, {"tensor_parallel_size": 1}])
def test_a_session_that_is_alone_takes_the_first(monkeypatch, options):
    offer(monkeypatch, 4, LOCAL_RANK="2")
    assert session._of_local_rank("gpu", options) == "gpu"


def test_more_processes_than_gpus_are_told(monkeypatch):
    offer(monkeypatch, 2, LOCAL_RANK="2")
    with pytest.raises(ValueError, match="process 2 of its machine, which has 2 GPUs"):
        session._of_local_rank("gpu", {"tensor_parallel_size": "auto"})
