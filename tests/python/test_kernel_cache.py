"""Kernels kept between processes: where by default, who turns it off, what the doctor tells."""

import json
import stat
from pathlib import Path

import pytest
from onnxruntime_ep_tenon import kernel_cache
from test_gpu import chain, command, run_script  # noqa: F401 (chain is a fixture)

DEFAULT = {"TENON_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": "/home/someone"}


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "/home/someone/.cache/tenon"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/tenon"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/tenon"),
        ({"XDG_CACHE_HOME": ""}, "/home/someone/.cache/tenon"),
        ({"TENON_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/caches"}, "/mine"),
        ({"TENON_CACHE_DIR": "off"}, ""),
        ({"TENON_CACHE_DIR": ""}, ""),
    ],
)
def test_the_default_folder(environment, folder, monkeypatch):
    for name, value in {**DEFAULT, **environment}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert kernel_cache.default_folder() == folder


def reported(model: Path, **environment) -> tuple[dict | None, str]:
    """What a session's report in a new process tells of its cache, and the log of Python."""
    text = f"""
        import json, logging, sys
        from onnxruntime_ep_tenon.report import session_with_report
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="LOG %(message)s")
        device, options = {environment.pop("device", "gpu")!r}, {environment.pop("options", {})!r}
        for _ in range(2):
            _, report = session_with_report({str(model)!r}, device, claim="all", **options)
            print(json.dumps(report.data["cache"]))
    """
    lines = run_script(text, **environment).splitlines()
    first = next(line for line in lines if not line.startswith("LOG"))
    return json.loads(first), "\n".join(line for line in lines if line.startswith("LOG"))


@pytest.mark.plugin
def test_a_second_process_compiles_nothing(chain, tmp_path):  # noqa: F811
    folder = tmp_path / "new" / "cache"
    cold, log = reported(chain, TENON_CACHE_DIR=str(folder))
    assert cold["folder"] == str(folder) and cold["problems"] == []
    assert cold["ptx"]["hits"] == 0 and cold["ptx"]["misses"] > 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert log.count(str(folder)) == 1 and "TENON_CACHE_DIR=off" in log
    warm, _ = reported(chain, TENON_CACHE_DIR=str(folder))
    assert warm["ptx"] == {"hits": cold["ptx"]["misses"], "misses": 0}
    assert kernel_cache.contents(str(folder))[0] == cold["ptx"]["misses"]


@pytest.mark.plugin
def test_options_go_before_the_environment(chain, tmp_path):  # noqa: F811
    given = {"TENON_CACHE_DIR": str(tmp_path / "unused")}
    named, log = reported(chain, options={"cache_dir": str(tmp_path / "named")}, **given)
    assert named["folder"] == str(tmp_path / "named") and log == ""
    assert reported(chain, options={"cache_dir": ""}, **given) == (None, "")
    assert reported(chain, TENON_CACHE_DIR="off") == (None, "")
    assert reported(chain, device="cpu", **given) == (None, "")
    assert not (tmp_path / "unused").exists()
    absent, _ = reported(chain, device="cpu", options={"target_arch": "sm_80"}, **given)
    assert absent["ptx"]["misses"] > 0  # compiling for a GPU that is not here is kept as well


@pytest.mark.plugin
def test_the_doctor_tells_folder_size_and_trouble(chain, tmp_path):  # noqa: F811
    def told(**environment) -> dict:
        checks = json.loads(command("doctor", "--json", **environment))["checks"]
        return next(check for check in checks if check["what"] == "kernel cache")

    folder = tmp_path / "cache"
    reported(chain, TENON_CACHE_DIR=str(folder))
    found = told(TENON_CACHE_DIR=str(folder))
    assert found["state"] == "ok" and f"{folder}: " in found["found"] and "MiB" in found["found"]
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert "symlink" in told(TENON_CACHE_DIR=str(link))["advice"]
    folder.chmod(0o777)
    assert "chmod go-w" in told(TENON_CACHE_DIR=str(folder))["advice"]
    assert told(TENON_CACHE_DIR="off")["found"] == "off"
