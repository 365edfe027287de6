"""The ridge state: what is kept of all samples seen, and the one interface its three forms share.

For rows ``h`` (L features) and targets ``y`` (C columns) the sufficient statistics of ridge regression are

    G = sum h h^T   (L x L)        Q = sum h y^T   (L x C)        yy = sum |y|^2        n = number of rows

and the weights for any ridge ``alpha`` are ``W = (G + alpha I)^-1 Q``. Being sums over samples they can be
added to, subtracted from and merged. The ridge itself is never part of them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_matrix

ACCUMULATION_DTYPE = torch.float64
"""Statistics are accumulated in float64: the Gram matrix of sigmoid units has one eigenvalue near L N / 4
beside others near the ridge (condition number about 1e9), which float32 cannot hold."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ReducedStatistics:
    """Sufficient statistics in coordinates of dimension k <= L.

    Parameters
    ----------
    basis : Tensor of shape (L, k) or None
        Orthonormal basis V of the coordinates; None means the coordinates are the features (k = L).
    gram : Tensor of shape (k, k)
        ``V^T G V``.
    cross : Tensor of shape (k, C)
        ``V^T Q``.
    count : int
        Number of rows seen.
    sq_targets : float
        Sum of squared targets.
    """

    basis: Tensor | None
    gram: Tensor
    cross: Tensor
    count: int
    sq_targets: float

    def lift(self, reduced: Tensor) -> Tensor:
        """Map weights (k, C) to feature coordinates (L, C)."""
        return reduced if self.basis is None else self.basis @ reduced

    def project(self, H: Tensor) -> Tensor:
        """Map rows (n, L) to reduced coordinates (n, k)."""
        return H if self.basis is None else H @ self.basis


@dataclass(frozen=True)
class RidgeSolution:
    """Weights, and what was done to get them.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        Ridge weights.
    alpha : float
        The ridge used.
    jitter : float
        What had to be added beyond ``alpha`` for the factorisation to succeed.
    """

    weights: Tensor
    alpha: float
    jitter: float = 0.0


class RidgeState(ABC):
    """Common interface of the dense, recursive and compact forms.

    Attributes
    ----------
    n_features : int
        L, the width of the rows.
    count : int
        Net number of rows learned.
    sq_targets : float
        Net sum of squared targets.
    """

    kind: ClassVar[str]

    def __init__(self, n_features: int, n_targets: int, device: torch.device | str = "cpu") -> None:
        if n_features < 1 or n_targets < 0:
            raise ParameterError(f"n_features must be >= 1 and n_targets >= 0, got {n_features} and {n_targets}")
        self.n_features = n_features
        self.device = torch.device(device)
        self.count = 0
        self.sq_targets = 0.0
        self.cross = torch.zeros(self._cross_rows(), n_targets, dtype=ACCUMULATION_DTYPE, device=self.device)

    def _cross_rows(self) -> int:
        """Rows of the stored cross statistics; the compact form keeps fewer than L."""
        return self.n_features

    @property
    def n_targets(self) -> int:
        """Number of target columns."""
        return int(self.cross.shape[1])

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.n_features

    def update(self, H: Tensor, Y: Tensor) -> None:
        """Learn rows ``H`` (n, L) with targets ``Y`` (n, C)."""
        self.accumulate([(H, Y)])

    def downdate(self, H: Tensor, Y: Tensor) -> None:
        """Unlearn rows that were learned before."""
        self.accumulate([(H, Y)], sign=-1)

    def accumulate(self, batches: Iterable[Batch], sign: int = 1) -> None:
        """Learn (or with ``sign=-1`` unlearn) several batches as one step.

        Either all of it is committed or, if anything fails on the way, nothing.
        """
        self._accumulate((self._checked(H, Y) for H, Y in batches), sign)

    def _checked(self, H: Tensor, Y: Tensor) -> Batch:
        check_matrix("H", H, columns=self.n_features)
        check_matrix("Y", Y, columns=self.n_targets, rows=H.shape[0])
        return (
            H.to(self.device, ACCUMULATION_DTYPE),
            Y.to(self.device, ACCUMULATION_DTYPE),
        )

    @abstractmethod
    def _accumulate(self, batches: Iterable[Batch], sign: int) -> None:
        """Commit checked batches atomically."""

    def merge(self, other: RidgeState) -> None:
        """Add the statistics of ``other``, of any form, as if its rows had been learned here."""
        if other.n_features != self.n_features or other.n_targets != self.n_targets:
            raise InputError(
                f"states to merge must have equal shape, got {self.n_features} x {self.n_targets} "
                f"and {other.n_features} x {other.n_targets}"
            )
        self._merge(other.reduced())

    @abstractmethod
    def _merge(self, other: ReducedStatistics) -> None:
        """Add reduced statistics in place."""

    @abstractmethod
    def solve(self, alpha: float) -> RidgeSolution:
        """Return the ridge weights for any ``alpha`` > 0."""

    @abstractmethod
    def reduced(self) -> ReducedStatistics:
        """Return the statistics in the coordinates this form keeps them in."""

    def select_targets(self, index: Sequence[int]) -> None:
        """Rebuild the target columns: entry -1 is a new all-zero column, others copy old ones.

        This adds classes (append -1), drops them (leave them out) and reorders them. Whoever drops a
        column says through :meth:`set_totals` what remains.
        """
        self.cross = take_columns(self.cross, index)

    def set_totals(self, count: int, sq_targets: float) -> None:
        """State how many rows, and which squared targets, the statistics stand for after columns were dropped."""
        self.count = int(count)
        self.sq_targets = float(sq_targets)

    def branch(self) -> Self:
        """Return a copy that shares memory until either side learns: no form changes a tensor in place."""
        return copy.copy(self)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held by the statistics."""

    @abstractmethod
    def empty_like(self) -> Self:
        """Return a state of the same form and shape that has seen nothing."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the state, for saving."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the JSON-serialisable rest of the state, for saving."""

    @classmethod
    @abstractmethod
    def restore(cls, tensors: dict[str, Tensor], settings: dict[str, Any], device: torch.device) -> Self:
        """Rebuild a state from :meth:`tensors` and :meth:`settings`."""

    def _base_settings(self) -> dict[str, Any]:
        return {
            "n_features": self.n_features,
            "n_targets": self.n_targets,
            "count": self.count,
            "sq_targets": self.sq_targets,
        }

    def _restore_base(self, settings: dict[str, Any], cross: Tensor) -> None:
        self.count = int(settings["count"])
        self.sq_targets = float(settings["sq_targets"])
        self.cross = cross.to(self.device, ACCUMULATION_DTYPE)


def take_columns(matrix: Tensor, index: Sequence[int]) -> Tensor:
    """Return columns ``index`` of ``matrix``, with zeros where the index is -1."""
    chosen = torch.as_tensor(list(index), dtype=torch.long, device=matrix.device)
    out = torch.zeros(matrix.shape[0], len(index), dtype=matrix.dtype, device=matrix.device)
    old = chosen >= 0
    out[:, old] = matrix[:, chosen[old]]
    return out


def check_alpha(alpha: float) -> float:
    """Return ``alpha`` as a float, or raise :class:`ParameterError` unless it is finite and positive."""
    value = float(alpha)
    if not (0.0 < value < float("inf")):
        raise ParameterError(f"alpha must be a finite number > 0, got {alpha!r}")
    return value
