"""LoRanPAC: a very wide random layer and an incremental truncated SVD."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH
from evergrow.core.record import Between, Spec, require
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Seed
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers import FeatureMap
from evergrow.head.layers.feature_map import check_contrast
from evergrow.head.linalg.statistics import check_gram, check_size, sum_columns
from evergrow.head.ridge_model import LayerMap
from evergrow.lab.heads.random_layer import one_hot
from evergrow.lab.layers import GaussianLayer
from evergrow.lab.truncated import TruncatedBasis

MAX_FLOAT64_UNITS = 20_000
"""Widest layer that ``dtype="auto"`` computes in float64, to bound memory."""


class WideLayer(GaussianLayer):
    """A layer for heads without matrices of its order.

    10,000 buffered rows of the largest one take 20 GiB.
    """

    largest: ClassVar[int] = 262_144


@dataclass(frozen=True, eq=False)
class _Learned:
    seed: Seed
    count: Annotated[int, Between(1, 2**53)]
    layer: FeatureMap
    cross: Annotated[Tensor, Spec(("L", "C"), dtype=None)]
    basis: Annotated[Tensor, Spec(("L", "k"), dtype=None)]
    core: Annotated[Tensor, Spec(("k", "k"), symmetric=True)]


@HEADS.register("loranpac")
@dataclass(eq=False, repr=False)
class LoRanPACClassifier(IncrementalClassifier):
    """LoRanPAC, formerly TSVD (Peng, Elenter, Agterberg, Ribeiro, Vidal, ICLR 2025).

    Low-rank random projections: ``h = ReLU(z W)`` with E unit normal units. Instead of
    an E x E Gram matrix, the head keeps the leading singular directions U of all lifted
    features and truncates them after every update. Class scores are ``h U (Sigma^2 +
    alpha I)^-1 U^T sum h y^T``. It keeps at most ``rank`` directions, and at most a
    fraction ``1 - truncate`` of the number of samples and of E. Memory is O(E (rank +
    classes)) for any number of tasks.

    The authors' repository (loranpac) rotates and re-orthonormalises the whole basis at
    every update and recomputes the weights at every forward batch. Here an update costs
    a few reflections (:mod:`evergrow.lab.truncated`), and the weights are solved once,
    at the first prediction. Singular values that are rounding noise are dropped instead
    of inverted. The method is unstable if alpha is 0 and the number of samples is close
    to E: the accuracy drops and recovers, as with the authors' code.

    Parameters
    ----------
    n_units : int
        Number of units, E. The default, 100,000, is that of the repository (150,000 for
        CDDB with adapters).
    rank : int
        Maximum number of directions. The default, 10,000, is that of the repository
        (20,000 for ObjectNet, OmniBenchmark and CDDB, 15,000 for CORe50 and DomainNet).
    truncate : float
        Fraction of directions to cut off. The default, 0.25, is that of the repository
        (0.2 in two of its configurations, 0.75 for DomainNet).
    alpha : float
        Ridge. The default, 0, is that of the repository.
    batch_size, buffer_rows : int
        Lifted features are gathered in mini-batches. They are absorbed when (number of
        batches) x (rows of the last batch) exceeds ``buffer_rows``, and at the end of
        every update. The defaults are those of the repository without first-session
        adaptation.
        Memory holds ``buffer_rows`` x E numbers at a time.
    dtype : {"auto", "float64", "float32"}
        Type of lifted features and basis. ``"auto"``: float64 up to 20,000 units,
        otherwise float32 as in the repository. The small core matrix always uses
        float64.
    random_state : int, numpy generator or None
        Seed of the layer.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    rank_ : int
        Number of directions in use.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import LoRanPACClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = LoRanPACClassifier(n_units=1000, rank=300, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task] / 16, y[task])
    >>> model.score(X / 16, y) > 0.95, model.rank_
    (True, 300)
    """

    learned_as: ClassVar[type] = _Learned

    n_units: int = 100_000
    rank: int = 10_000
    truncate: float = 0.25
    alpha: float = 0.0
    batch_size: int = 1000
    buffer_rows: int = 10_000
    dtype: str = "auto"
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        # No matrix has the order of the layer here, only tall ones of `rank` columns.
        check_integer("n_units", self.n_units, high=WideLayer.largest)
        for name in ("rank", "batch_size", "buffer_rows"):
            check_integer(name, getattr(self, name), high=LARGEST_WIDTH)
        check_number("truncate", self.truncate, low=0, high=1, high_open=True)
        check_number("alpha", self.alpha, low=0)
        check_choice("dtype", self.dtype, ("auto", "float64", "float32"))

    def _work_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            double = self.n_units <= MAX_FLOAT64_UNITS
        else:
            double = self.dtype == "float64"
        return torch.float64 if double else torch.float32

    def _rank_limit(self, count: int) -> int:
        """Return the maximum number of directions after ``count`` samples."""
        kept = 1.0 - self.truncate
        return max(min(round(kept * count), self.rank, round(kept * self.n_units)), 1)

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        dtype = self._work_dtype()
        n_classes = len(labels.classes)
        if "_layer" in vars(self):
            layer = self._layer
            basis = self._basis
            count = self._count
            cross = sum_columns(self._cross, labels.groups)
        else:
            self._seed = resolve_seed(self.random_state)
            units = WideLayer(self.n_units, activation="relu", bias="none")
            layer = units.build(Z, Z, seed=self._seed)
            check_contrast(layer, Z)
            basis = TruncatedBasis.empty(self.n_units, dtype, Z.device)
            count = 0
            cross = torch.zeros(self.n_units, n_classes, dtype=dtype, device=Z.device)
        for rows in self._buffered_rows(Z.shape[0]):
            H = layer.transform(Z[rows].to(dtype))
            check_size("X", H)
            count += H.shape[0]
            cross = cross.addmm(H.T, one_hot(codes[rows], n_classes, H))
            basis = basis.absorb(H, self._rank_limit(count))
        self._commit(layer, basis, cross, count)

    def _regroup(self, change: ClassChange) -> None:
        cross = sum_columns(self._cross, change.groups)
        self._commit(self._layer, self._basis, cross, self._count)

    def _buffered_rows(self, n: int) -> Iterator[slice]:
        """Yield slices of rows that are absorbed together."""
        start = 0
        batches = 0
        for stop in [*range(self.batch_size, n, self.batch_size), n]:
            batches += 1
            last = stop - (stop - 1) // self.batch_size * self.batch_size
            if batches * last > self.buffer_rows or stop == n:
                yield slice(start, stop)
                start = stop
                batches = 0

    def _commit(
        self, layer: FeatureMap, basis: TruncatedBasis, cross: Tensor, count: int
    ) -> None:
        self._layer = layer
        self._basis = basis
        self._cross = cross
        self._count = count
        self.__dict__.pop("_weights", None)

    def _solve_order(self) -> float:
        return self._basis.rank

    def _settle(self) -> None:
        if "_weights" not in vars(self):
            self._weights = self._basis.solve(self._cross, float(self.alpha))

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU."""
        self._require_fitted()
        self._settle()
        weights = self._weights.cpu()
        constant = weights.new_zeros(weights.shape[1])
        return LayerMap(
            "none", self._layer.units(), weights, None, constant, weights.dtype
        )

    def _scores(self, Z: Tensor) -> Tensor:
        self._settle()
        parts = [
            H @ self._weights
            for _, H in self._layer.iter_transform(Z.to(self._weights.dtype))
        ]
        return torch.cat(parts).to(Z.dtype)

    def _contents(self) -> _Learned:
        return _Learned(
            self._seed,
            self._count,
            self._layer,
            self._cross,
            self._basis.basis,
            self._basis.core,
        )

    def _restore(self, learned: _Learned) -> None:
        layer = learned.layer
        basis = learned.basis
        cross = learned.cross
        dtype = self._work_dtype()
        require(
            layer.n_features_in == self.n_features_in_,
            "its layer is for features of another width",
        )
        require(
            basis.dtype == dtype and len(basis) == layer.n_outputs,
            "'basis' does not fit its layer and settings",
        )
        fits = cross.dtype == dtype and cross.shape[1] == len(self.classes_)
        require(fits, "'cross' does not fit its classes and settings")
        check_gram("core", learned.core)
        self._seed = learned.seed
        self._commit(layer, TruncatedBasis(basis, learned.core), cross, learned.count)

    @property
    def rank_(self) -> int:
        """Number of directions in use."""
        self._require_fitted()
        return self._basis.rank

    @property
    def singular_values_(self) -> list[float]:
        """Singular values in use, largest first."""
        self._require_fitted()
        return [float(value) for value in self._basis.singular_values()]
