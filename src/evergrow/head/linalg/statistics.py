"""Sufficient statistics of ridge regression, in a dense and a compact form.

For rows h (L features) and targets y (C columns) the statistics are

    G  = sum h h^T   (L x L)        Q = sum h y^T   (L x C)
    yy = sum |y|^2                  n = number of rows

and the weights for any ridge alpha are ``W = (G + alpha I)^-1 Q``. As sums over samples
they can be added, subtracted and merged exactly. The ridge is not part of them. Every
operation returns a new record and modifies no tensor in place, so records may share
tensors.

The dense form stores G and Q. The compact form stores them in the k directions that the
rows occupy. For example, sigmoid units near their centre give rows of numerical rank
d + 1 at any width L. Rows are decomposed as ``H = C V^T + R`` with an orthonormal basis
V (L x k) and a small remainder R, which is dropped. Since ``C V^T`` and R have
orthogonal rows, ``H H^T = C C^T + R R^T``. Dropping R changes the dual system
``(H H^T + alpha I) a = Y`` by at most ``|R R^T|``. With

    dropped = sum over steps of |R|_2^2

the relative change of the dual coefficients is at most ``dropped / alpha``. This is the
reported bound.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import InputError
from evergrow.core.record import Between, Spec, record, require
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh

ACCUMULATION_DTYPE = torch.float64
"""Dtype of the sums.

The Gram matrix of sigmoid units has one eigenvalue near L N / 4 and others near the
ridge (condition number about 1e9), which float32 cannot represent.
"""

LARGEST = 1e150
"""Largest feature. Squares of larger ones overflow in sums.

Squares of features below ``1 / LARGEST`` underflow.
"""

LARGEST_WEIGHT = 1e100
"""Upper bound of class weights in a file, far above any that data can produce."""

_LARGEST_SUM = 1e305
"""Bound on sums of a Gram matrix from a file, so that they do not overflow."""

DENSE_BELOW = 1024
"""Largest width for which ``solver="auto"`` starts dense."""

BLOCK_ROWS = 1024
"""Rows per compact step, which solves an eigenproblem of this order."""

COMPACT_TOL = 1e-2
"""Bound on the relative change of the dual coefficients in the compact form.

It holds for all updates together, at the smallest ridge. Logits change by about a
hundredth of it.
"""

BUDGET_SHARE = 1.0 / 16.0
"""Fraction of the remaining error budget that one step may use."""

PART_SHARE = 5
"""A shard whose total will be dense stays compact up to rank ``L / PART_SHARE``.

At this rank it takes a quarter of the bytes of the dense form.
"""

_MAX_COMPACT_COST = 0.8
"""Largest cost of the compact form, as a fraction of that of the dense form."""

_MAX_COMPACT_RANK = 0.7
"""Largest rank of the compact form, as a fraction of the width."""

Batch = tuple[Tensor, Tensor, Tensor | None]
"""Rows (n, L), targets (n, c), and the indices (c,) of these target columns.

None as the third entry means all C columns.
"""


@record("readout")
@dataclass(frozen=True, eq=False)
class Readout:
    """Linear class scores ``h @ weights + offset``.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        Weights.
    offset : Tensor of shape (C,)
        Offsets.
    alpha : float
        Ridge of the solution.
    jitter : float
        Jitter that the factorisation needed beyond `alpha`.
    """

    weights: Annotated[Tensor, Spec(("L", "C"), largest=LARGEST_WEIGHT)]
    offset: Annotated[Tensor, Spec(("C",), largest=LARGEST_WEIGHT)]
    alpha: Annotated[float, Between(0.0)]
    jitter: Annotated[float, Between(0.0)]


@record("ridge-statistics")
@dataclass(frozen=True, kw_only=True, eq=False)
class RidgeStatistics:
    """Sufficient statistics of ridge regression, dense or compact.

    In the dense form an update of n rows takes ``2 n L^2`` operations, a solution
    ``L^3 / 3``, and the memory is ``8 L^2`` bytes. In the compact form of rank k these
    are about ``4 n L k``, ``k^3 / 3`` and ``8 L k``.

    Parameters
    ----------
    gram : Tensor of shape (L, L) or (k, k)
        G, or ``V^T G V`` with a basis.
    cross : Tensor of shape (L, C) or (k, C)
        Q, or ``V^T Q`` with a basis.
    count : int, default=0
        Number of rows learned, less those unlearned.
    sq_targets : float, default=0.0
        yy, the sum of squared targets.
    basis : Tensor of shape (L, k) or None
        V, orthonormal columns. None in the dense form.
    solver : {"auto", "dense", "compact"}, default="dense"
        ``"auto"`` starts compact and becomes dense, exactly, once the rank makes that
        cheaper.
    floor : float, default=0.0
        Smallest ridge that will be used. It sets the error budget of the compact form.
    left : float, default=0.0
        Remaining error budget: energy (squared spectral norm) that may still be
        dropped.
    dropped : float, default=0.0
        Energy dropped so far, including by merged statistics.
    growth : float, default=0.0
        New directions per row of the statistics passed to :meth:`empty_like`.
    rank_limit : int, default=0
        Largest rank at which a shard stays compact (:meth:`with_expected_rows`). 0
        means no limit.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.statistics import RidgeStatistics
    >>> H = torch.eye(2, dtype=torch.float64)
    >>> Y = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    >>> stats = RidgeStatistics.create(2, 1).update(H, Y)
    >>> stats.solve(alpha=1.0).weights.ravel().round(decimals=9).tolist()
    [0.5, 1.5]
    >>> wide = RidgeStatistics.create(2000, 1, "auto", floor=1.0)
    >>> wide.update(torch.ones(5, 2000), torch.ones(5, 1)).basis.shape
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
        """Return empty statistics.

        Parameters
        ----------
        n_features : int
            L.
        n_targets : int
            C.
        solver : {"auto", "dense", "compact"}, default="dense"
            Form of the statistics.
        floor : float, default=0.0
            Smallest ridge that will be used.
        device : torch.device or str, default="cpu"
            Device of the tensors.
        """
        basis = None
        if solver == "compact" or (solver == "auto" and n_features > DENSE_BELOW):
            # The first direction carries the large common mode of sigmoid units.
            basis = torch.full(
                (n_features, 1),
                n_features**-0.5,
                dtype=ACCUMULATION_DTYPE,
                device=device,
            )
        order = n_features if basis is None else 1
        gram = torch.zeros(order, order, dtype=ACCUMULATION_DTYPE, device=device)
        return RidgeStatistics(
            gram=gram,
            cross=gram.new_zeros(order, n_targets),
            basis=basis,
            solver=solver,
            floor=float(floor),
            left=COMPACT_TOL * floor,
        )

    def empty_like(self) -> RidgeStatistics:
        """Return empty statistics of the same shape and settings.

        Their `growth` is the rank per row of these statistics.
        """
        empty = self.create(
            self.n_features,
            self.n_targets,
            self.solver,
            floor=self.floor,
            device=self.device,
        )
        growth = self.growth
        if self.count:
            growth = 1.0 if self.basis is None else self.order / self.count
        return dataclasses.replace(empty, growth=growth, rank_limit=self.rank_limit)

    def with_expected_rows(self, rows: int) -> Self:
        """Return a copy that will learn one shard of a total of `rows` rows.

        A shard is sent and added up, but not solved. If the total will be dense, the
        shard is compact only while that takes fewer bytes.
        """
        rank_limit = self.n_features // PART_SHARE
        if self._is_compact_cheaper(self.growth * rows, rows):
            rank_limit = 0
        return dataclasses.replace(self, rank_limit=rank_limit)

    @property
    def n_features(self) -> int:
        """L, the width of the rows."""
        wide = self.gram if self.basis is None else self.basis
        return int(wide.shape[0])

    @property
    def n_targets(self) -> int:
        """C, the number of target columns."""
        return int(self.cross.shape[1])

    @property
    def order(self) -> int:
        """Order of the stored Gram matrix: L or k."""
        return int(self.cross.shape[0])

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.cross.device

    def error_bound(self, alpha: float) -> float:
        """Return ``dropped / alpha``, a bound on the error of the dual coefficients.

        The error is relative. It is 0 for statistics that were never compact.
        """
        return self.dropped / alpha

    def faded(self, factor: float) -> Self:
        """Return a copy with the weight of every row learned so far times `factor`.

        The number of rows stays as it is.
        """
        return dataclasses.replace(
            self,
            gram=factor * self.gram,
            cross=factor * self.cross,
            sq_targets=factor * self.sq_targets,
        )

    def solve(self, alpha: float) -> Readout:
        """Return ``W = (G + alpha I)^-1 Q``, by a Cholesky factorisation.

        Raises
        ------
        NumericalError
            If ``G + alpha I`` is not positive definite. See :func:`safe_cholesky`.
        """
        factor = safe_cholesky(self.gram, shift=alpha)
        # Row-major, as in a file. Column-major weights would give products that differ
        # in the last digit.
        weights = self.lift(factor.solve(self.cross)).contiguous()
        offset = weights.new_zeros(self.n_targets)
        return Readout(weights, offset, float(alpha), factor.jitter)

    # -- coordinates -------------------------------------------------------------------

    def lift(self, reduced: Tensor) -> Tensor:
        """Map weights (k, C) to feature coordinates (L, C)."""
        return reduced if self.basis is None else self.basis @ reduced

    def project(self, H: Tensor) -> Tensor:
        """Map rows H (n, L) to the coordinates of the statistics (n, k)."""
        return H if self.basis is None else H @ self.basis

    def scaled(self, scale: Tensor) -> Self:
        """Return the statistics of rows with scaled columns.

        The result has its own basis. Multiply rows by `scale` before projecting them,
        and lifted weights by `scale`.

        Parameters
        ----------
        scale : Tensor of shape (L,)
            Factor of each column.

        Examples
        --------
        >>> import torch
        >>> from evergrow.head.linalg.statistics import RidgeStatistics
        >>> H = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        >>> stats = RidgeStatistics.create(2, 2).update(H, torch.eye(2))
        >>> stats.scaled(torch.tensor([1.0, 0.5])).gram.tolist()
        [[10.0, 7.0], [7.0, 5.0]]
        """
        scale = scale.to(self.gram)
        if self.basis is None:
            gram = scale[:, None] * self.gram * scale
            cross = scale[:, None] * self.cross
            return dataclasses.replace(self, gram=gram, cross=cross)
        # diag(scale) V = V' R with orthonormal V', so rows V x become V' (R x).
        basis, triangle = torch.linalg.qr(scale[:, None] * self.basis)
        gram = triangle @ self.gram @ triangle.T
        return dataclasses.replace(
            self, basis=basis, gram=0.5 * (gram + gram.T), cross=triangle @ self.cross
        )

    def part(self, columns: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the statistics of some columns of the rows, in a basis V.

        Parameters
        ----------
        columns : slice
            d of the L columns.

        Returns
        -------
        gram : Tensor of shape (k, k)
            G, so that ``V G V^T`` is the Gram matrix of the columns.
        cross : Tensor of shape (k, C)
            Q, so that ``V Q`` is their cross product with the targets.
        basis : Tensor of shape (d, k) or None
            V. None means the identity.
        """
        if self.basis is None:
            return self.gram[columns, columns], self.cross[columns], None
        return self.gram, self.cross, self.basis[columns]

    # -- learning ----------------------------------------------------------------------

    def update(self, H: Tensor, Y: Tensor) -> Self:
        """Learn rows H (n, L) with targets Y (n, C). Return the new statistics."""
        return self.accumulate([(H, Y)])

    def accumulate(
        self,
        batches: Iterable[Batch | tuple[Tensor, Tensor]],
        sign: int = 1,
        rows: int = 0,
    ) -> Self:
        """Learn several batches, or unlearn them. Return the new statistics.

        Parameters
        ----------
        batches : iterable of Batch
            Batches. The third entry of a batch may be left out.
        sign : {1, -1}
            -1 unlearns the batches.
        rows : int, default=0
            Total number of rows in the batches, if known. The choice between compact
            and dense extrapolates the rank to them.

        Raises
        ------
        InputError
            If features are too large or too small. See :func:`check_size`.
        """
        checked = (self._checked(*batch) for batch in batches)
        return self._accumulate(checked, sign, rows)

    def _checked(self, H: Tensor, Y: Tensor, columns: Tensor | None = None) -> Batch:
        """Return a batch in the dtype and on the device of the sums, if sizes allow."""
        check_size("H", H)
        return (
            H.to(self.device, ACCUMULATION_DTYPE),
            Y.to(self.device, ACCUMULATION_DTYPE),
            columns,
        )

    def group_targets(self, groups: Sequence[Sequence[int]]) -> Self:
        """Return the statistics with target columns summed, reordered, added, dropped.

        Callers that drop a column must set `count` and `sq_targets` themselves.

        Parameters
        ----------
        groups : sequence of sequences of int
            Old columns that each new column is the sum of. Empty for a column of zeros.
        """
        return dataclasses.replace(self, cross=sum_columns(self.cross, groups))

    def _stays_compact(self, rank: float, n_rows: int) -> bool:
        """Return whether the compact form is cheaper and within `rank_limit`."""
        is_within_limit = not 0 < self.rank_limit < rank
        return is_within_limit and self._is_compact_cheaper(rank, n_rows)

    def _is_compact_cheaper(self, rank: float, n_rows: int) -> bool:
        """Return whether the compact form of this rank is cheaper than the dense form.

        Compares the operations of learning `n_rows` rows and solving once.
        """
        L = self.n_features
        C = self.n_targets
        compact = 6.0 * n_rows * L * rank + rank**3 + 2.0 * L * rank * C
        dense = 2.0 * n_rows * L * L + L**3 / 3.0 + 2.0 * L * L * C
        return compact <= _MAX_COMPACT_COST * dense and rank < _MAX_COMPACT_RANK * L

    def _dense_if_cheaper(self) -> Self:
        """Return the dense form if that is allowed and cheaper."""
        if self.solver == "auto" and not self._stays_compact(self.order, self.count):
            return self._dense()
        return self

    def _dense(self) -> Self:
        """Return the same statistics in the dense form."""
        if self.basis is None:
            return self
        gram = self.basis @ self.gram @ self.basis.T
        return dataclasses.replace(
            self, gram=gram, cross=self.lift(self.cross), basis=None
        )

    def _accumulate(self, batches: Iterable[Batch], sign: int, rows: int) -> Self:
        """Learn batches, in the compact form as long as that is cheaper.

        The decision looks ahead, because the compact form is most expensive while its
        rank grows: from the second block on, in a shard from the first, the rank is
        extrapolated to all `rows`.
        """
        blocks = (
            (*block, columns)
            for H, Y, columns in batches
            for block in zip(
                torch.split(H, BLOCK_ROWS), torch.split(Y, BLOCK_ROWS), strict=True
            )
        )
        state = self
        growth = self.growth if self.rank_limit else 0.0  # new directions per row
        while state.basis is not None:
            block = next(blocks, None)
            if block is None:
                return state
            n_rows = len(block[0])
            n_coming = 0
            if growth:
                n_coming = max(self.count + rows - state.count, n_rows)
            rank = state.order + growth * n_coming
            if state.solver == "auto" and not state._stays_compact(
                rank, state.count + n_coming
            ):
                remaining = itertools.chain([block], blocks)
                return state._dense()._accumulate_dense(remaining, sign)
            before = state.order
            state = state._accumulate_compact(*block, sign)._dense_if_cheaper()
            growth = (state.order - before) / max(n_rows, 1)
        return state._accumulate_dense(blocks, sign)

    def _accumulate_dense(self, batches: Iterable[Batch], sign: int) -> Self:
        """Learn or unlearn batches in the dense form, with one copy of the matrices."""
        gram = self.gram
        cross = self.cross.clone()
        count = 0
        sq_targets = 0.0
        for H, Y, columns in batches:
            if gram is self.gram:  # the first batch allocates the new matrix
                gram = torch.addmm(gram, H.T, H, alpha=sign)
            else:
                gram = gram.addmm_(H.T, H, alpha=sign)
            _add_products(cross, H, Y, columns, sign)
            count += H.shape[0]
            sq_targets += float(Y.square().sum())
        return dataclasses.replace(
            self,
            gram=gram,
            cross=cross,
            count=self.count + sign * count,
            sq_targets=self.sq_targets + sign * sq_targets,
        )

    def _accumulate_compact(
        self, H: Tensor, Y: Tensor, columns: Tensor | None, sign: int
    ) -> Self:
        """Learn one block. Learned rows extend the basis, unlearned ones do not."""
        basis = self.basis
        gram = self.gram
        cross = self.cross.clone()
        lost = 0.0
        rows = self.project(H)
        if sign > 0 and basis is not None:
            extension, lost = _extend_basis(basis, H, rows, BUDGET_SHARE * self.left)
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
            count=self.count + sign * H.shape[0],
            sq_targets=self.sq_targets + sign * float(Y.square().sum()),
        )

    def without_unused_directions(self) -> Self:
        """Return the compact form without directions that no remaining row occupies.

        Unlearned rows leave their directions in the basis. Directions whose energy is
        within rounding or within the error budget of one step are dropped. The dense
        form has no basis and is returned unchanged.
        """
        if self.basis is None:
            return self
        values, vectors = symmetric_eigh(self.gram)
        eps = float(torch.finfo(values.dtype).eps)
        rounding = self.order * eps * float(values[-1].clamp_min(0.0))
        kept = values > max(rounding, BUDGET_SHARE * self.left)
        kept[-1] = True  # a basis has at least one direction
        lost = 0.0
        if bool((~kept).any()):
            lost = float(values[~kept].max().clamp_min(0.0))
        turned = vectors[:, kept]
        return dataclasses.replace(
            self,
            basis=self.basis @ turned,
            gram=torch.diag(values[kept].clamp_min(0.0)),
            cross=turned.T @ self.cross,
            left=max(self.left - lost, 0.0),
            dropped=self.dropped + lost,
        )

    def merge(self, other: RidgeStatistics, sign: int = 1) -> Self:
        """Return the sum of both statistics, or the difference with ``sign=-1``.

        The form is that of these statistics, or the cheaper one with ``solver="auto"``.
        Two states a and b that continued from copies of one base are joined by
        ``a.merge(b).merge(base, sign=-1)``, which counts the base once.

        Parameters
        ----------
        other : RidgeStatistics
            Statistics of the same shape, in any form.
        sign : {1, -1}
            -1 subtracts.
        """
        count = self.count + sign * other.count
        sq_targets = self.sq_targets + sign * other.sq_targets
        # A subtraction does not bring dropped energy back.
        dropped = self.dropped + max(sign, 0) * other.dropped
        if self.basis is None or (other.basis is None and self.solver == "auto"):
            own = self._dense()
            added = other._dense()
            return dataclasses.replace(
                own,
                gram=own.gram + sign * added.gram.to(self.device),
                cross=own.cross + sign * added.cross.to(self.device),
                count=count,
                sq_targets=sq_targets,
                dropped=dropped,
            )
        # Pseudo-rows bring the Gram matrix, then the cross products are added.
        merged = self
        rows = _pseudo_rows(other).to(self.device)
        for part in torch.split(rows, BLOCK_ROWS):
            no_targets = part.new_zeros(part.shape[0], self.n_targets)
            merged = merged._accumulate_compact(part, no_targets, None, sign)
        lifted = other.lift(other.cross).to(self.device)
        return dataclasses.replace(
            merged,
            cross=merged.cross + sign * merged.project(lifted.T).T,
            count=count,
            sq_targets=sq_targets,
            dropped=dropped + (merged.dropped - self.dropped),
        )._dense_if_cheaper()

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the statistics are plausible."""
        check_gram("gram", self.gram)
        require(
            self.solver in ("auto", "dense", "compact"),
            f"its form cannot be {self.solver!r}",
        )
        if self.basis is not None:
            require(
                0 < self.basis.shape[1] <= self.basis.shape[0],
                "its basis has no columns, or more columns than rows",
            )
            # Only lengths are checked: all inner products would be too expensive.
            lengths = self.basis.square().sum(dim=0)
            require(
                bool((lengths - 1.0).abs().amax() < 1e-6),
                "the columns of its basis do not have length 1",
            )


def _add_products(
    cross: Tensor, rows: Tensor, Y: Tensor, columns: Tensor | None, sign: int
) -> None:
    """Add ``H^T Y`` of rows (n, k) and targets to the sums (k, C), in place."""
    if columns is None:
        cross.addmm_(rows.T, Y, alpha=sign)
    else:
        cross.index_add_(1, columns, rows.T @ Y, alpha=sign)


def _pseudo_rows(stats: RidgeStatistics) -> Tensor:
    """Return rows F (m, L) with the Gram matrix of `stats`, ``F^T F = G``."""
    values, vectors = symmetric_eigh(stats.gram)
    kept = values > 0.0
    factor = (values[kept].sqrt() * vectors[:, kept]).T
    if stats.basis is None:
        return factor
    return factor @ stats.basis.T


# -- the basis of the compact form -----------------------------------------------------


def _extend_basis(
    basis: Tensor, H: Tensor, rows: Tensor, allowance: float
) -> tuple[Tensor | None, float]:
    """Find new basis columns for H, so that the rest R has ``|R R^T| <= allowance``.

    Parameters
    ----------
    basis : Tensor of shape (L, k)
        Basis so far.
    H : Tensor of shape (n, L)
        Rows to be represented.
    rows : Tensor of shape (n, k)
        ``C = H V``, the rows in the basis so far.
    allowance : float
        Energy that may be dropped.

    Returns
    -------
    extension : Tensor of shape (L, m) or None
        New columns. None if none are needed.
    lost : float
        Bound on the dropped energy ``|R R^T|``.
    """
    n_features = basis.shape[0]
    if basis.shape[1] >= n_features:
        return None, 0.0
    eps = float(torch.finfo(H.dtype).eps)
    energy = H.square().sum(dim=1)
    outside = float((energy - rows.square().sum(dim=1)).clamp_min_(0.0).sum())
    rounding = 64 * eps * float(energy.sum())
    if outside + rounding <= allowance:
        return None, outside + rounding  # the trace of R R^T bounds its norm
    # R R^T = H H^T - C C^T can be computed without R, if rounding permits.
    if rounding <= 0.1 * allowance:
        remainder_gram = torch.addmm(H @ H.T, rows, rows.T, alpha=-1.0)
    else:
        remainder = H - rows @ basis.T
        # A second pass is needed if the remainder is tiny (Kahan, Parlett).
        remainder -= (remainder @ basis) @ basis.T
        remainder_gram = remainder @ remainder.T
        rounding = 0.0
    values, vectors = symmetric_eigh(remainder_gram)
    # Eigenvectors of R R^T give new columns, unless their energy may be dropped.
    keep = values > max(allowance, eps * float(values[-1]), eps * float(energy.max()))
    lost = 0.0
    if bool((~keep).any()):
        lost = float(values[~keep].max().clamp_min(0.0)) + rounding
    if not bool(keep.any()):
        return None, lost
    kept = vectors[:, keep]
    directions = H.T @ kept - basis @ (rows.T @ kept)
    # The second pass removes rounding left by the first one.
    for _ in range(2):
        directions /= torch.linalg.vector_norm(directions, dim=0)
        directions -= basis @ (basis.T @ directions)
        directions = _orthonormal(directions)
    return directions[:, : n_features - basis.shape[1]], lost


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis (L, m) of the span of columns (L, m).

    Uses a Cholesky factorisation if that is well-conditioned, and QR otherwise.
    """
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
    """Return sums of groups of columns.

    Parameters
    ----------
    matrix : Tensor
        The columns along `dim`.
    groups : sequence of sequences of int
        Old columns that each new column is the sum of. Empty for a column of zeros.
    dim : int, default=1
        Dimension of the columns.

    Returns
    -------
    Tensor
        `matrix` itself if the groups leave it unchanged.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.linalg.statistics import sum_columns
    >>> sum_columns(torch.tensor([[1.0, 2.0, 4.0]]), [[1], [0, 2], []]).tolist()
    [[2.0, 5.0, 0.0]]
    """
    identity = [[column] for column in range(matrix.shape[dim])]
    if [list(group) for group in groups] == identity:
        return matrix
    pairs = [(new, old) for new, group in enumerate(groups) for old in group]
    indices = torch.tensor(pairs, dtype=torch.long, device=matrix.device)
    new, old = indices.view(-1, 2).unbind(dim=1)
    shape = list(matrix.shape)
    shape[dim] = len(groups)
    return matrix.new_zeros(shape).index_add_(dim, new, matrix.index_select(dim, old))


def check_gram(name: str, gram: Tensor) -> None:
    """Check the diagonal of a Gram matrix (k, k).

    Raises
    ------
    FileFormatError
        If the diagonal is negative or so large that sums overflow.
    """
    require(len(gram) > 0, f"{name!r} is empty")
    scale = float(gram.diagonal().abs().amax())
    require(
        scale * len(gram) < _LARGEST_SUM, f"{name!r} has numbers too large to be added"
    )
    # Rounding after unlearning may leave slightly negative values.
    require(
        float(gram.diagonal().amin()) >= -1e-9 * scale,
        f"{name!r} has a negative diagonal",
    )


def check_size(name: str, rows: Tensor) -> None:
    """Check that squares of the features neither overflow nor all underflow.

    Raises
    ------
    InputError
        If the largest absolute value of `rows` (n, L) is out of range.
    """
    if not rows.numel():
        return
    lowest, highest = torch.aminmax(rows)
    largest = max(-float(lowest), float(highest))
    if not (largest == 0.0 or 1.0 / LARGEST <= largest <= LARGEST):
        raise InputError(
            f"{name} must have numbers between {1 / LARGEST:g} and {LARGEST:g}, so "
            f"that their squares can be added, got {largest:.3g}. Scale the features."
        )
