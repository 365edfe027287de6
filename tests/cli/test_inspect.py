import numpy as np
from tests.cli.conftest import NAMES

from evergrow import Learner
from evergrow.learner.modelfile import open_model


def test_everything_is_told(shell, model, later):
    shell.run("update", model, later)
    values = shell.json("inspect", model)
    info = open_model(model).info()
    assert {name: values[name] for name in ("classes", "history", "n_units", "backbone", "revision")} == {
        name: info[name] for name in ("classes", "history", "n_units", "backbone", "revision")
    }
    assert values["bytes"] == model.stat().st_size


def test_lines_for_people(shell, model, later):
    shell.run("update", model, later)
    shell.run("forget", model, "eel")
    shell.run("rollback", model)
    shell.run("forget", model, "fox")
    output = shell.run("inspect", model).stdout
    assert "undid forget" in output
    assert "none: samples are feature vectors" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["ant", "20"] in rows
    told = [["forget", "20", "-1:", name] for name in ("fox", "eel")]  # the latest first, and what was undone too
    assert [row[-4:] for row in rows if "-1:" in row] == told
    assert any("+3:" in row and "update" in row for row in rows)


def test_images_tell_backbone_and_preprocessing_without_loading_it(shell, image_model, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the backbone must not be loaded")

    monkeypatch.setattr("evergrow.features.backbones.create_backbone", refuse)
    output = shell.run("inspect", image_model).stdout
    assert "test_resnet for images, random weights" in output
    assert "preprocessing" in output


def test_long_lists_are_cut_unless_asked_for(shell, first, monkeypatch):
    monkeypatch.setattr("evergrow.cli.inspect._CLASSES", 2)
    shell.run("fit", first, "-m", "m.evg", "--units", 50)
    assert "(and 1 more: --full)" in shell.run("inspect", "m.evg").stdout
    output = shell.run("inspect", "m.evg", "--full").stdout
    assert "--full" not in output
    assert all(name in output for name in NAMES[:3])


def test_blocks_tell_their_weights(shell, tmp_path):
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(90) % 3]
    means = dict(zip(("ant", "bee", "cat"), 3 * rng.normal(size=(3, 6)), strict=True))
    X = np.concatenate([np.stack([means[name] for name in y]), np.zeros((90, 4))], axis=1) + rng.normal(size=(90, 10))
    path = tmp_path / "blocks.evg"
    options = {"n_units": 20, "blocks": (6, 4)}
    learner = Learner(options=options).fit((X, y))
    learner.predict(X[:1])
    learner.save(path)
    told = shell.json("inspect", path)["blocks"]
    assert [block["columns"] for block in told] == [6, 4]
    assert told[0]["weight"] > 1.0 > told[1]["weight"]
    output = " ".join(shell.run("inspect", path).stdout.split())
    assert f"{told[0]['weight']:.2f} x 6 columns" in output
