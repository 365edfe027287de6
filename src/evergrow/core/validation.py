"""Checks of users' arguments, and settings as frozen dataclasses; messages name the expected and the given value."""

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
"""What one sample may count for at most; sums of such weights stay exact."""


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
    """Raise :class:`ParameterError` unless ``value`` is a finite number in the interval.

    Examples
    --------
    >>> from evergrow.core.validation import check_number
    >>> check_number("alpha", 0.1, low=0, low_open=True)
    >>> check_number("alpha", -1, low=0, low_open=True)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: alpha must be a number > 0, got -1
    """
    number = isinstance(
        value, numbers.Integral if integer else numbers.Real
    ) and not isinstance(value, bool)
    # Not so NaN, infinity and integers beyond the range of floats; larger integers overflow where they are used.
    ok = number and abs(value) <= (
        2**63 - 1 if integer and high is None else sys.float_info.max
    )
    bounds = []
    if low is not None:
        bounds.append(f"{'>' if low_open else '>='} {low:g}")
        ok = ok and (value > low if low_open else value >= low)
    if high is not None:
        bounds.append(f"{'<' if high_open else '<='} {high:g}")
        ok = ok and (value < high if high_open else value <= high)
    if not ok:
        expected = (
            f"{'an integer' if integer else 'a number'} {' and '.join(bounds)}".strip()
        )
        raise ParameterError(f"{name} must be {expected}, got {value!r}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise :class:`ParameterError` unless ``value`` is one of ``choices``.

    Examples
    --------
    >>> from evergrow.core.validation import check_choice
    >>> check_choice("criterion", "exakt", ["exact", "theorem"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.ParameterError: criterion must be one of 'exact', 'theorem', got 'exakt'; nearest: 'exact'
    """
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        hint = (
            f"; nearest: {nearest(value, choices, n=1)}"
            if isinstance(value, str)
            else ""
        )
        raise ParameterError(f"{name} must be one of {listed}, got {value!r}{hint}")


def check_matrix(
    name: str,
    tensor: torch.Tensor,
    *,
    columns: int | None = None,
    rows: int | None = None,
) -> None:
    """Raise :class:`InputError` unless ``tensor`` is a finite 2-D floating-point tensor of that shape."""
    import torch  # here, so that settings can be checked before anything heavy is imported

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
    """Return weights as a 1-D array, one per row, or None where every one is one; raise :class:`InputError`.

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
            f"sample_weight must be one number per row ({n_rows}), got shape {weights.shape}"
        )
    bad = ~((weights >= 0) & (weights <= LARGEST_WEIGHT))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"sample_weight must be between 0 and {LARGEST_WEIGHT:g}, got {weights[row]:g} in row {row}"
        )
    if not weights.any():
        raise InputError("sample_weight must be above 0 for at least one row, got none")
    return None if (weights == 1.0).all() else weights


def is_instance_of(value: Any, module: str, *names: str) -> bool:
    """Return whether something is an instance of a class of a module that may not be imported, without importing it.

    Whoever has such an object has imported it. Another thread may be about to: then the module is there and its classes
    are not yet.

    Examples
    --------
    >>> from decimal import Decimal
    >>> from evergrow.core.validation import is_instance_of
    >>> is_instance_of(Decimal(1), "decimal", "Decimal"), is_instance_of(1, "never.imported", "Thing")
    (True, False)
    """
    found = sys.modules.get(module)
    return isinstance(
        value,
        tuple(
            kind
            for name in names
            if isinstance(kind := getattr(found, name, None), type)
        ),
    )


# -- settings as frozen dataclasses ----------------------------------------------------------------------------


def check_keys(given: Iterable[Any], known: Iterable[str], what: str) -> None:
    """Raise :class:`UnknownNameError` for the first key that is not known; the message names the nearest that are.

    Parameters
    ----------
    given : iterable
        Keys that were given.
    known : iterable of str
        Keys that there are.
    what : str
        What to call such a key in the message: "data setting", "option of method 'scl'".

    Examples
    --------
    >>> from evergrow.core.validation import check_keys
    >>> check_keys(["epoch"], ["epochs", "lr"], "training setting")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: training setting must be known, got 'epoch'; nearest: 'epochs'
    """
    names = list(known)
    for key in given:
        if key not in names:
            close = nearest(str(key), names) if names else "none, there are none"
            raise UnknownNameError(
                f"{what} must be known, got {key!r}; nearest: {close}"
            )


def field_names(settings: Any) -> list[str]:
    """Return the names of the fields of settings, or of a class of settings, in order.

    Examples
    --------
    >>> from dataclasses import make_dataclass
    >>> from evergrow.core.validation import field_names
    >>> field_names(make_dataclass("Box", ["width", "height"]))
    ['width', 'height']
    """
    return [item.name for item in fields(settings)]


def from_mapping(cls: type[T], values: Mapping[str, Any], what: str) -> T:
    """Return the settings with these values, the rest being defaults.

    Parameters
    ----------
    cls : type
        A dataclass.
    values : mapping of str to object
        Values of its fields, for example out of JSON or TOML.
    what : str
        What to call one of its settings in messages.

    Raises
    ------
    UnknownNameError
        For a key that is no field; the message names the nearest.
    ParameterError
        If ``values`` is no mapping, or a field without a default is missing; or what the class itself refuses.

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
    evergrow.core.errors.UnknownNameError: setting of a box must be known, got 'widht'; nearest: 'width'
    """
    if not isinstance(values, Mapping):
        raise ParameterError(
            f"settings must be values by name, each a {what}, got {type(values).__name__}"
        )
    check_keys(values, field_names(cls), what)
    try:
        return cls(**values)
    except TypeError as error:
        raise ParameterError(
            f"settings must have every {what} that has no default: {error}"
        ) from error


def with_changes(settings: T, changes: Mapping[str, Any], what: str) -> T:
    """Return settings with some of them changed; an unknown name is an error that names the nearest.

    Parameters
    ----------
    settings : dataclass
        Stays as it is.
    changes : mapping of str to object
        New values by field.
    what : str
        What to call one of the settings in messages.

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
    """Return all fields of settings as plain values that JSON holds: objects, lists, strings for paths.

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
    """Turn the lists among the fields of a frozen dataclass into tuples, for its ``__post_init__``.

    Settings read from JSON are then equal to the ones that were written.
    """
    for name in field_names(settings):
        if isinstance(getattr(settings, name), list):
            object.__setattr__(settings, name, tuple(getattr(settings, name)))


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device to compute on; ``"auto"`` takes a GPU where there is one.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...

    Raises
    ------
    DeviceError
        If the device is well formed but this machine has none of it.
    ParameterError
        If the name is not a device at all.

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
            f"There is no device {device!r}; take 'auto', 'cpu', 'cuda' or another of torch's."
        ) from error
    if resolved.type == "cuda":
        available = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (resolved.index or 0) >= available:
            raise DeviceError(
                f"There is no device {device!r} here, where torch finds {available} GPUs; take 'auto' or 'cpu'."
            )
    return resolved


def synchronize(device: torch.device) -> None:
    """Wait until queued work on ``device`` is done, so that a clock reads the truth."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
