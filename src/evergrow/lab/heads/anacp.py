"""AnaCP: heads that map features to contrastive class prototypes, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH, MOST_ROUNDS
from evergrow.core.errors import UnsupportedError
from evergrow.core.record import Spec, require
from evergrow.core.seeding import derive_seed, generator, resolve_seed
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Seed
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers import FeatureMap
from evergrow.head.layers.feature_map import normalize
from evergrow.head.linalg.factor import safe_cholesky
from evergrow.head.linalg.statistics import check_gram
from evergrow.head.ridge_model import RidgeModel
from evergrow.lab.heads.prototypes import (
    SharedGaussian,
    check_counts,
    target_prototypes,
)
from evergrow.lab.heads.random_layer import empty_model, one_hot
from evergrow.lab.layers.gaussian import GaussianLayer, input_weights

CHUNK_BYTES = 8 * 2**20
"""Activations of pseudo-features computed at once, small enough for the CPU cache."""

FLOAT32_FROM_UNITS = 1024
"""Width from which ``dtype="auto"`` uses float32 layers, as the official code."""


@dataclass(frozen=True)
class _SolvedMaps:
    """Matrices that map features to class scores, in the dtype of the layers.

    Parameters
    ----------
    heads : list of Tensor of shape (D, C)
        Ridge weights of each head, fitted to one-hot targets.
    prototypes : Tensor of shape (C, d)
        Targets. Head weights times prototypes are theta in the official code.
    output : Tensor of shape (C, D)
        Prototypes times the weights of the last layer.
    """

    heads: list[Tensor]
    prototypes: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class _Learned:
    seed: Seed
    heads: tuple[RidgeModel, ...]
    output: FeatureMap
    counts: Annotated[Tensor, Spec(("C",), "int64")]
    spread: Annotated[Tensor, Spec(("d", "d"), symmetric=True)]
    sums: Annotated[Tensor, Spec(("d", "C"))]


@HEADS.register("anacp")
@dataclass(eq=False, repr=False)
class AnaCPClassifier(IncrementalClassifier):
    """AnaCP (Momeni, Mazumder, Ke and Liu, NeurIPS 2025).

    Analytic contrastive projection. Features are L2-normalised. The class means and a
    shared covariance give target prototypes that lie further apart than the means. Each
    head, a random GELU layer with ridge regression, maps features to the prototype of
    their class. The mean of the normalised head outputs enters one more random GELU
    layer. A ridge classifier on that layer is solved from scratch on pseudo-features
    drawn from N(mu_c, Sigma). No sample is stored.

    Parameters
    ----------
    n_units : int
        D, width of every random layer. The default, 5000, is that of the AnaCP
        repository.
    alpha : float
        Ridge of heads and classifier. The default, 100, is that of the AnaCP
        repository.
    n_ensembles : int
        Number of heads. The default, 3, is that of the AnaCP repository.
    samples_per_class : int
        Pseudo-features drawn per class. The default, 100, is that of the AnaCP
        repository.
    variant : {"code", "paper"}
        Which description to follow; the two disagree. ``"code"`` produced the published
        numbers: prototypes are centred, whitened, one is added to every singular value,
        and they are whitened *again*. The covariance starts at 1e-4 I and gives the
        newest of t equal tasks the weight 1 / (t + 1). ``"paper"``: prototypes are not
        centred, every singular value moves by one against the gradient of the mean
        absolute cosine, and they are un-whitened. The covariance is the sample-weighted
        average plus 1e-4 I.
    dtype : {"auto", "float64", "float32"}
        Type of features and pseudo-features in the layers. ``"auto"``: float64 below
        1024 units, otherwise float32 as in the repository. Statistics and solves always
        use float64.
    random_state : int, numpy generator or None
        Seed of layers and pseudo-features. As in the code, the layer of the classifier
        is number 0 and the layers of the heads follow.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.

    Notes
    -----
    The pseudo-features of class index c always use the same normal numbers, so
    predictions do not depend on how often the head was solved. Centring makes one
    singular value zero. The official code adds one to it too, in a direction that is
    rounding noise. Here the direction is that of the centre
    (:func:`evergrow.lab.heads.prototypes.null_direction`).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import AnaCPClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = AnaCPClassifier(n_units=300, alpha=1.0, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task], y[task])
    >>> model.score(X, y) > 0.93
    True
    """

    learned_as: ClassVar[type] = _Learned

    n_units: int = 5000
    alpha: float = 100.0
    n_ensembles: int = 3
    samples_per_class: int = 100
    variant: str = "code"
    dtype: str = "auto"
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        for name, high in (
            ("n_units", LARGEST_WIDTH),
            ("n_ensembles", MOST_ROUNDS),
            ("samples_per_class", LARGEST_WIDTH),
        ):
            check_integer(name, getattr(self, name), high=high)
        check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("variant", self.variant, ("code", "paper"))
        check_choice("dtype", self.dtype, ("auto", "float64", "float32"))

    def _layer(self, index: int, Z: Tensor) -> FeatureMap:
        layer = GaussianLayer(self.n_units, activation="gelu", bias="none")
        return layer.build(Z, Z, seed=derive_seed(self._seed, "anacp", index))

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        if "_heads" in vars(self):
            heads = self._heads
            gaussian = self._gaussian
            output = self._output
        else:
            self._seed = resolve_seed(self.random_state)
            output = self._layer(0, Z)
            ridge = float(self.alpha)
            layers = [self._layer(index + 1, Z) for index in range(self.n_ensembles)]
            heads = [empty_model(layer, ridge, "l2") for layer in layers]
            gaussian = SharedGaussian.empty(Z.shape[1], self.variant, Z)
        learned = [head.learn(Z, codes, labels.groups) for head in heads]
        gaussian = gaussian.add(normalize(Z, "l2"), codes, labels.groups)
        self._commit(learned, gaussian, output)

    def _regroup(self, change: ClassChange) -> None:
        if change.order is None:
            raise UnsupportedError("method 'anacp' cannot make several classes one")
        # Each batch of the official running covariance is centred on the class means at
        # that time. Merging classes would need other means; reordering does not.
        heads = [head.group(change.groups) for head in self._heads]
        self._commit(heads, self._gaussian.group(change.groups), self._output)

    def _commit(
        self, heads: list[RidgeModel], gaussian: SharedGaussian, output: FeatureMap
    ) -> None:
        self._heads = heads
        self._gaussian = gaussian
        self._output = output
        for name in ("_maps", "_classifier"):
            self.__dict__.pop(name, None)

    def _work_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            single = self.n_units >= FLOAT32_FROM_UNITS
        else:
            single = self.dtype == "float32"
        return torch.float32 if single else torch.float64

    def _lift(self, X: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the activations of the last layer for rows of X, chunk by chunk.

        The output of a head is ``l P`` with l the scores (n, C) of its ridge
        regression, because theta = (A + alpha I)^-1 Q P. So ``u R_0 =
        (mean_h l_h / |l_h P|) (P R_0)``: the last layer gets C numbers per row, not d.
        """
        maps = self._maps
        X = X.to(self._work_dtype())
        step = max(1, CHUNK_BYTES // (self.n_units * X.element_size()))
        for start in range(0, X.shape[0], step):
            rows = slice(start, min(start + step, X.shape[0]))
            total = X.new_zeros(rows.stop - rows.start, len(maps.prototypes))
            for head, weights in zip(self._heads, maps.heads):
                scores = head.layer.transform(X[rows]) @ weights
                lengths = (scores @ maps.prototypes).norm(dim=1, keepdim=True)
                total += scores / lengths.clamp_min(1e-12)
            mean = total / len(self._heads)
            yield rows, torch.nn.functional.gelu(mean @ maps.output)

    def _solve(self) -> None:
        """Fit the heads to the prototypes, then the classifier to pseudo-features."""
        alpha = float(self.alpha)
        dtype = self._work_dtype()
        prototypes = target_prototypes(self._gaussian)
        weights = [head.state.solve(alpha).weights.to(dtype) for head in self._heads]
        output = prototypes @ input_weights(self._output.units()).to(prototypes)
        self._maps = _SolvedMaps(weights, prototypes.to(dtype), output.to(dtype))
        X, codes = self._pseudo_features()
        Y = one_hot(codes, len(prototypes), prototypes)
        if X.shape[0] < self.n_units:
            H = torch.cat([part for _, part in self._lift(X)]).to(Y.dtype)
            self._classifier = H.T @ safe_cholesky(H @ H.T, shift=alpha).solve(Y)
            return
        gram = Y.new_zeros(self.n_units, self.n_units)
        cross = Y.new_zeros(self.n_units, len(prototypes))
        for rows, H in self._lift(X):
            gram += H.T @ H
            cross += H.T @ Y[rows].to(dtype)
        self._classifier = safe_cholesky(gram, shift=alpha).solve(cross)

    def _pseudo_features(self) -> tuple[Tensor, Tensor]:
        """Draw the pseudo-features of every class from N(mu_c, Sigma)."""
        means = self._gaussian.means.to(self._work_dtype())
        n_classes, width = means.shape
        count = self.samples_per_class
        lower = safe_cholesky(self._gaussian.covariance()).lower.to(means)
        normals = []
        for index in range(n_classes):
            stream = generator(self._seed, "anacp", "pseudo", index)
            normals.append(torch.randn(count, width, generator=stream))
        noise = torch.cat(normals).to(means)
        codes = torch.arange(n_classes, device=means.device).repeat_interleave(count)
        return means[codes] + noise @ lower.T, codes

    def _solve_order(self) -> float:
        return self.n_units

    def _settle(self) -> None:
        if "_classifier" not in vars(self):
            self._solve()

    def _scores(self, Z: Tensor) -> Tensor:
        self._settle()
        classifier = self._classifier.to(self._work_dtype())
        parts = [H @ classifier for _, H in self._lift(normalize(Z, "l2"))]
        return torch.cat(parts).to(Z.dtype)

    def _contents(self) -> _Learned:
        gaussian = self._gaussian
        return _Learned(
            self._seed,
            tuple(self._heads),
            self._output,
            gaussian.counts,
            gaussian.spread,
            gaussian.sums,
        )

    def _restore(self, learned: _Learned) -> None:
        width = self.n_features_in_
        counts = learned.counts
        n_heads = len(learned.heads)
        expected = self.n_ensembles
        require(n_heads == expected, f"it has {n_heads} heads of {expected}")
        heads = [self._check_model(head) for head in learned.heads]
        layers = [learned.output, *(head.layer for head in heads)]
        same_widths = all(
            (layer.n_features_in, layer.n_outputs) == (width, self.n_units)
            for layer in layers
        )
        require(same_widths, "its layers have another width than its settings")
        check_counts(counts, len(self.classes_))
        same_counts = all(torch.equal(head.counts, counts) for head in heads)
        require(same_counts, "its heads have learned other samples")
        require(len(learned.sums) == width, "'sums' are of features of another width")
        check_gram("spread", learned.spread)
        self._seed = learned.seed
        gaussian = SharedGaussian(learned.sums, counts, learned.spread, self.variant)
        self._commit(heads, gaussian, learned.output)
