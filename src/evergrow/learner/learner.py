"""Backbone, head and open-world threshold as one object on images, texts or features."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    InputError,
    LabelError,
    MergeError,
    NotFittedError,
    ParameterError,
)
from evergrow.core.estimator import Estimator
from evergrow.core.record import to_archive
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_choice, check_keys
from evergrow.data import class_labels, in_memory, inputs
from evergrow.data.items import Samples, concat_items
from evergrow.features.recipe import check_recipe
from evergrow.head.label_set import BUILT_IN
from evergrow.learner import edits
from evergrow.learner import unlabelled as unlabelled_samples
from evergrow.learner.answers import Answers
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.encoder import Encoder, check_kept, encode_config
from evergrow.learner.evaluation import Evaluation, SampleAnswers, evaluate_predictions
from evergrow.learner.label_types import as_labels
from evergrow.learner.learning import LabelledRows, gathered, learn
from evergrow.learner.snapshot import (
    Change,
    HeadRecipe,
    Snapshot,
    learned_data,
    read_adaptation,
    read_snapshot,
    with_head,
    with_widths,
)
from evergrow.learner.stored_head import StoredHead

if TYPE_CHECKING:
    import torch

    from evergrow.features import Features
    from evergrow.features.encoding import OnError
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.pseudo_labels import PseudoLabelReport


class Learner(Estimator):
    """A classifier for images, texts or feature vectors that keeps learning new classes.

    A frozen backbone turns samples into feature vectors and a head learns from these,
    exactly as if it saw everything at once. Nothing of a sample is kept. Whatever fails
    leaves the learner as it was. scikit-learn's tools take it for a classifier: it can
    be cloned, searched over and put at the end of a pipeline.

    Parameters
    ----------
    backbone : "auto", str, Backbone, torch.nn.Module or None
        ``"auto"`` takes the best one on this machine for the kind of the first data
        (none for feature vectors) and says which: on the logger ``"evergrow"``, and in
        ``state_.describe()["backbone"]``. A name or a module is for
        :func:`evergrow.features.create_backbone`. None: data are feature vectors.
    method : str
        The head: ``"evergrow"``, ``"scl-mgsm"`` (the paper's method), or another of
        :func:`evergrow.lab.list_methods`. Unlearning, merging, probabilities and
        novelty need one of these two.
    adapt : str, FsaConfig, dict or None
        What is trained of the backbone: ``fit`` trains it on the images of its data,
        freezes it, and everything after uses the adapted backbone. None leaves the
        backbone as it is. A name, one of :func:`evergrow.adapt.tuners.adapting_tuners`,
        means RanPAC's protocol, 20 epochs; an :class:`~evergrow.adapt.FsaConfig` (or
        its plain form) says it all.
    features : {"auto", "fast", "rich", "best"}, str or sequence of str
        What feature vectors are made of: the network's own vector (``"fast"``), several
        depths of one pass (``"rich"``), several depths at two sizes with mirror images
        (``"best"``, six to seven passes), or a recipe such as ``"rich@224+320:mirror"``
        or ``"final,mean@-2"``; see :mod:`evergrow.features.recipe`. ``"auto"`` keeps the
        recipe of a backbone that has one; elsewhere it is ``"rich"``, where the
        network's depths are known, and ``"final"`` with the paper's method.
    options : dict, optional
        Options of the head to set otherwise; see
        :func:`evergrow.lab.methods.method_options`.
    weights, preset : optional
        For :func:`evergrow.features.create_backbone`.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None
        Seed of the head, the adaptation and the calibration. The first ``fit`` or
        ``begin`` draws one number from a generator; None draws it from the operating
        system. The model file stores that number, and a loaded learner has it as
        ``random_state``.
    cache : None, False or path-like
        Where features are kept: the default cache (features of files and tables only),
        nowhere, or a folder.
    extract : EncodeConfig or dict, optional
        Settings of the extraction: ``batch_size``, ``workers``, ``on_error``,
        ``precision``, ``progress``. They and ``cache`` are read when the model begins
        or is loaded.

    Attributes
    ----------
    classes_ : ndarray
        Classes learned, sorted, of the kind that they came as: names, integers or
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
    >>> _ = learner.fit(X[old][:600], y[old][:600]).partial_fit(X[new][:600], y[new][:600])
    >>> learner.classes_.tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> learner.score(X[1400:], y[1400:]) > 0.9
    True
    """

    _begun: Encoder | None = None
    """The encoder; set by `begin` or the first fit, or rebuilt from the snapshot."""
    _snapshot: Snapshot | None = None
    _source: tuple[Any, str] = (None, "the archive")
    """Device and name of what was loaded."""
    _drawn_seed: tuple[Any, int] | None = None
    """A `random_state` that is no integer, and the seed drawn from it."""

    def __init__(
        self,
        backbone: Any = "auto",
        method: str = "evergrow",
        adapt: Any = None,
        *,
        features: Any = "auto",
        options: dict[str, Any] | None = None,
        weights: str | os.PathLike[str] | None = None,
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

    # -- what is known -----------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[Any]:
        """Classes learned, sorted, of the kind that they came as."""
        now = self._state()
        return np.sort(as_labels(now.classes.tolist(), now.label_kind))

    @property
    def state_(self) -> Snapshot:
        """Everything learned, as one immutable record.

        The head of a lazily loaded learner is loaded by ``head_``, not here.
        Assigning another snapshot replaces what the learner knows.
        """
        return self._state()

    @state_.setter
    def state_(self, state: Snapshot) -> None:
        self._snapshot = state

    @property
    def head_(self) -> IncrementalClassifier:
        """The head on feature vectors; to be looked at, not changed."""
        return self._taught().head

    @property
    def n_features_in_(self) -> int:
        """Width of the feature vectors: those that were learned, or those of the backbone."""
        return int(self._taught().head.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns that were learned; only there where they came in a data frame."""
        names = self._state().columns
        if not names:
            raise AttributeError(
                "feature_names_in_ is only there where a data frame with named columns was learned"
            )
        return np.array(names, dtype=object)

    def backbone_(self) -> Any:
        """Return the backbone, loading it if need be; None where samples are features."""
        if self._state().spec is None:
            return None
        return self._encoder.backbone()

    def __repr__(self) -> str:
        if self._snapshot is None:
            return f"Learner(method={self.method!r}, nothing learned yet)"
        info = self._snapshot.describe()
        backbone = ""
        if info["backbone"]:
            backbone = f", backbone={info['backbone']['name']!r}"
        known = f"{info['n_classes']} classes, {info['n_samples']} samples, revision {info['revision']}"
        return (
            f"Learner(method={self.method!r}, kind={info['kind']!r}{backbone}, {known})"
        )

    def __sklearn_is_fitted__(self) -> bool:
        return self._snapshot is not None and not self._snapshot.is_empty

    def _state(self) -> Snapshot:
        if self._snapshot is None:
            raise NotFittedError("this Learner must learn something first: call fit()")
        return self._snapshot

    def _taught(self) -> Snapshot:
        """Return what is known with its head, or raise :class:`NotFittedError` where nothing was learned yet."""
        now = self._named()
        if isinstance(now.head, StoredHead):
            now = self._snapshot = with_head(now, *self._source)
        return now

    def _named(self) -> Snapshot:
        """Return the same, but with a head that may still be in its file: its classes can be renamed there."""
        now = self._state()
        if now.head is None:
            raise NotFittedError(
                "this model has learned nothing yet: teach it a class first"
            )
        if isinstance(now.head, StoredHead) and now.recipe.method not in BUILT_IN:
            now = self._snapshot = with_head(
                now, *self._source
            )  # not every head can do it
        return now

    @property
    def _encoder(self) -> Encoder:
        """What turns samples into features: as it began, or as a file says."""
        if self._begun is None:
            now = self._state()
            if now.adaptation is None:
                adaptation = None
            else:
                adaptation = read_adaptation(now.adaptation)
            known: Any = {
                "spec": now.spec,
                "adaptation": adaptation,
                "own_widths": now.widths,
            }
            self._begun = dataclasses.replace(
                self._open_encoder(), chosen=True, **known
            )
        return self._begun

    def _able(self, method: str) -> IncrementalClassifier:
        """Return the head, or raise :class:`UnsupportedError` if it has no such method."""
        head = self._taught().head
        getattr(head, method)
        return head

    # -- learning ----------------------------------------------------------------------

    def begin(self, kind: str | None = None) -> Self:
        """Choose the backbone before there is anything to learn; the empty model can be saved and taught later.

        Parameters
        ----------
        kind : {"image", "text", "features"}, optional
            What it will learn from. Not needed where a backbone is named, or None.

        Raises
        ------
        ParameterError
            If the kind is open, or a backbone is to be adapted, which takes images.

        Examples
        --------
        >>> import tempfile
        >>> from evergrow import Learner
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Learner(None, options={"n_units": 20}).begin().save(f"{folder}/empty.evg")
        ...     learner = Learner.load(f"{folder}/empty.evg")
        >>> learner.classes_.tolist()
        []
        >>> learner.partial_fit([[0.0, 1.0], [0.0, 2.0]], ["ant", "ant"]).predict([[0.0, 1.5]]).tolist()
        ['ant']
        """
        encoder = self._open_encoder()
        known: Any = kind or encoder.kind
        check_choice("kind", known, ("image", "text", "features"))
        if self.adapt is not None:
            raise ParameterError(
                "adapt must be None for an empty model: a backbone is adapted by fit, to its images"
            )
        self._new_head()  # wrong options are refused now
        self._begun = encoder.begun(Samples(known))
        self._snapshot = self._blank(self._begun).after(Change.now("begin", 0))
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

        Parameters
        ----------
        data : path-like, Dataset, FeatureSet, (items, labels), items or DataLoader
            Folders, tables and files as :func:`evergrow.data.load_data` takes them;
            items with labels, as one pair or with the labels in ``y``: paths, PIL
            images, uint8 arrays, texts or a matrix of features; or samples that come
            one after the other, as pairs or batches of pairs: a generator, a torch
            dataset or loader. Of sources with a training and a test part the training
            part is learned; others are learned whole. Streams are read once and held in
            part only; the layer is made from their first 20,000 samples.
        y : array-like of shape (n,), optional
            Labels of ``data``: names, integers or booleans. Answers are of the same
            kind.
        sample_weight : array-like of shape (n,), optional
            How many samples each counts for: 2 is as if it came twice, 0 as if it had
            not come. ``state_.counts`` goes on counting samples. Asks for a method that
            takes weights.
        engine : Engine, optional
            Several processes or machines that learn shard by shard, exactly, such as
            ``evergrow.engine.LocalEngine(workers=2)``. ``data`` is then an address that
            every worker reads for itself; the layer is made from 20,000 samples of it,
            drawn by the seed, or all where there are no more.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If labels are missing, too many or of several kinds.
        UnsupportedError
            If the method takes no weights, and they are not all one.

        Warns
        -----
        FewSamplesWarning
            Where classes have fewer than ten samples, and fewer than a fifth of what
            the others have.
        """
        if engine is not None:
            _check_alone(engine, y=y, sample_weight=sample_weight).fit(self, data)
            return self
        return self._fit(data, y, sample_weight)

    def _fit(self, data: Any, y: Any, sample_weight: Any, classes: Any = None) -> Self:
        begun = None
        if self._snapshot is not None and self._snapshot.is_empty:
            begun = self._snapshot
        if begun is None:
            self._drawn_seed = None  # a new fit draws a new number from a generator
        head = self._new_head()  # wrong options are refused before anything is read
        seed = self._seed()
        config = None
        if self.adapt is not None:  # what trains takes time to import
            from evergrow.adapt.fsa import adaptation_config

            config = adaptation_config(self.adapt)
        if begun is None:
            encoder = self._open_encoder()
        else:
            encoder = self._encoder
        chunks = iter(
            inputs.labelled_chunks(data, y, sample_weight, "train", encoder.kind)
        )
        first = next(chunks)
        if first.weights is not None:
            head.require_weights()
        if config is not None:
            if first.kind != "image":
                if first.kind == "features":
                    what = "feature vectors"
                else:
                    what = f"{first.kind}s"
                raise InputError(
                    f"A backbone is adapted to images, and these are {what}; leave adapt out."
                )
            in_memory.check_not_stream(data)
        if encoder.spec is None:  # else the backbone was chosen when the model began
            encoder = encoder.begun(first)
        if config is not None:
            encoder, first = encoder.adapted(first, config, seed=seed)
        if begun is None:
            blank = self._blank(encoder)
        else:
            # Parameters may have changed since `begin`: the file must describe the
            # head.
            blank = dataclasses.replace(begun, recipe=self._recipe(), seed=seed)
        if encoder.spec is None:  # else its description says which blocks there are
            blank = dataclasses.replace(
                blank, columns=first.columns, widths=encoder.widths
            )
        blocks = self._blocks(
            itertools.chain([first], chunks), (encoder, blank), classes
        )
        now = learn(blank, with_widths(head, encoder.widths), blocks, seed, "fit")
        self._begun = encoder
        self._snapshot = now
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
        """Learn more: new classes, old ones or both. The first call is the same as :meth:`fit`.

        Parameters
        ----------
        data : path-like, Dataset, FeatureSet, (items, labels), items or DataLoader
            As for :meth:`fit`. No earlier data is needed.
        y : array-like of shape (n,), optional
            Labels of ``data``, of the kind that was learned before.
        classes : array-like, optional
            All classes that this call may bring; others are refused. Not needed: any
            class may come at any time.
        sample_weight : array-like of shape (n,), optional
            As for :meth:`fit`.
        engine : Engine, optional
            As for :meth:`fit`.
        again : bool
            Whether to learn a batch once more that was learned before, so that its
            samples count twice. It is noticed by the fingerprints of whole batches in
            the history.

        Returns
        -------
        self

        Raises
        ------
        KnownSamplesError
            If ``again`` is false and a batch was learned before; nothing is learned
            then.
        LabelError
            If a label is of another kind than before, or not among ``classes``.

        Warns
        -----
        FewSamplesWarning
            As for :meth:`fit`, where a class becomes one of those; later batches do not
            repeat it.
        """
        now = self._snapshot
        if engine is not None:
            able = _check_alone(
                engine, y=y, classes=classes, sample_weight=sample_weight
            )
            (able.fit if now is None or now.is_empty else able.partial_fit)(self, data)
            return self
        if now is None or now.is_empty:
            return self._fit(data, y, sample_weight, classes=classes)
        now = self._taught()
        chunks = inputs.labelled_chunks(
            data, y, sample_weight, "train", self._encoder.kind
        )
        blocks = self._blocks(chunks, classes=classes)
        if again:
            known = frozenset()
        else:
            known = learned_data(now.history)
        self._snapshot = learn(
            now, now.head.branch(), blocks, now.seed, "update", known
        )
        return self

    def learn_unlabelled(self, data: Any) -> PseudoLabelReport:
        """Learn samples without labels as what they look like; they count the less the more labels there are.

        With one or two labels per class this gives 5 to 10 points of accuracy, with
        twenty next to nothing. It is a guess, and kept apart from what is certain:
        ``unlearn(unlabelled=True)`` takes all of it out, and a label that comes for such a
        sample later replaces the guess. Counts, calibration and novelty are those of
        labelled samples.

        Parameters
        ----------
        data : object
            As for :meth:`predict`. Labels are passed over; copies, and samples that
            look unknown, are left out.

        Returns
        -------
        PseudoLabelReport
            How many samples were used, and as what.

        Raises
        ------
        InputError
            If every sample looks unknown; nothing has changed then.
        LabelError
            If the model knows fewer than two classes.

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
        self._able("learn_unlabelled")
        blocks = (
            LabelledRows(part.X, np.full(len(part.X), ""))
            for part in self._features_of(data)
        )
        self._snapshot, report = unlabelled_samples.with_unlabelled(
            self._taught(), blocks
        )
        return report

    def fade(self, factor: float) -> Self:
        """Let everything learned so far count for less than what comes, exactly as if learned with weights.

        For things whose looks change. Counts of samples stay; a sample that is
        unlearned later is unlearned with the weight that it has then.

        Parameters
        ----------
        factor : float
            What every sample counts for from now on, in units of what it counted for;
            above 0, at most 1.
        """
        self._able("fade")
        self._snapshot = unlabelled_samples.faded(self._taught(), factor)
        return self

    # -- editing -----------------------------------------------------------------------

    def forget_classes(self, names: str | int | Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again. Needs no data and no backbone.

        Without its last class a model is empty, and can be taught anew.

        Parameters
        ----------
        names : label or iterable of labels
            Classes to forget.

        Raises
        ------
        LabelError
            If a class was never learned.
        """
        if isinstance(names, (str, int)):
            wanted = [names]
        else:
            wanted = list(names)
        self._snapshot = edits.forgotten(self._taught(), wanted)
        return self

    def unlearn(
        self,
        data: Any = None,
        y: Any = None,
        *,
        sample_weight: Any = None,
        unlabelled: bool = False,
    ) -> Self:
        """Remove samples: the learner then equals one that never saw them.

        Without its last sample a learner is empty. Held-out scores of the samples are
        removed from the calibration too. Scores of other samples that were measured
        while the removed ones were learned stay as measured;
        ``state_.history[-1].influenced_scores`` is the largest possible number of these.

        Parameters
        ----------
        data : path-like, Dataset, FeatureSet, (items, labels), items or DataLoader
            Samples with the labels they were learned with; of sources with two parts
            the training part.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.
        unlabelled : bool, default=False
            Remove everything that :meth:`learn_unlabelled` learned instead. Predictions
            are then bit for bit those without it. ``data`` must be left out.

        Raises
        ------
        UnlearnError
            If they were never learned, or with other weights.
        """
        if unlabelled == (data is not None):
            raise ParameterError("unlearn must be given either data or unlabelled=True")
        if unlabelled:
            self._able("forget_unlabelled")
            self._snapshot = unlabelled_samples.without_unlabelled(self._taught())
            return self
        self._able("unlearn")
        chunks = inputs.labelled_chunks(
            data, y, sample_weight, "train", self._encoder.kind
        )
        self._snapshot = edits.unlearned(self._taught(), self._blocks(chunks))
        return self

    def rename_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes other names, all at once, so that two may swap theirs. Needs no data and no backbone.

        Parameters
        ----------
        names : mapping of str to str
            New names by old ones.

        Raises
        ------
        LabelError
            If a class was never learned, or the new name is that of another:
            :meth:`merge_classes` makes two one.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow.learner.learner import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> learner.rename_classes({"owl": "barn owl"}).classes_.tolist()
        ['barn owl', 'crow', 'jay', 'rook']
        """
        self._snapshot = edits.renamed(self._named(), names)
        return self

    def merge_classes(self, names: Iterable[Any], into: Any) -> Self:
        """Make several classes one, exactly as if their samples had been learned under one name. Needs no data.

        How sure answers are stays calibrated by the samples as they came.

        Parameters
        ----------
        names : iterable of str
            Classes to merge.
        into : str
            Name of the one that they become: a new one, or that of a class, which then
            is among those merged.

        Raises
        ------
        LabelError
            If a class was never learned, or there are fewer than two.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow.learner.learner import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> learner.merge_classes(["crow", "rook"], "corvid").state_.label_counts
        {'corvid': 20, 'jay': 10, 'owl': 10}
        """
        self._snapshot = edits.with_merged_classes(self._named(), names, into)
        return self

    def relabel(self, data: Any, source: Any, target: Any) -> Self:
        """Take samples out of one class and into another, exactly as if they had been learned as the second.

        Parameters
        ----------
        data : path-like, Dataset, FeatureSet, (items, labels) or items
            The samples. Of data with labels those of class ``source`` are moved, of
            data without all.
        source : str
            The class they were learned as; it is gone if none remains.
        target : str
            The class they are of; it may be new.

        Raises
        ------
        LabelError
            If ``source`` was never learned, or no sample has that label.
        UnlearnError
            If samples were never learned as ``source``.
        """
        source, target = edits.moving(self._taught(), source, target)
        samples = edits.samples_to_move(
            edits.read_movable(data, self._encoder.kind), source
        )
        encoded = self._encoded(samples, on_error="raise")
        self._snapshot = edits.relabelled(self._taught(), encoded.X, source, target)
        return self

    # -- several learners --------------------------------------------------------------

    def __copy__(self) -> Self:
        """Return a learner that knows the same; changing either leaves the other as it is.

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
        if self._snapshot is not None:
            _ = self._encoder  # both share one backbone
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def merge(self, other: Learner, *, base: Learner | None = None) -> Self:
        """Add everything another learner knows; exact, nothing counted twice, no data needed.

        Parameters
        ----------
        other : Learner
            Made by :func:`evergrow.learner.empty_copy` from this learner or a common
            ancestor; not changed.
        base : Learner, optional
            The learner that both began as copies of, where they did: what it knows is
            counted once. Since then both may only have learned or merged.

        Raises
        ------
        MergeError
            If backbones or layers differ, or samples would be counted twice; the
            message says what differs.
        """
        for name, learner in (("other", other), ("base", base)):
            if learner is not None and not isinstance(learner, Learner):
                raise MergeError(
                    f"{name} must be a Learner, got {type(learner).__name__}"
                )
        self._able("merge")
        self._snapshot = edits.merged(
            self._taught(), other._taught(), None if base is None else base._taught()
        )
        return self

    # -- answering ---------------------------------------------------------------------

    def predict(self, items: Any) -> NDArray[Any]:
        """Return the most likely class of every item.

        Parameters
        ----------
        items : object
            A path or paths, a folder of images, PIL images, uint8 arrays, texts or
            features; or a generator, a torch dataset or loader of such, whose labels
            are passed over.

        Returns
        -------
        ndarray of shape (n,)
            Labels of the kind that was learned: names, integers or booleans.
        """
        now = self._taught()
        return as_labels(self._asked(items, self._answers_to).tolist(), now.label_kind)

    def decision_function(self, items: Any) -> NDArray[np.float64]:
        """Return the score of every class, one column per entry of ``classes_``; larger means more likely.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.

        Returns
        -------
        ndarray of shape (n, C), or (n,) for two classes
            Of two classes the score of the second less that of the first, as
            scikit-learn's tools take it.
        """
        scores = self._by_class(self._asked(items, self._taught().head.class_scores))
        if scores.shape[1] == 2:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return scores

    def predict_proba(self, items: Any) -> NDArray[np.float64]:
        """Return class probabilities; columns follow ``classes_``.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        self._able("predict_proba")
        return self._by_class(self._asked(items, self._probabilities))

    def novelty_score(self, items: Any) -> NDArray[np.float64]:
        """Return how unlike anything learned each item is; higher means more novel.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        return self._asked(items, self._able("novelty_score").novelty_score)

    def is_unknown(
        self, items: Any, false_alarm: float = FALSE_ALARM
    ) -> NDArray[np.bool_]:
        """Return which items belong to no class that was learned, as far as can be told.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float
            Share of known things that may be called unknown; the threshold was
            calibrated on samples of every batch, scored as if they had not been
            learned.
        """
        self._able("novelty_score")
        threshold = self._state().threshold(false_alarm)
        return np.asarray(
            ~(self.novelty_score(items) <= threshold)
        )  # what is no number is not known

    def encode(self, items: Any, *, on_error: OnError | None = None) -> Features:
        """Return the feature vectors of items, honouring ``on_error``: all methods take them in the items' place.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        on_error : {"raise", "skip"}, optional
            As for :meth:`ask`.
        """
        from evergrow.features.encoding import Features

        self._state()
        parts = list(self._features_of(items, on_error=on_error))
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part) + len(part.failures) for part in parts)])
        rows = np.concatenate(
            [part.rows + start for part, start in zip(parts, starts[:-1], strict=True)]
        )
        failures = tuple(failure for part in parts for failure in part.failures)
        return Features(np.concatenate([part.X for part in parts]), rows, failures)

    def ask(
        self,
        items: Any,
        *,
        false_alarm: float | None = None,
        on_error: OnError | None = None,
    ) -> Answers:
        """Return everything about items at once; each goes through the backbone once.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float, optional
            Share of known things that may be called unknown; None asks nothing about
            that.
        on_error : {"raise", "skip"}, optional
            Whether an image that cannot be read raises an error or is left out. By
            default the extraction settings of the learner decide.

        Returns
        -------
        Answers
        """
        if false_alarm is None:
            threshold = None
        else:
            self._able("novelty_score")
            threshold = self._state().threshold(false_alarm)
        now = self._taught()
        features = self.encode(items, on_error=on_error)
        able = hasattr(now.head, "predict_proba")
        names = now.classes
        if able:
            values = self._probabilities(features.X)
        else:
            values = now.head.class_scores(features.X)
        novelty = None
        if threshold is not None:
            novelty = now.head.novelty_score(features.X)
        return Answers(
            names,
            values,
            "probability" if able else "score",
            features.rows,
            features.failures,
            novelty=novelty,
            unknown=None
            if novelty is None
            else ~(novelty <= threshold),  # NaN is not known
            threshold=None if novelty is None else np.full(len(novelty), threshold),
            label_kind=now.label_kind,
            index=getattr(items, "index", None) if in_memory.is_pandas(items) else None,
        )

    def evaluate(
        self,
        data: Any,
        y: Any = None,
        *,
        unknown: Any = None,
        false_alarm: float = FALSE_ALARM,
        keep_samples: bool = False,
    ) -> Evaluation:
        """Compare answers with labels.

        Parameters
        ----------
        data : path-like, Dataset, FeatureSet, (items, labels), items or DataLoader
            Labelled data; of sources with two parts the test part. Samples of classes
            that the model does not know are counted apart and serve as unknown ones.
            Labels are compared by their names, whatever their kind.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        unknown : path-like, Dataset, FeatureSet, (items, labels) or items, optional
            More things that the model does not know; of labelled data only classes that
            were not learned count.
        false_alarm : float
            Share of false alarms that the threshold is for.
        keep_samples : bool
            Whether to keep what was answered about each sample, and how surely.

        Returns
        -------
        Evaluation
        """
        started = time.perf_counter()
        now = self._taught()
        opens = hasattr(now.head, "novelty_score") and bool(now.calibration.n)
        # Raises where unknown things are to be told and cannot be, before any work is
        # done.
        if opens or unknown is not None:
            self._able("novelty_score")
            threshold = self._state().threshold(false_alarm)
        else:
            threshold = None
        parts: list[tuple[Any, ...]] = []
        left_out: list[str] = []
        n = 0
        for samples in inputs.labelled_chunks(
            data, y, None, "test", self._encoder.kind
        ):
            encoded = self._encoded(samples)
            answers = self._answers_to(encoded.X)
            certainty = None
            if keep_samples and hasattr(now.head, "predict_proba"):
                likely = self._probabilities(encoded.X)
                columns = np.searchsorted(now.classes, answers)
                certainty = np.take_along_axis(likely, columns[:, None], axis=1)[:, 0]
            novelty = None
            if opens:
                novelty = now.head.novelty_score(encoded.X)
            labels = samples.required_labels()[encoded.rows]
            parts.append(
                (samples.items, encoded.rows + n, labels, answers, certainty, novelty)
            )
            left_out += [name for name, _ in encoded.failures]
            n += len(samples)
        items, *lists = zip(*parts, strict=True)
        joined: list[Any] = [
            None if found[0] is None else np.concatenate(found) for found in lists
        ]
        rows, true, told, sure, novel = joined
        strange = np.empty(0)
        if unknown is not None:
            samples = inputs.read_unknown(unknown, self._encoder.kind)
            if samples.labels is not None:
                samples = samples.take(
                    np.flatnonzero(~np.isin(samples.labels, now.classes))
                )
            if not len(samples):
                raise InputError(
                    "unknown must hold classes that the model does not know, got none but known ones"
                )
            strange = now.head.novelty_score(self._encoded(samples).X)
        result = evaluate_predictions(
            true, told, now.classes, novel, strange, threshold, false_alarm
        )
        kept = None
        if keep_samples:
            things = None
            if items[0] is not None:
                things = concat_items(items)
            kept = SampleAnswers(things, rows, true, told, sure)
        seconds = time.perf_counter() - started
        return dataclasses.replace(
            result, left_out=tuple(left_out), samples=kept, seconds=seconds
        )

    def score(self, data: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of right answers; samples of classes that were never learned count as wrong.

        Parameters
        ----------
        data, y
            As for :meth:`evaluate`.
        sample_weight : array-like of shape (n,), optional
            What each sample counts for.
        """
        right = []
        weights = []
        for samples in inputs.labelled_chunks(
            data, y, sample_weight, "test", self._encoder.kind
        ):
            answers = self._answers_to(self._encoded(samples, on_error="raise").X)
            right.append(answers == samples.required_labels())
            weights.append(
                np.ones(len(samples)) if samples.weights is None else samples.weights
            )
        return float(np.average(np.concatenate(right), weights=np.concatenate(weights)))

    def _asked(
        self, items: Any, question: Callable[[NDArray[Any]], Any]
    ) -> NDArray[Any]:
        """Return the answers to a question about items, in their order; of streams in bounded memory."""
        return np.concatenate(
            [question(part.X) for part in self._features_of(items, on_error="raise")]
        )

    def _by_class(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return columns of the head in the order of ``classes_``."""
        now = self._taught()  # 2 comes before 10, and "10" before "2"
        return values[
            :,
            np.argsort(as_labels(now.classes.tolist(), now.label_kind), kind="stable"),
        ]

    def _probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return class probabilities of features."""
        return np.asarray(self._taught().head.predict_proba(X))

    def _answers_to(self, X: NDArray[Any]) -> NDArray[np.str_]:
        """Return the answers to features."""
        return np.asarray(self._taught().head.predict(X), dtype=np.str_)

    # -- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, in one step; backbone weights are not in it.

        See also :mod:`evergrow.learner.modelfile`.

        Parameters
        ----------
        path : path-like
            Where to, such as ``birds.evg``.
        """
        write_archive(path, self._state().to_archive())

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Archive,
        *,
        name: str | None = None,
        backbone: Any = None,
        weights: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
        lazy: bool = False,
    ) -> Self:
        """Read what :meth:`save` wrote. The backbone is loaded when something first goes through it.

        Parameters
        ----------
        source : path-like or Archive
            A model file, or what ``state_.to_archive()`` gave.
        name : str, optional
            What messages call it; by default its path.
        backbone : Backbone or torch.nn.Module, optional
            The backbone itself, if it was a module of yours.
        weights : str or path-like, optional
            Where the backbone's weights are, if no longer where they came from.
        device : str or torch.device, optional
            Where to compute; by default the best there is.
        cache, extract : optional
            As for the class; they are not part of the file.
        lazy : bool
            Whether to leave the head in the file, too, until it is asked or learns:
            what is known can be told and classes can be renamed and merged without
            importing torch. What is wrong with it is said then.

        Raises
        ------
        FileFormatError
            If the file is no learner, is damaged or was altered.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        if not isinstance(source, Archive):
            if name is None:
                name = os.fspath(source)
            else:
                name = name
            source = read_archive(source)
        name = name or "the archive"
        now = read_snapshot(source, name)
        recipe: Any = "auto"
        if now.spec is not None:
            if now.spec.recipe is None:
                recipe = "final"
            else:
                recipe = list(now.spec.recipe.blocks)
        learner = cls(
            "auto" if backbone is None and now.spec is not None else backbone,
            now.recipe.method,
            None if now.adaptation is None else now.adaptation.meta.get("config"),
            features=recipe,
            options=dict(now.recipe.options) or None,
            weights=weights,
            device="auto" if device is None else device,
            random_state=now.seed,
            cache=cache,
            extract=extract,
        )
        learner._source = device, name
        if lazy:
            learner._snapshot = now
        else:
            learner._snapshot = with_head(now, device, name)
        return learner

    # -- arguments ---------------------------------------------------------------------

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments by name, for the next :meth:`fit`; unknown ones are refused.

        A single option goes by ``options__NAME``, as in a grid that scikit-learn
        searches.

        Examples
        --------
        >>> from evergrow import Learner
        >>> Learner(options={"n_units": 50}).set_params(options__alpha=0.1).options
        {'n_units': 50, 'alpha': 0.1}
        """
        single = {
            name: value
            for name, value in params.items()
            if name.startswith("options__")
        }
        params = {name: value for name, value in params.items() if name not in single}
        check_keys(params, self._param_names(), "parameter of Learner")
        if single:
            options = params.get("options", self.options) or {}
            params["options"] = {
                **options,
                **{name.removeprefix("options__"): single[name] for name in single},
            }
        for name, value in params.items():
            setattr(self, name, value)
        return self

    # -- making parts ------------------------------------------------------------------

    def _new_head(self) -> IncrementalClassifier:
        return self._recipe().create(device=self.device, random_state=self._seed())

    def _recipe(self) -> HeadRecipe:
        return HeadRecipe(self.method, {} if self.options is None else self.options)

    def _seed(self) -> int:
        """Return the seed of the next fit; draw from a generator once per fit."""
        state = self.random_state
        if isinstance(state, (int, np.integer)):
            return resolve_seed(state)
        if self._drawn_seed is None or self._drawn_seed[0] is not state:
            self._drawn_seed = (state, resolve_seed(state))
        return self._drawn_seed[1]

    def _open_encoder(self) -> Encoder:
        check_recipe(self.features, "features")
        return Encoder(
            self.backbone,
            self.weights,
            self.preset,
            self.device,
            self.features,
            "final" if self.method == "scl-mgsm" else "auto",
            encode_config(self.extract, self.cache),
        )

    def _blank(self, encoder: Encoder) -> Snapshot:
        """Return what a model knows that has a backbone and has learned nothing."""
        return Snapshot(
            self._recipe(),
            {},
            spec=encoder.spec,
            reason=encoder.reason,
            seed=self._seed(),
            adaptation=None
            if encoder.adaptation is None
            else to_archive(encoder.adaptation),
            widths=encoder.widths if encoder.spec is None else (),
            origin=None if self._snapshot is None else self._snapshot.origin,
        )

    def _twin(self) -> Learner:
        """Return a learner of the same settings and backbone that knows nothing."""
        twin = type(self)(**self.get_params())
        twin._begun = self._encoder
        twin._source = self._source
        return twin

    def _encoded(
        self,
        samples: Samples,
        begun: tuple[Encoder, Snapshot] | None = None,
        *,
        on_error: OnError | None = None,
    ) -> Features:
        """Return the features of samples; ``begun`` is what a model is about to begin with."""
        encoder, now = begun or (self._encoder, self._state())
        if samples.columns:
            in_memory.check_columns(samples.columns, now.columns)
        encoded = encoder.encode(samples, on_error=on_error)
        if samples.features is not None:
            check_width(encoded.X, now.n_features)
        return encoded

    def _features_of(
        self, items: Any, *, on_error: OnError | None = None
    ) -> Iterable[Features]:
        """Return the features of items: those of a stream chunk by chunk."""
        from evergrow.features.encoding import Features

        if isinstance(items, Features):
            return [items]
        return (
            self._encoded(samples, on_error=on_error)
            for samples in inputs.item_chunks(items, self._encoder.kind)
        )

    def _blocks(
        self,
        chunks: Iterable[Samples],
        begun: tuple[Encoder, Snapshot] | None = None,
        classes: Any = None,
    ) -> Iterator[LabelledRows]:
        """Yield labelled samples as features, in blocks of bounded size where there are several chunks."""
        wanted: set[str] = set()
        kept: set[str] = set()
        allowed = None
        if classes is not None:
            allowed = class_labels.as_names(
                classes, len(classes) if hasattr(classes, "__len__") else 0
            )

        def encoded() -> Iterator[LabelledRows]:
            for samples in chunks:
                labels = samples.required_labels()
                if allowed is None:
                    strange = []
                else:
                    strange = np.setdiff1d(labels, allowed).tolist()
                if strange:
                    raise LabelError(
                        f"labels must be among the classes that were announced, got {strange[0]!r}"
                    )
                found = self._encoded(samples, begun)
                wanted.update(labels.tolist())
                kept.update(labels[found.rows].tolist())
                if samples.weights is None:
                    yield LabelledRows(
                        found.X, labels[found.rows], None, samples.label_kind
                    )
                else:
                    weights = samples.weights[found.rows]
                    counted = np.flatnonzero(weights)  # the others count for nothing
                    rows = found.rows[counted]
                    yield LabelledRows(
                        found.X[counted],
                        labels[rows],
                        weights[counted],
                        samples.label_kind,
                    )

        yield from gathered(encoded())
        check_kept(wanted, kept)


def empty_copy(learner: Learner) -> Learner:
    """Return a learner with the same backbone and layer that has learned nothing.

    Train it elsewhere and add what it learned with :meth:`Learner.merge`.

    Parameters
    ----------
    learner : Learner
        A fitted learner; not changed.
    """
    head = learner._able("spawn").spawn()
    now = learner._taught()
    child = learner._twin()
    child._snapshot = dataclasses.replace(
        learner._blank(learner._encoder),
        head=head,
        label_kind=now.label_kind,
        columns=now.columns,
        seed=now.seed,
        origin=None,
    )
    return child


def settle(learner: Learner) -> Learner:
    """Compute now what the first prediction would compute, and return the learner.

    ``fit`` does this. Later changes do it only if it takes at most a second; with
    thousands of units and classes it takes several. A learner that is saved afterwards
    predicts at once when it is loaded.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place.
    """
    now = learner._taught()
    head = now.head.branch().settle()
    learner._snapshot = dataclasses.replace(
        now, head=head, calibration=now.calibration.applied(head)
    )
    return learner


def _check_alone(engine: Any, **given: Any) -> Any:
    """Return an engine that can teach, or raise :class:`ParameterError`, also if something is given that none takes."""
    if not hasattr(engine, "partial_fit"):
        raise ParameterError(
            f"engine must be one of evergrow.engine, such as LocalEngine(), got {engine!r}"
        )
    for name, value in given.items():
        if value is not None:
            raise ParameterError(
                f"{name} must be left out with an engine, got {type(value).__name__}"
            )
    return engine


def check_width(X: NDArray[Any], width: int | None) -> None:
    """Raise :class:`InputError` if features have another width than is learned; None takes any."""
    if width is not None and X.shape[1] != width:
        raise InputError(f"features must have {width} columns, got {X.shape[1]}")
