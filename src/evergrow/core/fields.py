"""Checked access to what a file holds: every value that is missing or of the wrong form is a typed file error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from evergrow.core.errors import FileFormatError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evergrow.core.archive import Archive

_ABSENT = object()


class Fields:
    """The contents of an archive, asked for by name and by what they must be.

    Parameters
    ----------
    meta : mapping
        Plain values.
    tensors : mapping
        Tensors by name.
    parts : mapping
        Archives inside.
    name : str
        What messages call the place.

    Examples
    --------
    >>> from evergrow.core.fields import Fields
    >>> fields = Fields({"count": 3, "later": True}, {}, {}, "model.evg")
    >>> fields.integer("count", low=0)
    3
    >>> fields.unknown()
    {'later': True}
    >>> fields.number("ridge")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.FileFormatError: model.evg must have 'ridge' as a finite number, got nothing
    """

    def __init__(
        self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor], parts: Mapping[str, Archive], name: str
    ) -> None:
        self.name = name
        self._meta, self._tensors, self._parts = meta, tensors, parts
        self._asked: set[str] = set()

    # -- plain values -------------------------------------------------------------------------------------------

    def integer(self, key: str, *, low: int = 0, high: int = 2**53, default: Any = _ABSENT) -> int:
        """Return an integer within bounds."""
        value = self._get(key, f"an integer from {low} to {high}", default)
        ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return int(value) if ok or value is default else self._refuse(key, f"an integer from {low} to {high}", value)

    def number(self, key: str, *, low: float = -math.inf, high: float = math.inf, default: Any = _ABSENT) -> float:
        """Return a finite number within bounds."""
        wanted = "a finite number" + ("" if low == -math.inf else f" >= {low:g}")
        wanted += "" if high == math.inf else f" and <= {high:g}"
        value = self._get(key, wanted, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self._refuse(key, wanted, value)
        # An integer beyond the range of floats must not end in an OverflowError.
        if isinstance(value, int) and abs(value) > 2**1000:
            self._refuse(key, wanted, value)
        if not math.isfinite(value) or not low <= value <= high:
            self._refuse(key, wanted, value)
        return float(value)

    def word_or_number(self, key: str, words: Collection[str], *, low: float = -math.inf) -> float | str:
        """Return one of some words, or a finite number from a bound on."""
        return self.text(key, choices=words) if isinstance(self._meta.get(key), str) else self.number(key, low=low)

    def optional_number(self, key: str, *, low: float = -math.inf, high: float = math.inf) -> float | None:
        """Return a finite number within bounds, or None where there is none."""
        if self._get(key, "a number or null", None) is None:
            return None
        return self.number(key, low=low, high=high)

    def flag(self, key: str, default: Any = _ABSENT) -> bool:
        """Return true or false."""
        value = self._get(key, "true or false", default)
        return value if isinstance(value, bool) or value is default else self._refuse(key, "true or false", value)

    def text(self, key: str, *, choices: Collection[str] | None = None, default: Any = _ABSENT) -> str:
        """Return a string, one of ``choices`` where they are given."""
        wanted = "a string" if choices is None else f"one of {', '.join(map(repr, sorted(choices)))}"
        value = self._get(key, wanted, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if not isinstance(value, str) or (choices is not None and value not in choices):
            self._refuse(key, wanted, value)
        return str(value)

    def texts(self, key: str, default: Any = _ABSENT) -> list[str]:
        """Return a list of strings."""
        value = self.values(key, default)
        if value is not default and not all(isinstance(item, str) for item in value):
            self._refuse(key, "a list of strings", value)
        return value

    def integers(self, key: str, *, low: int = 0, default: Any = _ABSENT) -> list[int]:
        """Return a list of integers that are at least ``low``."""
        value = self.values(key, default)
        ok = all(isinstance(item, int) and not isinstance(item, bool) and item >= low for item in value)
        return value if ok else self._refuse(key, f"a list of integers >= {low}", value)

    def numbers(self, key: str, default: Any = _ABSENT) -> list[float]:
        """Return a list of finite numbers."""
        value = self.values(key, default)
        for item in value:
            usable = isinstance(item, (int, float)) and not isinstance(item, bool)
            if not usable or (isinstance(item, int) and abs(item) > 2**1000) or not math.isfinite(item):
                self._refuse(key, "a list of finite numbers", value)
        return [float(item) for item in value]

    def values(self, key: str, default: Any = _ABSENT) -> list[Any]:
        """Return a list."""
        value = self._get(key, "a list", default)
        return value if isinstance(value, list) or value is default else self._refuse(key, "a list", value)

    def mapping(self, key: str, default: Any = _ABSENT) -> dict[str, Any]:
        """Return an object of plain values."""
        value = self._get(key, "an object", default)
        return value if isinstance(value, dict) or value is default else self._refuse(key, "an object", value)

    def fields(self, key: str) -> Fields:
        """Return checked access to an object of plain values."""
        return Fields(self.mapping(key), {}, {}, self.inside(key))

    def records(self, key: str) -> list[Fields]:
        """Return checked access to every object of a list."""
        rows = self.values(key)
        if not all(isinstance(row, dict) for row in rows):
            self._refuse(key, "a list of objects", rows)
        return [Fields(row, {}, {}, f"{self.inside(key)} {place}") for place, row in enumerate(rows)]

    def names(self) -> list[str]:
        """Return the names of all plain values, sorted."""
        return sorted(self._meta)

    def has(self, key: str) -> bool:
        """Return whether there is a plain value other than null, a tensor or a part of this name."""
        return self._meta.get(key) is not None or key in self._tensors or key in self._parts

    # -- tensors and parts --------------------------------------------------------------------------------------

    def tensor(
        self,
        key: str,
        shape: Sequence[int | None] | None = None,
        *,
        dtype: torch.dtype | str | None = "float64",
        finite: bool = True,
        largest: float | None = None,
    ) -> Tensor:
        """Return a tensor of a type and a shape, in which None stands for any length.

        Parameters
        ----------
        key : str
            Its name.
        shape : sequence of int or None, optional
            The shape that it must have.
        dtype : torch.dtype, str or None
            The type that it must have, or its name in torch; None for any.
        finite : bool
            Whether every number must be finite.
        largest : float, optional
            The largest size of any number: what overflows later would be no number in an answer.
        """
        import torch  # whoever has a tensor has it; kinds of files are described without

        self._asked.add(key)
        dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        wanted = f"a tensor{'' if dtype is None else f' of {dtype}'}"
        wanted += "" if shape is None else f" of shape {tuple('any' if n is None else n for n in shape)}"
        tensor = self._tensors.get(key)
        if tensor is None:
            self._refuse(key, wanted, _ABSENT)
        if dtype is not None and tensor.dtype != dtype:
            self._refuse(key, wanted, f"{tensor.dtype}")
        if shape is not None and not _fits(tensor.shape, shape):
            self._refuse(key, wanted, f"shape {tuple(tensor.shape)}")
        if finite and tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            self._refuse(key, "finite numbers", "some that are not")
        if (
            largest is not None
            and tensor.is_floating_point()
            and tensor.numel()
            and float(tensor.abs().amax()) > largest
        ):
            self._refuse(key, f"numbers of at most {largest:g}", "larger ones")
        return tensor

    def tensor_names(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._tensors)

    def part(self, key: str) -> Archive:
        """Return an archive inside; :meth:`open_part` opens it at once."""
        self._asked.add(key)
        part = self._parts.get(key)
        return part if part is not None else self._refuse(key, "an archive", _ABSENT)

    def part_names(self) -> list[str]:
        """Return the names of all archives inside, sorted."""
        return sorted(self._parts)

    def open_part(self, key: str, *kinds: str) -> Fields:
        """Return checked access to an archive inside that is of one of these kinds."""
        return self.part(key).open(*kinds, name=self.inside(key))

    def inside(self, key: str) -> str:
        """Return what messages call something inside."""
        return f"{self.name}: {key}"

    def unknown(self) -> dict[str, Any]:
        """Return the plain values that nobody asked for: optional fields of a later evergrow, to be written again."""
        return {key: value for key, value in self._meta.items() if key not in self._asked}

    def unknown_parts(self) -> dict[str, Archive]:
        """Return the archives inside that nobody asked for, to be written again."""
        return {key: part for key, part in self._parts.items() if key not in self._asked}

    def require(self, condition: bool, message: str) -> None:
        """Raise :class:`FileFormatError` unless what the file says of itself fits together."""
        if not condition:
            raise FileFormatError(f"{self.name} must be whole and consistent, but {message}")

    # -- messages -----------------------------------------------------------------------------------------------

    def _get(self, key: str, wanted: str, default: Any) -> Any:
        self._asked.add(key)
        value = self._meta.get(key, _ABSENT if default is _ABSENT else default)
        return self._refuse(key, wanted, _ABSENT) if value is _ABSENT else value

    def _refuse(self, key: str, wanted: str, value: Any) -> NoReturn:
        shown = "nothing" if value is _ABSENT else repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise FileFormatError(f"{self.name} must have {key!r} as {wanted}, got {shown}")


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(n is None or n == m for n, m in zip(wanted, shape, strict=True))
