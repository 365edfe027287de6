"""Check arguments, and settings that are frozen dataclasses."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    DeviceError,
    InputError,
    ParameterError,
    UnknownNameError,
)
from evergrow.core.record import to_values
from evergrow.core.registry import nearest

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

LARGEST_WEIGHT = 1e9
"""Maximum weight of one sample. Sums of such weights stay exact."""


def check_number(
    name: str,
    value: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    high_open: bool = False,
    integer: bool = False,
) -> None:
    """Raise :class:`ParameterError` unless `value` is a finite number in an interval.

    Parameters
    ----------
    name : str
        Name of the argument for the message.
    value : object
        The value. Booleans are not numbers.
    low, high : float, optional
        Bounds. None means unbounded.
    low_open, high_open : bool
        Whether the bound itself is excluded.
    integer : bool
        Whether only integers are allowed; below 2**63 without `high`.

    Examples
    --------
    >>> from evergrow.core.validation import check_number
    >>> check_number("alpha", 0.1, low=0, low_open=True)
    >>> check_number("alpha", -1, low=0, low_open=True)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: alpha must be a number > 0, got -1
    """
    kind: type = numbers.Real
    expected = "a number"
    largest = sys.float_info.max
    if integer:
        kind = numbers.Integral
        expected = "an integer"
        if high is None:
            largest = 2**63 - 1
    ok = isinstance(value, kind) and not isinstance(value, bool)
    # False for NaN, infinity and integers that overflow later.
    ok = ok and abs(value) <= largest
    bounds = []
    if low is not None:
        bounds.append(f"{'>' if low_open else '>='} {low:g}")
        ok = ok and (value > low if low_open else value >= low)
    if high is not None:
        bounds.append(f"{'<' if high_open else '<='} {high:g}")
        ok = ok and (value < high if high_open else value <= high)
    if not ok:
        expected = f"{expected} {' and '.join(bounds)}".strip()
        raise ParameterError(f"{name} must be {expected}, got {value!r}")


def check_integer(
    name: str, value: Any, *, low: int = 1, high: int | None = None
) -> None:
    """Raise :class:`ParameterError` unless `value` is an integer from low to high.

    Parameters
    ----------
    name : str
        Name of the argument for the message.
    value : object
        The value. Booleans are not numbers.
    low, high : int, optional
        Bounds, both included. The default high is 2**63 - 1.

    Examples
    --------
    >>> from evergrow.core.validation import check_integer
    >>> check_integer("n_units", 3000)
    >>> check_integer("n_units", 0)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: n_units must be an integer >= 1, got 0
    """
    check_number(name, value, low=low, high=high, integer=True)


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise :class:`ParameterError` unless `value` is one of `choices`.

    Examples
    --------
    >>> from evergrow.core.validation import check_choice
    >>> check_choice("criterion", "exakt", ["exact", "theorem"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: criterion must be one of 'exact', ...
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        hint = ""
        if isinstance(value, str):
            hint = f"; nearest: {nearest(value, choices, n=1)}"
        raise ParameterError(f"{name} must be one of {listed}, got {value!r}{hint}")


def check_matrix(
    name: str,
    tensor: torch.Tensor,
    *,
    columns: int | None = None,
    rows: int | None = None,
) -> None:
    """Raise :class:`InputError` unless `tensor` is a finite 2-D float tensor.

    With ``columns`` or ``rows``, it must have so many of them.
    """
    # Imported here, so that settings can be checked without torch.
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2:
        shape = tuple(getattr(tensor, "shape", ())) or type(tensor).__name__
        raise InputError(f"{name} must be a 2-D tensor, got {shape}")
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be a floating-point tensor, got {tensor.dtype}")
    for wanted, found, what in zip(
        (rows, columns), tensor.shape, ("rows", "columns"), strict=True
    ):
        if wanted is not None and found != wanted:
            raise InputError(f"{name} must have {wanted} {what}, got {found}")
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).any(dim=1).nonzero()[0])
        raise InputError(
            f"{name} must be finite, got NaN or infinity, first in row {bad}"
        )


def as_weights(sample_weight: Any, n_rows: int) -> NDArray[np.float64] | None:
    """Return weights as an array of shape (n_rows,), or None if all are 1.

    Parameters
    ----------
    sample_weight : array-like or None
        One weight per row, from 0 to :data:`LARGEST_WEIGHT`. None is 1 for every row.
    n_rows : int
        Number of rows.

    Raises
    ------
    InputError
        If a weight is missing, is outside of these bounds, or all are 0.

    Examples
    --------
    >>> from evergrow.core.validation import as_weights
    >>> as_weights([1, 2, 0.5], 3).tolist(), as_weights([1, 1], 2)
    ([1.0, 2.0, 0.5], None)
    """
    if sample_weight is None:
        return None
    if hasattr(sample_weight, "detach"):
        sample_weight = sample_weight.detach().cpu().numpy()
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"sample_weight must be numbers, got {type(sample_weight).__name__}"
        ) from None
    if weights.shape != (n_rows,):
        raise InputError(
            f"sample_weight must be one number per row ({n_rows}), "
            f"got shape {weights.shape}"
        )
    bad = ~((weights >= 0) & (weights <= LARGEST_WEIGHT))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"sample_weight must be between 0 and {LARGEST_WEIGHT:g}, "
            f"got {weights[row]:g} in row {row}"
        )
    if not weights.any():
        raise InputError("sample_weight must be above 0 for at least one row, got none")
    return None if (weights == 1.0).all() else weights


def is_instance_of(value: Any, module: str, *names: str) -> bool:
    """Return whether `value` is an instance of a class in a module.

    The module is not imported: without it, there are no instances.

    Examples
    --------
    >>> from decimal import Decimal
    >>> from evergrow.core.validation import is_instance_of
    >>> is_instance_of(Decimal(1), "decimal", "Decimal")
    True
    >>> is_instance_of(1, "never.imported", "Thing")
    False
    """
    # Another thread may be importing the module, so a class may be missing.
    found = sys.modules.get(module)
    classes = (getattr(found, name, None) for name in names)
    return isinstance(value, tuple(kind for kind in classes if isinstance(kind, type)))


# -- settings as frozen dataclasses


def check_keys(given: Iterable[Any], known: Iterable[str], what: str) -> None:
    """Raise :class:`UnknownNameError` for the first unknown key.

    Parameters
    ----------
    given : iterable
        Keys to check.
    known : iterable of str
        Valid keys.
    what : str
        Name of a key in messages, for example ``"data setting"``.

    Examples
    --------
    >>> from evergrow.core.validation import check_keys
    >>> check_keys(["epoch"], ["epochs", "lr"], "training setting")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: training setting must be known, got ...
    """
    names = list(known)
    for key in given:
        if key not in names:
            close = "none, there are none"
            if names:
                close = nearest(str(key), names)
            raise UnknownNameError(
                f"{what} must be known, got {key!r}; nearest: {close}"
            )


def field_names(settings: Any) -> list[str]:
    """Return the field names of a dataclass or of an instance.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> from evergrow.core.validation import field_names
    >>> field_names(make_dataclass("Box", ["width", "height"]))
    ['width', 'height']
    """
    return [item.name for item in fields(settings)]


def from_mapping(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Return settings with these values and defaults for the others.

    Parameters
    ----------
    cls : type
        A dataclass.
    values : mapping of str to object
        Values by field, for example from JSON or TOML.
    what : str
        Name of a setting in messages.

    Raises
    ------
    UnknownNameError
        For a key that is not a field.
    ParameterError
        If `values` is not a mapping, or a field without a default is missing.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.validation import from_mapping
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     width: int = 1
    >>> from_mapping(Box, {"width": 3}, "setting of a box")
    Box(width=3)
    >>> from_mapping(Box, {"widht": 3}, "setting of a box")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: setting of a box must be known, got ...
    """
    if not isinstance(values, Mapping):
        raise ParameterError(
            f"settings must be a mapping of values by name, each a {what}, "
            f"got {type(values).__name__}"
        )
    check_keys(values, field_names(cls), what)
    try:
        return cls(**values)
    except TypeError as error:
        raise ParameterError(
            f"settings must have every {what} that has no default: {error}"
        ) from error


def with_changes(settings: T, changes: Mapping[str, Any], what: str) -> T:
    """Return a copy of settings with changes.

    Unknown names raise :class:`UnknownNameError`. The class checks the values.

    Parameters
    ----------
    settings : dataclass
        The settings.
    changes : mapping of str to object
        New values by field.
    what : str
        Name of a setting in messages.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from evergrow.core.validation import with_changes
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     width: int = 1
    >>> with_changes(Box(), {"width": 3}, "setting of a box")
    Box(width=3)
    """
    check_keys(changes, field_names(settings), what)
    return replace(settings, **changes)  # type: ignore[type-var]


def to_plain(settings: Any) -> dict[str, Any]:
    """Return all fields of settings as JSON values.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from pathlib import Path
    >>> from evergrow.core.validation import to_plain
    >>> @dataclass(frozen=True)
    ... class Box:
    ...     sides: tuple[int, ...] = (1, 2)
    ...     place: Path = Path("attic")
    >>> to_plain(Box())
    {'sides': [1, 2], 'place': 'attic'}
    """
    return dict(to_values(asdict(settings)))


def lists_to_tuples(settings: Any) -> None:
    """Replace lists in fields of a frozen dataclass by tuples, in place.

    For its ``__post_init__``: settings read from JSON then equal those they were.
    """
    for name in field_names(settings):
        if isinstance(getattr(settings, name), list):
            object.__setattr__(settings, name, tuple(getattr(settings, name)))


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device to compute on. ``"auto"`` is a GPU of CUDA, or else the CPU.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...

    Raises
    ------
    DeviceError
        If this machine does not have the device.
    ParameterError
        If the name is not a device.

    Examples
    --------
    >>> from evergrow.core.validation import resolve_device
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    import torch

    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ParameterError(
            f"There is no device {device!r}; "
            "use 'auto', 'cpu', 'cuda' or another of torch's."
        ) from error
    if resolved.type == "cuda":
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= available:
            raise DeviceError(
                f"There is no device {device!r} here, where torch finds {available} "
                "GPUs; use 'auto' or 'cpu'."
            )
    return resolved


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on a GPU, for timing. Other devices queue none."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
