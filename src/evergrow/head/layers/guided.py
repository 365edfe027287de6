"""MGSM: a layer grown from the first task by accepting only blocks of random units that shrink the residual.

Z is N x d, H the N x L activations accepted so far, Y the N x C targets. With

    M = I - H (H^T H + alpha I)^-1 H^T = alpha (alpha I + H H^T)^-1          (N x N)

the ridge residual is ``E = M Y``. Accepting a block H_s with Schur complement ``S =
alpha I + H_s^T M H_s`` and gains ``A = S^-1 H_s^T E`` gives

    E' = E - M H_s A              M' = M - (M H_s) S^-1 (M H_s)^T

so no L x L matrix is needed. Everything that the criterion needs are five small
matrices per block:

    gram   = H_s^T H_s            schur = alpha I + H_s^T M H_s v      = H_s^T E
    u     = (M H_s)^T E               w = (M H_s)^T (M H_s)

M is held in one of two forms that agree: dense, 8 N^2 bytes, best for the few hundred
samples that a first task usually has; or factored, ``M = I - F F^T`` with F
re-compressed to its numerical rank, best when N is large and the units are nearly
affine, so that the rank stays near d + 1.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH, MOST_ROUNDS
from evergrow.core.errors import (
    ConstructionError,
    ConstructionWarning,
    LabelError,
    ParameterError,
)
from evergrow.core.progress import meter
from evergrow.core.seeding import generator
from evergrow.core.validation import check_choice, check_number
from evergrow.head.layers.feature_map import (
    ACTIVATIONS,
    LAYERS,
    BlockRecord,
    Construction,
    DenseMap,
    FeatureMap,
    Layer,
    centred_rms,
)
from evergrow.head.linalg.factor import symmetric_eigh

BIAS_RULES = ("gaussian", "points", "phases")

PAPER_SCALES = tuple(round(0.0008 + 0.0001 * step, 4) for step in range(33))
"""The paper's grid: from 0.0008 to 0.004 in steps of 0.0001. It belongs to un-normalised ViT-B/16 features."""

AUTO_SPREADS = (0.3, 3.0)
"""Spread of pre-activations between which ``"auto"`` draws: from nearly affine to saturated units."""

NAMED_SCALES = ("paper", "auto")

Scales = str | Sequence[float]

MOST_SCALES = 100
"""Largest number of scales; each is tried with every candidate of a round."""

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
        Exact width: where the search ends before it, the layer is filled with unguided
        units of the same distribution. None keeps what was accepted.
    direct_link : bool
        Put the features beside the units, which are then grown on what these leave
        unexplained.
    max_units : int
        Cap on the width.
    block_size : int
        s, units per block.
    n_candidates : int
        B_max, blocks tried per round.
    contraction : float
        r: a block is admissible if it takes at least ``1 - r`` of the squared residual.
    tol : float
        Root mean square residual at which the construction has converged.
    scales : "paper", "auto" or sequence of float
        Scales xi of the random weights. ``"paper"`` belongs to un-normalised ViT-B/16
        features; ``"auto"`` sets the spread of pre-activations from the first task.
    activation : str
        Activation of the units.
    bias : {"gaussian", "points", "phases"}
        Rule of the biases, see :class:`~evergrow.head.layers.guided.UnitSampler`.
    criterion : {"exact", "theorem"}
        ``"exact"`` judges the true fall of the squared residual; ``"theorem"`` the
        paper's printed inequality together with ``R_L >= 0`` (which, measured, stops
        after the first block).

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
    scales: Scales = "paper"
    activation: str = "sigmoid"
    bias: str = "gaussian"
    criterion: str = "exact"

    def __post_init__(self) -> None:
        for name in ("max_units", "block_size"):
            check_number(
                name, getattr(self, name), low=1, high=LARGEST_WIDTH, integer=True
            )
        check_number(
            "n_candidates", self.n_candidates, low=1, high=MOST_ROUNDS, integer=True
        )
        if self.n_units is not None:
            check_number(
                "n_units", self.n_units, low=0, high=self.max_units, integer=True
            )
        check_number(
            "contraction",
            self.contraction,
            low=0,
            high=1,
            low_open=True,
            high_open=True,
        )
        check_number("tol", self.tol, low=0)
        check_scales(self.scales)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("bias", self.bias, BIAS_RULES)
        check_choice("criterion", self.criterion, ("exact", "theorem"))

    def draw(
        self, Z: Tensor, Y: Tensor, *, seed: int, alpha: float | None, verbose: bool
    ) -> FeatureMap:
        """Grow the units on first-task features and one-hot targets."""
        if Y.shape[1] < 2:
            raise LabelError(
                "A guided layer needs at least 2 classes in the first batch, got 1 class."
            )
        Z = Z.to(torch.float64)
        Y = Y.to(torch.float64)
        sampler = UnitSampler(Z, self.scales, self.bias, seed, "mgsm")
        limit = self.n_units or self.max_units
        form = choose_form(Z, limit, float(sampler.scales.max()))
        residual = Residual(
            Z,
            Y,
            alpha or (AUTO_CONSTRUCTION_ALPHA if sampler.auto else CONSTRUCTION_ALPHA),
            form,
        )
        if self.direct_link:
            link = (Z - Z.mean(dim=0)) / centred_rms(
                Z
            )  # a row has energy one on average
            gram = link.T @ link
            gram.diagonal().add_(residual.alpha)
            lower = torch.linalg.cholesky(gram)
            residual.absorb(
                link, lower, torch.cholesky_solve(link.T @ residual.E, lower)
            )
        search = _LayerSearch(self, sampler, residual, limit)
        status = search.run(verbose)
        guided = search.width
        if self.n_units is not None and self.n_units > guided:
            steps = min(search.step + 1, sampler.n_scales)
            search.units.append(
                sampler.layer(
                    self.n_units - guided, self.block_size, search.round, steps
                )
            )
        if not search.units:
            raise ConstructionError(
                "the construction must accept at least one block, but no candidate at any scale took "
                f"{1 - self.contraction:.2g} of the squared residual; widen scales or raise contraction"
            )
        if status == "exhausted" and self.n_units is None:
            warnings.warn(
                f"the scales are exhausted at {guided} units with an RMSE of {search.rmse:.4g} "
                f"(tolerance {self.tol:g}): no candidate block is admissible any more",
                ConstructionWarning,
                stacklevel=4,
            )
        weights, biases = zip(*search.units, strict=True)
        grown = Construction(status, guided, form, tuple(search.log))
        return DenseMap(
            weights=torch.cat(weights, dim=1),
            bias=torch.cat(biases),
            activation=self.activation,
            construction=grown,
        )


class _LayerSearch:
    """The loop: draw candidates, judge them, accept the best, or move on to the next scale."""

    def __init__(
        self, layer: GuidedLayer, sampler: UnitSampler, residual: Residual, limit: int
    ) -> None:
        self.layer = layer
        self.sampler = sampler
        self.residual = residual
        self.limit = limit
        self.units: list[tuple[Tensor, Tensor]] = []
        self.log: list[BlockRecord] = []
        self.width = self.round = self.step = 0
        self.energy = float(residual.sq_norms.sum())

    @property
    def rmse(self) -> float:
        """Root mean square residual."""
        return math.sqrt(max(self.energy, 0.0) / self.residual.Y.numel())

    def run(self, verbose: bool) -> Literal["converged", "exhausted", "capped"]:
        """Grow until the residual is small, the scales are used up, or the layer is as wide as it may be."""
        layer = self.layer
        started = time.perf_counter()
        tried = 0
        with meter("growing the layer", self.limit, enabled=verbose) as tick:
            while True:
                if self.rmse <= layer.tol:
                    return "converged"
                block = min(layer.block_size, self.limit - self.width)
                if block <= 0:
                    return "capped"
                normals = self.sampler.normals(
                    self.round, layer.n_candidates, layer.block_size
                )
                weights, bias = self.sampler.units(self.round, normals, self.step)
                if block < layer.block_size:
                    kept = (
                        torch.arange(weights.shape[1]) % layer.block_size < block
                    ).to(weights.device)
                    weights = weights[:, kept]
                    bias = bias[kept]
                self.round += 1
                tried += layer.n_candidates
                H = ACTIVATIONS[layer.activation](
                    torch.addmm(bias, self.residual.Z, weights.to(torch.float64))
                )
                candidates = self.residual.judge(H, block)
                best = self._best(candidates)
                if best is not None:
                    own = slice(best * block, (best + 1) * block)
                    self.units.append((weights[:, own].clone(), bias[own].clone()))
                    self._accept(candidates, best, tried, started)
                    tried = 0
                    tick(self.width, f"RMSE {self.rmse:.4f}")
                elif self.step + 1 < self.sampler.n_scales:
                    self.step += 1
                else:
                    return "exhausted"

    def _best(self, candidates: Candidates) -> int | None:
        """Return the admissible block with the largest fall, or None."""
        falls = candidates.drop_exact.sum(dim=1)
        theorem = candidates.drop_theorem.sum(dim=1)
        judged = falls if self.layer.criterion == "exact" else theorem
        admissible = (
            judged >= (1.0 - self.layer.contraction) * self.residual.sq_norms.sum()
        ) & candidates.valid
        if self.layer.criterion == "theorem":
            admissible &= falls - theorem >= 0.0
        falls = torch.where(admissible, falls, -torch.inf)
        # One transfer from the device per decision.
        fall, index = torch.stack(
            [falls.amax(), falls.argmax().to(falls.dtype)]
        ).tolist()
        if fall > -math.inf:
            return int(index)
        return None

    def _accept(
        self, candidates: Candidates, index: int, tried: int, started: float
    ) -> None:
        residual = self.residual
        residual.absorb(
            candidates.projected[index],
            candidates.lower[index],
            candidates.gains[index],
        )
        self.width += candidates.lower.shape[1]
        exact, theorem, self.energy = torch.stack(
            [
                candidates.drop_exact[index].sum(),
                candidates.drop_theorem[index].sum(),
                residual.sq_norms.sum(),
            ]
        ).tolist()
        sampler = self.sampler
        seconds = time.perf_counter() - started
        # Where a scale is drawn for every unit the log has the middle of the range.
        scale = float(
            sampler.scales.log().mean().exp()
            if sampler.auto
            else sampler.scales[self.step]
        )
        self.log.append(
            BlockRecord(
                self.width,
                self.rmse,
                scale,
                exact,
                theorem,
                exact - theorem,
                tried,
                seconds,
            )
        )


# -- the residual ----------------------------------------------------------------------


COMPRESSION_TOL = 1e-11
"""Directions of F F^T below this are dropped. An eigenvalue rho of F F^T is 1 - rho in M, so that dropping it
changes M by the relative amount rho: far below the 1e-8 to which the forms must agree.
"""


@dataclass(frozen=True)
class Candidates:
    """What accepting each of B blocks of s units would do.

    Parameters
    ----------
    drop_exact : Tensor of shape (B, C)
        Exact fall of each target column's squared residual, old weights re-adjusted.
    drop_theorem : Tensor of shape (B, C)
        The left side of the paper's inequality; the difference is the coupling term R_L
        of its appendix.
    projected : Tensor of shape (B, N, s)
        ``M H_s``.
    gains : Tensor of shape (B, s, C)
        Weights that each block would get.
    lower : Tensor of shape (B, s, s)
        Cholesky factors of the Schur complements.
    valid : Tensor of shape (B,)
        False where the factorisation failed.
    """

    drop_exact: Tensor
    drop_theorem: Tensor
    projected: Tensor
    gains: Tensor
    lower: Tensor
    valid: Tensor


class Residual:
    """Residual of a growing ridge layer.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features, float64.
    Y : Tensor of shape (N, C)
        Targets, float64.
    alpha : float
        Ridge of the construction.
    form : {"dense", "factored"}
        How M is held.
    """

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float, form: str) -> None:
        self.Z = Z
        self.Y = Y
        self.alpha = alpha
        self.E = Y.clone()
        self.sq_norms = Y.square().sum(dim=0)
        if form == "dense":
            self._matrix = torch.eye(len(Z), dtype=Z.dtype, device=Z.device)
        else:
            self._matrix = None
        self._factor = Z.new_zeros(len(Z), 0)
        self._rank = 0

    def project(self, H: Tensor) -> Tensor:
        """Return ``M H`` for H of shape (N, m)."""
        if self._matrix is not None:
            return self._matrix @ H
        return H - self._factor @ (self._factor.T @ H)

    def judge(self, H: Tensor, block: int) -> Candidates:
        """Evaluate activations (N, B s) of B blocks of units at once.

        With ``A = S^-1 V``, column by column,

            drop_exact   = 2 <U, A> - <A, W A>          drop_theorem = 2 <V, A> - <A,
            H_s^T H_s A>
        """
        projected = self.project(H)
        shape = (-1, block, self.E.shape[1])
        v = (H.T @ self.E).view(shape)
        u = (projected.T @ self.E).view(shape)
        blocks, maps = (
            matrix.view(len(H), -1, block).transpose(0, 1) for matrix in (H, projected)
        )
        gram = blocks.mT @ blocks
        w = maps.mT @ maps
        schur = blocks.mT @ maps
        schur = (schur + schur.mT).mul_(0.5)
        schur.diagonal(dim1=1, dim2=2).add_(self.alpha)
        lower, info = torch.linalg.cholesky_ex(schur)
        # Two triangular solves: batched cholesky_solve takes a far slower route on a
        # GPU.
        gains = torch.linalg.solve_triangular(lower, v, upper=False)
        gains = torch.linalg.solve_triangular(lower.mT, gains, upper=True)
        exact = (2.0 * u - w @ gains).mul_(gains).sum(dim=1)
        theorem = (2.0 * v - gram @ gains).mul_(gains).sum(dim=1)
        return Candidates(
            exact,
            theorem,
            maps,
            gains,
            lower,
            (info == 0) & torch.isfinite(exact).all(dim=1),
        )

    def absorb(self, projected: Tensor, lower: Tensor, gains: Tensor) -> None:
        """Append columns given as ``M H_s``, the Cholesky factor of S and the gains ``S^-1 H_s^T E``."""
        half = torch.linalg.solve_triangular(lower, projected.T, upper=False)
        self.E = self.E - projected @ gains
        self.sq_norms = self.E.square().sum(dim=0)
        if self._matrix is not None:
            self._matrix.addmm_(half.T, half, alpha=-1.0)
            return
        self._factor = torch.cat([self._factor, half.T], dim=1)
        if self._factor.shape[1] >= self._rank + max(8 * len(half), self._rank // 2):
            values, vectors = symmetric_eigh(self._factor.T @ self._factor)
            self._factor = self._factor @ vectors[:, values > COMPRESSION_TOL]
            self._rank = self._factor.shape[1]


def choose_form(Z: Tensor, units: int, scale: float) -> str:
    """Return the form of M that takes fewer operations, and fewer bytes.

    Units whose pre-activations stay below about 0.2 are affine to within the
    compression tolerance, so their rank is that of the features and a constant;
    otherwise every unit may count. F carries about as many columns again that are not
    yet compressed.

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
    if spread < 0.2:
        rank = min(n, units, d + 1)
    else:
        rank = min(n, units)
    return "dense" if n <= 3.5 * rank else "factored"


# -- random units ----------------------------------------------------------------------


def check_scales(scales: Scales) -> None:
    """Raise :class:`ParameterError` unless ``scales`` is a known name or positive numbers."""
    if (
        isinstance(scales, str)
        or not isinstance(scales, Iterable)
        or not len(list(scales))
    ):
        check_choice("scales, where they are no numbers,", scales, NAMED_SCALES)
        return
    values = list(scales)
    if len(values) > MOST_SCALES:
        raise ParameterError(
            f"scales must be at most {MOST_SCALES} numbers, got {len(values)}"
        )
    for value in values:
        check_number("every scale", value, low=0.0, low_open=True)


class UnitSampler:
    """A source of random units ``(w, b)``, addressed by round.

    Round r always yields the same numbers. Within a round block after block is drawn,
    so the first blocks do not depend on how many follow; weights are drawn in float32
    on the CPU and moved.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        First-task features; ``"auto"`` scales and ``"points"`` biases look at them.
    scales : "paper", "auto" or sequence of float
        Scales of the weights. ``"auto"`` draws a spread of pre-activations for every
        unit.
    bias : {"gaussian", "points", "phases"}
        ``"gaussian"``: ``b ~ N(0, scale^2)`` as in the paper. ``"points"``: ``b = -w .
        z_i`` for a random first-task sample, so that every unit bends where there is
        data. ``"phases"``: uniform on a full turn, for cosines.
    seed : int
        Seed of the streams.
    purpose : str
        Name of the streams.
    """

    def __init__(
        self, Z: Tensor, scales: Scales, bias: str, seed: int, purpose: str
    ) -> None:
        self.Z = Z
        self.bias = bias
        self.seed = seed
        self.purpose = purpose
        self.auto = isinstance(scales, str) and scales == "auto"
        if self.auto:
            self.scales = torch.tensor(AUTO_SPREADS, dtype=torch.float64) / centred_rms(
                Z
            )
        else:
            if isinstance(scales, str):
                values = PAPER_SCALES
            else:
                values = tuple(float(value) for value in scales)
            self.scales = torch.tensor(values, dtype=torch.float64)

    @property
    def n_scales(self) -> int:
        """Steps of the schedule; drawing a scale per unit leaves nothing to step through."""
        if self.auto:
            return 1
        return len(self.scales)

    def normals(self, round_: int, n_blocks: int, block: int) -> Tensor:
        """Return unit normals (n_blocks, d + 1, block), float32, on the CPU."""
        stream = generator(self.seed, self.purpose, round_)
        rows = self.Z.shape[1] + 1
        # One block after the other, so that the first do not depend on how many follow.
        return torch.stack(
            [torch.randn(rows, block, generator=stream) for _ in range(n_blocks)]
        )

    def units(self, round_: int, normals: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Turn the normals of a round into weights (d, m) and biases (m,) at one step of the schedule."""
        device = self.Z.device
        count = normals.shape[0] * normals.shape[2]
        scale: float | Tensor = float(
            self.scales[step].to(torch.float32)
        )  # a number spares the device a transfer
        if self.auto:
            low, high = self.scales
            share = torch.rand(
                count, generator=self._stream(round_, "scales"), dtype=torch.float64
            )
            scale = (low * (high / low) ** share).to(device, torch.float32)
        normals = (
            normals.to(device, non_blocking=True)
            .transpose(0, 1)
            .reshape(normals.shape[1], count)
        )
        weights = normals[:-1] * scale
        if self.bias == "gaussian":
            return weights, (normals[-1] * scale).to(torch.float64)
        if self.bias == "phases":
            turns = torch.rand(
                count, generator=self._stream(round_, "phases"), dtype=torch.float64
            )
            return weights, (turns * (2.0 * math.pi)).to(device)
        points = torch.randint(
            len(self.Z), (count,), generator=self._stream(round_, "points")
        ).to(device)
        chosen = self.Z[points].to(torch.float64)
        return weights, -(chosen * weights.T.to(torch.float64)).sum(dim=1)

    def layer(
        self, count: int, block: int, first: int = 0, steps: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return weights (d, count) and biases (count,): one block a round, cycling through steps of the schedule."""
        rounds = range(first, first + math.ceil(count / block))
        pieces = [
            self.units(each, self.normals(each, 1, block), (each - first) % steps)
            for each in rounds
        ]
        weights, biases = zip(*pieces, strict=True)
        return torch.cat(weights, dim=1)[:, :count].contiguous(), torch.cat(biases)[
            :count
        ].contiguous()

    def _stream(self, round_: int, what: str) -> torch.Generator:
        return generator(self.seed, self.purpose, round_, what)
