import pytest
from tests.cli.conftest import NAMES

from evergrow.learner.modelfile import open_model


def test_everything_is_told(shell, model, later):
    shell.run("update", model, later)
    values = shell.json("inspect", model)
    info = open_model(model).info(numerics=True)
    assert {name: values[name] for name in ("classes", "history", "n_units", "backbone", "revision")} == {
        name: info[name] for name in ("classes", "history", "n_units", "backbone", "revision")
    }
    assert values["numerics"]["effective_rank"] == pytest.approx(info["numerics"]["effective_rank"])
    assert values["bytes"] == model.stat().st_size


def test_lines_for_people(shell, model, later):
    shell.run("update", model, later)
    shell.run("forget", model, "eel")
    shell.run("rollback", model)
    shell.run("forget", model, "fox")
    output = shell.run("inspect", model).stdout
    assert "undid forget" in output
    assert "effective rank" in output
    assert "condition number" in output
    assert "none: samples are feature vectors" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["ant", "20"] in rows
    assert [row[-4:] for row in rows if "-1:" in row] == [["forget", "20", "-1:", "fox"]]
    assert any("+3:" in row and "update" in row for row in rows)
    assert "condition" not in shell.run("inspect", model, "--no-numerics").stdout


def test_images_tell_backbone_and_preprocessing_without_loading_it(shell, image_model, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the backbone must not be loaded")

    monkeypatch.setattr("evergrow.backbones.create.create_backbone", refuse)
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
