"""MGSM: a layer grown from the first task by accepting only blocks of random units that shrink the residual."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import ConstructionError, ConstructionWarning, ParameterError
from evergrow.core.progress import meter
from evergrow.core.validation import check_choice, check_matrix, check_number
from evergrow.head.layers.activations import ACTIVATIONS
from evergrow.head.layers.base import LAYERS, Layer
from evergrow.head.layers.feature_map import BlockRecord, Construction, FeatureMap
from evergrow.head.layers.residual import FORMS, BlockScores, CandidateBlocks, Residual, choose_form, score_blocks
from evergrow.head.layers.units import BIAS_RULES, Scales, UnitSampler, check_scales

CONSTRUCTION_ALPHA = 0.01
"""The paper's ridge, used to grow the layer where none is given."""

AUTO_CONSTRUCTION_ALPHA = 1.0
"""The same for ``scales="auto"``: with the paper's, a direct link alone fits a first task and nothing is left to
guide by. Anything from 0.1 to 10 gives, measured, the same accuracy."""


@LAYERS.register("guided")
@dataclass(frozen=True)
class GuidedLayer(Layer):
    """A layer grown block by block under the paper's supervisory mechanism (MGSM); the defaults are the paper's.

    Parameters
    ----------
    n_units : int or None
        Exact width: where the search ends before it, the layer is filled with unguided units of the same
        distribution. None keeps what was accepted.
    direct_link : bool
        Put the features beside the units, which are then grown on what these leave unexplained.
    max_units : int
        Cap on the width.
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
    scales : "paper", "auto", "spread" or sequence of float
        Scales xi of the random weights. ``"paper"`` belongs to un-normalised ViT-B/16 features; ``"auto"`` sets the
        spread of pre-activations from the first task, ``"spread"`` one bandwidth as cosines want.
    schedule : {"advance", "reset"}
        ``"advance"`` moves to the next scale when no block is admissible and never back; ``"reset"`` goes
        back to the first scale after every acceptance.
    activation : str
        Activation of the units.
    bias : {"gaussian", "points", "phases"}
        Rule of the biases, see :class:`~evergrow.head.layers.units.UnitSampler`.
    orthogonal : bool
        Orthogonal weights within a block.
    criterion : {"exact", "theorem"}
        ``"exact"`` judges the true fall of the squared residual; ``"theorem"`` the paper's printed
        inequality together with ``R_L >= 0`` (which, measured, stops after the first block).
    selection : {"exact", "theorem"}
        Which fall decides among admissible blocks.
    per_column : bool
        Demand the contraction of every target column instead of their sum.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GuidedLayer
    >>> Z = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> Y = torch.eye(2, dtype=torch.float64)[(Z[:, 0] * Z[:, 1] > 0).long()]
    >>> grown = GuidedLayer(scales=(1.0, 2.0), block_size=10, tol=0.05).build(Z, Y)
    >>> grown.status, grown.log[-1].rmse <= 0.05
    ('converged', True)
    """

    max_units: int = 20_000
    block_size: int = 50
    n_candidates: int = 10
    contraction: float = 0.99
    tol: float = 0.01
    tol_norm: str = "rmse"
    scales: Scales = "paper"
    schedule: str = "advance"
    activation: str = "sigmoid"
    bias: str = "gaussian"
    orthogonal: bool = False
    criterion: str = "exact"
    selection: str = "exact"
    per_column: bool = False

    def __post_init__(self) -> None:
        for name in ("max_units", "block_size", "n_candidates"):
            check_number(name, getattr(self, name), low=1, integer=True)
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=0, high=self.max_units, integer=True)
        check_number("contraction", self.contraction, low=0, high=1, low_open=True, high_open=True)
        check_number("tol", self.tol, low=0)
        check_scales(self.scales)
        choices: dict[str, Any] = {
            "tol_norm": ("rmse", "frobenius"),
            "schedule": ("advance", "reset"),
            "activation": tuple(ACTIVATIONS),
            "bias": BIAS_RULES,
            "criterion": ("exact", "theorem"),
            "selection": ("exact", "theorem"),
        }
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)

    @property
    def width_limit(self) -> int:
        """The width at which the guided search stops."""
        return self.n_units or self.max_units

    def draw(self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool) -> FeatureMap:
        """Grow the units on first-task features and one-hot targets."""
        check_matrix("Y", Y, rows=Z.shape[0])
        if Z.shape[0] < 1 or Y.shape[1] < 1:
            raise ParameterError(f"Z and Y must not be empty, got shapes {tuple(Z.shape)} and {tuple(Y.shape)}")
        Z, Y = Z.to(torch.float64), Y.to(torch.float64)
        sampler = UnitSampler(Z, self.scales, self.bias, seed, "mgsm", orthogonal=self.orthogonal)
        form = choose_form(Z, self.width_limit, float(sampler.scales.max()))
        auto = isinstance(self.scales, str) and self.scales == "auto"
        residual = FORMS[form](Z, Y, alpha or (AUTO_CONSTRUCTION_ALPHA if auto else CONSTRUCTION_ALPHA))
        if self.direct_link:
            _absorb(residual, _unit_energy(Z - Z.mean(dim=0)))
        search = _Search(self, sampler, residual)
        search.run(verbose)
        weights, bias = self._filled(search, sampler)
        if search.status == "exhausted" and self.n_units is None:
            warnings.warn(
                f"the scales are exhausted at {search.width} units with an RMSE of {search.rmse:.4g} "
                f"(tolerance {self.tol:g}): no candidate block is admissible any more",
                ConstructionWarning,
                stacklevel=4,
            )
        grown = Construction(search.status, search.width, form, tuple(search.log))  # type: ignore[arg-type]
        return FeatureMap(weights=weights, bias=bias, activation=self.activation, construction=grown)

    def _filled(self, search: _Search, sampler: UnitSampler) -> tuple[Tensor, Tensor]:
        weights, biases = list(search.weights), list(search.biases)
        missing = 0 if self.n_units is None else self.n_units - search.width
        if missing > 0:
            steps = min(search.step + 1, sampler.n_scales)
            extra = _fill_units(sampler, self.block_size, missing, search.round, steps)
            weights.append(extra[0])
            biases.append(extra[1])
        if not weights:
            raise ConstructionError(
                "the construction must accept at least one block, but no candidate at any scale took "
                f"{1 - self.contraction:.2g} of the squared residual; widen scales or raise contraction"
            )
        return torch.cat(weights, dim=1), torch.cat(biases)


class _Search:
    """The loop: draw candidates, judge them, accept the best, or move on to the next scale."""

    def __init__(self, layer: GuidedLayer, sampler: UnitSampler, residual: Residual) -> None:
        self.layer = layer
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

        self._energy = residual.sq_norm

    @property
    def rmse(self) -> float:
        """Root mean square residual."""
        return math.sqrt(max(self._energy, 0.0) / self.residual.Y.numel())

    def run(self, verbose: bool) -> None:
        """Grow until converged, exhausted or capped."""
        with meter("growing the layer", self.layer.width_limit, enabled=verbose) as tick, _prefetch(self) as draw:
            while self.status == "running":
                self._round(draw(self.round))
                tick(self.width, f"RMSE {self.rmse:.4f}")

    def _round(self, normals: Tensor) -> None:
        if self._converged():
            self.status = "converged"
            return
        block = min(self.layer.block_size, self.layer.width_limit - self.width)
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
        norm = self.rmse if self.layer.tol_norm == "rmse" else math.sqrt(max(self._energy, 0.0))
        return norm <= self.layer.tol

    def _candidates(self, normals: Tensor, block: int) -> CandidateBlocks:
        weights, bias = self.sampler.units(self.round, normals, self.step)
        if block < self.layer.block_size:
            kept = torch.arange(weights.shape[1]) % self.layer.block_size < block
            kept = kept.to(weights.device)
            weights, bias = weights[:, kept], bias[kept]
        return CandidateBlocks(weights, bias, block, self.layer.activation)

    def _best(self, scores: BlockScores) -> int | None:
        """Return the admissible block with the largest fall, or None."""
        share = 1.0 - self.layer.contraction
        judged = scores.drop_exact if self.layer.criterion == "exact" else scores.drop_theorem
        if self.layer.per_column:
            admissible = (judged >= share * self.residual.sq_norms).all(dim=1)
        else:
            admissible = judged.sum(dim=1) >= share * self.residual.sq_norms.sum()
        admissible &= scores.valid
        if self.layer.criterion == "theorem":
            coupling = scores.coupling if self.layer.per_column else scores.coupling.sum(dim=1, keepdim=True)
            admissible &= (coupling >= 0.0).all(dim=1)
        ranked = scores.drop_exact if self.layer.selection == "exact" else scores.drop_theorem
        falls = torch.where(admissible, ranked.sum(dim=1), -torch.inf)
        # One transfer from the device per decision.
        fall, index = torch.stack([falls.amax(), falls.argmax().to(falls.dtype)]).tolist()
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
        exact, theorem, self._energy = torch.stack(
            [scores.drop_exact[index].sum(), scores.drop_theorem[index].sum(), self.residual.sq_norms.sum()]
        ).tolist()
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
        if self.layer.schedule == "reset":
            self.step = 0


@contextmanager
def _prefetch(search: _Search) -> Iterator[Callable[[int], Tensor]]:
    """Yield a function that returns the normals of a round.

    On a GPU the next rounds are drawn by a thread, into a ring of page-locked buffers, while this one is judged. A
    buffer comes round again only after two further decisions have been waited for, so its copy is long done.
    """
    layer, sampler = search.layer, search.sampler
    shape = (layer.n_candidates, sampler.Z.shape[1] + 1, layer.block_size)
    if sampler.Z.device.type == "cpu":
        buffer = torch.empty(shape)
        yield lambda round_: sampler.normals(round_, shape[0], shape[2], out=buffer)
        return
    ring = [torch.empty(shape, pin_memory=True) for _ in range(4)]

    def draw(round_: int) -> Tensor:
        return sampler.normals(round_, shape[0], shape[2], out=ring[round_ % len(ring)])

    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead: dict[int, Future[Tensor]] = {}

        def fetch(round_: int) -> Tensor:
            for later in range(round_, round_ + 3):
                if later not in ahead:
                    ahead[later] = pool.submit(draw, later)
            return ahead.pop(round_).result()

        yield fetch


def _fill_units(sampler: UnitSampler, block: int, missing: int, round_: int, steps: int) -> tuple[Tensor, Tensor]:
    """Draw unguided units, cycling block by block through the scales that the search has reached."""
    weights, biases = [], []
    for index in range(math.ceil(missing / block)):
        normals = sampler.normals(round_ + index, 1, block)
        drawn = sampler.units(round_ + index, normals, index % steps)
        weights.append(drawn[0])
        biases.append(drawn[1])
    return torch.cat(weights, dim=1)[:, :missing], torch.cat(biases)[:missing]


def _absorb(residual: Residual, base: Tensor) -> None:
    """Start from the residual that a ridge on the given columns (N, m) leaves."""
    gram = base.T @ base
    gram.diagonal().add_(residual.alpha)
    lower = torch.linalg.cholesky(gram)
    residual.absorb(base, lower, torch.cholesky_solve(base.T @ residual.E, lower))


def _unit_energy(centred: Tensor) -> Tensor:
    """Scale centred features so that a row has energy one on average."""
    rms = float(centred.square().sum(dim=1).mean().sqrt())
    return centred / rms if rms > 0.0 else centred
