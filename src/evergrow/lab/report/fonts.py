"""The font of figures: a part of matplotlib's own that is quick to embed.

PDF files embed the letters that they use. Journals want them as TrueType, and cutting them out of the whole font takes
most of the time of drawing. So figures use a font of the common letters alone, without ligatures, marks and kerning,
which matplotlib does not apply; letters that it lacks come from the whole font.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from evergrow.core.optional import require

_SOURCE = "DejaVu Sans"  # comes with matplotlib, so the layout is the same on every machine
_NAMES = (1, 3, 4, 6, 16)  # family, unique name, full name, PostScript name, typographic family
_LETTERS = (
    range(0x20, 0x250),  # Latin
    range(0x370, 0x460),  # Greek and Cyrillic
    range(0x2000, 0x22FF),  # punctuation, superscripts and subscripts, arrows, mathematics
)

FAMILY = "Evergrow Figure"
"""Name of the font; the licence of the original asks for another name than its own."""

_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Holds the folder of the fonts until Python ends, which removes it."""


@cache
def figure_fonts() -> list[str]:
    """Return the families that figures use, the first made and known to matplotlib by now, regular and bold.

    Examples
    --------
    >>> from evergrow.lab.report.fonts import figure_fonts
    >>> figure_fonts()
    ['Evergrow Figure', 'DejaVu Sans']
    """
    subset = require("fontTools.subset", extra="report", purpose="drawing figures")
    font_manager = require("matplotlib.font_manager", extra="report", purpose="drawing figures")
    options = subset.Options(layout_features=[], notdef_outline=True, recalc_timestamp=False, name_IDs=list(_NAMES))
    options.drop_tables += ["GSUB", "GPOS", "GDEF", "kern", "MATH", "FFTM"]
    folder = tempfile.TemporaryDirectory(prefix="evergrow-font-")
    _FOLDERS.append(folder)
    for weight in ("regular", "bold"):
        wanted = font_manager.FontProperties(family=_SOURCE, weight=weight)
        font = subset.load_font(font_manager.findfont(wanted, fallback_to_default=False), options)
        cutter = subset.Subsetter(options)
        cutter.populate(unicodes=[letter for letters in _LETTERS for letter in letters])
        cutter.subset(font)
        for record in font["name"].names:
            name = FAMILY if record.nameID in (1, 16) or weight == "regular" else f"{FAMILY} Bold"
            record.string = name.replace(" ", "") if record.nameID == 6 else name
        path = Path(folder.name) / f"figure-{weight}.ttf"
        subset.save_font(font, str(path), options)
        font_manager.fontManager.addfont(path)
    return [FAMILY, _SOURCE]
