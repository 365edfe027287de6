"""scikit-learn's tools around the classifier and the learner: pipelines, calibration, thresholds, model selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TimeSeriesSplit,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    learning_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler

from evergrow import Classifier, Learner

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

MAKERS: dict[str, Callable[[], Any]] = {
    "classifier": lambda: Classifier(n_units=30, random_state=0),
    "learner": lambda: Learner(None, options={"n_units": 30}),
}
pytestmark = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

OLD = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < (1, 8)
_SINCE_1_8 = pytest.mark.skipif(OLD, reason="needs another version: scikit-learn 1.8")


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300]


def test_pipelines_with_unions_and_columns(make: Any, digits: Any) -> None:
    X, y = digits
    union = FeatureUnion([("scaled", StandardScaler()), ("main", PCA(5, random_state=0))])
    joined = make_pipeline(union, make())
    assert cross_val_score(joined, X, y, cv=2).min() > 0.85
    frame = pandas.DataFrame(X, columns=[f"p{n}" for n in range(64)])
    columns = make_pipeline(make_column_transformer((StandardScaler(), list(frame.columns[10:50]))), make())
    assert columns.fit(frame, y).score(frame, y) > 0.9
    for library, given in (("pandas", frame), ("polars", polars.DataFrame(frame.to_dict("list")))):
        if OLD and not hasattr(StandardScaler().fit(given), "feature_names_in_"):
            continue  # scikit-learn 1.7 does not know the frames of polars 2
        pipeline = make_pipeline(StandardScaler(), make()).set_output(transform=library).fit(given, y)
        assert pipeline[-1].feature_names_in_.tolist() == frame.columns.tolist()
        assert pipeline.score(given, y) > 0.95


@pytest.mark.parametrize("method", ["sigmoid", pytest.param("temperature", marks=_SINCE_1_8)])
def test_calibration(make: Any, digits: Any, method: str) -> None:
    X, y = digits
    calibrated = CalibratedClassifierCV(make(), method=method, cv=2, ensemble=False).fit(X[:200], y[:200])
    found = calibrated.predict_proba(X[200:])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (calibrated.classes_[found.argmax(axis=1)] == y[200:]).mean() > 0.8


def test_calibration_of_what_was_learned_before(make: Any, digits: Any) -> None:
    X, y = digits
    learner = make().fit(X[:150], y[:150])
    calibrated = CalibratedClassifierCV(FrozenEstimator(learner)).fit(X[150:200], y[150:200])
    assert log_loss(y[200:], calibrated.predict_proba(X[200:]), labels=calibrated.classes_) < 1.0
    learner.partial_fit(X[200:], y[200:])  # calibration holds the same learner, which goes on learning
    assert calibrated.predict(X[200:]).shape == (100,)


@pytest.mark.parametrize("labels", [np.array([False, True]), np.array(["no", "yes"])], ids=["booleans", "names"])
def test_thresholds_of_two_classes(make: Any, digits: Any, labels: np.ndarray) -> None:
    X, y = digits
    truth = labels[(y > 4).astype(int)]
    learner = make().fit(X, truth)
    scores = learner.decision_function(X)
    assert scores.shape == (300,)
    assert np.array_equal(labels[(scores > 0).astype(int)], learner.predict(X))
    for method, threshold in (("decision_function", 0.0), ("predict_proba", 0.5)):
        fixed = FixedThresholdClassifier(make(), threshold=threshold, response_method=method, pos_label=labels[1])
        assert np.array_equal(fixed.fit(X, truth).predict(X), learner.predict(X))
    eager = FixedThresholdClassifier(make(), threshold=0.1, pos_label=labels[1]).fit(X, truth)
    assert np.array_equal(eager.predict(X), labels[(learner.predict_proba(X)[:, 1] >= 0.1).astype(int)])
    tuned = TunedThresholdClassifierCV(make(), scoring="balanced_accuracy", cv=2).fit(X, truth)
    assert (tuned.predict(X) == truth).mean() > 0.9


def test_scorers_of_two_and_of_many_classes(make: Any, digits: Any) -> None:
    X, y = digits
    assert cross_val_score(make(), X, y > 4, cv=2, scoring="roc_auc").min() > 0.9
    assert cross_val_score(make(), X, y, cv=2, scoring="roc_auc_ovr").min() > 0.95
    assert cross_val_score(make(), X, y, cv=2, scoring="neg_log_loss").min() > -1.0
    assert cross_val_predict(make(), X, y, cv=2, method="predict_proba").shape == (300, 10)


@pytest.mark.slow
def test_ensembles(make: Any, digits: Any) -> None:
    X, y = digits
    members = [("a", make()), ("b", make())]
    for ensemble in (
        VotingClassifier(members, voting="soft"),
        StackingClassifier(members[:1], cv=2),
        BaggingClassifier(make(), n_estimators=2, random_state=0),
        OneVsRestClassifier(make()),
    ):
        assert ensemble.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.8


def test_model_selection_over_a_stream(make: Any, digits: Any) -> None:
    """Folds that only ever look back, and a curve of one learner that goes on learning."""
    X, y = digits
    folds = TimeSeriesSplit(3)
    assert cross_val_score(make(), X, y, cv=folds).min() > 0.8
    sizes, _, test = learning_curve(make(), X, y, cv=folds, train_sizes=[35, 70], exploit_incremental_learning=True)
    assert test.mean(axis=1)[1] > 0.5
    assert sizes.tolist() == [35, 70]
    grid = {"options__n_units": [5, 40]} if isinstance(make(), Learner) else {"n_units": [5, 40]}
    search = GridSearchCV(make(), grid, cv=folds).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.predict(X[:3]).tolist() == y[:3].tolist()
    piped = GridSearchCV(
        make_pipeline(StandardScaler(), make()),
        {f"{type(make()).__name__.lower()}__{name}": values for name, values in grid.items()},
        cv=folds,
    ).fit(X, y)
    assert piped.best_score_ > 0.8
