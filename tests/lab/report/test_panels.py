"""Panels: same bytes every time, text as text, labels that do not overlap."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evergrow.lab.report.panels import Panel, inline, spread
from evergrow.lab.report.plots import Axes, Dot, DotAxis, Heat, Series, dot_panel, heat_panel, line_panel
from evergrow.lab.report.styles import style_of


def lines() -> Panel:
    series = [
        Series("Rändom & <odd>", style_of("ri"), [1, 2, 3], [1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
        Series("MGSM", style_of("scl-mgsm", 1), [1, 2, 3], [3.0, 2.5, 3.0]),
    ]
    return line_panel("lines", "Toy, B-0 Inc-5", Axes("Session", "Accuracy (%)"), series)


def dots() -> Panel:
    values = [Dot("a", style_of("ri"), 0.5, 0.1), Dot("b", style_of("nobody"), 50.0)]
    return dot_panel("dots", "Time", DotAxis("Time (s)", log=True), values)


def heat() -> Panel:
    return heat_panel("heat", "Map", Heat(np.eye(6), -1.0, 1.0, ("Unit", "Unit"), "Cosine", "of six"))


@pytest.mark.parametrize("draw", [lines, dots, heat])
def test_the_same_bytes_every_time(draw) -> None:  # type: ignore[no-untyped-def]
    assert draw() == draw()


@pytest.mark.parametrize("draw", [lines, dots, heat])
def test_text_is_text_and_nothing_says_when_or_where(draw) -> None:  # type: ignore[no-untyped-def]
    panel = draw()
    assert f">{panel.title.partition(',')[0]}" in panel.svg
    assert "<metadata" not in panel.svg
    assert b"CreationDate" not in panel.pdf
    assert panel.pdf.startswith(b"%PDF")


def test_fonts_are_embedded_as_truetype() -> None:
    pdf = lines().pdf
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_axes_have_titles_with_units_and_lines_their_names() -> None:
    svg = lines().svg
    for text in ("Session", "Accuracy (%)", "MGSM", "Rändom &amp; &lt;odd&gt;"):
        assert f">{text}<" in svg


def test_errors_are_written_beside_values() -> None:
    svg = dots().svg
    assert ">0.500 ± 0.100<" in svg
    assert ">50.0<" in svg


def test_on_a_page_ids_are_its_own_and_colours_follow_the_page() -> None:
    text = inline(lines())
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids
    assert all(found.startswith("lines-") for found in ids)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    assert not re.search(r"(?<!, )#c8500a", text)
    assert "var(--fig-c8500a, #c8500a)" in text
    head = text.split(">", 1)[0]
    assert 'role="img"' in head
    assert " width=" not in head


@given(
    st.lists(st.tuples(st.floats(-0.2, 1.2), st.floats(0.01, 0.09)), min_size=1, max_size=10),
)
def test_labels_keep_their_order_and_never_overlap(labels: list[tuple[float, float]]) -> None:
    wanted, heights = [place for place, _ in labels], [height for _, height in labels]
    places = spread(wanted, heights, 0.0, 1.0)
    order = sorted(range(len(labels)), key=lambda index: (wanted[index], index))
    for below, above in itertools.pairwise(order):
        assert places[above] - places[below] >= (heights[above] + heights[below]) / 2 - 1e-9
    assert all(place - height / 2 >= -1e-9 and place + height / 2 <= 1 + 1e-9 for place, height in zip(places, heights))


def test_labels_with_room_stay_where_they_want_to_be() -> None:
    assert spread([0.2, 0.8, 0.5], [0.1, 0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.8, 0.5])
