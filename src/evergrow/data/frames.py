"""Data frames of pandas and polars as features, texts, paths and labels; neither library is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.optional import is_instance_of


def is_frame(value: Any) -> bool:
    """Return whether something is a data frame: a table of named columns that can be numbers.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.frames import is_frame
    >>> is_frame(pandas.DataFrame({"a": [1]})), is_frame(pandas.Series([1])), is_frame([[1]])
    (True, False, False)
    """
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and len(getattr(value, "shape", ())) == 2


def is_pandas(value: Any) -> bool:
    """Return whether something is a frame or column of pandas, whose index its answers can have."""
    return is_instance_of(value, "pandas", "DataFrame", "Series")


def single_column(frame: Any) -> Any:
    """Return the column of a frame that has one, such as ``frame[["label"]]``."""
    names = list(frame.columns)
    if len(names) != 1:
        raise InputError(f"a frame must have one column to be labels or texts, got {len(names)}")
    return frame[names[0]]


def frame_values(frame: Any, kind: str | None) -> tuple[NDArray[Any] | list[Any], tuple[str, ...]]:
    """Return the contents of a frame: a matrix of its numbers with the names of its columns, or its one column.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or polars.
    kind : {"image", "text", "features"} or None
        What the model takes, where that is settled.

    Returns
    -------
    values : ndarray of shape (n, d) or list
        Numbers; texts or paths where the frame has one column and they are none.
    names : tuple of str
        Names of the columns; none where they are no strings, or it is one of texts or paths.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.frames import frame_values
    >>> frame_values(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), None)[1]
    ('a', 'b')
    >>> frame_values(pandas.DataFrame({"text": ["hello", "hi"]}), None)[0]
    ['hello', 'hi']
    """
    if frame.shape[0] == 0:
        raise InputError("items must hold at least one item, got a frame without rows")
    array = np.asarray(frame.to_numpy())
    if array.dtype.kind in "fiu":
        return array, _names(frame)
    if frame.shape[1] == 1 and kind != "features" and array.dtype.kind in "OUT":
        return list(single_column(frame)), ()
    return np.column_stack([_numbers(frame, name) for name in frame.columns]), _names(frame)


def _names(frame: Any) -> tuple[str, ...]:
    """Return the names of columns, where they are names: scikit-learn goes by the same rule."""
    names = list(frame.columns)
    strings = [isinstance(name, str) for name in names]
    if all(strings):
        return tuple(names)
    if any(strings):
        raise InputError("columns of a frame must all have strings for names, or none of them, got some of each")
    return ()


def _numbers(frame: Any, name: Any) -> NDArray[np.float64]:
    """Return a column as numbers; gaps become NaN, which is refused where rows are named."""
    column = np.asarray(frame[name].to_numpy())
    try:
        if column.dtype.kind not in "biufO":
            raise TypeError
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"columns of a frame must be numbers to be features, got {name!r} of {frame[name].dtype}; texts and paths "
            "are one column, such as frame['text']"
        ) from None


def check_columns(given: Sequence[str], learned: Sequence[str]) -> None:
    """Raise :class:`InputError` unless named columns are those that were learned, in their order.

    What has no names, an array or a file, goes by position.

    Examples
    --------
    >>> from evergrow.data.frames import check_columns
    >>> check_columns(["b", "a"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be in the order that was learned, got 'b' where 'a' was
    >>> check_columns(["a", "c"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be those that were learned; missing: 'b'; not learned: 'c'
    """
    if not given or not learned or list(given) == list(learned):
        return
    missing = [name for name in learned if name not in set(given)]
    more = [name for name in given if name not in set(learned)]
    if missing or more:
        named = (("missing", missing), ("not learned", more))
        parts = [f"{what}: {_listed(names)}" for what, names in named if names]
        raise InputError(f"columns must be those that were learned; {'; '.join(parts)}")
    if len(given) != len(learned):
        raise InputError(f"columns must have different names, got {len(given)} of {len(learned)}")
    place = next(number for number, pair in enumerate(zip(given, learned, strict=True)) if pair[0] != pair[1])
    raise InputError(
        f"columns must be in the order that was learned, got {given[place]!r} where {learned[place]!r} was"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(repr(name) for name in names[:5]) + more
