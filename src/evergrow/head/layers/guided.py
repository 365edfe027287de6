"""MGSM: a layer grown from the first task by accepting only blocks of random units that shrink the residual."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import ConstructionError, ConstructionWarning, ParameterError
from evergrow.core.fields import Fields
from evergrow.core.validation import check_matrix
from evergrow.head.layers.base import PROJECTIONS, Projection, nothing_new
from evergrow.head.layers.residual import FORMS, DualResidual, Residual, choose_form
from evergrow.head.layers.search import STATUSES, BlockRecord, GuidedConfig, Search, fill_units, read_log, written_log
from evergrow.head.layers.settings import LayerSettings
from evergrow.head.layers.units import UnitSampler

CONSTRUCTION_DTYPE = torch.float64


@PROJECTIONS.register("mgsm", version=2, migrations={1: nothing_new})
class GuidedProjection(Projection):
    """A layer grown block by block under the paper's supervisory mechanism (MGSM).

    Parameters
    ----------
    random_state : int
        Seed of the units.
    verbose : bool
        Show a progress bar.
    **options
        Fields of :class:`GuidedConfig`.

    Attributes
    ----------
    status : str
        ``"converged"``, ``"exhausted"`` or ``"capped"``.
    log : list of BlockRecord
        One entry per accepted block.
    n_guided : int
        Units that were selected; the rest, if any, fill up to ``n_units``.
    form : str
        Form of the residual that was used.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GuidedProjection
    >>> Z = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> Y = torch.eye(2, dtype=torch.float64)[(Z[:, 0] * Z[:, 1] > 0).long()]
    >>> layer = GuidedProjection(scales=(1.0, 2.0), block_size=10, tol=0.05).build(Z, Y)
    >>> layer.status
    'converged'
    >>> layer.log[-1].rmse <= 0.05
    True
    """

    def __init__(self, random_state: int = 0, verbose: bool = False, **options: Any) -> None:
        self.config = GuidedConfig.of(options)
        super().__init__(self.config.activation, random_state)
        self.verbose = verbose
        self.status = "unbuilt"
        self.log: list[BlockRecord] = []
        self.n_guided = 0
        self.form = self.config.form

    @classmethod
    def from_settings(cls, settings: LayerSettings) -> Self:
        """Return the layer of a head."""
        return cls(
            random_state=settings.seed,
            verbose=settings.verbose,
            scales=settings.scales,
            activation=settings.activation,
            alpha=settings.alpha,
            max_units=settings.max_units,
            n_units=None if settings.n_units is None else settings.width,
            **settings.guidance,
        )

    def build(self, Z: Tensor, Y: Tensor, base: Tensor | None = None) -> Self:
        """Grow the layer on first-task features and one-hot targets.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        Y : Tensor of shape (n, C)
            One-hot targets.
        base : Tensor of shape (n, m), optional
            Columns that will stand beside the units (a direct link): the search then looks for what they
            leave unexplained.

        Returns
        -------
        GuidedProjection
            Itself, frozen.
        """
        check_matrix("Z", Z)
        check_matrix("Y", Y, rows=Z.shape[0])
        if Z.shape[0] < 1 or Y.shape[1] < 1:
            raise ParameterError(f"Z and Y must not be empty, got shapes {tuple(Z.shape)} and {tuple(Y.shape)}")
        Z, Y = Z.to(CONSTRUCTION_DTYPE), Y.to(CONSTRUCTION_DTYPE)
        config = self.config
        sampler = UnitSampler(Z, config.scales, config.bias, self.random_state, self.kind, orthogonal=config.orthogonal)
        search = Search(self.config, sampler, self._residual(sampler, Z, Y, base))
        search.run(self.verbose)
        self.status, self.log, self.n_guided = search.status, search.log, search.width
        self.weights, self.bias = self._filled(search, sampler)
        self._report(search)
        return self

    def _residual(self, sampler: UnitSampler, Z: Tensor, Y: Tensor, base: Tensor | None) -> Residual:
        config = self.config
        limit = config.width_limit
        rank = expected_rank(Z, limit, float(sampler.scales.max()))
        form = config.form
        if form == "auto":
            width = config.block_size * config.n_candidates
            form = choose_form(Z.shape[0], Z.shape[1], limit, width, rank=rank, memory_bytes=config.memory_bytes)
            if base is not None and form == "primal":
                form = "factored-dual"
        self.form = form
        residual = FORMS[form](Z, Y, config.alpha)
        if base is not None:
            _absorb_base(residual, base.to(Z))
        return residual

    def _filled(self, search: Search, sampler: UnitSampler) -> tuple[Tensor, Tensor]:
        weights, biases = list(search.weights), list(search.biases)
        missing = 0 if self.config.n_units is None else self.config.n_units - search.width
        if missing > 0:
            steps = min(search.step + 1, sampler.n_scales)
            extra = fill_units(sampler, self.config.block_size, missing, search.round, steps)
            weights.append(extra[0])
            biases.append(extra[1])
        if not weights:
            raise ConstructionError(
                "the construction must accept at least one block, but no candidate at any scale took "
                f"{1 - self.config.contraction:.2g} of the squared residual; widen scales or raise contraction"
            )
        return torch.cat(weights, dim=1), torch.cat(biases)

    def _report(self, search: Search) -> None:
        """Say loudly that the scales ran out, unless the width was fixed and filled anyway."""
        if search.status != "exhausted" or self.config.n_units is not None:
            return
        message = (
            f"the scales are exhausted at {search.width} units with an RMSE of {search.rmse:.4g} "
            f"(tolerance {self.config.tol:g}): no candidate block is admissible any more"
        )
        if self.config.on_exhausted == "raise":
            self.weights = self.bias = None
            raise ConstructionError(message)
        warnings.warn(message, ConstructionWarning, stacklevel=4)

    def to_archive(self) -> Archive:
        """Return units, settings, status and log."""
        config = dataclasses.asdict(self.config)
        config["scales"] = self.config.scales if isinstance(self.config.scales, str) else list(self.config.scales)
        archive = super().to_archive()
        archive.meta.update(
            config=config, status=self.status, form=self.form, n_guided=self.n_guided, log=written_log(self.log)
        )
        return archive

    @classmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the frozen layer that :meth:`to_archive` gave."""
        projection = super().from_archive(fields, device)
        projection.config = GuidedConfig.read(fields, "config")
        projection.verbose = False
        projection.status = fields.text("status", choices=STATUSES)
        projection.form = fields.text("form", choices=("auto", *FORMS))
        projection.n_guided = fields.integer("n_guided", high=projection.n_units)
        projection.log = read_log(fields, "log")
        fields.require(projection.config.activation == projection.activation, "it names two activations")
        return projection


def expected_rank(Z: Tensor, units: int, scale: float) -> int:
    """Estimate the numerical rank of the activations, to choose a form of the residual.

    Units whose pre-activations stay below about 0.2 are affine to within the compression tolerance, so the
    rank is that of the features and a constant; otherwise every unit may count.
    """
    n, d = Z.shape
    spread = scale * float(Z.square().sum(dim=1).mean().sqrt())
    return min(n, units, d + 1) if spread < 0.2 else min(n, units)


def _absorb_base(residual: Residual, base: Tensor) -> None:
    """Start from the residual that a ridge on the given columns leaves."""
    if not isinstance(residual, DualResidual):
        raise ParameterError("form must be 'dense-dual' or 'factored-dual' where a base is given, got 'primal'")
    gram = base.T @ base
    gram.diagonal().add_(residual.alpha)
    lower = torch.linalg.cholesky(gram)
    residual.absorb(base, lower, torch.cholesky_solve(base.T @ residual.E, lower))
