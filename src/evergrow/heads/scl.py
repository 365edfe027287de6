"""SCL: a guided random layer and an exactly incremental ridge classifier on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import LabelError, MergeError, UnlearnError
from evergrow.core.fields import Fields
from evergrow.core.progress import meter
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_choice, check_number
from evergrow.heads.abilities import ABILITIES
from evergrow.heads.base import HEADS, IncrementalClassifier
from evergrow.heads.classifier import SEEDS, Contents
from evergrow.heads.denoised import CHOICE, PRIORS, Choice, follow, shape_scores, solve_model
from evergrow.heads.diagnostics import describe, random_units
from evergrow.heads.growing import UNITS, Grower, LayerSpec
from evergrow.heads.labels import LabelUpdate, as_labels, check_kind, column_map, known_codes
from evergrow.heads.maps import LayerMap, ShapeMap, layer_map
from evergrow.heads.migrations import model_part
from evergrow.heads.novelty import NoveltyScorer
from evergrow.heads.readout import Readout, row_energy, solve_readout, temperature
from evergrow.heads.ridge_model import RidgeModel
from evergrow.linalg import RIDGE_FORMS, ShapeScores, SolvedScatter
from evergrow.projections import BlockRecord, Projection
from evergrow.projections.activations import ACTIVATIONS
from evergrow.projections.base import selectable_projections
from evergrow.projections.normalize import normalize
from evergrow.projections.scales import Scales, check_scales

READOUTS = ("ridge", "discriminant", "denoised")

_LARGEST = 1e100
"""Class weights of a file that are not below this would overflow in the next product."""

SOLUTION = register_kind("head-solution")
"""What follows from the statistics: class weights, offset, ridge and temperature; the layout that 0.1 had too."""


@dataclass
class _Derived:
    """What follows from the statistics and is worked out when first asked for.

    Parameters
    ----------
    last_alpha : float or None
        The ridge that was chosen before the last change, where the next choice begins.
    """

    last_alpha: float | None = None
    readout: Readout | None = None
    temperature: float | None = None
    novelty: NoveltyScorer | None = None
    choice: Choice | None = None
    scatter: SolvedScatter | None = None
    shapes: ShapeScores | None = None

    def hint(self) -> float | None:
        """Return the latest choice."""
        return self.readout.minimiser if self.readout is not None else self.last_alpha


@HEADS.register("scl-mgsm", version=2, former=("SCLClassifier",), migrations={1: model_part})
class SCLClassifier(IncrementalClassifier):
    """A classifier that learns new classes batch by batch, exactly as if it saw everything at once.

    ``fit`` grows a layer of random units from the first task (MGSM) and freezes it; every later batch only adds
    to sufficient statistics of a ridge regression, so nothing is forgotten and no data is kept. The defaults
    are the paper's; :meth:`recommended` gives the settings for users.

    Parameters
    ----------
    alpha : float, "holdout" or "gcv"
        Ridge. ``"holdout"`` chooses from the paper's grid on a tenth of the first task; ``"gcv"`` by generalised
        cross-validation on the accumulated statistics, anew after every update.
    block_size, n_candidates, contraction, tol : int, int, float, float
        s, B_max, r and epsilon of the construction.
    scales : "paper", "auto" or sequence of float
        Scales of the random weights. ``"paper"`` belongs to un-normalised ViT-B/16 features; ``"auto"`` is set
        from the first task.
    activation : str
        Activation of the units.
    criterion : {"exact", "theorem"}
        Acceptance by the true fall of the residual, or by the paper's printed inequality.
    direct_link : bool
        Put the features themselves beside the units.
    readout : {"ridge", "discriminant", "denoised"}
        Class scores by ridge regression, by a shrunk linear discriminant from the same statistics, or by one that
        takes class means as the estimates they are, so that a class of a few samples beside others of many is
        recognised too.
    max_units : int
        Cap on the width of the layer.
    projection : {"mgsm", "scsm", "gaussian", "fourier", "uniform"} or Projection
        Kind of layer, or another one that is registered (:data:`~evergrow.projections.PROJECTIONS`), or a layer.
    solver : {"auto", "dense", "recursive", "compact"}
        Form of the statistics, or another one that is registered (:data:`~evergrow.linalg.RIDGE_FORMS`).
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None
        Seed of the layer.
    verbose : int
        Progress bars if positive.
    n_units : int or None
        Exact width; the guided search is filled up with units of the same distribution. None keeps what
        the search accepts (and 10,000 for kinds that do not search).
    normalize : {"none", "l2", "sqrt-l2", "auto"}
        What is done to features first.
    class_moments : bool
        Keep the second moments of every class, so that :meth:`forget_classes` is exact. Takes up to
        ``8 L sum_c min(n_c, L)`` bytes, about as much as keeping the activations of all samples.
    units : {"activation", "fourier", "orthogonal-fourier"}
        Family of the units of a guided ("mgsm") or drawn ("gaussian") layer: ``activation`` at ``scales``, or cosines
        of one bandwidth that the spread of the first task sets, with independent or orthogonal directions.
    shape_directions : int
        Directions of the first task in which the second moments of every class are kept, so that the denoised
        readout knows the shape of each class; 0 keeps none. Takes ``4 k (k + 3)`` bytes a class.
    prior : {"uniform", "counts"}
        Whether the denoised readout takes classes with more samples to be likelier beforehand.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    class_counts_ : ndarray of int
        Samples learned of each.
    n_units_ : int
        Width L of the layer.
    status_ : str
        How its construction ended: ``"converged"``, ``"exhausted"``, ``"capped"`` or ``"drawn"`` for unguided ones.
    construction_log_ : list of BlockRecord
        One entry per accepted block.
    alpha_ : float
        The ridge in use.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import SCLClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = SCLClassifier.recommended(n_units=300, random_state=0)
    >>> for first in range(0, 10, 2):            # two new classes at a time
    ...     task = (y[:1000] == first) | (y[:1000] == first + 1)
    ...     _ = model.partial_fit(X[:1000][task], y[:1000][task])
    >>> model.score(X[1000:], y[1000:]) > 0.93
    True
    """

    min_first_classes: ClassVar[int] = 2
    abilities: ClassVar[frozenset[str]] = frozenset(ABILITIES)

    def __init__(
        self,
        alpha: float | str = 0.01,
        block_size: int = 50,
        n_candidates: int = 10,
        contraction: float = 0.99,
        tol: float = 0.01,
        scales: Scales = "paper",
        activation: str = "sigmoid",
        criterion: str = "exact",
        direct_link: bool = False,
        readout: str = "ridge",
        max_units: int = 20_000,
        projection: str | Projection = "mgsm",
        solver: str = "auto",
        device: str | torch.device = "auto",
        random_state: Any = None,
        verbose: int = 0,
        n_units: int | None = None,
        normalize: str = "none",
        class_moments: bool = False,
        units: str = "activation",
        shape_directions: int = 0,
        prior: str = "uniform",
    ) -> None:
        self.alpha = alpha
        self.block_size = block_size
        self.n_candidates = n_candidates
        self.contraction = contraction
        self.tol = tol
        self.scales = scales
        self.activation = activation
        self.criterion = criterion
        self.direct_link = direct_link
        self.readout = readout
        self.max_units = max_units
        self.projection = projection
        self.solver = solver
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.n_units = n_units
        self.normalize = normalize
        self.class_moments = class_moments
        self.units = units
        self.shape_directions = shape_directions
        self.prior = prior

    @classmethod
    def recommended(cls, **overrides: Any) -> Self:
        """Return a classifier with the settings for users rather than the paper's.

        Orthogonal Fourier units of a bandwidth set from the first task, a direct link, features brought to comparable
        length, and the denoised readout with the shapes of classes in 128 directions; 3,000 units, or with
        ``n_units=0`` the link alone.

        Parameters
        ----------
        **overrides
            Constructor arguments to set otherwise, for example ``n_units=1000``.

        Examples
        --------
        >>> from evergrow import SCLClassifier
        >>> SCLClassifier.recommended(n_units=1000).alpha
        'gcv'
        """
        settings: dict[str, Any] = {
            "alpha": "gcv",
            "projection": "gaussian",
            "units": "orthogonal-fourier",
            "direct_link": True,
            "normalize": "auto",
            "readout": "denoised",
            "shape_directions": 128,
            "n_units": 3000,
        }
        return cls(**{**settings, **overrides})

    # -- hooks of the base ------------------------------------------------------------------------------

    def _check_params(self) -> None:
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("holdout", "gcv"))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)
        for name in ("block_size", "n_candidates", "max_units"):
            check_number(name, getattr(self, name), low=1, integer=True)
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=0, high=self.max_units, integer=True)
        check_number("contraction", self.contraction, low=0, high=1, low_open=True, high_open=True)
        check_number("tol", self.tol, low=0)
        check_scales(self.scales)
        check_choice("activation", self.activation, ACTIVATIONS.names())
        check_choice("criterion", self.criterion, ("exact", "theorem"))
        check_choice("readout", self.readout, READOUTS)
        check_choice("units", self.units, UNITS)
        check_choice("prior", self.prior, PRIORS)
        check_number("shape_directions", self.shape_directions, low=0, high=4096, integer=True)
        check_choice("solver", self.solver, RIDGE_FORMS.names())
        check_choice("normalize", self.normalize, ("none", "l2", "sqrt-l2", "auto"))
        if not isinstance(self.projection, Projection):
            check_choice("projection", self.projection, selectable_projections())

    def _reset(self) -> None:
        for name in ("_model", "_derived", "_holdout_alpha"):
            self.__dict__.pop(name, None)

    def _is_started(self) -> bool:
        return hasattr(self, "_model")

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = torch.from_numpy(labels.codes).to(Z.device)
        model = self._current() if self._is_started() else self._first_model(Z, codes)
        with meter("learning", Z.shape[0], enabled=self.verbose > 0) as tick:
            learned = model.learn(Z, codes, labels.columns, tick)
        self._commit(learned, follow(self._followable(), learned, Z, codes, list(labels.columns)))

    def _first_model(self, Z: Tensor, codes: Tensor) -> RidgeModel:
        """Grow the layer on the first task."""
        self._seed = resolve_seed(self.random_state)
        model, chosen = self._grower().first_model(Z, codes)
        if chosen is not None:
            self._holdout_alpha = chosen
        return model

    def _scores(self, Z: Tensor) -> Tensor:
        readout = self._solved()
        out = Z.new_empty(Z.shape[0], readout.weights.shape[1])
        for rows, H in self._model.activations(Z):
            out[rows] = torch.addmm(readout.offset, H, readout.weights)
        shapes, model = self._shape_scores(), self._model
        if shapes is None or model.shapes is None:
            return out
        return shapes.add(model.shapes.rows(normalize(Z, model.normalization)), out)

    def _contents(self) -> Contents:
        meta = {"seed": self._seed, "holdout_alpha": self._holdout()}
        return Contents(meta, parts={"model": self._model.to_archive()})

    def _restore(self, fields: Fields) -> None:
        self._seed = fields.integer("seed", **SEEDS)
        chosen = fields.optional_number("holdout_alpha", low=0.0)
        fields.require(chosen != 0.0, "its ridge is zero")
        if chosen is not None:
            self._holdout_alpha = chosen
        self._commit(self._read_model(fields, "model"))

    def _grower(self) -> Grower:
        guidance: dict[str, Any] = {
            "block_size": self.block_size,
            "n_candidates": self.n_candidates,
            "contraction": self.contraction,
            "tol": self.tol,
            "criterion": self.criterion,
        }
        layer = LayerSpec(
            self.projection,
            self.n_units,
            self.max_units,
            self.scales,
            self.activation,
            self.units,
            self.direct_link,
            guidance,
        )
        return Grower(
            layer,
            self.alpha,
            self.normalize,
            self.solver,
            self.class_moments,
            self.shape_directions,
            self._seed,
            self.verbose > 0,
        )

    # -- what is solved only when asked for -------------------------------------------------------------

    def _commit(self, model: RidgeModel, scatter: SolvedScatter | None = None) -> None:
        """Make a new model the current one; whatever was derived from the old is solved anew when needed.

        A solution that has followed the change is kept, and with it nothing of large order is solved again.
        """
        before: _Derived | None = getattr(self, "_derived", None)
        kept = _Derived() if before is None else _Derived(last_alpha=before.hint(), choice=before.choice)
        kept.scatter = scatter
        self._derived, self._model = kept, model

    def _followable(self) -> SolvedScatter | None:
        """Return the solution that may follow the next change."""
        return self._derived.scatter if self._is_started() else None

    def _current(self) -> RidgeModel:
        """Return the model that the next one is made from; whether its weights were solved for bears on its form."""
        asked = self._derived.readout is not None and self.readout == "ridge" and self._fixed_alpha() is not None
        return self._model.after_solve() if asked else self._model

    def _fixed_alpha(self) -> float | None:
        """Return the ridge where it is settled, None where it is chosen from the statistics."""
        if isinstance(self.alpha, str):
            return self._holdout() if self.alpha == "holdout" else None
        return float(self.alpha)

    def _holdout(self) -> float | None:
        return getattr(self, "_holdout_alpha", None)

    def _solved(self) -> Readout:
        derived, model, fixed = self._derived, self._model, self._fixed_alpha()
        if derived.readout is None and self.readout == "denoised":
            solved = solve_model(model, fixed, self.prior, derived.choice, derived.scatter)
            derived.choice, derived.scatter, derived.readout = solved.choice, solved.scatter, solved.readout
        elif derived.readout is None:
            derived.readout = solve_readout(model.state, model.counts, fixed, self.readout, derived.last_alpha)
        return derived.readout

    def _shape_scores(self) -> ShapeScores | None:
        derived = self._derived
        if derived.shapes is None and derived.choice is not None and self.readout == "denoised":
            derived.shapes = shape_scores(self._model, derived.choice)
        return derived.shapes

    def _solve_order(self) -> float:
        return self._model.state.order

    def _settle(self) -> None:
        derived = self._derived
        if derived.choice is not None and derived.choice.rows != int(self._model.counts.sum()):
            # The ridge of an answer may be that of somewhat fewer rows; who settles wants the one of all of them.
            self._derived = _Derived(last_alpha=derived.hint(), choice=replace(derived.choice, rows=0))
        self._solved()
        _ = self.temperature_

    def solution(self) -> Archive | None:
        """Return what has been worked out from the statistics, so that a saved model answers without solving.

        None where nothing has been. An archive of kind ``"head-solution"``: ``last_ridge``, and once class weights
        have been solved for ``weights`` (L, C), ``offset`` (C,), ``alpha``, ``minimiser``, ``jitter`` and
        ``temperature``.
        """
        self._require_started()
        derived, solved = self._derived, self._derived.readout
        meta: dict[str, Any] = {"last_ridge": self.last_ridge_}
        if solved is None:
            return None if self.last_ridge_ is None else SOLUTION.archive(meta)
        meta |= {"alpha": solved.alpha, "minimiser": solved.minimiser, "jitter": solved.jitter}
        meta |= {"temperature": derived.temperature}
        parts = {} if derived.choice is None else {"choice": derived.choice.to_archive()}
        return SOLUTION.archive(meta, {"weights": solved.weights, "offset": solved.offset}, parts)

    def adopt_solution(self, archive: Archive, *, name: str = "the solution") -> None:
        """Take over what :meth:`solution` gave for the same statistics; see the base class."""
        self._require_started()
        fields, classes = archive.open(SOLUTION.name, name=name), len(self.classes_)
        last = fields.optional_number("last_ridge", low=0.0)
        solved, warmth = None, None
        if fields.has("weights") or fields.has("offset"):
            solved = Readout(
                fields.tensor("weights", (self._model.projection.n_outputs, classes)).to(self.device_),
                fields.tensor("offset", (classes,)).to(self.device_),
                fields.number("alpha", low=0.0),
                fields.number("minimiser", low=0.0),
                fields.number("jitter", low=0.0),
            )
            largest = max(float(part.abs().max()) for part in (solved.weights, solved.offset) if part.numel())
            fields.require(largest < _LARGEST, "its class weights are larger than any data can make them")
            warmth = fields.optional_number("temperature", low=0.0)
        fields.require(last != 0.0 and warmth != 0.0, "a ridge or a temperature is zero")
        choice = Choice.from_archive(fields.open_part("choice", CHOICE.name)) if fields.has("choice") else None
        fields.require(
            self.readout != "denoised" or solved is None or choice is not None, "it does not say how it was chosen"
        )
        self._derived = _Derived(last, solved, warmth, choice=choice)

    def linear_map(self) -> LayerMap:
        """Return what the head computes as plain matrices, on the CPU."""
        self._require_fitted()
        solved = self._solved()
        found, shapes, scores = (
            layer_map(self._model, solved.weights, solved.offset),
            self._model.shapes,
            self._shape_scores(),
        )
        if shapes is None or scores is None or not scores.has_terms:
            return found
        return replace(found, shape=ShapeMap.of(shapes, scores))

    # -- answers ----------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities: a softmax of the scores at a temperature set from the statistics.

        The temperature corrects the scores on learned rows by their average leave-one-out inflation; no data
        is held out (see :func:`evergrow.heads.readout.temperature`). Expect them to be honest on data like the
        learned, not on unknown classes: use :meth:`novelty_score` for those.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C)
            Rows sum to one; columns follow ``classes_``.
        """
        warmth = self.temperature_
        return np.asarray(torch.softmax(torch.from_numpy(self.class_scores(X)) / warmth, dim=1).numpy())

    @property
    def temperature_(self) -> float:
        """Temperature of the softmax that turns scores into probabilities."""
        self._require_fitted()
        derived, model = self._derived, self._model
        if derived.temperature is None:
            derived.temperature = temperature(model.state, model.counts, self._solved(), self.readout)
        return derived.temperature

    def novelty_score(self, X: Any) -> NDArray[np.float64]:
        """Return how unlike anything learned each row is; higher means more novel.

        From the same statistics as the classifier, but with a shrinkage of their own, so that the scale hardly changes
        when more is learned: how much nearer the nearest class is than all of them, where classes differ, and
        how much energy a row has where nothing learned has any (see :mod:`evergrow.heads.novelty`).

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Not negative. Typical values of known things are 0.1 to 0.9; things of
            another world have larger ones without bound. Compare them with those of known data.
        """
        self._require_fitted()
        Z = self._features(X, self.device_, reset=False)
        scorer = self._novelty_scorer()
        return np.asarray(torch.cat([scorer.score(H) for _, H in self._model.activations(Z)]).cpu().numpy())

    def novelty_without(self, X: Any, y: Any, folds: Any = None) -> NDArray[np.float64]:
        """Return the novelty of learned rows as if none of them, or of their fold, had been learned.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Rows that were learned; of each class at least one learned row must not be among those taken out.
        y : array-like of shape (n,)
            The labels they were learned with.
        folds : ndarray of int of shape (n,), optional
            The fold of each; by default all are in one.

        Returns
        -------
        ndarray of shape (n,)
        """
        self._require_fitted()
        Z = self._features(X, self.device_, reset=False)
        codes = torch.from_numpy(known_codes(self.classes_, as_labels(y, Z.shape[0]))).to(Z.device)
        H = torch.cat([part for _, part in self._model.activations(Z)])
        parts = None if folds is None else torch.from_numpy(np.asarray(folds, dtype=np.int64)).to(Z.device)
        return np.asarray(self._novelty_scorer().without(H, codes, parts).cpu().numpy())

    def _novelty_scorer(self) -> NoveltyScorer:
        derived, model = self._derived, self._model
        if derived.novelty is None:
            derived.novelty = NoveltyScorer.of(model.state, model.counts)
        return derived.novelty

    # -- exact edits ------------------------------------------------------------------------------------

    def spawn(self) -> Self:
        """Return an empty learner with the same frozen layer, for another site or worker.

        What it learns can be brought back with :meth:`merge`. Calling ``fit`` on it starts from scratch with a
        layer of its own; ``partial_fit`` keeps the shared one.
        """
        self._require_started()
        child = type(self)(**self.get_params(deep=False))
        child.device_, child.n_features_in_, child._seed = self.device_, self.n_features_in_, self._seed
        if hasattr(self, "feature_names_in_"):
            child.feature_names_in_ = self.feature_names_in_
        if self._holdout() is not None:
            child._holdout_alpha = self._holdout_alpha
        child.classes_ = self.classes_[:0]
        child._commit(self._model.empty())
        return child

    def merge(self, other: SCLClassifier) -> Self:
        """Add everything another learner with the same layer has learned; exact, nothing counted twice.

        Parameters
        ----------
        other : SCLClassifier
            Made by :meth:`spawn` from this learner or from a common ancestor; not changed.

        Returns
        -------
        self

        Raises
        ------
        MergeError
            If the layers differ, or if both learned the same first batch (one is a copy of the other, or the
            same learner is merged twice), so that samples would be counted twice.
        """
        self._require_started()
        if not isinstance(other, SCLClassifier) or not other._is_started():
            raise MergeError(f"other must be a learner that shares this layer, got {type(other).__name__}")
        if len(self.classes_) and len(other.classes_):
            check_kind(self.classes_, other.classes_)
        classes = np.union1d(self.classes_, other.classes_) if len(self.classes_) else other.classes_
        mine, theirs = column_map(self.classes_, classes), column_map(other.classes_, classes)
        self._commit(self._current().merge(other._model, mine, theirs))
        self.classes_ = classes
        return self

    def join(self, other: SCLClassifier, base: SCLClassifier) -> Self:
        """Return a learner that knows what this one and another know, with what both have from ``base`` counted once.

        Parameters
        ----------
        other : SCLClassifier
            A learner that began as a copy of the same base; not changed, as this one is not.
        base : SCLClassifier
            What both began as.

        Raises
        ------
        MergeError
            If the layers differ, if the base is not part of both, or if second moments are kept per class.
        """
        self._require_started()
        for name, head in (("other", other), ("base", base)):
            if not isinstance(head, SCLClassifier) or not head._is_started():
                raise MergeError(f"{name} must be a learner that shares this layer, got {type(head).__name__}")
        classes = np.union1d(self.classes_, other.classes_)
        missing = np.setdiff1d(base.classes_, np.intersect1d(self.classes_, other.classes_))
        if len(missing):
            raise MergeError(f"base must be part of both learners, but they lack its classes {missing[:5].tolist()}")
        mine, theirs, common = (column_map(head.classes_, classes) for head in (self, other, base))
        joined = self.branch()
        joined._commit(self._current().join(other._model, base._model, (mine, theirs, common)))
        joined.classes_ = classes
        return joined

    def unlearn(self, X: Any, y: Any) -> Self:
        """Take samples out again that were learned before: the learner then equals one that never saw them.

        A class whose last sample goes is gone.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            The samples, as they were learned.
        y : array-like of shape (n,)
            The labels they were learned with.

        Raises
        ------
        UnlearnError
            If more samples of a class are given than were learned, or some lie where nothing was learned.
        """
        self._require_fitted()
        Z = self._features(X, self.device_, reset=False)
        codes = torch.from_numpy(known_codes(self.classes_, as_labels(y, Z.shape[0]))).to(Z.device)
        model = self._current().unlearn(Z, codes, self._check_alpha())
        kept = torch.nonzero(model.counts).ravel().tolist()
        if not kept:
            raise UnlearnError("at least one sample must remain; call fit to start anew")
        if len(kept) < len(self.classes_):
            model = model.keep(kept)
            followed = None
        else:
            followed = follow(self._followable(), model, Z, codes, None)
        model.require_sound(self._model, self._fixed_alpha())
        self._commit(model, followed)
        self.classes_ = self.classes_[kept]
        return self

    def forget_classes(self, labels: Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again.

        With ``class_moments=True`` the learner then equals one that never saw them. Without, label, count and mean
        of each class are gone, but the spread of its samples around that mean stays in the pooled
        second moments (as it does for every class) and keeps a slight influence on the others' scores; pass the
        samples to :meth:`unlearn` to remove that too.

        Parameters
        ----------
        labels : iterable
            Classes to forget.
        """
        self._require_fitted()
        names = [labels] if isinstance(labels, str) else list(labels)
        if not names:
            raise LabelError("labels must name at least one class, got none")
        codes = set(known_codes(self.classes_, as_labels(names, len(names))).tolist())
        kept = [column for column in range(len(self.classes_)) if column not in codes]
        if not kept:
            raise UnlearnError("at least one class must remain; call fit to start anew")
        model = self._current().keep(kept)
        model.require_sound(self._model, self._fixed_alpha())
        self._commit(model)
        self.classes_ = self.classes_[kept]
        return self

    def regularize(self, alpha: float | str) -> Self:
        """Change the ridge without data.

        Parameters
        ----------
        alpha : float or "gcv"
            The new ridge, or its choice from the statistics from now on.
        """
        self._require_started()
        if alpha == "gcv":
            self.alpha = alpha
        else:
            check_number("alpha", alpha, low=0, low_open=True)
            self.alpha = float(alpha)
        self._commit(self._current())
        self._derived.choice = None
        return self

    def _check_alpha(self) -> float:
        """Return a ridge for consistency checks without forcing a choice."""
        fixed = self._fixed_alpha()
        if fixed is not None:
            return fixed
        return 1e-3 * max(row_energy(self._model.state.reduced(), self._model.counts), 1e-12)

    def _require_started(self) -> None:
        if not self._is_started():
            self._require_fitted()

    # -- looking inside ---------------------------------------------------------------------------------

    @property
    def model_(self) -> RidgeModel:
        """The layer and the statistics behind it, as a record that nobody changes."""
        self._require_started()
        return self._model

    @property
    def last_ridge_(self) -> float | None:
        """The ridge chosen last, by this head or the one that it was branched from; None where none was."""
        self._require_started()
        return self._derived.hint()

    @property
    def layer_(self) -> Projection:
        """The frozen layer."""
        self._require_started()
        return self._model.projection

    @property
    def n_units_(self) -> int:
        """Width L of the layer."""
        return self.layer_.n_units

    @property
    def class_counts_(self) -> NDArray[np.int64]:
        """Samples learned of each class."""
        self._require_started()
        return np.asarray(self._model.counts.cpu().numpy())

    @property
    def alpha_(self) -> float:
        """The ridge in use."""
        self._require_fitted()
        return self._solved().alpha

    @property
    def construction_log_(self) -> list[BlockRecord]:
        """One entry per accepted block; empty for layers that are drawn."""
        return list(getattr(random_units(self.layer_), "log", []))

    @property
    def status_(self) -> str:
        """How the construction ended."""
        return str(getattr(random_units(self.layer_), "status", "drawn"))

    def diagnostics(self) -> dict[str, Any]:
        """Return what the layer is, numerically: rank, conditioning, form and size of the statistics.

        Returns
        -------
        dict
            ``n_units``, ``n_guided``, ``status``, ``classes``, ``samples``, ``alpha``, ``effective_rank`` (degrees of
            freedom at alpha), ``condition_number`` of the regularised Gram matrix, ``common_mode`` (share of the energy
            in its largest direction), ``solver``, ``error_bound`` and ``state_bytes``. Costs one decomposition.
        """
        self._require_fitted()
        return describe(self._model, self._solved())
