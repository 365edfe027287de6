"""MGSM: a layer grown from the first task by accepting only blocks of random units that shrink the residual."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import ConstructionError, ConstructionWarning, ParameterError
from evergrow.core.progress import meter
from evergrow.core.registry import nearest
from evergrow.core.validation import check_choice, check_matrix, check_number
from evergrow.projections.activations import ACTIVATIONS
from evergrow.projections.base import PROJECTIONS, Projection
from evergrow.projections.blocks import BlockScores, CandidateBlocks, score_blocks
from evergrow.projections.residual import FORMS, DenseDual, FactoredDual, Primal, Residual, choose_form
from evergrow.projections.scales import Scales, check_scales
from evergrow.projections.units import BIAS_RULES, UnitSampler

CONSTRUCTION_DTYPE = torch.float64


@dataclass(frozen=True)
class GuidedConfig:
    """Settings of the guided construction; the defaults are the paper's.

    Parameters
    ----------
    block_size : int
        s, units per block.
    n_candidates : int
        B_max, blocks tried per round.
    contraction : float
        r: a block is admissible if it takes at least ``1 - r`` of the squared residual.
    tol : float
        Residual at which the construction has converged.
    tol_norm : {"rmse", "frobenius"}
        Norm that ``tol`` is measured in. With ``"frobenius"`` the paper's 0.01 needs far more units than
        the paper reports.
    scales : "paper", "auto" or sequence of float
        Scales xi of the random weights.
    bias : {"gaussian", "points"}
        Rule of the biases, see :class:`~evergrow.projections.units.UnitSampler`.
    schedule : {"advance", "reset"}
        ``"advance"`` moves to the next scale when no block is admissible and never back; ``"reset"`` goes
        back to the first scale after every acceptance.
    activation : str
        Activation of the units.
    criterion : {"exact", "theorem"}
        ``"exact"`` judges the true fall of the squared residual; ``"theorem"`` the paper's printed
        inequality together with ``R_L >= 0`` (which, measured, stops after the first block).
    selection : {"exact", "theorem"}
        Which fall decides among admissible blocks.
    per_column : bool
        Demand the contraction of every target column instead of their sum.
    alpha : float
        Ridge of the construction.
    max_units : int
        Cap on the width.
    n_units : int or None
        Exact width: where the search ends before it, the layer is filled with unguided units of the same
        distribution. None keeps what was accepted.
    on_exhausted : {"stop", "raise"}
        What to do when no scale yields an admissible block.
    form : {"auto", "dense-dual", "factored-dual", "primal"}
        How the residual is held; all agree.
    memory_bytes : int
        Memory that the residual may take, for ``form="auto"``.
    """

    block_size: int = 50
    n_candidates: int = 10
    contraction: float = 0.99
    tol: float = 0.01
    tol_norm: str = "rmse"
    scales: Scales = "paper"
    bias: str = "gaussian"
    schedule: str = "advance"
    activation: str = "sigmoid"
    criterion: str = "exact"
    selection: str = "exact"
    per_column: bool = False
    alpha: float = 0.01
    max_units: int = 20_000
    n_units: int | None = None
    on_exhausted: str = "stop"
    form: str = "auto"
    memory_bytes: int = 2**30

    def __post_init__(self) -> None:
        for name in ("block_size", "n_candidates", "max_units", "memory_bytes"):
            check_number(name, getattr(self, name), low=1, integer=True)
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=1, integer=True)
        check_number("contraction", self.contraction, low=0, high=1, low_open=True, high_open=True)
        check_number("tol", self.tol, low=0)
        check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("tol_norm", self.tol_norm, ("rmse", "frobenius"))
        check_choice("bias", self.bias, BIAS_RULES)
        check_choice("schedule", self.schedule, ("advance", "reset"))
        check_choice("criterion", self.criterion, ("exact", "theorem"))
        check_choice("selection", self.selection, ("exact", "theorem"))
        check_choice("on_exhausted", self.on_exhausted, ("stop", "raise"))
        check_choice("form", self.form, ("auto", *FORMS))
        check_choice("activation", self.activation, ACTIVATIONS.names())
        check_scales(self.scales)

    @classmethod
    def of(cls, options: dict[str, Any]) -> GuidedConfig:
        """Build a config, naming the nearest setting for a key that is none."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in options:
            if key not in known:
                raise ParameterError(f"{key!r} must be a setting of {cls.__name__}; nearest: {nearest(key, known)}")
        return cls(**options)

    @property
    def width_limit(self) -> int:
        """The width at which the guided search stops."""
        return self.max_units if self.n_units is None else self.n_units


@dataclass(frozen=True)
class BlockRecord:
    """One accepted block of the construction.

    Parameters
    ----------
    n_units : int
        Width of the layer with this block.
    rmse : float
        Residual after accepting it.
    scale : float
        xi of its weights.
    drop_exact, drop_theorem, coupling : float
        True fall of the squared residual, the paper's left side, and their difference R_L.
    tried : int
        Candidate blocks looked at since the last acceptance.
    seconds : float
        Time since the construction began.
    """

    n_units: int
    rmse: float
    scale: float
    drop_exact: float
    drop_theorem: float
    coupling: float
    tried: int
    seconds: float


@PROJECTIONS.register("mgsm")
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
    >>> from evergrow.projections import GuidedProjection
    >>> Z = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> Y = torch.eye(2, dtype=torch.float64)[(Z[:, 0] * Z[:, 1] > 0).long()]
    >>> layer = GuidedProjection(scales=(1.0, 2.0), block_size=10, tol=0.05).build(Z, Y)
    >>> layer.status
    'converged'
    >>> layer.log[-1].rmse <= 0.05
    True
    """

    kind: ClassVar[str] = "mgsm"

    def __init__(self, random_state: int = 0, verbose: bool = False, **options: Any) -> None:
        self.config = GuidedConfig.of(options)
        super().__init__(self.config.activation, random_state)
        self.verbose = verbose
        self.status = "unbuilt"
        self.log: list[BlockRecord] = []
        self.n_guided = 0
        self.form = self.config.form

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
        sampler = UnitSampler(Z, self.config.scales, self.config.bias, self.random_state, self.kind)
        search = _Search(self.config, sampler, self._residual(sampler, Z, Y, base))
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

    def _filled(self, search: _Search, sampler: UnitSampler) -> tuple[Tensor, Tensor]:
        weights, biases = list(search.weights), list(search.biases)
        missing = 0 if self.config.n_units is None else self.config.n_units - search.width
        if missing > 0:
            extra = _fill_units(sampler, self.config.block_size, missing, search.round)
            weights.append(extra[0])
            biases.append(extra[1])
        if not weights:
            raise ConstructionError(
                "the construction must accept at least one block, but no candidate at any scale took "
                f"{1 - self.config.contraction:.2g} of the squared residual; widen scales or raise contraction"
            )
        return torch.cat(weights, dim=1), torch.cat(biases)

    def _report(self, search: _Search) -> None:
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

    def settings(self) -> dict[str, Any]:
        """Return the settings, status and log, for saving."""
        config = dataclasses.asdict(self.config)
        config["scales"] = self.config.scales if isinstance(self.config.scales, str) else list(self.config.scales)
        return {
            **super().settings(),
            "config": config,
            "status": self.status,
            "form": self.form,
            "n_guided": self.n_guided,
            "log": [dataclasses.astuple(record) for record in self.log],
        }

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        """Rebuild a frozen layer with its log."""
        projection = super().restore(tensors, settings)
        projection.config = GuidedConfig.of(settings["config"])
        projection.verbose = False
        projection.status, projection.form = settings["status"], settings["form"]
        projection.n_guided = settings["n_guided"]
        projection.log = [BlockRecord(*record) for record in settings["log"]]
        return projection


class _Search:
    """The loop: draw candidates, judge them, accept the best, or move on to the next scale."""

    def __init__(self, config: GuidedConfig, sampler: UnitSampler, residual: Residual) -> None:
        self.config = config
        self.sampler = sampler
        self.residual = residual
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        self.log: list[BlockRecord] = []
        self.width = 0
        self.round = 0
        self.step = 0
        self.status = "running"
        self._tried = 0
        self._started = time.perf_counter()

    @property
    def rmse(self) -> float:
        """Root mean square residual."""
        entries = self.residual.Y.numel()
        return math.sqrt(max(self.residual.sq_norm, 0.0) / entries)

    def run(self, verbose: bool) -> None:
        """Grow until converged, exhausted or capped."""
        with meter("growing the layer", self.config.width_limit, enabled=verbose) as tick, _prefetch(self) as draw:
            while self.status == "running":
                self._round(draw(self.round))
                tick(self.width, f"RMSE {self.rmse:.4f}")

    def _round(self, normals: Tensor) -> None:
        if self._converged():
            self.status = "converged"
            return
        block = min(self.config.block_size, self.config.width_limit - self.width)
        if block <= 0:
            self.status = "capped"
            return
        candidates = self._candidates(normals, block)
        self.round += 1
        self._tried += candidates.n_blocks
        scores = score_blocks(self.residual.moments(candidates))
        best = self._best(scores)
        if best is None:
            self._advance()
        else:
            self._accept(candidates, best, scores)

    def _converged(self) -> bool:
        norm = self.rmse if self.config.tol_norm == "rmse" else math.sqrt(max(self.residual.sq_norm, 0.0))
        return norm <= self.config.tol

    def _candidates(self, normals: Tensor, block: int) -> CandidateBlocks:
        weights, bias = self.sampler.units(self.round, normals, self.step)
        if block < self.config.block_size:
            kept = torch.arange(normals.shape[1]) % self.config.block_size < block
            kept = kept.to(weights.device)
            weights, bias = weights[:, kept], bias[kept]
        return CandidateBlocks(weights, bias, block, self.config.activation)

    def _best(self, scores: BlockScores) -> int | None:
        """Return the admissible block with the largest fall, or None."""
        share = 1.0 - self.config.contraction
        judged = scores.drop_exact if self.config.criterion == "exact" else scores.drop_theorem
        if self.config.per_column:
            admissible = (judged >= share * self.residual.sq_norms).all(dim=1)
        else:
            admissible = judged.sum(dim=1) >= share * self.residual.sq_norms.sum()
        admissible &= scores.valid
        if self.config.criterion == "theorem":
            coupling = scores.coupling if self.config.per_column else scores.coupling.sum(dim=1, keepdim=True)
            admissible &= (coupling >= 0.0).all(dim=1)
        ranked = scores.drop_exact if self.config.selection == "exact" else scores.drop_theorem
        falls = torch.where(admissible, ranked.sum(dim=1), -torch.inf)
        fall, index = (value.item() for value in falls.max(dim=0))
        return int(index) if fall > -math.inf else None

    def _advance(self) -> None:
        self.step += 1
        if self.step >= self.sampler.n_scales:
            self.status = "exhausted"

    def _accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        self.residual.accept(candidates, index, scores)
        columns = candidates.columns(index)
        self.weights.append(candidates.weights[:, columns].clone())
        self.biases.append(candidates.bias[columns].clone())
        self.width += candidates.block
        exact, theorem = (float(drop[index].sum()) for drop in (scores.drop_exact, scores.drop_theorem))
        self.log.append(
            BlockRecord(
                n_units=self.width,
                rmse=self.rmse,
                scale=self.sampler.step_scale(self.step),
                drop_exact=exact,
                drop_theorem=theorem,
                coupling=exact - theorem,
                tried=self._tried,
                seconds=time.perf_counter() - self._started,
            )
        )
        self._tried = 0
        if self.config.schedule == "reset":
            self.step = 0


@contextmanager
def _prefetch(search: _Search) -> Iterator[Any]:
    """Yield a function that returns the normals of a round.

    On a GPU the next round is drawn on the CPU while this one is being judged.
    """
    config, sampler = search.config, search.sampler

    def draw(round_: int) -> Tensor:
        return sampler.normals(round_, config.n_candidates, config.block_size)

    if sampler.Z.device.type == "cpu":
        yield draw
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: dict[int, Future[Tensor]] = {}

        def pinned(round_: int) -> Tensor:
            return draw(round_).pin_memory()

        def fetch(round_: int) -> Tensor:
            ready = ahead.pop(round_, None)
            for later in range(round_ + 1, round_ + 3):
                if later not in ahead:
                    ahead[later] = pool.submit(pinned, later)
            return pinned(round_) if ready is None else ready.result()

        yield fetch


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
    if not isinstance(residual, (DenseDual, FactoredDual)):
        raise ParameterError("form must be 'dense-dual' or 'factored-dual' where a base is given, got 'primal'")
    gram = base.T @ base
    gram.diagonal().add_(residual.alpha)
    lower = torch.linalg.cholesky(gram)
    residual.absorb(base, lower, torch.cholesky_solve(base.T @ residual.E, lower))


def _fill_units(sampler: UnitSampler, block: int, missing: int, round_: int) -> tuple[Tensor, Tensor]:
    """Draw unguided units, cycling through the scales block by block."""
    weights, biases = [], []
    for index in range(math.ceil(missing / block)):
        normals = sampler.normals(round_ + index, 1, block)
        step = index % sampler.n_scales
        drawn = sampler.units(round_ + index, normals, step)
        weights.append(drawn[0])
        biases.append(drawn[1])
    return torch.cat(weights, dim=1)[:, :missing], torch.cat(biases)[:missing]


__all__ = ["BlockRecord", "GuidedConfig", "GuidedProjection", "Primal"]
