"""Settings of visual prompts."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.config import TunerConfig
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class VPTConfig(TunerConfig):
    """Settings of the ``vpt-deep`` and ``vpt-shallow`` tuners.

    Parameters
    ----------
    tokens : int
        Prompts per block, or at the input.
    std : float
        Standard deviation of their initial values. With 0, the published setting, the prompts of a block start equal
        and stay equal.

    Examples
    --------
    >>> from evergrow.adapt.tuners import VPTConfig
    >>> VPTConfig(tokens=10).std
    0.0
    """

    tokens: int = 5
    std: float = 0.0

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("tokens", self.tokens, low=1, integer=True)
        check_number("std", self.std, low=0)
