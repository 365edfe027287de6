"""``evergrow inspect`` and ``diff``."""

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, clouds, write_features

from evergrow import Learner
from evergrow.learner.modelfile import open_model


def test_inspect_equals_learner_info(shell, model, later):
    shell.run("update", model, later)
    values = shell.json("inspect", model)
    info = open_model(model).state_.describe()
    assert {
        name: values[name]
        for name in ("classes", "history", "n_units", "backbone", "revision")
    } == {
        name: info[name]
        for name in ("classes", "history", "n_units", "backbone", "revision")
    }
    assert values["bytes"] == model.stat().st_size


def test_inspect_lists_undone_changes(shell, model, later):
    shell.run("update", model, later)
    shell.run("forget", model, "eel")
    shell.run("rollback", model)
    shell.run("forget", model, "fox")
    output = shell.run("inspect", model).stdout
    assert "undid forget" in output
    assert "none: samples are feature vectors" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["ant", "20"] in rows
    told = [
        ["forget", "20", "-1:", name] for name in ("fox", "eel")
    ]  # the latest first, and what was undone too
    assert [row[-4:] for row in rows if "-1:" in row] == told
    assert any("+3:" in row and "update" in row for row in rows)


def test_inspect_shows_the_backbone_without_loading_it(shell, image_model, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the backbone must not be loaded")

    monkeypatch.setattr("evergrow.features.catalog.create_backbone", refuse)
    output = shell.run("inspect", image_model).stdout
    assert "test_resnet for images, random weights" in output
    assert "preprocessing" in output


def test_long_lists_are_cut_without_full(shell, first, monkeypatch):
    monkeypatch.setattr("evergrow.cli.inspect._MAX_ROWS", 2)
    shell.run("fit", first, "-m", "m.evg", "--units", 50)
    assert "(and 1 more: --full)" in shell.run("inspect", "m.evg").stdout
    output = shell.run("inspect", "m.evg", "--full").stdout
    assert "--full" not in output
    assert all(name in output for name in NAMES[:3])


def test_inspect_shows_block_weights(shell, tmp_path):
    rng = np.random.default_rng(0)
    y = np.array(["ant", "bee", "cat"])[np.arange(90) % 3]
    means = dict(zip(("ant", "bee", "cat"), 3 * rng.normal(size=(3, 6)), strict=True))
    X = np.concatenate(
        [np.stack([means[name] for name in y]), np.zeros((90, 4))], axis=1
    ) + rng.normal(size=(90, 10))
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


# -- diff ----


@pytest.fixture
def hard(shell) -> Path:
    X, y = clouds(NAMES[:4], 25, 70)
    X = X + 3.0 * np.random.default_rng(1).normal(size=X.shape)
    np.savez("hard.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    return Path("hard.npz")


def test_diff_compares_revisions(shell, model, hard):
    before = open_model(model)
    shell.run(
        "update", model, write_features(Path("more.npz"), NAMES[:4], n=30, seed=4)
    )
    after = open_model(model)
    values = shell.json("diff", "m.evg@1", model, "--data", hard)
    assert values["revisions"] == [1, 2]
    assert values["second_only"] == ["dog"]
    assert values["counts"] == {name: [20, 50] for name in NAMES[:3]}
    with np.load(hard) as held:
        X = held["X_test"]
        y = held["y_test"]
    answers = before.predict(X), after.predict(X)
    known = y != "dog"
    assert values["first"]["accuracy"] == pytest.approx(
        np.mean(answers[0][known] == y[known])
    )
    assert values["second"]["accuracy"] == pytest.approx(np.mean(answers[1] == y))
    changed = np.flatnonzero(answers[0] != answers[1])
    assert len(changed) > 20
    assert [
        (entry["item"], entry["label"], entry["first"], entry["second"])
        for entry in values["changed"]
    ] == [(f"row {row}", y[row], answers[0][row], answers[1][row]) for row in changed]
    for name, (old, new) in values["per_class"].items():
        shares = [np.mean(said[y == name] == name) for said in answers]
        assert new == pytest.approx(shares[1])
        assert old is None if name == "dog" else old == pytest.approx(shares[0])
    output = shell.run("diff", "m.evg@1", model, "--data", hard).stdout
    assert "only in the second  dog" in output
    assert "now right" in output
    assert "more: --full)" in output


def test_diff_uses_current_class_names(shell, model, hard):
    shell.run("rename", model, "ant", "wasp")
    shell.run("merge-classes", model, "wasp", "bee", "--into", "insect")
    with np.load(hard) as held:
        y = np.where(np.isin(held["y_test"], ["ant", "bee"]), "insect", held["y_test"])
        np.savez(
            "now.npz",
            X_train=held["X_test"],
            y_train=y,
            X_test=held["X_test"],
            y_test=y,
        )
    values = shell.json("diff", "m.evg@1", model, "--data", "now.npz")
    assert values["names"] == {"ant": "insect", "bee": "insect"}
    assert values["counts"] == {}
    assert values["first_only"] == values["second_only"] == []
    assert {entry["first"] for entry in values["changed"]} <= {"insect", "cat"}
    assert (
        shell.json("diff", "m.evg@1", model, "--data", hard)["changed"]
        == values["changed"]
    )  # under old labels
    assert values["first"]["n_known"] == 75


def test_diff_without_data_compares_classes(shell, model, later):
    shell.run("fit", later, "-m", "other.evg", "--units", 50)
    values = shell.json("diff", model, "other.evg")
    assert (values["first_only"], values["second_only"]) == (
        list(NAMES[:3]),
        list(NAMES[3:]),
    )
    assert values["first"] is None
    assert (
        "3 classes, 60 samples (revision 1)"
        in shell.run("diff", model, "other.evg").stdout
    )


def test_diff_of_equal_models(shell, model, hard):
    assert (
        "no prediction changed"
        in shell.run("diff", model, model, "--data", hard).stdout
    )


def test_diff_rejects_missing_and_unlike_models(shell, model, image_model, hard):
    assert "Revision 7 is not kept" in shell.error("diff", "m.evg@7", model)
    assert "No model" in shell.error("diff", "nowhere.evg@1", model)
    assert "same kind of samples, got features and image" in shell.error(
        "diff", model, image_model, "--data", hard
    )
