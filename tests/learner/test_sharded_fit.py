"""A data set learned in parts: their sum is the model that learned everything at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evergrow import Learner
from evergrow.core.errors import InputError, LabelError, MergeError, ParameterError, UnsupportedError
from evergrow.learner.learning import Block
from evergrow.learner.sharded_fit import (
    check_mergeable,
    complete_fit,
    encoder_for,
    learn_shard,
    merge_shards,
    with_layer,
)


@pytest.fixture(scope="module")
def data(blobs: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    X, y = blobs
    return X.astype(np.float32), np.array(list("abcdef"))[y]


def made(**settings: object) -> Learner:
    return Learner(options={"n_units": 20}, device="cpu", **settings)


def blocks(X: np.ndarray, y: np.ndarray, size: int) -> list[Block]:
    return [Block(X[start : start + size], y[start : start + size]) for start in range(0, len(X), size)]


@pytest.mark.parametrize("size", [7, 100, 300])
def test_the_sum_of_parts_is_the_model_of_all(data, size) -> None:
    X, y = data
    plain, whole = made().fit(X, y), made()
    template = with_layer(whole, encoder_for(whole, "features"), Block(X, y))
    total = merge_shards(learn_shard(template, block) for block in blocks(X, y, size))
    complete_fit(whole, total, Block(X, y))
    np.testing.assert_allclose(whole.head_.decision_function(X), plain.head_.decision_function(X), rtol=0, atol=1e-9)
    np.testing.assert_allclose(whole.predict_proba(X), plain.predict_proba(X), rtol=0, atol=1e-9)
    np.testing.assert_allclose(whole.novelty_score(X), plain.novelty_score(X), rtol=0, atol=1e-9)
    assert whole.threshold() == pytest.approx(plain.threshold(), abs=1e-9)
    assert whole.n_samples_ == plain.n_samples_
    (mine,), (theirs,) = whole.history_, plain.history_
    assert (mine.what, mine.samples, mine.classes, mine.data) == ("fit", 300, theirs.classes, theirs.data)


def test_parts_of_the_same_content_count_each_at_its_place(data) -> None:
    X, y = data
    template = made().fit(X, y).spawn()
    block = Block(X[:40], y[:40])
    both = merge_shards(learn_shard(template, block, place) for place in (0, 1))
    assert sum(both.n_samples_.values()) == 80
    with pytest.raises(MergeError, match="counted twice"):
        merge_shards(learn_shard(template, block, place) for place in (1, 1))
    with pytest.raises(MergeError, match="counted twice"):
        merge_shards(learn_shard(template, block) for _ in range(2))


def test_a_part_is_the_same_file_whenever_it_is_made(data, tmp_path: Path) -> None:
    X, y = data
    template = made().fit(X, y).spawn()
    for name in ("first", "again"):
        shard = learn_shard(template, Block(X[:50], y[:50]))
        assert shard.info()["novelty"] is None  # parts carry no calibration
        shard.save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()


def test_what_cannot_be_divided_is_refused(data) -> None:
    X, y = data
    with pytest.raises(ParameterError, match="adapt must be left out"):
        check_mergeable(made(adapt="ssf"), fresh=True)
    with pytest.raises(UnsupportedError):
        check_mergeable(Learner(method="simplecil"), fresh=True)
    template = made().fit(X, y).spawn()
    with pytest.raises(InputError, match="10 columns"):
        learn_shard(template, Block(X[:, :5], y))
    with pytest.raises(MergeError, match="at least one"):
        merge_shards([])
    template = made().fit(X, np.arange(len(X)) % 3).spawn()
    with pytest.raises(LabelError, match="integers as before"):
        learn_shard(template, Block(X[:4], np.array(list("abcd"))))
