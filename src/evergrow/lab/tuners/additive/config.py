"""Settings of additive prompts."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.settings import TunerConfig, check_blocks
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class AdditiveConfig(TunerConfig):
    """Settings of the ``additive`` tuner.

    Parameters
    ----------
    std : float
        Standard deviation of the initial vectors, cut off at two of them.
    blocks : tuple of int, optional
        In which blocks; all by default.

    Examples
    --------
    >>> from evergrow.lab.tuners.additive import AdditiveConfig
    >>> AdditiveConfig().std
    0.02
    """

    std: float = 0.02
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("std", self.std, low=0)
        check_blocks(self.blocks)
