"""SCSM: the stochastic configuration network's mechanism, one unit at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH, MOST_ROUNDS
from evergrow.core.errors import ConstructionError
from evergrow.core.progress import meter
from evergrow.core.seeding import generator
from evergrow.core.validation import (
    check_choice,
    check_integer,
    check_matrix,
    check_number,
)
from evergrow.head.layers import ACTIVATIONS, LAYERS, FeatureMap, Layer
from evergrow.head.layers.feature_map import BlockRecord, Construction, DenseMap
from evergrow.head.layers.guided import Residual, check_scales

SCN_SCALES = (0.5, 1.0, 3.0, 5.0, 7.0, 9.0, 15.0, 25.0, 50.0, 100.0, 150.0, 200.0)
"""Half-widths Lambda of the uniform weights in the published networks."""

SCN_CONTRACTIONS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
"""Contraction rates r tried at each Lambda, strictest first."""


@LAYERS.register("scsm")
@dataclass(frozen=True)
class SCSMLayer(Layer):
    """A layer grown unit by unit under the stochastic configuration inequality.

    A candidate h is admissible for ``(Lambda, r)`` if ``<e_q, h>^2 / <h, h> >= (1 - r -
    mu) |e_q|^2`` for every target column q, with ``mu = (1 - r) / (L + 1)``. The
    admissible candidate with the largest sum is added. The output weights are re-fitted
    after every unit (SC-III) by a rank-1 update of the residual instead of a
    pseudo-inverse.

    Parameters
    ----------
    n_units : int
        Width at which to stop.
    direct_link : bool
        Append the features to the outputs.
    n_candidates : int
        T_max, units drawn per Lambda.
    scales : sequence of float
        Half-widths Lambda of the uniform weights and biases.
    contractions : sequence of float
        Contraction rates r.
    tol : float
        RMSE at which the construction has converged.
    alpha : float
        Ridge of the output weights. 0 is classical least squares, which fits N samples
        perfectly and stops after at most N units.
    shrink_mu : bool
        Use ``mu = (1 - r) / (L + 1)`` as in the paper's algorithm. False gives ``mu =
        0`` as in the released code.
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
        check_integer("n_units", self.n_units, high=LARGEST_WIDTH)
        check_integer("n_candidates", self.n_candidates, high=MOST_ROUNDS)
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
        """Grow the layer on features and targets of the first task.

        ``alpha`` overrides the layer's own ridge.
        """
        check_matrix("Y", Y, rows=Z.shape[0])
        Z = Z.to(torch.float64)
        Y = Y.to(torch.float64)
        form = "dense" if Z.shape[0] <= max(self.n_units, 512) else "factored"
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
                seconds = time.perf_counter() - started
                log.append(BlockRecord(len(weights), after, *entry, seconds=seconds))
                tick(len(weights), f"RMSE {after:.4f}")
        if not weights:
            raise ConstructionError(
                "No candidate unit was admissible. Draw more candidates or scales."
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
        """Absorb the next unit into the residual and return it; None if none fits."""
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
            pre = torch.addmm(bias, residual.Z, weights.to(torch.float64))
            H = ACTIVATIONS[self.activation](pre)
            best = self._best(residual, H, width)
            if best is None:
                continue
            drop = _absorb_unit(residual, H[:, best : best + 1])
            if drop is None:
                continue
            entry = (scale, drop, drop, 0.0, tried)
            return weights[:, best].clone(), bias[best].clone(), entry
        return None

    def _best(self, residual: Residual, H: Tensor, width: int) -> int | None:
        """Return the best admissible candidate under the strictest possible rate."""
        energy = H.square().sum(dim=0).clamp_min(torch.finfo(H.dtype).tiny)
        falls = (H.T @ residual.E).square() / energy[:, None]
        for rate in self.contractions:
            mu = (1.0 - rate) / (width + 1) if self.shrink_mu else 0.0
            margin = falls - (1.0 - rate - mu) * residual.sq_norms
            admissible = (margin >= 0.0).all(dim=1)
            total = torch.where(admissible, margin.sum(dim=1), -torch.inf)
            value, best = (item.item() for item in total.max(dim=0))
            if value > -math.inf:
                return int(best)
        return None


def _absorb_unit(residual: Residual, h: Tensor) -> float | None:
    """Re-fit all weights with unit h added; return None if h is linearly dependent."""
    projected = residual.project(h)
    schur = residual.alpha + (h * projected).sum()
    if float(schur) <= 1e-12 * float(h.square().sum()):
        return None
    before = float(residual.sq_norms.sum())
    gains = (h.T @ residual.E) / schur
    residual.absorb(projected, schur.sqrt().view(1, 1), gains)
    return before - float(residual.sq_norms.sum())
