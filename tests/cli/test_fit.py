import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.cli.conftest import NAMES, clouds, unchanged

from evergrow.adapt import FsaConfig
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import open_model


def test_fit_equals_learner_fit(shell, first):
    values = shell.json("fit", first, "-m", "m.evg", "--units", 50, "--seed", 3)
    X, y = clouds(NAMES[:3], 20, 0)
    mine = Learner(options={"n_units": 50}, random_state=3).fit((X, y))
    asked, _ = clouds(NAMES[:3], 5, 9)
    theirs = open_model("m.evg")
    np.testing.assert_allclose(
        mine.decision_function(asked), theirs.decision_function(asked), rtol=1e-12
    )
    assert values["samples"] == values["n_samples"] == 60  # the training part alone
    assert values["classes"] == list(NAMES[:3])
    assert values["kind"] == "features"
    assert values["revision"] == 1
    assert values["n_units"] == 50


def test_fit_prints_samples_and_classes(shell, first):
    output = shell.run("fit", first, "-m", "m.evg", "--units", 50).stdout
    assert "learned 60 samples (3 new classes: ant, bee, cat) in " in output
    assert "m.evg knows 3 classes from 60 samples (revision 1)" in output


def test_holdout_is_tested_and_not_learned(shell, first):
    values = shell.json("fit", first, "-m", "m.evg", "--units", 0, "--holdout", 0.25)
    assert (values["samples"], values["n_units"]) == (
        45,
        0,
    )  # of units none: the features alone
    assert (values["test"]["samples"], values["test"]["after"]) == (15, 1.0)
    assert (
        "tested: accuracy 100.0 % of 15 samples"
        in shell.run(
            "fit", first, "-m", "n.evg", "--units", 50, "--holdout", 0.25
        ).stdout
    )
    assert "--holdout is a fraction" in shell.error(
        "fit", first, "-m", "o.evg", "--holdout", 1
    )


def test_existing_model_stays_unless_forced(shell, first, later, model):
    before = model.read_bytes()
    assert "m.evg exists: 'evergrow update'" in shell.error("fit", later, "-m", model)
    assert model.read_bytes() == before
    shell.run("fit", later, "-m", model, "--force", "--units", 50)
    assert open_model(model).classes_.tolist() == list(NAMES[3:])
    shell.run("rollback", model)
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["empty", "-m", "m.evg"], "empty holds no folder"),
        (["first.npz", "-m", "no/m.evg"], "There is no folder no for --model"),
        (["first.npz", "-m", "empty"], "empty is a folder; name a file for --model"),
        (["first.npz", "-m", "m.evg", "--method", "scl"], "'scl-mgsm'"),
        (["first.npz", "-m", "m.evg", "--device", "tpu"], "tpu"),
        (["broken.csv", "-m", "m.evg"], "broken.csv"),
        (["note.doc", "-m", "m.evg"], "note.doc"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(shell, first, arguments, message):
    Path("empty").mkdir()
    Path("broken.csv").write_text("text,label\n")
    Path("note.doc").write_text("hello")
    assert message in shell.error("fit", *arguments)
    assert not Path("m.evg").exists()


def test_unreadable_images_stop_or_are_skipped(shell, images):
    Path(images, "lying", "9.png").write_bytes(b"no image")
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    assert "9.png" in shell.error("fit", images, "-m", "p.evg", *options)
    assert not Path("p.evg").exists()
    values = shell.json(
        "fit", images, "-m", "p.evg", *options, "--on-error", "skip", code=1
    )
    assert values["samples"] == 18
    (line,) = values["warnings"]
    assert "1 of 19 images could not be read" in line
    for command, found in (  # and later commands tell it once too
        ("update", ("samples", 18)),
        ("evaluate", ("left_out", ["lying/9.png"])),
        ("predict", ("answered", 18)),
    ):
        with unchanged(Path("p.evg")):
            assert "9.png" in shell.error(command, "p.evg", images)
        again = ["--again"] if command == "update" else []
        values = shell.json(
            command, "p.evg", images, "--on-error", "skip", *again, code=1
        )
        assert values[found[0]] == found[1]
        assert (
            len(
                [
                    line
                    for line in values["warnings"]
                    if "9.png" in line or "left out" in line
                ]
            )
            == 1
        )
    assert [Path(name).name for name in values["left_out"]] == ["9.png"]


def test_an_error_names_all_unreadable_images_and_the_flag(shell, images):
    for name in ("lying", "standing"):
        Path(images, name, "9.png").write_bytes(b"no image")
    options = ("--backbone", "test_resnet", "--set", "weights=random")
    said = shell.error("fit", images, "-m", "p.evg", *options)
    assert "2 images cannot be read: lying/9.png, standing/9.png" in said
    assert "--on-error skip leaves such images out" in said


def test_an_option_of_adapt_is_named_as_users_give_it(shell, images):
    said = shell.error("fit", images, "-m", "p.evg", "--set", "epochs=3")
    assert "--set epochs= is for --adapt" in said


def test_an_image_in_two_classes_gives_a_warning(shell, images):
    shutil.copy2(images / "lying" / "0.png", images / "standing" / "copy.png")
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    values = shell.json("fit", images, "-m", "p.evg", *options, code=1)
    assert values["samples"] == 19
    (line,) = values["warnings"]
    assert line.startswith("1 image has two labels, such as lying/0.png and standing")
    assert "evergrow data images --check" in line
    values = shell.json("update", "p.evg", images, "--again", code=1)
    assert "1 image has two labels" in values["warnings"][0]
    pytest.importorskip("pyarrow")
    sharded = ("--engine", "local", "--set", "shard_rows=4")
    values = shell.json("fit", images, "-m", "s.evg", *options, *sharded, code=1)
    assert values["warnings"] == [line]
    values = shell.json("update", "p.evg", images, *sharded, code=1)
    assert values["warnings"] == [line]


def test_folders_that_are_no_classes_are_refused_unless_accepted(shell, images):
    images.rename("train")
    Path("data").mkdir()
    shutil.copytree("train", "data/train")
    shutil.copytree("train", "data/more")
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    said = shell.run("fit", "data", "-m", "p.evg", *options, code=2).stderr
    assert "'train' became a class" in said
    assert "probably not the classes; nothing was learned. If they are" in said
    assert "add --as-is" in said
    assert not Path("p.evg").exists()
    values = shell.json("fit", "data", "-m", "p.evg", *options, "--as-is", code=1)
    assert values["classes"] == ["more", "train"]
    with unchanged(Path("p.evg")):
        said = shell.run("update", "p.evg", "data", code=2).stderr
        assert "--as-is" in said
        shell.run("fit", "data", "-m", "q.evg", "--engine", "local", code=2)


@pytest.mark.parametrize(
    "name",
    ["train", "Training", "TEST", "testing", "val", "valid", "Validation"],
)
def test_a_class_named_like_a_part_of_the_data_is_refused_unless_accepted(
    shell, images, name
):
    (images / "lying").rename(images / name)
    options = ("--backbone", "test_resnet", "--set", "weights=random", "--units", 50)
    said = shell.run("fit", images, "-m", "p.evg", *options, code=2).stderr
    assert f"'{name}' became a class" in said
    assert "add --as-is" in said
    assert not Path("p.evg").exists()
    sharded = ("fit", images, "-m", "p.evg", *options, "--engine", "local")
    shell.run(*sharded, code=2)
    assert not Path("p.evg").exists()
    values = shell.json("fit", images, "-m", "p.evg", *options, "--as-is")
    assert sorted(values["classes"]) == sorted([name, "slanted", "standing"])
    with unchanged(Path("p.evg")):
        assert "add --as-is" in shell.run("update", "p.evg", images, code=2).stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--units", 10**6], "--units must be an integer"),
        (["--set", "preset=x"], "--set preset must be one of"),
        (["--weights", "none"], "--weights must be 'bundled', 'hub'"),
    ],
)
def test_errors_name_flags(shell, images, options, message):
    assert message in shell.error("fit", images, "-m", "p.evg", *options)


def test_errors_about_columns_name_flags(shell):
    Path("a.csv").write_text("question,label\nhow,a\n")
    Path("b.csv").write_text("text,class of it\nhow,a\n")
    Path("c.csv").write_text("text,label\nhow,a\n")
    for arguments, message in (
        (["a.csv"], "name another by --set text_column or --set image_column"),
        (["b.csv"], "name another by --set label_column"),
        (["c.csv", "--set", "text_column=label"], "besides the samples in 'label'"),
        (["c.csv", "--set", "label_column=text"], "besides the labels in 'text'"),
    ):
        assert message in shell.error("fit", *arguments, "-m", "m.evg")


TUNED = ("--backbone", "test_vit", "--set", "weights=random", "--units", 50)


def test_adapt_equals_the_adapted_learner(shell, images):
    values = shell.json(
        "fit",
        images,
        "-m",
        "p.evg",
        *TUNED,
        "--adapt",
        "ssf",
        "--set",
        "epochs=1",
        "--seed",
        3,
    )
    config = FsaConfig.recipe(tuner="ssf", epochs=1)
    mine = Learner(
        "test_vit",
        adapt=config,
        weights="random",
        options={"n_units": 50},
        random_state=3,
    ).fit(images)
    theirs = open_model("p.evg")
    np.testing.assert_array_equal(mine.encode(images).X, theirs.encode(images).X)
    np.testing.assert_allclose(
        mine.decision_function(images), theirs.decision_function(images), rtol=1e-9
    )
    assert values["adaptation"]["training"]["epochs"] == 1
    assert values["backbone"] == "test_vit+ssf"
    answers = shell.json("predict", "p.evg", images, "--no-unknown")["predictions"]
    assert [row["class"] for row in answers] == mine.predict(images).tolist()
    output = shell.run("inspect", "p.evg").stdout
    n_parameters = values["adaptation"]["n_parameters"]
    assert f"ssf, {n_parameters:,} parameters on test_vit, trained for 1" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["texts.csv", "--adapt", "ssf"],
            "A backbone is adapted to images, and these are texts",
        ),
        (["images", *TUNED, "--set", "epochs=3"], "--set epochs= is for --adapt"),
    ],
)
def test_adapt_rejects_texts_and_needs_its_option(
    shell, first, images, arguments, message
):
    Path("texts.csv").write_text("text,label\nhello,a\nbye,b\n")
    assert message in shell.error("fit", *arguments, "-m", "p.evg")
    assert not Path("p.evg").exists()


def test_the_backbone_line_is_short(shell, images, monkeypatch):
    from evergrow.features import weights

    choice = SimpleNamespace(
        name="test_resnet",
        weights="random",
        reason="test_resnet is here; without weights here: giants",
    )
    monkeypatch.setattr(weights, "best_backbone", lambda *_: choice)
    short = shell.run("fit", images, "-m", "a.evg").stdout
    assert "backbone: test_resnet, the strongest whose weights are here\n" in short
    assert "giants" not in short
    assert "giants" in shell.json("fit", images, "-m", "c.evg")["reason"]
