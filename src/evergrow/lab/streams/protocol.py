"""The settings of a stream: B-m Inc-n and its generalisations, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from typing_extensions import Self

from evergrow.core.errors import ParameterError
from evergrow.core.settings import from_mapping
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class Protocol:
    """B-m Inc-n: ``initial`` classes first, then ``increment`` classes per task, the last takes what is left.

    Parameters
    ----------
    initial : int
        Classes of the first task; 0 means as many as ``increment``.
    increment : int
        Classes of every later task.
    shuffle : bool
        Whether the class order is drawn by seed; False keeps the natural order.
    disjoint : bool
        The paper's protocol: the first tasks of different seeds share no class.
    blur : float
        Generalised CIL in the manner of Si-Blurry: this share of the training samples of the blurry classes
        leaves its task for a random one (0.1 in the G-ACIL paper).
    blurry_classes : float
        Share of the classes that are blurry, used only if ``blur > 0``.
    repeat : float
        Generalised CIL with repetition: probability that a class comes again in each task after its first;
        its samples are shared out evenly, each is still seen once.
    batch_size : int
        Single-pass online stream: samples per mini-batch; 0 hands over a task as a whole.

    Examples
    --------
    >>> from evergrow.lab.streams import Protocol
    >>> Protocol(increment=10).name
    'B-0 Inc-10'
    >>> Protocol(initial=50, increment=5).task_sizes(62)
    [50, 5, 5, 2]
    """

    initial: int = 0
    increment: int = 10
    shuffle: bool = True
    disjoint: bool = False
    blur: float = 0.0
    blurry_classes: float = 0.5
    repeat: float = 0.0
    batch_size: int = 0

    def __post_init__(self) -> None:
        check_number("initial", self.initial, low=0, integer=True)
        check_number("increment", self.increment, low=1, integer=True)
        check_number("batch_size", self.batch_size, low=0, integer=True)
        for name in ("blur", "blurry_classes", "repeat"):
            check_number(name, getattr(self, name), low=0, high=1)
        for name in ("shuffle", "disjoint"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.blur and self.repeat:
            raise ParameterError("blur and repeat must not both be positive: choose one generalisation")
        if self.disjoint and not self.shuffle:
            raise ParameterError("disjoint must be false where shuffle is false: the natural order is one order")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build a protocol from plain settings, rejecting unknown keys.

        Examples
        --------
        >>> from evergrow.lab.streams import Protocol
        >>> Protocol.from_dict({"incrment": 5})
        Traceback (most recent call last):
            ...
        evergrow.core.errors.UnknownNameError: ..., got 'incrment'; nearest: 'increment'
        """
        return from_mapping(cls, settings, "protocol setting")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return asdict(self)

    @property
    def name(self) -> str:
        """The name in the paper's notation, with what departs from plain class-incremental learning."""
        extras = [
            "" if self.shuffle else "natural order",
            f"blurry {self.blurry_classes:g}/{self.blur:g}" if self.blur else "",
            f"repeat {self.repeat:g}" if self.repeat else "",
            f"online {self.batch_size}" if self.batch_size else "",
        ]
        return ", ".join([f"B-{self.initial} Inc-{self.increment}", *(extra for extra in extras if extra)])

    @property
    def n_initial(self) -> int:
        """Classes of the first task."""
        return self.initial or self.increment

    def task_sizes(self, n_classes: int) -> list[int]:
        """Return the number of classes of every task; the last takes the remainder."""
        check_number("n_classes", n_classes, low=1, integer=True)
        if self.n_initial > n_classes:
            raise ParameterError(
                f"the first task must have at most the {n_classes} classes of the data, got {self.n_initial}"
            )
        whole, rest = divmod(n_classes - self.n_initial, self.increment)
        return [self.n_initial, *[self.increment] * whole, *([rest] if rest else [])]
