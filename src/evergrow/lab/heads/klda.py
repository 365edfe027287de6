"""KLDA: a linear discriminant on random Fourier features, with an ensemble."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH, MOST_ROUNDS
from evergrow.core.errors import UnsupportedError
from evergrow.core.record import Between, require
from evergrow.core.seeding import generator, resolve_seed
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Seed
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers.feature_map import DenseMap, check_contrast
from evergrow.head.layers.guided import UnitSampler
from evergrow.head.linalg.factor import safe_cholesky, symmetric_eigh
from evergrow.head.linalg.scatter import ClassGeometry
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map
from evergrow.lab.heads.random_layer import empty_model
from evergrow.lab.layers.gaussian import UNITS_PER_DRAW


@dataclass(frozen=True)
class Discriminant:
    """Linear scores ``h @ weights + offset``.

    Parameters
    ----------
    weights : Tensor of shape (L, C)
        ``B m_c`` in feature coordinates.
    offset : Tensor of shape (C,)
        ``-m_c^T B m_c / 2``.
    """

    weights: Tensor
    offset: Tensor


@dataclass(frozen=True, eq=False)
class _Learned:
    seed: Seed
    gamma: Annotated[float, Between(0.0)]
    members: tuple[RidgeModel, ...]


@HEADS.register("klda")
@dataclass(eq=False, repr=False)
class KLDAClassifier(IncrementalClassifier):
    """Kernel linear discriminant analysis (Momeni, Mazumder and Liu, AAAI 2025).

    With random Fourier features phi, class means mu_c and the pooled within-class
    scatter S (a sum, not divided by the number of samples), the logit of class c is
    ``-(phi - mu_c)^T (S + alpha I)^-1 (phi - mu_c)``, without a prior. Scores leave out
    ``phi^T (S + alpha I)^-1 phi``, which is the same for all classes. An ensemble of
    members with seeds s, s + 1, ... averages its softmax probabilities.

    S is the exact scatter around the class means of all samples, computed from sums, so
    batches may have any size and order. The authors' code (KLDA) centres every batch on
    the mean after that batch, which is equal if each class comes in one batch.

    Parameters
    ----------
    n_units : int
        D, random features. The default, 5000, is that of the KLDA repository.
    gamma : float or "median"
        Kernel ``exp(-gamma |z - z'|^2)``. ``"median"`` is ``0.5 / median squared
        distance`` on the first task, because no fixed value suits different backbones.
        Published values: 1e-4 (BART) and 1e-2, 5e-3, 5e-2, 5e-6 for other language
        models in the KLDA repository; 1e-4 (DINOv2) and 1e-2 (MoCo v3) in the AnaCP
        repository.
    alpha : float
        Ridge added to the scatter. The default, 1e-3, is that of the AnaCP repository
        for DINOv2 (1e-4 for MoCo v3).
    inverse : {"ridge", "pinv"}
        ``"ridge"``: invert ``S + alpha I``, as the AnaCP repository. ``"pinv"``:
        pseudo-inverse of S without alpha, as the KLDA repository. The original, in
        float32 with the default cut-off, inverts rounding noise while there are fewer
        samples than features. Here the cut-off is float64 rounding.
    n_ensembles : int
        Number of members. The default, 1, is that of the AnaCP repository, which is the
        only one with images. The KLDA repository has 5, for text.
    random_state : int, numpy generator or None
        Seed s.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    gamma_ : float
        Bandwidth in use.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import KLDAClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = KLDAClassifier(n_units=500, n_ensembles=2, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task], y[task])
    >>> model.score(X, y) > 0.97
    True
    """

    learned_as: ClassVar[type] = _Learned

    n_units: int = 5000
    gamma: float | str = "median"
    alpha: float = 1e-3
    inverse: str = "ridge"
    n_ensembles: int = 1
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        check_integer("n_units", self.n_units, high=LARGEST_WIDTH)
        check_integer("n_ensembles", self.n_ensembles, high=MOST_ROUNDS)
        check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("inverse", self.inverse, ("ridge", "pinv"))
        if isinstance(self.gamma, str):
            check_choice("gamma", self.gamma, ("median",))
        else:
            check_number("gamma", self.gamma, low=0, low_open=True)

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        if "_members" in vars(self):
            members = self._members
        else:
            members = self._first_members(Z)
        self._commit([member.learn(Z, codes, labels.groups) for member in members])

    def _regroup(self, change: ClassChange) -> None:
        self._commit([member.group(change.groups) for member in self._members])

    def _first_members(self, Z: Tensor) -> list[RidgeModel]:
        self._seed = resolve_seed(self.random_state)
        if isinstance(self.gamma, str):
            self._gamma = median_gamma(Z, self._seed)
        else:
            self._gamma = float(self.gamma)
        seeds = range(self._seed, self._seed + self.n_ensembles)
        layers = [fourier_units(Z, self.n_units, self._gamma, seed) for seed in seeds]
        for layer in layers:
            check_contrast(layer, Z)
        return [empty_model(layer, float(self.alpha)) for layer in layers]

    def _commit(self, members: list[RidgeModel]) -> None:
        self._members = members
        self.__dict__.pop("_readouts", None)

    def _solve_order(self) -> float:
        return max(member.state.order for member in self._members)

    def _settle(self) -> None:
        if "_readouts" not in vars(self):
            self._readouts = [self._solve(member) for member in self._members]

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU; not available for ensembles."""
        self._require_fitted()
        self._settle()
        if len(self._members) > 1:
            raise UnsupportedError(
                "method 'klda' with an ensemble cannot be written as plain matrices"
            )
        # Scores are twice the linear discriminant; see _logits.
        readout = self._readouts[0]
        return layer_map(self._members[0], 2.0 * readout.weights, 2.0 * readout.offset)

    def _scores(self, Z: Tensor) -> Tensor:
        self._settle()
        if len(self._members) == 1:
            return self._logits(0, Z)
        votes = [
            torch.softmax(self._logits(index, Z), dim=1)
            for index in range(len(self._members))
        ]
        return torch.stack(votes).mean(dim=0)

    def _logits(self, index: int, Z: Tensor) -> Tensor:
        # -(phi - mu)^T B (phi - mu) = 2 (phi^T B mu - mu^T B mu / 2) - phi^T B phi
        readout = self._readouts[index]
        parts = [
            torch.addmm(readout.offset, H, readout.weights)
            for _, H in self._members[index].activations(Z)
        ]
        return 2.0 * torch.cat(parts)

    def _solve(self, member: RidgeModel) -> Discriminant:
        geometry = ClassGeometry.of(member.state, member.counts)
        if self.inverse == "ridge":
            factor = safe_cholesky(geometry.scatter, shift=float(self.alpha))
            reduced = factor.solve(geometry.means)
        else:
            values, vectors = symmetric_eigh(geometry.scatter)
            # The scatter is the Gram matrix minus the part of the means, so its
            # rounding errors are relative to the Gram matrix.
            scale = float(geometry.stats.gram.diagonal().sum())
            nonzero = values > len(values) * torch.finfo(values.dtype).eps * scale
            basis = vectors[:, nonzero]
            reduced = basis @ ((basis.T @ geometry.means) / values[nonzero, None])
        offset = -0.5 * torch.einsum("kc,kc->c", geometry.means, reduced)
        return Discriminant(geometry.stats.lift(reduced), offset)

    def _contents(self) -> _Learned:
        return _Learned(self._seed, self._gamma, tuple(self._members))

    def _restore(self, learned: _Learned) -> None:
        count = len(learned.members)
        expected = self.n_ensembles
        require(count == expected, f"it has {count} members of {expected}")
        members = [self._check_model(member) for member in learned.members]
        same = all(torch.equal(member.counts, members[0].counts) for member in members)
        require(same, "its members have learned other samples")
        self._seed = learned.seed
        self._gamma = learned.gamma
        self._commit(members)

    @property
    def gamma_(self) -> float:
        """Bandwidth in use."""
        self._require_fitted()
        return self._gamma


def fourier_units(Z: Tensor, n_units: int, gamma: float, seed: int) -> DenseMap:
    """Draw random Fourier features of the kernel ``exp(-gamma |z - z'|^2)``.

    The weights are independent normal numbers.
    """
    sampler = UnitSampler(Z, (math.sqrt(2.0 * gamma),), "phases", seed, "fourier")
    weights, bias = sampler.draw_units(n_units, UNITS_PER_DRAW)
    return DenseMap(
        weights=weights, bias=bias, activation="cos", gain=math.sqrt(2.0 / n_units)
    )


def median_gamma(Z: Tensor, seed: int, rows: int = 1000) -> float:
    """Return ``0.5 / median squared distance`` over pairs of at most ``rows`` rows."""
    if Z.shape[0] > rows:
        order = torch.randperm(Z.shape[0], generator=generator(seed, "median"))
        Z = Z[order[:rows].to(Z.device)]
    squared = torch.nn.functional.pdist(Z.to(torch.float64)).square()
    median = float(squared.median()) if squared.numel() else 0.0
    return 0.5 / median if median > 0.0 else 1.0
