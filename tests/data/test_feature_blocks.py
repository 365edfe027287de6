"""Blocks of features are scaled to equal energy, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from evergrow.core.errors import InputError
from evergrow.data.feature_blocks import check_widths, join_blocks

WIDTHS = (3, 2, 4)


def by_hand(row: np.ndarray) -> np.ndarray:
    parts = []
    for start, width in ((0, 3), (3, 2), (5, 4)):
        part = row[start : start + width].astype(float)
        if min(part) >= 0:
            part = np.sqrt(part)
        length = np.sqrt(sum(part**2))
        parts.append(part / length / np.sqrt(3) if length else part)
    return np.concatenate(parts)


def test_joined_blocks_equal_a_computation_by_hand() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 9))
    X[:20, :3] = np.abs(X[:20, :3])
    X[5, 3:5] = 0.0
    joined = join_blocks(X, WIDTHS)
    np.testing.assert_allclose(
        joined, [by_hand(row) for row in X], rtol=1e-12, atol=1e-15
    )
    full = np.delete(np.arange(50), 5)
    np.testing.assert_allclose(np.linalg.norm(joined[full], axis=1), 1.0)


def test_a_row_does_not_depend_on_others_and_float32_stays() -> None:
    X = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    joined = join_blocks(X, WIDTHS)
    assert joined.dtype == np.float32
    np.testing.assert_array_equal(
        joined, np.concatenate([join_blocks(X[i : i + 1], WIDTHS) for i in range(9)])
    )
    assert join_blocks(X.astype(np.float16), WIDTHS).dtype == np.float32


def test_extreme_numbers_neither_overflow_nor_underflow() -> None:
    X = np.array([[1e300, -1e300, 1e300, 1e-300, -1e-300, 1, 1, 1, 1.0]])
    joined = join_blocks(X, WIDTHS)
    assert np.isfinite(joined).all()
    np.testing.assert_allclose(np.linalg.norm(joined), 1.0)


def test_a_single_block_is_returned_unchanged() -> None:
    X = np.random.default_rng(2).normal(size=(4, 9))
    assert join_blocks(X, (9,)) is X
    assert join_blocks(X, ()) is X


@pytest.mark.parametrize("widths", [(3, 2), (3, 0, 6), (True, 8), "39", (3.0, 6)])
def test_widths_that_do_not_fit_are_refused(widths: object) -> None:
    with pytest.raises(InputError, match="widths must"):
        check_widths("widths", widths, 9)
