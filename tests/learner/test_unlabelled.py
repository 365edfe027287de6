"""Unlabelled samples in a learner: reports, files, exact rollback and removal."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from tests.learner.toys import assert_same, refused

from evergrow import Learner
from evergrow.core.errors import (
    InputError,
    LabelError,
    ParameterError,
    UnsupportedError,
)
from evergrow.learner.modelfile import commit, history, locked_model, rollback

SMALL = {"n_units": 30}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    means = rng.normal(size=(4, 10))
    names = np.array(["ant", "bee", "cat", "dog"])

    def drawn(n):
        y = np.tile(np.arange(4), n)
        return means[y] + 0.8 * rng.normal(size=(len(y), 10)), names[y]

    return drawn(3), drawn(50), drawn(50)


@pytest.fixture
def learner(data):
    return Learner(None, options=SMALL).fit(data[0])


def test_learn_unlabelled_reports_and_records_its_samples(data, learner):
    before = learner.score(data[2])
    known = learner.state_.threshold()
    report = learner.learn_unlabelled(data[1][0])
    assert learner.score(data[2]) > before
    assert (learner.state_.label_counts, learner.state_.threshold()) == (
        dict.fromkeys(["ant", "bee", "cat", "dog"], 3),
        known,
    )
    assert (
        learner.state_.describe()["n_unlabelled"]
        == report.used
        == learner.state_.history[-1].samples
    )
    assert learner.state_.history[-1].what == "unlabelled"
    assert f"{report.unknown} left out" in learner.state_.history[-1].note
    assert set(report.classes) == {"ant", "bee", "cat", "dog"}


def test_a_stream_is_guessed_block_by_block(data, learner, monkeypatch):
    monkeypatch.setattr("evergrow.learner.edits.join_rows", lambda blocks: blocks)
    report = learner.learn_unlabelled(iter(data[1][0]))
    assert report.used == learner.state_.describe()["n_unlabelled"] > 100


def test_forgetting_gives_the_same_answers_and_sums_as_never(data, learner):
    twin = copy.copy(learner)
    (rows, _) = data[1]
    learner.learn_unlabelled(rows)
    learner.predict_proba(rows[:3])
    learner.unlearn(unlabelled=True)
    assert np.array_equal(learner.predict_proba(rows), twin.predict_proba(rows))
    assert_same(learner.head_.to_archive(), twin.head_.to_archive())
    assert learner.state_.history[-1].what == "forget-unlabelled"


def test_rollback_is_byte_exact_and_files_keep_guesses(data, learner, tmp_path):
    path = tmp_path / "model.evg"
    commit(path, learner)
    before = path.read_bytes()
    with locked_model(path) as opened:
        used = opened.learn_unlabelled(data[1][0]).used
        commit(path, opened)
        expected = opened.predict_proba(data[2][0])
    loaded = Learner.load(path)
    assert np.array_equal(loaded.predict_proba(data[2][0]), expected)
    assert Learner.load(path, lazy=True).state_.describe()["n_unlabelled"] == used
    assert (
        loaded.partial_fit(*(part[:8] for part in data[1])).state_.describe()[
            "n_unlabelled"
        ]
        < used
    )  # labels replace guesses
    rollback(path)
    assert path.read_bytes() == before
    assert [change.what for change in history(path)] == [
        "fit",
        "unlabelled",
        "rollback",
    ]


def test_learners_with_guesses_merge_over_their_base(data, learner):
    (rows, labels), one, two = data[1], copy.copy(learner), copy.copy(learner)
    one.learn_unlabelled(rows[:80])
    two.partial_fit(rows[80:120], labels[80:120])
    merged = copy.copy(one).merge(two, base=learner)
    assert (
        merged.state_.describe()["n_unlabelled"]
        == one.state_.describe()["n_unlabelled"]
    )
    assert merged.state_.label_counts == two.state_.label_counts


def test_learn_unlabelled_failure_leaves_the_learner_unchanged(data, learner):
    rows, labels = data[1]
    strange = (
        np.arange(1, 8)[:, None] * -rows[labels == "dog"].mean(axis=0) + 1e-3 * rows[:7]
    )
    taught = Learner(None, options=SMALL).fit(data[1])
    with refused(taught, InputError, "none of the 7 samples"):
        taught.learn_unlabelled(strange)
    one = Learner(None, options=SMALL).fit(data[0][0], ["ant"] * 12)
    with refused(one, LabelError, "at least two learned classes"):
        one.learn_unlabelled(data[1][0])
    paper = Learner(None, "scl-mgsm", options={"max_units": 20}).fit(data[0])
    with refused(paper, UnsupportedError, "denoised readout"):
        paper.learn_unlabelled(data[1][0])
    with refused(learner, ParameterError, "factor must be"):
        learner.fade(0)


def test_faded_samples_count_less_than_new_ones(data, learner):
    rows, labels = data[1]
    learner.fade(0.25).partial_fit(rows, labels)
    weights = np.concatenate([np.full(12, 0.25), np.ones(len(labels))])
    assert learner.state_.history[-2].note == "times 0.25"
    assert float(learner.head_.model_.masses.sum()) == weights.sum()
    assert learner.state_.label_counts == dict.fromkeys(
        ["ant", "bee", "cat", "dog"], 53
    )
