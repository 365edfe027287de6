"""The documentation as a site: pages, links, numbers from records, no requests."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import operator
import os
import posixpath
import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from tests.serve.page_tools import chromium
from website.landing_figure import FIGURE, RECORDS, draw

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OTHERS = [
    *(f"../{path.name}" for path in sorted(ROOT.glob("*.md"))),
    "../benchmarks/README.md",
    "../experiments/README.md",
]
"""Pages that are not part of the site, relative to its folder."""

ROOMS = (
    "",
    ".head",
    ".data",
    ".features",
    ".adapt",
    ".serve",
    *(f".lab.{part}" for part in ("methods", "streams", "report", "checks")),
)
FENCE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
DEFAULT = re.compile(r"^(\w+(?:, \w+)*) : .*, default=(.+)$", flags=re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(page: str) -> str:
    return FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings as a git host and the site make them."""
    heads = re.findall(r"^#+ (.+)$", text_of(page), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\s-]", "", head.replace("`", "").lower()).strip().replace(" ", "-")
        for head in heads
    }


def nav() -> list[str]:
    # The file has no tags of its own, so that the safe loader reads it.
    config = yaml.safe_load((ROOT / "properdocs.yml").read_text(encoding="utf-8"))
    found: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            found.append(entry)
        for inner in (
            entry.values()
            if isinstance(entry, dict)
            else entry
            if isinstance(entry, list)
            else ()
        ):
            walk(inner)

    walk(config["nav"])
    return found


def test_every_page_has_one_place_on_the_site():
    assert sorted(nav()) == PAGES


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_links_of_a_page_lead_somewhere_on_a_git_host(page):
    for link in LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        if path:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        else:
            target = page
        assert (DOCS / target).exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def test_the_figure_of_the_first_page_is_that_of_the_records():
    assert FIGURE.read_text(encoding="utf-8") == draw()


def test_the_table_of_the_first_page_is_that_of_the_records():
    found: dict[tuple[str, str], list[float]] = {}
    for path in RECORDS.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault((record["dataset"]["label"], record["label"]), []).append(
            100 * record["results"]["a_last"]
        )
    columns = (
        *(
            "Recommended, 3000 units",
            "Recommended, 10000 units",
            "RanPAC",
            "AnaCP",
            "LoRanPAC",
        ),
        *("Joint linear probe", "SimpleCIL"),
    )
    rows = re.findall(
        r"^\| (CUB-200|CLINC150|CIFAR-100)[^|]*\|(.*)\|$",
        text_of("index.md"),
        flags=re.MULTILINE,
    )
    assert len(rows) == 3
    for (name, cells), label in zip(
        rows, ("CUB-200", "CLINC150", "CIFAR-100, small ViT")
    ):
        assert label.startswith(name)
        means = [
            sum(found[label, column]) / len(found[label, column]) for column in columns
        ]
        best = max(means)
        shown = [f"**{mean:.1f}**" if mean == best else f"{mean:.1f}" for mean in means]
        assert [cell.strip() for cell in cells.split("|")] == shown


def test_the_reference_has_a_page_for_every_room_that_is_public():
    text = "\n".join(
        (DOCS / page).read_text(encoding="utf-8")
        for page in PAGES
        if page.startswith("reference/")
    )
    shown = set(re.findall(r"^::: ([\w.]+)$", text, flags=re.MULTILINE))
    assert {f"evergrow{room}" for room in ROOMS} <= shown | {"evergrow"}
    assert {"evergrow.Learner", "evergrow.SCLClassifier"} <= shown


def documented_objects():
    """Return functions and classes of the reference, as the site's parser loads them."""
    griffe = pytest.importorskip("griffe", reason="needs evergrow[docs]")
    package = griffe.load(
        "evergrow",
        search_paths=[ROOT / "src"],
        docstring_parser="numpy",
        docstring_options={"warnings": False},
        extensions=griffe.load_extensions(ROOT / "website" / "docstrings.py"),
    )
    pending = []
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        shown = re.findall(r"^::: evergrow\.([\w.]+)$", text, re.MULTILINE)
        pending += [package[name] for name in shown]
    found = {}
    while pending:
        entry = pending.pop()
        entry = entry.final_target if entry.is_alias else entry
        if entry.path in found or not entry.path.startswith("evergrow."):
            continue
        if entry.is_function or entry.is_class:
            found[entry.path] = entry
        if entry.is_class:
            pending += [member for member in entry.members.values() if member.is_public]
        if entry.is_module:
            pending += [entry[name] for name in entry.exports or ()]
    return found.values()


def signature_of(entry):
    module = importlib.import_module(entry.module.path)
    name = entry.path.removeprefix(f"{module.__name__}.")
    return inspect.signature(operator.attrgetter(name)(module)).parameters


def test_the_defaults_in_the_reference_are_those_of_the_code():
    n_compared = 0
    for entry in documented_objects():
        if entry.docstring is None:
            continue
        names = vars(importlib.import_module(entry.module.path))
        described = [
            parameter
            for section in entry.docstring.parsed
            if section.kind.value == "parameters"
            for parameter in section.value
        ]
        actual = signature_of(entry) if described else {}
        for parameter in described:
            if parameter.name not in actual:
                continue
            default = actual[parameter.name].default
            place = f"{entry.path}({parameter.name})"
            if default is inspect.Parameter.empty:
                assert parameter.value in (None, "()", "{}"), place
                continue
            assert parameter.value is not None, place
            if repr(default) == "<factory>":
                continue
            assert eval(str(parameter.value), names) == default, place
            n_compared += 1
    assert n_compared > 100


def test_the_defaults_in_docstrings_are_those_of_the_code():
    n_compared = 0
    for entry in documented_objects():
        if entry.docstring is None:
            continue
        documented = DEFAULT.findall(entry.docstring.value)
        actual = signature_of(entry) if documented else {}
        for names, text in documented:
            for name in names.split(", "):
                default = actual[name].default
                assert ast.literal_eval(text) == default, f"{entry.path}({name})"
                n_compared += 1
    assert n_compared > 50


def site_hooks():
    pytest.importorskip("properdocs", reason="needs evergrow[docs]")
    pytest.importorskip("latex2mathml", reason="needs evergrow[docs]")
    from website import hooks

    return hooks


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `make docs` builds it, with the packages of this test."""
    site_hooks()
    if shutil.which("make") is None:
        pytest.skip("needs make")
    shutil.rmtree(SITE, ignore_errors=True)
    command = ["make", "site", f"BIN={Path(sys.executable).parent}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert not built.stderr
    return SITE


class Fetched(HTMLParser):
    """What a browser fetches for a page, and the anchors in it."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.urls.append(values.get("src") or "")
        if tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.urls.append(values.get("href") or "")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(site):
    texts = {
        page: (site / page).with_suffix(".html").read_text(encoding="utf-8")
        for page in PAGES
    }
    whole = "".join(texts.values())
    assert "<math" in whole  # formulas, which browsers draw by themselves
    assert not re.search(
        r"arithmatex|<autoref|:(?:func|class|meth):|<!-- figure", whole
    )
    assert (
        'href="repository/experiments/' in whole
    )  # links out of the pages lead to copies
    assert 'src="gallery/' in texts["gallery.md"]
    for page, text in texts.items():
        parser = Fetched()
        parser.feed(text)
        assert len(parser.urls) > 3
        for url in parser.urls:
            assert not url.startswith(("http:", "https:", "//")), f"{page}: {url}"
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//", styles)


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    inventory = (
        (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    )  # four lines of head, then names, compressed
    shown = {
        line.split(" ")[0]
        for line in zlib.decompress(inventory).decode("utf-8").splitlines()
    }
    for room in ROOMS:
        module = importlib.import_module(f"evergrow{room}")
        own = (
            name
            for name, held in vars(module).items()
            if getattr(held, "__module__", "") == module.__name__
        )
        public = set(
            getattr(module, "__all__", None) or (name for name in own if name[0] != "_")
        ) - {"__version__"}
        missing = {name for name in public if f"evergrow{room}.{name}" not in shown}
        assert not missing, f"evergrow{room}: {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_ask_nobody(site, scheme):
    """Opened as a file: no requests, no errors, and nothing wider than the screen."""
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": 390, "height": 844}, color_scheme=scheme
        )
        trouble: list[str] = []
        page.on(
            "request",
            lambda sent: (
                sent.url.startswith(("file:", "data:", "blob:"))
                or trouble.append(sent.url)
            ),
        )
        page.on("pageerror", lambda error: trouble.append(str(error)))
        for name in PAGES:
            page.goto((site / name).with_suffix(".html").as_uri())
            wide = page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, name
            shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", shown)[:3])) > 384) == (
                scheme == "light"
            ), (name, shown)
        assert not trouble


@pytest.mark.slow
def test_the_search_works_from_a_file(site):
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.locator("input[name=query]").click()
        page.keyboard.type("unlearn")
        first = page.locator(".md-search-result__item").first
        first.wait_for(timeout=20_000)
        assert page.locator(".md-search-result__item").count() > 3
