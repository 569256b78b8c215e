"""What is given as a secret option is in no report, dump, context or message.

Which options are secrets is in docs/options.md, which tests/provider/options_test.cc holds to the
table of options.
"""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

pytestmark = pytest.mark.plugin

DOCUMENT = (Path(__file__).parents[2] / "docs/options.md").read_text()
SECRETS = re.findall(r"^\| `(\w+)` .*\*\*Secret\*\*", DOCUMENT, re.MULTILINE)

# A session that writes all that a session can write, and one of two ranks that refuses the value.
PROGRAM = """
import sys
import onnxruntime_ep_tenon as tenon
import onnxruntime
key, value, folder, planned = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 2
if planned == "context":
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", f"{folder}/m_ctx.onnx")
ranks = {"tensor_parallel_size": 2, "tensor_parallel_rank": 0}
own = {"ranks": {**ranks, "collective_deadline_ms": 300},
       "plan": {**ranks, "tensor_parallel_plan": 1}, "context": {}}[planned]
try:
    tenon.create_session(f"{folder}/m.onnx", "cpu", options, claim="all", dump_dir=f"{folder}/dump",
                         report_file=f"{folder}/report.json", **own, **{key: value})
    print("opened")
except Exception as error:
    print("refused", error)
"""


def write_model(folder):
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["m", 64])],
        [value("y", TensorProto.FLOAT, ["m", 64])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())


def test_there_are_secrets():
    assert SECRETS == ["collective_token"]


@pytest.mark.parametrize("planned", ["plan", "context", "ranks"])
@pytest.mark.parametrize("value", ["5e" * 32, "no-token-but-secret"], ids=["valid", "invalid"])
@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_is_written_nowhere(tmp_path, key, value, planned):
    write_model(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, key, value, str(tmp_path), planned],
        capture_output=True,
        timeout=120,
        check=False,
    )
    told = run.stdout + run.stderr
    assert b"opened" in told or b"refused" in told, told
    assert value.encode() not in told
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert value.encode() not in path.read_bytes(), path
    if planned == "context":
        assert '"given"' in (tmp_path / "report.json").read_text()
