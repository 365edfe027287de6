"""Feature vectors: checks, and blocks of columns that are joined at equal energy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from evergrow.core.errors import InputError

_ROWS_AT_A_TIME = 4096
"""Rows that are processed at a time, because the features may be memory-mapped."""


def block_slices(widths: Sequence[int]) -> list[slice]:
    """Return the column range of each block.

    Examples
    --------
    >>> from evergrow.data.feature_blocks import block_slices
    >>> block_slices((2, 3))
    [slice(0, 2, None), slice(2, 5, None)]
    """
    boundaries = accumulate(widths, initial=0)
    return [slice(start, stop) for start, stop in pairwise(boundaries)]


def check_widths(name: str, widths: Any, n_columns: int) -> tuple[int, ...]:
    """Return block widths as a tuple, after checking that they fit the columns.

    Parameters
    ----------
    name : str
        Name of the argument in error messages.
    widths : sequence of int
        Width of each block. An empty sequence stands for a single block.
    n_columns : int
        Number of feature columns.

    Raises
    ------
    InputError
        If a width is not a positive integer, or the sum is not ``n_columns``.

    Examples
    --------
    >>> from evergrow.data.feature_blocks import check_widths
    >>> check_widths("widths", [2, 3], 5)
    (2, 3)
    """
    if not isinstance(widths, (list, tuple)) or not all(map(_is_width, widths)):
        raise InputError(f"{name} must be positive integers, got {widths!r}")
    if widths and sum(widths) != n_columns:
        raise InputError(
            f"{name} must add up to the {n_columns} columns of the features, "
            f"got {sum(widths)}"
        )
    return tuple(widths)


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def join_blocks(features: NDArray[Any], widths: Sequence[int]) -> NDArray[Any]:
    """Return features whose blocks are scaled to equal energy.

    Every row is handled on its own. Each of its blocks is scaled to length
    1 / sqrt(number of blocks). If the block has no negative value in this row, the
    square roots of its values are taken first, because pooled activations of rectified
    units have heavy tails. A block of zeros stays zero. If there is only one block,
    the features are returned unchanged.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Blocks side by side, as a network computes them.
    widths : sequence of int
        Width of each block.

    Returns
    -------
    ndarray of shape (n, d)
        In the dtype of the features, or float32 for half precision. Rows have length
        one unless a block is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.feature_blocks import join_blocks
    >>> joined = join_blocks(np.array([[3.0, -4.0, 9.0, 16.0]]), (2, 2))
    >>> np.round(joined * 2**0.5, 6).tolist()
    [[0.6, -0.8, 0.6, 0.8]]
    """
    if len(widths) < 2:
        return features
    check_widths("widths", list(widths), features.shape[1])
    dtype: DTypeLike = np.float32 if features.dtype.itemsize <= 4 else np.float64
    out = np.empty(features.shape, dtype=dtype)
    scale = len(widths) ** -0.5
    for start in range(0, len(features), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        for columns in block_slices(widths):
            block = np.asarray(features[rows, columns], dtype=np.float64)
            out[rows, columns] = scale * _unit_rows(block)
    return out


def _unit_rows(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows scaled to length one; rows of zeros stay.

    If a row has no negative value, the square roots of its values are taken first.
    """
    largest = np.abs(block).max(axis=1, keepdims=True)
    # Squares of the scaled values neither overflow nor underflow.
    block = block / np.where(largest > 0, largest, 1.0)
    nonnegative = (block >= 0).all(axis=1, keepdims=True)
    block = np.where(nonnegative, np.sqrt(np.abs(block)), block)
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    result: NDArray[np.float64] = block / np.where(norms > 0, norms, 1.0)
    return result


def as_features(values: NDArray[Any], title: str, start: int = 0) -> NDArray[Any]:
    """Return contiguous finite features as float32 or float64.

    Half precision becomes float32; integers become float64.

    Parameters
    ----------
    values : ndarray of shape (n, d)
        Feature vectors.
    title : str
        Name of the data in error messages.
    start : int
        Number of the first row in error messages.

    Raises
    ------
    InputError
        If a value is NaN or infinite.
    """
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.float64)
    check_finite(values, title, start)
    return np.ascontiguousarray(values)


def check_finite(values: NDArray[Any], title: str, start: int = 0) -> None:
    """Raise :class:`InputError` if a row holds NaN or infinity."""
    for first in range(0, len(values), _ROWS_AT_A_TIME):
        finite = np.isfinite(values[first : first + _ROWS_AT_A_TIME]).all(axis=1)
        if not finite.all():
            row = start + first + int(finite.argmin())
            raise InputError(
                f"{title} must be finite, got NaN or infinity, first in row {row}"
            )
