"""``--test``: accuracy before and after, kept in the history."""

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
    found = shell.json("update", model, later, "--test", tests)["test"]
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
    result = shell.run("update", model, "wrong.npz", "--test", tests)
    shares.append(float(np.mean(open_model(model).predict(X[y == "ant"]) == "ant")))
    assert shares[1] < shares[0]
    assert f"fell: ant {100 * shares[0]:.1f} % -> {100 * shares[1]:.1f} %" in result.stdout
    assert history(model)[-1].tested.fell["ant"] == pytest.approx(tuple(shares))


def test_few_samples_beside_others_are_named(shell, model, tests):
    X, y = clouds(("dog",), 1, 4)
    np.savez("one.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    assert "few samples beside others: dog (1)" in shell.run("update", model, "one.npz", "--test", tests).stdout


def test_wrong_test_data_are_refused_before_anything_is_learned(shell, first, model, later):
    with unchanged(model):
        shell.error("update", model, later, "--test", "nowhere.npz")
    shell.error("fit", first, "-m", "new.evg", "--test", "nowhere.npz")
    assert not Path("new.evg").exists()


def test_columns_of_test_data(shell):
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
