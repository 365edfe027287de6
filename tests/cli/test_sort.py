"""``evergrow sort`` with a real model."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

from evergrow import Learner
from evergrow.tools.sorting import sort_folder, undo_sort

OUT = Path("out")


@pytest.fixture
def inbox(shell: Shell, image_model: Path, images: Path) -> Path:
    """All images in one folder, copies in a subfolder, and one broken file."""
    Path("inbox").mkdir()
    for path in sorted(images.rglob("*.png")):
        shutil.copy2(path, Path("inbox", f"{path.parent.name}-{path.name}"))
    shutil.copytree("inbox", "inbox/more")
    Path("inbox", "broken.png").write_bytes(b"no image")
    return Path("inbox")


def test_sort_agrees_with_predict(shell: Shell, image_model: Path, inbox: Path) -> None:
    sort = ("sort", image_model, inbox, "--into", OUT, "--min", 0.5)
    told = shell.json(*sort, code=1)
    assert not OUT.exists()
    asked = ("predict", image_model, inbox, "--on-error", "skip")
    answers = {row["item"]: row for row in shell.json(*asked, code=1)["predictions"]}
    expected: dict[str, int] = {}
    for row in answers.values():
        if row["unknown"]:
            place = "unknown"
        elif row["probability"] >= 0.5:
            place = row["class"]
        else:
            place = "unsure"
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
        (["--undo", "p.evg"], "is not a table of a sort"),
        (["p.evg", "inbox", "--into", "out", "--watch"], "--watch needs --move"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(
    shell: Shell, inbox: Path, arguments: list, message: str
) -> None:
    assert message in shell.error("sort", *arguments)
    assert not OUT.exists()


def test_sort_needs_a_model_of_images(shell: Shell, model: Path) -> None:
    Path("inbox").mkdir()
    assert "a model of images" in shell.error("sort", model, "inbox", "--into", OUT)


def test_file_names_are_printed_escaped(shell: Shell, image_model: Path) -> None:
    source = next(Path("images").rglob("*.png")).read_bytes()
    names = [
        "a\\b.png",
        "a\nb.png",
        "\x1b[2J.png",
        "caf\udce9.png",
        "-rf.png",
        "n" * 251 + ".png",
    ]
    inbox = Path("in\nbox\udcff")
    inbox.mkdir()
    for name in names:
        (inbox / name).write_bytes(source)
    (inbox / "broken\n\udce9\x1b[2J.png").write_bytes(b"no image")
    sort = ("sort", image_model, inbox, "--into", OUT)
    for options in ((), ("--move",)):
        said = shell.run(*sort, *options, code=1)
        lines = (said.stdout + said.stderr).split("\n")
        assert all(line.isprintable() for line in lines)
        assert "1 file left in place: broken" in said.stderr
    assert os.listdir(inbox) == ["broken\n\udce9\x1b[2J.png"]
    told = shell.json(*sort, "--move", code=1)
    assert [os.path.basename(name) for name in told["left"]] == os.listdir(inbox)
    assert "6 files undone" in shell.run("sort", "--undo", OUT / "sorted.csv").stdout
    assert set(names) < set(os.listdir(inbox))
    assert not OUT.exists()


def test_an_unreadable_image_stays_and_others_are_sorted(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    learner = Learner.load(image_model)
    rows = sort_folder(learner, inbox, OUT, "copy")
    assert sum(bool(row.destination) for row in rows) == 36
    assert [Path(row.file).name for row in rows if not row.destination] == [
        "broken.png"
    ]
    assert undo_sort(OUT / "sorted.csv") == []


def test_an_interrupted_sort_of_another_folder_is_mentioned(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    sort = ("sort", image_model, inbox, "--into", OUT, "--copy")
    shell.run(*sort, code=1)
    table = OUT / "sorted.csv"
    table.write_text(table.read_text().replace(",done,", ",planned,"))
    said = shell.run("sort", image_model, "images", "--into", OUT).stdout
    assert "36 files of an interrupted sort of" in said
    said = shell.run("sort", image_model, inbox, "--into", OUT, code=1).stdout
    assert "36 files of an interrupted sort will be completed first" in said


def test_a_damaged_table_stops_the_sort_with_one_line(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    OUT.mkdir()
    table = OUT / "sorted.csv"
    table.write_text("file,answer,probability,destination,how,state,size,note\n")
    for options in ((), ("--move",)):
        said = shell.error("sort", image_model, inbox, "--into", OUT, *options)
        assert "is not a table of a sort, or was damaged" in said
    assert "is not a table of a sort" in shell.error("sort", "--undo", table)
    assert os.listdir(OUT) == ["sorted.csv"]


def test_a_corrected_folder_is_learned_with_one_command(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    shell.run("sort", image_model, inbox, "--into", OUT, "--copy", code=1)
    Path(OUT, "unsure").mkdir(exist_ok=True)
    Path(OUT, "oval").mkdir()
    for number, path in enumerate(sorted(OUT.glob("*/*.png"))[:4]):
        path.rename(OUT / ("oval" if number else "unsure") / f"moved-{number}.png")
    values = shell.json("update", image_model, OUT)
    assert values["classes"] == ["oval"]
    assert "unsure" not in Learner.load(image_model).classes_
    assert "folder 'unsure' left out" in "".join(values["warnings"])


def test_an_interruption_says_how_to_resume(
    shell: Shell, image_model: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evergrow.tools.sorting.put_file", interrupt)
    sort = ("sort", image_model, inbox, "--into", OUT, "--copy")
    said = shell.run(*sort, code=130).stderr
    assert "The same command sorts the rest" in said
    assert "evergrow sort --undo out/sorted.csv undoes" in said


@pytest.mark.slow
def test_watch_sorts_new_images_until_it_is_ended(
    shell: Shell, image_model: Path, inbox: Path
) -> None:
    pytest.importorskip("watchfiles", reason="needs evergrow[watch]")
    command = [sys.executable, "-m", "evergrow", "sort", "p.evg", "inbox"]
    command += ["--into", "out", "--move", "--watch"]
    for number, end in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if number:
            source = next(Path("images").rglob("*.png"))
            shutil.copy2(source, inbox / "late.png")
        expected = "1 file sorted" if number else "36 files sorted"
        assert process.stdout.readline().startswith(expected)
        process.send_signal(end)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said.startswith(f"ended; {expected}")
    assert "37 files undone" in shell.run("sort", "--undo", OUT / "sorted.csv").stdout
