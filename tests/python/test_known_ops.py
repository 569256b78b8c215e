"""What Tenon says it knows of each op, against the schemas of the newest runtime and of onnx.

An attribute, input or output that a schema has and the table has not is refused at run time, by
name. Here it must be listed too, so that somebody has thought of it when the runtime is raised.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx.defs
import pytest
from attention_inputs import runtime_knows
from conformance.node_cases import NEWER_ONNX
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

ROOT = Path(__file__).resolve().parents[2]
ANY = 1 << 20
if not (ROOT / "graph_partitioner").is_dir():
    pytest.skip("needs the sources", allow_module_level=True)

# Refused on purpose: elementwise broadcasting before opset 7, and what only opset 1 had.
LEGACY = {"broadcast", "consumed_inputs"}
ELEMENTWISE = {"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"}
REFUSED = {(op, "axis") for op in ELEMENTWISE} | {
    ("Constant", "sparse_value"),
    ("Constant", "value_string"),
    ("Constant", "value_strings"),
    ("MeanVarianceNormalization", "across_channels"),
    ("MeanVarianceNormalization", "normalize_variance"),
    ("Pad", "paddings"),
    ("Reshape", "shape"),
    ("Tile", "input 3"),
    ("Upsample", "height_scale"),
    ("Upsample", "width_scale"),
}


def known_ops() -> dict[str, tuple[int, int, set[str]]]:
    text = (ROOT / "graph_partitioner/ir/known_ops.cc").read_text()
    text = re.sub(r'"\s*\n\s*"', "", text)
    rows = re.findall(r'\{"([^"]+)",\s*(\w+),\s*(\w+),\s*"([^"]*)"\}', text)

    def count(word: str) -> int:
        return ANY if word == "kAny" else int(word)

    return {
        op: (count(inputs), count(outputs), {word.split("=")[0] for word in attributes.split()})
        for op, inputs, outputs, attributes in rows
    }


KNOWN = known_ops()


def described(schema) -> tuple[str, int, list[str], int, int]:
    domain = "" if schema.domain in ("", "ai.onnx") else f"{schema.domain}::"
    limits = schema.max_input, schema.max_output
    return domain + schema.name, schema.since_version, list(schema.attributes), *limits


def newer_onnx_schemas() -> list:
    """Of an onnx that is newer than the one installed, asked in a process of its own."""
    script = (
        "import json, onnx.defs\n"
        "rows = [(s.name, s.since_version, list(s.attributes), s.max_input, s.max_output)\n"
        "        for s in onnx.defs.get_all_schemas_with_history() if s.domain == '']\n"
        "print(json.dumps(rows))"
    )
    environment = os.environ | {"PYTHONPATH": str(NEWER_ONNX)}
    run = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True
    )
    return json.loads(run.stdout)


def beyond_the_table(schemas) -> list[tuple[str, int, str]]:
    found = []
    for op, version, attributes, inputs, outputs in schemas:
        if op not in KNOWN:
            continue
        most_inputs, most_outputs, known = KNOWN[op]
        beyond = set(attributes) - known - LEGACY
        if min(inputs, ANY) > most_inputs:
            beyond.add(f"input {inputs}")
        if min(outputs, ANY) > most_outputs:
            beyond.add(f"output {outputs}")
        found += [(op, version, name) for name in beyond if (op, name) not in REFUSED]
    return found


def test_every_schema_is_known_or_refused_on_purpose():
    schemas = [*runtime.get_all_operator_schema(), *onnx.defs.get_all_schemas_with_history()]
    assert beyond_the_table(map(described, schemas)) == []


@pytest.mark.skipif(not NEWER_ONNX.is_dir(), reason=f"no {NEWER_ONNX.name}")
def test_every_schema_of_a_newer_onnx_too():
    assert beyond_the_table(newer_onnx_schemas()) == []


@pytest.mark.skipif(
    not runtime_knows("GroupQueryAttention", "sliding_window_cache"),
    reason="an older runtime has fewer operators",
)
def test_every_op_of_the_table_has_a_schema():
    seen = {described(schema)[0] for schema in runtime.get_all_operator_schema()}
    missing = {op for op in KNOWN if not op.startswith("trt::")} - seen
    # Only builds with NCCL have them; provider/custom_ops.cc gives their schemas to others.
    collectives = {f"com.microsoft::{op}" for op in ("AllGather", "AllReduce", "AllToAll")}
    # An older spelling that only exporters write.
    assert missing <= collectives | {"com.microsoft::SimplifiedLayerNormalization"}


def test_every_op_that_the_sources_name_is_in_the_table():
    named = set()
    for folder in ("graph_partitioner", "kernels"):
        for path in (ROOT / folder).rglob("*.cc"):
            if "reference" not in path.parts:
                named |= set(re.findall(r'(?:is|op)\("((?:[a-z.]+::)?[A-Z]\w+)"', path.read_text()))
    named = {op for op in named if not op.startswith("tenon::")}
    assert len(named) > 20
    assert named - set(KNOWN) == set()


@pytest.mark.parametrize(
    ("op", "attribute"),
    [
        ("com.microsoft::GroupQueryAttention", "sliding_window_cache"),
        ("com.microsoft::PagedAttention", "kv_cache_layout"),
        ("Attention", "softmax_precision"),
    ],
)
def test_the_table_is_read(op, attribute):
    assert attribute in KNOWN[op][2]


def test_ops_that_no_kernel_takes_are_those_that_only_shape_rules_read():
    """`kSizesOnly` of kernels/selector.cc: what is told of an op depends on it. What other
    providers make of an op says nothing of kernels here."""
    listed = re.search(r"kSizesOnly = [^{]*\{(.*?)\}\);", _source("kernels/selector.cc"), re.S)
    folders = ("graph_partitioner", "kernels")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.cc")]
    lists = ("known_ops.cc", "selector.cc", "stock_kernels.cc")
    elsewhere = "".join(
        path.read_text()
        for path in files
        if "shape_rules" not in path.parts and path.name not in lists
    )
    sizes_only = [op for op in KNOWN if f'"{op}"' not in elsewhere]
    assert sorted(re.findall(r'"([^"]+)"', listed[1])) == sorted(sizes_only)


def _source(path: str) -> str:
    return (ROOT / path).read_text()
