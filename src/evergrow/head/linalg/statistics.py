"""Sufficient statistics of ridge regression, in two forms: dense and compact.

For rows ``h`` (L features) and targets ``y`` (C columns) they are

    G = sum h h^T   (L x L)        Q = sum h y^T   (L x C)        yy = sum |y|^2
    n = number of rows

and the weights for any ridge ``alpha`` are ``W = (G + alpha I)^-1 Q``. Being sums over
samples they can be added to, subtracted from and merged. The ridge itself is never part
of them. Every operation returns a new record; no tensor is changed in place, so old and
new may share what did not change.

The dense form holds G and Q. The compact form holds them in the few directions that the
rows really occupy: with sigmoid units near their centre rows are numerically of rank
about d + 1 whatever the width L. Rows are kept as ``H = C V^T + R`` with an orthonormal
basis V (L x k) and a small remainder R that is dropped. Rows of ``C V^T`` and of R are
orthogonal, so ``H H^T = C C^T + R R^T``: dropping R changes the dual system ``(H H^T +
alpha I) a = Y`` by ``|R R^T|`` at most, and with

    dropped = sum over steps of |R|_2^2

the dual coefficients move by at most ``dropped / alpha`` relative to themselves. That
is the reported bound.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import InputError
from evergrow.core.record import Between, Spec, record, require
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh

ACCUMULATION_DTYPE = torch.float64
"""The Gram matrix of sigmoid units has one eigenvalue near L N / 4 beside others near the ridge (condition number about
1e9), which float32 cannot hold."""

LARGEST = 1e150
"""Numbers beyond this overflow when squares of many are added; those below its inverse vanish."""

LARGEST_WEIGHT = 1e100
"""Class weights beyond this are larger than any data can make them."""

_LARGEST_SUM = 1e305
"""Sums of squares beyond this overflow when they are added up."""

DENSE_BELOW = 1024
"""Up to this width the dense form is fast and small enough."""

BLOCK_ROWS = 1024
"""Rows per compact step: the remainder of a step is analysed through an n x n eigenproblem."""

COMPACT_TOL = 1e-2
"""Bound on the relative change of the dual coefficients that the compact form may cause over its whole life, at the
smallest ridge. The change of logits, measured, is about a hundredth of it."""

BUDGET_SHARE = 1.0 / 16.0
"""Share of the remaining budget that one step may drop; the sum then never exceeds the budget."""

PART_SHARE = 5
"""Parts of a dense whole are compact up to a rank of one in so many columns: then they are a quarter of the bytes."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Rows (n, L), their targets (n, c), and which of the C columns of targets these are; None for all."""


@record("readout")
@dataclass(frozen=True, eq=False)
class Readout:
    """Linear class scores ``h @ weights + offset``, and what was done to get them.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        Weights.
    offset : Tensor of shape (C,)
        Added to every row.
    alpha : float
        The ridge used.
    jitter : float
        What the factorisation needed beyond ``alpha``.
    """

    weights: Annotated[Tensor, Spec(("L", "C"), largest=LARGEST_WEIGHT)]
    offset: Annotated[Tensor, Spec(("C",), largest=LARGEST_WEIGHT)]
    alpha: Annotated[float, Between(0.0)]
    jitter: Annotated[float, Between(0.0)]


@record("ridge-statistics")
@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeStatistics:
    """Statistics of rows, dense or in a basis of their own.

    An update of n rows costs ``2 n L^2`` operations and a solve ``L^3 / 3`` in the
    dense form, which holds ``8 L^2`` bytes; about ``4 n L k``, ``k^3 / 3`` and ``8 L
    k`` in the compact one of rank k.

    Parameters
    ----------
    gram : Tensor of shape (L, L), or (k, k) with a basis
        ``G``, or ``V^T G V``.
    cross : Tensor of shape (L, C), or (k, C) with a basis
        ``Q``, or ``V^T Q``.
    basis : Tensor of shape (L, k) or None
        V, orthonormal columns; None in the dense form.
    count, sq_targets : int, float
        Net number of rows learned, and the sum of their squared targets.
    solver : {"auto", "dense", "compact"}
        ``"auto"`` begins compact and becomes dense, once and exactly, when the rank
        makes that cheaper.
    floor : float
        The smallest ridge that will be asked for; it sets how much the compact form may
        drop.
    left : float
        Energy (squared spectral norm) that may still be dropped.
    dropped : float
        Energy that was dropped, here and in what was merged.
    growth : float
        New directions per row of the state that this one came of by :meth:`empty_like`.
    rank_limit : int
        Rank up to which a part of a dense whole is compact
        (:meth:`with_expected_rows`); 0 where it is no part.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.eye(2, dtype=torch.float64)
    >>> state = RidgeStatistics.create(2, 1).update(H, torch.tensor([[1.0], [3.0]], dtype=torch.float64))
    >>> state.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    >>> wide = RidgeStatistics.create(2000, 1, "auto", floor=1.0).update(torch.ones(5, 2000), torch.ones(5, 1))
    >>> wide.basis.shape
    torch.Size([2000, 1])
    """

    gram: Annotated[Tensor, Spec(("k", "k"), symmetric=True)]
    cross: Annotated[Tensor, Spec(("k", "C"), largest=LARGEST)]
    count: int = 0
    sq_targets: Annotated[float, Between(-1e-6)] = 0.0
    basis: Annotated[Tensor, Spec(("L", "k"))] | None = None
    solver: str = "dense"
    floor: Annotated[float, Between(0.0)] = 0.0
    left: Annotated[float, Between(0.0)] = 0.0
    dropped: Annotated[float, Between(0.0)] = 0.0
    growth: Annotated[float, Between(0.0)] = 0.0
    rank_limit: int = 0

    @staticmethod
    def create(
        n_features: int,
        n_targets: int,
        solver: str = "dense",
        *,
        floor: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> RidgeStatistics:
        """Return statistics of no rows.

        Parameters
        ----------
        n_features, n_targets : int
            Shape.
        solver : {"auto", "dense", "compact"}
            Form.
        floor : float
            The smallest ridge that will be asked for.
        device : torch.device or str
            Where the statistics live.
        """
        basis = None
        if solver == "compact" or (solver == "auto" and n_features > DENSE_BELOW):
            # The first direction carries the huge common mode of sigmoid units.
            basis = torch.full(
                (n_features, 1),
                n_features**-0.5,
                dtype=ACCUMULATION_DTYPE,
                device=device,
            )
        order = n_features if basis is None else 1
        gram = torch.zeros(order, order, dtype=ACCUMULATION_DTYPE, device=device)
        cross = gram.new_zeros(order, n_targets)
        left = COMPACT_TOL * floor
        return RidgeStatistics(
            gram=gram,
            cross=cross,
            basis=basis,
            solver=solver,
            floor=float(floor),
            left=left,
        )

    def empty_like(self) -> RidgeStatistics:
        """Return statistics of no rows with the same shape and settings, which know how fast the rank of these grew."""
        fresh = self.create(
            self.n_features,
            self.n_targets,
            self.solver,
            floor=self.floor,
            device=self.device,
        )
        growth = self.growth
        if self.count:
            if self.basis is None:
                growth = 1.0
            else:
                growth = self.order / self.count
        return dataclasses.replace(fresh, growth=growth, rank_limit=self.rank_limit)

    def with_expected_rows(self, rows: int) -> Self:
        """Return a part that knows how many rows the whole will have.

        A part is there to be sent and added up, not to be solved: where the whole will
        be dense, it is compact only if that takes few bytes.
        """
        whole = dataclasses.replace(self, count=rows, rank_limit=0)
        compact = whole.stays_compact(self.growth * rows)
        return dataclasses.replace(
            self, rank_limit=0 if compact else self.n_features // PART_SHARE
        )

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        return int((self.gram if self.basis is None else self.basis).shape[0])

    def error_bound(self, alpha: float) -> float:
        """Return the bound on the relative change of the dual coefficients that dropping has caused."""
        return self.dropped / alpha

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return int(self.cross.shape[1])

    @property
    def order(self) -> int:
        """Order of the system that a solve factors."""
        return int(self.cross.shape[0])

    @property
    def device(self) -> torch.device:
        """Where the statistics live."""
        return self.cross.device

    def faded(self, factor: float) -> Self:
        """Return the statistics of the same rows with their weights times a factor."""
        sums = {
            name: factor * getattr(self, name)
            for name in ("gram", "cross", "sq_targets")
        }
        return dataclasses.replace(self, **sums)

    def solve(self, alpha: float) -> Readout:
        """Return ``(G + alpha I)^-1 Q``, by a Cholesky factorisation in the coordinates of the statistics."""
        factor = safe_cholesky(self.gram, shift=alpha)
        # Row by row, as a file holds them: a product with the columns of a solver
        # rounds otherwise, in the last place.
        weights = self.lift(factor.solve(self.cross)).contiguous()
        return Readout(
            weights, weights.new_zeros(self.n_targets), float(alpha), factor.jitter
        )

    # -- coordinates -------------------------------------------------------------------

    def lift(self, reduced: Tensor) -> Tensor:
        """Map weights (k, C) to feature coordinates (L, C)."""
        return reduced if self.basis is None else self.basis @ reduced

    def project(self, H: Tensor) -> Tensor:
        """Map rows (n, L) to the coordinates of the statistics (n, k)."""
        return H if self.basis is None else H @ self.basis

    def scaled(self, scale: Tensor) -> Self:
        """Return the statistics of rows whose columns were multiplied by ``scale`` (L,), in coordinates of their own.

        Rows must be multiplied by it before they are projected, and weights after they
        were lifted.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg.statistics import RidgeStatistics
        >>> H = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        >>> RidgeStatistics.create(2, 2).update(H, torch.eye(2)).scaled(torch.tensor([1.0, 0.5])).gram.tolist()
        [[10.0, 7.0], [7.0, 5.0]]
        """
        scale = scale.to(self.gram)
        if self.basis is None:
            gram = scale[:, None] * self.gram * scale
            cross = scale[:, None] * self.cross
            return dataclasses.replace(self, gram=gram, cross=cross)
        # diag(scale) V = V' R with orthonormal V', so that rows V x become V' (R x).
        basis, turn = torch.linalg.qr(scale[:, None] * self.basis)
        gram = turn @ self.gram @ turn.T
        return dataclasses.replace(
            self, basis=basis, gram=0.5 * (gram + gram.T), cross=turn @ self.cross
        )

    def part(self, columns: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return G (k, k), Q (k, C) and V (d, k), with ``V G V^T`` and ``V Q`` the statistics of some of the columns.

        Where V is None they are G and Q themselves.
        """
        if self.basis is None:
            return self.gram[columns, columns], self.cross[columns], None
        return self.gram, self.cross, self.basis[columns]

    # -- learning ----------------------------------------------------------------------

    def update(self, H: Tensor, Y: Tensor) -> Self:
        """Return the state with rows ``H`` (n, L) of targets ``Y`` (n, C) learned."""
        return self.accumulate([(H, Y)])

    def accumulate(
        self,
        batches: Iterable[Batch | tuple[Tensor, Tensor]],
        sign: int = 1,
        rows: int = 0,
    ) -> Self:
        """Return the state with several batches learned, or with ``sign=-1`` unlearned, as one step of so many rows."""
        return self._accumulate(
            (self._checked(*batch) for batch in batches), sign, rows
        )

    def _checked(self, H: Tensor, Y: Tensor, columns: Tensor | None = None) -> Batch:
        check_size("H", H)
        return (
            H.to(self.device, ACCUMULATION_DTYPE),
            Y.to(self.device, ACCUMULATION_DTYPE),
            columns,
        )

    def _plus(self, count: int, sq_targets: float, sign: int) -> dict[str, Any]:
        return {
            "count": self.count + sign * count,
            "sq_targets": self.sq_targets + sign * sq_targets,
        }

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the state whose target columns are sums of old ones, as if rows had been learned with such targets.

        This merges, adds, drops and reorders classes. Whoever drops a column sets
        ``count`` and ``sq_targets`` to what remains.

        Parameters
        ----------
        groups : sequence of sequences of int
            The old columns that each new one is the sum of, none for a new column of
            zeros.
        """
        return dataclasses.replace(self, cross=sum_columns(self.cross, groups))

    def stays_compact(self, rank: float) -> bool:
        """Return whether so high a rank is cheaper than the dense form: operations of learning all rows and a solve."""
        L = self.n_features
        C = self.n_targets
        n = self.count
        compact = 6.0 * n * L * rank + rank**3 + 2.0 * L * rank * C
        dense = 2.0 * n * L * L + L**3 / 3.0 + 2.0 * L * L * C
        return (
            compact <= 0.8 * dense and rank < 0.7 * L and not 0 < self.rank_limit < rank
        )

    def _relieved(self) -> Self:
        """Return the dense form where the compact one has been outgrown and need not stay."""
        if (
            self.solver != "auto"
            or self.basis is None
            or self.stays_compact(self.order)
        ):
            return self
        return self._expanded()

    def _expanded(self) -> Self:
        if self.basis is None:
            gram = self.gram
        else:
            gram = self.basis @ self.gram @ self.basis.T
        return dataclasses.replace(
            self, gram=gram, cross=self.lift(self.cross), basis=None
        )

    def _accumulate(self, batches: Iterable[Batch], sign: int, rows: int) -> Self:
        """Take in blocks of rows, compactly as long as that pays: it costs most while the rank is growing."""
        blocks = (
            (*block, columns)
            for H, Y, columns in batches
            for block in zip(
                torch.split(H, BLOCK_ROWS), torch.split(Y, BLOCK_ROWS), strict=True
            )
        )
        state = self  # new directions per row of the block before
        growth = self.growth if self.rank_limit else 0.0
        while state.basis is not None:
            block = next(blocks, None)
            if block is None:
                return state
            coming = 0
            if growth:
                coming = max(self.count + rows - state.count, len(block[0]))
            whole = dataclasses.replace(state, count=state.count + coming)
            if state.solver == "auto" and not whole.stays_compact(
                state.order + growth * coming
            ):
                return state._expanded()._accumulate_dense(
                    itertools.chain([block], blocks), sign
                )
            before = state.order
            state = state._accumulate_compact(*block, sign)._relieved()
            growth = (state.order - before) / max(
                len(block[0]), 1
            )  # a batch may be empty
        return state._accumulate_dense(blocks, sign)

    def _accumulate_dense(self, batches: Iterable[Batch], sign: int) -> Self:
        # The first batch makes the new matrix, in one pass over the old; those after it
        # are added in place.
        gram = self.gram
        cross = self.cross.clone()
        count = 0
        sq_targets = 0.0
        for H, Y, columns in batches:
            if gram is self.gram:
                gram = torch.addmm(gram, H.T, H, alpha=sign)
            else:
                gram = gram.addmm_(H.T, H, alpha=sign)
            _add_products(cross, H, Y, columns, sign)
            count += H.shape[0]
            sq_targets += float(Y.square().sum())
        return dataclasses.replace(
            self, gram=gram, cross=cross, **self._plus(count, sq_targets, sign)
        )

    def _accumulate_compact(
        self, H: Tensor, Y: Tensor, columns: Tensor | None, sign: int
    ) -> Self:
        basis = self.basis
        gram = self.gram
        cross = self.cross.clone()
        lost = 0.0
        rows = self.project(H)
        if sign > 0 and basis is not None:
            extension, lost = _extension(basis, H, rows, BUDGET_SHARE * self.left)
            if extension is not None:
                extra = extension.shape[1]
                basis = torch.cat([basis, extension], dim=1)
                rows = torch.cat([rows, H @ extension], dim=1)
                gram = torch.nn.functional.pad(gram, (0, extra, 0, extra))
                cross = torch.nn.functional.pad(cross, (0, 0, 0, extra))
        _add_products(cross, rows, Y, columns, sign)
        return dataclasses.replace(
            self,
            basis=basis,
            gram=torch.addmm(gram, rows.T, rows, alpha=sign),
            cross=cross,
            left=self.left - lost,
            dropped=self.dropped + lost,
            **self._plus(H.shape[0], float(Y.square().sum()), sign),
        )

    def merge(self, other: RidgeStatistics, sign: int = 1) -> Self:
        """Return the state with what another one has learned, as if its rows had been learned here.

        Two states a and b that went on from copies of one base are joined by
        ``a.merge(b).merge(base, sign=-1)``: what both have from the base then counts
        once.

        Parameters
        ----------
        other : RidgeStatistics
            Of any form and equal shape.
        sign : int
            -1 takes its rows out instead.
        """
        seen = self._plus(other.count, other.sq_targets, sign)
        seen["dropped"] = self.dropped + max(sign, 0) * other.dropped
        if self.basis is None or (other.basis is None and self.solver == "auto"):
            own = self._expanded()
            added = other._expanded()
            gram = own.gram + sign * added.gram.to(self.device)
            cross = own.cross + sign * added.cross.to(self.device)
            return dataclasses.replace(own, gram=gram, cross=cross, **seen)
        # G_2 = F^T F with F = sqrt(D) U^T V_2^T: the other side's second moments act as
        # k pseudo-rows.
        values, vectors = symmetric_eigh(other.gram.to(self.device))
        kept = values > 0.0
        factor = (values[kept].sqrt() * vectors[:, kept]).T
        if other.basis is None:
            rows = factor
        else:
            rows = factor @ other.basis.T.to(self.device)
        grown = self
        for part in torch.split(rows, BLOCK_ROWS):
            grown = grown._accumulate_compact(
                part, part.new_zeros(part.shape[0], self.n_targets), None, sign
            )
        seen["dropped"] += grown.dropped - self.dropped
        cross = (
            grown.cross
            + sign * grown.project(other.lift(other.cross).to(self.device).T).T
        )
        return dataclasses.replace(grown, cross=cross, **seen)._relieved()

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds statistics that rows can have."""
        check_gram("gram", self.gram)
        require(
            self.solver in ("auto", "dense", "compact"),
            f"its form cannot be {self.solver!r}",
        )
        if self.basis is not None:
            require(
                0 < self.basis.shape[1] <= self.basis.shape[0],
                "its basis has no columns, or more than rows",
            )
            # Orthonormal columns have entries up to 1; the product of all pairs would
            # cost as much as learning.
            lengths = self.basis.square().sum(dim=0)
            require(
                bool((lengths - 1.0).abs().amax() < 1e-6),
                "the columns of its basis are not of length 1",
            )


def _add_products(
    cross: Tensor, rows: Tensor, Y: Tensor, columns: Tensor | None, sign: int
) -> None:
    """Add products of rows (n, k) and targets to the sums (k, C), in place."""
    if columns is None:
        cross.addmm_(rows.T, Y, alpha=sign)
    else:
        cross.index_add_(1, columns, rows.T @ Y, alpha=sign)


def _extension(
    basis: Tensor, H: Tensor, rows: Tensor, allowance: float
) -> tuple[Tensor | None, float]:
    """Return new basis columns for H (None where none is needed) and the energy left out.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        The basis so far.
    H : Tensor of shape (n, L)
        Rows to be represented.
    rows : Tensor of shape (n, k)
        ``H @ basis``.
    allowance : float
        Energy that may be left out.
    """
    n_features = basis.shape[0]
    if basis.shape[1] >= n_features:
        return None, 0.0
    eps = float(torch.finfo(H.dtype).eps)
    energy = H.square().sum(dim=1)
    outside = float((energy - rows.square().sum(dim=1)).clamp_min_(0.0).sum())
    rounding = 64 * eps * float(energy.sum())
    if outside + rounding <= allowance:
        return None, outside + rounding  # the trace of R R^T bounds its spectral norm
    # R R^T = H H^T - C C^T tells which directions matter without forming R, where
    # rounding leaves it any digits.
    if rounding <= 0.1 * allowance:
        gap = torch.addmm(H @ H.T, rows, rows.T, alpha=-1.0)
        values, vectors = symmetric_eigh(gap)
    else:
        remainder = H - rows @ basis.T
        # A second pass: once is not enough where the remainder is tiny beside the row
        # (Kahan, Parlett).
        remainder -= (remainder @ basis) @ basis.T
        values, vectors = symmetric_eigh(remainder @ remainder.T)
        rounding = 0.0
    keep = values > max(allowance, eps * float(values[-1]), eps * float(energy.max()))
    lost = 0.0
    if bool((~keep).any()):
        lost = float(values[~keep].max().clamp_min(0.0)) + rounding
    if not bool(keep.any()):
        return None, lost
    kept = vectors[:, keep]
    directions = H.T @ kept - basis @ (rows.T @ kept)
    for _ in range(2):
        directions /= torch.linalg.vector_norm(directions, dim=0)
        directions -= basis @ (basis.T @ directions)
        directions = _orthonormal(directions)
    return directions[:, : n_features - basis.shape[1]], lost


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns, by Cholesky where it is safe and by Householder QR where not."""
    factor, info = torch.linalg.cholesky_ex(columns.T @ columns)
    diagonal = factor.diagonal()
    if int(info) == 0 and float(diagonal.min()) > 1e-3 * float(diagonal.max()):
        solved: Tensor = torch.linalg.solve_triangular(factor, columns.T, upper=False).T
        return solved
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


# -- columns and checks ----------------------------------------------------------------


def sum_columns(
    matrix: Tensor, groups: Sequence[Sequence[int]], dim: int = 1
) -> Tensor:
    """Return one column for each of ``groups``: the sum of the columns of ``matrix`` that it lists, zero for none.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.statistics import sum_columns
    >>> sum_columns(torch.tensor([[1.0, 2.0, 4.0]]), [[1], [0, 2], []]).tolist()
    [[2.0, 5.0, 0.0]]
    """
    if [list(group) for group in groups] == [
        [column] for column in range(matrix.shape[dim])
    ]:
        return matrix  # nobody changes a tensor in place
    pairs = [(place, column) for place, group in enumerate(groups) for column in group]
    places, columns = (
        torch.tensor(pairs, dtype=torch.long, device=matrix.device)
        .view(-1, 2)
        .unbind(dim=1)
    )
    shape = list(matrix.shape)
    shape[dim] = len(groups)
    return matrix.new_zeros(shape).index_add_(
        dim, places, matrix.index_select(dim, columns)
    )


def check_gram(name: str, gram: Tensor) -> None:
    """Raise :class:`FileFormatError` unless a symmetric matrix is, as far as its diagonal tells, semi-definite."""
    require(len(gram) > 0, f"{name!r} is empty")
    scale = float(gram.diagonal().abs().amax())
    # Sums of squares that are learned stay far below this; beyond it, the energy of all
    # rows is no number any more.
    require(
        scale * len(gram) < _LARGEST_SUM,
        f"{name!r} has numbers that cannot be added up",
    )
    # Rounding of what was unlearned may leave a little below zero.
    require(
        float(gram.diagonal().amin()) >= -1e-9 * scale,
        f"{name!r} has a negative diagonal",
    )


def check_size(name: str, rows: Tensor) -> None:
    """Raise :class:`InputError` for rows so large, or all so small, that sums of their squares say nothing."""
    lowest, highest = (
        torch.aminmax(rows)
        if rows.numel()
        else (rows.new_zeros(()), rows.new_zeros(()))
    )
    largest = max(-float(lowest), float(highest))
    if not (largest == 0.0 or 1.0 / LARGEST <= largest <= LARGEST):
        raise InputError(
            f"{name} must have numbers between {1 / LARGEST:g} and {LARGEST:g}, so that their squares can be added up, "
            f"got {largest:.3g}: scale the features"
        )
