"""Prior and thresholds against a computation row by row; what was learned stays as it was."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import birds

from evergrow.core.archive import Archive
from evergrow.core.errors import FileFormatError, LabelError, ParameterError, UnsupportedError
from evergrow.learner.answers import LIKELIEST, Answering
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, history, open_model, rollback

NAMES = ("crow", "jay", "owl", "rook")
COUNTS = {"crow": 40, "jay": 25, "owl": 12, "rook": 5}


@functools.cache
def taught(*options: tuple[str, Any]) -> Archive:
    return Learner(options={"n_units": 30, **dict(options)}).fit(birds(COUNTS, spread=2.1)).to_archive()


def learner(**options: Any) -> Learner:
    return Learner.load(taught(*options.items()))


ASKED, TRUTH = birds(dict.fromkeys(NAMES, 60), 9, spread=2.1)


@pytest.mark.parametrize(
    ("options", "assumed"),
    [({}, "uniform"), ({"readout": "ridge"}, "counts")],
)
@pytest.mark.parametrize("prior", ["uniform", "counts", {"owl": 10.0, "crow": 2.0}])
def test_probabilities_under_another_prior(options: dict[str, Any], assumed: str, prior: Any) -> None:
    model = learner(**options)
    plain = model.predict_proba(ASKED)
    model.set_answering(prior=prior)
    weights = {"uniform": dict.fromkeys(NAMES, 1.0), "counts": COUNTS}.get(prior if isinstance(prior, str) else "")
    weights = weights or {"owl": 10.0, "crow": 2.0, "jay": 6.0, "rook": 6.0}
    for row, likely in zip(model.predict_proba(ASKED), plain, strict=True):
        ratio = [
            p * weights[name] / (COUNTS[name] if assumed == "counts" else 1.0)
            for p, name in zip(likely, NAMES, strict=True)
        ]
        np.testing.assert_allclose(row, np.array(ratio) / sum(ratio), atol=1e-12)
    assert model.predict(ASKED).tolist() == [NAMES[i] for i in model.predict_proba(ASKED).argmax(axis=1)]


def expected_answers(likely: np.ndarray, thresholds: dict) -> list[str]:
    """Decide row by row, in words as the documentation has them."""
    answers = []
    for row in likely:
        p = dict(zip(NAMES, row.tolist(), strict=True))
        reached = [name for name in NAMES if name in thresholds and p[name] >= thresholds[name]]
        free = [name for name in NAMES if name not in thresholds]
        if reached or not free:
            answers.append(max(reached or NAMES, key=lambda name, p=p: p[name] / thresholds[name]))
        else:
            answers.append(max(free, key=p.__getitem__))
    return answers


@pytest.mark.parametrize(
    "thresholds",
    [{"rook": 0.02}, {"crow": 0.95}, {"rook": 0.05, "owl": 0.1}, {"crow": 0.9, "jay": 0.9, "owl": 0.8, "rook": 0.99}],
)
@pytest.mark.parametrize("prior", [None, {"rook": 3.0, "crow": 1.0}])
def test_answers_are_those_decided_row_by_row(thresholds: dict, prior: Any) -> None:
    model = learner()
    before = model.predict(ASKED)
    model.set_answering(prior=prior, thresholds=thresholds)
    answers = model.predict(ASKED)
    assert answers.tolist() == expected_answers(model.predict_proba(ASKED), thresholds)
    assert (answers != before).any()
    found = model.ask(ASKED, false_alarm=0.05)
    assert [found.classes[i] for i in found.ranked(1)[:, 0]] == answers.tolist()
    rest = found.ranked(4)[:, 1:]
    assert all(sorted(row, key=lambda i: -values[i]) == row for row, values in zip(rest.tolist(), found.values))
    assert model.evaluate((ASKED, TRUTH)).accuracy == pytest.approx(np.mean(answers == TRUTH))


def test_scores_and_statistics_are_untouched_and_it_can_be_undone(tmp_path: Path) -> None:
    path, model = tmp_path / "m.evg", learner()
    commit(path, model)
    before, scores = path.read_bytes(), model.decision_function(ASKED)
    model.set_answering(thresholds={"rook": 0.02})
    np.testing.assert_array_equal(model.decision_function(ASKED), scores)
    commit(path, model)
    again = open_model(path)
    assert again.answering_ == model.answering_
    assert again.predict(ASKED).tolist() == model.predict(ASKED).tolist()
    assert [(change.what, change.note) for change in history(path)][1] == ("answering", "thresholds rook=0.02")
    rollback(path)
    assert path.read_bytes() == before


def test_settings_follow_their_classes() -> None:
    model = learner().set_answering(prior={"crow": 2.0, "rook": 4.0}, thresholds={"rook": 0.1})
    model.rename_class("crow", "raven")
    assert model.answering_.prior == {"raven": 2.0, "rook": 4.0}
    model.merge_classes(["raven", "rook"], "corvid")
    assert model.answering_.prior == {"corvid": 6.0}
    assert model.answering_.thresholds == {}
    model.forget_classes("jay")
    model.partial_fit(birds({"crow": 9}, 3))
    assert model.predict_proba(ASKED).shape[1] == 3
    assert model.answering_ != LIKELIEST


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"prior": "equal"}, ParameterError, "prior must be one of .*, got 'equal'"),
        ({"prior": {"crwo": 1.0}}, LabelError, "nearest: 'crow'"),
        ({"prior": {"crow": 0.0}}, ParameterError, "'crow' should be a number from 1e-12 to 1e\\+12, but is 0.0"),
        ({"prior": {}}, ParameterError, "at least one class"),
        ({"prior": 3}, ParameterError, "'prior' should be an object, but is 3"),
        ({"thresholds": {"crow": 1.5}}, ParameterError, "'crow' should be a number from 1e-12 to 1, but is 1.5"),
        ({"thresholds": {"crow": float("nan")}}, ParameterError, "but is nan"),
        ({"thresholds": {"crow": True}}, ParameterError, "but is True"),
        ({"thresholds": {"crow": "a"}}, ParameterError, "but is 'a'"),
        ({"thresholds": {"nobody": 0.5}}, LabelError, "got 'nobody'"),
        ({"thresholds": [0.5]}, ParameterError, "'thresholds' should be an object"),
    ],
)
def test_settings_that_do_not_do_are_refused_in_calls_and_in_files(
    settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    model = learner()
    with pytest.raises(error, match=said):
        model.set_answering(**settings)
    assert model.revision_ == 1
    archive = model.set_answering(thresholds={"crow": 0.5}).to_archive()
    archive.meta["answering"] = {**archive.meta["answering"], **settings}
    with pytest.raises(FileFormatError):
        Learner.load(archive)


def test_methods_without_probabilities_say_so() -> None:
    with pytest.raises(UnsupportedError, match="give class probabilities"):
        Learner(method="simplecil").fit(birds(COUNTS)).set_answering(prior="counts")


def test_fields_of_a_later_version_are_kept() -> None:
    archive = learner().set_answering(thresholds={"crow": 0.5}).to_archive()
    archive.meta["answering"]["mood"] = "good"
    assert Learner.load(archive).to_archive().meta["answering"]["mood"] == "good"


def test_a_file_without_settings_answers_as_it_learned() -> None:
    archive = learner().to_archive()
    assert archive.meta.pop("answering") == {}
    assert Learner.load(archive).answering_ == Answering()
