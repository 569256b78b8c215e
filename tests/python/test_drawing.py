"""The drawn graph and the pages around it: what they promise is in them."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_tenon as tenon
import pytest
from command_models import linear, saved
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_ep_tenon.drawing.drawn_graph import LEFT_OUT, REWRITTEN, drawn_graph
from onnxruntime_ep_tenon.drawing.graph_drawing import Drawing
from onnxruntime_ep_tenon.drawing.graph_layout import BOX_HEIGHT, BOX_WIDTH, place
from onnxruntime_ep_tenon.drawing.pages import Page
from onnxruntime_ep_tenon.models import encoder
from onnxruntime_ep_tenon.models.builder import FLOAT, GraphBuilder
from onnxruntime_ep_tenon.report import Report, session_with_report
from onnxruntime_ep_tenon.session_facts import session_facts

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x01]]>"


class PageReader(HTMLParser):
    """Tags, the text of facts and legend, and what the page's script reads."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.facts, self.legend, self._open = [], {}, [], []
        self.data = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append((tag, dict(attributes)))
        if tag in ("meta", "input", "img"):
            self._open.pop()
        if tag == "button" and "data-key" in dict(attributes):
            self.legend.append("")

    def handle_endtag(self, tag):
        while tag in [name for name, _ in self._open] and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.data = json.loads(data)
        elif tag == "dt":
            self.facts[data] = ""
        elif tag == "dd":
            self.facts[list(self.facts)[-1]] += data
        elif tag == "button" and "data-key" in attributes:
            self.legend[-1] += data


def page_of(model, report, folder) -> PageReader:
    page = Page("a title")
    page.graph(Drawing(model, report))
    page.write(folder / "page.html")
    return PageReader((folder / "page.html").read_text())


def value(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def looped() -> onnx.ModelProto:
    """A Loop whose body holds an If that reads the main graph's input, and a node without name."""
    then = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"], name="then/add")],
        "then", [], [value("t", FLOAT, ["rows", 4])],
    )  # fmt: skip
    otherwise = helper.make_graph(
        [helper.make_node("Relu", ["s"], ["e"], name="else/relu")],
        "otherwise", [], [value("e", FLOAT, ["rows", 4])],
    )  # fmt: skip
    two = numpy_helper.from_array(np.array(2, np.int64))
    nodes = [
        helper.make_node("Constant", [], ["two"], name="body/two", value=two),
        helper.make_node("Mod", ["i", "two"], ["odd"], name="body/mod"),
        helper.make_node("Cast", ["odd"], ["flag"], name="body/cast", to=TensorProto.BOOL),
        helper.make_node(
            "If", ["flag"], ["next"], name="body/if", then_branch=then, else_branch=otherwise
        ),
        helper.make_node("Identity", ["keep"], ["kept"]),
    ]
    body = helper.make_graph(
        nodes, "body",
        [value("i", TensorProto.INT64, []), value("keep", TensorProto.BOOL, []),
         value("s", FLOAT, ["rows", 4])],
        [value("kept", TensorProto.BOOL, []), value("next", FLOAT, ["rows", 4])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["steps", "", "x"], ["y"], name="main/loop", body=body)],
        "looped",
        [value("x", FLOAT, ["rows", 4]), value("steps", TensorProto.INT64, [])],
        [value("y", FLOAT, ["rows", 4])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def report_leaving(*nodes: tuple[str, str], graph="looped") -> Report:
    left = [{"node": name, "op": "?", "reason": reason} for name, reason in nodes]
    return Report({"graphs": [{"name": graph, "nodes": 9, "claimed": 0, "left_out": left}]})


def test_a_page_holds_every_node_tensor_and_shape(tmp_path):
    model = encoder.build_encoder(shape=encoder.SMALL)
    read = page_of(model, Report({}), tmp_path)
    drawn = [attributes for _, attributes in read.tags if "data-box" in attributes]
    assert sorted(int(box["data-box"]) for box in drawn) == list(range(len(read.data["boxes"])))
    names = {box["name"] for box in read.data["boxes"]}
    assert {node.name for node in model.graph.node if node.op_type != "Constant"} <= names
    tensors = {tensor["name"]: tensor for tensor in read.data["tensors"]}
    assert {name for node in model.graph.node for name in node.output if name} <= tensors.keys()
    assert {constant.name for constant in model.graph.initializer} <= tensors.keys()
    for constant in model.graph.initializer:
        sizes = ",".join(map(str, constant.dims))
        assert tensors[constant.name]["type"].endswith(f"[{sizes}]")
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    known = [info.name for info in inferred if info.type.tensor_type.HasField("shape")]
    assert len(known) > 50 and all("[" in tensors[name]["type"] for name in known)


def test_edges_tell_their_tensor_and_lead_to_its_readers(tmp_path):
    read = page_of(linear(), Report({}), tmp_path)
    edges = [attributes for _, attributes in read.tags if "data-tensor" in attributes]
    told = set()
    for edge in edges:
        tensor = read.data["tensors"][int(edge["data-tensor"])]
        assert int(edge["data-to"]) in tensor["readers"]
        reader = read.data["boxes"][int(edge["data-to"])]["op"]
        told.add((read.data["boxes"][tensor["source"]]["op"], tensor["type"], reader))
    assert told == {
        ("input", "f32[rows,64]", "MatMul"),
        ("MatMul", "f32[rows,48]", "Relu"),
        ("Relu", "f32[rows,48]", "output"),
    }


def test_bodies_are_drawn_beside_the_node_that_runs_them(tmp_path):
    model = looped()
    read = page_of(model, Report({}), tmp_path)
    graphs, boxes = read.data["graphs"], read.data["boxes"]
    assert [graph["title"] for graph in graphs] == [
        "looped",
        "body of Loop 'main/loop'",
        "else_branch of If 'body/if'",
        "then_branch of If 'body/if'",
    ]
    assert [boxes[graph["owner"]]["name"] for graph in graphs[1:]] == [
        "main/loop", "body/if", "body/if",
    ]  # fmt: skip
    (loop,) = [box for box in boxes if box["op"] == "Loop"]
    assert loop["bodies"] == [1]
    names = {box["name"] for box in boxes}
    assert {"then/add", "else/relu", "body/cast", "Identity(kept)"} <= names
    assert "body/two" not in names  # told where it is read
    (add,) = [box for box in boxes if box["name"] == "then/add"]
    read_from = [boxes[read.data["tensors"][tensor]["source"]]["name"] for tensor in add["inputs"]]
    assert read_from == ["s", "x"]  # the Loop's own input and the main graph's
    (branch,) = [box for box in boxes if box["name"] == "body/if"]
    captured = {read.data["tensors"][tensor]["name"] for tensor in branch["captured"]}
    assert captured == {"s", "x"} and len(loop["captured"]) == 1
    edges = [attributes for _, attributes in read.tags if "data-tensor" in attributes]
    into = {int(e["data-tensor"]) for e in edges if boxes[int(e["data-to"])] is branch}
    assert {read.data["tensors"][tensor]["name"] for tensor in into} == {"flag", "s"}
    (mod,) = [box for box in boxes if box["name"] == "body/mod"]
    two = read.data["tensors"][mod["inputs"][1]]
    assert two["origin"] == "constant" and two["type"] == "i64[]"


def test_no_boxes_and_no_frames_overlap():
    frame = place(drawn_graph(looped(), Report({})))
    spots = [(f.x, f.y, f.width, f.height) for f in frame.all()]
    assert len(spots) == 4
    big = place(drawn_graph(encoder.build_encoder(shape=encoder.SMALL), Report({})))
    inside = [(*big.at(box), BOX_WIDTH, BOX_HEIGHT) for box in big.graph.boxes]
    for rectangles in (spots, inside):
        for i, (x, y, width, height) in enumerate(rectangles):
            for left, top, wide, high in rectangles[:i]:
                apart = x >= left + wide or left >= x + width
                assert apart or y >= top + high or top >= y + height
    for source, target, _ in big.graph.edges():
        assert source.row < target.row


def test_hostile_names_stay_text(tmp_path):
    g = GraphBuilder("hostile", 21)
    x = g.input(HOSTILE, FLOAT, [2])
    g.node("Relu", [x], outputs=["y" + HOSTILE])
    g.output("y" + HOSTILE, FLOAT, [2])
    model = g.model()
    model.graph.node[0].name = "n" + HOSTILE
    model.graph.name = HOSTILE
    reason = ("n" + HOSTILE, "because " + HOSTILE)
    read = page_of(model, report_leaving(reason, graph=HOSTILE), tmp_path)
    assert not [tag for tag, _ in read.tags if tag == "img"]
    assert [tag for tag, _ in read.tags].count("script") == 2
    (relu,) = [box for box in read.data["boxes"] if box["op"] == "Relu"]
    assert relu["name"] == "n" + HOSTILE and relu["note"] == "left out: because " + HOSTILE
    assert read.data["tensors"][relu["inputs"][0]]["name"] == HOSTILE
    document = Drawing(model, report_leaving(reason)).document(HOSTILE)
    root = ElementTree.fromstring(document)
    assert any("</script>" in (text.text or "") for text in root.iter(f"{SVG}text"))


def test_a_page_fetches_nothing(tmp_path):
    page_of(linear(), Report({}), tmp_path)
    text = (tmp_path / "page.html").read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|import\(", text)


def test_a_node_is_coloured_by_its_own_graph_and_without_a_name_too():
    model = looped()
    report = report_leaving(("Identity(kept)", "gains nothing"), ("main/loop", "unknown op"))
    report.graphs[0]["name"] = "body"
    kinds = {
        box.name: box.verdict.kind
        for graph in drawn_graph(model, report).with_bodies()
        for box in graph.boxes
    }
    assert kinds["Identity(kept)"] == kinds["main/loop"] == LEFT_OUT
    assert kinds["body/cast"] == REWRITTEN


@pytest.mark.plugin
def test_the_legend_explains_every_colour_of_the_drawing(tmp_path):
    model = encoder.build_encoder(shape=encoder.SMALL)
    _, report = session_with_report(model, "cpu")
    read = page_of(model, report, tmp_path)
    kinds = {box["kind"] for box in read.data["boxes"]}
    assert {"scaled_dot", "attention", "loop", "rewritten"} <= kinds
    for kind in kinds:
        (line,) = [line for line in read.legend if line.startswith(f"{kind} (")]
        assert len(line.split(": ", 1)[1]) > 10 and "a fusion of Tenon's" not in line
    (border,) = [line for line in read.legend if line.startswith("border: tenon_0, ")]
    assert border.endswith(" nodes of the file")
    fills = {entry.key: entry.fill for entry in Drawing(model, report).legend()}
    assert len({fills[kind] for kind in kinds}) == len(kinds)


@pytest.mark.plugin
def test_ops_that_onnx_does_not_know_have_shapes_too(tmp_path):
    g = GraphBuilder("contributed", 21, domains=["com.microsoft"])
    x = g.input("x", FLOAT, ["rows", 8])
    h = g.node("FastGelu", [g.node("Exp", [x])], domain="com.microsoft", outputs=["h"])
    g.node("Relu", [h], outputs=["y"])
    g.output("y", FLOAT, ["rows", 8])
    _, report = session_with_report(g.model(), "cpu", claim="all")
    tensors = drawn_graph(g.model(), report).tensors
    assert tensors["h"].type == "f32[rows,8]"


@pytest.mark.plugin
def test_explain_names_machine_threads_runtime_and_options(command, tmp_path):
    path = saved(looped(), tmp_path)
    page = tmp_path / "page.html"
    given = ("--threads", 1, "--option", "claim=all", "--device", "cpu")
    told = command("explain", path, "--html", page, "--svg", tmp_path / "graph.svg", *given)
    assert told.status == 0, told.err
    read = PageReader(page.read_text())
    facts = read.facts
    assert str(path) in facts["model"] and "by Tenon" in facts["claimed"]
    assert re.search(r"\w+, \d+ CPUs, Linux", facts["machine"]) and facts["GPU"]
    assert facts["threads"] == "1" and facts["options"] == "claim=all"
    assert onnxruntime.__version__ in facts["runtime"] and tenon.__version__ in facts["runtime"]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", facts["date"])
    (loop,) = [box for box in read.data["boxes"] if box["op"] == "Loop"]
    assert loop["kind"] == LEFT_OUT and "left out: " in loop["note"]
    root = ElementTree.parse(tmp_path / "graph.svg").getroot()
    assert any("left to another provider" in (text.text or "") for text in root.iter(f"{SVG}text"))


def test_the_size_of_a_model_counts_its_weights_in_other_files(tmp_path):
    path = tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(linear(k=64, n=256), path, **options)
    facts = dict(session_facts(path, Report({"host": "my CPU"}), 0, {}))
    assert 64 * 256 * 4 < (tmp_path / "weights").stat().st_size + path.stat().st_size < 66 * 1024
    assert re.search(r"\(6[45]\.\d KiB\)", facts["model"])
    assert "ONNX Runtime's choice of" in facts["threads"] and facts["options"] == "defaults"


@pytest.mark.plugin
def test_a_page_is_written_though_nobody_reads_what_is_printed(command, monkeypatch, tmp_path):
    from onnxruntime_ep_tenon import console

    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(console, "say", closed)
    command("explain", saved(linear(), tmp_path), "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000
