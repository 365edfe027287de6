"""AnaCP: analytic contrastive projection, heads that pull features to contrasted prototypes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.errors import UnsupportedError
from evergrow.core.record import Spec, require
from evergrow.core.seeding import derive_seed, generator, resolve_seed
from evergrow.core.validation import (
    LARGEST_WIDTH,
    MOST_ROUNDS,
    check_choice,
    check_number,
)
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
"""Size of the activations of pseudo-features that are held at once: small enough to stay near the processor."""

SINGLE_FROM = 1024
"""Width from which ``dtype="auto"`` passes pseudo-features through the layers in float32, as the official code does."""


@dataclass(frozen=True)
class _Maps:
    """What maps features to scores, in the type that the layers are evaluated in.

    Parameters
    ----------
    heads : list of Tensor of shape (D, C)
        Ridge weights of each head, to one-hot targets.
    prototypes : Tensor of shape (C, d)
        Targets; head weights times these are the official theta.
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
    """Analytic contrastive projection (AnaCP; Momeni, Mazumder, Ke and Liu, NeurIPS 2025).

    Features are L2-normalised. From class means and a shared covariance, target
    prototypes are made that lie further apart; each of a few heads, a random GELU layer
    with ridge regression, maps features to the prototype of their class; the mean of
    the heads' unit outputs goes through one more random GELU layer, on which a ridge
    classifier is solved from scratch on pseudo-features drawn from N(mu_c, Sigma). No
    sample is kept.

    Parameters
    ----------
    n_units : int
        D, width of every random layer. 5000: the AnaCP repository.
    alpha : float
        Ridge of heads and classifier. 100: the AnaCP repository.
    n_ensembles : int
        Heads. 3: the AnaCP repository.
    samples_per_class : int
        Pseudo-features drawn per class. 100: the AnaCP repository.
    variant : {"code", "paper"}
        Where code and paper disagree. ``"code"``, which produced the published numbers:
        prototypes centred, whitened, one added to every singular value, whitened
        *again*; the covariance gives the newest of t equal tasks the weight 1 / (t + 1)
        and begins at 1e-4 I. ``"paper"``: not centred, every singular value moved by
        one against the gradient of the mean absolute cosine, un-whitened; the
        covariance is the sample-weighted average plus 1e-4 I.
    dtype : {"auto", "float64", "float32"}
        In which features and pseudo-features go through the layers. ``"auto"``: float64
        below 1024 units, else float32 as in the repository; statistics and solves are
        float64 always.
    random_state : int, numpy generator or None
        Seed of layers and pseudo-features. The classifier's layer is number 0, the
        heads' follow, as in the code.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.

    Notes
    -----
    The pseudo-features of the class at position c always use the same normal numbers,
    so that the answer depends on what was learned and not on how often it was asked
    for. One singular value is null through centring; the code adds one to it too, in a
    direction that is rounding noise. Here that is the direction of the centre
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
            check_number(name, getattr(self, name), low=1, high=high, integer=True)
        check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("variant", self.variant, ("code", "paper"))
        check_choice("dtype", self.dtype, ("auto", "float64", "float32"))

    def _reset(self) -> None:
        for name in ("_heads", "_gaussian", "_output", "_maps", "_classifier", "_seed"):
            self.__dict__.pop(name, None)

    # -- learning ----------------------------------------------------------------------

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
        self._commit(
            learned, gaussian.add(normalize(Z, "l2"), codes, labels.groups), output
        )

    def _regroup(self, change: ClassChange) -> None:
        if change.order is None:
            raise UnsupportedError("method 'anacp' cannot make several classes one")
        # The running covariance of the official code is centred batch by batch on the
        # means there were, so that two classes cannot become one as if they had been
        # learned so; their order can change.
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

    # -- answering ---------------------------------------------------------------------

    def _work_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            if self.n_units < SINGLE_FROM:
                return torch.float64
            return torch.float32
        if self.dtype == "float64":
            return torch.float64
        return torch.float32

    def _lift(self, X: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the last layer's activations of rows X, chunk by chunk.

        A head's output is ``l P`` with l the scores (n, C) of its ridge regression,
        because theta = (A + alpha I)^-1 Q P. So ``u R_0 = (mean_h l_h / |l_h P|) (P
        R_0)``, and C numbers a row go into the last layer instead of d.
        """
        X = X.to(self._work_dtype())
        step = max(1, CHUNK_BYTES // (self.n_units * X.element_size()))
        for start in range(0, X.shape[0], step):
            rows = slice(start, min(start + step, X.shape[0]))
            total = X.new_zeros(rows.stop - rows.start, len(self._maps.prototypes))
            for head, weights in zip(self._heads, self._maps.heads):
                scores = head.layer.transform(X[rows]) @ weights
                total += scores / (scores @ self._maps.prototypes).norm(
                    dim=1, keepdim=True
                ).clamp_min(1e-12)
            yield (
                rows,
                torch.nn.functional.gelu(
                    (total / len(self._heads)) @ self._maps.output
                ),
            )

    def _solve(self) -> None:
        """Fit heads to prototypes, then the classifier to pseudo-features."""
        alpha = float(self.alpha)
        dtype = self._work_dtype()
        prototypes = target_prototypes(self._gaussian)
        weights = [head.state.solve(alpha).weights.to(dtype) for head in self._heads]
        output = prototypes @ input_weights(self._output.units()).to(prototypes)
        self._maps = _Maps(weights, prototypes.to(dtype), output.to(dtype))
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
        """Draw from N(mu_c, Sigma) for every class."""
        means = self._gaussian.means.to(self._work_dtype())
        count = self.samples_per_class
        lower = safe_cholesky(self._gaussian.covariance()).lower.to(means)
        normals = [
            torch.randn(
                count,
                means.shape[1],
                generator=generator(self._seed, "anacp", "pseudo", index),
            )
            for index in range(len(means))
        ]
        noise = torch.cat(normals).to(means)
        codes = torch.arange(len(means), device=means.device).repeat_interleave(count)
        return means[codes] + noise @ lower.T, codes

    def _solve_order(self) -> float:
        return self.n_units

    def _settle(self) -> None:
        if "_classifier" not in vars(self):
            self._solve()

    def _scores(self, Z: Tensor) -> Tensor:
        self._settle()
        classifier = self._classifier.to(self._work_dtype())
        return torch.cat(
            [H @ classifier for _, H in self._lift(normalize(Z, "l2"))]
        ).to(Z.dtype)

    # -- files -------------------------------------------------------------------------

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
        count = len(learned.heads)
        require(
            count == self.n_ensembles, f"it has {count} heads of {self.n_ensembles}"
        )
        heads = [self._check_model(head) for head in learned.heads]
        layers = [learned.output, *(head.layer for head in heads)]
        right = all(
            (layer.n_features_in, layer.n_outputs) == (width, self.n_units)
            for layer in layers
        )
        require(right, "its layers are of another width than its settings say")
        check_counts(counts, len(self.classes_))
        require(
            all(torch.equal(head.counts, counts) for head in heads),
            "its heads learned other samples",
        )
        require(len(learned.sums) == width, "'sums' are of features of another width")
        check_gram("spread", learned.spread)
        self._seed = learned.seed
        self._commit(
            heads,
            SharedGaussian(learned.sums, counts, learned.spread, self.variant),
            learned.output,
        )
