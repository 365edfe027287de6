"""`Learner`: a backbone and an incremental classifier with scikit-learn's interface."""

from __future__ import annotations

import dataclasses
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    FewSamplesWarning,
    InputError,
    MergeError,
    NotFittedError,
    ParameterError,
)
from evergrow.core.estimator import Estimator, listed_counts
from evergrow.core.files import StrPath
from evergrow.core.record import to_archive
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_choice
from evergrow.data import inputs
from evergrow.data.inputs import as_labels, item_chunks, labelled_chunks
from evergrow.data.items import Samples
from evergrow.head.label_set import BUILT_IN
from evergrow.learner import edits
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.encoder import (
    Encoder,
    encode_samples,
    join_features,
)
from evergrow.learner.evaluation import Evaluation, evaluate_learner
from evergrow.learner.explanation import (
    Explanation,
    ScoreQuestion,
    explain_sample,
)
from evergrow.learner.learning import LabelledRows, encode_labelled, learn
from evergrow.learner.prediction_sets import (
    COVERAGE,
    PredictionSets,
    prediction_sets,
    set_limits,
)
from evergrow.learner.predictions import Predictions
from evergrow.learner.snapshot import (
    Change,
    Erased,
    HeadRecipe,
    Snapshot,
    StoredHead,
    learned_data,
    read_adaptation,
    read_snapshot,
    with_head,
    with_widths,
)

if TYPE_CHECKING:
    import torch

    from evergrow.features import Features
    from evergrow.features.encoding import OnError
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.pseudo_labels import PseudoLabelReport


class Learner(Estimator):
    """Classifier for images, texts or feature vectors that keeps learning new classes.

    A frozen backbone turns samples into feature vectors, and a head learns from these.
    The result equals that of training on all data at once. No sample is stored. If a
    method fails, the learner is unchanged. The class follows scikit-learn's estimator
    contract: it can be cloned, used in a pipeline and tuned with a grid search.

    Parameters
    ----------
    backbone : "auto", str, Backbone, torch.nn.Module or None, default="auto"
        ``"auto"`` chooses the best backbone on this machine for the type of the first
        data (none for feature vectors). The choice is logged to ``"evergrow"`` and
        stored in ``state_.reason``. A name or a module is passed to
        :func:`evergrow.features.create_backbone`. None: samples are feature vectors.
    method : str, default="evergrow"
        The head: ``"evergrow"``, ``"scl-mgsm"`` (the method of the paper), or another
        of :func:`evergrow.lab.list_methods`. Unlearning, merging, probabilities and
        novelty need one of the first two.
    adapt : str, FineTuneConfig, FsaConfig, dict or None, default=None
        How ``fit`` trains the backbone on its images before freezing it. None does not
        train it. ``"auto"`` measures on held-out images whether fine-tuning helps, and
        keeps the network frozen if not. ``"full"`` fine-tunes all weights. A name of
        :func:`evergrow.adapt.tuners.adapting_tuners` trains a tuner with RanPAC's
        protocol. A :class:`~evergrow.adapt.FineTuneConfig` or
        :class:`~evergrow.adapt.FsaConfig`, or its fields as a dict, sets everything.
    features : {"auto", "fast", "rich", "best"}, str or sequence of str, default="auto"
        Which activations of the backbone form the feature vector: its own output
        (``"fast"``), several depths in one pass (``"rich"``), several depths at two
        sizes with mirror images (``"best"``, six to seven passes), or a recipe such as
        ``"rich@224+320:mirror"`` or ``"final,mean@-2"``; see
        :mod:`evergrow.features.backbone`. ``"auto"`` keeps the recipe of a backbone
        that has one. Otherwise it is ``"rich"`` if the depths of the network are known,
        and ``"final"`` with the method of the paper.
    options : dict, optional
        Head options that override the defaults; see
        :func:`evergrow.lab.methods.method_options`.
    weights, preset : optional
        Passed to :func:`evergrow.features.create_backbone`.
    device : str, default="auto"
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None, default=0
        Seed of the head, the adaptation and the calibration. The first ``fit`` or
        ``begin`` draws one number from a generator; None draws it from the operating
        system. The model file stores this number, and a loaded learner has it as
        ``random_state``.
    cache : None, False or path-like, default=None
        Folder of the feature cache. None uses the default cache for files and tables
        only; False disables it.
    extract : EncodeConfig or dict, optional
        Settings of the feature extraction: ``batch_size``, ``workers``, ``on_error``,
        ``precision``, ``progress``. They and ``cache`` are read when the model begins
        or is loaded.

    Attributes
    ----------
    classes_ : ndarray
        Sorted class labels, in the type passed to ``fit``: strings, integers or
        booleans.
    state_ : Snapshot
        Everything learned, as one immutable record: class names, counts, history,
        revision, backbone description, calibration;
        see :class:`~evergrow.learner.snapshot.Snapshot`.
    head_ : IncrementalClassifier
        The classifier on feature vectors.
    n_features_in_ : int
        Number of columns of the feature vectors.
    feature_names_in_ : ndarray of str
        Column names of the data frame passed to ``fit``, if it was one.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import Learner
    >>> X, y = load_digits(return_X_y=True)
    >>> old, new = y < 5, y >= 5
    >>> learner = Learner(options={"n_units": 200})
    >>> _ = learner.fit(X[old][:600], y[old][:600])
    >>> _ = learner.partial_fit(X[new][:600], y[new][:600])
    >>> learner.classes_.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> learner.score(X[1400:], y[1400:]) > 0.9
    True
    """

    _state: Snapshot | None = None
    _encoder: Encoder | None = None
    """Set by `begin` or the first fit, or rebuilt from the state when needed."""
    _source: tuple[Any, str] = (None, "the archive")
    """Device for a head that is still stored, and name of its file in messages."""
    _drawn_seed: tuple[Any, int] | None = None
    """A `random_state` that is not an integer, and the seed drawn from it."""

    def __init__(
        self,
        backbone: Any = "auto",
        method: str = "evergrow",
        adapt: Any = None,
        *,
        features: Any = "auto",
        options: dict[str, Any] | None = None,
        weights: StrPath | None = None,
        preset: Any = "timm",
        device: str | torch.device = "auto",
        random_state: Any = 0,
        cache: Any = None,
        extract: Any = None,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.adapt = adapt
        self.features = features
        self.options = options
        self.weights = weights
        self.preset = preset
        self.device = device
        self.random_state = random_state
        self.cache = cache
        self.extract = extract

    # -- learned state -----------------------------------------------------------------

    @property
    def state_(self) -> Snapshot:
        """Everything learned, as one immutable record.

        If the learner was loaded with ``lazy=True``, the head in this record may still
        be stored in the file; ``head_`` loads it. Assigning another record replaces
        everything learned.
        """
        if self._state is None:
            raise NotFittedError("this Learner must learn something first: call fit()")
        return self._state

    @state_.setter
    def state_(self, state: Snapshot) -> None:
        self._state = state

    @property
    def classes_(self) -> NDArray[Any]:
        """Sorted class labels, in the type passed to ``fit``."""
        state = self.state_
        return np.sort(as_labels(state.classes.tolist(), state.label_kind))

    @property
    def head_(self) -> IncrementalClassifier:
        """The classifier on feature vectors. Do not change it."""
        return self._require_fitted().head

    @property
    def n_features_in_(self) -> int:
        """Number of columns of the feature vectors."""
        return int(self.head_.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Column names of the data frame passed to ``fit``; missing for other data."""
        names = self.state_.columns
        if not names:
            raise AttributeError(
                "feature_names_in_ exists only after fit was called with a data frame "
                "that has column names"
            )
        return np.array(names, dtype=object)

    def backbone_(self) -> Any:
        """Return the backbone, loading it if needed; None if samples are features."""
        if self.state_.spec is None:
            return None
        return self._require_encoder().backbone()

    def __repr__(self) -> str:
        if self._state is None:
            return f"Learner(method={self.method!r}, nothing learned yet)"
        info = self._state.describe()
        backbone = ""
        if info["backbone"]:
            backbone = f", backbone={info['backbone']['name']!r}"
        return (
            f"Learner(method={self.method!r}, kind={info['kind']!r}{backbone}, "
            f"{info['n_classes']} classes, {info['n_samples']} samples, "
            f"revision {info['revision']})"
        )

    def _learned_values(self) -> dict[str, Any]:
        if self._state is None:
            return {}
        state = self._state
        backbone = "none: samples are feature vectors"
        if state.spec is not None:
            backbone = state.spec.name
        return {
            "kind": state.kind,
            "backbone": backbone,
            "classes": listed_counts(state.counts) or "none",
            "samples": sum(state.counts.values()),
            "features": state.n_features,
            "revision": state.revision,
        }

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None and not self._state.is_empty

    def _require_fitted(self) -> Snapshot:
        """Return the state with its head, which the first call loads.

        Raises
        ------
        NotFittedError
            If nothing was learned yet.
        """
        state = self._require_classes()
        if isinstance(state.head, StoredHead):
            state = self._state = with_head(state, *self._source)
        return state

    def _require_classes(self) -> Snapshot:
        """Return the state with a head that can rename classes, loaded or stored.

        Classes of a stored head can be renamed only for the methods of this package.

        Raises
        ------
        NotFittedError
            If nothing was learned yet.
        """
        state = self.state_
        if state.head is None:
            raise NotFittedError(
                "this model has learned nothing yet: teach it a class first"
            )
        if isinstance(state.head, StoredHead) and state.recipe.method not in BUILT_IN:
            state = self._state = with_head(state, *self._source)
        return state

    def _require_method(self, name: str) -> IncrementalClassifier:
        """Return the head; raise :class:`UnsupportedError` if it lacks the method."""
        head = self.head_
        getattr(head, name)
        return head

    def _require_encoder(self) -> Encoder:
        """Return the encoder; the first call after loading builds it from the state."""
        if self._encoder is None:
            state = self.state_
            adaptation = None
            if state.adaptation is not None:
                adaptation = read_adaptation(state.adaptation)
            self._encoder = dataclasses.replace(
                Encoder.of(self),
                is_chosen=True,
                spec=state.spec,
                adaptation=adaptation,
                feature_widths=state.widths,
            )
        return self._encoder

    # -- learning ----------------------------------------------------------------------

    def begin(self, kind: str | None = None) -> Self:
        """Choose the backbone before there is anything to learn.

        The empty model can be saved and trained later.

        Parameters
        ----------
        kind : {"image", "text", "features"}, optional
            The type of the samples. Not needed if a backbone is named, or None.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If the type of the samples is not known, or if ``adapt`` is set: only
            ``fit`` can adapt a backbone, because that takes images.

        Examples
        --------
        >>> import tempfile
        >>> from evergrow import Learner
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Learner(None, options={"n_units": 20}).begin().save(f"{folder}/a.evg")
        ...     learner = Learner.load(f"{folder}/a.evg")
        >>> learner.classes_.tolist()
        []
        >>> _ = learner.partial_fit([[0.0, 1.0], [0.0, 2.0]], ["ant", "ant"])
        >>> learner.predict([[0.0, 1.5]]).tolist()
        ['ant']
        """
        encoder = Encoder.of(self)
        sample_kind: Any = kind or encoder.kind
        check_choice("kind", sample_kind, ("image", "text", "features"))
        if self.adapt is not None:
            raise ParameterError(
                "adapt must be None for an empty model: fit adapts a backbone to its "
                "images"
            )
        seed = seed_of(self)
        create_head(self, seed)  # invalid options raise an error now
        encoder = encoder.with_backbone_for(Samples(sample_kind))
        state = empty_state(self, encoder, seed)
        replace_model(self, encoder, state.after(Change.now("begin", 0)))
        return self

    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        engine: Any = None,
    ) -> Self:
        """Forget everything and learn.

        A backbone chosen by :meth:`begin` is kept. An unreadable image raises an error;
        if ``extract`` sets ``on_error="skip"``, it is left out with a warning.

        Parameters
        ----------
        data : path-like, Dataset, (items, labels), items or DataLoader
            - Folders, tables and files, read by :func:`evergrow.data.load_data`. If the
              data has train and test splits, only train is used.
            - Items, with labels in a pair or in ``y``: paths, PIL images, uint8 arrays,
              texts or a matrix of features.
            - A generator, torch dataset or loader of pairs or of batches of pairs.
              Streams are read once, in chunks. The layer is built from the first
              20,000 samples.
        y : array-like of shape (n,), optional
            Labels of ``data``: strings, integers or booleans. Predictions have the same
            type.
        sample_weight : array-like of shape (n,), optional
            Weight per sample: 2 equals giving the sample twice, 0 leaving it out.
            ``state_.counts`` still counts samples. Needs a method that takes weights.
        engine : Engine, optional
            Train on several processes or machines, shard by shard, for example
            ``evergrow.engine.LocalEngine(workers=2)``. ``data`` is then an address that
            every worker can read. The layer is built from 20,000 random samples, or
            from all if there are no more. With up to 20,000 samples, the result equals
            that without an engine up to rounding.

        Returns
        -------
        self

        Raises
        ------
        DatasetNotFoundError
            If ``data`` names no folder or file.
        InputError
            If ``data`` has no samples or is malformed, or no sample of a class can be
            read.
        LabelError
            If labels are missing, too many or of several types.
        UnsupportedError
            If the method takes no weights and some are not 1.

        Warns
        -----
        FewSamplesWarning
            If a class has fewer than ten samples and fewer than a fifth of the median
            of the other classes.
        """
        if engine is not None:
            _check_engine(engine, y=y, sample_weight=sample_weight)
            engine.fit(self, data)
            return self
        return self._fit(data, y, sample_weight)

    def _fit(self, data: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        """Forget everything and learn; a backbone chosen by `begin` is kept."""
        begun = None
        if self._state is not None and self._state.is_empty:
            begun = self._state
        else:
            self._drawn_seed = None  # every fit draws a new number from a generator
        seed = seed_of(self)
        head = create_head(self, seed)  # invalid options raise an error now
        config = None
        if self.adapt is not None:
            from evergrow.adapt.fsa import adaptation_config  # slow to import

            config = adaptation_config(self.adapt)
        encoder = Encoder.of(self) if begun is None else self._require_encoder()

        chunks = iter(labelled_chunks(data, y, sample_weight, "train", encoder.kind))
        first = next(chunks)
        if first.weights is not None:
            head.require_weights()
        if config is not None:
            _check_adaptable(first.kind)
            inputs.check_not_stream(data)

        if encoder.spec is None:  # `begin` has not chosen a backbone
            encoder = encoder.with_backbone_for(first)
        if config is not None:
            encoder, first = encoder.adapted(
                first,
                config,
                seed=seed,
                new_head=lambda widths: with_widths(create_head(self, seed), widths),
            )
        if begun is None:
            empty = empty_state(self, encoder, seed)
        else:
            # Parameters may have changed since `begin`: the file must describe the
            # head.
            empty = dataclasses.replace(begun, recipe=HeadRecipe.of(self), seed=seed)
        if encoder.spec is None:
            empty = dataclasses.replace(
                empty, columns=first.columns, widths=encoder.widths
            )

        samples = itertools.chain([first], chunks)
        blocks = encode_labelled(encoder, empty, samples, classes)
        head = with_widths(head, encoder.widths)
        replace_model(self, encoder, learn(empty, head, blocks, seed, "fit"))
        return self

    def partial_fit(
        self,
        data: Any,
        y: Any = None,
        *,
        classes: Any = None,
        sample_weight: Any = None,
        engine: Any = None,
        again: bool = True,
    ) -> Self:
        """Learn more samples, of new or known classes.

        The first call equals :meth:`fit`. No earlier data is needed.

        Parameters
        ----------
        data : path-like, Dataset, (items, labels), items or DataLoader
            As for :meth:`fit`.
        y : array-like of shape (n,), optional
            Labels of ``data``, in the type learned before.
        classes : array-like, optional
            The only classes this call may contain. Not needed: new classes are allowed
            at any time.
        sample_weight : array-like of shape (n,), optional
            As for :meth:`fit`.
        engine : Engine, optional
            As for :meth:`fit`.
        again : bool, default=True
            Whether to accept a batch that was learned before, so that its samples count
            twice. Batches are recognised by their fingerprints in the history.

        Returns
        -------
        self

        Raises
        ------
        KnownSamplesError
            If ``again`` is false and a batch was learned before. Nothing is learned
            then.
        LabelError
            If a label is not in ``classes``, or labels are names and the model has
            integers or booleans. A model with names learns integers as names.
        InputError, DatasetNotFoundError, UnsupportedError
            As for :meth:`fit`.

        Warns
        -----
        FewSamplesWarning
            As for :meth:`fit`, if a class is added to those with few samples.
        DataWarning
            If integers add a class to a model with names.
        """
        is_empty = self._state is None or self._state.is_empty
        if engine is not None:
            _check_engine(engine, y=y, classes=classes, sample_weight=sample_weight)
            if is_empty:
                engine.fit(self, data)
            else:
                engine.partial_fit(self, data)
            return self
        if is_empty:
            return self._fit(data, y, sample_weight, classes=classes)
        state = self._require_fitted()
        blocks = self._encode_training_data(data, y, sample_weight, classes)
        refused = frozenset() if again else learned_data(state.history)
        head = state.head.branch()
        self._state = learn(state, head, blocks, state.seed, "update", refused)
        return self

    def _encode_training_data(
        self, data: Any, y: Any, sample_weight: Any, classes: Any = None
    ) -> Iterable[LabelledRows]:
        encoder = self._require_encoder()
        chunks = labelled_chunks(data, y, sample_weight, "train", encoder.kind)
        return encode_labelled(encoder, self.state_, chunks, classes)

    def learn_unlabelled(self, data: Any) -> PseudoLabelReport:
        """Learn samples without labels as their predicted class.

        The fewer labels there are, the more these samples count. With one or two labels
        per class this adds 5 to 10 points of accuracy, with twenty almost nothing.
        Pseudo-labels are kept apart from labels: ``unlearn(unlabelled=True)`` removes
        all of them, and a label given to such a sample later replaces its pseudo-label.
        Counts, calibration and novelty use labelled samples only.

        Parameters
        ----------
        data : object
            As for :meth:`predict`. Labels are ignored. Duplicates and samples that look
            unknown are skipped.

        Returns
        -------
        PseudoLabelReport
            How many samples were used, per class.

        Raises
        ------
        InputError
            If every sample looks unknown. Nothing has changed then.
        LabelError
            If the model knows fewer than two classes.
        UnsupportedError
            If the method cannot learn samples without labels.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from evergrow import Learner
        >>> X, y = load_digits(return_X_y=True)
        >>> learner = Learner().fit(X[:20], y[:20])
        >>> before = learner.score(X[1000:], y[1000:])
        >>> learner.learn_unlabelled(X[20:1000]).used > 500
        True
        >>> learner.score(X[1000:], y[1000:]) > before + 0.02
        True
        """
        self._require_method("learn_unlabelled")
        blocks = (
            LabelledRows(part.X, np.full(len(part.X), ""))
            for part in self._encode_chunks(data)
        )
        self._state, report = edits.with_unlabelled(self._require_fitted(), blocks)
        return report

    def fade(self, factor: float) -> Self:
        """Multiply the weight of everything learned so far.

        Use this if the appearance of classes changes over time. The result equals
        training with these sample weights. Counts do not change. To unlearn a sample
        later, pass the weight it has then.

        Parameters
        ----------
        factor : float
            0 < factor <= 1.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If the factor is outside of this range.
        UnsupportedError
            If the method cannot reduce the weight of what it learned.
        """
        self._require_method("fade")
        self._state = edits.faded(self._require_fitted(), factor)
        return self

    # -- editing -----------------------------------------------------------------------

    def forget_classes(self, names: str | int | Iterable[Any]) -> Self:
        """Remove whole classes, so that they are never predicted again.

        Needs no data and no backbone. Held-out scores of the classes are removed from
        the calibration too. If no class remains, the model is empty and can be trained
        again.

        Parameters
        ----------
        names : label or iterable of labels
            Classes to remove.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If there are no names, or a class was never learned.
        UnsupportedError
            If the method cannot remove classes.
        """
        labels = [names] if isinstance(names, (str, int)) else list(names)
        self._state = edits.forgotten(self._require_fitted(), labels)
        return self

    def unlearn(
        self,
        data: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        unlabelled: bool = False,
        for_good: bool = False,
    ) -> Self:
        """Remove samples: the learner then equals one that never saw them.

        If no sample remains, the learner is empty and can be trained again. Held-out
        scores of the samples are removed from the calibration too. Scores of other
        samples that were measured while the removed ones were learned do not change;
        ``state_.history[-1].influenced_scores`` is the largest possible number of
        these. The layer, which the first ``fit`` built, does not change either.

        Parameters
        ----------
        data : path-like, Dataset, (items, labels), items or DataLoader
            Samples with the labels they were learned with. If the data has train and
            test splits, only train is used.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.
        unlabelled : bool, default=False
            Remove everything that :meth:`learn_unlabelled` learned instead. Predictions
            are then bit for bit those without it. ``data`` must be left out.
        for_good : bool, default=False
            Also remove the features of ``data`` from the feature cache, and have
            :func:`~evergrow.learner.modelfile.commit` drop all earlier revisions, from
            which the samples could be restored. ``state_.history[-1].erased`` says what
            was removed from the cache.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a class was never learned.
        UnlearnError
            If samples were never learned, or with another label or weight.
        UnsupportedError
            If the method cannot unlearn.
        ParameterError
            If both or none of ``data`` and ``unlabelled`` are given, or ``for_good``
            without ``data``.
        BusyError
            If another process is writing to the cache, with ``for_good``.
        """
        if unlabelled == (data is not None):
            raise ParameterError("unlearn must be given either data or unlabelled=True")
        if unlabelled and for_good:
            raise ParameterError("for_good must be given with data")
        if unlabelled:
            self._require_method("forget_unlabelled")
            self._state = edits.without_unlabelled(self._require_fitted())
            return self
        self._require_method("unlearn")
        encoder = self._require_encoder()
        chunks = labelled_chunks(data, y, sample_weight, "train", encoder.kind)
        removals: list[Erased] = []
        if for_good:
            chunks = _erased_from_cache(encoder, chunks, removals)
        blocks = encode_labelled(encoder, self.state_, chunks, None)
        state = edits.unlearned(self._require_fitted(), blocks, for_good=for_good)
        self._state = edits.marked_erased(state, removals) if for_good else state
        return self

    def rename_classes(self, names: Mapping[Any, Any]) -> Self:
        """Rename classes, all at once, so that two may swap their names.

        Scores do not change. Needs no data and no backbone.

        Parameters
        ----------
        names : mapping of str to str
            New names by old names.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If there are no names, a class was never learned, or a new name belongs to
            another class; use :meth:`merge_classes` to merge two.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Learner
        >>> X = np.random.default_rng(0).normal(size=(40, 5))
        >>> y = np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> learner.rename_classes({"owl": "barn owl"}).classes_.tolist()
        ['barn owl', 'crow', 'jay', 'rook']
        """
        self._state = edits.renamed(self._require_classes(), names)
        return self

    def merge_classes(self, names: Iterable[Any], into: Any) -> Self:
        """Merge several classes into one.

        The result equals training on these samples under one name. Needs no data.
        Probabilities stay calibrated with the original classes.

        Parameters
        ----------
        names : iterable of str
            Classes to merge.
        into : str
            Name of the merged class: a new name, or that of a class, which is then
            merged too.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a class was never learned, or there are fewer than two.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Learner
        >>> X = np.random.default_rng(0).normal(size=(40, 5))
        >>> y = np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> learner.merge_classes(["crow", "rook"], "corvid").state_.label_counts
        {'corvid': 20, 'jay': 10, 'owl': 10}
        """
        self._state = edits.with_merged_classes(self._require_classes(), names, into)
        return self

    def relabel(self, data: Any, source: Any, target: Any) -> Self:
        """Move samples from one class to another.

        The result equals training on them with the second label.

        Parameters
        ----------
        data : path-like, Dataset, (items, labels) or items
            The samples. If they have labels, only those of class ``source`` are moved;
            otherwise all.
        source : str
            The class they were learned as. It is removed if no sample remains.
        target : str
            The class to move them to; it may be new.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If ``source`` was never learned, no sample has that label, or ``target`` is
            the same class.
        UnlearnError
            If samples were never learned as ``source``.
        UnsupportedError
            If the method cannot unlearn.
        """
        state = self._require_fitted()
        source, target = edits.check_move(state, source, target)
        samples = edits.read_movable(data, state.kind)
        samples = edits.samples_to_move(samples, source)
        X = self.encode(samples, on_error="raise").X
        self._state = edits.relabelled(state, X, source, target)
        return self

    # -- several learners --------------------------------------------------------------

    def __copy__(self) -> Self:
        """Return an independent learner with the same state; both share the backbone.

        Examples
        --------
        >>> import copy
        >>> import numpy as np
        >>> from evergrow import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 4
        >>> first = Learner(options={"n_units": 20}).fit((X, y))
        >>> second = copy.copy(first).forget_classes("3")
        >>> len(first.classes_), len(second.classes_)
        (4, 3)
        """
        if self._state is not None:
            self._require_encoder()
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))  # every change works on a branch of the head
        return twin

    def merge(self, other: Learner, *, base: Learner | None = None) -> Self:
        """Add everything another learner knows; exact, and no data is needed.

        Parameters
        ----------
        other : Learner
            Made by :func:`evergrow.learner.empty_copy` from this learner or a common
            ancestor; not changed.
        base : Learner, optional
            The learner that both were copied from, if they were. What it knows is
            counted once. Since then, both may only have learned or merged.

        Returns
        -------
        self

        Raises
        ------
        MergeError
            If backbones, layers or label types differ, samples would be counted twice,
            or `base` is not a common ancestor. The message names the difference.
        UnsupportedError
            If the method cannot merge.
        """
        for name, learner in (("other", other), ("base", base)):
            if learner is not None and not isinstance(learner, Learner):
                raise MergeError(
                    f"{name} must be a Learner, got {type(learner).__name__}"
                )
        self._require_method("merge")
        self._state = edits.merged(
            self._require_fitted(),
            other._require_fitted(),
            None if base is None else base._require_fitted(),
        )
        return self

    # -- prediction --------------------------------------------------------------------

    def predict(self, items: Any) -> NDArray[Any]:
        """Return the most likely class of each sample.

        Parameters
        ----------
        items : object
            A path or paths, a folder of images, PIL images, uint8 arrays, texts or
            features; or a generator, torch dataset or loader of these, whose labels are
            ignored. The result of :meth:`encode` is accepted too.

        Returns
        -------
        ndarray of shape (n,)
            Labels, in the type passed to ``fit``.

        Raises
        ------
        NotFittedError
            If nothing was learned yet. The other methods raise it too.
        InputError
            If there are no samples, or they are of another type than the learned ones.
        ImageError
            If an image cannot be read, also if ``extract`` sets ``on_error="skip"``;
            :meth:`predictions` can skip it.
        """
        head = self.head_
        names = self._apply(lambda X: np.asarray(head.predict(X), dtype=np.str_), items)
        return as_labels(names.tolist(), self.state_.label_kind)

    def decision_function(self, items: Any) -> NDArray[np.float64]:
        """Return class scores, one column per entry of ``classes_``.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.

        Returns
        -------
        ndarray of shape (n, C), or (n,) for two classes
            With two classes, the score of the second minus that of the first, as
            scikit-learn expects.
        """
        scores = self._sort_columns(self._apply(self.head_.class_scores, items))
        if scores.shape[1] == 2:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores

    def predict_proba(self, items: Any) -> NDArray[np.float64]:
        """Return class probabilities, one column per entry of ``classes_``.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.

        Returns
        -------
        ndarray of shape (n, C)
            Each row sums to 1, also for samples that look unknown.

        Raises
        ------
        UnsupportedError
            If the method has no probabilities.
        """
        head = self._require_method("predict_proba")
        return self._sort_columns(
            self._apply(lambda X: np.asarray(head.predict_proba(X)), items)
        )

    def novelty_score(self, items: Any) -> NDArray[np.float64]:
        """Return how novel each sample is; higher is more novel.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.

        Returns
        -------
        ndarray of shape (n,)

        Raises
        ------
        UnsupportedError
            If the method cannot score novelty.
        """
        return self._apply(self._require_method("novelty_score").novelty_score, items)

    def is_unknown(
        self, items: Any, false_alarm: float = FALSE_ALARM
    ) -> NDArray[np.bool_]:
        """Return which samples look like none of the learned classes.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float, default=0.05
            Fraction of known samples that may be called unknown, between 0 and 1. The
            threshold is calibrated on held-out samples of every batch; with few samples
            the actual fraction can differ by a multiple.

        Returns
        -------
        ndarray of bool of shape (n,)

        Raises
        ------
        UnsupportedError
            If the method cannot score novelty.
        NotFittedError
            If nothing was learned yet, or the calibration has no held-out sample.
        """
        threshold = self._require_fitted().threshold(false_alarm)
        # A NaN counts as unknown.
        return np.asarray(~(self.novelty_score(items) <= threshold))

    def encode(self, items: Any, *, on_error: OnError | None = None) -> Features:
        """Return feature vectors; all methods accept them in place of the items.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        on_error : {"raise", "skip"}, optional
            As for :meth:`predictions`.

        Returns
        -------
        Features
            One row per readable sample. ``rows`` has their row numbers among the items,
            and ``failures`` names the unreadable ones.
        """
        return join_features(list(self._encode_chunks(items, on_error)))

    def predictions(
        self,
        items: Any,
        *,
        false_alarm: float | None = None,
        on_error: OnError | None = None,
    ) -> Predictions:
        """Return labels, probabilities and novelty in one pass through the backbone.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float, optional
            Fraction of known samples that may be called unknown. None skips novelty
            detection.
        on_error : {"raise", "skip"}, optional
            Whether an unreadable image raises an error or is skipped. The default is
            the setting in ``extract``.

        Returns
        -------
        Predictions
            One row per readable sample. It has scores in place of probabilities if the
            method has no probabilities, and familiarities if the model has one class.

        Raises
        ------
        UnsupportedError
            If ``false_alarm`` is given and the method cannot score novelty.
        """
        state = self._require_fitted()
        threshold = None
        if false_alarm is not None:
            threshold = state.threshold(false_alarm)
        features = self.encode(items, on_error=on_error)
        measure = state.measure
        if measure == "probability":
            values = np.asarray(state.head.predict_proba(features.X))
        elif measure == "familiarity":
            score = state.head.novelty_score(features.X)
            values = state.calibration.familiarity(score)[:, None]
        else:
            values = state.head.class_scores(features.X)
        novelty = None
        unknown = None
        thresholds = None
        if threshold is not None:
            novelty = state.head.novelty_score(features.X)
            unknown = ~(novelty <= threshold)  # a NaN counts as unknown
            thresholds = np.full(len(novelty), threshold)
        return Predictions(
            state.classes,
            values,
            measure,
            features.rows,
            features.failures,
            novelty=novelty,
            unknown=unknown,
            threshold=thresholds,
            label_kind=state.label_kind,
            index=getattr(items, "index", None) if inputs.is_pandas(items) else None,
        )

    def predict_set(
        self,
        items: Any,
        coverage: float = COVERAGE,
        *,
        per_class: bool = False,
        false_alarm: float | None = None,
        on_error: OnError | None = None,
    ) -> PredictionSets:
        """Return the classes that each sample may belong to.

        For a fraction `coverage` of new samples, the set has the true class. This holds
        if they belong to learned classes and resemble the learned samples. The set of a
        sample that looks unknown is empty.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        coverage : float, default=0.95
            Fraction of samples whose set has their class, between 0 and 1.
        per_class : bool, default=False
            Whether the coverage holds for the samples of each class. A class needs 19
            held-out samples for a coverage of 0.95, and 99 for 0.99. Classes with fewer
            share the limits of all samples.
        false_alarm : float, optional
            Fraction of known samples that may be called unknown, as for
            :meth:`is_unknown`. The coverage then holds for the samples that are not
            called unknown. By default, it follows from the coverage: known samples
            that are called unknown count as misses, and may be a tenth of the allowed
            misses. They may be more if one class per set already gives the coverage.
        on_error : {"raise", "skip"}, optional
            As for :meth:`predictions`.

        Returns
        -------
        PredictionSets
            One set per readable sample. ``labels`` lists the sets, ``unknown`` says
            which are empty, and ``note`` says if held-out samples are too few.

        Raises
        ------
        ParameterError
            If the coverage or the false alarm rate is not between 0 and 1.
        NotFittedError
            If nothing was learned yet, or the calibration has no held-out sample.
        UnsupportedError
            If the method has no calibrated probabilities, or cannot score novelty.

        Warns
        -----
        FewSamplesWarning
            If there are too few held-out samples for the coverage. Every set then has
            all classes.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.model_selection import train_test_split
        >>> from evergrow import Learner
        >>> X, y = load_digits(return_X_y=True)
        >>> X, X_new, y, y_new = train_test_split(X, y, random_state=0)
        >>> learner = Learner(options={"n_units": 200}).fit(X, y)
        >>> found = learner.predict_set(X_new, coverage=0.99)
        >>> bool(found.covered(y_new).mean() > 0.98)
        True
        >>> bool(found.sizes.mean() < 1.1)
        True
        """
        state = self._require_fitted()
        for name in ("predict_proba", "novelty_score"):
            self._require_method(name)
        limits = set_limits(
            state.calibration,
            state.classes,
            coverage,
            per_class=per_class,
            false_alarm=false_alarm,
        )
        if limits.is_trivial:
            warnings.warn(limits.note, FewSamplesWarning, stacklevel=2)
        # Any rate adds the novelty. Which samples are unknown follows from `limits`.
        found = self.predictions(items, false_alarm=FALSE_ALARM, on_error=on_error)
        return prediction_sets(found, limits)

    def explain(
        self, item: Any, label: Any = None, *, against: Any = None
    ) -> Explanation:
        """Return where in an image, or in which words, a class score comes from.

        It takes one pass through the backbone and one backward pass.

        Parameters
        ----------
        item : path-like, PIL.Image.Image, ndarray or str
            One image or text.
        label : str, int or bool, optional
            The class to explain. By default the most likely one.
        against : str, int or bool, optional
            The class to compare it with: "why `label` and not `against`". By default
            all other classes.

        Returns
        -------
        Explanation
            With a heatmap of the size of the image, or the words of the text.

        Raises
        ------
        LabelError
            If a class is unknown, or both are the same.
        UnsupportedError
            If the model takes feature vectors, knows a single class, or has a backbone
            or a method without gradients.
        InputError
            If `item` is not one sample of the kind that the model takes.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow import Learner
        >>> from evergrow.features import create_backbone
        >>> images = np.random.default_rng(0).integers(0, 99, (8, 40, 60, 3), np.uint8)
        >>> images[4:] += 99
        >>> backbone = create_backbone("test_resnet", weights="random", device="cpu")
        >>> learner = Learner(backbone, options={"n_units": 20})
        >>> _ = learner.fit(images, ["dark"] * 4 + ["light"] * 4)
        >>> explanation = learner.explain(images[7])
        >>> explanation.label, explanation.score > 0, explanation.heatmap.shape
        ('light', True, (40, 60))
        """
        question = ScoreQuestion(self._require_fitted(), label, against)
        return explain_sample(self.backbone_(), question, item)

    def _encode_chunks(
        self, items: Any, on_error: OnError | None = None
    ) -> Iterable[Features]:
        """Return the features of items, one chunk of a stream at a time."""
        from evergrow.features.encoding import Features

        if isinstance(items, Features):
            return [items]
        state = self.state_
        encoder = self._require_encoder()
        return (
            encode_samples(encoder, state, samples, on_error)
            for samples in item_chunks(items, encoder.kind)
        )

    def _apply(
        self, function: Callable[[NDArray[Any]], Any], items: Any
    ) -> NDArray[Any]:
        """Apply a function to the features of items, chunk by chunk."""
        chunks = self._encode_chunks(items, "raise")
        return np.concatenate([function(chunk.X) for chunk in chunks])

    def _sort_columns(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sort columns by label (2 before 10) instead of name ("10" before "2")."""
        state = self.state_
        labels = as_labels(state.classes.tolist(), state.label_kind)
        return values[:, np.argsort(labels, kind="stable")]

    # -- evaluation --------------------------------------------------------------------

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        unknown: Any = None,
        false_alarm: float = FALSE_ALARM,
        keep_samples: bool = False,
    ) -> Evaluation:
        """Compare predictions with labels.

        Parameters
        ----------
        data : path-like, Dataset, (items, labels), items or DataLoader
            Labelled data. If it has train and test splits, only test is used. Samples
            of classes that the model does not know are counted separately and used as
            unknown samples. Labels are compared by name, whatever their type.
            Unreadable images raise an error; if ``extract`` sets ``on_error="skip"``,
            they are left out and named in the result.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        unknown : path-like, Dataset, (items, labels) or items, optional
            More unknown samples. If they have labels, known classes are ignored.
        false_alarm : float, default=0.05
            Fraction of known samples that may be called unknown.
        keep_samples : bool, default=False
            Whether to return the prediction and probability of each sample.

        Returns
        -------
        Evaluation

        Raises
        ------
        InputError
            If there are no samples, or `unknown` has samples of known classes only.
        UnsupportedError
            If `unknown` is given and the method cannot score novelty.
        """
        return evaluate_learner(
            self,
            data,
            y,
            unknown=unknown,
            false_alarm=false_alarm,
            keep_samples=keep_samples,
        )

    def score(self, data: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy; samples of classes never learned count as wrong.

        An unreadable image raises an error, also if ``extract`` sets
        ``on_error="skip"``.

        Parameters
        ----------
        data, y
            As for :meth:`evaluate`.
        sample_weight : array-like of shape (n,), optional
            Weight per sample.

        Returns
        -------
        float
            Fraction of correct predictions, weighted.
        """
        head = self.head_
        kind = self.state_.kind
        correct = []
        weights = []
        for samples in labelled_chunks(data, y, sample_weight, "test", kind):
            X = self.encode(samples, on_error="raise").X
            predicted = np.asarray(head.predict(X), dtype=np.str_)
            correct.append(predicted == samples.required_labels())
            if samples.weights is None:
                weights.append(np.ones(len(samples)))
            else:
                weights.append(samples.weights)
        return float(
            np.average(np.concatenate(correct), weights=np.concatenate(weights))
        )

    # -- files -------------------------------------------------------------------------

    def save(self, path: StrPath) -> None:
        """Write one file atomically; it does not contain the backbone weights.

        An existing file is replaced, and its earlier revisions are not kept;
        :func:`evergrow.learner.modelfile.commit` keeps them.

        Parameters
        ----------
        path : path-like
            The file to write, for example ``birds.evg``. Its folder must exist.
        """
        write_archive(path, self.state_.to_archive())

    @classmethod
    def load(
        cls,
        source: StrPath | Archive,
        *,
        name: str | None = None,
        backbone: Any = None,
        weights: StrPath | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
        lazy: bool = False,
    ) -> Self:
        """Read a file written by :meth:`save`; the backbone is loaded on first use.

        Parameters
        ----------
        source : path-like or Archive
            A model file, or the result of ``state_.to_archive()``.
        name : str, optional
            Name of the model in messages; by default its path.
        backbone : Backbone or torch.nn.Module, optional
            The backbone, if it was a module of yours.
        weights : str or path-like, optional
            Location of the backbone weights, if they have moved.
        device : str or torch.device, optional
            Where to compute; by default the best device available.
        cache, extract : optional
            As for the class; they are not part of the file.
        lazy : bool, default=False
            Leave the head in the file until the first prediction or change. The state
            can be read, and classes renamed and merged, without importing torch. A
            damaged head raises an error only then.

        Raises
        ------
        FileFormatError
            If the file is not a learner, is damaged or was altered.
        NewerSchemaError
            If a newer evergrow wrote it.
        FileNotFoundError
            If there is no such file.
        """
        if not isinstance(source, Archive):
            name = name or os.fspath(source)
            source = read_archive(source)
        name = name or "the archive"
        state = read_snapshot(source, name)
        recipe: Any = "auto"
        if state.spec is not None:
            recipe = "final"
            if state.spec.recipe is not None:
                recipe = list(state.spec.recipe.blocks)
            if backbone is None:
                backbone = "auto"
        adapt = None
        if state.adaptation is not None:
            adapt = state.adaptation.meta.get("config")
        learner = cls(
            backbone,
            state.recipe.method,
            adapt,
            features=recipe,
            options=dict(state.recipe.options) or None,
            weights=weights,
            device="auto" if device is None else device,
            random_state=state.seed,
            cache=cache,
            extract=extract,
        )
        learner._source = (device, name)
        learner._state = state if lazy else with_head(state, device, name)
        return learner

    # -- parameters --------------------------------------------------------------------

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments by name, for the next :meth:`fit`.

        ``options__NAME`` sets a single head option, as in a grid search of
        scikit-learn.

        Returns
        -------
        self

        Raises
        ------
        UnknownNameError
            If there is no such argument. The names of options are checked by ``fit``.

        Examples
        --------
        >>> from evergrow import Learner
        >>> learner = Learner(options={"n_units": 50})
        >>> learner.set_params(options__alpha=0.1).options
        {'n_units': 50, 'alpha': 0.1}
        """
        prefix = "options__"
        single = {
            name.removeprefix(prefix): value
            for name, value in params.items()
            if name.startswith(prefix)
        }
        params = {
            name: value for name, value in params.items() if not name.startswith(prefix)
        }
        if single:
            options = params.get("options", self.options) or {}
            params["options"] = {**options, **single}
        return super().set_params(**params)


def _erased_from_cache(
    encoder: Encoder, chunks: Iterable[Samples], removals: list[Erased]
) -> Iterator[Samples]:
    """Yield chunks of samples, and remove their features from the cache afterwards.

    Appends what was removed to `removals`.
    """
    for samples in chunks:
        yield samples  # the caller encodes them, which may write to the cache
        removals.append(encoder.erase_cached(samples))


def empty_copy(learner: Learner) -> Learner:
    """Return a learner with the same backbone and layer that has learned nothing.

    Train it elsewhere, then add its samples with :meth:`Learner.merge`.

    Parameters
    ----------
    learner : Learner
        A fitted learner; not changed.
    """
    head = learner._require_method("spawn").spawn()
    state = learner.state_
    encoder = encoder_of(learner)
    empty = dataclasses.replace(
        empty_state(learner, encoder, state.seed),
        head=head,
        label_kind=state.label_kind,
        columns=state.columns,
    )
    return new_learner(learner, encoder, empty)


def settle(learner: Learner) -> Learner:
    """Solve the class weights of a learner now instead of at its first prediction.

    ``fit`` does this. Later changes do it only if it takes at most a second; with
    thousands of units and classes it takes several. A learner that is saved afterwards
    predicts at once when it is loaded.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place and returned.
    """
    head = learner.head_.branch().settle()
    state = learner.state_
    calibration = state.calibration.calibrate_head(head)
    learner.state_ = dataclasses.replace(state, head=head, calibration=calibration)
    return learner


# -- for modules that train learners ---------------------------------------------------


def seed_of(learner: Learner) -> int:
    """Return the seed of the next fit.

    A number drawn from a generator is kept until the next fit, so that all calls return
    the same.
    """
    random_state = learner.random_state
    if isinstance(random_state, (int, np.integer)):
        return resolve_seed(random_state)
    drawn = learner._drawn_seed
    if drawn is None or drawn[0] is not random_state:
        drawn = (random_state, resolve_seed(random_state))
        learner._drawn_seed = drawn
    return drawn[1]


def create_head(learner: Learner, seed: int) -> IncrementalClassifier:
    """Return the untrained head of the next fit; invalid options raise an error."""
    recipe = HeadRecipe.of(learner)
    return recipe.create(device=learner.device, random_state=seed)


def empty_state(learner: Learner, encoder: Encoder, seed: int) -> Snapshot:
    """Return the state of a model that has a backbone and has learned nothing."""
    adaptation = None
    if encoder.adaptation is not None:
        adaptation = to_archive(encoder.adaptation)
    return Snapshot(
        HeadRecipe.of(learner),
        {},
        spec=encoder.spec,
        reason=encoder.reason,
        seed=seed,
        adaptation=adaptation,
        widths=encoder.widths if encoder.spec is None else (),
    )


def encoder_of(learner: Learner) -> Encoder:
    """Return the encoder of a learner that has a state, even if it is empty."""
    return learner._require_encoder()


def new_learner(template: Learner, encoder: Encoder, state: Snapshot) -> Learner:
    """Return a learner with the parameters of a template and this state."""
    learner = type(template)(**template.get_params())
    learner._source = template._source
    return replace_model(learner, encoder, state)


def replace_model(learner: Learner, encoder: Encoder, state: Snapshot) -> Learner:
    """Replace encoder and state of a learner in place, and return it.

    It still belongs to the same model file.
    """
    origin = None if learner._state is None else learner._state.origin
    learner._encoder = encoder
    learner._state = dataclasses.replace(state, origin=origin)
    return learner


def _check_engine(engine: Any, **arguments: Any) -> None:
    """Raise :class:`ParameterError` unless the arguments allow an engine."""
    if not hasattr(engine, "partial_fit"):
        raise ParameterError(
            "engine must be one of evergrow.engine, such as LocalEngine(), "
            f"got {engine!r}"
        )
    for name, value in arguments.items():
        if value is not None:
            raise ParameterError(
                f"{name} must be left out with an engine, got {type(value).__name__}"
            )


def _check_adaptable(kind: str) -> None:
    """Raise :class:`InputError` unless samples are images."""
    if kind == "image":
        return
    what = "feature vectors" if kind == "features" else f"{kind}s"
    raise InputError(
        f"A backbone is adapted to images, and these are {what}; leave adapt out."
    )
