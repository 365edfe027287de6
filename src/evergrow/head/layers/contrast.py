"""Whether a layer tells rows apart: units that saturate, or that features are too small to move, do not."""

from __future__ import annotations

import torch
from torch import Tensor

from evergrow.core.errors import InputError
from evergrow.head.layers.base import Projection

LEAST_SHARE = 1e-14
"""Share of their energy by which activations must differ; below it, rounding of the statistics drowns that."""

ROWS = 256
"""Rows that are looked at."""


def check_contrast(layer: Projection, Z: Tensor, *, least: float = LEAST_SHARE) -> None:
    """Raise :class:`InputError` if rows differ and what a frozen layer makes of them does not.

    Parameters
    ----------
    layer : Projection
        Built.
    Z : Tensor of shape (n, d)
        The rows it was built for, normalised.
    least : float
        Share of their energy by which activations must differ.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GaussianProjection
    >>> from evergrow.head.layers.contrast import check_contrast
    >>> Z = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> layer = GaussianProjection(n_units=5).build(Z, Z)
    >>> check_contrast(layer, Z)
    >>> check_contrast(layer, 1e-30 * Z)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: X must be of a size at which the layer tells its rows apart, ...
    """
    rows = Z[:: max(Z.shape[0] // ROWS, 1)][:ROWS].to(torch.float64)
    if bool((rows == rows[0]).all()):
        return
    H = layer.transform(rows)
    spread = float((H - H.mean(dim=0)).square().sum())
    if not spread > least * float(H.square().sum()):  # also where one of them is no number
        raise InputError(
            "X must be of a size at which the layer tells its rows apart, got rows up to "
            f"{float(rows.abs().amax()):.3g} whose activations are all but the same: bring features to about 1, or "
            "normalise them"
        )
