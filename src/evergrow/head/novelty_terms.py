"""Terms of novelty in the metric of the denoised readout, each larger for what is less known.

With ``A = S_w + alpha I``, f degrees of freedom, class means m_c of n_c rows and the mean m of all rows, a row h has

    a = f |h - m|^2        z_c = f (h - m)^T A^-1 (m_c - m)        K_cd = f (m_c - m)^T A^-1 (m_d - m)

(lengths in A^-1), of which ``e = z^T K^-1 z`` lies in the span of the means. The terms are

- relative Mahalanobis: distance to the nearest class over ``1 + 1 / n_c``, less that to all classes as one;
- whitened cosine: minus the largest ``z_c / sqrt(a K_cc)``;
- span cosine: minus the largest ``z_c / sqrt(e K_cc)``;
- span distance: the smallest ``(e - 2 z_c + K_cc) / (1 + 1 / n_c)``;
- rest: ``a - e`` over its expectation for a new row of a known class.

Of one class alone the first term is the distance itself, and those in the span are zero.

No one of them is good everywhere; :mod:`evergrow.head.novelty_pool` weighs them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evergrow.core.seeding import generator
from evergrow.head.denoised import freedom, noise_energy
from evergrow.head.linalg import CholeskyFactor, SolvedScatter, safe_cholesky

TERMS = ("relative-mahalanobis", "whitened-cosine", "span-cosine", "span-distance", "rest")

REST = TERMS.index("rest")

_DRAWN = 256
_REST_SPREAD = 0.3
"""Spread of the rest of known rows, in units of its expectation, where no row was ever scored as if not learned."""


@dataclass(frozen=True, eq=False)
class NoveltyTerms:
    """What the terms need, worked out once.

    Parameters
    ----------
    scatter : SolvedScatter
        Class means solved against the scatter.
    centre : Tensor of shape (k,)
        m.
    directions : Tensor of shape (k, C)
        ``f A^-1 (m_c - m)``.
    gram : Tensor of shape (C, C)
        K.
    span, total : CholeskyFactor
        Of K, and of ``K + diag(f / n)``.
    expected : float
        Energy of a new row of a known class.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.novelty_terms import NoveltyTerms
    >>> from evergrow.head.linalg import ClassGeometry, RidgeStatistics, SolvedScatter
    >>> H = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> codes = torch.arange(60) % 3
    >>> H[torch.arange(60), codes] += 9.0
    >>> Y = torch.nn.functional.one_hot(codes, 3).double()
    >>> stats = RidgeStatistics.create(4, 3).update(H, Y)
    >>> terms = NoveltyTerms.of(SolvedScatter.of(ClassGeometry.of(stats, Y.sum(dim=0)), alpha=0.1))
    >>> known, new = terms.of_rows(H).mean(dim=0), terms.of_rows(H.flip(1))[codes == 0].mean(dim=0)
    >>> bool((new > known)[:5].all())
    True
    """

    scatter: SolvedScatter
    centre: Tensor
    directions: Tensor
    gram: Tensor
    span: CholeskyFactor
    total: CholeskyFactor
    expected: float

    @classmethod
    def of(cls, scatter: SolvedScatter) -> NoveltyTerms:
        """Prepare the terms: matrices of the order of the classes are factored, none of the order of the layer."""
        counts, free = scatter.counts, freedom(scatter)
        shares = counts / counts.sum()
        centre, solved = scatter.means @ shares, scatter.solve_means()
        directions = free * (solved - (solved @ shares)[:, None])
        gram = (scatter.means - centre[:, None]).T @ directions
        gram = 0.5 * (gram + gram.T)
        # The means less their mean are linearly dependent; a shift this small leaves their span as it is.
        span = safe_cholesky(gram, shift=1e-8 * float(_energies(gram).mean()))
        total = safe_cholesky(gram + torch.diag(free / counts))
        energy = noise_energy(scatter)
        return cls(scatter, centre, directions, gram, span, total, energy if energy > 0.0 else 1.0)

    def of_rows(self, H: Tensor, outside: Tensor | None = None) -> Tensor:
        """Return the terms (n, 5) of rows and, as a sixth column, 1 / count of the class nearest to each.

        Parameters
        ----------
        H : Tensor of shape (n, k)
            Rows in the coordinates of the statistics.
        outside : Tensor of shape (n,), optional
            Energy that rows have outside of these coordinates, where nothing was learned.
        """
        centred = H - self.centre
        energy = self.scatter.quadratic(centred.T)
        if outside is not None:
            energy = energy + outside / self.scatter.alpha
        return self._terms(centred @ self.directions, freedom(self.scatter) * energy)

    def expected_rows(self) -> Tensor:
        """Return terms (256, 6) of rows drawn as the statistics say known ones are: what to expect before any was seen.

        Rows of a class lie about its mean with the common scatter; drawn are their products with the class means and
        their energy outside the span of these, which is all that the terms need.
        """
        counts, free = self.scatter.counts, freedom(self.scatter)
        source = generator(0, "novelty", "expected")
        spots = (torch.arange(_DRAWN, dtype=torch.float64) + 0.5) / _DRAWN
        chances = torch.cumsum(counts / counts.sum(), dim=0).cpu()
        codes = torch.searchsorted(chances, spots).clamp_max(len(counts) - 1).to(counts.device)
        noise, rest = self._drawn_noise(source, free)
        noise = noise * (1.0 + 1.0 / counts[codes]).sqrt()[:, None]
        products = self.gram[codes] + noise
        inside = self.span.half_solve(noise.T).square().sum(dim=0)
        own = noise.gather(1, codes[:, None])[:, 0]
        spread = torch.randn(_DRAWN, generator=source, dtype=torch.float64).to(counts)
        outside = rest * (1.0 + _REST_SPREAD * spread).clamp_min(0.1)
        return self._terms(products, self.gram.diagonal()[codes] + 2.0 * own + inside + outside)

    def _drawn_noise(self, source: torch.Generator, free: float) -> tuple[Tensor, float]:
        """Return products (256, C) of drawn noise with the class means, and the energy expected outside their span."""
        classes = self.gram.shape[0]
        ridge = self.scatter.alpha + self.scatter.factor.jitter
        covariance = self.gram - (ridge / free) * (self.directions.T @ self.directions)
        covariance = covariance * max(self.expected / max(noise_energy(self.scatter, inside=True), 1e-300), 1.0)
        if noise_energy(self.scatter) <= 0.0:  # nothing is known of the spread but that of the means
            covariance = self.gram @ self.gram / classes
        factor = safe_cholesky(covariance, shift=1e-8 * float(_energies(self.gram).mean()))
        draws = torch.randn(_DRAWN, classes, generator=source, dtype=torch.float64).to(self.gram)
        within = float(self.span.half_solve(factor.lower).square().sum())
        return draws @ factor.lower.T, max(self.expected - within, 0.05 * self.expected)

    def _terms(self, products: Tensor, energy: Tensor) -> Tensor:
        counts = self.scatter.counts
        energy, energies = energy.clamp_min(1e-9), _energies(self.gram)
        inside = self.span.half_solve(products.T).square().sum(dim=0).clamp_min(1e-12)
        rest = (energy - inside).clamp_min(1e-9)
        unsure = 1.0 + 1.0 / counts  # the mean of few rows is off by a share of the spread itself
        nearest = ((energy[:, None] - 2.0 * products + energies) / unsure).min(dim=1)
        as_one = energy - self.total.half_solve(products.T).square().sum(dim=0)
        whole = (products / (energy[:, None] * energies).sqrt()).amax(dim=1)
        span = (products / (inside[:, None] * energies).sqrt()).amax(dim=1)
        distance = ((inside[:, None] - 2.0 * products + energies).clamp_min(0.0) / unsure).amin(dim=1)
        columns = [nearest.values - as_one, -whole, -span, distance, rest / self.expected]
        if len(counts) == 1:  # with one mean there is nothing to be relative to, and no span: what is left is distance
            none = torch.zeros_like(energy)
            columns = [nearest.values, none, none, none, rest / self.expected]
        return torch.stack([*columns, 1.0 / counts[nearest.indices]], dim=1)


def _energies(gram: Tensor) -> Tensor:
    return gram.diagonal().clamp_min(1e-12)
