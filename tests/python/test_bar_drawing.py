"""Bars as SVG: what is drawn is what was measured."""

import re
from xml.etree import ElementTree

import pytest
from onnxruntime_ep_tenon.bench.rows import Row
from onnxruntime_ep_tenon.drawing.bar_drawing import bars_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_high_as_their_values():
    text = bars_svg("a < b", ["one\ntwo", "three"], {"ours": [0.5, 1.0], "theirs": [2.0, 4.0]})
    root = ElementTree.fromstring(text)
    assert len(text) < 3000
    # The page, two squares of the legend, then the bars.
    heights = [float(r.get("height")) for r in root.findall(f"{SVG}rect")[3:]]
    assert heights == pytest.approx([25, 50, 100, 200], abs=0.1)
    texts = [t.text for t in root.findall(f"{SVG}text")]
    assert {"a < b", "ours", "theirs", "one", "two", "three", "0.5", "4"} <= set(texts)


def test_marks_stand_where_bars_of_that_height_would_end():
    text = bars_svg("", ["a", "b"], {"x": [1.0, 2.0]}, [2.0, None])
    (mark,) = re.findall(r'<line x1="[^"]*" x2="[^"]*" y1="([^"]*)"[^>]*dasharray', text)[1:]
    tops = [float(y) for y in re.findall(r'<rect x="[^"]*" y="([^"]*)" width="96', text)]
    assert float(mark) == tops[1]


def test_nothing_is_drawn_of_zeros():
    assert 'height="0.0"' in bars_svg("", ["a"], {"x": [0.0]})


@pytest.mark.parametrize(
    ("bar", "most"), [("<= 0.5", 0.5), ("<= 2 s", None), ("+10 us", None), ("", None)]
)
def test_only_ratios_are_marked(bar, most):
    assert Row("case", 1.0, 2.0, bar, None).most == most
