"""Commands for few labels: --unlabelled, fade, suggest, group, drift and --curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from evergrow import Learner
from evergrow.cli.registry import build_app
from evergrow.learner.modelfile import commit


@pytest.fixture(scope="module")
def run():
    app = build_app()

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


@pytest.fixture
def files(tmp_path):
    """Return a model of feature vectors, new vectors with labels and without."""
    means = 1.2 * np.random.default_rng(0).normal(size=(6, 12))
    rng = np.random.default_rng(1)

    def rows(n, classes):
        y = np.repeat(list(classes), n)
        return (means[y] + 0.7 * rng.normal(size=(len(y), 12))).astype(
            np.float32
        ), np.array([f"c{code}" for code in y])

    commit(
        tmp_path / "m.evg",
        Learner(None, options={"n_units": 30}).fit(rows(6, range(4))),
    )
    X, y = rows(20, range(4))
    np.savez(
        tmp_path / "labelled.npz",
        X_train=X,
        y_train=y,
        X_test=X,
        y_test=y,
        classes=np.unique(y),
    )
    np.save(tmp_path / "pool.npy", rows(20, range(6))[0])
    return tmp_path


def test_update_and_forget_unlabelled(run, files):
    model = files / "m.evg"
    values = json.loads(
        run("update", model, files / "pool.npy", "--unlabelled", "--json")
    )
    used = values["unlabelled"]["used"]
    assert used + values["unlabelled"]["unknown"] == 120
    assert f"{used}, as guesses" in run("inspect", model)
    assert f"forgot {used} samples without labels" in run(
        "forget", model, "--unlabelled"
    )
    assert "as guesses" not in run("inspect", model)
    run("forget", model, code=2)
    assert "times 0.5" in run("fade", model, 0.5) + run("log", model)
    run("fade", model, 2, code=2)


def test_suggest_group_and_drift(run, files):
    model = files / "m.evg"
    pool = files / "pool.npy"
    found = json.loads(run("suggest", model, pool, "-n", 10, "--json"))["suggestions"]
    assert len(found) == 10
    assert sum(entry["reason"] == "looks unknown" for entry in found) == 2
    run("suggest", model, pool, "--out", files / "list.csv")
    assert (files / "list.csv").read_text().startswith("item,reason\n")
    assert "group-001" in run("group", model, pool, "--groups", 2)
    run("group", model, pool, "--out", files / "groups", code=2)  # vectors are no files
    assert "changed" in run("drift", model, pool)
    values = json.loads(
        run("drift", model, files / "labelled.npz", "--labelled", "--json")
    )
    assert 0 <= values["fraction"] <= 1


def test_an_unreadable_image_of_the_data_exits_with_1(shell, image_model, images):
    commands = [
        ("suggest", image_model, images, "-n", 3),
        ("drift", image_model, images),
    ]
    for command in commands:
        shell.run(*command, "--on-error", "skip")
    Path(images, "lying", "broken.png").write_bytes(b"not an image")
    for command in commands:
        shell.run(*command, code=2)  # the default is --on-error raise
        shell.run(*command, "--on-error", "skip", code=1)


def test_curve_is_printed_and_in_the_report(run, files):
    page = files / "page.html"
    output = run(
        "evaluate", files / "m.evg", files / "labelled.npz", "--curve", "--report", page
    )
    assert "ten more of each" in output
    assert "<svg" in page.read_text()


def test_blame_lists_the_samples_behind_an_answer(run, files):
    model = files / "m.evg"
    data = files / "learned.npz"
    question = files / "question.npy"
    rng = np.random.default_rng(3)
    means = rng.normal(size=(4, 12)).astype(np.float32)
    y = np.repeat(range(4), 12)
    X = means[y] + 0.3 * rng.normal(size=(48, 12)).astype(np.float32)
    names = np.array([f"c{code}" for code in y])
    names[5] = "c3"
    np.savez(data, X_train=X, y_train=names, classes=np.unique(names))
    np.save(question, X[5:6])
    run("fit", data, "-m", model, "--force", "--units", 30)
    before = model.read_bytes()
    values = json.loads(run("blame", model, question, data, "--label", "c3", "--json"))
    assert values["answer"] == "c3"
    assert values["samples"][0]["name"] == "row 5"
    assert len(values["samples"]) == 48
    lines = run("blame", model, question, data, "-n", 2).splitlines()
    assert lines[0].startswith("row 0: c0 ")
    assert "change the answer on their own" in lines[-1]
    assert "--label must be a class" in run(
        "blame", model, question, data, "--label", "owl", code=2
    )
    assert "one sample" in run("blame", model, data, data, code=2)
    assert "was never learned" not in run("data", data, "--suspects", model, code=1)
    found = json.loads(run("data", data, "--suspects", model, "--json", code=1))
    worst = found["suspects"]["samples"][0]
    assert (worst["name"], worst["label"]) == ("row 5", "c3")
    assert (worst["suggestion"], worst["likely"]) == ("c0", True)
    new = json.loads(run("data", data, "--suspects", model, "--new", "--json"))
    assert new["suspects"]["n_new"] == 48
    assert "--suspects" in run("data", data, "--new", code=2)
    np.savez(data, X_train=X, y_train=[f"d{code}" for code in y])
    assert "that the model knows" in run("data", data, "--suspects", model, code=2)
    assert model.read_bytes() == before
