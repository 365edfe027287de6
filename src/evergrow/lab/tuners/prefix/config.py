"""Settings of prefixes."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.settings import TunerConfig, check_blocks
from evergrow.core.validation import check_choice, check_number


@dataclass(frozen=True)
class PrefixConfig(TunerConfig):
    """Settings of the ``prefix`` tuner.

    Parameters
    ----------
    source : {"own", "provider"}
        ``"own"``: keys and values are parameters of the tuner, the same for every image. ``"provider"``: the tuner
        has no parameters and asks a callable in every pass, which may answer for every image by itself.
    length : int
        How many keys and values ``"own"`` has per block.
    std : float
        Standard deviation of their initial values, cut off at two of them.
    blocks : tuple of int, optional
        In which blocks; the first five by default, or all of a model that has fewer.

    Examples
    --------
    >>> from evergrow.lab.tuners.prefix import PrefixConfig
    >>> PrefixConfig(source="provider").length
    4
    """

    source: str = "own"
    length: int = 4
    std: float = 0.02
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_choice("source", self.source, ("own", "provider"))
        check_number("length", self.length, low=1, integer=True)
        check_number("std", self.std, low=0)
        check_blocks(self.blocks)
