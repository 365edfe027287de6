"""Weights of blocks of columns: fixed by the first task, and chosen again from statistics alone.

Blocks come from several depths and poolings of one pass through a backbone, each of
equal energy. The first task fixes a weight of each before the layer; how much each
counts in answers is chosen again as the statistics grow.

Columns in blocks b, centred total scatter T, centred cross products Q and a ridge per
block, ``L = diag(lambda_b)``:

    P = (T + L)^-1        W = P Q        RSS = |Y|^2 - <W, Q> - <W, L W>        df =
    tr(P T)

Generalised cross-validation ``N RSS / (N - 1 - df)^2`` falls where a block that does
not help is given a larger ridge. With ``t_b = log lambda_b`` its slopes for all blocks
follow from one factorisation,

    dRSS / dt_b = 2 lambda_b <W, P L W>_b        ddf / dt_b = -lambda_b (tr P - tr P L
    P)_b

(parts of the sums that belong to b; traces are estimated with the same random signs
throughout), so that a handful of factorisations finds the best ridges of any number of
blocks. Half the rows times the logarithm of the score counts like a log-likelihood, and
ridges that differ between blocks pay ``sum (t_b - mean)^2 / (2 SPREAD^2)``: few rows
say little.

Solving with a ridge per block is solving with one ridge after column j was multiplied
by its block's weight ``w_b ~ lambda_b^-1/2``; weights are returned so that the energy
of all columns together stays what it was.

Where there are no more rows than columns, estimated traces mislead: as ridges vanish so
do RSS and N - 1 - df, but not the error of an estimate. There T = R^T R with R (r, d)
of full rank, Q = R^T Z, and matrices of order r say the same exactly, with R_b the
columns of a block:

    K = I + sum_b R_b R_b^T / lambda_b        RSS = |Y|^2 - |Z|^2 + |K^-1 Z|^2        df
    = r - tr K^-1
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

MOST_OF_FIRST = 4.0
"""Largest weight that a first task gives to a block, and inverse of the smallest: a few classes are no evidence for
switching off for ever what all units are made of. In answers a block may count for
less, and come back."""

ENOUGH_ROWS = 200
"""Rows from which on cross-validation is trusted with the weights of blocks."""

SPREAD = 2.0
"""How far, in natural logarithms, the ridges of blocks may be expected to lie apart before anything is seen. Chosen on
training rows of birds and intents: 1 to 4 do alike."""

PROBES = 32

_START = 1.0
"""Common ridge at which the search begins, in units of a row's energy."""

_DECADE = math.log(10.0)

_FREE = 1.0
"""What a ten times larger ridge may cost, as a log-likelihood, to be where the search begins, and what weights in use
may cost against others to stay."""

_NO_SCORE = 1e6
"""What stands for the score of ridges that have none, above that of the start."""

_ENOUGH = 0.02
"""Gain of a step, as a log-likelihood, below which the search ends."""

_MOST_TRIED = 8
"""Ridges that are tried, but for those that end a line search: where a block is mere noise its ridge has no best. From
weights in use, half as many."""


def first_blocks(
    Z: Tensor, codes: Tensor, sizes: Sequence[int] | None
) -> FeatureBlocks | None:
    """Return the blocks with the weights that a first task fixes; None where there is one block only.

    Parameters
    ----------
    Z : Tensor of shape (n, d)
        Its rows.
    codes : Tensor of shape (n,)
        Their classes.
    sizes : sequence of int or None
        Columns of each block; None takes all as one.

    Raises
    ------
    InputError
        If the blocks do not add up to the columns.
    """
    width = Z.shape[1]
    if sizes is not None and sum(sizes) != width:
        raise InputError(
            f"X must have {sum(sizes)} columns, the sum of the blocks {tuple(sizes)}, got {width}: blocks must add up"
        )
    if sizes is None or len(sizes) == 1:
        return None
    sizes = tuple(int(size) for size in sizes)
    rows = Z.to(torch.float64)
    targets = torch.nn.functional.one_hot(codes).to(rows)
    if len(rows) < ENOUGH_ROWS:
        found = cautious_weights(len(sizes))
    elif 2 * len(rows) > width:
        found = choose_block_weights(
            rows.T @ rows, rows.T @ targets, targets.sum(dim=0), sizes
        )
    else:
        one = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        found = choose_block_weights(
            one, targets, targets.sum(dim=0), sizes, basis=rows.T
        )
    return FeatureBlocks(
        sizes,
        tuple(min(max(weight, 1.0 / MOST_OF_FIRST), MOST_OF_FIRST) for weight in found),
    )


def cautious_weights(blocks: int) -> tuple[float, ...]:
    """Return weights for blocks of which too little is known: the first, a network's own vector, counts most.

    Examples
    --------
    >>> from evergrow.head.block_weights import cautious_weights
    >>> [round(weight, 2) for weight in cautious_weights(4)]
    [1.84, 0.46, 0.46, 0.46]
    """
    first = math.sqrt(blocks / (1.0 + (blocks - 1) / MOST_OF_FIRST**2))
    return (first, *(first / MOST_OF_FIRST for _ in range(blocks - 1)))


def choose_block_weights(
    gram: Tensor,
    cross: Tensor,
    counts: Tensor,
    blocks: Sequence[int],
    given: Sequence[float] | None = None,
    basis: Tensor | None = None,
    start: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """Choose the weights of blocks of columns.

    Parameters
    ----------
    gram : Tensor of shape (k, k)
        Sums of products of columns over all rows, G.
    cross : Tensor of shape (k, C)
        Sums of rows per class, Q.
    counts : Tensor of shape (C,)
        Rows per class.
    blocks : sequence of int
        Columns of each block; they add up to d.
    given : sequence of float, optional
        Weights that the columns of each block were multiplied by before; those returned
        come on top of them, and it is both together that should not be far apart.
    basis : Tensor of shape (d, k), optional
        V, where the sums over columns are ``V G V^T`` and ``V Q``; without it they are
        G and Q. The columns of V can also be the rows themselves, with the identity for
        G and one-hot targets for Q.
    start : sequence of float, optional
        Weights in use, where the search begins and which stay where others are hardly
        better. By default it begins where all blocks count alike, whatever they were
        multiplied by.

    Examples
    --------
    The second block is noise:

    >>> import torch
    >>> from evergrow.head.block_weights import choose_block_weights
    >>> H = torch.randn(300, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> codes = torch.arange(300) % 3
    >>> H[torch.arange(300), codes] += 1.0
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> useful, noise = choose_block_weights(H.T @ H, H.T @ Y, Y.sum(dim=0), (6, 6))
    >>> useful > 2 * noise
    True
    """
    even = tuple(1.0 for _ in blocks)
    counts = counts.to(gram)
    rows = float(counts.sum())
    classes = int((counts > 0).sum())
    if len(blocks) < 2 or classes < 2 or rows - classes < 1.0:
        return even
    mean = cross.sum(dim=1) / rows
    gram = gram - rows * torch.outer(mean, mean)
    cross = cross - torch.outer(mean, counts)
    mean = mean if basis is None else basis @ mean
    search: _WeightSearch
    if rows <= sum(blocks) or (basis is not None and 2 * basis.shape[1] <= len(basis)):
        search = _ThinSearch(gram, cross, basis, counts, blocks, given)
    else:
        if basis is not None:
            gram = basis @ gram @ basis.T
            cross = basis @ cross
        search = _DenseSearch(gram, cross, counts, blocks, given)
    energy = float(search.energies.sum())
    if not energy > 1e-10 * (energy + rows * float(mean.square().sum())):
        return even
    # Equal weights, by the logarithms of their ridges, or those in use: but a block
    # that is all but switched off has no slope that would lead back.
    begin = search.given
    limit = 2.0 * math.log(MOST_OF_FIRST)
    if start is not None:
        used = -2.0 * torch.tensor(start, dtype=torch.float64).log()
        apart = used - search.given
        begin = search.given + (apart - apart.mean()).clamp(-limit, limit)
    plain = float((search.energies / begin.exp()).sum()) / rows
    ridges, score = search.minimum(
        math.log(_START * plain) + begin, is_near=start is not None
    )
    if ridges is None:
        return even
    if (
        start is not None
        and search._judge(used + (ridges - used).mean())[0] < score + _FREE
    ):
        return tuple(start)
    limit = 0.5 * math.log(LARGEST_BLOCK_WEIGHT)
    weights = (-0.5 * (ridges - ridges.mean())).clamp(-limit, limit).exp()
    kept = float((weights.square() * search.energies).sum())
    if kept > 0.0:
        weights = weights * math.sqrt(energy / kept)
    else:
        weights = weights
    return tuple(
        weights.clamp(1.0 / LARGEST_BLOCK_WEIGHT, LARGEST_BLOCK_WEIGHT).tolist()
    )


class _WeightSearch(ABC):
    """Descends on the penalised score of cross-validation.

    Parameters
    ----------
    columns : Tensor of shape (d,)
        Energy of every column.
    counts : Tensor of shape (C,)
        Rows per class.
    blocks : sequence of int
        Columns of each block.
    given : sequence of float or None
        Weights of blocks before.
    """

    def __init__(
        self,
        columns: Tensor,
        counts: Tensor,
        blocks: Sequence[int],
        given: Sequence[float] | None,
    ) -> None:
        self.blocks = list(blocks)
        self.rows = float(counts.sum())
        self.targets = self.rows - float(counts.square().sum()) / self.rows
        self.owner = torch.repeat_interleave(
            torch.arange(len(blocks)), torch.tensor(self.blocks)
        ).to(columns.device)
        self.energies = self._by_block(columns)
        # Columns w x with a ridge are columns x with a ridge that is w^2 times smaller.
        self.given = (
            2.0
            * torch.tensor(
                list(given or [1.0] * len(blocks)), dtype=torch.float64
            ).log()
        )

    def _by_block(self, values: Tensor) -> Tensor:
        """Return the sum of values (d,) over the columns of each block, on the CPU."""
        return (
            values.new_zeros(len(self.blocks)).index_add_(0, self.owner, values).cpu()
        )

    def minimum(
        self, ridges: Tensor, *, is_near: bool = False
    ) -> tuple[Tensor | None, float]:
        """Return the best logarithms of ridges and their score, or None where no ridge can be judged."""
        value, slopes = self._judge(ridges)
        for _ in range(5):
            # Where rows are many a small ridge changes nothing, and no slope shows
            # which block would do without.
            more, above = self._judge(ridges + _DECADE)
            if math.isfinite(value) and not more < value + _FREE:
                break
            ridges = ridges + _DECADE
            value = more
            slopes = above
        if not math.isfinite(value):
            return None, value
        # In units of SPREAD, so that the first step is that long: a third fewer steps
        # than in units of one.
        start = ridges.numpy() / SPREAD
        known = (value, SPREAD * slopes.numpy())

        def judge(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            if np.array_equal(point, start):
                return known
            found, bent = self._judge(torch.from_numpy(SPREAD * point))
            # A line search goes back from where there is no score.
            return (
                found if math.isfinite(found) else value + _NO_SCORE
            ), SPREAD * bent.numpy()

        most = _MOST_TRIED // 2 if is_near else _MOST_TRIED
        enough = {
            "ftol": _ENOUGH / max(abs(value), 1.0),
            "gtol": _ENOUGH,
            "maxfun": most,
        }
        from scipy import optimize  # takes longer to import than most choices take

        found = optimize.minimize(
            judge, start, jac=True, method="L-BFGS-B", options=enough
        )
        return torch.from_numpy(SPREAD * found.x), float(found.fun)

    def _judge(self, ridges: Tensor) -> tuple[float, Tensor]:
        """Return the penalised score and its slopes."""
        score, slopes = self._score(ridges)
        apart = ridges - self.given
        apart = apart - apart.mean()
        value = 0.5 * self.rows * score + float(apart.square().sum()) / (
            2.0 * SPREAD**2
        )
        return value, 0.5 * self.rows * slopes + apart / SPREAD**2

    def _score(self, ridges: Tensor) -> tuple[float, Tensor]:
        """Return the logarithm of generalised cross-validation and its slopes."""
        try:
            rss, slack, rss_slopes, slack_slopes = self._parts(ridges)
        except NumericalError:
            return math.inf, torch.zeros_like(ridges)
        # Both are differences of nearly equal numbers where the fit is nearly perfect:
        # there, rather no score.
        if rss <= 1e-10 * self.targets or slack <= 1e-6 * self.rows:
            return math.inf, torch.zeros_like(ridges)
        return math.log(
            self.rows * rss / slack**2
        ), rss_slopes / rss - 2.0 * slack_slopes / slack

    @abstractmethod
    def _parts(self, ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        """Return RSS and ``N - 1 - df`` for logarithms of ridges, and the slopes of both, on the CPU."""


class _DenseSearch(_WeightSearch):
    """From a total scatter (d, d) and cross products (d, C)."""

    def __init__(self, total: Tensor, cross: Tensor, *others: Any) -> None:
        super().__init__(total.diagonal().clamp_min(0.0), *others)
        self.total = total
        self.cross = cross
        signs = torch.randint(
            0,
            2,
            (len(total), PROBES),
            generator=generator(0, "block weights", len(total)),
        )
        self.signs = signs.to(total).mul_(2.0).sub_(1.0)

    def _parts(self, ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        ridge = ridges.to(self.total).exp()[self.owner]
        matrix = self.total.clone()
        matrix.diagonal().add_(ridge)
        factor = safe_cholesky(matrix)
        solved = factor.solve(
            torch.cat([self.cross, self.signs, ridge[:, None] * self.signs], dim=1)
        )
        weights, probes, weighted = torch.split(
            solved, [self.cross.shape[1], PROBES, PROBES], dim=1
        )
        # The diagonals of L P and L P L P.
        kept = ridge * (self.signs * probes).sum(dim=1) / PROBES
        shrinking = ridge * (probes * weighted).sum(dim=1) / PROBES
        shrunk = ridge[:, None] * weights
        rss = (
            self.targets
            - float((weights * self.cross).sum())
            - float((weights * shrunk).sum())
        )
        slack = self.rows - 1.0 - len(kept) + float(kept.sum())
        rss_slopes = 2.0 * self._by_block(
            ridge * (weights * factor.solve(shrunk)).sum(dim=1)
        )
        return rss, slack, rss_slopes, self._by_block(kept - shrinking)


class _ThinSearch(_WeightSearch):
    """From a total scatter ``V G V^T`` of few rows and cross products ``V Q``; without V they are G and Q."""

    def __init__(
        self, gram: Tensor, cross: Tensor, basis: Tensor | None, *others: Any
    ) -> None:
        values, vectors = symmetric_eigh(gram)
        kept = values > 1e-12 * values[-1].clamp_min(0.0)
        lengths = values[kept].sqrt()
        vectors = vectors[:, kept]
        root = lengths[:, None] * (vectors.T if basis is None else vectors.T @ basis.T)
        super().__init__(root.square().sum(dim=0), *others)
        self.inner = [part @ part.T for part in torch.split(root, self.blocks, dim=1)]
        self.seen = (vectors.T @ cross) / lengths[:, None]
        self.rest = max(self.targets - float(self.seen.square().sum()), 0.0)

    def _parts(self, ridges: Tensor) -> tuple[float, float, Tensor, Tensor]:
        shares = (-ridges).exp()
        matrix = torch.zeros_like(self.inner[0])
        for share, part in zip(shares.tolist(), self.inner, strict=True):
            matrix.add_(part, alpha=share)
        inverse = torch.cholesky_inverse(safe_cholesky(matrix, shift=1.0).lower)
        left = inverse @ self.seen
        again = inverse @ left
        squared = inverse @ inverse
        rss = self.rest + float(left.square().sum())
        slack = self.rows - 1.0 - len(inverse) + float(inverse.diagonal().sum())
        rss_slopes = torch.stack(
            [2.0 * (again * (part @ left)).sum() for part in self.inner]
        )
        slack_slopes = torch.stack([(squared * part).sum() for part in self.inner])
        return rss, slack, shares * rss_slopes.cpu(), shares * slack_slopes.cpu()
