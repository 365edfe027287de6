"""The files of the page are complete and comply with its security policy."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evergrow.serve import app
from evergrow.tools.strictness import STRICTNESS, USUAL, AcceptanceLimits

SCRIPTS = sorted((app.PAGE / "script").glob("*.js"))
STYLES = sorted((app.PAGE / "style").glob("*.css"))


class Tags(HTMLParser):
    """Collects tags with attributes, and text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style"):
            self.inline += data.strip()


def test_the_page_has_no_inline_code_and_refers_to_existing_files() -> None:
    for folder in (app.REFERENCE, app.PAGE):
        found = Tags((folder / "index.html").read_text("utf-8"))
        assert found.inline == ""
        assert not [
            tag for tag, attrs in found.tags if tag == "style" or "style" in attrs
        ]
        assert not [
            name for _, attrs in found.tags for name in attrs if name.startswith("on")
        ]
    named = [
        attrs[key] or ""
        for _, attrs in found.tags
        for key in ("src", "href")
        if key in attrs
    ]
    files = [name for name in named if not name.startswith("#")]
    assert {"style/base.css", "script/main.js", "mark.svg"} <= set(files)
    assert [name for name in files if not (app.PAGE / name).is_file()] == [
        "docs/"
    ]  # which the service has elsewhere
    assert {path.relative_to(app.PAGE).as_posix() for path in STYLES} <= set(files)


@pytest.mark.parametrize("path", [*SCRIPTS, *STYLES], ids=lambda path: path.name)
def test_scripts_and_styles_use_no_other_site_and_write_no_markup(path: Path) -> None:
    text = path.read_text("utf-8")
    assert not re.findall(
        r"(?:https?:)?//[a-z]+\.[a-z]", text.replace("http://www.w3.org/2000/svg", "")
    )
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write"
        r"|\beval\(|new Function|@import|url\("
    )
    assert not re.findall(forbidden, text)
    assert text.lstrip().startswith("/*")
    assert max(map(len, text.splitlines())) <= 120
    assert len(text.splitlines()) <= 400


def test_every_script_is_imported() -> None:
    imported = {
        name
        for path in SCRIPTS
        for name in re.findall(r'from "\./([\w.]+)";', path.read_text("utf-8"))
    }
    assert imported | {"main.js"} == {path.name for path in SCRIPTS}


ZIPS = """
import { readFile, writeFile } from "node:fs/promises";
import { entriesOf, zipOf } from "ZIP";
const blob = new Blob([await readFile("in.zip")]);
const entries = await entriesOf(blob);
const files = entries.map(({ name, packed }) => ({ path: name, packed }));
const first = await (await entriesOf(blob))[0].read();
console.log(files.length, await first.text());
await writeFile("out.zip", Buffer.from(await (await zipOf(files)).arrayBuffer()));
"""


@pytest.mark.parametrize(
    "n", [3, 70_000]
)  # more than 65,535 need the larger form of a zip
def test_zips_of_any_size_are_read_and_written(n: int, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    with zipfile.ZipFile(tmp_path / "in.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(n):
            archive.writestr(f"Vögel/{i}.png", f"image {i} {i} {i}")
    (tmp_path / "run.mjs").write_text(
        ZIPS.replace("ZIP", (app.PAGE / "script" / "zip.js").as_uri())
    )
    told = subprocess.run(
        [node, "run.mjs"], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    assert told.stdout.strip() == f"{n} image 0 0 0"
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        assert archive.namelist() == [f"Vögel/{i}.png" for i in range(n)]
        assert (
            archive.read(f"Vögel/{n - 1}.png")
            == f"image {n - 1} {n - 1} {n - 1}".encode()
        )
        assert archive.testzip() is None


def test_the_steps_of_strictness_are_those_of_the_command() -> None:
    text = (app.PAGE / "script" / "strictness.js").read_text("utf-8")
    steps = {
        name: AcceptanceLimits(int(alarm) / 100, int(probability) / 100)
        for name, alarm, probability in re.findall(
            r"(\w+): \{ falseAlarm: (\d+), probability: (\d+) \}", text
        )
    }
    assert steps == STRICTNESS
    assert f'const USUAL = "{USUAL}";' in text
