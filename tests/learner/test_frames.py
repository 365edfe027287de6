"""Data frames of pandas and polars: in as features, texts and labels, out as answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.learner.toys import Colours, Letters, image, refused

from evergrow import Learner
from evergrow.core.errors import DataWarning, FileFormatError, InputError, LabelError, ParameterError

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

NAMES = ["width", "height", "depth", "weight"]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(90) % 3
    return np.random.default_rng(0).normal(size=(90, 4)) + 4.0 * np.eye(4)[y], y


def small() -> Learner:
    return Learner(None, options={"n_units": 20})


def as_pandas(X: np.ndarray, names: Any = NAMES) -> Any:
    return pandas.DataFrame(X, columns=names)


def as_polars(X: np.ndarray, names: Any = NAMES) -> Any:
    return polars.DataFrame(X, schema=names, orient="row")


FRAMES = pytest.mark.parametrize("frame", [as_pandas, as_polars])


@FRAMES
def test_a_frame_of_numbers_is_features(frame: Any, data: Any, tmp_path: Path) -> None:
    X, y = data
    plain, learner = small().fit(X, y), small().fit(frame(X), pandas.Series(y))
    assert learner.feature_names_in_.tolist() == NAMES
    assert learner.n_features_in_ == plain.n_features_in_ == 4
    assert not hasattr(plain, "feature_names_in_")
    assert np.array_equal(learner.decision_function(frame(X)), plain.decision_function(X))
    assert learner.score(frame(X), polars.Series(y)) == plain.score(X, y)
    assert np.array_equal(learner.predict(X), plain.predict(X))  # an array goes by position
    learner.save(tmp_path / "model.evg")
    again = Learner.load(tmp_path / "model.evg")
    assert again.feature_names_in_.tolist() == NAMES
    assert again.spawn().feature_names_in_.tolist() == NAMES
    again.partial_fit(frame(X + 9.0), y + 3)
    assert again.feature_names_in_.tolist() == NAMES
    assert len(again.classes_) == 6


@FRAMES
def test_other_columns_are_refused_and_change_nothing(frame: Any, data: Any) -> None:
    X, y = data
    learner = small().fit(frame(X), y)
    turned, other = frame(X)[NAMES[::-1]], frame(X, ["girth", *NAMES[1:]])
    for verb, *labels in (("predict",), ("ask",), ("features",), ("evaluate", y), ("partial_fit", y)):
        with refused(learner, InputError, "in their order; 'weight' where 'width' was"):
            getattr(learner, verb)(turned, *labels)
        with refused(learner, InputError, r"missing: 'width'.*not learned: 'girth'"):
            getattr(learner, verb)(other, *labels)
    assert learner.fit(turned, y).feature_names_in_.tolist() == NAMES[::-1]  # fit begins anew


def test_columns_without_names_have_none(data: Any) -> None:
    X, y = data
    assert not hasattr(small().fit(pandas.DataFrame(X), y), "feature_names_in_")
    with pytest.raises(InputError, match="some of each"):
        small().fit(pandas.DataFrame(X, columns=["a", 1, 2, 3]), y)


def test_types_of_columns(data: Any) -> None:
    X, y = data
    bytes_ = pandas.DataFrame(np.arange(90 * 4).reshape(90, 4).astype(np.uint8), columns=NAMES)
    assert small().fit(bytes_, y).kind_ == "features"  # never the pixels of one image
    mixed = pandas.DataFrame({"a": X[:, 0], "flag": y == 0, "n": pandas.array(y, dtype="Int64")})
    same = np.column_stack([X[:, 0], y == 0, y]).astype(np.float64)
    assert np.array_equal(small().fit(mixed, y).decision_function(mixed), small().fit(same, y).decision_function(same))
    for bad in (
        mixed.assign(city="Oslo"),
        mixed.assign(city=pandas.Timestamp("2026-01-01")),
    ):
        with pytest.raises(InputError, match="numbers to be features, got 'city'"):
            small().fit(bad, y)
    for gaps in (np.nan, pandas.array([None, *y[1:]], dtype="Int64")):
        with pytest.raises(InputError, match="NaN or infinity, first in row 0"):
            small().fit(mixed.assign(a=gaps), y)
    with pytest.raises(InputError, match="without rows"):
        small().fit(mixed[:0], y[:0])
    with pytest.raises(InputError, match="numbers to be features"):
        small().fit(polars.DataFrame({"a": X[:, 0], "city": ["Oslo"] * 90}), y)


@pytest.mark.parametrize("library", [pandas, polars])
def test_texts_of_a_column(library: Any) -> None:
    frame = library.DataFrame({"text": ["aaa", "aab", "zzz", "zzy"] * 5, "label": ["a", "a", "z", "z"] * 5})
    plain = Learner(Letters(), options={"n_units": 20}).fit(list(frame["text"]), list(frame["label"]))
    for texts, labels in ((frame["text"], frame["label"]), (frame[["text"]], frame[["label"]])):
        learner = Learner(Letters(), options={"n_units": 20}).fit(texts, labels)
        assert learner.kind_ == "text"
        assert learner.predict(texts).tolist() == plain.predict(list(frame["text"])).tolist() == list(frame["label"])
    with pytest.raises(InputError, match="numbers to be features"):
        learner.predict(frame)
    with pytest.raises((InputError, LabelError), match="one column"):
        learner.fit(frame["text"], frame)


# -- out ----------------------------------------------------------------------------------------------------------


def test_answers_as_a_frame_join_what_was_asked(data: Any) -> None:
    X, y = data
    frame = as_pandas(X).set_index(pandas.Index([f"s{n}" for n in range(90)], name="sample"))
    learner = small().fit(frame, y)
    answers = learner.ask(frame, false_alarm=0.05)
    found = frame.join(answers.to_frame(top=2))
    assert found["class"].tolist() == learner.predict(X).tolist()
    np.testing.assert_array_equal(found["probability"], learner.predict_proba(X).max(axis=1))
    assert {"class_2", "probability_2", "novelty", "threshold", "unknown"} <= set(found.columns)
    assert (found["unknown"] == learner.is_unknown(X)).all()
    assert not found.isna().any().any()
    rows = answers.to_frame("polars")
    assert rows.columns == ["row", "class", "probability", "novelty", "threshold", "unknown"]
    assert rows["class"].to_list() == found["class"].tolist()


def test_kinds_of_labels_and_numbers_of_classes_in_frames(data: Any) -> None:
    X, y = data
    found = small().fit(X, y > 0).ask(X).to_frame(top=9)
    assert found["class"].dtype == bool
    assert list(found.columns) == ["class", "probability", "class_2", "probability_2"]
    assert found.index.tolist() == list(range(90))
    scored = Learner(None, "acil", options={"n_units": 20}).fit(X, y).ask(X)
    assert list(scored.to_frame().columns) == ["class", scored.measure]
    with pytest.raises(ParameterError, match="library must be one of 'pandas', 'polars'"):
        scored.to_frame("dask")
    with pytest.raises(ParameterError, match="top must be an integer"):
        scored.to_frame(top=0)


def test_what_could_not_be_read_has_no_row(tmp_path: Path) -> None:
    for number in range(8):
        Image.fromarray(image(number % 2, number)).save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{n}.png") for n in range(8)]
    learner = Learner(Colours(), options={"n_units": 10}, cache=False, extract={"on_error": "skip"}).fit(
        paths, [0, 1] * 4
    )
    (tmp_path / "3.png").write_bytes(b"no image")
    frame = pandas.Series(paths, index=list("abcdefgh"))
    with pytest.warns(DataWarning, match="1 of 8 images could not be read"):
        found = learner.ask(frame).to_frame()
    assert found.index.tolist() == list("abcefgh")
    assert found["class"].tolist() == [0, 1, 0, 0, 1, 0, 1]


def test_names_of_columns_in_a_file_are_as_many_as_columns(data: Any) -> None:
    X, y = data
    archive = small().fit(as_pandas(X), y).to_archive()
    archive.meta["columns"] = ["width"]
    with pytest.raises(FileFormatError, match="another number of columns"):
        Learner.load(archive)
