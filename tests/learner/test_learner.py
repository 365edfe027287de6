from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import (
    Colours,
    Data,
    Letters,
    assert_same,
    image,
    part,
    refused,
    write_folder,
)
from tests.learners import small_learner

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    EvergrowError,
    FewSamplesWarning,
    ImageError,
    InputError,
    KnownSamplesError,
    LabelError,
    MergeError,
    NotFittedError,
    ParameterError,
    UnknownNameError,
    UnlearnError,
    WeightsError,
)
from evergrow.data import Dataset
from evergrow.features import create_backbone
from evergrow.head import Classifier
from evergrow.head.base import IncrementalClassifier
from evergrow.head.layers import GuidedLayer
from evergrow.learner import empty_copy
from evergrow.learner.learner import Learner

TEXTS = ["aaa bbb", "aab b", "xyz zzz", "xx yy z"]
NAMES = ["early", "early", "late", "late"]


@pytest.fixture
def fitted(blobs: Data) -> Learner:
    return small_learner().fit(part(blobs, 0, 1, 2))


def plain(learner: Learner) -> IncrementalClassifier:
    """Return the head without its calibration."""
    return learner.head_.branch().calibrate()


# -- learning --------------------------------------------------------------------------


def test_settings_are_those_of_the_recommended_head(blobs: Data) -> None:
    learner = small_learner().partial_fit(part(blobs, 0, 1, 2))  # the first call is fit
    X, y = part(blobs, 0, 1, 2)
    head = Classifier(n_units=40, random_state=0).fit(X, y.astype(str))
    assert np.array_equal(
        learner.decision_function(blobs[0]), head.decision_function(blobs[0])
    )
    assert np.array_equal(
        plain(learner).predict_proba(blobs[0]), head.predict_proba(blobs[0])
    )
    assert np.array_equal(
        plain(learner).novelty_score(blobs[0]), head.novelty_score(blobs[0])
    )
    assert learner.head_.alpha == "gcv"
    paper = Learner(None, "scl-mgsm", options={"max_units": 40}).fit(
        part(blobs, 0, 1, 2)
    )
    assert paper.head_.alpha == 0.01


@pytest.mark.parametrize("n_units", [40, 1500])  # dense and compact statistics
def test_updates_equal_learning_at_once_on_the_same_layer(
    blobs: Data, n_units: int
) -> None:
    learner = small_learner(n_units=n_units).fit(part(blobs, 0, 1, 2))
    at_once = empty_copy(learner).partial_fit(blobs)
    learner.partial_fit(part(blobs, 3)).partial_fit(part(blobs, 4, 5))
    difference = np.abs(
        learner.decision_function(blobs[0]) - at_once.decision_function(blobs[0])
    ).max()
    assert difference < 1e-6 * max(
        1.0, float(np.abs(at_once.decision_function(blobs[0])).max())
    )
    assert (
        np.abs(
            plain(learner).predict_proba(blobs[0])
            - plain(at_once).predict_proba(blobs[0])
        ).max()
        < 1e-6
    )
    assert (
        learner.state_.label_counts
        == at_once.state_.label_counts
        == dict.fromkeys(range(6), 50)
    )


def test_history_tells_what_happened(fitted: Learner, blobs: Data) -> None:
    fitted.partial_fit(part(blobs, 2, 3)).forget_classes("0").unlearn(part(blobs, 3))
    told = [
        (change.what, change.samples, change.classes, change.revision)
        for change in fitted.state_.history
    ]
    assert told == [
        ("fit", 150, ("0", "1", "2"), 1),
        ("update", 100, ("3",), 2),
        ("forget", 50, ("0",), 3),
        ("unlearn", 50, ("3",), 4),
    ]
    assert fitted.state_.revision == 4
    assert all(change.when.endswith("+00:00") for change in fitted.state_.history)
    assert fitted.state_.label_counts == {1: 50, 2: 100}
    assert fitted.head_.class_counts_.tolist() == [50, 100]
    assert set(fitted.predict(blobs[0]).tolist()) == {1, 2}


def test_a_batch_is_learned_once_more_only_where_that_is_wanted(
    fitted: Learner, blobs: Data
) -> None:
    fitted.partial_fit(part(blobs, 3), again=False)
    for again in (part(blobs, 3), part(blobs, 0, 1, 2)):
        with refused(
            fitted, KnownSamplesError, "were learned before and would count twice"
        ):
            fitted.partial_fit(again, again=False)
    fitted.unlearn(part(blobs, 3)).partial_fit(
        part(blobs, 3), again=False
    )  # what was taken out is new
    assert fitted.partial_fit(part(blobs, 3)).state_.label_counts[3] == 100


def test_fit_starts_from_scratch(fitted: Learner, blobs: Data) -> None:
    fitted.fit(part(blobs, 4, 5))
    assert fitted.classes_.tolist() == [4, 5]
    assert [change.what for change in fitted.state_.history] == ["fit"]
    assert fitted.state_.revision == 1


def test_classes_that_differ_in_case_only_are_warned_of(blobs: Data) -> None:
    X, y = part(blobs, 3)
    named = small_learner().fit((X, ["Heron", "crane"] * (len(y) // 2)))
    with pytest.warns(DataWarning, match="'heron' is new but differs from 'Heron'"):
        named.partial_fit((X, ["heron"] * len(y)))
    with pytest.warns(DataWarning, match="only in upper and lower case"):
        small_learner().fit((X, ["a", "A"] * (len(y) // 2)))


def with_rows(data: Data, counts: dict[int, int]) -> Data:
    """Return so many rows of each class."""
    rows = np.concatenate(
        [np.flatnonzero(data[1] == label)[:count] for label, count in counts.items()]
    )
    return data[0][rows], data[1][rows]


def test_classes_with_few_samples_are_warned_of_once(
    blobs: Data, tmp_path: Path
) -> None:
    learner = small_learner().fit(part(blobs, 0, 1))
    usual = learner.state_.label_counts[0]
    with pytest.warns(
        FewSamplesWarning,
        match=rf"1 of 3 classes has fewer than .* beside a median of {usual} \(2: 2\)",
    ):
        learner.partial_fit(with_rows(blobs, {2: 2}))
    learner.partial_fit(
        with_rows(blobs, {0: 5})
    )  # the same class is poor as before: nothing new to say
    learner.save(tmp_path / "m.evg")
    later = Learner.load(tmp_path / "m.evg").partial_fit(with_rows(blobs, {2: 1}))
    with pytest.warns(
        FewSamplesWarning,
        match=r"2 of 4 classes have .* \(3: 1, 2: 3\): they are recognised less",
    ):
        later.partial_fit(with_rows(blobs, {3: 1}))
    later.partial_fit(with_rows(blobs, {2: 10, 3: 10}))
    with pytest.warns(
        FewSamplesWarning,
        match=r"\(2: 1\): it is recognised less surely; teach at least 10",
    ):
        small_learner().fit(with_rows(blobs, {0: 30, 1: 30, 2: 1}))
    small_learner().fit(with_rows(blobs, {0: 9, 1: 1})).partial_fit(
        with_rows(blobs, {2: 2})
    )  # few of each: no warning
    small_learner().fit(with_rows(blobs, {0: 20, 1: 4}))


def test_a_warning_or_a_head_that_fails_leaves_the_learner_as_it_was(
    fitted: Learner, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    with refused(fitted, FewSamplesWarning):
        fitted.partial_fit(with_rows(blobs, {4: 1}))
    monkeypatch.setattr(Classifier, "_learn", broken)
    for verb in ("fit", "partial_fit"):
        with refused(fitted, MemoryError):
            getattr(fitted, verb)(part(blobs, 3, 4))


# -- failures leave everything as it was -----------------------------------------------

BAD: list[tuple[str, Callable[[Data], Any], type[EvergrowError]]] = [
    ("empty", lambda data: (data[0][:0], []), InputError),
    ("another width", lambda data: (data[0][:, :3], data[1]), InputError),
    (
        "not finite",
        lambda data: (np.where(data[0] > 2, np.nan, data[0]), data[1]),
        InputError,
    ),
    ("too few labels", lambda data: (data[0], data[1][:-1]), LabelError),
    ("texts", lambda data: (TEXTS, NAMES), InputError),
    ("images", lambda data: ([image(0, 0)], ["a"]), InputError),
    ("nowhere", lambda data: "no/such/folder", DatasetNotFoundError),
]


VERBS = {name: ["fit", "partial_fit", "unlearn", "evaluate"] for name, _, _ in BAD}
VERBS["another width"].remove("fit")  # which may change the width


@pytest.mark.parametrize(
    ("verb", "bad", "error"),
    [
        pytest.param(verb, *case[1:], id=f"{verb}-{case[0]}")
        for case in BAD
        for verb in VERBS[case[0]]
    ],
)
def test_invalid_data_leaves_the_learner_unchanged(
    fitted: Learner,
    blobs: Data,
    verb: str,
    bad: Callable[[Data], Any],
    error: type[EvergrowError],
) -> None:
    with refused(fitted, error):
        getattr(fitted, verb)(bad(blobs))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"method": "scl"}, UnknownNameError, "nearest"),
        ({"options": {"n_unit": 5}}, UnknownNameError, "n_units"),
        ({"method": "ease"}, ParameterError, "no method 'ease'"),
        ({"options": [1]}, ParameterError, "dict"),
        ({"adapt": "adaptor"}, ParameterError, "adapt must be one of"),
        ({"random_state": "x"}, ParameterError, "random_state"),
    ],
)
def test_fit_rejects_invalid_parameters(
    blobs: Data, settings: dict[str, Any], error: type[EvergrowError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Learner(None, **settings).fit(blobs)


def test_unfitted_learner_raises_not_fitted_error() -> None:
    for ask in (
        lambda one: one.predict(np.eye(2)),
        lambda one: one.state_.describe(),
        lambda one: one.classes_,
        empty_copy,
    ):
        with pytest.raises(NotFittedError):
            ask(Learner())


# -- backbones -------------------------------------------------------------------------


def test_updates_touch_no_old_image(tmp_path: Path) -> None:
    old = write_folder(tmp_path / "old", {"red": 0, "blue": 1, "green": 2})
    new = write_folder(tmp_path / "new", {"grey": 3, "pink": 4})
    test = write_folder(
        tmp_path / "test",
        {"red": 0, "blue": 1, "green": 2, "grey": 3, "pink": 4},
        n=3,
        seed=1,
    )
    learner = Learner(Colours(), options={"n_units": 30}, cache=False).fit(old)
    shutil.rmtree(old)
    learner.partial_fit(new)
    assert learner.classes_.tolist() == ["blue", "green", "grey", "pink", "red"]
    result = learner.evaluate(test)
    assert (result.n_samples, result.unknown_classes) == (15, {})
    assert result.accuracy > 0.8


def test_a_broken_image_half_way_changes_nothing(tmp_path: Path) -> None:
    learner = Learner(
        Colours(), options={"n_units": 30}, cache=False, extract={"batch_size": 2}
    )
    learner.fit(write_folder(tmp_path / "old", {"red": 0, "blue": 1}))
    new = write_folder(tmp_path / "new", {"grey": 3, "pink": 4})
    (new / "pink" / "4.png").write_bytes(b"no image")
    with refused(learner, ImageError, r"4\.png"):
        learner.partial_fit(new)
    learner = Learner.load(
        learner.state_.to_archive(),
        backbone=Colours(),
        cache=False,
        extract={"on_error": "skip"},
    )
    with pytest.warns(DataWarning, match=r"4\.png"):
        learner.partial_fit(new)
    assert learner.state_.label_counts == {"blue": 5, "grey": 5, "pink": 4, "red": 5}
    with pytest.warns(DataWarning, match="left out"):
        assert learner.evaluate(new).left_out == ("pink/4.png",)
    with pytest.raises(
        ImageError, match=r"4\.png"
    ):  # answers would no longer be in the order of the items
        learner.predict(new)
    with pytest.warns(DataWarning, match="left out"):
        found = learner.encode(new)
    assert len(found.X) == 9
    assert found.failures[0][0] == "pink/4.png"
    assert learner.predict(found.X).shape == (9,)
    for file in (new / "pink").iterdir():
        file.write_bytes(b"no image")
    with (
        pytest.warns(DataWarning),
        pytest.raises(InputError, match="'pink'"),
    ):  # of which nothing can be read
        learner.fit(new)


def test_images_in_memory_and_on_disk_are_the_same(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", {"red": 0, "blue": 1})
    learner = Learner(Colours(), options={"n_units": 30}, cache=False).fit(folder)
    pixels = [image(hue, hue * 50 + number) for hue in (1, 0) for number in range(5)]
    on_disk = learner.decision_function(folder)
    assert np.allclose(learner.decision_function(pixels), on_disk)
    assert np.allclose(learner.decision_function(np.stack(pixels)), on_disk)
    assert np.allclose(learner.decision_function(learner.encode(folder).X), on_disk)


def test_texts_are_learned_from_pairs_and_tables(tmp_path: Path) -> None:
    learner = Learner(Letters(), options={"n_units": 20}).fit((TEXTS, NAMES))
    assert learner.state_.describe()["kind"] == "text"
    assert learner.predict("abba").tolist() == ["early"]
    assert learner.predict(["abba", "zyx zyx"]).tolist() == ["early", "late"]
    (tmp_path / "t.csv").write_text(
        "text,label\nbaba,early\nmmm nnn,middle\nnm nm,middle\n"
    )
    assert learner.partial_fit(tmp_path / "t.csv").classes_.tolist() == [
        "early",
        "late",
        "middle",
    ]


def test_data_of_another_kind_are_refused(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "p", {"red": 0, "blue": 1})
    (tmp_path / "t.csv").write_text("text,label\nbaba,early\nzz,late\n")
    on_texts = Learner(Letters(), options={"n_units": 20}).fit((TEXTS, NAMES))
    on_images = Learner(Colours(), options={"n_units": 20}, cache=False).fit(images)
    for verb in ("partial_fit", "evaluate", "unlearn"):
        with pytest.raises(InputError, match=r"takes texts.*letters.*these are images"):
            getattr(on_texts, verb)(images)
        with pytest.raises(InputError, match=r"takes images.*these are texts"):
            getattr(on_images, verb)(tmp_path / "t.csv")
    with pytest.raises(InputError, match="takes texts"):
        on_texts.predict(images / "red" / "0.png")
    with pytest.raises(InputError, match="columns"):
        on_images.predict(np.zeros((1, 5)))
    with pytest.raises(InputError, match="no backbone is given"):
        Learner(None).fit(images)


def test_features_of_another_backbone_are_refused(tmp_path: Path) -> None:
    learner = Learner(Colours(), options={"n_units": 20}, cache=False)
    learner.fit(write_folder(tmp_path / "p", {"red": 0, "blue": 1}))
    X = np.random.default_rng(0).random((4, 27))
    y = np.array([0, 0, 1, 1])
    right = {
        "name": "Colours",
        "weights_hash": learner.state_.describe()["backbone"]["weights_hash"],
    }
    learner.partial_fit(Dataset.of(X, y, X, y, names=("a", "b"), backbone=right))
    with pytest.raises(InputError, match="other"):
        learner.partial_fit(
            Dataset.of(X, y, backbone={"name": "other", "weights_hash": "0"})
        )


# -- other methods ---------------------------------------------------------------------


def test_a_method_without_extras_says_so(blobs: Data, tmp_path: Path) -> None:
    learner = (
        Learner(None, "simplecil")
        .fit(part(blobs, 0, 1, 2))
        .partial_fit(part(blobs, 3, 4, 5))
    )
    assert learner.evaluate(blobs).accuracy > 0.8
    assert learner.state_.describe()["novelty"] is None
    for verb, *given in (
        ("is_unknown", blobs[0]),
        ("unlearn", blobs),
        ("forget_classes", "0"),
        ("merge", learner),
        ("predict_proba", blobs[0]),
    ):
        with pytest.raises(ParameterError, match="method 'simplecil' cannot"):
            getattr(learner, verb)(*given)
    with pytest.raises(ParameterError, match="method 'simplecil' cannot"):
        empty_copy(learner)
    with pytest.raises(ParameterError, match="method 'simplecil' cannot"):
        learner.state_.threshold()
    learner.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg")
    assert np.array_equal(loaded.predict(blobs[0]), learner.predict(blobs[0]))


# -- exact edits -----------------------------------------------------------------------


def test_unlearn_and_forget_reject_unknown_samples_and_classes(
    fitted: Learner, blobs: Data
) -> None:
    X, y = part(blobs, 0)
    for unlearn, error, said in (
        (part(blobs, 5), LabelError, "There is no class '5'"),
        (
            (np.concatenate([X, X]), np.concatenate([y, y])),
            UnlearnError,
            "50 too many of '0'",
        ),
        ((X[:5] + 1000, y[:5]), UnlearnError, "was not learned before"),
    ):
        with refused(fitted, error, said):
            fitted.unlearn(unlearn)
    for forget, said in (
        (["0", "nothing"], "'nothing'.*nearest"),
        ([], "at least one"),
    ):
        with refused(fitted, LabelError, said):
            fitted.forget_classes(forget)


def test_merging_spawned_learners_equals_one(fitted: Learner, blobs: Data) -> None:
    whole = empty_copy(fitted).partial_fit(blobs)
    other = empty_copy(fitted).partial_fit(part(blobs, 3, 4, 5))
    fitted.merge(other)
    assert (
        np.abs(
            plain(fitted).predict_proba(blobs[0]) - plain(whole).predict_proba(blobs[0])
        ).max()
        < 1e-6
    )
    assert fitted.state_.label_counts == whole.state_.label_counts
    last = fitted.state_.history[-1]
    assert (last.what, last.samples, last.classes) == ("merge", 150, ("3", "4", "5"))
    with pytest.raises(MergeError, match="would count twice"):
        fitted.merge(other)


@pytest.mark.parametrize("n_units", [40, 1500])  # dense and compact statistics
def test_copies_of_one_model_merge_with_their_base(
    blobs: Data, n_units: int, tmp_path: Path
) -> None:
    small_learner(n_units=n_units).fit(part(blobs, 0, 1)).partial_fit(
        part(blobs, 2)
    ).save(tmp_path / "base.evg")
    base, a, b = (Learner.load(tmp_path / "base.evg") for _ in range(3))
    whole = empty_copy(base).partial_fit(blobs)
    X, y = part(blobs, 2)
    a.partial_fit(part(blobs, 3, 5)).partial_fit((X[:20] + 0.1, y[:20]))
    whole.partial_fit((X[:20] + 0.1, y[:20]))
    b.partial_fit(part(blobs, 4))
    known = a.state_.describe()["novelty"]["calibrated_on"]
    with pytest.raises(MergeError, match="base"):
        a.merge(b)
    a.merge(b, base=base)
    assert a.state_.label_counts == whole.state_.label_counts
    assert a.head_.class_counts_.tolist() == list(whole.state_.label_counts.values())
    scores = a.decision_function(blobs[0])
    expected = whole.decision_function(blobs[0])
    gaps = expected - expected.mean(
        axis=1, keepdims=True
    )  # what all classes share decides nothing
    assert (
        np.abs(scores - scores.mean(axis=1, keepdims=True) - gaps).max()
        < 1e-7 * np.abs(gaps).max()
    )
    assert (
        np.abs(
            plain(a).predict_proba(blobs[0]) - plain(whole).predict_proba(blobs[0])
        ).max()
        < 1e-7
    )
    assert (a.head_.model_.state.basis is None) == (
        whole.head_.model_.state.basis is None
    )
    assert (
        a.state_.describe()["novelty"]["calibrated_on"] == known + 50
    )  # b's 50, and the base's scores once
    unknown = a.state_.calibration.unknown
    assert len(np.unique(unknown.measurement)) == 3  # one of each
    a.partial_fit(part(blobs, 0)).save(tmp_path / "merged.evg")
    assert Learner.load(tmp_path / "merged.evg").state_.label_counts[0] == 100


def test_merge_rejects_incompatible_learners(
    fitted: Learner, blobs: Data, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "base.evg")
    base, a, b = (Learner.load(tmp_path / "base.evg") for _ in range(3))
    cases: list[tuple[Any, Learner | None, str]] = [
        (5, None, "must be a Learner"),
        (
            Learner(None, "simplecil").fit(blobs),
            None,
            "shares this layer, got SimpleCIL",
        ),
        (small_learner(n_units=20).fit(blobs), None, "different layers"),
        (small_learner().fit((blobs[0][:, :4], blobs[1])), None, "different layers"),
        (
            b.partial_fit(part(blobs, 3)),
            empty_copy(fitted).partial_fit(part(blobs, 5)),
            "another history",
        ),
        (Learner.load(tmp_path / "base.evg").forget_classes("0"), base, "forget"),
    ]
    for other, common, message in cases:
        with refused(a, MergeError, message):
            a.merge(other, base=common)
    a.partial_fit(part(blobs, 3))
    with pytest.raises(MergeError, match="different data since their base"):
        a.merge(b, base=base)


# -- the open world --------------------------------------------------------------------


def test_false_alarms_are_about_as_frequent_as_asked_for() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 16)) * 3
    y = np.arange(1200) % 12
    train, test = ((centres[y] + rng.normal(size=(1200, 16)), y) for _ in range(2))
    known = part(test, *range(8))
    strange = part(test, *range(8, 12))
    learner = (
        small_learner()
        .fit(part(train, *range(4)))
        .partial_fit(part(train, *range(4, 8)))
    )
    for wanted in (0.05, 0.2):
        assert abs(learner.is_unknown(known[0], wanted).mean() - wanted) < 0.06
    assert learner.is_unknown(strange[0]).mean() > 0.8
    result = learner.evaluate(test)
    assert result.unknown is not None
    assert result.unknown.n_unknown == result.n_unknown == 400
    assert result.unknown.auroc > 0.95
    assert result.unknown.threshold == learner.state_.threshold(0.05)
    assert result.unknown.false_alarm_rate == learner.is_unknown(known[0]).mean()
    for unknown in (
        strange[0],
        test,
    ):  # of labelled data only classes that were not learned count
        assert learner.evaluate(known, unknown=unknown).unknown == result.unknown
    with pytest.raises(InputError, match="got known classes only"):
        learner.evaluate(test, unknown=known)


def test_one_sample_of_each_class_cannot_be_calibrated(blobs: Data) -> None:
    learner = small_learner().fit((blobs[0][:6], blobs[1][:6]))
    assert learner.state_.describe()["novelty"] is None
    assert learner.head_.temperature_ == learner.head_.expected_temperature()
    assert np.isfinite(learner.predict_proba(blobs[0])).all()
    with pytest.raises(NotFittedError, match="two samples of a class"):
        learner.is_unknown(blobs[0])
    with pytest.raises(NotFittedError, match="two samples of a class"):
        learner.evaluate(blobs, unknown=blobs[0] + 10)
    learner.partial_fit(blobs)
    assert learner.is_unknown(blobs[0]).shape == (300,)


@pytest.mark.parametrize("wrong", [0, 1, -0.1, "x"])
def test_false_alarm_must_be_a_share(fitted: Learner, blobs: Data, wrong: Any) -> None:
    with pytest.raises(ParameterError, match="false_alarm must be a number"):
        fitted.is_unknown(blobs[0], wrong)


# -- files -----------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(
    fitted: Learner, blobs: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.partial_fit(part(blobs, 3))
    fitted.save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg")
    assert_same(loaded.state_.to_archive(), fitted.state_.to_archive())
    assert loaded.state_.describe() == fitted.state_.describe()
    verbs = (
        "predict",
        "predict_proba",
        "decision_function",
        "novelty_score",
        "is_unknown",
    )
    expected = [getattr(fitted, verb)(blobs[0]) for verb in verbs]
    with monkeypatch.context() as patch:
        patch.setattr(
            "evergrow.head.solved_cache.SolvedScatter.estimate_means", None
        )  # nothing is solved again
        for verb, other in zip(verbs, expected, strict=True):
            one = getattr(loaded, verb)(blobs[0])
            assert (
                np.array_equal(one, other)
                if one.dtype.kind != "f"
                else np.allclose(one, other, rtol=1e-9)
            )
    loaded.partial_fit(part(blobs, 4)).save(tmp_path / "again.evg")
    fitted.partial_fit(part(blobs, 4))
    assert np.allclose(
        loaded.predict_proba(blobs[0]), fitted.predict_proba(blobs[0]), rtol=1e-9
    )


def test_no_sample_is_in_the_file(tmp_path: Path) -> None:
    secret = "a very private sentence"
    learner = Learner(Letters(), options={"n_units": 20}).fit(
        ([*TEXTS, secret], [*NAMES, "late"])
    )
    learner.save(tmp_path / "m.evg")
    body = (tmp_path / "m.evg").read_bytes()
    assert secret.encode() not in body
    features = Letters().encode([secret]).double().numpy().tobytes()
    assert features not in body


def test_the_backbone_is_loaded_only_for_images(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", {"red": 0, "blue": 1, "green": 2})
    module = Colours()
    learner = Learner(module, options={"n_units": 20}, cache=False).fit(folder)
    X = learner.encode(folder).X
    scores = learner.decision_function(folder)
    learner.save(tmp_path / "m.evg")
    alone = Learner.load(
        tmp_path / "m.evg", cache=False
    )  # without the module its backbone cannot be had
    assert np.allclose(alone.decision_function(X), scores, rtol=1e-9)
    assert alone.state_.describe()["backbone"]["weights"] == "module"
    assert empty_copy(alone).partial_fit((X, ["a"] * len(X))).state_.label_counts == {
        "a": 15
    }
    for verb in ("predict", "partial_fit"):
        with refused(alone, WeightsError, "module"):
            getattr(alone, verb)(folder)
    assert_same(alone.state_.to_archive(), learner.state_.to_archive())
    whole = Learner.load(tmp_path / "m.evg", backbone=module, cache=False)
    assert np.allclose(whole.decision_function(folder), scores)
    other = create_backbone("test_resnet", weights="random", device="cpu")
    for backbone, said in (
        (Colours(2.0), "hash"),
        (other, "test_resnet"),
        ("resnet101", "'resnet101'"),
    ):
        with pytest.raises(WeightsError, match=said):
            Learner.load(tmp_path / "m.evg", backbone=backbone, cache=False).predict(
                folder
            )


def test_a_layer_among_the_options_is_kept_in_the_file(
    blobs: Data, tmp_path: Path
) -> None:
    learner = small_learner(layer=GuidedLayer(n_units=40, scales="auto")).fit(blobs)
    learner.save(tmp_path / "m.evg")
    again = Learner.load(tmp_path / "m.evg")
    assert np.array_equal(again.predict(blobs[0]), learner.predict(blobs[0]))
    assert again.state_.describe()["options"] == learner.state_.describe()["options"]
    fresh = Learner(
        **{
            name: again.get_params()[name]
            for name in ("backbone", "method", "options", "random_state")
        }
    )
    assert np.array_equal(fresh.fit(blobs).predict(blobs[0]), learner.predict(blobs[0]))


# -- a few items -----------------------------------------------------------------------


def test_all_answers_at_once(fitted: Learner, blobs: Data) -> None:
    X = blobs[0][:20]
    found = fitted.predictions(X, false_alarm=0.05)
    assert found.measure == "probability"
    assert found.classes.tolist() == fitted.state_.classes.tolist()
    np.testing.assert_array_equal(found.values, fitted.predict_proba(X))
    np.testing.assert_array_equal(found.novelty, fitted.novelty_score(X))
    np.testing.assert_array_equal(found.unknown, fitted.is_unknown(X))
    assert fitted.predictions(X).unknown is None
    features = fitted.encode(X)
    np.testing.assert_array_equal(fitted.predict(features), fitted.predict(X))
    scores = Learner(None, method="simplecil").fit(part(blobs, 0, 1)).predictions(X)
    assert (scores.measure, scores.values.shape) == ("score", (20, 2))


def test_nan_novelty_counts_as_unknown(
    fitted: Learner, blobs: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Classifier, "novelty_score", lambda self, X: np.full(len(X), np.nan)
    )
    assert fitted.is_unknown(blobs[0][:3]).all()
    assert fitted.predictions(blobs[0][:3], false_alarm=0.05).unknown.all()
