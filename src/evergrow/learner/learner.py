"""Backbone, head and open-world threshold as one object on images, texts or features."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, MergeError, ParameterError
from evergrow.core.settings import check_keys
from evergrow.core.validation import check_choice
from evergrow.data.intake import Samples
from evergrow.data.streams import check_whole, labelled_chunks
from evergrow.features import Features
from evergrow.head.base import IncrementalClassifier
from evergrow.learner.asking import Asking
from evergrow.learner.changes import Change
from evergrow.learner.class_warnings import warn_alike, warn_few
from evergrow.learner.editing import Editing
from evergrow.learner.elsewhere import learn_elsewhere
from evergrow.learner.encoder import Encoder, check_images, checkpoint_file, extraction_config
from evergrow.learner.keeping import Keeping
from evergrow.learner.labels import announced_names, check_announced, settled_kind
from evergrow.learner.learning import Learned, first_block, next_block
from evergrow.learner.merging import merged
from evergrow.learner.snapshot import Extra, Snapshot, counted

if TYPE_CHECKING:
    from evergrow.adapt.settings import FsaConfig


NOTHING: NDArray[np.str_] = np.empty(0, dtype=np.str_)
"""The classes of a model that has learned nothing."""


_KEPT_AS = {"features": "recipe"}
"""Arguments that are kept under another name: the method of that name gives feature vectors."""


class Learner(Asking, Editing, Keeping):
    """A classifier for images, texts or feature vectors that keeps learning new classes.

    A frozen backbone turns samples into feature vectors and a head learns from these, exactly as if it saw
    everything at once. Nothing of a sample is kept. Whatever fails leaves the learner as it was. scikit-learn's tools
    take it for a classifier: it can be cloned, searched over and put at the end of a pipeline.

    Parameters
    ----------
    backbone : "auto", str, Backbone, torch.nn.Module or None
        ``"auto"`` takes the best one on this machine for the kind of the first data (none for feature vectors) and says
        which: on the logger ``"evergrow"``, and in ``info()["backbone"]``. A name or a module is for
        :func:`evergrow.features.create_backbone`. None: data are feature vectors.
    method : str
        The head: ``"evergrow"``, ``"scl-mgsm"`` (the paper's method), or another of
        :func:`evergrow.lab.list_methods`. Unlearning, merging, probabilities and novelty need one of these two.
    adapt : str, FsaConfig, dict or None
        What is trained of the backbone: ``fit`` trains it on the images of its data, freezes it, and everything after
        uses the adapted backbone. None leaves the backbone as it is. A name, one of
        :func:`evergrow.adapt.tuners.adapting_tuners`, means RanPAC's protocol, 20 epochs; an
        :class:`~evergrow.adapt.FsaConfig` (or its plain form) says it all.
    features : {"auto", "final", "rich", "max"} or sequence of str
        What feature vectors are made of: the network's own vector (``"final"``), blocks from several depths of the
        same pass by name, or blocks such as ``["final", "mean@-2"]``; see :mod:`evergrow.features.recipes`.
        ``"auto"`` keeps the recipe of a backbone that has one; elsewhere it is ``"rich"`` where the network's depths
        are known, and ``"final"`` for the paper's method.
    options : dict, optional
        Options of the head to set otherwise; see :func:`evergrow.lab.methods.method_options`.
    weights, preset : optional
        For :func:`evergrow.features.create_backbone`.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int
        Seed of the head and of the adaptation.
    cache : None, False or path-like
        Where features are kept: the default cache (features of files and tables only), nowhere, or a folder.
    extract : EncodeConfig or dict, optional
        Settings of the extraction: ``batch_size``, ``workers``, ``on_error``, ``precision``, ``progress``.

    Attributes
    ----------
    classes_ : ndarray
        Classes learned, sorted, of the kind that they came as: names, integers or booleans.
    class_names_ : ndarray of str
        Their names.
    n_samples_ : dict of label to int
        Samples learned of each.
    history_ : list of Change
        All changes so far.
    revision_ : int
        Number of the latest change.

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
        self.recipe = features  # the method of that name gives feature vectors
        self.options = options
        self.weights = weights
        self.preset = preset
        self.device = device
        self.random_state = random_state
        self.cache = cache
        self.extract = extract
        self._origin = None  # the model file that was loaded, and its checksum

    # -- learning -------------------------------------------------------------------------------------------

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
        kind = kind or encoder.kind
        if kind is None:
            raise ParameterError('kind must be "image", "text" or "features" where the backbone is "auto", got None')
        check_choice("kind", kind, ("image", "text", "features"))
        if self.adapt is not None:
            raise ParameterError("adapt must be None for an empty model: a backbone is adapted by fit, to its images")
        encoder = encoder.begun(Samples(kind))
        change = Change.now("begin", 0).numbered(1)
        head = self._new_head(encoder.widths)
        self._encoder = encoder
        self._snapshot = Snapshot(head, encoder.spec, {}, history=(change,), reason=encoder.reason, seed=self._seed())
        return self

    def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        engine: Any = None,
    ) -> Self:
        """Forget everything and learn.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet, (items, labels), items, iterator, Dataset or DataLoader
            Folders, tables and files as :func:`evergrow.data.load_data` takes them; items with labels, as one pair
            or with the labels in ``y``: paths, PIL images, uint8 arrays, texts or a matrix of features; or samples that
            come one after the other, as pairs or batches of pairs: a generator, a torch dataset or loader. Of sources
            with a training and a test part the training part is learned; others are learned whole. Streams are read
            once and held in part only; the layer is made from their first 20,000 samples.
        y : array-like of shape (n,), optional
            Labels of ``data``: names, integers or booleans. Answers are of the same kind.
        sample_weight : array-like of shape (n,), optional
            How many samples each counts for: 2 is as if it came twice, 0 as if it had not come. ``n_samples_`` goes on
            counting samples. Asks for a method that takes weights (``learner.head_.takes_weights``).
        checkpoint : path-like, optional
            File that is written after every epoch of ``adapt``. If the training is interrupted, the same call goes on
            after the last epoch in it, to the same numbers. It is left there when all is done, and then of no more use.
        engine : {"local", "ray"} or Engine, optional
            Several processes or machines that learn shard by shard, exactly, such as
            ``evergrow.engine.LocalEngine(workers=2)``. ``data`` is then an address that every worker reads for itself;
            the layer is made from 20,000 samples of it, drawn by the seed, or all where there are no more.

        Returns
        -------
        self

        Raises
        ------
        CheckpointError
            If the checkpoint is of another training: other images, labels, settings, seed or backbone.
        LabelError
            If labels are missing, too many or of several kinds.
        UnsupportedError
            If the method takes no weights, and they are not all one.

        Warns
        -----
        FewSamplesWarning
            Where classes have fewer than ten samples, and fewer than a fifth of what the others have.
        """
        if engine is not None:
            learn_elsewhere(self, engine, "fit", data, y=y, sample_weight=sample_weight, checkpoint=checkpoint)
            return self
        return self._fit(data, y, sample_weight, checkpoint, None)

    def _fit(self, data: Any, y: Any, sample_weight: Any, checkpoint: Any, announced: tuple[str, ...] | None) -> Self:
        trial = self._new_head()  # wrong options are refused before anything is read
        config = self._adaptation_config()
        kept = checkpoint_file(checkpoint, config)
        before = self._snapshot_or_none()  # numbers of revisions go on, so that each stands for one state
        begun = before if before is not None and before.is_empty else None
        encoder = self._open_encoder() if begun is None else self._encoder
        chunks = labelled_chunks(data, y, sample_weight, "train", encoder.kind)
        first = next(chunks)
        if first.weights is not None:
            trial.require_weights()
        if config is not None:
            check_images(first)
            check_whole(data)
        if begun is None or begun.spec is None:
            encoder = self._open_encoder().begun(first)
        if config is not None:
            encoder, first = self._adapted(encoder, first, config, kept)
        blocks = self._blocks(itertools.chain([first], chunks), encoder)
        block, head = next(blocks), self._new_head(encoder.widths)
        check_announced(announced, block.labels)
        kind = settled_kind(None, block.label_kind, block.labels, NOTHING)
        warn_alike(NOTHING, block.labels)
        learned = first_block(head, block, self._seed())
        for block in blocks:
            check_announced(announced, block.labels)
            kind = settled_kind(kind, block.label_kind, block.labels, np.asarray(head.classes_))
            learned = next_block(learned, block, self._seed())
        warn_few({}, learned.counts)
        change = learned.change("fit", NOTHING)
        self._encoder = encoder
        self._snapshot = Snapshot(
            learned.head,
            encoder.spec,
            learned.counts,
            learned.calibration,
            (*(begun.history if begun else ()), change.numbered(1 if before is None else before.revision + 1)),
            reason=encoder.reason,
            seed=self._seed(),
            adaptation=encoder.adaptation,
            label_kind=kind,
            announced=announced,
            widths=encoder.widths if encoder.spec is None else (),
            columns=first.columns if encoder.spec is None else (),
            extra=Extra() if begun is None else begun.extra,
        )
        return self

    def partial_fit(
        self, data: Any, y: Any = None, *, classes: Any = None, sample_weight: Any = None, engine: Any = None
    ) -> Self:
        """Learn more: new classes, old ones or both. The first call is the same as :meth:`fit`.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet, (items, labels), items, iterator, Dataset or DataLoader
            As for :meth:`fit`. No earlier data is needed.
        y : array-like of shape (n,), optional
            Labels of ``data``, of the kind that was learned before.
        classes : array-like, optional
            All classes that will ever come. Others are refused, now and in later calls, until more are announced; the
            model file remembers them. Not needed: without it any class may come at any time.
        sample_weight : array-like of shape (n,), optional
            As for :meth:`fit`.
        engine : {"local", "ray"} or Engine, optional
            As for :meth:`fit`.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a label is of another kind than before, or not among the announced classes.

        Warns
        -----
        FewSamplesWarning
            As for :meth:`fit`, where a class becomes one of those; later batches do not repeat it.
        """
        now = self._snapshot_or_none()
        if engine is not None:
            what = "fit" if now is None or now.is_empty else "partial_fit"
            learn_elsewhere(self, engine, what, data, y=y, classes=classes, sample_weight=sample_weight)
            return self
        announced = announced_names(classes, now)
        if now is None or now.is_empty:
            return self._fit(data, y, sample_weight, None, announced)
        encoder = self._encoder
        chunks = labelled_chunks(data, y, sample_weight, "train", encoder.kind)
        first = next(chunks)
        if first.weights is not None:
            now.head.require_weights()
        blocks = self._blocks(itertools.chain([first], chunks), encoder)
        head = now.head.branch()
        learned, kind = Learned(head, now.counts, now.calibration, history=now.history), now.label_kind
        for block in blocks:
            known = np.asarray(head.classes_, dtype=np.str_)
            check_announced(announced, block.labels)
            kind = settled_kind(kind if len(known) else None, block.label_kind, block.labels, known)
            warn_alike(known, block.labels)
            warn_few(learned.counts, counted(learned.counts, block.labels))
            learned = next_block(learned, block, self._seed())
        self._snapshot = now.after(
            learned.change("update", now.classes),
            head=learned.head,
            counts=learned.counts,
            calibration=learned.calibration,
            label_kind=kind,
            announced=announced,
        )
        return self

    def settle(self) -> Self:
        """Work out now what answers need, rather than at the first question; a saved learner then answers at once.

        ``fit`` does so, and later changes do where it takes no more than a second. With thousands of units and classes
        it takes several.
        """
        self._taught().head.settle()
        return self

    # -- several learners -----------------------------------------------------------------------------------

    def copy(self) -> Learner:
        """Return a learner that knows the same; changing either leaves the other as it is.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow.learner.learner import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 4
        >>> first = Learner(options={"n_units": 20}).fit((X, y))
        >>> second = first.copy().forget_classes("3")
        >>> len(first.classes_), len(second.classes_)
        (4, 3)
        """
        now, twin = self._state(), self._twin()
        twin._snapshot = now  # every change works on a branch of the head
        twin._origin = self._origin
        return twin

    def spawn(self) -> Learner:
        """Return an empty learner with the same backbone and layer, for another site; :meth:`merge` brings it back."""
        head, now = self._able("spawn"), self._state()
        child = self._twin()
        child._snapshot = Snapshot(
            head.spawn(),
            now.spec,
            {},
            reason=now.reason,
            seed=now.seed,
            adaptation=now.adaptation,
            label_kind=now.label_kind,
            announced=now.announced,
            widths=now.widths,
            columns=now.columns,
        )
        return child

    def merge(self, other: Learner, *, base: Learner | None = None) -> Self:
        """Add everything another learner knows; exact, nothing counted twice, no data needed.

        Parameters
        ----------
        other : Learner
            Made by :meth:`spawn` from this learner or a common ancestor; not changed.
        base : Learner, optional
            The learner that both began as copies of, where they did: what it knows is counted once. Since then both
            may only have learned or merged.

        Raises
        ------
        MergeError
            If backbones or layers differ, or samples would be counted twice; the message says what differs.
        """
        for name, learner in (("other", other), ("base", base)):
            if learner is not None and not isinstance(learner, Learner):
                raise MergeError(f"{name} must be a Learner, got {type(learner).__name__}")
        self._able("merge")
        self._snapshot = merged(self._taught(), other._taught(), None if base is None else base._taught())
        return self

    # -- arguments ------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name."""
        return {name: getattr(self, _KEPT_AS.get(name, name)) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments by name, for the next :meth:`fit`; unknown ones are refused.

        A single option goes by ``options__NAME``, as in a grid that scikit-learn searches.

        Examples
        --------
        >>> from evergrow import Learner
        >>> Learner(options={"n_units": 50}).set_params(options__alpha=0.1).options
        {'n_units': 50, 'alpha': 0.1}
        """
        single = {name: value for name, value in params.items() if name.startswith("options__")}
        params = {name: value for name, value in params.items() if name not in single}
        check_keys(params, self._param_names(), "parameter of Learner")
        if single:
            options = params.get("options", self.options) or {}
            params["options"] = {**options, **{name.removeprefix("options__"): single[name] for name in single}}
        for name, value in params.items():
            setattr(self, _KEPT_AS.get(name, name), value)
        return self

    # -- making parts ---------------------------------------------------------------------------------------

    def _new_head(self, widths: tuple[int, ...] = ()) -> IncrementalClassifier:
        return self._recipe().create(device=self.device, random_state=self.random_state, widths=widths)

    def _adaptation_config(self) -> FsaConfig | None:
        if self.adapt is None:  # asked first: what trains takes time to import
            return None
        from evergrow.adapt.fsa import adaptation_config

        return adaptation_config(self.adapt)

    def _adapted(
        self, encoder: Encoder, samples: Samples, config: FsaConfig, checkpoint: Path | None
    ) -> tuple[Encoder, Samples]:
        """Return an encoder whose backbone was adapted to samples, and those of them that can be read."""
        settings = extraction_config(self.extract, self.cache, lasting=samples.lasting)
        encoder.check_tuner(config)
        if settings.on_error == "skip":  # training stops at the first one that cannot be read
            samples = samples.take(self._whole_classes(samples, encoder).rows)
        made = encoder.adapted(samples, config, seed=self._seed(), checkpoint=checkpoint, progress=settings.progress)
        return made, samples

    def _twin(self) -> Learner:
        """Return a learner of the same settings and backbone that knows nothing."""
        twin = type(self)(**self.get_params())
        twin._encoder = self._encoder
        return twin

    def _whole_classes(self, samples: Samples, encoder: Encoder) -> Features:
        """Return the features of labelled samples, at least one of every class."""
        labels = samples.required_labels()
        encoded = self._encoded(samples, encoder)
        lost = np.setdiff1d(labels, labels[encoded.rows])
        if len(lost):
            raise InputError(f"every class must keep a sample that can be read, got none of {str(lost[0])!r}")
        return encoded
