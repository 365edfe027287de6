"""Data frames in and out, and scikit-learn's tools with classifier and learner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from PIL import Image
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
from tests.learner.toys import Colours, Letters, image, refused
from tests.learners import small_learner
from tests.samples import separated_rows

from evergrow import Classifier, Learner
from evergrow.core.errors import (
    DataWarning,
    FileFormatError,
    InputError,
    LabelError,
    ParameterError,
)
from evergrow.learner import empty_copy

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

NAMES = ["width", "height", "depth", "weight"]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(90) % 3
    return separated_rows(y, 4), y


def as_pandas(X: np.ndarray, names: Any = NAMES) -> Any:
    return pandas.DataFrame(X, columns=names)


def as_polars(X: np.ndarray, names: Any = NAMES) -> Any:
    return polars.DataFrame(X, schema=names, orient="row")


FRAMES = pytest.mark.parametrize("frame", [as_pandas, as_polars])


@FRAMES
def test_a_frame_of_numbers_is_features(frame: Any, data: Any, tmp_path: Path) -> None:
    X, y = data
    plain = small_learner(20).fit(X, y)
    learner = small_learner(20).fit(frame(X), pandas.Series(y))
    assert learner.feature_names_in_.tolist() == NAMES
    assert learner.n_features_in_ == plain.n_features_in_ == 4
    assert not hasattr(plain, "feature_names_in_")
    assert np.array_equal(
        learner.decision_function(frame(X)), plain.decision_function(X)
    )
    assert learner.score(frame(X), polars.Series(y)) == plain.score(X, y)
    assert np.array_equal(
        learner.predict(X), plain.predict(X)
    )  # an array goes by position
    learner.save(tmp_path / "model.evg")
    again = Learner.load(tmp_path / "model.evg")
    assert again.feature_names_in_.tolist() == NAMES
    assert empty_copy(again).feature_names_in_.tolist() == NAMES
    again.partial_fit(frame(X + 9.0), y + 3)
    assert again.feature_names_in_.tolist() == NAMES
    assert len(again.classes_) == 6


@FRAMES
def test_other_columns_are_refused_and_change_nothing(frame: Any, data: Any) -> None:
    X, y = data
    learner = small_learner(20).fit(frame(X), y)
    turned = frame(X)[NAMES[::-1]]
    other = frame(X, ["girth", *NAMES[1:]])
    for verb, *labels in (
        ("predict",),
        ("predictions",),
        ("encode",),
        ("evaluate", y),
        ("partial_fit", y),
    ):
        with refused(
            learner, InputError, "in their order; got 'weight' instead of 'width'"
        ):
            getattr(learner, verb)(turned, *labels)
        with refused(learner, InputError, r"missing: 'width'.*not learned: 'girth'"):
            getattr(learner, verb)(other, *labels)
    assert (
        learner.fit(turned, y).feature_names_in_.tolist() == NAMES[::-1]
    )  # fit begins anew


def test_columns_without_names_have_none(data: Any) -> None:
    X, y = data
    assert not hasattr(
        small_learner(20).fit(pandas.DataFrame(X), y), "feature_names_in_"
    )
    with pytest.raises(InputError, match="some of each"):
        small_learner(20).fit(pandas.DataFrame(X, columns=["a", 1, 2, 3]), y)


def test_types_of_columns(data: Any) -> None:
    X, y = data
    bytes_ = pandas.DataFrame(
        np.arange(90 * 4).reshape(90, 4).astype(np.uint8), columns=NAMES
    )
    assert (
        small_learner(20).fit(bytes_, y).state_.kind == "features"
    )  # never the pixels of one image
    mixed = pandas.DataFrame(
        {"a": X[:, 0], "flag": y == 0, "n": pandas.array(y, dtype="Int64")}
    )
    same = np.column_stack([X[:, 0], y == 0, y]).astype(np.float64)
    assert np.array_equal(
        small_learner(20).fit(mixed, y).decision_function(mixed),
        small_learner(20).fit(same, y).decision_function(same),
    )
    for bad in (
        mixed.assign(city="Oslo"),
        mixed.assign(city=pandas.Timestamp("2026-01-01")),
    ):
        with pytest.raises(InputError, match="numbers to be features, got 'city'"):
            small_learner(20).fit(bad, y)
    for gaps in (np.nan, pandas.array([None, *y[1:]], dtype="Int64")):
        with pytest.raises(InputError, match="NaN or infinity, first in row 0"):
            small_learner(20).fit(mixed.assign(a=gaps), y)
    with pytest.raises(InputError, match="without rows"):
        small_learner(20).fit(mixed[:0], y[:0])
    with pytest.raises(InputError, match="numbers to be features"):
        small_learner(20).fit(
            polars.DataFrame({"a": X[:, 0], "city": ["Oslo"] * 90}), y
        )


@pytest.mark.parametrize("library", [pandas, polars])
def test_texts_of_a_column(library: Any) -> None:
    frame = library.DataFrame(
        {"text": ["aaa", "aab", "zzz", "zzy"] * 5, "label": ["a", "a", "z", "z"] * 5}
    )
    plain = Learner(Letters(), options={"n_units": 20}).fit(
        list(frame["text"]), list(frame["label"])
    )
    for texts, labels in (
        (frame["text"], frame["label"]),
        (frame[["text"]], frame[["label"]]),
    ):
        learner = Learner(Letters(), options={"n_units": 20}).fit(texts, labels)
        assert learner.state_.kind == "text"
        assert (
            learner.predict(texts).tolist()
            == plain.predict(list(frame["text"])).tolist()
            == list(frame["label"])
        )
    with pytest.raises(InputError, match="numbers to be features"):
        learner.predict(frame)
    with pytest.raises((InputError, LabelError), match="one column"):
        learner.fit(frame["text"], frame)


# -- out -------------------------------------------------------------------------------


def test_answers_as_a_frame_join_what_was_asked(data: Any) -> None:
    X, y = data
    frame = as_pandas(X).set_index(
        pandas.Index([f"s{n}" for n in range(90)], name="sample")
    )
    learner = small_learner(20).fit(frame, y)
    answers = learner.predictions(frame, false_alarm=0.05)
    found = frame.join(answers.to_frame(top=2))
    assert found["nearest_class"].tolist() == learner.predict(X).tolist()
    np.testing.assert_array_equal(
        found["nearest_probability"], learner.predict_proba(X).max(axis=1)
    )
    assert {"class_2", "probability_2", "novelty", "threshold", "unknown"} <= set(
        found.columns
    )
    assert (found["unknown"] == learner.is_unknown(X)).all()
    assert not found.drop(columns=["class", "probability"]).isna().any().any()
    known = found[~found["unknown"]]
    assert known["class"].tolist() == known["nearest_class"].tolist()
    assert (known["probability"] == known["nearest_probability"]).all()
    rows = answers.to_frame("polars")
    assert rows.columns == [
        "row",
        "class",
        "probability",
        "novelty",
        "threshold",
        "unknown",
        "nearest_class",
        "nearest_probability",
    ]
    assert rows["nearest_class"].to_list() == found["nearest_class"].tolist()


@pytest.mark.parametrize("kind", [str, int, bool])
def test_an_unknown_item_has_no_class_in_a_frame(data: Any, kind: Any) -> None:
    X, y = data
    labels = [kind(label) for label in (y > 0).astype(int).tolist()]
    strange = np.concatenate([X[:5], X[:2] + 500])
    answers = small_learner(20).fit(X, labels).predictions(strange, false_alarm=0.05)
    found = answers.to_frame(top=2)
    unknown = found["unknown"].tolist()
    assert unknown[5:] == [True, True]
    assert not all(unknown)
    assert found["class"].isna().tolist() == unknown
    assert found["probability"].isna().tolist() == unknown
    known = [row for row in range(7) if not unknown[row]]
    expected = [labels[row] for row in known]
    assert found["class"].iloc[known].tolist() == expected
    assert found["nearest_class"].isin(labels).all()
    rows = answers.to_frame("polars")
    assert rows["class"].is_null().to_list() == unknown
    assert rows["class"].drop_nulls().to_list() == expected


def test_kinds_of_labels_and_numbers_of_classes_in_frames(data: Any) -> None:
    X, y = data
    found = small_learner(20).fit(X, y > 0).predictions(X).to_frame(top=9)
    assert found["class"].dtype == bool
    assert list(found.columns) == ["class", "probability", "class_2", "probability_2"]
    assert found.index.tolist() == list(range(90))
    scored = Learner(None, "acil", options={"n_units": 20}).fit(X, y).predictions(X)
    assert list(scored.to_frame().columns) == ["class", scored.measure]
    with pytest.raises(
        ParameterError, match="library must be one of 'pandas', 'polars'"
    ):
        scored.to_frame("dask")
    with pytest.raises(ParameterError, match="top must be an integer"):
        scored.to_frame(top=0)


def test_unreadable_items_have_no_row(tmp_path: Path) -> None:
    for number in range(8):
        Image.fromarray(image(number % 2, number)).save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{n}.png") for n in range(8)]
    learner = Learner(
        Colours(), options={"n_units": 10}, cache=False, extract={"on_error": "skip"}
    ).fit(paths, [0, 1] * 4)
    (tmp_path / "3.png").write_bytes(b"no image")
    frame = pandas.Series(paths, index=list("abcdefgh"))
    with pytest.warns(DataWarning, match="1 of 8 images could not be read"):
        found = learner.predictions(frame).to_frame()
    assert found.index.tolist() == list("abcefgh")
    assert found["class"].tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_names_of_columns_in_a_file_are_as_many_as_columns(data: Any) -> None:
    X, y = data
    archive = small_learner(20).fit(as_pandas(X), y).state_.to_archive()
    archive.meta["columns"] = ["width"]
    with pytest.raises(FileFormatError, match="the number of its column names"):
        Learner.load(archive)


# -- scikit-learn's tools around the classifier and the learner ------------------------


MAKERS: dict[str, Callable[[], Any]] = {
    "classifier": lambda: Classifier(n_units=30, random_state=0),
    "learner": lambda: Learner(None, options={"n_units": 30}),
}
OLD = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) < (1, 8)
_SINCE_1_8 = pytest.mark.skipif(OLD, reason="needs another version: scikit-learn 1.8")


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return MAKERS[request.param]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:300], y[:300]


def test_pipelines_with_unions_and_columns(make: Any, digits: Any) -> None:
    X, y = digits
    union = FeatureUnion(
        [("scaled", StandardScaler()), ("main", PCA(5, random_state=0))]
    )
    joined = make_pipeline(union, make())
    assert cross_val_score(joined, X, y, cv=2).min() > 0.85
    frame = pandas.DataFrame(X, columns=[f"p{n}" for n in range(64)])
    columns = make_pipeline(
        make_column_transformer((StandardScaler(), list(frame.columns[10:50]))), make()
    )
    assert columns.fit(frame, y).score(frame, y) > 0.9
    for library, given in (
        ("pandas", frame),
        ("polars", polars.DataFrame(frame.to_dict("list"))),
    ):
        if OLD and not hasattr(StandardScaler().fit(given), "feature_names_in_"):
            continue  # scikit-learn 1.7 does not know the frames of polars 2
        pipeline = (
            make_pipeline(StandardScaler(), make())
            .set_output(transform=library)
            .fit(given, y)
        )
        assert pipeline[-1].feature_names_in_.tolist() == frame.columns.tolist()
        assert pipeline.score(given, y) > 0.95


@pytest.mark.parametrize(
    "method", ["sigmoid", pytest.param("temperature", marks=_SINCE_1_8)]
)
def test_calibrated_probabilities_sum_to_one_and_stay_accurate(
    make: Any, digits: Any, method: str
) -> None:
    X, y = digits
    calibrated = CalibratedClassifierCV(
        make(), method=method, cv=2, ensemble=False
    ).fit(X[:200], y[:200])
    found = calibrated.predict_proba(X[200:])
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (calibrated.classes_[found.argmax(axis=1)] == y[200:]).mean() > 0.8


def test_calibration_of_what_was_learned_before(make: Any, digits: Any) -> None:
    X, y = digits
    learner = make().fit(X[:150], y[:150])
    calibrated = CalibratedClassifierCV(FrozenEstimator(learner)).fit(
        X[150:200], y[150:200]
    )
    assert (
        log_loss(y[200:], calibrated.predict_proba(X[200:]), labels=calibrated.classes_)
        < 1.0
    )
    learner.partial_fit(
        X[200:], y[200:]
    )  # calibration holds the same learner, which goes on learning
    assert calibrated.predict(X[200:]).shape == (100,)


@pytest.mark.parametrize(
    "labels",
    [np.array([False, True]), np.array(["no", "yes"])],
    ids=["booleans", "names"],
)
def test_thresholds_of_two_classes(make: Any, digits: Any, labels: np.ndarray) -> None:
    X, y = digits
    truth = labels[(y > 4).astype(int)]
    learner = make().fit(X, truth)
    scores = learner.decision_function(X)
    assert scores.shape == (300,)
    head = learner.head_ if isinstance(learner, Learner) else learner
    assert np.array_equal(np.diff(head.class_scores(X))[:, 0], scores)
    assert np.array_equal(labels[(scores > 0).astype(int)], learner.predict(X))
    for method, threshold in (("decision_function", 0.0), ("predict_proba", 0.5)):
        fixed = FixedThresholdClassifier(
            make(), threshold=threshold, response_method=method, pos_label=labels[1]
        )
        assert np.array_equal(fixed.fit(X, truth).predict(X), learner.predict(X))
    eager = FixedThresholdClassifier(make(), threshold=0.1, pos_label=labels[1]).fit(
        X, truth
    )
    assert np.array_equal(
        eager.predict(X), labels[(learner.predict_proba(X)[:, 1] >= 0.1).astype(int)]
    )
    tuned = TunedThresholdClassifierCV(make(), scoring="balanced_accuracy", cv=2).fit(
        X, truth
    )
    assert (tuned.predict(X) == truth).mean() > 0.9


def test_scorers_of_two_and_of_many_classes(make: Any, digits: Any) -> None:
    X, y = digits
    assert cross_val_score(make(), X, y > 4, cv=2, scoring="roc_auc").min() > 0.9
    assert cross_val_score(make(), X, y, cv=2, scoring="roc_auc_ovr").min() > 0.95
    assert cross_val_score(make(), X, y, cv=2, scoring="neg_log_loss").min() > -1.0
    assert cross_val_predict(make(), X, y, cv=2, method="predict_proba").shape == (
        300,
        10,
    )


@pytest.mark.slow
def test_ensembles_of_learners_are_accurate(make: Any, digits: Any) -> None:
    X, y = digits
    members = [("a", make()), ("b", make())]
    for ensemble in (
        VotingClassifier(members, voting="soft"),
        StackingClassifier(members[:1], cv=2),
        BaggingClassifier(make(), n_estimators=2, random_state=0),
        OneVsRestClassifier(make()),
    ):
        assert ensemble.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.8


def test_time_ordered_folds_and_grid_searches_find_accurate_learners(
    make: Any, digits: Any
) -> None:
    """Time-ordered folds, and a learning curve of one incremental learner."""
    X, y = digits
    folds = TimeSeriesSplit(3)
    assert cross_val_score(make(), X, y, cv=folds).min() > 0.8
    sizes, _, test = learning_curve(
        make(), X, y, cv=folds, train_sizes=[35, 70], exploit_incremental_learning=True
    )
    assert test.mean(axis=1)[1] > 0.5
    assert sizes.tolist() == [35, 70]
    if isinstance(make(), Learner):
        grid = {"options__n_units": [5, 40]}
    else:
        grid = {"n_units": [5, 40]}
    search = GridSearchCV(make(), grid, cv=folds).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_estimator_.predict(X[:3]).tolist() == y[:3].tolist()
    piped = GridSearchCV(
        make_pipeline(StandardScaler(), make()),
        {
            f"{type(make()).__name__.lower()}__{name}": values
            for name, values in grid.items()
        },
        cv=folds,
    ).fit(X, y)
    assert piped.best_score_ > 0.8
