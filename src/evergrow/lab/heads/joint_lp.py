"""The joint linear probe: the reference that trains on all data at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from evergrow.core.bounds import LARGEST_WIDTH, MOST_ROUNDS
from evergrow.core.errors import FileFormatError
from evergrow.core.record import Spec, require
from evergrow.core.seeding import generator, resolve_seed
from evergrow.core.validation import check_choice, check_integer, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Seed
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers.feature_map import check_contrast, link_only, normalize
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map, solve_ridge


@dataclass(frozen=True, eq=False)
class _Learned:
    seed: Seed
    model: RidgeModel | None = None
    kept: Annotated[Tensor, Spec(("n", None), "float32")] | None = None
    codes: Annotated[Tensor, Spec(("n",), "int64")] | None = None


@HEADS.register("joint-lp")
@dataclass(eq=False, repr=False)
class JointLinearProbe(IncrementalClassifier):
    """A linear classifier trained jointly on all features seen so far.

    A reference for linear heads, not a continual learner. With ``solver="sgd"`` it
    **stores the features of every sample** in float32 and retrains from scratch at the
    first prediction after an update. With ``solver="analytic"`` the joint solution
    follows from sums, and no sample is stored.

    Parameters
    ----------
    solver : {"sgd", "analytic"}
        ``"sgd"``: the joint linear probe of the RanPAC repository, a cosine head with a
        learned scale under cross-entropy. It trains on features, so without image
        augmentation. ``"analytic"``: ridge regression on ``[z, 1]``. It is much faster
        and, as measured, 2 (birds) to 4 points (intents) less accurate.
    alpha : float or "gcv"
        Ridge of the analytic solver. ``"gcv"`` chooses it by generalised
        cross-validation on all data; this choice is ours.
    n_epochs, batch_size : int
        Passes over the samples, and samples per step. The defaults are those of the
        RanPAC repository.
    learning_rate, momentum, weight_decay : float
        Settings of stochastic gradient descent; the learning rate is constant. The
        defaults are those of the RanPAC repository.
    random_state : int, numpy generator or None
        Seed of initial weights and shuffling.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import JointLinearProbe
    >>> X, y = load_digits(return_X_y=True)
    >>> model = JointLinearProbe("analytic").fit(X[y < 5], y[y < 5])
    >>> _ = model.partial_fit(X[y >= 5], y[y >= 5])
    >>> model.score(X, y) > 0.93
    True
    """

    learned_as: ClassVar[type] = _Learned

    solver: str = "sgd"
    alpha: float | str = "gcv"
    n_epochs: int = 30
    batch_size: int = 128
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        check_choice("solver", self.solver, ("analytic", "sgd"))
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("gcv",))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)
        check_integer("n_epochs", self.n_epochs, high=MOST_ROUNDS)
        check_integer("batch_size", self.batch_size, high=LARGEST_WIDTH)
        check_number("learning_rate", self.learning_rate, low=0, low_open=True)
        check_number("momentum", self.momentum, low=0, high=1, high_open=True)
        check_number("weight_decay", self.weight_decay, low=0)

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        if "_seed" not in vars(self):
            self._seed = resolve_seed(self.random_state)
        if self.solver == "analytic":
            self._model = self._statistics(Z).learn(Z, codes, labels.groups)
        else:
            self._samples, self._codes = self._append(Z, codes, labels.groups)
        self.__dict__.pop("_readout", None)

    def _regroup(self, change: ClassChange) -> None:
        if self.solver == "analytic":
            self._model = self._model.group(change.groups)
        else:
            new_codes = torch.empty(
                len(self.classes_), dtype=torch.int64, device=self._codes.device
            )
            for new_code, group in enumerate(change.groups):
                new_codes[group] = new_code
            self._codes = new_codes[self._codes]
        self.__dict__.pop("_readout", None)

    def _statistics(self, Z: Tensor) -> RidgeModel:
        if "_model" in vars(self):
            return self._model
        layer = link_only(Z)
        check_contrast(layer, Z, least=1e-20)  # the constant has its own column
        state = RidgeStatistics.create(layer.n_outputs, 0, device=Z.device)
        return RidgeModel.start(layer, "none", state)

    def _append(
        self, Z: Tensor, codes: Tensor, groups: list[list[int]]
    ) -> tuple[Tensor, Tensor]:
        """Return all features so far and their class indices after the update."""
        Z = _to_float32(Z)
        if "_samples" not in vars(self):
            return Z, codes
        old_codes = torch.tensor(
            [group[0] if group else -1 for group in groups], device=codes.device
        )
        old_classes = torch.nonzero(old_codes >= 0).ravel()
        new_codes = torch.empty_like(old_classes)
        new_codes[old_codes[old_classes]] = old_classes
        samples = torch.cat([self._samples, Z])
        return samples, torch.cat([new_codes[self._codes], codes])

    def _solve_order(self) -> float:
        if self.solver == "analytic":
            return self._model.state.order
        return math.inf

    def _settle(self) -> None:
        if "_readout" not in vars(self):
            if self.solver == "analytic":
                self._readout = self._solve()
            else:
                self._readout = self._train()

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU."""
        self._require_fitted()
        self._settle()
        weights = self._readout.weights.cpu()
        if self.solver == "analytic":
            return layer_map(self._model, weights)
        return LayerMap("l2", None, None, weights, weights.new_zeros(weights.shape[1]))

    @property
    def model_(self) -> RidgeModel | None:
        """Immutable statistics of the analytic solver; None for ``solver="sgd"``."""
        self._require_fitted()
        return self._model if self.solver == "analytic" else None

    def _scores(self, Z: Tensor) -> Tensor:
        self._settle()
        readout = self._readout
        if self.solver == "sgd":
            return normalize(Z, "l2") @ readout.weights
        return self._model.layer.transform(Z) @ readout.weights

    def _solve(self) -> Readout:
        alpha = None if isinstance(self.alpha, str) else float(self.alpha)
        return solve_ridge(self._model, alpha)

    def _train(self) -> Readout:
        """Train ``scale * cos(z, w_c)`` by stochastic gradient descent, in float32."""
        X = torch.nn.functional.normalize(self._samples)
        width = X.shape[1]
        n_classes = len(self.classes_)
        stream = generator(self._seed, "joint-lp", "weights")
        drawn = torch.rand(n_classes, width, generator=stream)
        weights = ((2.0 * drawn - 1.0) / math.sqrt(width)).to(X.device).requires_grad_()
        scale = torch.ones(1, device=X.device, requires_grad=True)
        optimizer = torch.optim.SGD(
            [weights, scale],
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        with torch.enable_grad():
            for epoch in range(self.n_epochs):
                stream = generator(self._seed, "joint-lp", "order", epoch)
                order = torch.randperm(X.shape[0], generator=stream).to(X.device)
                for start in range(0, X.shape[0], self.batch_size):
                    batch = order[start : start + self.batch_size]
                    directions = torch.nn.functional.normalize(weights)
                    logits = scale * (X[batch] @ directions.T)
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(logits, self._codes[batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        scaled = scale * torch.nn.functional.normalize(weights)
        learned = scaled.detach().T.to(torch.float64)
        return Readout(learned, learned.new_zeros(n_classes), 0.0, 0.0)

    def _contents(self) -> _Learned:
        if self.solver == "sgd":
            return _Learned(self._seed, kept=self._samples, codes=self._codes)
        return _Learned(self._seed, self._model)

    def _restore(self, learned: _Learned) -> None:
        self._seed = learned.seed
        if self.solver == "analytic":
            require(learned.model is not None, "it has no field 'model'")
            self._model = self._check_model(learned.model)  # type: ignore[arg-type]
            return
        samples = learned.kept
        codes = learned.codes
        width = self.n_features_in_
        if samples is None or codes is None or samples.shape[1] != width:
            raise FileFormatError("its samples are missing or have another width")
        valid = bool(((codes >= 0) & (codes < len(self.classes_))).all())
        require(
            len(codes) > 0 and valid,
            "it has samples of classes that it does not know",
        )
        self._samples = samples
        self._codes = codes


def _to_float32(Z: Tensor) -> Tensor:
    """Convert rows to float32, and normalise rows too long or too short for that type.

    The classifier uses directions only, so lengths may change.
    """
    norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    in_range = (norms > 1e-9) & (norms < 1e15)
    return torch.where(in_range, Z, normalize(Z, "l2")).to(torch.float32)
