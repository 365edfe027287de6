"""Samples that are unlearned for good are gone from the model, history and cache."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import Letters, killed_at, needs_fork

from evergrow import Learner
from evergrow.core.errors import ParameterError
from evergrow.learner.history import History
from evergrow.learner.modelfile import (
    commit,
    history,
    kept_revisions,
    locked_model,
    open_model,
    redo,
    rollback,
)
from evergrow.learner.snapshot import Erased

WORDS = {
    "fruit": ["apple", "banana", "cherry", "melon", "papaya", "orange"],
    "tree": ["oak wood", "birch bark", "pine cone", "elm leaf", "fir needle", "yew"],
}
WITHDRAWN = ["zebra jazz quiz", "vex waxy fjord", "xylophone quartz", "jukebox haze"]


def texts_of(folder: Path, name: str, words: dict[str, list[str]]) -> Path:
    """Write texts with labels as a table."""
    rows = [f"{text},{label}" for label, texts in words.items() for text in texts]
    path = folder / name
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


def contents(folder: Path) -> bytes:
    """Return the bytes of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


def traces(rows: np.ndarray, folder: Path) -> int:
    """Count the rows in the files of a folder, in single and double precision."""
    found = contents(folder)
    return sum(
        found.count(row.astype(dtype).tobytes())
        for row in rows
        for dtype in (np.float32, np.float64)
    )


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """A model of texts with samples to withdraw, and a cache of its own."""
    cache = tmp_path / "cache"
    path = tmp_path / "models" / "m.evg"
    path.parent.mkdir()
    settings = {"backbone": Letters(), "cache": cache}
    first = texts_of(tmp_path, "first.csv", WORDS)
    more = texts_of(tmp_path, "more.csv", {"fruit": [*WITHDRAWN, "lemon", "lime"]})
    withdrawn = texts_of(tmp_path, "withdrawn.csv", {"fruit": WITHDRAWN})
    learner = Learner(options={"n_units": 1200}, device="cpu", **settings).fit(first)
    commit(path, learner)
    commit(path, learner.partial_fit(more), "more")
    return {
        "path": path,
        "cache": cache,
        "withdrawn": withdrawn,
        "settings": settings,
        "rows": learner.encode(WITHDRAWN).X,
    }


def test_no_feature_is_left_in_the_model_its_history_or_the_cache(
    place: dict[str, Any],
) -> None:
    assert traces(place["rows"], place["cache"]) > 0
    with locked_model(place["path"], **place["settings"]) as learner:
        learner.unlearn(place["withdrawn"], for_good=True)
        commit(place["path"], learner)
    assert traces(place["rows"], place["path"].parent) == 0
    assert traces(place["rows"], place["cache"]) == 0
    assert History(place["path"]).numbers() == []
    assert not list(place["path"].parent.rglob("*.piece"))
    assert kept_revisions(place["path"]) == []
    with pytest.raises(ParameterError, match="nothing to undo"):
        rollback(place["path"])
    with pytest.raises(ParameterError, match="nothing to redo"):
        redo(place["path"])


def test_files_of_other_samples_stay_in_the_cache(place: dict[str, Any]) -> None:
    before = set(place["cache"].rglob("*.safetensors"))
    with locked_model(place["path"], **place["settings"]) as learner:
        learner.unlearn(place["withdrawn"], for_good=True)
        erased = learner.state_.history[-1].erased
    assert erased.cache_files == 1
    assert erased.unsearched_entries == 0
    after = set(place["cache"].rglob("*.safetensors"))
    assert len(before) == 2
    assert after < before


def test_undone_revisions_with_the_samples_are_removed_too(
    place: dict[str, Any],
) -> None:
    with locked_model(place["path"], **place["settings"]) as learner:
        commit(place["path"], learner.partial_fit(["kiwi"], ["fruit"]))
    rollback(place["path"])
    with locked_model(place["path"], **place["settings"]) as learner:
        commit(place["path"], learner.unlearn(place["withdrawn"], for_good=True))
    assert History(place["path"]).numbers() == []
    assert not list(place["path"].parent.rglob("*.piece"))


def test_the_log_keeps_who_when_and_how_many(place: dict[str, Any]) -> None:
    with locked_model(place["path"], **place["settings"]) as learner:
        learner.unlearn(place["withdrawn"], for_good=True)
        commit(place["path"], learner, "request 17", who="ann")
    changes = history(place["path"])
    assert [change.what for change in changes] == ["fit", "update", "unlearn"]
    assert changes[-1].for_good
    assert (changes[-1].samples, changes[-1].who) == (4, "ann")
    assert changes[-1].note == "request 17"
    assert json.loads(json.dumps(changes[-1].to_dict()))["erased"]["cache_files"] == 1


def test_later_changes_can_be_undone_again(place: dict[str, Any]) -> None:
    with locked_model(place["path"], **place["settings"]) as learner:
        commit(place["path"], learner.unlearn(place["withdrawn"], for_good=True))
    body = place["path"].read_bytes()
    with locked_model(place["path"], **place["settings"]) as learner:
        commit(place["path"], learner.partial_fit(["plum"], ["fruit"]))
    rollback(place["path"])
    assert place["path"].read_bytes() == body


def test_the_model_equals_one_that_never_saw_the_samples(place: dict[str, Any]) -> None:
    learner = open_model(place["path"], **place["settings"])
    learner.unlearn(place["withdrawn"], for_good=True)
    expected = Learner(options={"n_units": 1200}, device="cpu", **place["settings"])
    folder = place["path"].parent.parent
    expected.fit(folder / "first.csv").partial_fit(["lemon", "lime"], ["fruit"] * 2)
    texts = [*WORDS["tree"], *WITHDRAWN, "lemon"]
    np.testing.assert_allclose(
        learner.decision_function(texts),
        expected.decision_function(texts),
        atol=1e-6,
    )
    state = learner.head_.model_.state
    assert state.basis is not None
    assert state.order <= expected.head_.model_.state.order


def test_for_good_needs_data() -> None:
    learner = Learner(None, options={"n_units": 5})
    with pytest.raises(ParameterError, match="for_good must be given with data"):
        learner.unlearn(unlabelled=True, for_good=True)


def test_entries_of_other_networks_are_counted(place: dict[str, Any]) -> None:
    class Doubled(Letters):
        spec = replace(Letters.spec, weights_hash="other")

        def encode(self, batch: Any) -> Any:
            return 2 * super().encode(batch)

    other = Learner(Doubled(), options={"n_units": 20}, cache=place["cache"])
    other.fit(place["path"].parent.parent / "first.csv")
    learner = open_model(place["path"], **place["settings"])
    learner.unlearn(place["withdrawn"], for_good=True)
    assert learner.state_.history[-1].erased == Erased(1, 1)


@needs_fork
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("step", [17, pytest.param(3, marks=pytest.mark.slow)])
def test_killed_at_any_moment_nothing_of_the_samples_is_left_with_the_new_model(
    tmp_path: Path, step: int
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 8))
    y = np.arange(24) % 2
    original = tmp_path / "original"
    original.mkdir()
    learner = Learner(None, options={"n_units": 100}).fit((X[:12], y[:12]))
    commit(original / "m.evg", learner)
    commit(original / "m.evg", learner.partial_fit((X[12:], y[12:])))
    path = tmp_path / "models" / "m.evg"

    def work() -> None:
        with locked_model(path) as learner:
            commit(path, learner.unlearn((X[12:], y[12:]), for_good=True))

    outcomes = set()
    for moment in range(0, 1000, step):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(original, path.parent)
        killed = killed_at(moment, work)
        n_samples = sum(open_model(path).state_.label_counts.values())
        outcomes.add(n_samples)
        if n_samples == 12:
            assert not list(path.parent.rglob("*.piece"))
            assert not list(path.parent.rglob("[0-9]*.json"))
            for leftover in path.parent.glob(".*.part/*.evg"):
                assert leftover.read_bytes() == path.read_bytes()
        else:
            assert path.read_bytes() == (original / "m.evg").read_bytes()
        if not killed:
            break
    assert outcomes == {24, 12}
