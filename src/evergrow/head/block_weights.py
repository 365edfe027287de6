"""Choose the weights of feature blocks by generalised cross-validation.

Blocks come from several depths and poolings of one pass through a backbone, and have
equal energy. The first task fixes one weight per block in front of the layer. The
weights used for predictions are chosen again as the statistics grow.

**Objective.** With centred total scatter T, centred cross products Q and one ridge per
block, ``L = diag(lambda_b)``,

    P   = (T + L)^-1        W = P Q
    RSS = |Y|^2 - <W, Q> - <W, L W>        df = tr(P T)
    GCV = N RSS / (N - 1 - df)^2

GCV falls if a block that does not help gets a larger ridge. With
``t_b = log lambda_b``, one factorisation gives the slopes for all blocks,

    dRSS / dt_b = 2 lambda_b <W, P L W>_b
    ddf / dt_b  = -lambda_b (tr P - tr P L P)_b

with the parts of the sums that belong to block b. Traces are estimated with the same
random signs throughout. A few factorisations therefore find the ridges of any number of
blocks. The search minimises

    N / 2 log GCV + sum_b (t_b - mean t)^2 / (2 PRIOR_SPREAD^2)

so ridges differ only if there are enough rows.

**Weights.** A ridge per block is equivalent to one common ridge after multiplying each
block by ``w_b ~ lambda_b^-1/2``. The weights are normalised so that the energy of all
columns together does not change.

**Few rows.** If there are no more rows than columns, RSS and N - 1 - df vanish with the
ridges but the error of estimated traces does not. Then ``T = R^T R`` with R (r x d) of
full rank, ``Q = R^T Z``, and exact traces follow from matrices of order r. With R_b the
columns of block b,

    K   = I + sum_b R_b R_b^T / lambda_b
    RSS = |Y|^2 - |Z|^2 + |K^-1 Z|^2        df = r - tr K^-1
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import InputError, NumericalError
from evergrow.core.seeding import generator
from evergrow.head.layers.feature_map import LARGEST_BLOCK_WEIGHT, FeatureBlocks
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh
from evergrow.head.ridge_model import RidgeModel

MAX_FIRST_WEIGHT = 4.0
"""Largest weight that the first task gives to a block. The smallest is its inverse.

A few classes are too little evidence to switch off a block permanently. The weights
used for predictions have wider bounds.
"""

MIN_CV_ROWS = 200
"""Number of rows from which block weights are chosen by cross-validation."""

PRIOR_SPREAD = 2.0
"""Prior standard deviation of the log ridges of blocks.

Values from 1 to 4 give the same accuracy on training rows.
"""

PROBES = 32
"""Number of random sign vectors that estimate traces."""

_START_RIDGE = 1.0
"""Common ridge at which the search starts, in units of a row's energy."""

_DECADE = math.log(10.0)

_MAX_DECADES = 5  # by which the start of a search is raised

_NEGLIGIBLE = 1.0
"""Differences of the objective (a log-likelihood) below this do not matter.

The search starts at the largest ridge that costs less than this per decade, and current
weights are kept unless others are better by more.
"""

_INVALID_PENALTY = 1e6
"""Added to the objective at the start, for ridges without a score."""

_MIN_GAIN = 0.02
"""The search stops if a step improves the objective by less."""

_MAX_EVALUATIONS = 8
"""Number of ridges evaluated, apart from the end of a line search.

The ridge of a block of pure noise has no optimum. Searches that start from current
weights get half as many.
"""


def first_blocks(
    Z: Tensor, codes: Tensor, sizes: Sequence[int] | None
) -> FeatureBlocks | None:
    """Choose the block weights that the first task fixes.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Normalised features of the first task.
    codes : Tensor of shape (n,)
        Class of each row.
    sizes : sequence of int or None
        Number of columns of each block. None means one block.

    Returns
    -------
    FeatureBlocks or None
        Sizes and weights, between 1 / :data:`MAX_FIRST_WEIGHT` and
        :data:`MAX_FIRST_WEIGHT`. None if there is only one block.

    Raises
    ------
    InputError
        If the sizes do not add up to d.
    """
    width = Z.shape[1]
    if sizes is not None and sum(sizes) != width:
        raise InputError(
            f"X must have {sum(sizes)} columns, the sum of the blocks {tuple(sizes)}, "
            f"got {width}"
        )
    if sizes is None or len(sizes) == 1:
        return None
    sizes = tuple(int(size) for size in sizes)
    rows = Z.to(torch.float64)
    targets = torch.nn.functional.one_hot(codes).to(rows)
    counts = targets.sum(dim=0)
    if len(rows) < MIN_CV_ROWS:
        weights = cautious_weights(len(sizes))
    elif 2 * len(rows) > width:
        weights = choose_block_weights(rows.T @ rows, rows.T @ targets, counts, sizes)
    else:
        identity = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        weights = choose_block_weights(identity, targets, counts, sizes, basis=rows.T)
    bounded = (
        min(max(weight, 1.0 / MAX_FIRST_WEIGHT), MAX_FIRST_WEIGHT) for weight in weights
    )
    return FeatureBlocks(sizes, tuple(bounded))


def choose_link_weights(
    model: RidgeModel, start: tuple[float, ...]
) -> tuple[float, ...]:
    """Choose the block weights of the direct link that predictions use.

    Parameters
    ----------
    model : RidgeModel
        The statistics.
    start : tuple of float
        Weights in use, where the search starts. Empty if it starts at the weights of
        the first batch.

    Returns
    -------
    tuple of float
        Factors on top of the weights of the first batch, ``model.blocks.weights``.
        Empty if there is a single block or no direct link.
    """
    link = model.layer.link_columns()
    blocks = model.blocks
    if blocks is None or link is None or len(blocks.sizes) < 2:
        return ()
    n_blocks = len(blocks.sizes)
    if float(model.masses.sum()) < MIN_CV_ROWS:
        wanted = zip(cautious_weights(n_blocks), blocks.weights, strict=True)
        return tuple(weight / given for weight, given in wanted)
    gram, cross, basis = model.state.part(link)
    start = start or (1.0,) * n_blocks
    return choose_block_weights(
        gram, cross, model.masses, blocks.sizes, blocks.weights, basis, start
    )


def cautious_weights(n_blocks: int) -> tuple[float, ...]:
    """Return the weights for little data: the first block weighs four times the others.

    The first block is the network's own feature vector. The mean square of the weights
    is one.

    Parameters
    ----------
    n_blocks : int
        Number of blocks.

    Examples
    --------
    >>> from evergrow.head.block_weights import cautious_weights
    >>> [round(weight, 2) for weight in cautious_weights(4)]
    [1.84, 0.46, 0.46, 0.46]
    """
    first = math.sqrt(n_blocks / (1.0 + (n_blocks - 1) / MAX_FIRST_WEIGHT**2))
    return (first, *[first / MAX_FIRST_WEIGHT] * (n_blocks - 1))


def choose_block_weights(
    gram: Tensor,
    cross: Tensor,
    counts: Tensor,
    sizes: Sequence[int],
    given: Sequence[float] | None = None,
    basis: Tensor | None = None,
    start: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Choose weights of blocks of columns from sums over rows.

    Parameters
    ----------
    gram : Tensor of shape (k, k)
        G, the sum of outer products of all rows.
    cross : Tensor of shape (k, C)
        Q, the sum of the rows of each class.
    counts : Tensor of shape (C,)
        Rows per class.
    sizes : sequence of int
        Number of columns of each block, d in total.
    given : sequence of float, optional
        Weights by which the columns were already multiplied. The returned weights come
        on top of them, and the prior applies to the product of both. By default ones.
    basis : Tensor of shape (d, k), optional
        V. The statistics of the columns are then ``V G V^T`` and ``V Q``. For rows X
        (n, d), pass ``X^T`` with the identity as G and one-hot targets as Q.
    start : sequence of float, optional
        Current weights. The search starts there, and they are returned unless others
        are clearly better. By default it starts where all blocks count equally.

    Returns
    -------
    tuple of float
        One weight per block. All 1 if there is one block or one class, if no class has
        two rows, if the rows are equal, or if no ridge has a score.

    Examples
    --------
    The second block is noise:

    >>> import torch
    >>> from evergrow.head.block_weights import choose_block_weights
    >>> rng = torch.Generator().manual_seed(0)
    >>> H = torch.randn(300, 12, generator=rng, dtype=torch.float64)
    >>> codes = torch.arange(300) % 3
    >>> H[torch.arange(300), codes] += 1.0
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> useful, noise = choose_block_weights(H.T @ H, H.T @ Y, Y.sum(dim=0), (6, 6))
    >>> useful > 2 * noise
    True
    """
    equal = tuple(1.0 for _ in sizes)
    counts = counts.to(gram)
    rows = float(counts.sum())
    n_classes = int((counts > 0).sum())
    if len(sizes) < 2 or n_classes < 2 or rows - n_classes < 1.0:
        return equal
    mean = cross.sum(dim=1) / rows
    scatter = gram - rows * torch.outer(mean, mean)
    centred_cross = cross - torch.outer(mean, counts)
    search = _make_search(scatter, centred_cross, counts, sizes, given, basis)
    if basis is not None:
        mean = basis @ mean
    energy = float(search.energies.sum())
    # Up to rounding, all rows are equal.
    if not energy > 1e-10 * (energy + rows * float(mean.square().sum())):
        return equal
    if start is None:
        begin = search.neutral
    else:
        # A block that is switched off has no slope, so start within narrower bounds.
        current = -2.0 * torch.tensor(start, dtype=torch.float64).log()
        limit = 2.0 * math.log(MAX_FIRST_WEIGHT)
        apart = current - search.neutral
        begin = search.neutral + (apart - apart.mean()).clamp(-limit, limit)
    row_energy = float((search.energies / begin.exp()).sum()) / rows
    log_ridges, value = search.minimum(
        math.log(_START_RIDGE * row_energy) + begin, is_near=start is not None
    )
    if log_ridges is None:
        return equal
    if start is not None:
        # Compare at the same mean ridge, which is chosen separately.
        same_mean = current + (log_ridges - current).mean()
        if search.objective(same_mean)[0] < value + _NEGLIGIBLE:
            return tuple(start)
    return _weights_from_ridges(log_ridges, search.energies)


def _make_search(
    scatter: Tensor,
    cross: Tensor,
    counts: Tensor,
    sizes: Sequence[int],
    given: Sequence[float] | None,
    basis: Tensor | None,
) -> _WeightSearch:
    """Return the search for centred statistics that factors the smaller matrices.

    The exact search is also needed if there are no more rows than columns.
    """
    is_narrow = basis is not None and 2 * basis.shape[1] <= len(basis)
    if float(counts.sum()) <= sum(sizes) or is_narrow:
        return _ExactSearch(scatter, cross, basis, counts, sizes, given)
    if basis is not None:
        scatter = basis @ scatter @ basis.T
        cross = basis @ cross
    return _EstimatedSearch(scatter, cross, counts, sizes, given)


def _weights_from_ridges(log_ridges: Tensor, energies: Tensor) -> tuple[float, ...]:
    """Return weights ``w_b ~ lambda_b^-1/2`` that keep the total energy.

    Parameters
    ----------
    log_ridges : Tensor of shape (B,)
        Logarithms of the ridges.
    energies : Tensor of shape (B,)
        Energy of each block.
    """
    limit = 0.5 * math.log(LARGEST_BLOCK_WEIGHT)
    weights = (-0.5 * (log_ridges - log_ridges.mean())).clamp(-limit, limit).exp()
    weighted_energy = float((weights.square() * energies).sum())
    if weighted_energy > 0.0:
        weights = weights * math.sqrt(float(energies.sum()) / weighted_energy)
    low = 1.0 / LARGEST_BLOCK_WEIGHT
    return tuple(weights.clamp(low, LARGEST_BLOCK_WEIGHT).tolist())


class _WeightSearch(ABC):
    """Minimise the objective over the log ridges of B blocks.

    Parameters
    ----------
    column_energies : Tensor of shape (d,)
        Energy of every column.
    counts : Tensor of shape (C,)
        Rows per class.
    sizes : sequence of int
        Number of columns of each block.
    given : sequence of float or None
        Weights by which the blocks were multiplied before.

    Attributes
    ----------
    rows : float
        N.
    target_energy : float
        ``|Y|^2`` of centred targets.
    block_of_column : Tensor of shape (d,)
        Index of the block of every column.
    energies : Tensor of shape (B,)
        Energy of every block.
    neutral : Tensor of shape (B,)
        Log ridges that undo the given weights, so that all blocks count equally.
    """

    def __init__(
        self,
        column_energies: Tensor,
        counts: Tensor,
        sizes: Sequence[int],
        given: Sequence[float] | None,
    ) -> None:
        self.sizes = list(sizes)
        self.rows = float(counts.sum())
        self.target_energy = self.rows - float(counts.square().sum()) / self.rows
        block_of_column = torch.repeat_interleave(torch.tensor(self.sizes))
        self.block_of_column = block_of_column.to(column_energies.device)
        self.energies = self._sum_by_block(column_energies)
        weights = torch.tensor(list(given or [1.0] * len(sizes)), dtype=torch.float64)
        self.neutral = 2.0 * weights.log()

    def _sum_by_block(self, values: Tensor) -> Tensor:
        """Sum values (d,) over the columns of each block, giving (B,) on the CPU."""
        sums = values.new_zeros(len(self.sizes))
        return sums.index_add_(0, self.block_of_column, values).cpu()

    def minimum(
        self, log_ridges: Tensor, *, is_near: bool = False
    ) -> tuple[Tensor | None, float]:
        """Minimise the objective with a few evaluations of it.

        Parameters
        ----------
        log_ridges : Tensor of shape (B,)
            Where to start.
        is_near : bool, default=False
            Use half as many evaluations, because the minimum is near the start.

        Returns
        -------
        log_ridges : Tensor of shape (B,) or None
            The best log ridges. None if the start has no score.
        value : float
            The objective there.
        """
        log_ridges, value, slopes = self._raise_start(log_ridges)
        if not math.isfinite(value):
            return None, value
        # In units of PRIOR_SPREAD, so that the first step has this length.
        start = log_ridges.numpy() / PRIOR_SPREAD
        start_value = (value, PRIOR_SPREAD * slopes.numpy())

        def objective(
            point: NDArray[np.float64],
        ) -> tuple[float, NDArray[np.float64]]:
            if np.array_equal(point, start):  # evaluated already
                return start_value
            found, gradient = self.objective(torch.from_numpy(PRIOR_SPREAD * point))
            if not math.isfinite(found):  # line searches turn back here
                found = value + _INVALID_PENALTY
            return found, PRIOR_SPREAD * gradient.numpy()

        from scipy import optimize  # importing it is slower than most searches

        options = {
            "ftol": _MIN_GAIN / max(abs(value), 1.0),
            "gtol": _MIN_GAIN,
            "maxfun": _MAX_EVALUATIONS // 2 if is_near else _MAX_EVALUATIONS,
        }
        result = optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", options=options
        )
        return torch.from_numpy(PRIOR_SPREAD * result.x), float(result.fun)

    def _raise_start(self, log_ridges: Tensor) -> tuple[Tensor, float, Tensor]:
        """Raise all ridges by up to five decades, as long as this costs nothing.

        If there are many rows, small ridges change nothing, and slopes do not show
        which blocks are useless. A start without a score is raised, too.

        Returns
        -------
        log_ridges : Tensor of shape (B,)
            The raised ridges.
        value : float
            The objective there.
        slopes : Tensor of shape (B,)
            Its gradient.
        """
        value, slopes = self.objective(log_ridges)
        for _ in range(_MAX_DECADES):
            raised_value, raised_slopes = self.objective(log_ridges + _DECADE)
            if math.isfinite(value) and not raised_value < value + _NEGLIGIBLE:
                break
            log_ridges = log_ridges + _DECADE
            value = raised_value
            slopes = raised_slopes
        return log_ridges, value, slopes

    def objective(self, log_ridges: Tensor) -> tuple[float, Tensor]:
        """Return the objective and its gradient (B,)."""
        score, slopes = self.log_gcv(log_ridges)
        apart = log_ridges - self.neutral
        apart = apart - apart.mean()
        penalty = float(apart.square().sum()) / (2.0 * PRIOR_SPREAD**2)
        gradient = 0.5 * self.rows * slopes + apart / PRIOR_SPREAD**2
        return 0.5 * self.rows * score + penalty, gradient

    def log_gcv(self, log_ridges: Tensor) -> tuple[float, Tensor]:
        """Return ``log GCV`` and its gradient (B,).

        Without a score it is infinity with a gradient of zeros: if the matrix cannot be
        factored, or the fit is so good that only rounding errors are left.
        """
        no_score = math.inf, torch.zeros_like(log_ridges)
        try:
            rss, slack, rss_slopes, slack_slopes = self.residual(log_ridges)
        except NumericalError:
            return no_score
        is_perfect = rss <= 1e-10 * self.target_energy
        if is_perfect or slack <= 1e-6 * self.rows:
            return no_score
        score = math.log(self.rows * rss / slack**2)
        return score, rss_slopes / rss - 2.0 * slack_slopes / slack

    @abstractmethod
    def residual(self, log_ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        """Return RSS, ``N - 1 - df``, and the gradients (B,) of both, on the CPU.

        Raises
        ------
        NumericalError
            If the matrix cannot be factored.
        """


class _EstimatedSearch(_WeightSearch):
    """Search with a factorisation of ``T + L`` and estimated traces.

    Parameters
    ----------
    scatter : Tensor of shape (d, d)
        T.
    cross : Tensor of shape (d, C)
        Q.
    *others
        All arguments of :class:`_WeightSearch` but the first.

    Attributes
    ----------
    signs : Tensor of shape (d, PROBES)
        Random signs s. For a matrix M, the mean of ``s * (M s)`` over the columns
        estimates the diagonal of M.
    """

    def __init__(self, scatter: Tensor, cross: Tensor, *others: Any) -> None:
        super().__init__(scatter.diagonal().clamp_min(0.0), *others)
        self.scatter = scatter
        self.cross = cross
        width = len(scatter)
        source = generator(0, "block weights", width)
        bits = torch.randint(0, 2, (width, PROBES), generator=source)
        self.signs = bits.to(scatter).mul_(2.0).sub_(1.0)

    def residual(self, log_ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        ridge = log_ridges.to(self.scatter).exp()[self.block_of_column]
        matrix = self.scatter.clone()
        matrix.diagonal().add_(ridge)
        factor = safe_cholesky(matrix)
        rhs = torch.cat([self.cross, self.signs, ridge[:, None] * self.signs], dim=1)
        weights, probes, weighted = torch.split(
            factor.solve(rhs), [self.cross.shape[1], PROBES, PROBES], dim=1
        )
        # Estimated diagonals of L P and L P L P.
        diagonal_lp = ridge * (self.signs * probes).sum(dim=1) / PROBES
        diagonal_lplp = ridge * (probes * weighted).sum(dim=1) / PROBES
        ridge_weights = ridge[:, None] * weights
        rss = (
            self.target_energy
            - float((weights * self.cross).sum())
            - float((weights * ridge_weights).sum())
        )
        slack = self.rows - 1.0 - len(diagonal_lp) + float(diagonal_lp.sum())
        rss_columns = ridge * (weights * factor.solve(ridge_weights)).sum(dim=1)
        rss_slopes = 2.0 * self._sum_by_block(rss_columns)
        return rss, slack, rss_slopes, self._sum_by_block(diagonal_lp - diagonal_lplp)


class _ExactSearch(_WeightSearch):
    """Search with matrices of order r, the rank of the scatter, and exact traces.

    Parameters
    ----------
    gram : Tensor of shape (k, k)
        T, or G with ``T = V G V^T``.
    cross : Tensor of shape (k, C)
        Q, or its coordinates in V.
    basis : Tensor of shape (d, k) or None
        V. None means the identity.
    *others
        All arguments of :class:`_WeightSearch` but the first.

    Attributes
    ----------
    inner : list of Tensor of shape (r, r)
        ``R_b R_b^T`` of every block.
    targets_seen : Tensor of shape (r, C)
        Z, the targets in the span of the rows.
    unexplained : float
        ``|Y|^2 - |Z|^2``.
    """

    def __init__(
        self, gram: Tensor, cross: Tensor, basis: Tensor | None, *others: Any
    ) -> None:
        values, vectors = symmetric_eigh(gram)
        kept = values > 1e-12 * values[-1].clamp_min(0.0)  # others are rounding errors
        lengths = values[kept].sqrt()
        vectors = vectors[:, kept]
        directions = vectors.T if basis is None else vectors.T @ basis.T
        root = lengths[:, None] * directions
        super().__init__(root.square().sum(dim=0), *others)
        self.inner = [part @ part.T for part in torch.split(root, self.sizes, dim=1)]
        self.targets_seen = (vectors.T @ cross) / lengths[:, None]
        seen_energy = float(self.targets_seen.square().sum())
        self.unexplained = max(self.target_energy - seen_energy, 0.0)

    def residual(self, log_ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        inverse_ridges = (-log_ridges).exp()
        matrix = torch.zeros_like(self.inner[0])
        for factor, part in zip(inverse_ridges.tolist(), self.inner, strict=True):
            matrix.add_(part, alpha=factor)
        inverse = torch.cholesky_inverse(safe_cholesky(matrix, shift=1.0).lower)
        left = inverse @ self.targets_seen
        again = inverse @ left
        squared = inverse @ inverse
        rss = self.unexplained + float(left.square().sum())
        slack = self.rows - 1.0 - len(inverse) + float(inverse.diagonal().sum())
        rss_slopes = torch.stack(
            [2.0 * (again * (part @ left)).sum() for part in self.inner]
        )
        slack_slopes = torch.stack([(squared * part).sum() for part in self.inner])
        return (
            rss,
            slack,
            inverse_ridges * rss_slopes.cpu(),
            inverse_ridges * slack_slopes.cpu(),
        )
