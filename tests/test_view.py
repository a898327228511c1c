"""The range of an axis, and drawings in few bytes."""

import math
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redraft.analysis.figures.svg import address, compact
from redraft.analysis.figures.view import EVERYTHING, INTERVAL_REACH, cut_points, view

NUMBER = st.floats(-1e6, 1e6).map(lambda value: round(value, 4))


@given(st.lists(st.tuples(NUMBER, st.floats(0, 1e9)), min_size=1, max_size=20))
def test_all_points_and_the_narrower_half_of_the_intervals_are_whole(found):
    means, lows, highs = zip(*((mean, mean - half, mean + half) for mean, half in found), strict=True)
    shown = view(means, lows, highs)
    assert shown.low <= min(means) <= max(means) <= shown.high
    whole = sum(shown.low <= low and high <= shown.high for low, high in zip(lows, highs, strict=True))
    assert whole >= len(found) / 2
    reach = max(INTERVAL_REACH * (max(means) - min(means)), float(np.median([half for _, half in found])))
    room = 1e-6 * (1 + reach + max(map(abs, means)))
    assert shown.high - shown.low <= max(means) - min(means) + 2 * reach + room


def test_one_huge_interval_does_not_press_the_points_into_a_line():
    shown = view([1.0, 2.0, 3.0], [0.5, 1.5, -1000.0], [1.5, 2.5, 1000.0])
    assert shown == (0.5, 3.0)
    assert view([0.5, 0.5001], [0.4, 0.4001], [0.6, 0.6001]) == (0.4, 0.6001), "what hides no difference stays whole"
    assert view([], [], []) == view([math.nan], [math.nan], [math.nan]) == EVERYTHING


def test_a_logarithmic_axis_measures_ratios_and_has_no_place_for_what_is_not_positive():
    assert view([1.0, 100.0], [0.5, -5.0], [2.0, 1e9], log=True) == (pytest.approx(1 / 3), 100.0)
    assert view([-1.0, 0.0], [0.5], [1.0], log=True) == EVERYTHING


def test_of_neighbours_that_are_cut_the_furthest_stands_for_all():
    line = pd.DataFrame({"low": [0, -9, -8, 0, -2, math.nan], "high": [1, 1, 9, 1, 1, math.nan]})
    assert cut_points(line, view([0, 1], [0], [1])) == [(1, "low"), (2, "high"), (4, "low")]
    assert cut_points(line, EVERYTHING) == []


DRAWING = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN"
  "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">
 <metadata>when</metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="unnamed">
  <g><defs><path id="m1" d="M 0 0 L -0.041 3.456789"/></defs></g>
  <g>
   <use xlink:href="#m1" x="1.25049" y="10.000001" style="fill: #0072b2"/>
   <use xlink:href="#m1" x="2" y="20.5" style="fill: #0072b2"/>
  </g>
  <!-- text -->
  <text style="font-size: 9px; font-family: 'DejaVu Sans', 'Arial'; text-anchor: middle" x="1.123456"
   transform="rotate(-0 1.123456 2)">the paper's 95 % &amp; "α" &lt;b&gt;</text>
 </g>
</svg>"""


def test_a_drawing_in_few_bytes_is_the_same_picture():
    small = compact(DRAWING)
    tree = ElementTree.fromstring(small)
    names = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert names == {"svg", "defs", "style", "g", "path", "use", "text"}
    space = "{http://www.w3.org/2000/svg}"
    path = tree.find(f".//{space}path")
    assert (path.get("id"), path.get("d")) == ("m1", "M 0 0 L -0 3.5")
    group = tree.find(f".//{space}use/..")
    assert group.get("style") == "fill: #0072b2", "once"
    assert [(use.get("x"), use.get("y"), use.get("style")) for use in group.iter(f"{space}use")] == [
        ("1.3", "10", None),
        ("2", "20.5", None),
    ]
    (text,) = tree.iter(f"{space}text")
    assert text.text == 'the paper\'s 95 % & "α" <b>'
    assert (text.get("style"), text.get("transform")) == ("font-size: 9px; text-anchor: middle", None)
    assert "text {font-family: DejaVu Sans" in small
    assert "unnamed" not in small
    two = DRAWING.replace('y="20.5" style="fill: #0072b2"', 'y="20.5" style="fill: #000000"')
    assert compact(two).count("style=") == compact(DRAWING).count("style=") + 1, "two colours stay two"


def test_an_address_stands_in_double_quotes_and_leads_back_to_the_drawing():
    found = address(compact(DRAWING))
    kind, _, content = found.partition(",")
    assert kind == "data:image/svg+xml"
    assert not re.search(r'["#&\n]|%(?![0-9A-F]{2})', found)
    back, there = (ElementTree.fromstring(text) for text in (unquote(content), compact(DRAWING)))
    assert ElementTree.canonicalize(ElementTree.tostring(back)) == ElementTree.canonicalize(ElementTree.tostring(there))
