"""Settings of low-rank additions."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.config import TunerConfig, check_blocks, check_targets
from evergrow.adapt.tuners.vit import TARGETS
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class LoRAConfig(TunerConfig):
    """Settings of the ``lora`` tuner.

    Parameters
    ----------
    rank : int
        Rank r of every addition.
    alpha : float, optional
        The addition is multiplied by alpha / r; None multiplies by 1.
    targets : tuple of str
        Which maps are added to, out of ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"`` and ``"fc2"``.
    blocks : tuple of int, optional
        In which blocks; all by default.

    Examples
    --------
    >>> from evergrow.adapt.tuners import LoRAConfig
    >>> LoRAConfig(rank=4, alpha=8).scale
    2.0
    """

    rank: int = 10
    alpha: float | None = None
    targets: tuple[str, ...] = ("q", "v")
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("rank", self.rank, low=1, integer=True)
        if self.alpha is not None:
            check_number("alpha", self.alpha, low=-1e6, high=1e6)
        check_targets(self.targets, TARGETS)
        check_blocks(self.blocks)

    @property
    def scale(self) -> float:
        """The factor on every addition."""
        return 1.0 if self.alpha is None else self.alpha / self.rank
