"""SCSM: the stochastic configuration network's mechanism, one unit at a time."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import ConstructionError
from evergrow.core.fields import Fields
from evergrow.core.progress import meter
from evergrow.core.seeding import generator
from evergrow.core.validation import check_matrix, check_number
from evergrow.head.layers.activations import ACTIVATIONS
from evergrow.head.layers.base import PROJECTIONS, Projection, nothing_new
from evergrow.head.layers.residual import DenseDual, DualResidual, FactoredDual
from evergrow.head.layers.scales import check_scales
from evergrow.head.layers.search import STATUSES, BlockRecord, read_log, written_log
from evergrow.head.layers.settings import LayerSettings

SCN_SCALES = (0.5, 1.0, 3.0, 5.0, 7.0, 9.0, 15.0, 25.0, 50.0, 100.0, 150.0, 200.0)
"""Half-widths Lambda of the uniform weights that the published networks search through."""

SCN_CONTRACTIONS = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
"""Contraction rates r tried at each Lambda, from strict to lenient."""


@PROJECTIONS.register("scsm", version=2, migrations={1: nothing_new})
class SCSMProjection(Projection):
    """A layer grown unit by unit under the stochastic configuration inequality.

    A candidate h is admissible for ``(Lambda, r)`` if ``<e_q, h>^2 / <h, h> >= (1 - r - mu) |e_q|^2`` for every
    target column q, with ``mu = (1 - r) / (L + 1)``; of all admissible ones the best sum wins. The output
    weights are re-fitted after every unit (SC-III) by a rank-1 update of the residual instead of a
    pseudo-inverse.

    Parameters
    ----------
    n_units : int
        Width at which to stop.
    n_candidates : int
        T_max, units drawn per Lambda.
    scales : sequence of float
        Half-widths Lambda of the uniform weights and biases.
    contractions : sequence of float
        Contraction rates r.
    tol : float
        RMSE at which the construction has converged.
    alpha : float
        Ridge of the output weights. 0 is the classical least squares, which fits N samples perfectly, and
        stops, at N units at the latest.
    shrink_mu : bool
        Use ``mu = (1 - r) / (L + 1)`` as in the paper's algorithm; False is the released code's ``mu = 0``.
    activation : str
        Activation of the units.
    random_state : int
        Seed of the units.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    status : str
        ``"converged"``, ``"exhausted"`` or ``"capped"``.
    log : list of BlockRecord
        One entry per accepted unit.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.layers.scsm import SCSMProjection
    >>> Z = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    >>> layer = SCSMProjection(n_units=30, tol=0.02).build(Z, torch.sin(4 * Z))
    >>> layer.status, layer.n_units < 30
    ('converged', True)
    """

    def __init__(
        self,
        n_units: int = 100,
        n_candidates: int = 100,
        scales: tuple[float, ...] = SCN_SCALES,
        contractions: tuple[float, ...] = SCN_CONTRACTIONS,
        tol: float = 1e-4,
        alpha: float = 0.0,
        shrink_mu: bool = True,
        activation: str = "sigmoid",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__(activation, random_state)
        check_number("n_units", n_units, low=1, integer=True)
        check_number("n_candidates", n_candidates, low=1, integer=True)
        check_number("tol", tol, low=0)
        check_number("alpha", alpha, low=0)
        check_scales(tuple(scales))
        for rate in contractions:
            check_number("every contraction", rate, low=0, high=1, low_open=True, high_open=True)
        self.requested, self.n_candidates = int(n_units), int(n_candidates)
        self.scales, self.contractions = tuple(scales), tuple(contractions)
        self.tol, self.alpha, self.shrink_mu, self.verbose = tol, alpha, shrink_mu, verbose
        self.status = "unbuilt"
        self.log: list[BlockRecord] = []

    @classmethod
    def from_settings(cls, settings: LayerSettings) -> Self:
        """Return the layer of a head; scales by name are those of the published networks."""
        return cls(
            n_units=settings.width,
            n_candidates=settings.guidance.get("n_candidates", 100),
            tol=0.0,
            alpha=settings.alpha,
            activation=settings.activation,
            random_state=settings.seed,
            verbose=settings.verbose,
            scales=SCN_SCALES if isinstance(settings.scales, str) else tuple(settings.scales),
        )

    def build(self, Z: Tensor, Y: Tensor) -> Self:
        """Grow the layer on first-task features and targets."""
        check_matrix("Z", Z)
        check_matrix("Y", Y, rows=Z.shape[0])
        Z, Y = Z.to(torch.float64), Y.to(torch.float64)
        small = Z.shape[0] <= max(self.requested, 512)
        residual: DualResidual = (DenseDual if small else FactoredDual)(Z, Y, self.alpha)
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        self.log = []
        started = time.perf_counter()
        with meter("configuring units", self.requested, enabled=self.verbose) as tick:
            self.status = "capped"
            while len(weights) < self.requested:
                rmse = math.sqrt(residual.sq_norm / Y.numel())
                if rmse <= self.tol:
                    self.status = "converged"
                    break
                found = self._search(residual, len(weights))
                if found is None:
                    self.status = "exhausted"
                    break
                weight, bias, record = found
                weights.append(weight)
                biases.append(bias)
                after = math.sqrt(residual.sq_norm / Y.numel())
                self.log.append(BlockRecord(len(weights), after, *record, seconds=time.perf_counter() - started))
                tick(len(weights), f"RMSE {after:.4f}")
        if not weights:
            raise ConstructionError("the construction must accept at least one unit, but none was admissible")
        self.weights, self.bias = torch.stack(weights, dim=1), torch.stack(biases)
        return self

    def _search(
        self, residual: DualResidual, width: int
    ) -> tuple[Tensor, Tensor, tuple[float, float, float, float, int]] | None:
        """Return the next unit, already absorbed into the residual, or None when no scale has one."""
        tried = 0
        for index, scale in enumerate(self.scales):
            stream = generator(self.random_state, self.kind, width, index)
            drawn = torch.rand(residual.Z.shape[1] + 1, self.n_candidates, generator=stream)
            units = ((2.0 * drawn - 1.0) * scale).to(residual.Z.device)
            tried += self.n_candidates
            weights, bias = units[:-1], units[-1].to(torch.float64)
            H = ACTIVATIONS[self.activation](torch.addmm(bias, residual.Z, weights.to(torch.float64)))
            best = self._best(residual, H, width)
            if best is None:
                continue
            drop = _absorb_unit(residual, H[:, best : best + 1])
            if drop is None:
                continue
            return weights[:, best].clone(), bias[best].clone(), (scale, drop, drop, 0.0, tried)
        return None

    def _best(self, residual: DualResidual, H: Tensor, width: int) -> int | None:
        """Return the admissible candidate of the strictest rate that has one."""
        energy = H.square().sum(dim=0).clamp_min(torch.finfo(H.dtype).tiny)
        falls = (H.T @ residual.E).square() / energy[:, None]
        for rate in self.contractions:
            mu = (1.0 - rate) / (width + 1) if self.shrink_mu else 0.0
            margin = falls - (1.0 - rate - mu) * residual.sq_norms
            total = torch.where((margin >= 0.0).all(dim=1), margin.sum(dim=1), -torch.inf)
            value, best = (item.item() for item in total.max(dim=0))
            if value > -math.inf:
                return int(best)
        return None

    def to_archive(self) -> Archive:
        """Return units, status and log."""
        archive = super().to_archive()
        archive.meta.update(status=self.status, log=written_log(self.log))
        return archive

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the frozen layer that :meth:`to_archive` gave."""
        projection = super().from_archive(fields, device)
        projection.status = fields.text("status", choices=STATUSES)
        projection.log = read_log(fields, "log")
        return projection


def _absorb_unit(residual: DualResidual, h: Tensor) -> float | None:
    """Re-fit all weights with unit h added; None if h adds nothing that the layer cannot express."""
    projected = residual.project(h)
    schur = residual.alpha + (h * projected).sum()
    if float(schur) <= 1e-12 * float(h.square().sum()):
        return None
    before = residual.sq_norm
    gains = (h.T @ residual.E) / schur
    residual.absorb(projected, schur.sqrt().view(1, 1), gains)
    return before - residual.sq_norm
