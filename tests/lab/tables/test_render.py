"""Tables of records whose names come from anywhere."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console
from tests.lab.report.toys import run

from evergrow.lab.tables import compare, render
from evergrow.lab.tables.render import rich_table

HOSTILE = ("=1+1", "@x", "<script>a</script>", "a|b", "`code` [link](u)", "two\nlines", "\x1b[31m", "[red]x", "50% & $")
TABLE = compare([run(label=name, options={"n": index}) for index, name in enumerate(HOSTILE)], ["a_last"])


def test_csv_holds_no_formula() -> None:
    names = [row["method"] for row in csv.DictReader(io.StringIO(render(TABLE, "csv")))]
    assert names[:2] == ["'=1+1", "'@x"]
    assert not any(name.startswith(("=", "+", "-", "@", "\t", "\r")) for name in names)


def test_markdown_has_one_row_per_method_and_no_tag_link_or_code() -> None:
    lines = render(TABLE, "markdown").splitlines()
    rows = lines[2 : 2 + len(HOSTILE)]
    assert all(row.startswith("| ") and row.endswith(" |") for row in rows)
    assert all(row.replace("\\|", "").count("|") == 3 for row in rows)
    assert "<script>" not in "".join(lines)
    assert rows[2].startswith("| &lt;script&gt;a&lt;/script&gt; |")
    assert rows[4].startswith("| \\`code\\` \\[link\\](u) |")


@pytest.mark.parametrize("format", ["table", "markdown", "latex", "csv"])
def test_no_control_character_gets_out(format: str) -> None:
    text = render(TABLE, format)
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) >= len(HOSTILE)


def test_a_terminal_is_not_commanded() -> None:
    console = Console(force_terminal=True, width=120, color_system=None, file=io.StringIO())
    console.print(rich_table(TABLE))
    text = console.file.getvalue()
    assert "[red]x" in text
    assert "\\x1b[31m" in text
