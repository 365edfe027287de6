"""Mistakes in labelled data are found, compared with a check of all pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evergrow.data.inputs import read_labelled
from evergrow.data.items import Images, Samples, Texts
from evergrow.tools import data_check
from evergrow.tools.data_check import check_samples


def features(X: np.ndarray, labels: list[str]) -> Samples:
    return read_labelled((X, labels), "train")


def test_check_samples_finds_identical_texts_and_images(tmp_path: Path) -> None:
    train = read_labelled(
        (Texts(("a b", "c", "A  b", "c", "d")), ["x", "y", "y", "y", "x"]), "train"
    )
    test = read_labelled((Texts(("D", "new")), ["x", "x"]), "train")
    found = check_samples(train, test)
    assert [(finding.kind, finding.rows) for finding in found.findings] == [
        ("two labels", (0, 2)),
        ("training and test", (4, 5)),
    ]
    assert (found.repeated, found.n_samples, found.n_test, found.clean) == (
        1,
        7,
        2,
        False,
    )
    pixels = np.zeros((3, 4, 4), np.uint8)
    pixels[2] = 1
    assert (
        len(
            check_samples(
                read_labelled((Images(pixels), ["x", "y", "y"]), "train")
            ).findings
        )
        == 1
    )
    (tmp_path / "a.png").write_bytes(b"1")
    files = Images(("a.png", "gone.png"), root=tmp_path)
    assert check_samples(read_labelled((files, ["x", "y"]), "train")).unread == (
        "gone.png",
    )


def test_near_duplicates_equal_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    X[50:] = X[:10] + 1e-3 * rng.normal(size=(10, 8))
    y = [f"c{row % 3}" for row in range(60)]
    found = check_samples(features(X[:45], y[:45]), features(X[45:], y[45:]))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    close = unit @ unit.T >= data_check.SIMILAR["features"]
    expected = {
        (i, j, "two labels" if y[i] != y[j] else "training and test")
        for i in range(45)
        for j in range(i + 1, 60)
        if close[i, j] and (y[i] != y[j] or j >= 45)
    }
    assert {
        (*pair.rows, pair.kind) for pair in found.findings if pair.kind != "misplaced"
    } == expected
    assert len(expected) == 10


def test_check_samples_finds_misplaced_samples() -> None:
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(3, 16)) * 4
    X = np.concatenate([centre + rng.normal(size=(20, 16)) for centre in centres])
    y = np.repeat(["ant", "bee", "cat"], 20)
    assert check_samples(features(X, y.tolist())).clean
    wrong = y.copy()
    wrong[[3, 25]] = ["cat", "ant"]
    found = check_samples(features(X, wrong.tolist()))
    assert {(entry.kind, entry.rows[0], *entry.labels) for entry in found.findings} == {
        ("misplaced", 3, "cat", "ant"),
        ("misplaced", 25, "ant", "bee"),
    }


def test_large_data_is_compared_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "MAX_COMPARED", 10)
    X = np.random.default_rng(0).normal(size=(30, 4))
    found = check_samples(features(X, ["a", "b"] * 15))
    assert "10 of 30 samples were compared" in found.notes[0]
    assert found.unread == ()
