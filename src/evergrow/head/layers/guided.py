"""MGSM: a layer grown from the first task by accepting only blocks of random units that shrink the residual.

Z is N x d, H the N x L activations accepted so far, Y the N x C targets. With

    M = I - H (H^T H + alpha I)^-1 H^T = alpha (alpha I + H H^T)^-1          (N x N)

the ridge residual is ``E = M Y``. Accepting a block H_s with Schur complement ``S = alpha I + H_s^T M H_s`` and
gains ``A = S^-1 H_s^T E`` gives

    E' = E - M H_s A              M' = M - (M H_s) S^-1 (M H_s)^T

so no L x L matrix is needed. Everything that the criterion needs are five small matrices per block:

    gram   = H_s^T H_s            schur = alpha I + H_s^T M H_s
    v      = H_s^T E              u     = (M H_s)^T E               w = (M H_s)^T (M H_s)

M is held in one of two forms that agree: dense, 8 N^2 bytes, best for the few hundred samples that a first task
usually has; or factored, ``M = I - F F^T`` with F re-compressed to its numerical rank, best when N is large and the
units are nearly affine, so that the rank stays near d + 1.
"""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evergrow.core.errors import ConstructionError, ConstructionWarning
from evergrow.core.progress import meter
from evergrow.core.validation import check_choice, check_number
from evergrow.head.layers.base import BIAS_RULES, LAYERS, Layer, Scales, UnitSampler, check_scales
from evergrow.head.layers.feature_map import ACTIVATIONS, BlockRecord, Construction, FeatureMap
from evergrow.head.linalg.factor import symmetric_eigh

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
        Rule of the biases, see :class:`~evergrow.head.layers.base.UnitSampler`.
    orthogonal : bool
        Orthogonal weights within a block.
    criterion : {"exact", "theorem"}
        ``"exact"`` judges the true fall of the squared residual; ``"theorem"`` the paper's printed
        inequality together with ``R_L >= 0`` (which, measured, stops after the first block).
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
        }
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)

    @property
    def width_limit(self) -> int:
        """The width at which the guided search stops."""
        return self.n_units or self.max_units

    def draw(self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool) -> FeatureMap:
        """Grow the units on first-task features and one-hot targets."""
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
        falls = torch.where(admissible, scores.drop_exact.sum(dim=1), -torch.inf)
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


# -- the residual -------------------------------------------------------------------------------------------------


COMPRESSION_TOL = 1e-11
"""Directions of F F^T below this are dropped. An eigenvalue rho of F F^T is 1 - rho in M, so that dropping it
changes M by the relative amount rho: far below the 1e-8 to which the forms must agree."""


@dataclass(frozen=True)
class CandidateBlocks:
    """Random units proposed together, as B blocks of s columns each.

    Parameters
    ----------
    weights : Tensor of shape (d, B * s)
        Input weights, float32.
    bias : Tensor of shape (B * s,)
        Biases.
    block : int
        s, the number of units in a block.
    activation : str
        Name of the activation.
    """

    weights: Tensor
    bias: Tensor
    block: int
    activation: str

    @property
    def n_blocks(self) -> int:
        """B, the number of blocks."""
        return int(self.weights.shape[1]) // self.block

    def activations(self, Z: Tensor) -> Tensor:
        """Return the activations (n, B * s) on rows Z."""
        pre = torch.addmm(self.bias.to(Z), Z, self.weights.to(Z))
        return ACTIVATIONS[self.activation](pre)

    def columns(self, index: int) -> slice:
        """Return the columns of one block."""
        return slice(index * self.block, (index + 1) * self.block)


@dataclass(frozen=True)
class BlockMoments:
    """The five small matrices of every candidate block; shapes (B, s, s) or (B, s, C)."""

    gram: Tensor
    schur: Tensor
    v: Tensor
    u: Tensor
    w: Tensor


@dataclass(frozen=True)
class BlockScores:
    """What accepting each block would do, per target column.

    Parameters
    ----------
    drop_exact : Tensor of shape (B, C)
        Exact fall of each column's squared residual, old weights re-adjusted.
    drop_theorem : Tensor of shape (B, C)
        The left side of the paper's inequality.
    gains : Tensor of shape (B, s, C)
        Weights that each block would get.
    lower : Tensor of shape (B, s, s)
        Cholesky factors of the Schur complements.
    valid : Tensor of shape (B,)
        False where the factorisation failed.
    """

    drop_exact: Tensor
    drop_theorem: Tensor
    gains: Tensor
    lower: Tensor
    valid: Tensor

    @property
    def coupling(self) -> Tensor:
        """The coupling term R_L of the paper's appendix, per column."""
        return self.drop_exact - self.drop_theorem


def score_blocks(moments: BlockMoments) -> BlockScores:
    """Evaluate all blocks at once.

    With ``A = S^-1 V``, column by column,

        drop_exact   = 2 <U, A> - <A, W A>          drop_theorem = 2 <V, A> - <A, H_s^T H_s A>
    """
    lower, info = torch.linalg.cholesky_ex(moments.schur)
    # Two triangular solves: batched cholesky_solve takes a far slower route on a GPU.
    gains = torch.linalg.solve_triangular(lower, moments.v, upper=False)
    gains = torch.linalg.solve_triangular(lower.mT, gains, upper=True)
    exact = (2.0 * moments.u - moments.w @ gains).mul_(gains).sum(dim=1)
    theorem = (2.0 * moments.v - moments.gram @ gains).mul_(gains).sum(dim=1)
    valid = (info == 0) & torch.isfinite(exact).all(dim=1)
    return BlockScores(exact, theorem, gains, lower, valid)


def split_blocks(matrix: Tensor, block: int) -> Tensor:
    """View (n, B * s) as (B, n, s) without copying."""
    n, columns = matrix.shape
    return matrix.view(n, columns // block, block).transpose(0, 1)


class Residual(ABC):
    """Residual of a growing ridge layer.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features, float64.
    Y : Tensor of shape (N, C)
        Targets, float64.
    alpha : float
        Ridge of the construction.
    """

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        self.Z, self.Y, self.alpha = Z, Y, alpha
        self.E = Y.clone()
        self.sq_norms = Y.square().sum(dim=0)
        self._projected: Tensor | None = None

    @property
    def sq_norm(self) -> float:
        """Squared Frobenius norm of the residual."""
        return float(self.sq_norms.sum())

    @abstractmethod
    def project(self, H: Tensor) -> Tensor:
        """Return ``M H`` for H of shape (N, m)."""

    @abstractmethod
    def _downdate(self, half: Tensor) -> None:
        """Replace M by ``M - half^T half`` for ``half`` of shape (s, N)."""

    def moments(self, candidates: CandidateBlocks) -> BlockMoments:
        """Return the small matrices of all candidate blocks."""
        H = candidates.activations(self.Z)
        projected = self._projected = self.project(H)
        blocks, maps = split_blocks(H, candidates.block), split_blocks(projected, candidates.block)
        schur = blocks.mT @ maps
        schur = (schur + schur.mT).mul_(0.5)
        schur.diagonal(dim1=1, dim2=2).add_(self.alpha)
        shape = (candidates.n_blocks, candidates.block, self.E.shape[1])
        return BlockMoments(
            gram=blocks.mT @ blocks,
            schur=schur,
            v=(H.T @ self.E).view(shape),
            u=(projected.T @ self.E).view(shape),
            w=maps.mT @ maps,
        )

    def accept(self, candidates: CandidateBlocks, index: int, scores: BlockScores) -> None:
        """Append block ``index`` of the candidates just measured."""
        if self._projected is None:
            raise RuntimeError("moments() must be called before accept()")
        chosen = self._projected[:, candidates.columns(index)]
        self.absorb(chosen, scores.lower[index], scores.gains[index])
        self._projected = None

    def absorb(self, projected: Tensor, lower: Tensor, gains: Tensor) -> None:
        """Append columns given as ``M H_s``, the Cholesky factor of S and the gains ``S^-1 H_s^T E``."""
        half = torch.linalg.solve_triangular(lower, projected.T, upper=False)
        self._downdate(half)
        self.E = self.E - projected @ gains
        self.sq_norms = self.E.square().sum(dim=0)


class DenseResidual(Residual):
    """M held as an N x N matrix."""

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.M = torch.eye(Z.shape[0], dtype=Z.dtype, device=Z.device)

    def project(self, H: Tensor) -> Tensor:
        """Return ``M H``."""
        return self.M @ H

    def _downdate(self, half: Tensor) -> None:
        self.M.addmm_(half.T, half, alpha=-1.0)


class FactoredResidual(Residual):
    """M held as ``I - F F^T``, with F compressed to its numerical rank now and then."""

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float) -> None:
        super().__init__(Z, Y, alpha)
        self.F = Z.new_zeros(Z.shape[0], 0)
        self._rank = 0

    @property
    def rank(self) -> int:
        """Columns of F at present."""
        return int(self.F.shape[1])

    def project(self, H: Tensor) -> Tensor:
        """Return ``H - F F^T H``."""
        return H - self.F @ (self.F.T @ H)

    def _downdate(self, half: Tensor) -> None:
        self.F = torch.cat([self.F, half.T], dim=1)
        slack = max(8 * half.shape[0], self._rank // 2)
        if self.rank >= self._rank + slack:
            self._compress()

    def _compress(self) -> None:
        values, vectors = symmetric_eigh(self.F.T @ self.F)
        self.F = self.F @ vectors[:, values > COMPRESSION_TOL]
        self._rank = self.rank


FORMS: dict[str, type[Residual]] = {"dense": DenseResidual, "factored": FactoredResidual}


def choose_form(Z: Tensor, units: int, scale: float) -> str:
    """Return the form of M that takes fewer operations, and fewer bytes.

    Units whose pre-activations stay below about 0.2 are affine to within the compression tolerance, so their rank is
    that of the features and a constant; otherwise every unit may count. F carries about as many columns again that are
    not yet compressed.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features.
    units : int
        Units that the layer may grow to.
    scale : float
        Largest scale of the weights.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.guided import choose_form
    >>> choose_form(torch.ones(600, 768), 15_000, 0.004), choose_form(torch.ones(9_000, 768), 15_000, 0.004)
    ('dense', 'factored')
    """
    n, d = Z.shape
    spread = scale * float(Z.square().sum(dim=1).mean().sqrt())
    rank = min(n, units, d + 1) if spread < 0.2 else min(n, units)
    return "dense" if n <= 3.5 * rank else "factored"
