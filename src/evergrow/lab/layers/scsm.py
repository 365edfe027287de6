"""SCSM: the stochastic configuration network's mechanism, one unit at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.errors import ConstructionError
from evergrow.core.progress import meter
from evergrow.core.seeding import generator
from evergrow.core.validation import (
    LARGEST_WIDTH,
    MOST_ROUNDS,
    check_choice,
    check_matrix,
    check_number,
)
from evergrow.head.layers import ACTIVATIONS, LAYERS, FeatureMap, Layer
from evergrow.head.layers.feature_map import BlockRecord, Construction, DenseMap
from evergrow.head.layers.guided import Residual, check_scales

SCN_SCALES = (0.5, 1.0, 3.0, 5.0, 7.0, 9.0, 15.0, 25.0, 50.0, 100.0, 150.0, 200.0)
"""Half-widths Lambda of the uniform weights that the published networks search through."""

SCN_CONTRACTIONS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
"""Contraction rates r tried at each Lambda, from strict to lenient."""


@LAYERS.register("scsm")
@dataclass(frozen=True)
class SCSMLayer(Layer):
    """A layer grown unit by unit under the stochastic configuration inequality.

    A candidate h is admissible for ``(Lambda, r)`` if ``<e_q, h>^2 / <h, h> >= (1 - r -
    mu) |e_q|^2`` for every target column q, with ``mu = (1 - r) / (L + 1)``; of all
    admissible ones the best sum wins. The output weights are re-fitted after every unit
    (SC-III) by a rank-1 update of the residual instead of a pseudo-inverse.

    Parameters
    ----------
    n_units : int
        Width at which to stop.
    direct_link : bool
        Put the features beside the units.
    n_candidates : int
        T_max, units drawn per Lambda.
    scales : sequence of float
        Half-widths Lambda of the uniform weights and biases.
    contractions : sequence of float
        Contraction rates r.
    tol : float
        RMSE at which the construction has converged.
    alpha : float
        Ridge of the output weights. 0 is the classical least squares, which fits N
        samples perfectly, and stops, at N units at the latest.
    shrink_mu : bool
        Use ``mu = (1 - r) / (L + 1)`` as in the paper's algorithm; False is the
        released code's ``mu = 0``.
    activation : str
        Activation of the units.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers import SCSMLayer
    >>> Z = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    >>> grown = SCSMLayer(n_units=30, tol=0.02).build(Z, torch.sin(4 * Z))
    >>> grown.status, grown.n_units < 30
    ('converged', True)
    """

    n_units: int = 100
    n_candidates: int = 100
    scales: tuple[float, ...] = SCN_SCALES
    contractions: tuple[float, ...] = SCN_CONTRACTIONS
    tol: float = 1e-4
    alpha: float = 0.0
    shrink_mu: bool = True
    activation: str = "sigmoid"

    def __post_init__(self) -> None:
        check_number("n_units", self.n_units, low=1, high=LARGEST_WIDTH, integer=True)
        check_number(
            "n_candidates", self.n_candidates, low=1, high=MOST_ROUNDS, integer=True
        )
        check_number("tol", self.tol, low=0)
        check_number("alpha", self.alpha, low=0)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_scales(tuple(self.scales))
        for rate in self.contractions:
            check_number(
                "every contraction", rate, low=0, high=1, low_open=True, high_open=True
            )

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Grow the layer on first-task features and targets, at the ridge that is given or else its own."""
        check_matrix("Y", Y, rows=Z.shape[0])
        Z = Z.to(torch.float64)
        Y = Y.to(torch.float64)
        form = "factored"
        if Z.shape[0] <= max(self.n_units, 512):
            form = "dense"
        residual = Residual(Z, Y, self.alpha if alpha is None else alpha, form)
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        log: list[BlockRecord] = []
        started = time.perf_counter()
        status = "capped"
        with meter("configuring units", self.n_units, enabled=verbose) as tick:
            while len(weights) < self.n_units:
                rmse = math.sqrt(float(residual.sq_norms.sum()) / Y.numel())
                if rmse <= self.tol:
                    status = "converged"
                    break
                found = self._search(residual, len(weights), seed)
                if found is None:
                    status = "exhausted"
                    break
                weight, bias, entry = found
                weights.append(weight)
                biases.append(bias)
                after = math.sqrt(float(residual.sq_norms.sum()) / Y.numel())
                log.append(
                    BlockRecord(
                        len(weights),
                        after,
                        *entry,
                        seconds=time.perf_counter() - started,
                    )
                )
                tick(len(weights), f"RMSE {after:.4f}")
        if not weights:
            raise ConstructionError(
                "the construction must accept at least one unit, but none was admissible"
            )
        grown = Construction(status, len(weights), form, tuple(log))  # type: ignore[arg-type]
        units = torch.stack(weights, dim=1)
        bias = torch.stack(biases)
        return DenseMap(
            weights=units, bias=bias, activation=self.activation, construction=grown
        )

    def _search(
        self, residual: Residual, width: int, seed: int
    ) -> tuple[Tensor, Tensor, tuple[float, float, float, float, int]] | None:
        """Return the next unit, already absorbed into the residual, or None when no scale has one."""
        tried = 0
        for index, scale in enumerate(self.scales):
            stream = generator(seed, "scsm", width, index)
            drawn = torch.rand(
                residual.Z.shape[1] + 1, self.n_candidates, generator=stream
            )
            units = ((2.0 * drawn - 1.0) * scale).to(residual.Z.device)
            tried += self.n_candidates
            weights = units[:-1]
            bias = units[-1].to(torch.float64)
            H = ACTIVATIONS[self.activation](
                torch.addmm(bias, residual.Z, weights.to(torch.float64))
            )
            best = self._best(residual, H, width)
            if best is None:
                continue
            drop = _absorb_unit(residual, H[:, best : best + 1])
            if drop is None:
                continue
            return (
                weights[:, best].clone(),
                bias[best].clone(),
                (scale, drop, drop, 0.0, tried),
            )
        return None

    def _best(self, residual: Residual, H: Tensor, width: int) -> int | None:
        """Return the admissible candidate of the strictest rate that has one."""
        energy = H.square().sum(dim=0).clamp_min(torch.finfo(H.dtype).tiny)
        falls = (H.T @ residual.E).square() / energy[:, None]
        for rate in self.contractions:
            mu = (1.0 - rate) / (width + 1) if self.shrink_mu else 0.0
            margin = falls - (1.0 - rate - mu) * residual.sq_norms
            total = torch.where(
                (margin >= 0.0).all(dim=1), margin.sum(dim=1), -torch.inf
            )
            value, best = (item.item() for item in total.max(dim=0))
            if value > -math.inf:
                return int(best)
        return None


def _absorb_unit(residual: Residual, h: Tensor) -> float | None:
    """Re-fit all weights with unit h added; None if h adds nothing that the layer cannot express."""
    projected = residual.project(h)
    schur = residual.alpha + (h * projected).sum()
    if float(schur) <= 1e-12 * float(h.square().sum()):
        return None
    before = float(residual.sq_norms.sum())
    gains = (h.T @ residual.E) / schur
    residual.absorb(projected, schur.sqrt().view(1, 1), gains)
    return before - float(residual.sq_norms.sum())
