"""MGSM: grow a layer from blocks of random units that reduce the training residual.

Z is N x d (features), H the N x L activations of the accepted units, Y the N x C
targets, and alpha the ridge of the construction. With

    M = I - H (H^T H + alpha I)^-1 H^T = alpha (alpha I + H H^T)^-1          (N x N)

the residual of ridge regression is ``E = M Y``. Accepting a block H_s of s units, with
Schur complement ``S = alpha I + H_s^T M H_s`` and gains ``A = S^-1 H_s^T E``, gives

    E' = E - M H_s A              M' = M - (M H_s) S^-1 (M H_s)^T

so no L x L matrix is needed. Accepting the block removes ``|E|^2 - |E'|^2`` of the
squared residual, the exact drop. The paper's inequality replaces M by I in this drop.
The difference of the two is the coupling term R_L.

M is stored in one of two equivalent forms. The dense form takes 8 N^2 bytes and suits
the few hundred samples of a typical first task. The factored form is ``M = I - F F^T``
with F compressed to its numerical rank. It suits large N and nearly affine units, whose
rank stays near d + 1.
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
"""The paper's grid of scales, for ViT-B/16 features that are not normalised."""

AUTO_SPREADS = (0.3, 3.0)
"""Range of pre-activation spreads for ``scales="auto"``: nearly affine to saturated."""

Scales = str | Sequence[float]

MAX_SCALES = 100
"""Largest number of scales. Every scale is tried with all candidates of a round."""

CONSTRUCTION_ALPHA = 0.01
"""Default ridge of the construction, from the paper."""

AUTO_CONSTRUCTION_ALPHA = 1.0
"""Default ridge of the construction for ``scales="auto"``.

With the paper's ridge, the direct link alone fits the first task, and no residual is
left to guide the selection. Values from 0.1 to 10 give the same accuracy.
"""


@LAYERS.register("guided")
@dataclass(frozen=True)
class GuidedLayer(Layer):
    """A layer grown under the paper's supervisory mechanism (MGSM).

    The defaults are the paper's.

    Parameters
    ----------
    n_units : int or None
        Width L. If the search stops earlier, unguided units of the same distribution
        fill the layer. None keeps only the accepted units.
    direct_link : bool, default=False
        Append the features to the units. The units are then selected on the residual of
        the features.
    max_units : int, default=20000
        Maximum width.
    block_size : int, default=50
        Units per block, s.
    n_candidates : int, default=10
        Blocks evaluated per round, B_max.
    contraction : float, default=0.99
        r. A block is admissible if it removes at least ``1 - r`` of the squared
        residual.
    tol : float, default=0.01
        Stop at this root mean square residual.
    scales : "paper", "auto" or sequence of float, default="paper"
        Scales xi of the random weights, tried in this order. ``"paper"`` suits ViT-B/16
        features that are not normalised. ``"auto"`` draws scales that suit the first
        task.
    activation : str, default="sigmoid"
        Activation of the units.
    bias : {"gaussian", "points", "phases"}, default="gaussian"
        Distribution of the biases. See :class:`UnitSampler`.
    criterion : {"exact", "theorem"}, default="exact"
        ``"exact"`` uses the decrease of the squared residual. ``"theorem"`` uses the
        paper's inequality together with ``R_L >= 0``, which usually stops after the
        first block.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers import GuidedLayer
    >>> rng = torch.Generator().manual_seed(0)
    >>> Z = torch.randn(60, 4, generator=rng, dtype=torch.float64)
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
        for name, high in (
            ("max_units", LARGEST_WIDTH),
            ("block_size", LARGEST_WIDTH),
            ("n_candidates", MOST_ROUNDS),
        ):
            check_number(name, getattr(self, name), low=1, high=high, integer=True)
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
        """Search for units on features Z (N, d) and one-hot targets Y (N, C).

        Implements the hook of :meth:`Layer.build`, which does not call it for
        ``n_units=0``. If the search accepts fewer than `n_units` units, unguided units
        fill the layer.

        Raises
        ------
        LabelError
            If there is only one class.
        ConstructionError
            If ``n_units=None`` and no block was accepted.

        Warns
        -----
        ConstructionWarning
            If ``n_units=None`` and the search ended above the tolerance, because no
            candidate was admissible.
        """
        if Y.shape[1] < 2:
            raise LabelError(
                "A guided layer needs at least 2 classes in the first batch, got 1 "
                "class."
            )
        Z = Z.to(torch.float64)
        Y = Y.to(torch.float64)
        sampler = UnitSampler(Z, self.scales, self.bias, seed, "mgsm")
        limit = self.n_units or self.max_units
        form = choose_residual_form(Z, limit, sampler.largest_scale)
        if alpha is None:
            is_auto = sampler.scale_range is not None
            alpha = AUTO_CONSTRUCTION_ALPHA if is_auto else CONSTRUCTION_ALPHA
        residual = Residual(Z, Y, alpha, form)
        if self.direct_link:
            _absorb_link(residual)
        search = _LayerSearch(self, sampler, residual, limit)
        status = search.run(verbose)
        n_guided = search.width
        if self.n_units is None:
            self._report_shortfall(search, status)
        else:
            search.fill_up(self.n_units)
        weights, biases = zip(*search.units, strict=True)
        return DenseMap(
            weights=torch.cat(weights, dim=1),
            bias=torch.cat(biases),
            activation=self.activation,
            construction=Construction(status, n_guided, form, tuple(search.log)),
        )

    def _report_shortfall(self, search: _LayerSearch, status: str) -> None:
        """Raise if the search accepted no unit, and warn if it was exhausted."""
        if not search.units:
            raise ConstructionError(
                "The construction accepted no block: no candidate at any scale removed "
                f"{1 - self.contraction:.2g} of the squared residual. Add scales, or "
                "raise contraction."
            )
        if status == "exhausted":
            warnings.warn(
                f"The construction stopped at {search.width} units with an RMSE of "
                f"{search.rmse:.4g} (tolerance {self.tol:g}): no candidate at any "
                "remaining scale was admissible.",
                ConstructionWarning,
                stacklevel=5,
            )


def _absorb_link(residual: Residual) -> None:
    """Add the direct link to an empty regression, in place.

    The link is the centred features, scaled to a mean squared length of one per row.
    """
    Z = residual.Z
    link = (Z - Z.mean(dim=0)) / centred_rms(Z)
    gram = link.T @ link
    gram.diagonal().add_(residual.alpha)
    lower = torch.linalg.cholesky(gram)
    gains = torch.cholesky_solve(link.T @ residual.E, lower)
    residual.absorb(link, lower, gains)


class _LayerSearch:
    """Greedy search for the units of a layer.

    Parameters
    ----------
    layer : GuidedLayer
        Parameters.
    sampler : UnitSampler
        Source of candidates.
    residual : Residual
        Residual before the first unit. Accepted blocks change it in place.
    limit : int
        Maximum width.

    Attributes
    ----------
    units : list of (Tensor of shape (d, s), Tensor of shape (s,))
        Weights and biases of the accepted blocks.
    log : list of BlockRecord
        One entry per accepted block.
    width : int
        Number of accepted units.
    round : int
        Number of candidate rounds drawn.
    scale_index : int
        Index of the current scale.
    energy : float
        Squared norm of the residual.
    """

    def __init__(
        self, layer: GuidedLayer, sampler: UnitSampler, residual: Residual, limit: int
    ) -> None:
        self.layer = layer
        self.sampler = sampler
        self.residual = residual
        self.limit = limit
        self.units: list[tuple[Tensor, Tensor]] = []
        self.log: list[BlockRecord] = []
        self.width = 0
        self.round = 0
        self.scale_index = 0
        self.energy = float(residual.sq_norms.sum())
        self._n_tried = 0  # candidates since the last accepted block
        self._started = time.perf_counter()

    @property
    def rmse(self) -> float:
        """Root mean square residual."""
        return math.sqrt(max(self.energy, 0.0) / self.residual.Y.numel())

    def run(self, verbose: bool) -> Literal["converged", "exhausted", "capped"]:
        """Accept blocks until a stopping rule holds, and return the status.

        Each round evaluates `n_candidates` blocks and accepts the best admissible one.
        Without an admissible block, the search moves on to the next scale for good.
        """
        with meter("growing the layer", self.limit, enabled=verbose) as tick:
            while True:
                if self.rmse <= self.layer.tol:
                    return "converged"
                if self.width >= self.limit:
                    return "capped"
                if self._accept_from_next_round():
                    tick(self.width, f"RMSE {self.rmse:.4f}")
                elif self.scale_index + 1 < len(self.sampler.scales):
                    self.scale_index += 1
                else:
                    return "exhausted"

    def fill_up(self, n_units: int) -> None:
        """Append unguided units up to `n_units`, cycling through the scales tried."""
        missing = n_units - self.width
        if missing > 0:
            self.units.append(
                self.sampler.draw_units(
                    missing, self.layer.block_size, self.round, self.scale_index + 1
                )
            )

    def _accept_from_next_round(self) -> bool:
        """Draw and evaluate a round. Accept its best block, if any is admissible."""
        layer = self.layer
        block_size = min(layer.block_size, self.limit - self.width)
        weights, bias = self._draw_candidates(block_size)
        pre_activations = torch.addmm(bias, self.residual.Z, weights.to(torch.float64))
        H = ACTIVATIONS[layer.activation](pre_activations)
        candidates = self.residual.evaluate(H, block_size)
        best = self._best_block(candidates)
        if best is None:
            return False
        block = slice(best * block_size, (best + 1) * block_size)
        self.units.append((weights[:, block].clone(), bias[block].clone()))
        self._accept(candidates, best)
        return True

    def _draw_candidates(self, block_size: int) -> tuple[Tensor, Tensor]:
        """Draw weights (d, B s) and biases (B s,) of the next round.

        Blocks are always drawn at full size. The last block of a layer keeps its first
        `block_size` units.
        """
        layer = self.layer
        weights, bias = self.sampler.draw_round(
            self.round, layer.n_candidates, layer.block_size, self.scale_index
        )
        self.round += 1
        self._n_tried += layer.n_candidates
        weights = weights.view(len(weights), -1, layer.block_size)
        bias = bias.view(-1, layer.block_size)
        return weights[..., :block_size].flatten(1), bias[:, :block_size].flatten()

    def _best_block(self, candidates: Candidates) -> int | None:
        """Return the index of the admissible block with the largest exact drop.

        None if no block is admissible under the layer's criterion.
        """
        drops = candidates.drop_exact.sum(dim=1)
        theorem = candidates.drop_theorem.sum(dim=1)
        required = (1.0 - self.layer.contraction) * self.residual.sq_norms.sum()
        if self.layer.criterion == "exact":
            admissible = drops >= required
        else:
            coupling = drops - theorem
            admissible = (theorem >= required) & (coupling >= 0.0)
        drops = torch.where(admissible & candidates.valid, drops, -torch.inf)
        # One transfer from the device per decision.
        best_drop, index = torch.stack(
            [drops.amax(), drops.argmax().to(drops.dtype)]
        ).tolist()
        if best_drop > -math.inf:
            return int(index)
        return None

    def _accept(self, candidates: Candidates, index: int) -> None:
        """Update the residual and the width by a candidate block, and log it."""
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
        self.log.append(
            BlockRecord(
                n_units=self.width,
                rmse=self.rmse,
                scale=float(self.sampler.scales[self.scale_index]),
                drop_exact=exact,
                drop_theorem=theorem,
                coupling=exact - theorem,
                tried=self._n_tried,
                seconds=time.perf_counter() - self._started,
            )
        )
        self._n_tried = 0


# -- the residual ----------------------------------------------------------------------


COMPRESSION_TOL = 1e-11
"""Directions of F F^T with smaller eigenvalues are dropped.

An eigenvalue rho of F F^T is the eigenvalue 1 - rho of M. Dropping it changes M by the
relative amount rho, far less than the 1e-8 to which both forms must agree.
"""

_AFFINE_SPREAD = 0.2
"""Spread of pre-activations up to which units are affine within `COMPRESSION_TOL`."""

_MAX_DENSE_RATIO = 3.5
"""Largest ratio of rows to rank at which the dense form of M is the cheaper one.

A product with the dense form takes N^2 operations per column, and with ``I - F F^T``
twice N times the columns of F. F has up to about twice its rank in columns.
"""


@dataclass(frozen=True)
class Candidates:
    """Evaluation of B candidate blocks of s units.

    Parameters
    ----------
    drop_exact : Tensor of shape (B, C)
        Decrease of the squared residual of every target, with all weights refitted.
    drop_theorem : Tensor of shape (B, C)
        Left side of the paper's inequality. ``drop_exact - drop_theorem`` is the
        coupling term R_L.
    projected : Tensor of shape (B, N, s)
        ``M H_s``.
    gains : Tensor of shape (B, s, C)
        Weights A of the block.
    lower : Tensor of shape (B, s, s)
        Cholesky factors of the Schur complements S.
    valid : Tensor of shape (B,)
        False if the factorisation failed.
    """

    drop_exact: Tensor
    drop_theorem: Tensor
    projected: Tensor
    gains: Tensor
    lower: Tensor
    valid: Tensor


class Residual:
    """Residual ``E = M Y`` of ridge regression on a growing set of columns.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features, float64.
    Y : Tensor of shape (N, C)
        Targets, float64.
    alpha : float
        Ridge of the construction.
    form : {"dense", "factored"}
        Representation of M. See the module docstring.

    Attributes
    ----------
    E : Tensor of shape (N, C)
        The residual.
    sq_norms : Tensor of shape (C,)
        Squared norms of the columns of E.
    """

    def __init__(self, Z: Tensor, Y: Tensor, alpha: float, form: str) -> None:
        self.Z = Z
        self.Y = Y
        self.alpha = alpha
        self.E = Y.clone()
        self.sq_norms = Y.square().sum(dim=0)
        self._matrix: Tensor | None = None
        if form == "dense":
            self._matrix = torch.eye(len(Z), dtype=Z.dtype, device=Z.device)
        self._factor = Z.new_zeros(len(Z), 0)  # F, unused in the dense form
        self._rank = 0  # columns of F after the last compression

    def project(self, H: Tensor) -> Tensor:
        """Return ``M H`` for H of shape (N, m)."""
        if self._matrix is not None:
            return self._matrix @ H
        return H - self._factor @ (self._factor.T @ H)

    def evaluate(self, H: Tensor, block_size: int) -> Candidates:
        """Evaluate candidate blocks together, without accepting one.

        With the matrices

            v = H_s^T E          gram  = H_s^T H_s
            u = (M H_s)^T E      w     = (M H_s)^T (M H_s)
            A = schur^-1 v       schur = alpha I + H_s^T M H_s

        the drops are, for every target column,

            drop_exact = 2 <u, A> - <A, w A>    drop_theorem = 2 <v, A> - <A, gram A>

        Parameters
        ----------
        H : Tensor of shape (N, B s)
            Activations of B blocks.
        block_size : int
            Units per block, s.
        """
        MH = self.project(H)
        shape = (-1, block_size, self.E.shape[1])
        v = (H.T @ self.E).view(shape)
        u = (MH.T @ self.E).view(shape)
        blocks = H.view(len(H), -1, block_size).transpose(0, 1)
        projected = MH.view(len(H), -1, block_size).transpose(0, 1)
        gram = blocks.mT @ blocks
        w = projected.mT @ projected
        schur = blocks.mT @ projected
        schur = (schur + schur.mT).mul_(0.5)
        schur.diagonal(dim1=1, dim2=2).add_(self.alpha)
        lower, info = torch.linalg.cholesky_ex(schur)
        # Two triangular solves: batched cholesky_solve is far slower on a GPU.
        gains = torch.linalg.solve_triangular(lower, v, upper=False)
        gains = torch.linalg.solve_triangular(lower.mT, gains, upper=True)
        exact = (2.0 * u - w @ gains).mul_(gains).sum(dim=1)
        theorem = (2.0 * v - gram @ gains).mul_(gains).sum(dim=1)
        valid = (info == 0) & torch.isfinite(exact).all(dim=1)
        return Candidates(exact, theorem, projected, gains, lower, valid)

    def absorb(self, projected: Tensor, lower: Tensor, gains: Tensor) -> None:
        """Append columns H_s to the regression. Changes E, its norms and M.

        Parameters
        ----------
        projected : Tensor of shape (N, s)
            ``M H_s``.
        lower : Tensor of shape (s, s)
            Cholesky factor of S.
        gains : Tensor of shape (s, C)
            ``A = S^-1 H_s^T E``.
        """
        half = torch.linalg.solve_triangular(lower, projected.T, upper=False)
        self.E = self.E - projected @ gains
        self.sq_norms = self.E.square().sum(dim=0)
        if self._matrix is not None:
            self._matrix.addmm_(half.T, half, alpha=-1.0)
            return
        self._factor = torch.cat([self._factor, half.T], dim=1)
        # Compress after eight blocks, and later whenever F is half as wide again.
        n_more = max(8 * len(half), self._rank // 2)
        if self._factor.shape[1] >= self._rank + n_more:
            values, vectors = symmetric_eigh(self._factor.T @ self._factor)
            kept = vectors[:, values > COMPRESSION_TOL]
            self._factor = self._factor @ kept
            self._rank = kept.shape[1]


def choose_residual_form(Z: Tensor, n_units: int, scale: float) -> str:
    """Return the cheaper form of M, in operations and memory.

    Affine units have at most rank d + 1. Otherwise every unit may add to the rank.

    Parameters
    ----------
    Z : Tensor of shape (N, d)
        Features.
    n_units : int
        Maximum width of the layer.
    scale : float
        Largest scale of the weights.

    Returns
    -------
    {"dense", "factored"}

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.guided import choose_residual_form
    >>> choose_residual_form(torch.ones(600, 768), n_units=15_000, scale=0.004)
    'dense'
    >>> choose_residual_form(torch.ones(9_000, 768), n_units=15_000, scale=0.004)
    'factored'
    """
    n_rows, n_features = Z.shape
    max_rank = min(n_rows, n_units)
    if scale * float(Z.square().sum(dim=1).mean().sqrt()) < _AFFINE_SPREAD:
        max_rank = min(max_rank, n_features + 1)
    return "dense" if n_rows <= _MAX_DENSE_RATIO * max_rank else "factored"


# -- random units ----------------------------------------------------------------------


def check_scales(scales: Scales) -> None:
    """Raise :class:`ParameterError` unless `scales` is a name or positive numbers."""
    values: list[float] = []
    if isinstance(scales, Iterable) and not isinstance(scales, str):
        values = list(scales)
    if not values:
        check_choice("scales (unless a sequence of numbers)", scales, ("paper", "auto"))
    if len(values) > MAX_SCALES:
        raise ParameterError(
            f"scales must be at most {MAX_SCALES} numbers, got {len(values)}"
        )
    for value in values:
        check_number("every scale", value, low=0.0, low_open=True)


class UnitSampler:
    """A reproducible source of random units ``(w, b)``.

    Numbers are drawn in rounds. Round r always gives the same numbers. Within a round,
    the first blocks do not depend on the number of blocks. Weights are drawn in float32
    on the CPU and then moved to the device.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Features of the first task, used by ``scales="auto"`` and ``bias="points"``.
    scales : "paper", "auto" or sequence of float
        Scales of the weights. ``"auto"`` draws a scale per unit so that the spread of
        pre-activations is log-uniform over `AUTO_SPREADS`.
    bias : {"gaussian", "points", "phases"}
        Distribution of the biases. ``"gaussian"``: ``b ~ N(0, scale^2)``, as in the
        paper. ``"points"``: ``b = -w . z_i`` for a random first-task sample, so that
        every unit bends near the data. ``"phases"``: uniform on [0, 2 pi), for cosine
        units.
    seed : int
        Seed of the random streams.
    purpose : str
        Name of the random streams.

    Attributes
    ----------
    scales : Tensor of shape (n_scales,)
        Scales in order of use. For ``"auto"`` one number, the geometric mean of the
        scales of the units.
    scale_range : Tensor of shape (2,) or None
        Bounds of the scales of the units for ``"auto"``, else None.
    """

    def __init__(
        self, Z: Tensor, scales: Scales, bias: str, seed: int, purpose: str
    ) -> None:
        self.Z = Z
        self.bias = bias
        self.seed = seed
        self.purpose = purpose
        self.scale_range: Tensor | None = None
        if not isinstance(scales, str):
            values = [float(value) for value in scales]
            self.scales = torch.tensor(values, dtype=torch.float64)
        elif scales == "paper":
            self.scales = torch.tensor(PAPER_SCALES, dtype=torch.float64)
        else:
            spreads = torch.tensor(AUTO_SPREADS, dtype=torch.float64)
            self.scale_range = spreads / centred_rms(Z)
            self.scales = self.scale_range.log().mean(dim=0, keepdim=True).exp()

    @property
    def largest_scale(self) -> float:
        """Largest scale of any unit."""
        bounds = self.scales if self.scale_range is None else self.scale_range
        return float(bounds.max())

    def draw_round(
        self, round_: int, n_blocks: int, block_size: int, scale_index: int
    ) -> tuple[Tensor, Tensor]:
        """Draw the units of a round.

        Parameters
        ----------
        round_ : int
            Number of the round, part of the names of its random streams.
        n_blocks : int
            Number of blocks.
        block_size : int
            Units per block.
        scale_index : int
            Index of the scale in `scales`, 0 for automatic scales.

        Returns
        -------
        weights : Tensor of shape (d, n_blocks block_size)
            Weights, float32.
        bias : Tensor of shape (n_blocks block_size,)
            Biases, float64.
        """
        device = self.Z.device
        count = n_blocks * block_size
        stream = generator(self.seed, self.purpose, round_)
        n_rows = self.Z.shape[1] + 1  # weights and a bias
        # Drawn block by block, so that a block does not depend on the later ones.
        blocks = [
            torch.randn(n_rows, block_size, generator=stream) for _ in range(n_blocks)
        ]
        moved = torch.stack(blocks).to(device, non_blocking=True)
        normals = moved.transpose(0, 1).reshape(n_rows, count)
        # A Python number needs no transfer to the device.
        scale: float | Tensor = float(self.scales[scale_index].to(torch.float32))
        if self.scale_range is not None:
            low, high = self.scale_range
            fraction = self._uniform(round_, "scales", count)
            scale = (low * (high / low) ** fraction).to(device, torch.float32)
        weights = normals[:-1] * scale
        if self.bias == "gaussian":
            return weights, (normals[-1] * scale).to(torch.float64)
        return weights, self._draw_biases(round_, weights)

    def _draw_biases(self, round_: int, weights: Tensor) -> Tensor:
        """Draw biases (count,) of the weights (d, count), as points or phases."""
        device = self.Z.device
        count = weights.shape[1]
        if self.bias == "phases":
            turns = self._uniform(round_, "phases", count)
            return (turns * (2.0 * math.pi)).to(device)
        stream = generator(self.seed, self.purpose, round_, "points")
        rows = torch.randint(len(self.Z), (count,), generator=stream)
        points = self.Z[rows.to(device)].to(torch.float64)
        return -(points * weights.T.to(torch.float64)).sum(dim=1)

    def draw_units(
        self, n_units: int, block_size: int, first_round: int = 0, n_scales: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Draw any number of units, one block per round.

        Parameters
        ----------
        n_units : int
            Number of units.
        block_size : int
            Units per round. The last block is cut.
        first_round : int, default=0
            Number of the first round.
        n_scales : int, default=1
            Number of scales, from the first one, to cycle through.

        Returns
        -------
        weights : Tensor of shape (d, n_units)
            Weights, float32.
        bias : Tensor of shape (n_units,)
            Biases, float64.
        """
        blocks = [
            self.draw_round(first_round + index, 1, block_size, index % n_scales)
            for index in range(math.ceil(n_units / block_size))
        ]
        weights, biases = zip(*blocks, strict=True)
        return (
            torch.cat(weights, dim=1)[:, :n_units].contiguous(),
            torch.cat(biases)[:n_units].contiguous(),
        )

    def _uniform(self, round_: int, name: str, count: int) -> Tensor:
        """Draw uniform numbers (count,) from a stream of a round."""
        stream = generator(self.seed, self.purpose, round_, name)
        return torch.rand(count, generator=stream, dtype=torch.float64)
