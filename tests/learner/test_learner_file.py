"""The file of a learner: consistent fields, unknown fields, models without classes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import separated_rows

from evergrow import Learner
from evergrow.core.archive import Archive, write_archive
from evergrow.core.errors import (
    FileFormatError,
    NotFittedError,
    ParameterError,
    UnlearnError,
)
from evergrow.learner import empty_copy, settle

Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def learner(blobs: Data) -> Learner:
    X, y = blobs
    return (
        Learner(None, options={"n_units": 20})
        .fit((X[y < 2], y[y < 2]))
        .partial_fit((X[y == 2], y[y == 2]))
    )


def changed(archive: Archive, change: Callable[[dict[str, Any]], Any]) -> Archive:
    meta = copy.deepcopy(archive.meta)
    change(meta)
    return replace(archive, meta=meta)


def test_the_same_learner_gives_the_same_bytes(
    learner: Learner, tmp_path: Path
) -> None:
    learner.save(tmp_path / "a.evg")
    Learner.load(tmp_path / "a.evg").save(tmp_path / "b.evg")
    assert (tmp_path / "a.evg").read_bytes() == (tmp_path / "b.evg").read_bytes()


def test_fields_of_a_later_version_are_kept(
    learner: Learner, blobs: Data, tmp_path: Path
) -> None:
    def add(meta: dict[str, Any]) -> None:
        meta["colour"] = "green"
        meta["history"][0]["place"] = "here"

    archive = changed(learner.state_.to_archive(), add)
    archive.parts["later"] = Archive("kind-of-later", {"n": 1})
    write_archive(tmp_path / "m.evg", archive)
    loaded = Learner.load(tmp_path / "m.evg").forget_classes("0")
    written = loaded.state_.to_archive()
    assert written.meta["colour"] == "green"
    assert written.meta["history"][0]["place"] == "here"
    assert written.parts["later"].meta == {"n": 1}
    assert loaded.predict(blobs[0][:3]).shape == (3,)


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *places, key, value = path

    def change(meta: dict[str, Any]) -> None:
        node: Any = meta
        for place in places:
            node = node[place]
        node[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("counts", "0", 51), "the sample counts of .* differ"),
        (_set("counts", "0", 0), "integer from 1"),
        (_set("counts", "fox", 3), "have different classes"),
        (lambda meta: meta["counts"].pop("0"), "have different classes"),
        (_set("history", 0, "revision", 9), "do not ascend"),
        (_set("history", 0, "what", "magic"), "'what' should be one of"),
        (_set("lineage", {"number": 5, "ancestors": []}), "written as revision 5"),
        (
            _set(
                "lineage",
                {
                    "number": 1,
                    "ancestors": [{"revision": r, "digest": ""} for r in (3, 2)],
                },
            ),
            "do not ascend",
        ),
        (_set("recipe", "method", "ranpac"), "has another method"),
        (
            _set("label_kind", "boolean"),
            "its labels are of type 'boolean', but '0' is not",
        ),
    ],
)
def test_load_rejects_contradictory_fields(
    learner: Learner,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], Any],
    message: str,
) -> None:
    write_archive(tmp_path / "m.evg", changed(learner.state_.to_archive(), change))
    with pytest.raises(FileFormatError, match=message):
        Learner.load(tmp_path / "m.evg")


# -- a model that begins with no class -------------------------------------------------


OPTIONS = {"n_units": 20}


def rows(axis: int = 0) -> np.ndarray:
    return separated_rows(np.full(30, axis), 5, distance=8.0)


def empty() -> Learner:
    return Learner(None, options=OPTIONS, device="cpu").begin()


def test_an_empty_model_is_saved_loaded_and_taught(tmp_path: Path) -> None:
    path = tmp_path / "empty.evg"
    empty().save(path)
    learner = Learner.load(path, device="cpu")
    assert learner.classes_.tolist() == []
    assert learner.state_.label_counts == {}
    assert learner.state_.kind == "features"
    assert learner.state_.describe()["n_classes"] == 0
    assert "0 classes" in repr(learner)
    learner.partial_fit(rows(), ["ant"] * 30)
    direct = Learner(None, options=OPTIONS, device="cpu").fit(rows(), ["ant"] * 30)
    assert np.array_equal(
        learner.head_.class_scores(rows()), direct.head_.class_scores(rows())
    )


@pytest.mark.parametrize(
    ("verb", "given"),
    [
        *(
            (name, [rows()])
            for name in (
                "predict",
                "decision_function",
                "predict_proba",
                "novelty_score",
                "predictions",
                "is_unknown",
            )
        ),
        *(
            ("merge", [empty()]),
            ("rename_classes", [{"ant": "bee"}]),
        ),
    ],
)
def test_an_empty_model_says_that_it_knows_nothing(verb: str, given: list[Any]) -> None:
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        getattr(empty(), verb)(*given)


@pytest.mark.parametrize("function", [empty_copy, settle])
def test_functions_reject_an_empty_model(function: Any) -> None:
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        function(empty())


def test_an_empty_model_must_know_what_it_will_learn_from() -> None:
    for kind in (None, "sound"):
        with pytest.raises(
            ParameterError, match="kind must be one of 'image', 'text', 'features', got"
        ):
            Learner().begin(kind)
    with pytest.raises(ParameterError, match="adapt must be None"):
        Learner(adapt="ssf").begin("image")


def test_a_model_without_its_last_class_is_empty_again() -> None:
    learner = Learner(None, options=OPTIONS, device="cpu").fit(rows(), ["ant"] * 30)
    for left in (
        copy.copy(learner).forget_classes("ant"),
        copy.copy(learner).unlearn(rows(), ["ant"] * 30),
    ):
        assert left.classes_.tolist() == []
        assert left.state_.label_counts == {}
        assert left.state_.history[0].what == "fit"
        with pytest.raises(NotFittedError):
            left.predict(rows())
        assert (
            left.partial_fit(rows(1), ["bee"] * 30).predict(rows(1)).tolist()
            == ["bee"] * 30
        )
    with pytest.raises(UnlearnError):
        learner.unlearn(rows(2), ["ant"] * 30)
    assert learner.state_.label_counts == {"ant": 30}
