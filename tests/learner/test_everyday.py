"""Everyday use: fit(X, y), label types, streams, weights, one class, and the repr."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from PIL import Image
from tests.learner.toys import Colours, Letters, image
from tests.learners import small_learner
from tests.samples import separated_rows
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from evergrow import Learner
from evergrow.core.errors import (
    DataWarning,
    InputError,
    LabelError,
    MergeError,
    UnknownNameError,
    UnlearnError,
    UnsupportedError,
)
from evergrow.learner import empty_copy, learning, settle

CLASSES = 12


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(240) % CLASSES
    return separated_rows(y, 14, distance=5.0), y


# -- labels ----------------------------------------------------------------------------


def test_integers_come_back_as_integers_in_their_own_order(
    data: Any, tmp_path: Path
) -> None:
    X, y = data
    learner = small_learner(30).fit(X, y)
    assert learner.classes_.tolist() == list(
        range(CLASSES)
    )  # not "0", "1", "10", "11", "2"
    assert learner.state_.classes.tolist() == sorted(
        str(label) for label in range(CLASSES)
    )
    learner.save(tmp_path / "model.evg")
    for model in (learner, Learner.load(tmp_path / "model.evg")):
        found = model.predict(X)
        assert found.dtype == np.int64
        assert (found == y).mean() > 0.98
        for values in (model.decision_function(X), model.predict_proba(X)):
            assert (model.classes_[values.argmax(axis=1)] == found).all()
        assert model.state_.label_counts == dict.fromkeys(range(CLASSES), 20)
        assert model.score(X, y) == (found == y).mean()
    assert learner.forget_classes(3).classes_.tolist() == [0, 1, 2, *range(4, CLASSES)]


def test_booleans_are_kept(data: Any, tmp_path: Path) -> None:
    X, y = data
    learner = small_learner(30).fit(X, y > 5)
    learner.save(tmp_path / "model.evg")
    again = Learner.load(tmp_path / "model.evg")
    assert again.predict(X[:3]).dtype == np.bool_
    assert again.state_.label_counts == {False: 120, True: 120}
    with pytest.raises(LabelError, match="booleans as before, got integers"):
        again.partial_fit(X, y)


def test_kinds_do_not_mix(data: Any) -> None:
    X, y = data
    with pytest.raises(LabelError, match="mix of int, str"):
        small_learner(30).fit(X[:2], [1, "a"])
    numbers = small_learner(30).fit(X, y)
    names = small_learner(30).fit(X, y.astype(str))
    with pytest.raises(LabelError, match="integers as before, got names"):
        numbers.partial_fit(X[:2], ["a", "b"])
    with pytest.raises(LabelError, match="names as before, got booleans"):
        names.partial_fit(X[:2], [True, False])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names.partial_fit(X, y)  # of classes that are there already
    with pytest.warns(DataWarning, match="learned as names, the first as '77'"):
        names.partial_fit(X[:40], [77] * 40)
    assert names.predict(X[:1]).dtype.kind == "U"
    other = empty_copy(numbers).partial_fit(X + 0.1, y)
    assert numbers.merge(other).predict(X[:1]).dtype == np.int64
    with pytest.raises(MergeError, match="one kind"):
        names.merge(copy.copy(numbers))


def test_names_in_files_fit_integers_that_they_are_the_digits_of(
    data: Any, tmp_path: Path
) -> None:
    X, y = data
    np.savez(tmp_path / "more.npz", X_train=X, y_train=y, X_test=X[:5], y_test=y[:5])
    learner = small_learner(30).fit(X, y).partial_fit(tmp_path / "more.npz")
    assert learner.classes_.dtype == np.int64
    assert (
        small_learner(30).fit(tmp_path / "more.npz").predict(X[:1]).dtype.kind == "U"
    )  # files have names, as ever
    assert learner.evaluate(tmp_path / "more.npz").accuracy == 1.0
    np.savez(
        tmp_path / "odd.npz",
        X_train=X,
        y_train=np.repeat(["x"], len(X)),
        X_test=X[:5],
        y_test=["x"] * 5,
    )
    with pytest.raises(LabelError, match="integers as before, got names"):
        learner.partial_fit(tmp_path / "odd.npz")


def test_an_integer_that_gets_a_name_makes_all_of_them_names(
    data: Any, tmp_path: Path
) -> None:
    X, y = data
    learner = small_learner(30).fit(X, y)
    assert learner.rename_classes({3: 33}).classes_.dtype == np.int64
    learner.rename_classes({33: "three"})
    assert learner.classes_.dtype.kind == "U"
    learner.save(tmp_path / "model.evg")
    assert "three" in Learner.load(tmp_path / "model.evg").classes_


# -- announced classes, one class ------------------------------------------------------


def test_announced_classes_are_held_to(data: Any) -> None:
    X, y = data
    learner = small_learner(30).partial_fit(X[y < 4], y[y < 4], classes=list(range(6)))
    for classes, said in (
        ([5, 6], "among the classes that were announced, got '7'"),
        ("abc", "sequence of class names"),
    ):
        with pytest.raises(LabelError, match=said):
            learner.partial_fit(X[y == 7], y[y == 7], classes=classes)
    assert learner.partial_fit(X[y == 7], y[y == 7], classes=[7]).classes_.tolist() == [
        0,
        1,
        2,
        3,
        7,
    ]


def test_one_class_is_the_answer_and_others_are_unknown(
    data: Any, tmp_path: Path
) -> None:
    X, y = data
    rng = np.random.default_rng(1)
    one = rng.normal(size=(120, 14)) + 5.0 * np.eye(14)[2]
    learner = small_learner(30, normalize="none").fit(one[:80], ["two"] * 80)
    assert set(learner.predict(X)) == {"two"}
    assert (learner.predict_proba(X) == 1.0).all()
    assert learner.is_unknown(one[80:]).mean() < 0.2
    assert learner.is_unknown(X[y != 2]).mean() > 0.8
    learner.save(tmp_path / "model.evg")
    assert (
        Learner.load(tmp_path / "model.evg").is_unknown(X) == learner.is_unknown(X)
    ).all()
    learner.partial_fit(X[y == 5], ["five"] * 20).partial_fit(X[y == 6], ["six"] * 20)
    assert learner.score(X[y == 5], ["five"] * 20) == 1.0
    assert learner.is_unknown(one[80:]).mean() < 0.1
    assert learner.is_unknown(X[~np.isin(y, (2, 5, 6))]).mean() > 0.7
    with pytest.raises(LabelError, match="at least 2 classes"):
        Learner(None, "scl-mgsm").fit(one, ["two"] * 120)


# -- streams ---------------------------------------------------------------------------


class Pairs(Dataset):  # type: ignore[type-arg]
    """A dataset without an end of its own: beyond it there is only the first again."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X = X
        self.y = y

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.X[row % len(self.X)], int(self.y[row % len(self.y)])


class Flow(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X = X
        self.y = y

    def __iter__(self) -> Iterator[Any]:
        return zip(self.X, self.y, strict=True)


def streams(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    return {
        "generator": ((row, label) for row, label in zip(X, y, strict=True)),
        "batches": (
            (X[start : start + 50], y[start : start + 50])
            for start in range(0, len(X), 50)
        ),
        "dataset": Pairs(X, y),
        "iterable": Flow(X, y),
        "tensors": tensors,
        "loader": DataLoader(tensors, batch_size=32),
        "unbatched": DataLoader(tensors, batch_size=None),
    }


@pytest.mark.parametrize("name", list(streams(np.eye(2), np.arange(2))))
def test_a_stream_teaches_and_asks_the_same(data: Any, name: str) -> None:
    X, y = data
    at_once = small_learner(30).fit(X, y)
    learner = small_learner(30).fit(streams(X, y)[name])
    assert (learner.decision_function(X) == at_once.decision_function(X)).all()
    assert learner.predict(streams(X, y)[name]).tolist() == at_once.predict(X).tolist()
    assert learner.predict_proba(streams(X, y)[name]).shape == (len(X), CLASSES)
    assert (
        learner.evaluate(streams(X, y)[name]).accuracy
        == at_once.evaluate(X, y).accuracy
    )
    assert learner.score(streams(X, y)[name]) == at_once.score(X, y)
    assert np.asarray(learner.encode(streams(X, y)[name])).shape == X.shape
    assert len(learner.state_.history) == 1
    learner.unlearn(streams(X[:60], y[:60])[name])
    assert sum(learner.state_.label_counts.values()) == len(y) - 60


def test_many_blocks_are_one_change_and_the_same_sums(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data
    start = small_learner(30, alpha=1.0).fit(X, y)
    whole = settle(copy.copy(start).partial_fit(X + 0.1, y))
    monkeypatch.setattr(learning.join_rows, "__defaults__", (70,))
    monkeypatch.setattr("evergrow.data.inputs.CHUNK", 30)
    parts = settle(copy.copy(start).partial_fit(zip(X + 0.1, y, strict=True)))
    np.testing.assert_allclose(
        parts.decision_function(X), whole.decision_function(X), rtol=1e-7, atol=1e-7
    )
    assert parts.state_.label_counts == whole.state_.label_counts
    assert [change.samples for change in parts.state_.history] == [240, 240]
    assert len(parts.state_.history[-1].data) == 3


@pytest.mark.parametrize("method", ["evergrow", "klda"])
def test_a_stream_that_breaks_leaves_the_learner_as_it_was(
    data: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data
    monkeypatch.setattr(learning.join_rows, "__defaults__", (50,))
    monkeypatch.setattr("evergrow.data.inputs.CHUNK", 25)
    learner = Learner(None, method).fit(X, y)
    before = learner.decision_function(X)

    def broken() -> Iterator[Any]:
        yield from zip(X[:200], y[:200], strict=True)
        raise OSError("the disk is gone")

    for source in (broken(), iter([(X[0], 0), (X[1], "a")])):
        with pytest.raises((OSError, LabelError)):
            learner.partial_fit(source)
    assert (learner.decision_function(X) == before).all()
    assert learner.state_.revision == 1


def test_streams_without_valid_pairs_are_refused(data: Any) -> None:
    X, y = data
    learner = small_learner(30).fit(X, y)
    for source, error, message in (
        (iter([]), InputError, "at least one sample"),
        (iter([X[0]]), InputError, r"pairs \(item, label\)"),
        (iter([(X[:2], y[:3])]), LabelError, "one per sample"),
    ):
        with pytest.raises(error, match=message):
            learner.partial_fit(source)
    with pytest.raises(InputError, match="at least one item"):
        learner.predict(iter([]))
    with pytest.raises(InputError, match="must come as pairs"):
        learner.partial_fit(iter(X), y)
    with pytest.raises(InputError, match="read several times"):
        Learner(Colours(), adapt="ssf", cache=False).fit(
            iter([(image(0, 0), "a"), (image(1, 0), "b")])
        )


def test_texts_and_images_of_tensors() -> None:
    texts = Learner(Letters(), options={"n_units": 20})
    texts.fit((word * 3, label) for word, label in [("abc", 0), ("xyz", 1)] * 10)
    assert texts.predict(iter(["aabbcc", "xxyyzz"])).tolist() == [0, 1]
    pixels = np.stack([image(hue, seed) for hue in (0, 1, 2) for seed in range(6)])
    labels = np.repeat([0, 1, 2], 6)
    at_once = Learner(Colours(), options={"n_units": 20}, cache=False).fit(
        pixels, labels
    )
    floats = (
        torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255.0
    )  # as ToTensor makes them
    loader = DataLoader(TensorDataset(floats, torch.from_numpy(labels)), batch_size=5)
    learner = Learner(Colours(), options={"n_units": 20}, cache=False).fit(loader)
    assert (
        learner.decision_function(list(pixels))
        == at_once.decision_function(list(pixels))
    ).all()
    assert (learner.predict(floats) == at_once.predict(pixels)).all()
    with pytest.raises(InputError, match=r"between 0 and 1.*normalisation"):
        learner.predict(floats - 0.5)
    assert learner.predict(iter([Image.fromarray(pixels[0])])).tolist() == [0]


# -- weights ---------------------------------------------------------------------------


def test_integer_weights_are_copies_and_fractions_can_be_taken_out(
    data: Any, tmp_path: Path
) -> None:
    X, y = data
    rng = np.random.default_rng(3)
    start = small_learner(30).fit(X[:120], y[:120])
    more = X[120:]
    labels = y[120:]
    times = rng.integers(0, 4, size=120)
    weighted = settle(copy.copy(start).partial_fit(more, labels, sample_weight=times))
    copies = settle(
        copy.copy(start).partial_fit(
            np.repeat(more, times, axis=0), np.repeat(labels, times)
        )
    )
    np.testing.assert_allclose(
        weighted.decision_function(X), copies.decision_function(X), rtol=1e-6, atol=1e-6
    )
    assert sum(weighted.state_.label_counts.values()) == 120 + (times > 0).sum()
    weighted.save(tmp_path / "model.evg")
    assert (
        Learner.load(tmp_path / "model.evg").predict_proba(X)
        == weighted.predict_proba(X)
    ).all()
    parts = rng.uniform(0.2, 3.0, size=120)
    without = copy.copy(start).partial_fit(more, labels, sample_weight=parts)
    settle(without.unlearn(more[:40], labels[:40], sample_weight=parts[:40]))
    never = settle(
        copy.copy(start).partial_fit(more[40:], labels[40:], sample_weight=parts[40:])
    )
    np.testing.assert_allclose(
        without.decision_function(X), never.decision_function(X), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(UnlearnError, match="weights that they were learned with"):
        copy.copy(start).unlearn(X[:120], y[:120], sample_weight=np.full(120, 2.0))


def test_score_uses_sample_weights(data: Any) -> None:
    X, y = data
    weights = np.linspace(0.5, 2.0, len(y))
    learner = small_learner(30).fit(X, y, sample_weight=weights)
    wrong = np.where(np.arange(len(y)) < 60, y, (y + 1) % CLASSES)
    right = learner.predict(X) == wrong
    assert learner.score(X, wrong, weights) == pytest.approx(
        np.average(right, weights=weights)
    )
    with pytest.raises(InputError, match="sample_weight must be one number per"):
        small_learner(30).fit(X, y, sample_weight=weights[:-1])


def test_methods_that_take_no_weights_say_so(data: Any) -> None:
    X, y = data
    weights = np.full(len(y), 2.0)
    with pytest.raises(UnsupportedError, match="does not support sample weights"):
        Learner(None, "ranpac").fit(X, y, sample_weight=weights)
    learner = Learner(None, "simplecil").fit(
        X, y, sample_weight=np.ones(len(y))
    )  # all one: nothing is asked for
    assert not learner.head_.takes_weights
    assert small_learner(30).fit(X, y).head_.takes_weights


# -- scikit-learn's tools --------------------------------------------------------------


def test_tools_of_scikit_learn_take_a_learner(data: Any, tmp_path: Path) -> None:
    X, y = data
    learner = small_learner(30).fit(X, y)
    with pytest.raises(UnknownNameError, match="method"):
        learner.set_params(methd="klda")
    joblib.dump(learner, tmp_path / "learner.joblib")
    assert (
        joblib.load(tmp_path / "learner.joblib").predict(X) == learner.predict(X)
    ).all()


# -- how it looks ----------------------------------------------------------------------


def test_repr_says_what_was_learned(data: Any) -> None:
    X, y = data
    learner = small_learner(30)
    assert "nothing learned yet" in repr(learner)
    names = np.array([f"bird {label}" for label in y])
    learner.fit(X, names)
    assert (
        repr(learner)
        == "Learner(method='evergrow', kind='features', 12 classes, 240 samples, revision 1)"
    )
