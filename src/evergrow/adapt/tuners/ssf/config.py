"""Settings of scaling and shifting."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.config import TunerConfig
from evergrow.core.errors import ParameterError
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class SSFConfig(TunerConfig):
    """Settings of the ``ssf`` tuner.

    Parameters
    ----------
    std : float
        Standard deviation of the initial scales around 1 and shifts around 0.
    layers : tuple of str, optional
        Patterns, as of file names, for the paths of the layers to scale, for example ``("*.norm?", "norm")``; every
        linear, convolution and normalisation layer but the classifier by default.

    Examples
    --------
    >>> from evergrow.adapt.tuners import SSFConfig
    >>> SSFConfig().std
    0.02
    """

    std: float = 0.02
    layers: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("std", self.std, low=0)
        if self.layers is not None and (
            not isinstance(self.layers, tuple)
            or not self.layers
            or not all(isinstance(pattern, str) for pattern in self.layers)
        ):
            raise ParameterError(f"layers must be None or patterns for paths of layers, got {self.layers!r}")
