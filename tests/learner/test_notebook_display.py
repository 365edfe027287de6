"""Estimators in notebooks: parameters and what was learned, as escaped HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.learner.toys import Letters
from tests.samples import separated_rows

from evergrow import Classifier, Learner, SCLClassifier

HOSTILE = "<script>alert(1)</script>&\"'"


class Tables(HTMLParser):
    """Collects the rows of tables, and all tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, _: Any) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self._in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def shown(estimator: Any) -> dict[str, str]:
    """Return the tables of an estimator as names and values."""
    return dict(Tables(estimator._repr_html_()).rows)


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(30) % 3
    return separated_rows(y, 4, distance=9.0), np.array(["a", "b", "c"])[y]


@pytest.mark.parametrize("kind", [Classifier, SCLClassifier])
def test_a_classifier_shows_parameters_and_what_it_learned(
    kind: Any, data: Any
) -> None:
    classifier = kind(n_units=20)
    before = shown(classifier)
    assert before["n_units"] == "20"
    assert set(before) == set(classifier.get_params())
    after = shown(classifier.fit(*data))
    assert after["classes"] == "a (10), b (10), c (10)"
    assert (after["samples"], after["features"]) == ("30", "4")


def test_a_learner_shows_parameters_and_what_it_learned(data: Any) -> None:
    learner = Learner(None, options={"n_units": 20})
    before = shown(learner)
    assert before["options"] == "{'n_units': 20}"
    assert set(before) == set(learner.get_params())
    after = shown(learner.fit(*data))
    assert after["classes"] == "a (10), b (10), c (10)"
    assert (after["samples"], after["revision"]) == ("30", "1")
    assert after["backbone"] == "none: samples are feature vectors"
    words = Learner(Letters(), options={"n_units": 20}).fit(["ab", "xy"], ["s", "t"])
    assert words._repr_html_().count("<td>letters</td>") == 1
    assert shown(Learner(None).begin())["classes"] == "none"


def test_many_classes_and_long_values_are_shortened() -> None:
    X = np.repeat(np.eye(40), 2, axis=0)
    y = np.repeat([f"class {n:02}" for n in range(40)], 2)
    classes = shown(Classifier(n_units=20).fit(X, y))["classes"]
    assert classes.startswith("class 00 (2), ")
    assert classes.endswith("class 29 (2), and 10 more")
    assert len(shown(Learner(options={"a": "b" * 9000}))["options"]) == 1000


def test_names_of_users_are_escaped(data: Any) -> None:
    X, y = data
    named = np.where(y == "a", HOSTILE, y)
    classifier = Classifier(n_units=20)
    plain = Tables(classifier.fit(X, y)._repr_html_()).tags
    assert Tables(classifier.fit(X, named)._repr_html_()).tags == plain
    assert f"{HOSTILE} (10)" in shown(classifier)["classes"]
    learner = Learner(None, options={"n_units": 20}).fit(X, named)
    learner.set_params(weights=HOSTILE)
    values = shown(learner)
    assert values["weights"] == HOSTILE
    assert f"{HOSTILE} (10)" in values["classes"]
    assert Tables(learner._repr_html_()).tags.count("script") <= 1  # scikit-learn's


def test_the_display_follows_the_setting_of_scikit_learn(data: Any) -> None:
    learner = Learner(None, options={"n_units": 20})
    assert "Not fitted" in learner._repr_html_()
    assert "<span>Fitted</span>" in learner.fit(*data)._repr_html_()
    with config_context(display="text"):
        assert learner._repr_html_() is None


def test_a_pipeline_with_a_learner_is_displayed(data: Any) -> None:
    pipeline = make_pipeline(StandardScaler(), Learner(None, options={"n_units": 20}))
    assert "Learner" in pipeline.fit(*data)._repr_html_()
