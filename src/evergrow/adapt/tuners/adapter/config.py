"""Settings of adapters."""

from __future__ import annotations

from dataclasses import dataclass

from evergrow.adapt.tuners.config import TunerConfig, check_blocks
from evergrow.core.validation import check_choice, check_number


@dataclass(frozen=True)
class AdapterConfig(TunerConfig):
    """Settings of the ``adapter`` tuner; the defaults are AdaptFormer's.

    Parameters
    ----------
    bottleneck : int
        Width of the branch.
    scale : float
        Factor on the branch's output.
    dropout : float
        Dropout inside the branch, in training mode only.
    activation : {"relu", "none"}
        What stands between the two linear maps.
    placement : {"block", "mlp"}
        ``"block"``: the branch takes the residual stream after attention, not normalised, and adds to the block's
        output, past layer scale. ``"mlp"``: it takes what the MLP takes and adds to the MLP's output, before layer
        scale.
    blocks : tuple of int, optional
        Which blocks get a branch; all by default.

    Examples
    --------
    The linear adapter that AnaCP adapts the first session with:

    >>> from evergrow.adapt.tuners import AdapterConfig
    >>> anacp = AdapterConfig(bottleneck=8, scale=1.0, dropout=0.0, activation="none", placement="mlp")
    """

    bottleneck: int = 64
    scale: float = 0.1
    dropout: float = 0.1
    activation: str = "relu"
    placement: str = "block"
    blocks: tuple[int, ...] | None = None

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("bottleneck", self.bottleneck, low=1, integer=True)
        check_number("scale", self.scale)
        check_number("dropout", self.dropout, low=0, high=1, high_open=True)
        check_choice("activation", self.activation, ("relu", "none"))
        check_choice("placement", self.placement, ("block", "mlp"))
        check_blocks(self.blocks)
