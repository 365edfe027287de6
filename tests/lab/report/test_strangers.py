"""Untrusted names in records cannot inject tags, XML or spreadsheet formulas."""

from __future__ import annotations

import csv
import os
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.lab.report.toys import Write, run

from evergrow.lab.report import build_report

NAMES = (
    "<script>alert(1)</script>",
    "=cmd|x",
    '" onload="a',
    "$\\frac{$ \x1b[2J",
    "caf\udce9",
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_untrusted_names_are_escaped_everywhere(write: Write, tmp_path: Path) -> None:
    confusion = {"matrix": [[3, 1], [1, 3]], "names": list(NAMES[:2])}
    records = [
        run(label=name, seed=seed, options={"n": index}, extra={"confusion": confusion})
        for index, name in enumerate(NAMES)
        for seed in (1, 2)
    ]
    records += [
        run(
            seed=seed, dataset={"name": NAMES[0], "label": NAMES[3], "fingerprint": "g"}
        )
        for seed in (1, 2)
    ]
    folder = write(records, "a<b>")
    report = build_report(folder, tmp_path / "out", title="Mine")
    page = Tags(report.page.read_text(encoding="utf-8"))
    plain = Tags(
        build_report(write([run()], "plain"), tmp_path / "plain-out").page.read_text(
            encoding="utf-8"
        )
    )
    assert page.tags.count("script") == plain.tags.count("script")
    assert "onload" not in page.attributes
    for name in report.figures:
        ElementTree.parse(tmp_path / "out" / "figures" / f"{name}.svg")
    for name in report.tables:
        with open(
            tmp_path / "out" / "tables" / f"{name}.csv", newline="", encoding="utf-8"
        ) as file:
            for row in csv.DictReader(file):
                assert not row["method"].startswith(("=", "+", "-", "@"))
        text = (tmp_path / "out" / "tables" / f"{name}.md").read_text(encoding="utf-8")
        assert "<script>" not in text


@pytest.mark.skipif(
    os.name != "posix", reason="needs a POSIX system: bytes in file names"
)
def test_folder_names_that_are_not_utf8_are_escaped(
    write: Write, tmp_path: Path
) -> None:
    try:
        folder = write([run()], os.fsdecode(b"r\xe9cords"))
    except OSError:
        pytest.skip("needs another file system: this one takes UTF-8 only")
    report = build_report(folder, tmp_path / "out")
    assert "r\\udce9cords" in report.page.read_text(encoding="utf-8")
