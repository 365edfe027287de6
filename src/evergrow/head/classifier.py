"""The default classifier: a frozen layer, additive statistics and a solved readout."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import (
    LabelError,
    MergeError,
    NothingLeftError,
    NumericalError,
    ParameterError,
    UnlearnError,
    UnsupportedError,
)
from evergrow.core.estimator import listed_counts
from evergrow.core.seeding import resolve_seed
from evergrow.core.threads import threads_for
from evergrow.core.validation import as_weights, check_choice, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Positive, Seed
from evergrow.head.block_weights import first_blocks
from evergrow.head.label_set import (
    ClassChange,
    LabelUpdate,
    as_label_array,
    known_codes,
    old_columns,
    require_same_type,
)
from evergrow.head.layers.feature_map import (
    LAYERS,
    MOST_BLOCKS,
    BlockRecord,
    FeatureMap,
    Layer,
    check_contrast,
    layer_from_plain,
    normalize,
    resolve_normalization,
)
from evergrow.head.layers.fourier import FourierLayer
from evergrow.head.linalg.class_shapes import ClassShapes
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.novelty.score import NoveltyStandard
from evergrow.head.pseudo_labels import (
    PseudoLabelReport,
    PseudoLabels,
    merge_pseudo_labels,
    pseudo_label_rows,
)
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map
from evergrow.head.solved_cache import (
    READOUTS,
    ClassifierState,
    HeldOutScores,
    NoveltyMap,
    Solution,
    SolvedCache,
    SolvedChoice,
)

P = ParamSpec("P")
T = TypeVar("T")

NORMALIZATIONS = ("auto", "none", "l2", "sqrt-l2")

GCV_FLOOR = 1e-6
"""Smallest ridge that is ever chosen, relative to the mean squared distance of a row to
the mean row. Compact statistics must stay exact down to it."""

UNLEARN_FLOOR = 1e-3
"""Ridge of the check that unlearned rows were learned, in the same unit, unless a fixed
``alpha`` is used."""

MIN_CLASS_WEIGHT = 1e-6
"""A class whose samples have a smaller total weight counts as lost."""

_USUAL_WIDTH = 3000  # columns of a layer whose width is not known yet

_FLOOR_ROWS = 256  # rows from which the unit of GCV_FLOOR is estimated, at least

_TINY = 1e-12  # smallest unit of GCV_FLOOR and UNLEARN_FLOOR, for equal rows


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """The learned contents of a file.

    Parameters
    ----------
    seed : int
        Seed of the layer.
    model : RidgeModel
        Layer and statistics of the labelled samples.
    temperature : float or None
        Calibrated temperature.
    novelty : NoveltyStandard or None
        Calibrated novelty score.
    solution : Solution or None
        Results solved from the labelled samples.
    guesses : PseudoLabels or None
        Rows learned without labels.
    guessed : Solution or None
        Results solved from labelled samples and pseudo-labels.
    """

    seed: Seed
    model: RidgeModel
    temperature: Positive | None = None
    novelty: NoveltyStandard | None = None
    solution: Solution | None = None
    guesses: PseudoLabels | None = None
    guessed: Solution | None = None


def _with_threads_for_rows(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method of the classifier to run small work on one thread.

    The first positional argument of the method has one item per row. Without it, only
    the work to solve counts. See :func:`~evergrow.core.threads.threads_for`.
    """

    @functools.wraps(method)
    def limited(*args: P.args, **settings: P.kwargs) -> T:
        head = cast("Classifier", args[0])
        rows: Any = args[1] if len(args) > 1 else ()
        n_rows = len(rows) if hasattr(rows, "__len__") else 0
        with threads_for(head._work(n_rows)):
            return method(*args, **settings)

    return limited


@HEADS.register("evergrow")
class Classifier(IncrementalClassifier):
    """Classifier that learns new classes batch by batch, exactly as in joint training.

    The first batch fixes a layer: the features themselves and random Fourier features
    with a bandwidth that suits the data. Every batch is added to sums over samples, and
    class scores are solved from these sums when they are needed. Nothing is forgotten
    and no sample is kept. Samples can be unlearned, classifiers merged and classes
    renamed.

    Parameters
    ----------
    n_units : int or None, default=None
        Units of the layer, at most 65,536. 0 uses the features alone. None uses the
        default of the layer: 3,000 units, or 24 per feature if that is less, but at
        least 2,048.
    alpha : float or "gcv", default="gcv"
        Ridge. ``"gcv"`` chooses it from the statistics by generalised
        cross-validation, and chooses it again as they grow.
    layer : Layer, str, mapping or None, default=None
        A layer, its name, or its settings such as ``{"kind": "guided", "scales":
        "auto"}``. None uses :class:`~evergrow.head.layers.FourierLayer`; the other
        layer is :class:`~evergrow.head.layers.GuidedLayer`.
    readout : {"denoised", "ridge"}, default="denoised"
        How class scores are computed. ``"denoised"`` removes the estimation noise of
        the class means, so that a class with few samples is recognised beside classes
        with many. ``"ridge"`` is ridge regression.
    normalize : {"auto", "none", "l2", "sqrt-l2"}, default="auto"
        Normalisation of the features. ``"auto"`` scales rows to unit length, after a
        square root if no feature is negative. It does nothing with several ``blocks``.
    shape_directions : int, default=128
        Number of directions, from the first batch, in which the second moments of every
        class are kept. The denoised readout uses them to model the shape of each class.
        0 keeps none. With k directions, a class with n samples takes ``8 k (n + 1)``
        bytes, but at most ``4 k (k + 3)``.
    blocks : tuple of int or None, default=None
        Widths of blocks of features that stand side by side, such as several depths of
        a backbone, each scaled to equal energy. The denoised readout chooses a weight
        for each block from the statistics.
    device : str or torch.device, default="auto"
        ``"auto"``, ``"cpu"``, ``"cuda"`` or another device.
    random_state : int, numpy generator or None, default=None
        Seed of the layer.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Learned labels, sorted.
    class_counts_ : ndarray of int of shape (C,)
        Number of learned samples per class.
    n_features_in_ : int
        Number of features.
    n_units_ : int
        Number of units of the layer.
    alpha_ : float
        The ridge in use.
    block_weights_ : ndarray or None
        Weight of each block of features.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Classifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = Classifier(n_units=300, random_state=0)
    >>> for first in range(0, 10, 2):            # two new classes at a time
    ...     task = (y[:1000] == first) | (y[:1000] == first + 1)
    ...     _ = model.partial_fit(X[:1000][task], y[:1000][task])
    >>> model.score(X[1000:], y[1000:]) > 0.93
    True
    """

    learned_as: ClassVar[type] = Learned
    takes_weights: ClassVar[bool] = True
    verbose: int = 0
    _seed: int
    _state: ClassifierState
    _temperature: float | None = None
    _standard: NoveltyStandard | None = None

    def __init__(
        self,
        n_units: int | None = None,
        alpha: float | str = "gcv",
        layer: Layer | Mapping[str, Any] | str | None = None,
        readout: str = "denoised",
        normalize: str = "auto",
        shape_directions: int = 128,
        blocks: tuple[int, ...] | None = None,
        device: str | torch.device = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_units = n_units
        self.alpha = alpha
        self.layer = layer
        self.readout = readout
        self.normalize = normalize
        self.shape_directions = shape_directions
        self.blocks = blocks
        self.device = device
        self.random_state = random_state

    # -- parameters --------------------------------------------------------------------

    def _check_params(self) -> None:
        self._chosen_layer()
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("gcv",))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("readout", self.readout, READOUTS)
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        check_number(
            "shape_directions", self.shape_directions, low=0, high=4096, integer=True
        )
        if self.blocks is not None:
            self._check_blocks(self.blocks)

    def _check_blocks(self, blocks: Any) -> None:
        """Raise :class:`ParameterError` unless `blocks` are widths, for `normalize`."""
        is_sequence = isinstance(blocks, (tuple, list))
        if not is_sequence or not 1 <= len(blocks) <= MOST_BLOCKS:
            raise ParameterError(
                f"blocks must be None or 1 to {MOST_BLOCKS} widths, got {blocks!r}"
            )
        for size in blocks:
            check_number("blocks", size, low=1, high=2**31, integer=True)
        if len(blocks) > 1 and self.normalize not in ("auto", "none"):
            raise ParameterError(
                "normalize must be 'auto' or 'none' with several blocks, "
                f"got {self.normalize!r}"
            )

    def _chosen_layer(self) -> Layer:
        """Return the settings of the layer to build, with `n_units` if it is given.

        Raises
        ------
        ParameterError
            If ``layer`` is not a layer, or its settings are out of range.
        """
        layer: Any = FourierLayer() if self.layer is None else self.layer
        if isinstance(layer, str):
            check_choice("layer", layer, LAYERS.names())
            layer = {"kind": layer}
        if isinstance(layer, Mapping):
            layer = layer_from_plain(layer)
        if not isinstance(layer, Layer):
            raise ParameterError(
                f"layer must be a layer, its name or None, got {type(layer).__name__}"
            )
        if self.n_units is None:
            return layer
        return dataclasses.replace(layer, n_units=self.n_units)

    def _fixed_alpha(self) -> float | None:
        """Return the ridge. None if it is chosen from the statistics."""
        if isinstance(self.alpha, str):
            return None
        return float(self.alpha)

    # -- learning ----------------------------------------------------------------------

    @_with_threads_for_rows
    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        if "_state" not in vars(self):
            self._seed = resolve_seed(self.random_state)
            self._state = self._unsolved(self._first_model(Z, labels.codes))
        state = self._state
        learned = state.model.learn(Z, labels.codes, labels.groups, labels.weights)
        pseudo_labels = state.pseudo_labels
        if pseudo_labels is not None:
            # A label replaces the pseudo-label of the same row.
            pseudo_labels = pseudo_labels.group(labels.groups).without(learned, Z)
        solved = state.solved.followed(
            learned, Z, labels.codes, labels.groups, labels.weights
        )
        self._state = state.changed(solved, pseudo_labels)

    def _unsolved(self, model: RidgeModel) -> ClassifierState:
        """Return the state of a model for which nothing is solved."""
        return ClassifierState(SolvedCache(model, self.readout, self._fixed_alpha()))

    def _first_model(self, Z: Tensor, codes: Tensor) -> RidgeModel:
        """Return a model with a layer built from the first batch, not learned yet.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features.
        codes : Tensor of shape (n,)
            Class of each row.
        """
        rule = self.normalize
        if rule == "auto" and len(self.blocks or ()) > 1:
            rule = "none"  # each block was scaled to equal energy already
        rule = resolve_normalization(rule, Z)
        Z = normalize(Z, rule)
        blocks = first_blocks(Z, codes, self.blocks)
        if blocks is not None:
            Z = blocks.apply(Z)
        layer = self._build_layer(Z, codes)
        some = Z[:: max(len(Z) // _FLOOR_ROWS, 1)]
        energy = max(layer.centred_energy(some) / len(some), _TINY)
        floor = self._fixed_alpha() or GCV_FLOOR * energy
        state = self._empty_state(layer.n_outputs, floor, Z.device)
        shapes = None
        if self.shape_directions:
            shapes = ClassShapes.first(Z, self.shape_directions)
        return RidgeModel.start(layer, rule, state, shapes=shapes, blocks=blocks)

    def _build_layer(self, Z: Tensor, codes: Tensor) -> FeatureMap:
        """Build the layer from its first inputs Z (n, d) and their classes (n,)."""
        settings = self._chosen_layer()
        if isinstance(settings, FourierLayer):
            # This layer ignores targets, and a one-hot matrix may be large.
            Y = Z.new_empty(len(Z), 0)
        else:
            Y = torch.nn.functional.one_hot(codes).to(Z.dtype)
        layer = settings.build(
            Z,
            Y,
            seed=self._seed,
            alpha=self._fixed_alpha(),
            verbose=self.verbose > 0,
        )
        check_contrast(layer, Z)
        return layer

    def _empty_state(
        self, width: int, floor: float, device: torch.device
    ) -> RidgeStatistics:
        """Return empty statistics in the cheapest form.

        Parameters
        ----------
        width : int
            Number of activations.
        floor : float
            Smallest ridge at which the statistics must be exact.
        device : torch.device
            Device of the sums.
        """
        return RidgeStatistics.create(width, 0, "auto", floor=floor, device=device)

    # -- rows without labels -----------------------------------------------------------

    @_with_threads_for_rows
    def learn_unlabelled(
        self, X: Any, *, threshold: float | None = None
    ) -> PseudoLabelReport:
        """Learn unlabelled rows as their predicted class (pseudo-labelling).

        A pseudo-label counts less if it is uncertain or if the class has many labelled
        samples. Pseudo-labels are kept apart: :meth:`forget_unlabelled` removes them,
        and a label learned later for the same row replaces the pseudo-label. See
        :mod:`evergrow.head.pseudo_labels`.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features. Rows with a pseudo-label get a new one.
        threshold : float, optional
            Rows with a larger novelty are left out. By default the statistics set it so
            that one in twenty known rows is expected to exceed it. If every class has
            one sample, the first pass leaves out none.

        Returns
        -------
        PseudoLabelReport
            How many rows were used and left out. If all rows look unknown, nothing
            changes.

        Raises
        ------
        UnsupportedError
            If the readout is ``"ridge"``.
        LabelError
            If fewer than two classes were learned.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Classifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.arange(200) % 4
        >>> X = rng.normal(size=(200, 8)) + 4 * np.eye(8)[y]
        >>> model = Classifier(n_units=0, random_state=0).fit(X[:40], y[:40])
        >>> report = model.learn_unlabelled(X[40:])
        >>> report.used > 100, model.n_pseudo_labels_ == report.used
        (True, True)
        >>> model.forget_unlabelled().n_pseudo_labels_
        0
        """
        self._require_fitted()
        if self.readout == "ridge":
            # In ridge regression, classes with many pseudo-labels swallow the others.
            raise UnsupportedError(
                "learn_unlabelled needs the denoised readout, but readout is 'ridge'"
            )
        if len(self.classes_) < 2:
            raise LabelError(
                "learn_unlabelled needs at least two learned classes, got one"
            )
        pseudo_labels, report = pseudo_label_rows(
            self._state,
            self._features(X, self.device_),
            temperature=self._temperature,
            standard=self._standard,
            threshold=threshold,
        )
        if report.used:
            # Start the search at the settings without pseudo-labels, so that results
            # do not depend on which pseudo-labels there were before.
            bare = self._state.with_pseudo_labels(None)
            self._state = bare.with_pseudo_labels(pseudo_labels)
        labels = self.classes_.tolist()
        classes = {labels[code]: n for code, n in report.classes.items()}
        return dataclasses.replace(report, classes=classes)

    def forget_unlabelled(self) -> Self:
        """Remove everything learned without labels.

        Predictions are then bit for bit those without it.

        Returns
        -------
        self
        """
        self._require_started()
        self._state = self._state.with_pseudo_labels(None)
        return self

    @property
    def n_pseudo_labels_(self) -> int:
        """Number of rows learned without labels."""
        if "_state" not in vars(self):
            return 0
        return len(self._state.pseudo_labels or ())

    # -- predictions -------------------------------------------------------------------

    @_with_threads_for_rows
    def _scores(self, Z: Tensor) -> Tensor:
        return self._state.class_scores(Z)

    @_with_threads_for_rows
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities: the softmax of the scores at `temperature_`.

        Probabilities are calibrated for data like the learned data. They say nothing
        about unknown classes; use :meth:`novelty_score` for these.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C)
            Probabilities in the order of ``classes_``.
        """
        temperature = self.temperature_
        scores = torch.from_numpy(self.class_scores(X))
        return np.asarray(torch.softmax(scores / temperature, dim=1).numpy())

    @property
    @_with_threads_for_rows
    def temperature_(self) -> float:
        """Softmax temperature: calibrated, or else estimated from the statistics."""
        self._require_fitted()
        return self._state.temperature(self._temperature)

    @_with_threads_for_rows
    def expected_temperature(self) -> float:
        """Return the softmax temperature that the statistics expect.

        Rows learned without labels have no influence on it.
        """
        self._require_fitted()
        return self._state.solved.temperature()

    def novelty_score(self, X: Any) -> NDArray[np.float64]:
        """Return how unlike all learned classes each row is.

        The score is a weighted sum of five terms (see :mod:`evergrow.head.novelty`). On
        known rows it has mean 0 and standard deviation 1 if :meth:`calibrate` set it,
        and approximately so if not. It is not bounded.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Higher means more novel. Compare with the scores of known rows.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Classifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(range(4), 50)
        >>> X = rng.normal(size=(200, 8)) + 6 * np.eye(8)[y]
        >>> model = Classifier(n_units=20, random_state=0).fit(X, y)
        >>> new = rng.normal(size=(50, 8)) + 6 * np.eye(8)[5]
        >>> bool(model.novelty_score(new).min() > np.median(model.novelty_score(X)))
        True
        """
        terms = self.novelty_terms(X)
        return self.novelty_standard_.score(terms)

    @_with_threads_for_rows
    def novelty_terms(self, X: Any) -> NDArray[np.float64]:
        """Return the five terms of novelty, and 1 / count of the nearest class.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, 6)
            Columns in the order of :data:`~evergrow.head.novelty.score.TERMS`, higher
            for more novel rows. The last column is 1 / count.
        """
        self._require_fitted()
        terms = self._state.solved.novelty_terms(self._features(X, self.device_))
        return np.asarray(terms.cpu().numpy())

    @_with_threads_for_rows
    def expected_terms(self) -> NDArray[np.float64]:
        """Return the terms of novelty (n, 6) of rows drawn from the statistics."""
        self._require_fitted()
        return self._state.solved.expected_terms

    def normalized_features(self, X: Any) -> NDArray[Any]:
        """Return the inputs of the layer: normalised features with block weights.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, d)
        """
        self._require_fitted()
        inputs = self._state.model.inputs(self._features(X, self.device_))
        return np.asarray(inputs.cpu().numpy())

    @_with_threads_for_rows
    def whitened(self, X: Any) -> NDArray[np.float64]:
        """Return whitened features of unit length: centred, in units of the scatter.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, k)
            Their products are cosine similarities in directions that separate classes.
        """
        self._require_fitted()
        white = self._state.solved.whiten(self._features(X, self.device_))
        return np.asarray(torch.nn.functional.normalize(white, dim=1).cpu().numpy())

    # -- calibration -------------------------------------------------------------------

    @_with_threads_for_rows
    def held_out_scores(
        self, X: Any, y: Any, folds: Any = None, sample_weight: Any = None
    ) -> HeldOutScores:
        """Score learned rows as if all rows of their fold had not been learned.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Learned rows. No fold may contain all learned rows of a class.
        y : array-like of shape (n,)
            The labels they were learned with.
        folds : array-like of int of shape (n,), optional
            The fold of each row. By default all rows are in one fold.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Returns
        -------
        HeldOutScores
            Per row the terms from which a novelty score is computed (see
            :meth:`calibrate`), and the log losses at several temperatures of the
            softmax.

        Raises
        ------
        LabelError
            If a label was not learned.
        UnlearnError
            If a fold contains all learned rows of a class.
        """
        Z, codes, fold_codes, weights = self._learned_rows(X, y, folds, sample_weight)
        return self._state.solved.held_out_scores(Z, codes, fold_codes, weights)

    @_with_threads_for_rows
    def scores_as_new_class(
        self, X: Any, y: Any, folds: Any, sample_weight: Any = None
    ) -> HeldOutScores:
        """Score learned rows as if no class of their fold had been learned.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            All learned rows of some classes.
        y : array-like of shape (n,)
            The labels they were learned with.
        folds : ndarray of int of shape (n,)
            The fold of each row. All rows of a class are in one fold. At least two
            classes must not be in it.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Returns
        -------
        HeldOutScores
            Terms of novelty, in units of the terms expected of rows of the other
            classes (:func:`~evergrow.head.novelty.score.to_units`), and log losses of
            the predicted class.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Classifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(range(5), 20)
        >>> X = rng.normal(size=(100, 8)) + 6 * np.eye(8)[y]
        >>> model = Classifier(n_units=20, random_state=0).fit(X, y)
        >>> terms = model.scores_as_new_class(X, y, folds=y).terms
        >>> bool(terms[:, 0].mean() > model.expected_terms()[:, 0].mean())
        True
        """
        Z, codes, fold_codes, weights = self._learned_rows(X, y, folds, sample_weight)
        return self._state.solved.scores_as_new_class(Z, codes, fold_codes, weights)

    @_with_threads_for_rows
    def scores_without_one(
        self, X: Any, y: Any, sample_weight: Any = None, *, question: Any = None
    ) -> NDArray[np.float64]:
        """Return class scores without one learned row, for every row of X.

        Nothing is trained again: the row is subtracted from the statistics. Class
        means, scatter, degrees of freedom and class shapes are exactly those of the
        other rows. Ridge, block weights and strength of class shapes stay the same.

        If each row is scored without itself, so do the settings that summarise all
        rows: prior of the class means, noise of a row, and covariance common to all
        shapes. With a `question`, they are those of the other rows, as after
        :meth:`unlearn`, if there are at most 1,024 classes.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Learned rows.
        y : array-like of shape (n,)
            The labels they were learned with. Every class must have other rows.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.
        question : array-like or Tensor of shape (1, d), optional
            A row to score without each row of X. By default each row of X is scored
            without itself.

        Returns
        -------
        ndarray of shape (n, C)
            Scores in the order of ``classes_``. NaN for rows that cannot have been
            learned, because the statistics without them would be impossible.

        Raises
        ------
        UnsupportedError
            If the readout is ``"ridge"``.
        LabelError
            If a label was not learned.
        UnlearnError
            If a row is all that was learned of its class, or class shapes show that it
            was not learned.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Classifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(range(4), 20)
        >>> X = rng.normal(size=(80, 8)) + 3 * np.eye(8)[y]
        >>> wrong = y.copy()
        >>> wrong[7] = 3
        >>> model = Classifier(n_units=20, random_state=0).fit(X, wrong)
        >>> scores = model.scores_without_one(X, wrong)
        >>> int(scores[7].argmax())
        0
        """
        if self.readout == "ridge":
            raise UnsupportedError(
                "scores without a sample need the denoised readout, but readout is "
                "'ridge'"
            )
        Z, codes, _, weights = self._learned_rows(X, y, None, sample_weight)
        masses = self._state.model.masses[codes]
        own = torch.ones_like(masses) if weights is None else weights
        is_last = masses - own <= 1e-9 * masses
        if bool(is_last.any()):
            name = self.classes_[int(codes[is_last][0])]
            raise UnlearnError(
                f"class {str(name)!r} has one learned sample, so it has no scores "
                "without it"
            )
        asked = None
        if question is not None:
            asked = self._features(question, self.device_)
        try:
            found = self._state.answering.scores_without_one(Z, codes, weights, asked)
        except NumericalError as error:
            raise UnlearnError(
                "at least one sample was not learned before, or with another label: "
                "no samples can have the sums without it"
            ) from error
        return np.asarray(found.cpu().numpy())

    def _learned_rows(
        self, X: Any, y: Any, folds: Any, sample_weight: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return features, class codes, folds and weights of learned rows."""
        self._require_fitted()
        Z = self._features(X, self.device_)
        codes = known_codes(self.classes_, as_label_array(y, len(Z))).to(Z.device)
        weights = None
        given = as_weights(sample_weight, len(Z))
        if given is not None:
            weights = torch.from_numpy(given).to(Z.device)
        if folds is None:
            folds = np.zeros(len(Z))
        fold_codes = torch.from_numpy(np.asarray(folds, dtype=np.int64)).to(Z.device)
        return Z, codes, fold_codes, weights

    def calibrate(
        self,
        *,
        temperature: float | None = None,
        novelty: NoveltyStandard | None = None,
    ) -> Self:
        """Set the temperature and the novelty score. Both stay when more is learned.

        An argument that is left out removes what was set before.

        Parameters
        ----------
        temperature : float, optional
            Temperature of the softmax. By default it is estimated from the statistics.
        novelty : NoveltyStandard, optional
            How terms of novelty become a score. By default the terms have equal
            weights, and their moments are estimated from the statistics.

        Returns
        -------
        self

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from evergrow import Classifier
        >>> from evergrow.head.temperature import TEMPERATURES
        >>> X, y = load_digits(return_X_y=True)
        >>> model = Classifier(n_units=100, random_state=0).fit(X[:900], y[:900])
        >>> losses = model.held_out_scores(X[:90], y[:90]).losses.mean(axis=0)
        >>> model = model.calibrate(temperature=TEMPERATURES[losses.argmin()])
        >>> model.temperature_ > 1.0
        True
        """
        self._require_started()
        if temperature is not None:
            check_number("temperature", temperature, low=0, low_open=True)
            temperature = float(temperature)
        self._temperature = temperature
        self._standard = novelty
        return self

    # -- distributed learning ----------------------------------------------------------

    def spawn(self) -> Self:
        """Return a classifier with the same frozen layer that has learned nothing.

        Another site or worker can train it, and :meth:`merge` adds the result.
        ``partial_fit`` keeps the shared layer; ``fit`` builds a new one.

        Returns
        -------
        Classifier
            With the same parameters, and without classes.
        """
        self._require_started()
        child = self.branch()
        for name in ("_temperature", "_standard", "_unknown_fields"):
            child.__dict__.pop(name, None)
        child._state = child._unsolved(self._state.model.empty())
        child.classes_ = self.classes_[:0]
        return child

    def expect_rows(self, n_rows: int) -> Self:
        """Set how many samples this and all spawned classifiers will learn, in place.

        Parameters
        ----------
        n_rows : int
            Number of samples. It decides how sums are stored, not their values.

        Returns
        -------
        self
        """
        model = self._state.model
        sums = model.state.with_expected_rows(n_rows)
        self._state = self._state.with_model(dataclasses.replace(model, state=sums))
        return self

    def tag_shard(self, number: int) -> Self:
        """Mark the model as learned from one shard, in place. Call it once.

        Models of equal data have the same lineage, and :meth:`merge` refuses them,
        because their samples would count twice. The number makes them distinct.

        Parameters
        ----------
        number : int
            Number of the shard, which is appended to the names in the lineage.

        Returns
        -------
        self
        """
        model = self._state.model
        lineage = frozenset(f"{name}-{number}" for name in model.lineage)
        tagged = dataclasses.replace(model, lineage=lineage)
        self._state = self._state.with_model(tagged)
        return self

    @_with_threads_for_rows
    def merge(self, other: Classifier, base: Classifier | None = None) -> Self:
        """Add everything another classifier with the same layer has learned.

        The result equals a classifier with this layer that learned all samples.

        Parameters
        ----------
        other : Classifier
            Made by :meth:`spawn` from this classifier or a common ancestor. It is not
            changed.
        base : Classifier, optional
            The common state of two copies that went on separately. Its samples count
            once.

        Returns
        -------
        self

        Raises
        ------
        MergeError
            If the layers differ, if samples would be counted twice (both learned the
            same first batch, or the same classifier is merged twice), or if the base is
            not part of both.
        """
        self._require_started()
        heads: list[Classifier] = [self, other]
        if base is not None:
            heads.append(base)
        for head in heads[1:]:
            if not isinstance(head, Classifier) or "_state" not in vars(head):
                raise MergeError(
                    "other must be a classifier that shares this layer, "
                    f"got {type(head).__name__}"
                )
        classes = self._merged_classes(other)
        if base is not None:
            shared = np.intersect1d(self.classes_, other.classes_)
            missing = np.setdiff1d(base.classes_, shared)
            if len(missing):
                raise MergeError(
                    "base must be part of both classifiers, but they lack its classes "
                    f"{missing[:5].tolist()}"
                )
        models = []
        pseudo_labels = []
        for head in heads:
            state = head._state
            groups = old_columns(head.classes_, classes)
            models.append(state.model.group(groups))
            own = state.pseudo_labels
            pseudo_labels.append(own and own.group(groups))
        mine, *others = models
        merged = self._state.solved.for_model(mine.merge(*others))
        self._state = self._state.changed(
            merged, merge_pseudo_labels(pseudo_labels, mine)
        )
        self.classes_ = classes
        return self

    def _merged_classes(self, other: Classifier) -> NDArray[Any]:
        """Return the labels of both classifiers, sorted, if they are of one type."""
        if len(self.classes_) == 0:
            return other.classes_
        if len(other.classes_):
            require_same_type(self.classes_, other.classes_)
        return np.union1d(self.classes_, other.classes_)

    # -- exact edits -------------------------------------------------------------------

    @_with_threads_for_rows
    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Remove learned samples. The result equals a classifier that never saw them.

        A class without remaining samples is removed.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            The samples, as they were learned.
        y : array-like of shape (n,)
            The labels they were learned with.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a label was never learned.
        UnlearnError
            If more samples of a class are given than were learned, or if some cannot
            have been learned.
        NothingLeftError
            If no sample would remain.
        """
        self._require_fitted()
        Z, labels, weights = self._labelled(X, y, sample_weight, self.device_)
        codes = known_codes(self.classes_, labels).to(Z.device)
        alpha = self._fixed_alpha()
        before = self._state.model
        floor = alpha or UNLEARN_FLOOR * max(before.row_energy, _TINY)
        model = before.unlearn(Z, codes, floor, weights)
        kept = torch.nonzero(model.counts).ravel().tolist()
        if len(kept) < len(self.classes_):
            self._keep(model, kept)
            return self
        model.require_sound(before, alpha)
        solved = self._state.solved.followed(model, Z, codes, None, weights)
        self._state = self._state.changed(solved, self._state.pseudo_labels)
        return self

    @_with_threads_for_rows
    def drop_unused_directions(self) -> Self:
        """Remove directions that only unlearned rows occupied, in place.

        The compact form of the statistics keeps the directions of unlearned rows. All
        settings are chosen again for the remaining samples.

        Returns
        -------
        self
        """
        state = self._state
        model = state.model
        sums = model.state.without_unused_directions()
        model = dataclasses.replace(model, state=sums)
        solved = state.solved.for_model(model, SolvedChoice())
        self._state = state.changed(solved, state.pseudo_labels)
        return self

    def forget_classes(self, labels: Iterable[Any]) -> Self:
        """Remove whole classes. They are never predicted again.

        Label, count and mean of each class are removed. The spread of its samples
        around their mean stays in the pooled second moments and has a slight influence
        on the scores of the other classes. Pass the samples to :meth:`unlearn` to
        remove that too.

        Parameters
        ----------
        labels : str or iterable
            Classes to remove.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If there are no labels, or one was not learned.
        NothingLeftError
            If no class would remain.
        UnlearnError
            If the remaining classes are lost in rounding errors.
        """
        self._require_fitted()
        names = [labels] if isinstance(labels, str) else list(labels)
        if not names:
            raise LabelError("labels must name at least one class, got none")
        codes = known_codes(self.classes_, as_label_array(names, len(names))).tolist()
        kept = [column for column in range(len(self.classes_)) if column not in codes]
        self._keep(self._state.model, kept)
        return self

    def fade(self, factor: float) -> Self:
        """Multiply the weight of everything learned so far.

        The result equals a classifier that learned the samples with these weights.
        Counts of samples do not change. To unlearn samples later, give their reduced
        weights.

        Parameters
        ----------
        factor : float
            Factor of the weight of every sample and pseudo-label, 0 < factor <= 1.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If the factor is out of range, or a class would weigh less than
            :data:`MIN_CLASS_WEIGHT`.
        """
        self._require_fitted()
        check_number("factor", factor, low=0, high=1, low_open=True)
        factor = float(factor)
        state = self._state
        model = state.model.faded(factor)
        if float(model.masses.min()) < MIN_CLASS_WEIGHT:
            raise ParameterError(
                "factor must leave every class some weight, "
                f"got {factor:g}, which leaves a class without any"
            )
        own = state.pseudo_labels
        self._state = state.changed(
            state.solved.for_model(model), own and own.faded(factor)
        )
        return self

    @_with_threads_for_rows
    def _keep(self, model: RidgeModel, kept: list[int]) -> None:
        """Use a model with some of the present classes.

        Parameters
        ----------
        model : RidgeModel
            The present model, perhaps without some samples.
        kept : list of int
            Columns of the classes to keep.

        Raises
        ------
        NothingLeftError
            If there are none.
        """
        if not kept:
            raise NothingLeftError(
                "at least one class must remain; call fit to start anew"
            )
        state = self._state
        own = state.pseudo_labels
        pseudo_labels = own and own.keep(state.model, kept)
        model = model.keep(kept)
        model.require_sound(state.model, self._fixed_alpha())
        self._state = state.changed(state.solved.for_model(model), pseudo_labels)
        self.classes_ = self.classes_[kept]

    def _regroup(self, change: ClassChange) -> None:
        state = self._state
        model = state.model.group(change.groups)
        own = state.pseudo_labels
        order = change.order
        if order is None:  # classes were merged, so all settings are chosen again
            solved = state.solved.for_model(model, SolvedChoice())
        else:
            solved = state.solved.reordered(model, order)
        self._state = state.changed(solved, own and own.group(change.groups))

    # -- solving, files, export --------------------------------------------------------

    def _solve_order(self) -> float:
        return self._state.model.state.order

    def _work(self, n_rows: int) -> float:
        """Return the approximate operations to learn or predict rows, and to solve.

        That is n k^2 for n rows and k columns of the statistics, and k^3 + 2 C k^2 to
        solve for C class means.
        """
        n_classes = 0
        if "_state" in vars(self):
            order = float(len(self._state.model.state.cross))
            n_classes = len(self._state.model.counts)
        else:
            order = float(min(n_rows, self.n_units or _USUAL_WIDTH))
        return (n_rows + order + 2 * n_classes) * order**2

    @_with_threads_for_rows
    def _settle(self) -> None:
        self._state = self._state.settled()

    def _contents(self) -> Learned:
        state = self._state
        blended_solution = None
        if state.pseudo_labels is not None:
            blended_solution = state.answering.solution()
        return Learned(
            self._seed,
            state.model,
            self._temperature,
            self._standard,
            state.solved.solution(),
            state.pseudo_labels,
            blended_solution,
        )

    def _restore(self, learned: Learned) -> None:
        self._seed = learned.seed
        self._temperature = learned.temperature
        self._standard = learned.novelty
        state = self._unsolved(self._check_model(learned.model))
        self._state = state.restored(learned.solution, learned.guesses, learned.guessed)

    def linear_map(self) -> LayerMap:
        """Return the matrices that compute the scores, on the CPU."""
        self._require_fitted()
        solved = self._state.answering
        readout = solved.readout()
        found = layer_map(self._state.model, readout.weights, readout.offset)
        shapes = solved.shapes
        if shapes is not None and shapes.has_terms:
            found = dataclasses.replace(found, shapes=shapes)
        return found

    def novelty_map(self) -> NoveltyMap:
        """Return the matrices that compute the terms of novelty, on the CPU."""
        self._require_fitted()
        return self._state.solved.novelty_map()

    @property
    def novelty_standard_(self) -> NoveltyStandard:
        """The mapping of terms of novelty to scores: calibrated, or else expected."""
        self._require_fitted()
        if self._standard is not None:
            return self._standard
        return self._state.solved.standard

    # -- fitted attributes -------------------------------------------------------------

    @property
    def model_(self) -> RidgeModel:
        """The layer and the statistics of the labelled samples, as a frozen record."""
        self._require_started()
        return self._state.model

    @property
    def state_(self) -> ClassifierState:
        """Everything that predictions are computed from, as a frozen record."""
        self._require_started()
        return self._state

    @property
    def class_counts_(self) -> NDArray[np.int64]:
        """Number of learned samples per class."""
        return np.asarray(self.model_.counts.cpu().numpy())

    def _learned_values(self) -> dict[str, Any]:
        if not self._is_fitted():
            return {}
        names = map(str, self.classes_)
        counts = dict(zip(names, self.class_counts_.tolist(), strict=True))
        return {
            "classes": listed_counts(counts),
            "samples": sum(counts.values()),
            "features": self.n_features_in_,
            "units": self.n_units_,
        }

    @property
    def layer_(self) -> FeatureMap:
        """The frozen layer."""
        return self.model_.layer

    @property
    def n_units_(self) -> int:
        """Number of units of the layer."""
        return self.layer_.n_units

    @property
    def alpha_(self) -> float:
        """The ridge in use."""
        self._require_fitted()
        return self._state.answering.readout().alpha

    @property
    def block_weights_(self) -> NDArray[np.float64] | None:
        """Weight of each block of features, with mean square one. None without blocks.

        The weights of the first batch times those chosen from the present statistics.
        Solves the readout, which chooses them.
        """
        self._require_fitted()
        self._state.answering.readout()
        blocks = self.blocks_
        if blocks is None:
            return None
        return np.array([block["weight"] for block in blocks])

    @property
    def blocks_(self) -> list[dict[str, Any]] | None:
        """Columns and weight of each block of features. None without blocks.

        The keys are ``columns``, an int, and ``weight``, a float. The mean square of
        the weights is one. Nothing is solved: weights are those of the last choice.
        """
        blocks = self.model_.blocks
        choice = self._state.answering.choice
        if blocks is None:
            return None
        weights = np.asarray(blocks.weights)
        if choice is not None and choice.weights:
            weights = weights * np.asarray(choice.weights)
        weights = weights / np.sqrt(np.mean(weights**2))
        return [
            {"columns": size, "weight": weight}
            for size, weight in zip(blocks.sizes, weights.tolist(), strict=True)
        ]

    @property
    def construction_log_(self) -> list[BlockRecord]:
        """One entry per accepted block of a guided layer. Empty for other layers."""
        return list(self.layer_.log)

    @property
    def status_(self) -> str:
        """How the construction of a guided layer ended, or ``"drawn"``."""
        return self.layer_.status
