"""``evergrow data`` and ``demo``, and how all commands read data."""

from __future__ import annotations

import json
import runpy
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, Shell, clouds
from tests.commands import evergrow
from typer.testing import CliRunner

from evergrow.cli.registry import COMMANDS, build_app
from evergrow.data import load_data


def test_fit_and_data_agree_on_the_sample_count(shell: Shell, images: Path) -> None:
    with zipfile.ZipFile("images.zip", "w") as archive:
        for path in images.rglob("*.png"):
            archive.write(path, path)
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    for source in ("images", "images.zip"):
        said = shell.json("data", source)
        assert (said["n_train"], said["n_test"]) == (18, 0)
        assert (
            shell.json("fit", source, "-m", "m.evg", "--force", *options)["samples"]
            == 18
        )
    assert shell.json("evaluate", "m.evg", "images.zip")["n_known"] == 18
    answers = shell.json("predict", "m.evg", "images.zip", "images/lying/0.png")[
        "predictions"
    ]
    assert len(answers) == 19
    assert answers[0]["item"] == "images.zip/images/lying/0.png"


# -- test splits of feature files ----


def test_a_feature_file_has_a_test_split_only_on_request(
    shell: Shell, images: Path
) -> None:
    options = (
        "--backbone",
        "test_resnet",
        "--set",
        "weights=random",
        "--device",
        "cpu",
    )
    written = shell.json("features", images, "-o", "f.npz", *options)
    assert (written["n_train"], written["n_test"]) == (18, 0)
    assert shell.json("data", "f.npz")["n_train"] == 18
    assert shell.json("fit", "f.npz", "-m", "f.evg", "--units", 50)["samples"] == 18
    assert shell.json("evaluate", "f.evg", "f.npz")["n_known"] == 18
    drawn = shell.json(
        "features", images, "-o", "split.npz", *options, "--test-size", 0.34
    )
    assert (drawn["n_train"], drawn["n_test"]) == (12, 6)


# -- columns ----


def test_every_command_that_reads_data_has_column_options() -> None:
    build_app()
    for name in (
        "fit",
        "update",
        "unlearn",
        "relabel",
        "evaluate",
        "diff",
        "predict",
        "features",
        "data",
    ):
        shown = evergrow(name, "--help").output
        assert name in COMMANDS
        for option in ("--set", "image_column", "text_column", "label_column"):
            assert option in shown


def test_column_options_name_the_columns(shell: Shell, images: Path) -> None:
    paths = sorted(images.rglob("*.png"))
    rows = "".join(
        f"{path},{path.parent.name},{number}\n" for number, path in enumerate(paths)
    )
    Path("birds.csv").write_text(f"photo,species,id\n{rows}")
    columns = ("--set", "image_column=photo", "--set", "label_column=species")
    options = ("--backbone", "test_resnet", "--set", "weights=random")
    assert "must have a column" in shell.error(
        "fit", "birds.csv", "-m", "m.evg", *options
    )
    assert shell.json("data", "birds.csv", *columns)["n_train"] == 18
    assert (
        shell.json(
            "fit", "birds.csv", "-m", "m.evg", "--units", 50, *options, *columns
        )["n_classes"]
        == 3
    )
    assert shell.json("evaluate", "m.evg", "birds.csv", *columns)["n_known"] == 18
    assert (
        len(
            shell.json("predict", "m.evg", "birds.csv", "--set", "image_column=photo")[
                "predictions"
            ]
        )
        == 18
    )
    assert (
        shell.json("update", "m.evg", "birds.csv", *columns, "--again")["samples"] == 18
    )
    assert shell.json("unlearn", "m.evg", "birds.csv", *columns)["samples"] == 18
    assert (
        shell.json(
            "features",
            "birds.csv",
            "-o",
            "f.npz",
            "-b",
            "test_resnet",
            *options[2:],
            *columns,
        )["n_train"]
        == 18
    )


def test_an_image_on_standard_input_is_an_error(
    shell: Shell, image_model: Path
) -> None:
    result = CliRunner().invoke(
        build_app(), ["predict", str(image_model), "-"], input=b"\xff\xd8\xff\x00broken"
    )
    assert result.exit_code == 2
    assert "save an image to a file" in result.stderr


# -- --check ----


def test_check_finds_an_image_with_two_labels(shell: Shell, images: Path) -> None:
    shutil.copy(images / "lying" / "0.png", images / "standing" / "copy.png")
    pair = shell.json("data", images, "--check", "--backbone", "none", code=1)["check"][
        "findings"
    ][0]
    assert (pair["labels"], pair["exact"], pair["kind"]) == (
        ["lying", "standing"],
        True,
        "two labels",
    )
    lines = shell.run("data", images, "--check", "--backbone", "none", code=1).stdout
    assert "the same under two labels: 1" in lines


def test_check_finds_a_misplaced_feature_vector(shell: Shell) -> None:
    X, y = clouds(NAMES[:3], 10, 0)
    y[0] = "bee"  # an ant in the class of bees
    np.savez("f.npz", X_train=X, y_train=y)
    said = shell.json("data", "f.npz", "--check", code=1)
    assert [
        (entry["rows"][0], entry["labels"][1]) for entry in said["check"]["findings"]
    ] == [(0, "ant")]
    X, y = clouds(NAMES[:3], 10, 0)
    np.savez("g.npz", X_train=X, y_train=y)
    assert "no problem was found" in shell.run("data", "g.npz", "--check").stdout


@pytest.mark.slow
def test_worker_processes_read_archives_and_parquet(shell: Shell, images: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    files = sorted(images.rglob("*.png"))
    with zipfile.ZipFile("i.zip", "w") as archive:
        for path in files:
            archive.write(path, path)
    table = pa.table(
        {
            "image": [path.read_bytes() for path in files],
            "label": [path.parent.name for path in files],
        }
    )
    pq.write_table(table, "i.parquet", row_group_size=5)
    options = (
        "--backbone",
        "test_resnet",
        "--set",
        "weights=random",
        "--device",
        "cpu",
        "--set",
        "cache=false",
    )
    shell.run("features", images, "-o", "plain.npz", *options)
    expected = np.load("plain.npz")["X_train"]
    for source in ("i.zip", "i.parquet"):
        shell.run(
            "features", source, "-o", "f.npz", "--force", *options, "--workers", 2
        )
        assert np.allclose(np.load("f.npz")["X_train"], expected, atol=1e-5)


# -- the description ----


@pytest.fixture
def pets(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EVERGROW_DATA", raising=False)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dög"):
            folder = Path("pets", part, name)
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").write_bytes(b"x")
    Path("pets/train/cat/notes.txt").write_text("x")
    return Path("pets")


def test_data_describes_a_folder(shell: Shell, pets: Path) -> None:
    said = shell.run("data", pets).stdout
    for part in (
        "pets",
        "image",
        "train-test",
        "12 training, 4 test",
        "dög (6 + 2)",
        "not images (.txt): 1",
    ):
        assert part in said
    report = shell.json("data", pets)
    assert (report["n_classes"], report["n_train"], report["n_test"]) == (2, 12, 4)
    assert report["largest"][0] == ["dög", 6, 2]


def test_data_exits_with_2_if_it_cannot_be_loaded(shell: Shell, pets: Path) -> None:
    shell.error("data", "no/such/folder")
    (pets / "train/empty").mkdir()
    assert "train/empty" in shell.run("data", pets).stdout
    shell.error("data", pets, "--layout", "nonsense")


def test_data_describes_features(shell: Shell, first: Path) -> None:
    assert "features, 16 wide" in shell.run("data", first).stdout


def test_the_digits_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "digits.py"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert "after forget_classes([8]): 0 eights still called 8" in lines[-1]


def test_demo_writes_folders_that_can_be_loaded(tmp_path: Path) -> None:
    result = evergrow("demo", "--pictures", str(tmp_path / "shapes"), "--json")
    counts = json.loads(result.output)
    assert [counts[part] for part in ("first", "later", "unknown", "test")] == [
        60,
        36,
        32,
        64,
    ]
    data = load_data(tmp_path / "shapes" / "first")
    assert data.class_names == ("circle", "cross", "heart", "moon", "star")
    files = sorted((tmp_path / "shapes").rglob("*.png"))
    assert len({path.read_bytes() for path in files}) == len(files) == 192
    again = evergrow("demo", "--pictures", str(tmp_path / "shapes"))
    assert again.exit_code == 2
    assert "new or empty folder" in again.stderr
