"""Five terms of novelty, computed from class means and the scatter within classes.

Let ``A = S_w + alpha I`` be the regularised scatter within classes, f its degrees of
freedom, m_c the mean of the n_c rows of class c, and m the mean of all rows. For a row
h, with lengths measured in A^-1, let

    a = f |h - m|^2
    z_c = f (h - m)^T A^-1 (m_c - m)
    K_cd = f (m_c - m)^T A^-1 (m_d - m)
    e = z^T K^-1 z

e is the part of a in the span of the class means. The terms are

- relative Mahalanobis: distance to the nearest class over ``1 + 1 / n_c``, minus the
  distance to all classes taken as one;
- whitened cosine: minus the largest ``z_c / sqrt(a K_cc)``;
- span cosine: minus the largest ``z_c / sqrt(e K_cc)``;
- span distance: the smallest ``(e - 2 z_c + K_cc) / (1 + 1 / n_c)``;
- rest: ``a - e``, divided by its expectation for a new row of a known class.

With a single class, the first term is the plain distance, and the three terms in the
span are zero. Methods that return terms add a sixth column, ``1 / n_c`` of the nearest
class c.

If there are at most as many classes as coordinates, K and ``K + f N^-1`` are factored
(N: diagonal matrix of the counts). K is singular, because the centred means, weighted
by the counts, add up to zero. Products with K are therefore taken in an orthonormal
basis Q, (C, C - 1), of the vectors orthogonal to the counts. With more classes, the
means span all coordinates, and no C x C matrix is needed: with
``B = sum n_c (m_c - m)(m_c - m)^T``,

    z^T (K + f N^-1)^-1 z = f (h - m)^T (A^-1 - (A + B)^-1) (h - m)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.seeding import generator
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.scatter import SolvedScatter, mean_spread

_CHUNK_ROWS = 256  # rows of a (k, C) matrix that are multiplied at once

_LEAST_DRAWN = 256
"""Fewest rows drawn from the statistics."""

_MOST_DRAWN = 2048
"""Most rows drawn. Their means and deviations are units of the terms. With 256 rows and
a class far from all others, thresholds differed by up to 3 % of the known samples."""

_DRAWN_PRODUCTS = 2**18
"""With many classes, fewer rows are drawn: this number divided by that of classes."""

_SHIFT = 1e-8
"""Added to the diagonal of singular matrices before they are factored, relative to its
mean."""

_LEAST_REST = 0.05
"""Smallest energy outside the span of the class means, relative to all of it."""

_REST_SPREAD = 0.3
"""Standard deviation of the rest of known rows, relative to its expectation. Used if no
row was ever held out."""


@dataclass(frozen=True, eq=False)
class NoveltyTerms:
    """Matrices from which the terms of any row are computed.

    Parameters
    ----------
    scatter : SolvedScatter
        Class means, solved against the scatter within classes.
    centre : Tensor of shape (k,)
        Mean of all rows, m.
    solved : Tensor of shape (k, C)
        ``A^-1 m_c``.
    energies : Tensor of shape (C,)
        Diagonal of K.
    span : CholeskyFactor or None
        Factor of ``Q^T K Q``. None if there are more classes than coordinates.
    total : CholeskyFactor
        Factor of ``K + f N^-1``, or of ``A + B`` if there are more classes than
        coordinates.
    expected_energy : float
        Expected energy of a new row of a known class.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.novelty.terms import NoveltyTerms
    >>> from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> rng = torch.Generator().manual_seed(0)
    >>> H = torch.randn(60, 4, generator=rng, dtype=torch.float64)
    >>> codes = torch.arange(60) % 3
    >>> H[torch.arange(60), codes] += 9.0
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(4, 3).update(H, Y)
    >>> geometry = ClassGeometry.of(stats, Y.sum(dim=0))
    >>> scatter = SolvedScatter.of(geometry, alpha=0.1)
    >>> terms = NoveltyTerms.of(scatter, lambda: stats.gram)
    >>> known = terms.of_rows(H).mean(dim=0)
    >>> new = terms.of_rows(H.flip(1))[codes == 0].mean(dim=0)
    >>> bool((new > known)[:5].all())
    True
    """

    scatter: SolvedScatter
    centre: Tensor
    solved: Tensor
    energies: Tensor
    span: CholeskyFactor | None
    total: CholeskyFactor
    expected_energy: float

    @classmethod
    def of(cls, scatter: SolvedScatter, gram: Callable[[], Tensor]) -> NoveltyTerms:
        """Prepare the terms. Factors a C x C matrix, or k x k if k < C.

        Parameters
        ----------
        scatter : SolvedScatter
            Class means, solved against the scatter within classes.
        gram : callable
            Returns the sum of h h^T over all rows, (k, k). Called only if k < C.
        """
        counts = scatter.counts
        freedom = scatter.freedom
        fractions = counts / counts.sum()
        centre = scatter.means @ fractions
        solved = scatter.solve_means()
        common = solved @ fractions  # A^-1 m
        # The diagonal of K, from products of means that are not centred.
        energies = _column_products(scatter.means, solved)
        energies = energies - common @ scatter.means - centre @ solved
        energies = (freedom * (energies + centre @ common)).clamp_min(1e-12)
        span: CholeskyFactor | None = None
        if len(counts) <= len(centre):
            centred = scatter.means - centre[:, None]
            metric = freedom * centred.T @ (solved - common[:, None])
            metric = 0.5 * (metric + metric.T)
            # The shift only matters if means of classes coincide.
            within = _without_counts(_without_counts(metric, counts).T, counts)
            span = safe_cholesky(within, shift=_SHIFT * float(energies.mean()))
            total = safe_cholesky(metric + torch.diag(freedom / counts))
        else:
            # A + B is the Gram matrix about the mean of all rows, plus the ridge.
            root = float(counts.sum()) ** 0.5 * centre
            total = safe_cholesky(
                gram() - torch.outer(root, root),
                shift=scatter.alpha + scatter.factor.jitter,
            )
        expected_energy = scatter.noise_energy()
        if expected_energy <= 0.0:  # unknown, for example if each class has one row
            expected_energy = 1.0
        return cls(scatter, centre, solved, energies, span, total, expected_energy)

    def of_rows(self, H: Tensor, outside: Tensor | None = None) -> Tensor:
        """Return the terms of rows, and 1 / count of the class nearest to each.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            Rows in the coordinates of the statistics.
        outside : Tensor of shape (n,), optional
            Energy of each row outside these coordinates. The scatter there is zero.

        Returns
        -------
        Tensor of shape (n, 6)
        """
        return self._of_centred(H - self.centre, outside)

    def from_span_basis(self, X: Tensor) -> Tensor:
        """Return ``Q X`` (C, n) of a matrix (C - 1, n). Q is the basis of the span."""
        return _with_counts(X, self.scatter.counts)

    def draw_terms(self) -> Tensor:
        """Return the terms, and 1 / count, (n, 6) of rows drawn from the statistics.

        These are the terms to expect of known rows before any row was held out. Rows of
        a class are drawn around its true mean with the scatter within classes. The true
        mean is estimated from the observed one by shrinking it to the mean of all rows;
        the fewer rows a class has, the stronger.

        With more classes than coordinates, rows are drawn, and their terms computed.
        Otherwise no row is drawn, but only what the terms depend on: its products z
        with the class means, its energy e in their span, and its energy a.
        """
        scatter = self.scatter
        counts = scatter.counts
        source = generator(0, "novelty", "expected")
        codes = self._drawn_classes()
        noise_energy = scatter.noise_energy() / counts
        spread = mean_spread(self.energies, noise_energy)
        shrinkage = (spread / (spread + noise_energy))[codes]
        noise_factor = self._noise_factor()
        normal = torch.randn(
            len(codes), noise_factor.shape[1], generator=source, dtype=torch.float64
        )
        noise = normal.to(noise_factor) @ noise_factor.T
        # The estimated mean of a class is uncertain, which adds shrinkage / n_c.
        noise = noise * (1.0 + shrinkage / counts[codes]).sqrt()[:, None]
        # Rows without noise: the estimated true means of their classes.
        drawn_classes, positions = torch.unique(codes, return_inverse=True)
        centred = scatter.means[:, drawn_classes].T - self.centre
        if self.span is None:
            return self._of_centred(shrinkage[:, None] * centred[positions] + noise)
        products = shrinkage[:, None] * self._products(centred)[positions]
        products = products + _with_counts(noise.T, counts).T
        inside, explained = self._span_energies(self.span, products)
        # Rows vary by one dimension more than the C - 1 of the span. Without it, the
        # score finds fewer unknown samples in models of few classes.
        normal = torch.randn(len(codes), generator=source, dtype=torch.float64)
        inside = inside + normal.to(counts).square()
        # Expected energy of the noise in the span and in the additional dimension.
        inside_noise = self.span.half_solve(noise_factor)
        inside_energy = 1.0 + float(inside_noise.square().sum())
        rest = max(
            self.expected_energy - inside_energy, _LEAST_REST * self.expected_energy
        )
        normal = torch.randn(len(codes), generator=source, dtype=torch.float64).to(
            counts
        )
        energy = inside + rest * (1.0 + _REST_SPREAD * normal).clamp_min(0.1)
        return self._terms(products, inside, explained, energy)

    def _drawn_classes(self) -> Tensor:
        """Return the class of each drawn row (n,), in proportion to the counts."""
        counts = self.scatter.counts
        n_drawn = min(max(_DRAWN_PRODUCTS // len(counts), _LEAST_DRAWN), _MOST_DRAWN)
        quantiles = (torch.arange(n_drawn, dtype=torch.float64) + 0.5) / n_drawn
        cumulative = torch.cumsum(counts / counts.sum(), dim=0).cpu()
        codes = torch.searchsorted(cumulative, quantiles)
        return codes.clamp_max(len(counts) - 1).to(counts.device)

    def _noise_factor(self) -> Tensor:
        """Return a factor F of the covariance ``F F^T`` within a class.

        The covariance is that of products with the class means in the basis Q,
        (C - 1, r), or of the rows themselves, (k, r), if there are more classes than
        coordinates.
        """
        scatter = self.scatter
        freedom = scatter.freedom
        known_energy = scatter.noise_energy(inside=True)
        ridge = scatter.alpha + scatter.factor.jitter
        # New rows have more energy than learned ones.
        scale = max(self.expected_energy / max(known_energy, 1e-300), 1.0)
        if self.span is None and known_energy > 0.0:
            covariance = scatter.matrix().mul_(scale / freedom)
            shift = _SHIFT * float(covariance.diagonal().mean())
            covariance.diagonal().sub_(scale * ridge / freedom)
            return safe_cholesky(covariance, shift=shift).lower
        means = scatter.means - self.centre[:, None]
        if known_energy <= 0.0:
            # Each class has one row: use the spread of the means.
            spread = means
            if self.span is not None:
                spread = _without_counts(self._products(means.T).T, scatter.counts)
            return spread / math.sqrt(len(self.energies))
        fractions = scatter.counts / scatter.counts.sum()
        directions = freedom * (self.solved - (self.solved @ fractions)[:, None])
        covariance = (means - (ridge / freedom) * directions).T @ directions
        for _ in range(2):
            covariance = _without_counts(covariance, scatter.counts).T
        shift = _SHIFT * float(self.energies.mean())
        return safe_cholesky(scale * covariance, shift=shift).lower

    def _of_centred(self, centred: Tensor, outside: Tensor | None = None) -> Tensor:
        """Return the terms, and 1 / count, (n, 6) of centred rows (n, k)."""
        products = self._products(centred)
        energy = self.scatter.freedom * self.scatter.quadratic(centred.T)
        if self.span is not None:
            inside, explained = self._span_energies(self.span, products)
        else:
            inside = energy
            rest = self.total.half_solve(centred.T).square().sum(dim=0)
            explained = energy - self.scatter.freedom * rest
        if outside is not None:
            energy = energy + self.scatter.freedom * outside / self.scatter.alpha
        return self._terms(products, inside, explained, energy)

    def _products(self, centred: Tensor) -> Tensor:
        """Return z (n, C) of rows (n, k) minus the mean of all rows."""
        fractions = self.scatter.counts / self.scatter.counts.sum()
        found = centred @ self.solved
        return (found - (found @ fractions)[:, None]).mul_(self.scatter.freedom)

    def _span_energies(
        self, span: CholeskyFactor, products: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``z^T K^-1 z`` and ``z^T (K + f N^-1)^-1 z`` of products z (n, C)."""
        reduced = _without_counts(products.T, self.scatter.counts)
        inside = span.half_solve(reduced).square().sum(dim=0)
        explained = self.total.half_solve(products.T).square().sum(dim=0)
        return inside, explained

    def _terms(
        self, products: Tensor, inside: Tensor, explained: Tensor, energy: Tensor
    ) -> Tensor:
        """Return the terms, and 1 / count, (n, 6).

        Parameters
        ----------
        products : Tensor of shape (n, C)
            z.
        inside, explained, energy : Tensor of shape (n,)
            e, ``z^T (K + f N^-1)^-1 z`` and a.
        """
        counts = self.scatter.counts
        energy = energy.clamp_min(1e-9)
        inside = inside.clamp_min(1e-12)
        rest = (energy - inside).clamp_min(1e-9) / self.expected_energy
        mean_noise = 1.0 + 1.0 / counts
        away = self.energies - 2.0 * products
        nearest = ((energy[:, None] + away) / mean_noise).min(dim=1)
        inverse_count = 1.0 / counts[nearest.indices]
        if len(counts) == 1:  # the span of one mean is zero
            zero = torch.zeros_like(energy)
            columns = [nearest.values, zero, zero, zero, rest, inverse_count]
            return torch.stack(columns, dim=1)
        cosine = (products / self.energies.sqrt()).amax(dim=1)
        distance = ((inside[:, None] + away) / mean_noise).amin(dim=1).clamp_min(0.0)
        columns = [
            nearest.values - energy + explained,
            -cosine / energy.sqrt(),
            -cosine / inside.sqrt(),
            distance,
            rest,
            inverse_count,
        ]
        return torch.stack(columns, dim=1)


def _reflection(counts: Tensor) -> Tensor:
    """Return the unit vector v of the reflection ``I - 2 v v^T``.

    It maps `counts` to the last axis. Its first C - 1 columns are the basis Q.
    """
    vector = counts / counts.norm()
    vector[-1] += 1.0
    reflection: Tensor = vector / vector.norm()
    return reflection


def _without_counts(X: Tensor, counts: Tensor) -> Tensor:
    """Return ``Q^T X`` (C - 1, n) of a matrix (C, n)."""
    vector = _reflection(counts)
    return (X - 2.0 * torch.outer(vector, vector @ X))[:-1]


def _with_counts(X: Tensor, counts: Tensor) -> Tensor:
    """Return ``Q X`` (C, n) of a matrix (C - 1, n)."""
    vector = _reflection(counts)
    padded = torch.cat([X, X.new_zeros(1, X.shape[1])])
    return padded - 2.0 * torch.outer(vector, vector @ padded)


def _column_products(A: Tensor, B: Tensor) -> Tensor:
    """Return the column sums of ``A * B``, in chunks of rows to save memory."""
    total = A.new_zeros(A.shape[1])
    chunks = zip(torch.split(A, _CHUNK_ROWS), torch.split(B, _CHUNK_ROWS), strict=True)
    for a, b in chunks:
        total = total + (a * b).sum(dim=0)
    return total
