"""``--test``: accuracy before and after, remembered with a checksum, kept in the history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import NAMES, clouds, unchanged, write_features

from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import history, open_model


@pytest.fixture
def tests(shell) -> Path:
    """Ten samples of every class, a little noisier than what is learned, so that not all are recognised."""
    X, y = clouds(NAMES, 10, 55)
    X = X + 3.0 * np.random.default_rng(5).normal(size=X.shape)
    np.savez("tests.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    return Path("tests.npz")


def accuracy(model: Path, tests: Path, names: tuple[str, ...]) -> float:
    """Compute the accuracy on samples of some classes from answers alone."""
    with np.load(tests) as held:
        X, y = held["X_test"], held["y_test"]
    rows = np.isin(y, names)
    return float(np.mean(open_model(model).predict(X[rows]) == y[rows]))


def test_accuracy_before_and_after_is_printed_and_kept(shell, first, later, tests):
    values = shell.json("fit", first, "-m", "m.evg", "--units", 50, "--test", tests)
    model = Path("m.evg")
    before = accuracy(model, tests, NAMES[:3])
    assert values["test"]["before"] is None
    assert values["test"]["after"] == pytest.approx(before)
    assert (values["test"]["samples"], values["test"]["samples_before"]) == (30, 0)
    found = shell.json("update", model, later)["test"]  # remembered
    after = accuracy(model, tests, NAMES)
    assert found["before"] == pytest.approx(before)
    assert found["after"] == pytest.approx(after)
    assert (found["samples_before"], found["samples"]) == (30, 60)
    assert history(model)[-1].tested.after == pytest.approx(after)
    assert f"accuracy {100 * before:.1f} % -> {100 * after:.1f} %" in shell.run("log", model).stdout


def test_classes_that_fell_are_named_with_both_shares(shell, model, tests):
    shell.run("update", model, write_features(Path("new.npz"), NAMES[3:], n=20, seed=1), "--test", tests)
    wrong = clouds(("ant",), 60, 3)[0], np.repeat(["wasp"], 60)
    np.savez("wrong.npz", X_train=wrong[0], y_train=wrong[1], X_test=wrong[0][:1], y_test=wrong[1][:1])
    with np.load(tests) as held:
        X, y = held["X_test"], held["y_test"]
    shares = [float(np.mean(open_model(model).predict(X[y == "ant"]) == "ant"))]
    result = shell.run("update", model, "wrong.npz")
    shares.append(float(np.mean(open_model(model).predict(X[y == "ant"]) == "ant")))
    assert shares[1] < shares[0]
    assert f"fell: ant {100 * shares[0]:.1f} % -> {100 * shares[1]:.1f} %" in result.stdout
    assert history(model)[-1].tested.fell["ant"] == pytest.approx(tuple(shares))


def test_few_samples_beside_others_are_named(shell, model, tests):
    X, y = clouds(("dog",), 1, 4)
    np.savez("one.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    assert "few samples beside others: dog (1)" in shell.run("update", model, "one.npz", "--test", tests).stdout


def test_data_that_changed_or_are_gone_are_said_to_be(shell, model, later, tests):
    shell.run("update", model, later, "--test", tests)
    with np.load(tests) as held:
        arrays = dict(held)
    np.savez(tests, **{**arrays, "X_test": arrays["X_test"] + 0.1})
    more = write_features(Path("more.npz"), NAMES[:2], seed=7)
    values = shell.json("update", model, more)
    assert "changed since" in values["test_remark"]
    assert values["test"]["samples"] == 60
    assert shell.json("update", model, write_features(Path("x.npz"), NAMES[:2], seed=8))["test_remark"] == ""
    tests.unlink()
    result = shell.run("update", model, write_features(Path("y.npz"), NAMES[:2], seed=9))
    assert "are not there any more: nothing was tested" in result.stdout
    tests.write_bytes(b"no data")
    values = shell.json("update", model, write_features(Path("z.npz"), NAMES[:2], seed=10))
    assert "cannot be read any more" in values["test_remark"]
    assert values["test"] is None


def test_wrong_test_data_are_refused_before_anything_is_learned(shell, first, model, later):
    with unchanged(model):
        shell.error("update", model, later, "--test", "nowhere.npz")
    shell.error("fit", first, "-m", "new.evg", "--test", "nowhere.npz")
    assert not Path("new.evg").exists()


def test_renamed_and_merged_classes_are_tested_under_their_new_names(shell, model, tests):
    shell.run("update", model, write_features(Path("a.npz"), NAMES[:3], seed=4), "--test", tests)
    shell.run("rename", model, "ant", "wasp")
    shell.run("merge-classes", model, "wasp", "bee", "--into", "insect")
    values = shell.json("update", model, write_features(Path("b.npz"), ("cat",), seed=5))
    assert values["test"]["samples"] == 30
    assert values["test_remark"] == ""


def test_a_file_with_strange_test_data_is_refused_or_ignored(shell, model, later):
    archive = Learner.load(model).to_archive()
    archive.meta["reference"] = {"source": "hf://stranger/data", "digest": "", "samples": 3, "names": {}}
    Learner.load(archive).save("s.evg")
    assert "are not there any more" in shell.json("update", "s.evg", later)["test_remark"]  # nothing is fetched


def test_columns_of_test_data_are_remembered(shell, monkeypatch):
    from tests.learner.toys import Letters

    from evergrow.data import DataOptions
    from evergrow.learner.comparison import measured_change

    table = Path("tests.csv")
    table.write_text("satz,text,art\nabba,x,a\nbaab,x,a\nzzyx,x,z\nxyzz,x,z\n")
    learner = Learner(Letters(), options={"n_units": 10}).fit((["aab", "abb", "zzx", "xyz"], ["a", "a", "z", "z"]))
    options = DataOptions(text_column="satz", label_column="art")
    with measured_change(learner, table, options) as trial:
        learner.partial_fit((["aa", "zz"], ["a", "z"]))
    assert trial.tested.samples == 4
    again = Learner.load(learner.to_archive(), backbone=Letters())
    with measured_change(again) as trial:
        again.partial_fit((["aaa", "zzz"], ["a", "z"]))
    assert (trial.remark, trial.tested.samples, trial.tested.digest) == ("", 4, learner.history_[-1].tested.digest)
