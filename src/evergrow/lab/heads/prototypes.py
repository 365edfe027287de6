"""Class means, their shared covariance, and the target prototypes of AnaCP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evergrow.core.record import require
from evergrow.head.layers.feature_map import normalize
from evergrow.head.linalg.factor import symmetric_eigh
from evergrow.head.linalg.statistics import sum_columns
from evergrow.lab.heads.random_layer import one_hot

INITIAL_VARIANCE = 1e-4
"""Variance of the official covariance before the first sample."""

EIGEN_FLOOR = 1e-8
"""Added to eigenvalues before their square root, as in the official code."""


@dataclass(frozen=True)
class SharedGaussian:
    """Class means with one shared covariance, as an immutable record.

    Parameters
    ----------
    sums : Tensor of shape (d, C)
        Sum of the features of each class.
    counts : Tensor of shape (C,)
        Samples per class.
    spread : Tensor of shape (d, d)
        The second moment of all features (``"paper"``) or the running covariance of
        the official code (``"code"``).
    variant : {"code", "paper"}
        Which covariance to use.
    """

    sums: Tensor
    counts: Tensor
    spread: Tensor
    variant: str

    @classmethod
    def empty(cls, width: int, variant: str, like: Tensor) -> SharedGaussian:
        """Create a Gaussian of no samples."""
        spread = like.new_zeros(width, width)
        if variant == "code":
            spread.diagonal().fill_(INITIAL_VARIANCE)
        counts = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(width, 0), counts, spread, variant)

    @property
    def means(self) -> Tensor:
        """Class means (C, d)."""
        return (self.sums / self.counts).T

    def add(
        self, X: Tensor, codes: Tensor, groups: Sequence[Sequence[int]]
    ) -> SharedGaussian:
        """Return the Gaussian with rows X (n, d) of classes ``codes`` added.

        ``groups`` lists the old classes of each new class. The official code adds the
        new samples to its total before it merges the covariances: ``Sigma <- (N Sigma +
        n S) / (N + n)`` with N already counting them. So the last of t equal tasks has
        weight 1 / (t + 1).
        """
        n_classes = len(groups)
        sums = sum_columns(self.sums, groups).addmm(X.T, one_hot(codes, n_classes, X))
        added = torch.bincount(codes, minlength=n_classes)
        counts = sum_columns(self.counts, groups, dim=0) + added
        if self.variant == "paper":
            return SharedGaussian(sums, counts, self.spread.addmm(X.T, X), self.variant)
        centred = X - (sums / counts).T[codes]
        total = int(counts.sum())
        new = X.shape[0]
        spread = self.spread * (total / (total + new))
        spread.addmm_(centred.T, centred, alpha=1.0 / (total + new))
        return SharedGaussian(sums, counts, spread, self.variant)

    def group(self, groups: Sequence[Sequence[int]]) -> SharedGaussian:
        """Return the Gaussian with classes in another order."""
        return replace(
            self,
            sums=sum_columns(self.sums, groups),
            counts=sum_columns(self.counts, groups, dim=0),
        )

    def covariance(self) -> Tensor:
        """Return the shared within-class covariance (d, d).

        For ``"paper"`` it is the sample-weighted average plus 1e-4 I, which can be
        whitened even with fewer samples than features.
        """
        if self.variant == "code":
            return self.spread
        scaled = self.sums / self.counts.sqrt()
        covariance = (self.spread - scaled @ scaled.T) / self.counts.sum()
        covariance.diagonal().add_(INITIAL_VARIANCE)
        return covariance


def target_prototypes(gaussian: SharedGaussian) -> Tensor:
    """Return the unit-length prototypes (C, d), the targets of the heads."""
    values, vectors = symmetric_eigh(gaussian.covariance())
    roots = (values.clamp_min(0.0) + EIGEN_FLOOR).sqrt()
    whiten = (vectors / roots) @ vectors.T
    if gaussian.variant == "code":
        prototypes = _spread_by_code(gaussian.means, whiten)
    else:
        colour = (vectors * roots) @ vectors.T
        prototypes = _spread_by_paper(gaussian.means, whiten, colour)
    return normalize(prototypes, "l2")


def _spread_by_code(means: Tensor, whiten: Tensor) -> Tensor:
    """Centre, whiten, add one to the singular values, whiten again, add the centre."""
    centre = means.mean(dim=0)
    left, values, right = _thin_svd((means - centre) @ whiten)
    null = values <= values.max() * max(means.shape) * torch.finfo(values.dtype).eps
    direction = null_direction(right[~null], centre @ whiten)
    right = torch.where(null[:, None], direction, right)
    if bool(null.any()):
        # The left vector of the null value belongs to the common shift: all ones, with
        # either sign.
        ones = torch.full_like(left[:, :1], len(means) ** -0.5)
        left = torch.where(null, ones, left)
    return (left * (values + 1.0)) @ right @ whiten + centre


def _thin_svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, values, right


def null_direction(rows: Tensor, centre: Tensor) -> Tensor:
    """Return the unit vector along the part of ``centre`` outside orthonormal ``rows``.

    Centring makes one singular value zero. Its right vector is any vector outside the
    span of the others: rounding noise in the official code, which adds one to that
    value too. The direction of the centre makes it a function of the data.
    """
    rest = centre - (centre @ rows.T) @ rows
    rest = rest - (rest @ rows.T) @ rows
    norm = float(rest.norm())
    if norm > 1e-12 * float(centre.norm()):
        return rest / norm
    return torch.zeros_like(rest)


def _spread_by_paper(means: Tensor, whiten: Tensor, colour: Tensor) -> Tensor:
    """Move the singular values against the gradient of the mean |cosine|, un-whiten."""
    left, values, right = _thin_svd(means @ whiten)
    stepped = values - torch.sign(cosine_gradient(left, values))
    return (left * stepped) @ right @ colour


def cosine_gradient(left: Tensor, values: Tensor) -> Tensor:
    """Return the gradient of the mean |cosine| of rows with respect to ``values``.

    The rows are those of ``left diag(values)``. With unit rows u_i, ``d cos_ij / d s_k
    = (2 u_ik u_jk - cos_ij (u_ik^2 + u_jk^2)) / s_k``, summed over pairs with the signs
    of the cosines.

    Parameters
    ----------
    left : Tensor of shape (C, r)
        Left singular vectors.
    values : Tensor of shape (r,)
        Singular values.
    """
    n = left.shape[0]
    if n < 2:
        return torch.zeros_like(values)
    rows = left * values
    unit = normalize(rows, "l2")
    cosines = unit @ unit.T
    cosines.fill_diagonal_(0.0)
    pull = (unit * (torch.sign(cosines) @ unit)).sum(dim=0)
    push = (unit.square() * cosines.abs().sum(dim=1, keepdim=True)).sum(dim=0)
    return 2.0 * (pull - push) / (n * (n - 1)) / values.clamp_min(1e-300)


def check_counts(counts: Tensor, n_classes: int) -> None:
    """Raise :class:`FileFormatError` unless every class has samples."""
    require(len(counts) == n_classes, "it has another number of classes than labels")
    require(
        bool(((counts > 0) & (counts < 2**53)).all()),
        "'counts' has a class of no or too many samples",
    )
