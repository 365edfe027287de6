"""Fold changes into weights: all of them or none, checked for NaN and infinity, and undone to the bit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evergrow.core.errors import NumericalError


class Fold:
    """New values for some weights, first planned, then put in place, and taken back on demand.

    The old values are kept as they are in memory until :meth:`revert` or until the fold is dropped.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from evergrow.adapt.tuners.folding import Fold
    >>> layer = nn.Linear(2, 1, bias=False)
    >>> fold, before = Fold(), layer.weight.clone()
    >>> fold.plan(layer, "weight", 2 * layer.weight)
    >>> fold.plan(layer, "bias", torch.ones(1))
    >>> fold.commit()
    >>> bool((layer.weight == 2 * before).all()), layer.bias.item()
    (True, 1.0)
    >>> fold.revert()
    >>> bool((layer.weight == before).all()), layer.bias is None
    (True, True)
    """

    def __init__(self) -> None:
        self._planned: dict[tuple[nn.Module, str], Tensor] = {}
        self._kept: dict[tuple[nn.Module, str], Tensor | None] = {}

    def current(self, layer: nn.Module, name: str) -> Tensor | None:
        """Return a weight as planned so far, in float64; None where the layer has none."""
        planned = self._planned.get((layer, name))
        value = getattr(layer, name) if planned is None else planned
        return None if value is None else value.detach().double()

    def plan(self, layer: nn.Module, name: str, value: Tensor) -> None:
        """Plan a new value for a parameter, which may be one that the layer does not have yet."""
        self._planned[layer, name] = value.detach()

    def commit(self) -> None:
        """Put all planned values in place.

        Raises
        ------
        NumericalError
            If a value is not finite in the type of its weight; then nothing has changed.
        """
        cast = {}
        for (layer, name), value in self._planned.items():
            like = next(layer.parameters(recurse=False), value)
            cast[layer, name] = value.to(like.device, like.dtype)
            if not bool(torch.isfinite(cast[layer, name]).all()):
                raise NumericalError(
                    f"merged weights must be finite, got NaN or infinity in {name} of {type(layer).__name__}; "
                    "nothing was merged"
                )
        for (layer, name), value in cast.items():
            parameter = getattr(layer, name)
            if parameter is None:
                self._kept[layer, name] = None
                setattr(layer, name, nn.Parameter(value, requires_grad=False))
            else:
                self._kept[layer, name] = parameter.data
                parameter.data = value
        self._planned = {}

    def revert(self) -> None:
        """Put the old values back."""
        for (layer, name), value in self._kept.items():
            if value is None:
                setattr(layer, name, None)
            else:
                parameter = getattr(layer, name)
                parameter.data = value.to(parameter.device)  # the model may have moved since
        self._kept = {}
