"""One colour, marker and name per method, the same in every figure.

Colours keep a contrast of at least 3 to 1 with the page, light and dark. Sixteen colours cannot all be told apart by
everybody, so no two methods share a marker, and lines carry their name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TypeAlias

Marker: TypeAlias = str | tuple[int, int, int]
"""A marker of matplotlib: a letter, or a polygon or star by its number of corners."""


@dataclass(frozen=True)
class Style:
    """How a method is drawn.

    Parameters
    ----------
    name : str
        Name for people.
    light, dark : str
        Colour on a light and on a dark page, as ``#rrggbb``.
    marker : str or tuple of int
        Marker of matplotlib.
    order : int
        Place in tables: reference points first, the guided layer last.
    variant : int
        0 for the plain method, 1, 2, ... for further settings of it; drawn by dashes and hollow markers.
    """

    name: str
    light: str
    dark: str
    marker: Marker
    order: int
    variant: int = 0

    @property
    def dashes(self) -> str:
        """Line style of the variant."""
        return ("-", "--", ":", "-.")[self.variant % 4]


_TABLE: tuple[tuple[str, str, str, str, Marker], ...] = (
    ("joint-lp", "Joint linear probe", "#1f2328", "#e6e8eb", "*"),
    ("joint-ft", "Joint fine-tuning", "#4a5059", "#c3c8ce", "h"),
    ("coda-prompt", "CODA-Prompt", "#008a94", "#45cbd4", "<"),
    ("sd-lora", "SD-LoRA", "#77502a", "#c89f72", ">"),
    ("simplecil", "SimpleCIL", "#70757d", "#9aa3ad", "p"),
    ("ease", "EASE", "#5a7a00", "#a8c93a", "H"),
    ("apt", "APT", "#b0409c", "#ee92dd", "8"),
    ("klda", "KLDA", "#8a2f6b", "#e07ab8", "P"),
    ("ranpac", "RanPAC", "#a07d00", "#ffdf5e", "D"),
    ("acil", "ACIL", "#168496", "#7cd0d8", "v"),
    ("g-acil", "G-ACIL", "#2a86e0", "#4c8fe0", "d"),
    ("loranpac", "LoRanPAC", "#5b1a8c", "#b48cff", "X"),
    ("anacp", "AnaCP", "#731d00", "#c58463", (5, 1, 0)),
    ("ri", "RI", "#00825f", "#3cc79c", "^"),
    ("scsm", "SCSM", "#0068a8", "#6cc0ff", "s"),
    ("scl-mgsm", "SCL-MGSM", "#c8500a", "#ff8a4c", "o"),
    ("evergrow", "evergrow", "#9c3d00", "#ffb07a", (4, 0, 0)),
)
STYLES = {key: Style(name, light, dark, marker, order) for order, (key, name, light, dark, marker) in enumerate(_TABLE)}
"""Styles by the registered name of a method."""

FSA = "+fsa"
"""Ending of the name of a method on a backbone that was adapted in the first session."""

_SPARE_COLOURS = (
    ("#9c3d00", "#ffb07a"),
    ("#315a9e", "#86aef0"),
    ("#3d6b1f", "#8fca6a"),
    ("#93337f", "#e293cf"),
    ("#6b5a00", "#d8c04a"),
)
_SPARE_MARKERS: tuple[Marker, ...] = ((4, 0, 0), (6, 1, 0), (4, 1, 45), (3, 0, 90), (7, 0, 0), (8, 1, 0), (3, 1, 0))


def style_of(method: str, variant: int = 0) -> Style:
    """Return the style of a method; one that is not in the table gets a fixed one from its name.

    Parameters
    ----------
    method : str
        Registered name. With the ending ``+fsa`` it is drawn as the method that it adapts for.
    variant : int
        Which setting of the method.

    Examples
    --------
    >>> from evergrow.lab.report.styles import style_of
    >>> style_of("ranpac").name, style_of("ranpac+fsa").name, style_of("ranpac").light
    ('RanPAC', 'RanPAC + FSA', '#a07d00')
    >>> style_of("my-own") == style_of("my-own")
    True
    """
    base = method.removesuffix(FSA)
    if base in STYLES:
        found = STYLES[base]
    else:
        digest = hashlib.sha256(base.encode()).digest()
        light, dark = _SPARE_COLOURS[digest[0] % len(_SPARE_COLOURS)]
        found = Style(base, light, dark, _SPARE_MARKERS[digest[1] % len(_SPARE_MARKERS)], len(STYLES))
    name = f"{found.name} + FSA" if method.endswith(FSA) else found.name
    return replace(found, name=name, variant=variant)


INK, MUTED, GRID, PAPER = "#1f2328", "#5b636d", "#d9dde2", "#ffffff"
"""Colours of text, secondary text, grid and page in the figures."""

_DARK = {INK: "#e6e8eb", MUTED: "#a3abb5", GRID: "#343a43", PAPER: "#14171c"}


def colour_variables() -> list[tuple[str, str, str]]:
    """Return (name, light, dark) of every colour that figures use, for the style sheet.

    A figure on the page refers to its colours by these names, so that it follows the page from light to dark.

    Examples
    --------
    >>> from evergrow.lab.report.styles import colour_variables
    >>> ("--fig-c8500a", "#c8500a", "#ff8a4c") in colour_variables()
    True
    """
    pairs = {style.light: style.dark for style in STYLES.values()} | dict(_SPARE_COLOURS) | _DARK
    return [(f"--fig-{light[1:]}", light, dark) for light, dark in pairs.items()]
