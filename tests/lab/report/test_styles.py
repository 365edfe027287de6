"""Styles: everybody can tell methods apart, on light and on dark pages, in every figure alike."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from evergrow.lab.report.styles import GRID, STYLES, colour_variables, style_of

# Deuteranopia and protanopia as linear maps of linear RGB (Machado, Oliveira and Fernandes, 2009).
BLINDNESS = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    f = np.cbrt(xyz / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_no_two_methods_share_a_marker() -> None:
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


@pytest.mark.parametrize("method", STYLES)
def test_contrast_with_the_page(method: str) -> None:
    assert contrast(STYLES[method].light, "#ffffff") >= 3
    assert contrast(STYLES[method].dark, "#14171c") >= 3


@pytest.mark.parametrize("name", BLINDNESS)
@pytest.mark.parametrize("page", ["light", "dark"])
def test_the_three_strategies_are_told_apart_without_red_or_green(name: str, page: str) -> None:
    for one, other in combinations(("scl-mgsm", "scsm", "ri"), 2):
        seen = [lab(np.array(BLINDNESS[name]) @ linear(getattr(STYLES[method], page))) for method in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) > 20


def test_an_unknown_method_has_a_style_of_its_own_name_only() -> None:
    assert style_of("my-method") == style_of("my-method")
    assert style_of("my-method").light in {light for _, light, _ in colour_variables()}
    assert style_of("my-method").marker not in {style.marker for style in STYLES.values()}


def test_an_adapted_method_is_drawn_as_the_method_itself() -> None:
    plain, adapted = style_of("ranpac"), style_of("ranpac+fsa")
    assert (plain.light, plain.marker) == (adapted.light, adapted.marker)
    assert adapted.name != plain.name


def test_every_colour_of_a_figure_has_a_dark_counterpart() -> None:
    variables = {light: dark for _, light, dark in colour_variables()}
    assert {style.light for style in STYLES.values()} | {GRID} <= set(variables)
