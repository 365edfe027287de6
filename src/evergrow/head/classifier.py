"""The classifier: a frozen layer, statistics that add up, and a readout solved from them when asked for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import (
    LabelError,
    MergeError,
    NothingLeftError,
    ParameterError,
    UnsupportedError,
)
from evergrow.core.record import record, require
from evergrow.core.seeding import resolve_seed
from evergrow.core.threads import threads_for
from evergrow.core.validation import as_weights, check_choice, check_number
from evergrow.head.base import HEADS, IncrementalClassifier, Positive, Seed
from evergrow.head.block_weights import first_blocks
from evergrow.head.label_set import (
    ClassChange,
    LabelUpdate,
    as_labels,
    check_kind,
    known_codes,
    old_columns,
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
from evergrow.head.linalg.statistics import Readout, RidgeStatistics
from evergrow.head.novelty import NoveltyStandard
from evergrow.head.pseudo_labels import (
    PseudoLabelReport,
    PseudoLabels,
    merge_pseudo_labels,
    pseudo_label_rows,
)
from evergrow.head.readout import (
    READOUTS,
    Choice,
    HeldOutScores,
    Locked,
    SolvedCache,
    SolvedChoice,
    solved_once,
)
from evergrow.head.ridge_model import LayerMap, RidgeModel, layer_map

P = ParamSpec("P")
T = TypeVar("T")

_USUAL_WIDTH = 3000  # columns of a layer whose width is not known yet

GCV_FLOOR = 1e-6
"""Smallest ridge that is ever chosen, relative to the energy of a row: what compact statistics must stay exact for."""

LEAST_MASS = 1e-6
"""Weight of a class below which nothing is left of it."""

_FLOOR_ROWS = 256  # rows that tell the energy of a row well enough for a bound


@record("head-solution")
@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """What has been worked out from the statistics, so that a saved model answers without solving."""

    readout: Readout
    temperature: Positive | None = None
    choice: Choice | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """What files hold of what was learned."""

    seed: Seed
    model: RidgeModel
    temperature: Positive | None = None
    novelty: NoveltyStandard | None = None
    solution: Solution | None = None
    guesses: PseudoLabels | None = None
    guessed: Solution | None = None


def _solution_of(solved: SolvedCache) -> Solution | None:
    """Return what a file keeps of what was solved; a calibrated temperature is no matter of the statistics."""
    found = solved.known_solution()
    if found is None:
        return None
    return Solution(*found)


class Blend(Locked):
    """Labelled samples and guesses together; their sums are added at the first question.

    Parameters
    ----------
    model : RidgeModel
        The labelled samples.
    guesses : PseudoLabels
        The guesses.
    before : SolvedCache
        Its choices are where the search for new ones begins.
    fixed : float or None
        The ridge; None where it is chosen from the statistics.
    """

    def __init__(
        self,
        model: RidgeModel,
        guesses: PseudoLabels,
        before: SolvedCache,
        fixed: float | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.guesses = guesses
        self.kind = before.kind
        self.fixed = fixed
        self._known = SolvedChoice(before.choice)

    @solved_once
    def cache(self) -> SolvedCache:
        """What answers are solved from."""
        return SolvedCache(
            self.guesses.blended(self.model),
            self.kind,
            self.fixed,
            self._known,
            shape_masses=self.model.masses,
        )

    def with_cache(self, cache: SolvedCache) -> Blend:
        """Return the same samples and guesses with another state of their solution."""
        made = Blend(self.model, self.guesses, cache, self.fixed)
        vars(made)["cache"] = cache
        return made


def _with_threads_for_rows(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method of the classifier use as many threads as its work deserves.

    The first argument of the method are rows, if it has any.
    """

    @functools.wraps(method)
    def limited(*args: P.args, **settings: P.kwargs) -> T:
        head: Any = args[0]
        rows: Any = args[1] if len(args) > 1 else ()
        n_rows = 0
        if hasattr(rows, "__len__"):
            n_rows = len(rows)
        with threads_for(head._work(n_rows)):
            return method(*args, **settings)

    return limited


@HEADS.register("evergrow")
class Classifier(IncrementalClassifier):
    """A classifier that learns new classes batch by batch, exactly as if it saw everything at once.

    The first batch fixes a layer: random Fourier units of a bandwidth that suits the
    data, beside the features themselves. Every batch adds to sums over samples, from
    which class scores are solved when they are asked for. So nothing is forgotten and
    no sample is kept, and samples can be taken out again, learners merged, classes
    renamed.

    Parameters
    ----------
    n_units : int or None
        Units of the layer, at most 65,536; 0 uses the features alone. None takes the
        layer's own number: by default 3,000, or 24 a feature where that is fewer, but
        at least 2,048.
    alpha : float or "gcv"
        Ridge. ``"gcv"`` chooses it from the statistics by generalised cross-validation,
        again and again as they grow.
    layer : Layer, str, mapping or None
        :class:`~evergrow.head.layers.FourierLayer` (the default),
        :class:`~evergrow.head.layers.GuidedLayer`, the name of a layer, or its plain
        values such as ``{"kind": "guided", "scales": "auto"}``.
    readout : {"denoised", "ridge"}
        Class scores from class means that are taken for the estimates they are, so that
        a class of a few samples beside others of many is recognised too; or from ridge
        regression.
    normalize : {"auto", "none", "l2", "sqrt-l2"}
        What is done to features first. ``"auto"`` brings rows to length one, after a
        square root where no feature is negative; it leaves several ``blocks`` as they
        are.
    shape_directions : int
        Directions of the first batch in which the second moments of every class are
        kept, so that the denoised readout knows the shape of each class; 0 keeps none.
        A class of n samples takes ``8 k (n + 1)`` bytes, and at most ``4 k (k + 3)``.
    blocks : tuple of int or None
        Columns of each block of features that stand side by side, each of equal energy,
        as those of several depths of a backbone do. The denoised readout chooses from
        the statistics how much each counts.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None
        Seed of the layer.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    class_counts_ : ndarray of int
        Samples learned of each.
    n_units_ : int
        Units of the layer.
    alpha_ : float
        The ridge in use.
    block_weights_ : ndarray or None
        How much each block of features counts.

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
    _model: RidgeModel
    _solved: SolvedCache
    _seed: int
    _temperature: float | None = None
    _standard: NoveltyStandard | None = None
    _guesses: PseudoLabels | None = None
    _blend: Blend | None = None

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

    # -- settings ----------------------------------------------------------------------

    def _check_params(self) -> None:
        self._chosen_layer()
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("gcv",))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)
        check_choice("readout", self.readout, READOUTS)
        check_choice("normalize", self.normalize, ("auto", "none", "l2", "sqrt-l2"))
        check_number(
            "shape_directions", self.shape_directions, low=0, high=4096, integer=True
        )
        sizes = () if self.blocks is None else self.blocks
        if (
            not isinstance(sizes, (tuple, list))
            or len(sizes) > MOST_BLOCKS
            or (self.blocks is not None and not sizes)
        ):
            raise ParameterError(
                f"blocks must be None or 1 to {MOST_BLOCKS} numbers of columns, got {self.blocks!r}"
            )
        for size in sizes:
            check_number("blocks", size, low=1, high=2**31, integer=True)
        if len(sizes) > 1 and self.normalize not in ("auto", "none"):
            raise ParameterError(
                f"normalize must be 'auto' or 'none' with several blocks, got {self.normalize!r}"
            )

    def _chosen_layer(self) -> Layer:
        """Return the settings of the layer to build."""
        layer: Any = self.layer
        own: dict[str, Any]
        if self.n_units is None:
            own = {}
        else:
            own = {"n_units": self.n_units}
        if layer is None:
            return FourierLayer(**own)
        if isinstance(layer, str):
            check_choice("layer", layer, LAYERS.names())
            layer = {"kind": layer}
        if isinstance(layer, Mapping):
            return layer_from_plain({**layer, **own})
        if not isinstance(layer, Layer):
            raise ParameterError(
                f"layer must be a layer, its name or None, got {type(layer).__name__}"
            )
        if own:
            return dataclasses.replace(layer, **own)
        return layer

    def _fixed_alpha(self) -> float | None:
        """Return the ridge, None where it is chosen from the statistics."""
        if isinstance(self.alpha, str):
            return None
        return float(self.alpha)

    # -- learning ----------------------------------------------------------------------

    def _reset(self) -> None:
        for name in (
            "_model",
            "_solved",
            "_temperature",
            "_standard",
            "_guesses",
            "_blend",
        ):
            self.__dict__.pop(name, None)

    @_with_threads_for_rows
    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        if "_model" not in vars(self):
            self._seed = resolve_seed(self.random_state)
            self._commit(self._first_model(Z, labels.codes), None, None)
        learned = self._model.learn(Z, labels.codes, labels.groups, labels.weights)
        guesses = self._guesses
        if guesses is not None:  # a label replaces the guess about its row
            guesses = guesses.group(labels.groups).without(learned, Z)
        solved = self._solved.followed(
            learned, Z, labels.codes, labels.groups, labels.weights
        )
        self._commit(learned, solved, guesses)

    def _first_model(self, Z: Tensor, codes: Tensor) -> RidgeModel:
        """Build the layer on the first batch; nothing is learned through it yet."""
        rule = self.normalize
        if rule == "auto" and len(self.blocks or ()) > 1:
            rule = "none"  # each block has been brought to equal energy by itself
        rule = resolve_normalization(rule, Z)
        Z = normalize(Z, rule)
        blocks = first_blocks(Z, codes, self.blocks)
        if blocks is None:
            Z = Z
        else:
            Z = blocks.apply(Z)
        kind = self._chosen_layer()
        alpha = self._fixed_alpha()
        # A matrix of all rows and many classes would be large: the default layer looks
        # at no targets.
        is_drawn = isinstance(kind, FourierLayer)
        if is_drawn:
            Y = Z.new_empty(len(Z), 0)
        else:
            Y = torch.nn.functional.one_hot(codes).to(Z.dtype)
        layer = kind.build(Z, Y, seed=self._seed, alpha=alpha, verbose=self.verbose > 0)
        check_contrast(layer, Z)
        some = Z[:: max(len(Z) // _FLOOR_ROWS, 1)]
        floor = alpha or GCV_FLOOR * max(layer.centred_energy(some) / len(some), 1e-12)
        shapes = None
        if self.shape_directions:
            shapes = ClassShapes.first(Z, self.shape_directions)
        state = self._empty_state(layer.n_outputs, floor, Z.device)
        return RidgeModel.start(layer, rule, state, shapes=shapes, blocks=blocks)

    def _empty_state(
        self, width: int, floor: float, device: torch.device
    ) -> RidgeStatistics:
        """Return statistics of no rows, in the form that costs least; no ridge will be below ``floor``."""
        return RidgeStatistics.create(width, 0, "auto", floor=floor, device=device)

    def _commit(
        self,
        model: RidgeModel,
        solved: SolvedCache | None,
        guesses: PseudoLabels | None,
    ) -> None:
        """Make a new model the current one; what was solved for the old one is solved anew when needed."""
        if solved is None:
            before: SolvedCache | None = vars(self).get("_solved")
            if before is None:
                solved = SolvedCache(model, self.readout, self._fixed_alpha())
            else:
                solved = before.after(model, self._fixed_alpha())
        self._model = model
        self._solved = solved
        self._set_guesses(guesses)

    def _set_guesses(self, guesses: PseudoLabels | None) -> None:
        """Let other guesses count in answers, or none."""
        self._guesses = guesses or None
        if not guesses:
            self._blend = None
            return
        before = self._solved
        if self._blend is not None and "cache" in vars(self._blend):
            before = self._blend.cache
        self._blend = Blend(self._model, guesses, before, self._fixed_alpha())

    # -- rows without labels -----------------------------------------------------------

    @_with_threads_for_rows
    def learn_unlabelled(
        self, X: Any, *, threshold: float | None = None
    ) -> PseudoLabelReport:
        """Learn rows without labels as what they look like, the less the more labels there are.

        They are sums of their own: :meth:`forget_unlabelled` takes them out, and a
        label that comes for one of the rows replaces its guess. See
        :mod:`evergrow.head.pseudo_labels`.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features. Rows that were guessed before are guessed anew.
        threshold : float, optional
            Novelty above which a row is left out; by default that of one in twenty rows
            as the statistics expect them. Where each class has one sample only, nothing
            is known of their spread, and the second pass alone decides.

        Returns
        -------
        PseudoLabelReport
            How many rows were used and left out. Where all look unknown, nothing has
            changed.

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
        if (
            self.readout == "ridge"
        ):  # under ridge regression classes of many guesses swallow the others
            raise UnsupportedError(
                "rows without labels are learned with the denoised readout only"
            )
        if len(self.classes_) < 2:
            raise LabelError(
                "rows without labels need at least two learned classes to choose from, got one"
            )
        found, report = pseudo_label_rows(
            self.branch(), self._features(X, self.device_), threshold
        )
        if report.used:
            self._blend = None
            self._set_guesses(found)
        return report

    def forget_unlabelled(self) -> Self:
        """Take out all that was learned without labels: the classifier is, bit for bit, one that never saw it."""
        self._require_started()
        self._set_guesses(None)
        return self

    @property
    def n_pseudo_labels_(self) -> int:
        """Rows without labels that count in answers."""
        return len(self._guesses or ())

    @property
    def _answering(self) -> SolvedCache:
        """What answers are solved from: the labelled samples, with the guesses where there are some."""
        if self._blend is None:
            return self._solved
        return self._blend.cache

    # -- answers -----------------------------------------------------------------------

    @_with_threads_for_rows
    def _scores(self, Z: Tensor) -> Tensor:
        readout = self._answering.readout()
        model = self._model
        out = Z.new_empty(Z.shape[0], readout.weights.shape[1])
        for rows, H in model.activations(Z):
            out[rows] = torch.addmm(readout.offset, H, readout.weights)
        shapes = self._answering.shapes
        if shapes is None or model.shapes is None:
            return out
        return shapes.add(model.shapes.rows(model.inputs(Z)), out)

    @_with_threads_for_rows
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities: a softmax of the scores at :attr:`temperature_`.

        Expect them to be honest on data like the learned, not on unknown classes: use
        :meth:`novelty_score` for those.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C)
            Rows sum to one; columns follow ``classes_``.
        """
        temperature = self.temperature_
        return np.asarray(
            torch.softmax(
                torch.from_numpy(self.class_scores(X)) / temperature, dim=1
            ).numpy()
        )

    @property
    @_with_threads_for_rows
    def temperature_(self) -> float:
        """Temperature of the softmax: the one given to :meth:`calibrate`, else a guess from the statistics."""
        self._require_fitted()
        if self._temperature is None:
            found = self._solved.temperature()
        else:
            found = self._temperature
        if (
            self._guesses is not None
        ):  # scores are larger by as much as the means are better known
            found *= self._answering.temperature() / self._solved.temperature()
        return found

    def novelty_score(self, X: Any) -> NDArray[np.float64]:
        """Return how unlike anything learned each row is; higher means more novel.

        A weighted sum of five terms (see :mod:`evergrow.head.novelty`), with mean 0 and
        spread 1 on known things once :meth:`calibrate` has been told what these are
        like, and about so before. Things of another world have larger ones without
        bound.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Compare them with those of known data.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Classifier
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(200, 8)) + np.repeat(6 * np.eye(8)[:4], 50, axis=0), np.repeat(range(4), 50)
        >>> model = Classifier(n_units=20, random_state=0).fit(X, y)
        >>> new = rng.normal(size=(50, 8)) + 6 * np.eye(8)[5]
        >>> bool(model.novelty_score(new).min() > np.median(model.novelty_score(X)))
        True
        """
        terms = self.novelty_terms(X)
        return (
            self._solved.standard if self._standard is None else self._standard
        ).score(terms)

    @_with_threads_for_rows
    def novelty_terms(self, X: Any) -> NDArray[np.float64]:
        """Return what novelty is weighed from: five terms, and 1 / count of the nearest class.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, 6)
            Columns as in :data:`~evergrow.head.novelty.TERMS`, each larger for what is
            less known, and the last.
        """
        self._require_fitted()
        return np.asarray(
            self._solved.novelty_terms(self._features(X, self.device_)).cpu().numpy()
        )

    @_with_threads_for_rows
    def expected_terms(self) -> NDArray[np.float64]:
        """Return the terms of novelty (256, 6) that the statistics alone expect of known rows."""
        self._require_fitted()
        return self._solved.expected_terms

    def normalized_features(self, X: Any) -> NDArray[Any]:
        """Return feature vectors as the layer sees them: normalised and weighted by block.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        """
        self._require_fitted()
        inputs = self._model.inputs(self._features(X, self.device_))
        return np.asarray(inputs.cpu().numpy())

    @_with_threads_for_rows
    def whitened(self, X: Any) -> NDArray[np.float64]:
        """Return rows about the mean of all, in units of the spread within classes, of length one.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, k)
            Their products are cosines: how like each other rows are where classes
            differ.
        """
        self._require_fitted()
        solved = self._solved
        rows, _ = solved.project(self._features(X, self.device_))
        white = solved.scatter()[1].factor.half_solve((rows - solved.terms.centre).T).T
        return np.asarray(torch.nn.functional.normalize(white, dim=1).cpu().numpy())

    # -- calibration -------------------------------------------------------------------

    @_with_threads_for_rows
    def held_out_scores(
        self, X: Any, y: Any, folds: Any = None, sample_weight: Any = None
    ) -> HeldOutScores:
        """Return terms of novelty and log losses of learned rows as if they, or their fold, had not been learned.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Rows that were learned; of each class at least one learned row must not be
            among those taken out.
        y : array-like of shape (n,)
            The labels they were learned with.
        folds : ndarray of int of shape (n,), optional
            The fold of each; by default all are in one.
        sample_weight : array-like of shape (n,), optional
            The weights that they were learned with.
        """
        self._require_fitted()
        Z = self._features(X, self.device_)
        codes = known_codes(self.classes_, as_labels(y, len(Z)))
        found = as_weights(sample_weight, len(Z))
        weights = None
        if found is not None:
            weights = torch.from_numpy(found).to(Z.device)
        if folds is None:
            parts = np.zeros(len(Z), dtype=np.int64)
        else:
            parts = np.asarray(folds, dtype=np.int64)
        return self._solved.held_out_scores(
            Z, codes.to(Z.device), torch.from_numpy(parts).to(Z.device), weights
        )

    def calibrate(
        self,
        *,
        temperature: float | None = None,
        novelty: NoveltyStandard | None = None,
    ) -> Self:
        """Set what was found out from rows as if they had not been learned; it stays when more is learned.

        Parameters
        ----------
        temperature : float, optional
            Of the softmax; None for a guess from the statistics.
        novelty : NoveltyStandard, optional
            How terms of novelty become a score; None for default weights and what the
            statistics say of known rows.

        Returns
        -------
        self

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from evergrow import Classifier
        >>> from evergrow.head.novelty import TEMPERATURES
        >>> X, y = load_digits(return_X_y=True)
        >>> model = Classifier(n_units=100, random_state=0).fit(X[:900], y[:900])
        >>> found = model.held_out_scores(X[:90], y[:90])
        >>> model.calibrate(temperature=TEMPERATURES[found.log_losses.argmin()]).temperature_ > 1.0
        True
        """
        self._require_started()
        if temperature is not None:
            check_number("temperature", temperature, low=0, low_open=True)
        self._temperature = None
        if temperature is not None:
            self._temperature = float(temperature)
        self._standard = novelty
        return self

    # -- exact edits -------------------------------------------------------------------

    def spawn(self) -> Self:
        """Return an empty learner with the same frozen layer, for another site or worker.

        What it learns can be brought back with :meth:`merge`. Calling ``fit`` on it
        starts from scratch with a layer of its own; ``partial_fit`` keeps the shared
        one.
        """
        self._require_started()
        child = self.branch()
        for name in (
            "_solved",
            "_temperature",
            "_standard",
            "_unknown_fields",
            "_blend",
        ):
            child.__dict__.pop(name, None)
        child._commit(self._model.empty(), None, None)
        child.classes_ = self.classes_[:0]
        return child

    def with_expected_rows(self, rows: int) -> Self:
        """Say how many samples will be learned in all by learners that are spawned of this one and merged.

        Parameters
        ----------
        rows : int
            So many. It decides in which form each keeps its sums, not what they are.

        Returns
        -------
        self
        """
        self._commit(
            dataclasses.replace(
                self._model, state=self._model.state.with_expected_rows(rows)
            ),
            None,
            self._guesses,
        )
        return self

    def with_shard_id(self, place: int) -> Self:
        """Say which part of a whole this learner has learned, so that parts of the same content can be merged.

        Parameters
        ----------
        place : int
            Number of the part. The same content at the same place is still merged only
            once.

        Returns
        -------
        self
        """
        lineage = frozenset(f"{name}-{place}" for name in self._model.lineage)
        self._commit(
            dataclasses.replace(self._model, lineage=lineage), None, self._guesses
        )
        return self

    @_with_threads_for_rows
    def merge(self, other: Classifier, base: Classifier | None = None) -> Self:
        """Add everything another learner with the same layer has learned; exact, nothing counted twice.

        Parameters
        ----------
        other : Classifier
            Made by :meth:`spawn` from this learner or from a common ancestor; not
            changed.
        base : Classifier, optional
            What both learners began as, where they are copies that went on separately.
            Its samples count once.

        Returns
        -------
        self

        Raises
        ------
        MergeError
            If the layers differ, if samples would be counted twice (both learned the
            same first batch, or the same learner is merged twice), or if the base is
            not part of both.
        """
        self._require_started()
        heads: list[Classifier]
        if base is None:
            heads = [self, other]
        else:
            heads = [self, other, base]
        for head in heads[1:]:
            if not isinstance(head, Classifier) or "_model" not in vars(head):
                raise MergeError(
                    f"other must be a learner that shares this layer, got {type(head).__name__}"
                )
        if len(self.classes_) and len(other.classes_):
            check_kind(self.classes_, other.classes_)
        if len(self.classes_):
            classes = np.union1d(self.classes_, other.classes_)
        else:
            classes = other.classes_
        if base is not None:
            missing = np.setdiff1d(
                base.classes_, np.intersect1d(self.classes_, other.classes_)
            )
            if len(missing):
                raise MergeError(
                    f"base must be part of both learners, but they lack its classes {missing[:5].tolist()}"
                )
        groups = [old_columns(head.classes_, classes) for head in heads]
        mine, *others = (
            head._model.group(own) for head, own in zip(heads, groups, strict=True)
        )
        merged = mine.merge(*others)
        self._commit(
            merged,
            None,
            merge_pseudo_labels([head._guesses for head in heads], groups, mine),
        )
        self.classes_ = classes
        return self

    @_with_threads_for_rows
    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take samples out again that were learned before: the learner then equals one that never saw them.

        A class whose last sample goes is gone.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            The samples, as they were learned.
        y : array-like of shape (n,)
            The labels they were learned with.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Raises
        ------
        UnlearnError
            If more samples of a class are given than were learned, or some lie where
            nothing was learned.
        """
        self._require_fitted()
        Z, labels, weights = self._labelled(X, y, sample_weight, self.device_)
        codes = known_codes(self.classes_, labels).to(Z.device)
        alpha = self._fixed_alpha()
        model = self._model.unlearn(
            Z, codes, alpha or 1e-3 * max(self._model.row_energy, 1e-12), weights
        )
        kept = torch.nonzero(model.counts).ravel().tolist()
        if not kept:
            raise NothingLeftError(
                "at least one sample must remain; call fit to start anew"
            )
        if len(kept) < len(self.classes_):
            self._keep(model, kept)
        else:
            model.require_sound(self._model, alpha)
            self._commit(
                model,
                self._solved.followed(model, Z, codes, None, weights),
                self._guesses,
            )
        return self

    def forget_classes(self, labels: Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again.

        Label, count and mean of each class are gone, but the spread of its samples
        around that mean stays in the pooled second moments (as it does for every class)
        and keeps a slight influence on the others' scores; pass the samples to
        :meth:`unlearn` to remove that too.

        Parameters
        ----------
        labels : iterable
            Classes to forget.
        """
        self._require_fitted()
        if isinstance(labels, str):
            names = [labels]
        else:
            names = list(labels)
        if not names:
            raise LabelError("labels must name at least one class, got none")
        codes = known_codes(self.classes_, as_labels(names, len(names))).tolist()
        kept = [column for column in range(len(self.classes_)) if column not in codes]
        if not kept:
            raise NothingLeftError(
                "at least one class must remain; call fit to start anew"
            )
        self._keep(self._model, kept)
        return self

    def fade(self, factor: float) -> Self:
        """Let everything learned so far count for less than what comes, as if it had been learned with weights.

        Counts of samples stay. Samples that are unlearned later have the weight that
        they have then.

        Parameters
        ----------
        factor : float
            What every sample and every guess counts for from now on, in units of what
            it counted for; between 0 and 1.

        Returns
        -------
        self
        """
        self._require_fitted()
        check_number("factor", factor, low=0, high=1, low_open=True)
        model = self._model.faded(float(factor))
        if float(model.masses.min()) < LEAST_MASS:
            raise ParameterError(
                f"factor must leave every class some weight, got {factor:g}: a class would have none"
            )
        self._commit(model, None, self._guesses and self._guesses.faded(float(factor)))
        return self

    @_with_threads_for_rows
    def _keep(self, model: RidgeModel, kept: list[int]) -> None:
        """Go on with some classes of a model."""
        guesses = self._guesses and self._guesses.keep(self._model, kept)
        model = model.keep(kept)
        model.require_sound(self._model, self._fixed_alpha())
        self._commit(model, None, guesses)
        self.classes_ = self.classes_[kept]

    def _regroup(self, change: ClassChange) -> None:
        model = self._model.group(change.groups)
        order = change.order
        guesses = self._guesses and self._guesses.group(change.groups)
        if order is None:
            solved = SolvedCache(model, self.readout, self._fixed_alpha())
        else:
            solved = self._solved.reordered(model, order)
        self._commit(model, solved, guesses)

    # -- solving, files, export --------------------------------------------------------

    def _solve_order(self) -> float:
        return self._model.state.order

    def _work(self, n_rows: int) -> float:
        """Return roughly how many operations it takes to learn rows, or to answer them.

        That is n k^2 for n rows and k columns of the statistics, and k^3 to solve.
        """
        if "_model" in vars(self):
            order = float(self._model.state.order)
        else:
            order = min(float(n_rows), float(self.n_units or _USUAL_WIDTH))
        return (n_rows + order) * order**2

    @_with_threads_for_rows
    def _settle(self) -> None:
        self._solved = self._solved.refreshed()
        self._solved.temperature()
        if self._blend is not None:
            self._blend = self._blend.with_cache(self._answering.refreshed())
            self._answering.temperature()

    def _contents(self) -> Learned:
        known = (
            self._seed,
            self._model,
            self._temperature,
            self._standard,
            _solution_of(self._solved),
        )
        return Learned(
            *known,
            self._guesses,
            None if self._guesses is None else _solution_of(self._answering),
        )

    def _restore(self, learned: Learned) -> None:
        self._seed = learned.seed
        model = self._check_model(learned.model)
        guesses = learned.guesses
        self._temperature = learned.temperature
        self._standard = learned.novelty
        solved = self._adopted(
            SolvedCache(model, self.readout, self._fixed_alpha()), learned.solution
        )
        self._commit(model, solved, guesses)
        if self._blend is not None and guesses is not None:
            sums = [
                (state.n_features, state.n_targets)
                for state in (guesses.state, model.state)
            ]
            require(
                sums[0] == sums[1],
                "its guesses are of another layer or of other classes",
            )
            adopted = self._adopted(self._answering, learned.guessed)
            self._blend = self._blend.with_cache(adopted)

    def _adopted(self, cache: SolvedCache, found: Solution | None) -> SolvedCache:
        """Return the cache of a model of a file with what the file says was solved for it."""
        if found is None:
            return cache
        model = cache.model
        choice = found.choice
        fits = found.readout.weights.shape == (
            model.layer.n_outputs,
            len(self.classes_),
        )
        require(fits, "its solution is of another layer or of other classes")
        if model.blocks is None:
            blocks = 0
        else:
            blocks = len(model.blocks.sizes)
        require(
            choice is not None or self.readout == "ridge",
            "its solution does not say how it was chosen",
        )
        is_known = choice is None or len(choice.weights) in (0, blocks)
        require(is_known, "its solution has weights of another number of blocks")
        is_fresh = choice is not None and choice.rows == model.rows
        return SolvedCache(
            model,
            cache.kind,
            cache.fixed,
            SolvedChoice(choice, is_fresh=is_fresh),
            solution=found.readout,
            temperature=found.temperature,
            shape_masses=cache.shape_masses,
        )

    def linear_map(self) -> LayerMap:
        """Return what the head computes as plain matrices, on the CPU."""
        self._require_fitted()
        solved = self._answering.readout()
        shapes = self._answering.shapes
        found = layer_map(self._model, solved.weights, solved.offset)
        if shapes is None or not shapes.has_terms:
            return found
        return dataclasses.replace(found, shapes=shapes)

    # -- looking inside ----------------------------------------------------------------

    @property
    def model_(self) -> RidgeModel:
        """The layer and the statistics behind it, as a record that nobody changes."""
        self._require_started()
        return self._model

    @property
    def class_counts_(self) -> NDArray[np.int64]:
        """Samples learned of each class."""
        return np.asarray(self.model_.counts.cpu().numpy())

    @property
    def layer_(self) -> FeatureMap:
        """The frozen layer."""
        return self.model_.layer

    @property
    def n_units_(self) -> int:
        """Units of the layer."""
        return self.layer_.n_units

    @property
    def alpha_(self) -> float:
        """The ridge in use."""
        self._require_fitted()
        return self._answering.readout().alpha

    @property
    def block_weights_(self) -> NDArray[np.float64] | None:
        """How much each block of features counts, with a mean square of one; None where features have no blocks.

        What the first batch fixed times what the statistics say now.
        """
        self._require_fitted()
        self._answering.readout()
        if self.blocks_ is None:
            return None
        return np.array([block["weight"] for block in self.blocks_])

    @property
    def blocks_(self) -> list[dict[str, Any]] | None:
        """What is known of every block of features, by the choice made last; None where features have no blocks.

        ``columns`` and ``weight`` (how much it counts, with a mean square of one over
        the blocks).
        """
        blocks = self.model_.blocks
        choice = self._answering.choice
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
        """One entry per accepted block of a guided layer; empty for layers that are drawn."""
        return list(self.layer_.log)

    @property
    def status_(self) -> str:
        """How the construction of a guided layer ended, or ``"drawn"``."""
        return self.layer_.status
