"""A model may begin with no class and with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evergrow import Learner
from evergrow.core.archive import Archive
from evergrow.core.errors import LabelError, NotFittedError, ParameterError, UnlearnError
from evergrow.learner.modelfile import commit, history, locked_model, redo, rollback

OPTIONS = {"n_units": 20}


def rows(axis: int = 0) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(30, 5)) + 8.0 * np.eye(5)[axis]


def empty() -> Learner:
    return Learner(None, options=OPTIONS, device="cpu").begin()


def test_an_empty_model_is_saved_loaded_and_taught(tmp_path: Path) -> None:
    path = tmp_path / "empty.evg"
    empty().save(path)
    learner = Learner.load(path, device="cpu")
    assert learner.classes_.tolist() == []
    assert learner.n_samples_ == {}
    assert learner.kind_ == "features"
    assert learner.info()["n_classes"] == 0
    assert "0 classes" in repr(learner)
    learner.partial_fit(rows(), ["ant"] * 30)
    direct = Learner(None, options=OPTIONS, device="cpu").fit(rows(), ["ant"] * 30)
    assert np.array_equal(learner.class_scores(rows()), direct.class_scores(rows()))


@pytest.mark.parametrize("question", ["predict", "class_scores", "predict_proba", "novelty_score", "ask", "is_unknown"])
def test_an_empty_model_says_that_it_knows_nothing(question: str) -> None:
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        getattr(empty(), question)(rows())


def test_an_empty_model_has_nothing_to_edit_or_merge() -> None:
    for edit in (lambda model: model.spawn(), lambda model: model.merge(empty()), lambda model: model.settle()):
        with pytest.raises(NotFittedError):
            edit(empty())
    with pytest.raises((NotFittedError, LabelError)):
        empty().rename_class("ant", "bee")


def test_history_goes_from_empty_to_taught_and_back(tmp_path: Path) -> None:
    path = tmp_path / "model.evg"
    commit(path, empty())
    first = path.read_bytes()
    for name, axis in (("ant", 0), ("bee", 1)):
        with locked_model(path, device="cpu") as learner:
            commit(path, learner.partial_fit(rows(axis), [name] * 30))
    last = path.read_bytes()
    assert [(change.what, change.revision) for change in history(path)] == [("begin", 1), ("fit", 2), ("update", 3)]
    rollback(path, 2)
    assert path.read_bytes() == first
    redo(path)
    assert path.read_bytes() == last


def test_an_empty_model_must_know_what_it_will_learn_from() -> None:
    with pytest.raises(ParameterError, match='kind must be "image", "text" or "features"'):
        Learner().begin()
    with pytest.raises(ParameterError, match="kind must be one of"):
        Learner().begin("sound")
    with pytest.raises(ParameterError, match="adapt must be None"):
        Learner(adapt="ssf").begin("image")


def test_a_model_without_its_last_class_is_empty_again() -> None:
    learner = Learner(None, options=OPTIONS, device="cpu").fit(rows(), ["ant"] * 30)
    learner.attach("notes", Archive("tests/notes", {"n": 1}))
    for left in (learner.copy().forget_classes("ant"), learner.copy().unlearn(rows(), ["ant"] * 30)):
        assert left.classes_.tolist() == []
        assert left.n_samples_ == {}
        assert left.attached("notes").meta == {"n": 1}
        assert left.history_[0].what == "fit"
        with pytest.raises(NotFittedError):
            left.predict(rows())
        assert left.partial_fit(rows(1), ["bee"] * 30).predict(rows(1)).tolist() == ["bee"] * 30
    with pytest.raises(UnlearnError):
        learner.unlearn(rows(2), ["ant"] * 30)
    assert learner.n_samples_ == {"ant": 30}
