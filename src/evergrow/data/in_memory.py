"""Objects of other libraries in memory: images, tensors, data frames and streams.

Objects of pandas, polars, Pillow and torch are recognised by their class names, so
that these libraries need not be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, LabelError
from evergrow.core.validation import is_instance_of

_TORCH = "torch.utils.data"


# -- images ----------------------------------------------------------------------------


def is_pil_image(item: Any) -> bool:
    """Return whether an object is an image of Pillow."""
    return is_instance_of(item, "PIL.Image", "Image")


def is_pixels(item: Any) -> bool:
    """Return whether an object is one image as an array of bytes."""
    return (
        isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3)
    )


def channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return channels-first images of a tensor as bytes with channels last.

    Parameters
    ----------
    array : ndarray of shape (c, h, w) or (n, c, h, w)
        One image or several with one or three channels, as bytes or as floats from 0
        to 1. Images that already have their channels last are only converted to bytes.

    Raises
    ------
    InputError
        If floats lie outside of 0 to 1, for example because images are normalised.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.in_memory import channels_last
    >>> channels_last(np.full((3, 4, 5), 0.2, np.float32))[0, 0].tolist()
    [51, 51, 51]
    """
    if array.dtype.kind == "f":
        low = float(array.min()) if array.size else 0.0
        high = float(array.max()) if array.size else 0.0
        if not 0.0 <= low <= high <= 1.0:
            raise InputError(
                f"images of floats must lie between 0 and 1, got {low:.3g} to "
                f"{high:.3g}: leave out the normalisation, which the backbone applies"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    is_channels_first = array.shape[-3] in (1, 3) and array.shape[-1] not in (1, 3, 4)
    if array.dtype == np.uint8 and is_channels_first:
        array = np.moveaxis(array, -3, -1)
        if array.shape[-1] == 1:
            array = array[..., 0]
    return np.ascontiguousarray(array)


# -- data frames -----------------------------------------------------------------------


def is_frame(value: Any) -> bool:
    """Return whether an object is a data frame of pandas, polars or the like.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.in_memory import is_frame
    >>> is_frame(pandas.DataFrame({"a": [1]}))
    True
    >>> is_frame(pandas.Series([1])), is_frame([[1]])
    (False, False)
    """
    return (
        hasattr(value, "columns")
        and hasattr(value, "to_numpy")
        and len(getattr(value, "shape", ())) == 2
    )


def is_pandas(value: Any) -> bool:
    """Return whether an object is a data frame or series of pandas, with an index."""
    return is_instance_of(value, "pandas", "DataFrame", "Series")


def frame_values(
    frame: Any, kind: str | None
) -> tuple[NDArray[Any] | list[Any], tuple[str, ...]]:
    """Return the numbers and column names of a data frame, or its one column.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or polars.
    kind : {"image", "text", "features"} or None
        Kind of samples that the model takes, if known.

    Returns
    -------
    values : ndarray of shape (n, d) or list
        Numbers, or the texts or paths of a single column.
    names : tuple of str
        Column names; empty for texts and paths, and for names that are not strings.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.in_memory import frame_values
    >>> frame_values(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), None)[1]
    ('a', 'b')
    >>> frame_values(pandas.DataFrame({"text": ["hello", "hi"]}), None)[0]
    ['hello', 'hi']
    """
    if frame.shape[0] == 0:
        raise InputError("items must hold at least one item, got a frame without rows")
    array = np.asarray(frame.to_numpy())
    names = list(frame.columns)
    if len(names) == 1 and kind != "features" and array.dtype.kind in "OUT":
        return list(frame[names[0]]), ()
    # Names are used if all are strings, as in scikit-learn.
    strings = [isinstance(name, str) for name in names]
    if any(strings) and not all(strings):
        raise InputError(
            "columns of a data frame must all be named by strings, or none of them, "
            "got some of each"
        )
    if array.dtype.kind not in "fiu":
        array = np.column_stack([_numbers(frame, name) for name in names])
    return array, tuple(names) if all(strings) else ()


def _numbers(frame: Any, name: Any) -> NDArray[np.float64]:
    """Return a column as numbers. Missing values become NaN, which is refused later."""
    column = np.asarray(frame[name].to_numpy())
    try:
        if column.dtype.kind not in "biufO":
            raise TypeError
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "columns of a frame must be numbers to be features, "
            f"got {name!r} of {frame[name].dtype}; "
            "pass texts and paths as one column, such as frame['text']"
        ) from None


def check_columns(given: Sequence[str], learned: Sequence[str]) -> None:
    """Raise :class:`InputError` unless named columns match the learned ones in order.

    Columns without names, of arrays and files, are matched by position.

    Examples
    --------
    >>> from evergrow.data.in_memory import check_columns
    >>> check_columns(["b", "a"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be ...; got 'b' instead of 'a'
    >>> check_columns(["a", "c"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be ...; missing: 'b'; not learned: 'c'
    """
    if not given or not learned or list(given) == list(learned):
        return
    missing = [f"missing: {name!r}" for name in learned if name not in set(given)]
    added = [f"not learned: {name!r}" for name in given if name not in set(learned)]
    differences = [*missing[:5], *added[:5]]
    if not differences:
        pairs = zip(given, learned, strict=False)
        now, was = next((now, was) for now, was in pairs if now != was)
        differences = [f"got {now!r} instead of {was!r}"]
    raise InputError(
        f"columns must be those learned, in their order; {'; '.join(differences)}"
    )


# -- streams ---------------------------------------------------------------------------


def is_stream(data: Any) -> bool:
    """Return whether data is an iterator, or a Dataset or DataLoader of torch.

    Examples
    --------
    >>> from evergrow.data.in_memory import is_stream
    >>> is_stream(row for row in range(3)), is_stream([1, 2])
    (True, False)
    """
    if isinstance(data, (list, str)):  # the most frequent types first
        return False
    return isinstance(data, Iterator) or is_instance_of(
        data, _TORCH, "Dataset", "DataLoader"
    )


def check_not_stream(data: Any) -> None:
    """Raise :class:`InputError` for a stream, whose images can be read only once."""
    if is_stream(data):
        raise InputError(
            "data must be read several times to adapt a backbone, so it must not be a "
            f"stream, got {type(data).__name__}"
        )


def stream_pairs(data: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """Yield single items of a stream with their labels.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Pairs (item, label), batches (items, labels), or items alone.
    labelled : bool
        Whether labels are required. An item without a label has the label None.
    """
    batched = is_instance_of(data, _TORCH, "DataLoader") and data.batch_size is not None
    for element in _elements(data):
        items, labels, is_pair = _split_pair(element, labelled)
        several = isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) > 0
        if is_pair and (batched or several):
            if len(items) != len(labels):
                raise LabelError(
                    f"labels must be one per sample ({len(items)}), got {len(labels)}"
                )
            yield from zip(map(_as_item, items), map(_as_label, labels), strict=True)
        elif batched:
            for item in items:
                yield _as_item(item), None
        else:
            yield _as_item(items), _as_label(labels)


def _elements(data: Any) -> Iterator[Any]:
    """Yield the elements of a stream; a map-style Dataset is indexed up to its length.

    ``iter`` would index the data set beyond its end, and few raise IndexError.
    """
    map_style = (
        is_instance_of(data, _TORCH, "Dataset")
        and hasattr(data, "__len__")
        and not hasattr(data, "__iter__")
    )
    if not map_style:
        yield from data
        return
    for row in range(len(data)):
        yield data[row]


def _split_pair(element: Any, labelled: bool) -> tuple[Any, Any, bool]:
    """Return item, label (or None) of a stream element, and whether it is a pair."""
    is_tuple = isinstance(element, (tuple, list))
    if is_tuple and len(element) == 2:
        return element[0], element[1], True
    if labelled:
        size = f" of {len(element)}" if hasattr(element, "__len__") else ""
        raise InputError(
            "data must come as pairs (item, label) or (items, labels), "
            f"got a {type(element).__name__}{size}"
        )
    if is_tuple and len(element) == 1:
        return element[0], None, False
    return element, None, False


def _as_label(label: Any) -> Any:
    """Return a zero-dimensional array or tensor as a Python value."""
    if hasattr(label, "item") and getattr(label, "ndim", 1) == 0:
        return label.item()
    return label


def _as_item(item: Any) -> Any:
    """Return one item as an array, an image or a text, with channels last."""
    is_tensor = hasattr(item, "detach")
    value = item.detach().cpu().numpy() if is_tensor else item
    if (
        isinstance(value, np.ndarray)
        and value.ndim == 3
        and (is_tensor or value.dtype.kind == "f")
    ):
        return channels_last(value)
    return value
