"""Blocks of features side by side: vectors from several depths of one network, brought to equal energy and joined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError

_ROWS = 4096  # rows joined at a time: features may be memory-mapped


def block_slices(widths: Sequence[int]) -> list[slice]:
    """Return the columns of each block.

    Examples
    --------
    >>> from evergrow.core.feature_blocks import block_slices
    >>> block_slices((2, 3))
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))]


def check_widths(name: str, widths: Any, n_columns: int) -> tuple[int, ...]:
    """Return widths of blocks as a tuple, or raise :class:`InputError` unless they add up to the columns there are.

    Parameters
    ----------
    name : str
        What to call them in the message.
    widths : sequence of int
        Width of each block; an empty one stands for a single block.
    n_columns : int
        Columns of the features.

    Examples
    --------
    >>> from evergrow.core.feature_blocks import check_widths
    >>> check_widths("widths", [2, 3], 5)
    (2, 3)
    """
    if not isinstance(widths, (list, tuple)) or not all(
        isinstance(width, int) and not isinstance(width, bool) and width > 0 for width in widths
    ):
        raise InputError(f"{name} must be positive integers, got {widths!r}")
    if widths and sum(widths) != n_columns:
        raise InputError(f"{name} must add up to the {n_columns} columns of the features, got {sum(widths)}")
    return tuple(widths)


def join_blocks(features: NDArray[Any], widths: Sequence[int]) -> NDArray[Any]:
    """Return features whose blocks all have the same energy, so that none speaks louder than the others.

    Of every row, each block is brought to length 1 / sqrt(number of blocks), after a square root where it has no
    negative value: pooled activations of rectified units have heavy tails. A block of zeros stays one. A single block
    is handed on as it is.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Blocks side by side, as a network gives them.
    widths : sequence of int
        Width of each block.

    Returns
    -------
    ndarray of shape (n, d)
        In the type of the features, float32 for half precision; rows of length one, where no block is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.core.feature_blocks import join_blocks
    >>> np.round(join_blocks(np.array([[3.0, -4.0, 9.0, 16.0]]), (2, 2)) * 2**0.5, 6).tolist()
    [[0.6, -0.8, 0.6, 0.8]]
    """
    if len(widths) < 2:
        return features
    check_widths("widths", list(widths), features.shape[1])
    dtype = np.float32 if features.dtype.itemsize <= 4 else np.float64
    out = np.empty(features.shape, dtype=dtype)
    scale = len(widths) ** -0.5
    for start in range(0, len(features), _ROWS):
        rows = slice(start, start + _ROWS)
        for columns in block_slices(widths):
            out[rows, columns] = scale * _unit_rows(np.asarray(features[rows, columns], dtype=np.float64))
    return out


def _unit_rows(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of length one, after a square root of those without a negative value."""
    largest = np.abs(block).max(axis=1, keepdims=True)
    block = block / np.where(largest > 0, largest, 1.0)  # squares of what comes next neither overflow nor vanish
    plain = (block >= 0).all(axis=1, keepdims=True)
    block = np.where(plain, np.sqrt(np.abs(block)), block)
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    result: NDArray[np.float64] = block / np.where(norms > 0, norms, 1.0)
    return result
