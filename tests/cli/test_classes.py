"""Renaming, merging and relabelling from the command line: exact, in history, undoable."""

from __future__ import annotations

import numpy as np
from tests.cli.conftest import NAMES, assert_same_answers, clouds, unchanged

from evergrow.learner.modelfile import history, open_model


def test_rename_is_written_and_undone(shell, model):
    before = model.read_bytes()
    values = shell.json("rename", model, "ant", "wasp")
    assert values["names"] == {"ant": "wasp"}
    assert values["revision"] == 2
    assert open_model(model).n_samples_ == {"bee": 20, "cat": 20, "wasp": 20}
    assert [(change.what, change.names) for change in history(model)][1] == ("rename", {"ant": "wasp"})
    shell.run("rollback", model)
    assert model.read_bytes() == before


def test_rename_several_at_once(shell, model):
    output = shell.run("rename", model, "ant", "bee", "bee", "ant").stdout
    assert "renamed ant -> bee, bee -> ant" in output
    X, _ = clouds(("ant",), 20, 0)
    assert set(open_model(model).predict(X)) == {"bee"}


def test_names_that_do_not_do(shell, model):
    for arguments, said in (
        (("antt", "wasp"), "got 'antt'; nearest: 'ant'"),
        (("ant", "bee"), "got 'bee' for two: merge_classes makes them one"),
        (("ant", "bee", "cat"), "Give names in pairs, OLD NEW; 3 names cannot be paired"),
        (("ant", "x", "ant", "y"), "is to be renamed twice"),
        (("ant", ""), "names that can be seen"),
    ):
        with unchanged(model):
            assert said in shell.error("rename", model, *arguments)


def test_merge_classes_equals_learning_under_one_name(shell, model):
    worker = open_model(model).spawn()
    values = shell.json("merge-classes", model, "ant", "cat", "--into", "animal")
    assert values["merged"] == ["ant", "cat"]
    assert values["classes"] == ["animal"]
    assert values["samples"] == 40
    X, y = clouds(NAMES[:3], 20, 0)
    worker.partial_fit((X, np.where(y == "bee", "bee", "animal"))).settle()
    assert_same_answers(open_model(model).settle(), worker, 1e-9)


def test_merge_classes_says_what_it_did(shell, model):
    output = shell.run("merge-classes", model, "ant", "--into", "cat", "--settle").stdout
    assert "merged 2 classes (ant, cat) into cat: 40 samples" in output
    assert "settled" in output
    assert "m.evg knows 2 classes from 60 samples (revision 2)" in output
    assert "at least two different classes" in shell.error("merge-classes", model, "cat", "--into", "cat")


def test_relabel_equals_learning_as_the_other_class(shell, model):
    X, y = clouds(NAMES[:3], 20, 0)
    worker = open_model(model).spawn()
    np.savez("wrong.npz", X_train=X[:5], y_train=y[:5], X_test=X[5:7], y_test=y[5:7])
    values = shell.json("relabel", model, "wrong.npz", "--from", "ant", "--to", "bee")
    assert values["samples"] == 5  # the test part stays
    worker.partial_fit((X, np.where(np.arange(60) < 5, "bee", y))).settle()
    assert_same_answers(open_model(model).settle(), worker, 1e-9)
    assert "labelled 'cat', got labels 'ant'" in shell.error(
        "relabel", model, "wrong.npz", "--from", "cat", "--to", "bee"
    )


def test_relabel_of_features_without_labels(shell, model):
    X, _ = clouds(NAMES[:3], 20, 0)
    np.save("wrong.npy", X[:20])
    output = shell.run("relabel", model, "wrong.npy", "--from", "ant", "--to", "wasp").stdout
    assert "moved 20 samples from ant to wasp; ant is gone, since none of its samples remained" in output


def test_relabel_of_images(shell, image_model, images):
    for file in sorted((images / "lying").iterdir())[:2]:
        (images / "loose").mkdir(exist_ok=True)
        file.rename(images / "loose" / file.name)
    options = ("--set", "weights=random")
    shell.run("relabel", image_model, images / "loose", "--from", "lying", "--to", "standing", *options)
    assert open_model(image_model).n_samples_ == {"lying": 4, "slanted": 6, "standing": 8}
