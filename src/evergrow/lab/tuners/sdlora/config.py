"""Settings of scalable decoupled low-rank additions."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.settings import TunerConfig, check_blocks, check_targets
from evergrow.adapt.tuners.vit import TARGETS
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class SDLoRAConfig(TunerConfig):
    """Settings of the ``sdlora`` tuner.

    Parameters
    ----------
    rank : int
        Rank of the first task's direction, and of later ones unless said otherwise.
    magnitude : float
        What every scalar is set to when a task starts.
    targets : tuple of str
        Which maps are added to, out of ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"`` and ``"fc2"``.
    blocks : tuple of int, optional
        In which blocks; all by default.

    Examples
    --------
    >>> from evergrow.lab.tuners.sdlora import SDLoRAConfig
    >>> SDLoRAConfig().magnitude
    0.8
    """

    rank: int = 10
    magnitude: float = 0.8
    targets: tuple[str, ...] = ("q", "v")
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("rank", self.rank, low=1, integer=True)
        check_number("magnitude", self.magnitude)
        check_targets(self.targets, TARGETS)
        check_blocks(self.blocks)
