"""``evergrow sort`` with a real model: the answers of predict, and what it prints."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

OUT = Path("out")


@pytest.fixture
def inbox(shell: Shell, image_model: Path, images: Path) -> Path:
    """The images without their folders, with copies of the same name and one that is none."""
    Path("inbox").mkdir()
    for path in sorted(images.rglob("*.png")):
        shutil.copy2(path, Path("inbox", f"{path.parent.name}-{path.name}"))
    shutil.copytree("inbox", "inbox/more")
    Path("inbox", "broken.png").write_bytes(b"no image")
    return Path("inbox")


def test_it_sorts_as_predict_answers(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    sort = ("sort", image_model, inbox, "--into", OUT, "--min", 0.5)
    told = shell.json(*sort, code=1)
    assert not OUT.exists()
    asked = ("predict", image_model, inbox, "--on-error", "skip")
    answers = {row["item"]: row for row in shell.json(*asked, code=1)["predictions"]}
    expected: dict[str, int] = {}
    for row in answers.values():
        place = (
            "unknown"
            if row["unknown"]
            else row["class"]
            if row["probability"] >= 0.5
            else "unsure"
        )
        expected[place] = expected.get(place, 0) + 1
    assert told["folders"] == expected
    assert sum(expected.values()) == 36
    assert [Path(name).name for name in told["left"]] == ["broken.png"]
    said = shell.run(*sort, code=1)
    assert "nothing was touched: add --move, --copy or --link" in said.stdout
    assert "1 file left in place: broken.png" in said.stderr
    done = shell.run(*sort, "--copy", code=1).stdout
    assert "36 files sorted, listed in out/sorted.csv" in done
    assert {name: len(list((OUT / name).iterdir())) for name in expected} == expected
    with open(OUT / "sorted.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["answer"]]
    for row in rows:
        same = answers[os.path.relpath(row["file"])]
        assert row["answer"] == same["class"]
        assert float(row["probability"]) == pytest.approx(same["probability"], rel=1e-4)
    assert "36 files undone" in shell.run("sort", "--undo", OUT / "sorted.csv").stdout
    assert not OUT.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p.evg"], "Name a model, a folder of images"),
        (["p.evg", "inbox"], "Name a model, a folder of images"),
        (["none.evg", "inbox", "--into", "out"], "No model 'none.evg' here"),
        (
            ["p.evg", "inbox", "--into", "out", "--move", "--copy"],
            "--move and --copy do not go together",
        ),
        (["p.evg", "inbox", "--into", "out", "--min", "80"], "--min"),
        (["p.evg", "--undo", "out/sorted.csv"], "--undo takes only the table"),
        (["--undo", "out/sorted.csv"], "No table 'out/sorted.csv' here"),
        (["--undo", "p.evg"], "is no table of a sort"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(
    shell: Shell, inbox: Path, arguments: list, message: str
) -> None:
    assert message in shell.error("sort", *arguments)
    assert not OUT.exists()


def test_models_of_other_things_are_refused(shell: Shell, model: Path) -> None:
    Path("inbox").mkdir()
    assert "a model of images" in shell.error("sort", model, "inbox", "--into", OUT)
