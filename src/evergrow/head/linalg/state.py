"""The ridge state: what is kept of all samples seen, and the one interface its forms share.

For rows ``h`` (L features) and targets ``y`` (C columns) the sufficient statistics of ridge regression are

    G = sum h h^T   (L x L)        Q = sum h y^T   (L x C)        yy = sum |y|^2        n = number of rows

and the weights for any ridge ``alpha`` are ``W = (G + alpha I)^-1 Q``. Being sums over samples they can be
added to, subtracted from and merged. The ridge itself is never part of them.

A state is a record: every operation returns a new one and leaves the old as it was, and no tensor is changed in place,
so that both may share what did not change.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import InputError, ParameterError
from evergrow.core.families import Family
from evergrow.core.fields import Fields
from evergrow.core.validation import check_matrix

ACCUMULATION_DTYPE = torch.float64
"""Statistics are accumulated in float64: the Gram matrix of sigmoid units has one eigenvalue near L N / 4
beside others near the ridge (condition number about 1e9), which float32 cannot hold."""

LARGEST = 1e150
"""Numbers beyond this overflow when squares of many are added; those below its inverse vanish."""

LARGEST_WEIGHT = 1e100
"""Class weights beyond this are larger than any data can make them."""

_LARGEST_SUM = 1e305
"""Sums of squares beyond this overflow when they are added up."""

Batch = tuple[Tensor, Tensor]

RIDGE_FORMS: Family[RidgeState] = Family("solver", "ridge-state")
"""Every form of the statistics by name; filled by ``@RIDGE_FORMS.register(name)``."""


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

    def scaled(self, scale: Tensor) -> ReducedStatistics:
        """Return the statistics of rows whose columns were multiplied by ``scale`` (L,), in coordinates of their own.

        Rows of before must be multiplied by it before they are projected, and weights after they were lifted.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg import DenseState
        >>> H = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        >>> DenseState.create(2, 2).update(H, torch.eye(2)).reduced().scaled(torch.tensor([1.0, 0.5])).gram.tolist()
        [[10.0, 7.0], [7.0, 5.0]]
        """
        scale = scale.to(self.gram)
        if self.basis is None:
            gram, cross = scale[:, None] * self.gram * scale, scale[:, None] * self.cross
            return dataclasses.replace(self, gram=gram, cross=cross)
        # diag(scale) V = V' R with orthonormal V', so that rows V x become V' (R x).
        basis, turn = torch.linalg.qr(scale[:, None] * self.basis)
        gram = turn @ self.gram @ turn.T
        return dataclasses.replace(self, basis=basis, gram=0.5 * (gram + gram.T), cross=turn @ self.cross)

    def part(self, columns: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return G (k, k), Q (k, C) and V (d, k), with ``V G V^T`` and ``V Q`` the statistics of some of the columns.

        Where V is None they are G and Q themselves.
        """
        if self.basis is None:
            return self.gram[columns, columns], self.cross[columns], None
        return self.gram, self.cross, self.basis[columns]


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


@dataclass(frozen=True)
class Totals:
    """What statistics stand for.

    Parameters
    ----------
    count : int
        Net number of rows learned.
    sq_targets : float
        Net sum of squared targets.
    """

    count: int = 0
    sq_targets: float = 0.0

    def plus(self, count: int, sq_targets: float, sign: int = 1) -> Totals:
        """Return the totals with rows added, or with ``sign=-1`` taken out."""
        return Totals(self.count + sign * count, self.sq_targets + sign * sq_targets)

    @classmethod
    def read(cls, fields: Fields) -> Totals:
        """Return the totals that an archive states."""
        return cls(fields.integer("count"), fields.number("sq_targets", low=-1e-6))


NOTHING = Totals()


class RidgeState(ABC):
    """Common interface of all forms of the statistics.

    A form is a frozen dataclass, registered under the name that users choose it by. It implements :meth:`create`,
    :meth:`_accumulate`, :meth:`_merge`, :meth:`solve`, :meth:`reduced`, :meth:`select_targets`, :meth:`with_totals` and
    the pair :meth:`to_archive` / :meth:`from_archive`.
    """

    # -- shape ----------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """Name of the form."""
        return RIDGE_FORMS.name_of(type(self))

    @property
    @abstractmethod
    def n_features(self) -> int:
        """L, the width of the rows."""

    @property
    @abstractmethod
    def n_targets(self) -> int:
        """C, the number of target columns."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the statistics live."""

    @property
    @abstractmethod
    def totals(self) -> Totals:
        """What the statistics stand for."""

    @property
    def count(self) -> int:
        """Net number of rows learned."""
        return self.totals.count

    @property
    def sq_targets(self) -> float:
        """Net sum of squared targets."""
        return self.totals.sq_targets

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return self.n_features

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held by the statistics."""

    # -- making ---------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def create(
        cls,
        n_features: int,
        n_targets: int,
        *,
        alpha: float | None = None,
        floor: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Return a state that has seen nothing.

        Parameters
        ----------
        n_features, n_targets : int
            Shape.
        alpha : float or None
            The ridge that will be asked for, None if it will be chosen from the statistics.
        floor : float
            The smallest ridge that will be asked for.
        device : torch.device or str
            Where the statistics live.
        """

    def expecting(self, rows: int) -> Self:
        """Return the state that knows how many rows will be added up in all, where that bears on its form."""
        return self

    @abstractmethod
    def empty_like(self) -> Self:
        """Return a state of the same form, shape and settings that has seen nothing."""

    # -- learning -------------------------------------------------------------------------------------------

    def update(self, H: Tensor, Y: Tensor) -> Self:
        """Return the state with rows ``H`` (n, L) of targets ``Y`` (n, C) learned."""
        return self.accumulate([(H, Y)])

    def downdate(self, H: Tensor, Y: Tensor) -> Self:
        """Return the state with rows unlearned that were learned before."""
        return self.accumulate([(H, Y)], sign=-1)

    def accumulate(self, batches: Iterable[Batch], sign: int = 1) -> Self:
        """Return the state with several batches learned, or with ``sign=-1`` unlearned, as one step."""
        return self._accumulate((self._checked(H, Y) for H, Y in batches), sign)

    def _checked(self, H: Tensor, Y: Tensor) -> Batch:
        check_matrix("H", H, columns=self.n_features)
        check_size("H", H)
        check_matrix("Y", Y, columns=self.n_targets, rows=H.shape[0])
        return (
            H.to(self.device, ACCUMULATION_DTYPE),
            Y.to(self.device, ACCUMULATION_DTYPE),
        )

    @abstractmethod
    def _accumulate(self, batches: Iterable[Batch], sign: int) -> Self:
        """Return the state with checked batches learned or unlearned."""

    def merge(self, other: RidgeState) -> Self:
        """Return the state with the statistics of ``other``, of any form, as if its rows had been learned here."""
        if other.n_features != self.n_features or other.n_targets != self.n_targets:
            raise InputError(
                f"states to merge must have equal shape, got {self.n_features} x {self.n_targets} "
                f"and {other.n_features} x {other.n_targets}"
            )
        return self._merge(other.reduced())

    @abstractmethod
    def _merge(self, other: ReducedStatistics) -> Self:
        """Return the state with reduced statistics added."""

    @abstractmethod
    def select_targets(self, index: Sequence[int]) -> Self:
        """Return the state with other target columns: entry -1 is a new all-zero column, others copy old ones.

        This adds classes (append -1), drops them (leave them out) and reorders them. Whoever drops a
        column says through :meth:`with_totals` what remains.
        """

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the state whose target columns are sums of old ones, as if rows had been learned with such targets.

        All statistics of targets are linear in them, but for the totals, which for one-hot targets stay the same. Forms
        that keep theirs as columns add these up; this way, which adds a state that has seen no rows, serves any form.

        Parameters
        ----------
        groups : sequence of sequences of int
            The old columns that each new one is the sum of; each old one must be in exactly one.
        """
        stats = self.reduced()
        added = sum_columns(stats.cross, [group[1:] for group in groups])
        more = ReducedStatistics(stats.basis, torch.zeros_like(stats.gram), added, 0, 0.0)
        return self.select_targets([group[0] for group in groups])._merge(more)

    @abstractmethod
    def with_totals(self, totals: Totals) -> Self:
        """Return the state with other totals, after columns were dropped."""

    def after_solve(self) -> Self:
        """Return the state that knows that weights were asked for, for forms that choose by how often that is."""
        return self

    # -- answers --------------------------------------------------------------------------------------------

    @abstractmethod
    def solve(self, alpha: float) -> RidgeSolution:
        """Return the ridge weights for any ``alpha`` > 0."""

    @abstractmethod
    def reduced(self) -> ReducedStatistics:
        """Return the statistics in the coordinates this form keeps them in."""

    def error_bound(self, alpha: float) -> float:
        """Return the bound on the relative change of the dual coefficients at a ridge; 0 for exact forms."""
        check_alpha(alpha)
        return 0.0

    # -- files ----------------------------------------------------------------------------------------------

    @abstractmethod
    def to_archive(self) -> Archive:
        """Return what a file holds of the state."""

    @classmethod
    @abstractmethod
    def from_archive(cls, fields: Fields, device: torch.device) -> Self:
        """Return the state that :meth:`to_archive` gave, or raise :class:`FileFormatError`."""

    def _totals_meta(self) -> dict[str, float]:
        return {"count": self.count, "sq_targets": self.sq_targets}


def read_state(archive: Archive, device: torch.device, name: str = "the statistics") -> RidgeState:
    """Return the state of any form that an archive holds, or raise :class:`FileFormatError`."""
    form = RIDGE_FORMS.class_of(archive, name)
    return form.from_archive(archive.open(RIDGE_FORMS.kind_of(form).name, name=name), device)


def read_gram(fields: Fields, key: str, order: int | None, device: torch.device) -> Tensor:
    """Return a matrix that must be symmetric and, as far as its diagonal tells, positive semi-definite."""
    gram = fields.tensor(key, (order, order))
    fields.require(gram.shape[0] == gram.shape[1], f"{key!r} is not square")
    if len(gram):
        scale = float(gram.diagonal().abs().amax())
        # Sums of squares that are learned stay far below this; beyond it, the energy of all rows is no number any more.
        fields.require(scale * len(gram) < _LARGEST_SUM, f"{key!r} has numbers that cannot be added up")
        for start in range(0, len(gram), 1024):  # piece by piece: a second matrix of this size may not fit
            piece = gram[start : start + 1024] - gram[:, start : start + 1024].T
            fields.require(float(piece.abs().amax()) <= 1e-9 * scale, f"{key!r} is not symmetric")
        # Rounding of what was unlearned may leave a little below zero.
        fields.require(float(gram.diagonal().amin()) >= -1e-9 * scale, f"{key!r} has a negative diagonal")
    return gram.to(device)


def without_shape(old: Archive) -> Archive:
    """Migrate from version 1, which stated the shape of its tensors beside them."""
    cross = old.tensors["cross"]
    if (old.tensors.get("basis", cross).shape[0], cross.shape[1]) != (old.meta["n_features"], old.meta["n_targets"]):
        raise ValueError("n_features and n_targets")
    meta = {key: value for key, value in old.meta.items() if key not in ("n_features", "n_targets")}
    return Archive(old.kind, meta, old.tensors, version=2)


def take_columns(matrix: Tensor, index: Sequence[int]) -> Tensor:
    """Return columns ``index`` of ``matrix``, with zeros where the index is -1."""
    if list(index) == list(range(matrix.shape[1])):
        return matrix  # nobody changes a tensor in place
    chosen = torch.as_tensor(list(index), dtype=torch.long, device=matrix.device)
    out = torch.zeros(matrix.shape[0], len(index), dtype=matrix.dtype, device=matrix.device)
    old = chosen >= 0
    out[:, old] = matrix[:, chosen[old]]
    return out


def sum_columns(matrix: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return one column for each of ``groups``: the sum of the columns of ``matrix`` that it lists, zero for none.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.state import sum_columns
    >>> sum_columns(torch.tensor([[1.0, 2.0, 4.0]]), [[1], [0, 2], []]).tolist()
    [[2.0, 5.0, 0.0]]
    """
    chosen = torch.as_tensor([column for group in groups for column in group], dtype=torch.long, device=matrix.device)
    places = [place for place, group in enumerate(groups) for _ in group]
    out = torch.zeros(matrix.shape[0], len(groups), dtype=matrix.dtype, device=matrix.device)
    return out.index_add_(1, torch.as_tensor(places, dtype=torch.long, device=matrix.device), matrix[:, chosen])


def check_size(name: str, rows: Tensor) -> None:
    """Raise :class:`InputError` for rows so large, or all so small, that sums of their squares say nothing."""
    lowest, highest = torch.aminmax(rows) if rows.numel() else (rows.new_zeros(()), rows.new_zeros(()))
    largest = max(-float(lowest), float(highest))
    if largest > LARGEST or 0.0 < largest < 1.0 / LARGEST:
        raise InputError(
            f"{name} must have numbers between {1 / LARGEST:g} and {LARGEST:g}, so that their squares can be added up, "
            f"got {largest:.3g}: scale the features"
        )


def check_shape(n_features: int, n_targets: int) -> None:
    """Raise :class:`ParameterError` unless a state can have a shape."""
    if n_features < 1 or n_targets < 0:
        raise ParameterError(f"n_features must be >= 1 and n_targets >= 0, got {n_features} and {n_targets}")


def check_alpha(alpha: float) -> float:
    """Return ``alpha`` as a float, or raise :class:`ParameterError` unless it is finite and positive."""
    value = float(alpha)
    if not (0.0 < value < float("inf")):
        raise ParameterError(f"alpha must be a finite number > 0, got {alpha!r}")
    return value
