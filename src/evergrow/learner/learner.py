"""Backbone, head and open-world threshold as one object on images, texts or features."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    InputError,
    MergeError,
    NotFittedError,
    UnlearnError,
)
from evergrow.core.validation import check_number
from evergrow.heads.base import IncrementalClassifier
from evergrow.learner.answering import Answering
from evergrow.learner.answers import Answers
from evergrow.learner.calibration import FALSE_ALARM, Calibration, calibrated, with_new_classes
from evergrow.learner.changes import Change, fingerprint, fingerprints
from evergrow.learner.edits import (
    check_relabelling,
    read_movable,
    relabelled,
    renamed,
    require_known,
    samples_to_move,
    with_merged_classes,
)
from evergrow.learner.encoder import Encoder, Features, check_images, checkpoint_file, extraction_config
from evergrow.learner.evaluation import Evaluation, evaluate_predictions, open_world
from evergrow.learner.intake import Samples, read_items, read_labelled, read_unknown, warn_alike, warn_few
from evergrow.learner.merging import merged
from evergrow.learner.recipe import HeadRecipe
from evergrow.learner.snapshot import Snapshot, counted, describe, read_snapshot

if TYPE_CHECKING:
    from evergrow.backbones.base import BackboneSpec
    from evergrow.training.settings import FsaConfig


class Learner:
    """A classifier for images, texts or feature vectors that keeps learning new classes.

    A frozen backbone turns samples into feature vectors and a head learns from these, exactly as if it saw
    everything at once. Nothing of a sample is kept. Whatever fails leaves the learner as it was.

    Parameters
    ----------
    backbone : "auto", str, Backbone, torch.nn.Module or None
        ``"auto"`` takes the best one on this machine for the kind of the first data (none for feature vectors) and says
        which: on the logger ``"evergrow"``, and in ``info()["backbone"]``. A name or a module is for
        :func:`evergrow.backbones.create_backbone`. None: data are feature vectors.
    method : str
        The head, one of :func:`evergrow.list_methods`. Unlearning, merging, probabilities and novelty need
        ``"scl-mgsm"``.
    adapt : str, FsaConfig, dict or None
        What is trained of the backbone: ``fit`` trains it on the images of its data, freezes it, and everything after
        uses the adapted backbone. None leaves the backbone as it is. A name, one of
        :func:`evergrow.tuners.adapting_tuners`, means RanPAC's protocol, 20 epochs; an
        :class:`~evergrow.training.FsaConfig` (or its plain form) says it all.
    settings : {"recommended", "paper"}
        Settings of the head: those for users, where the method has such, or its own defaults.
    features : {"auto", "final", "rich", "max"} or sequence of str
        What feature vectors are made of: the network's own vector (``"final"``), blocks from several depths of the
        same pass by name, or blocks such as ``["final", "mean@-2"]``; see :mod:`evergrow.backbones.recipes`.
        ``"auto"`` keeps the recipe of a backbone that has one, and is ``"final"`` elsewhere.
    options : dict, optional
        Options of the head to set otherwise; see :func:`evergrow.methods.method_options`.
    weights, preset : optional
        For :func:`evergrow.backbones.create_backbone`.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int
        Seed of the head and of the adaptation.
    cache : None, False or path-like
        Where features are kept: the default cache (features of files and tables only), nowhere, or a folder.
    extract : ExtractConfig or dict, optional
        Settings of the extraction: ``batch_size``, ``workers``, ``on_error``, ``precision``, ``progress``.

    Attributes
    ----------
    classes_ : ndarray of str
        Classes learned, sorted.
    n_samples_ : dict of str to int
        Samples learned of each.
    history_ : list of Change
        All changes so far.
    revision_ : int
        Number of the latest change.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.learner.learner import Learner
    >>> X, y = load_digits(return_X_y=True)
    >>> old, new = y < 5, y >= 5
    >>> learner = Learner(options={"n_units": 200})
    >>> _ = learner.fit((X[old][:600], y[old][:600])).partial_fit((X[new][:600], y[new][:600]))
    >>> learner.classes_.tolist()
    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']
    >>> result = learner.evaluate((X[1400:], y[1400:]))
    >>> result.accuracy > 0.9
    True
    """

    def __init__(
        self,
        backbone: Any = "auto",
        method: str = "scl-mgsm",
        adapt: Any = None,
        *,
        settings: str = "recommended",
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
        self.settings = settings
        self.recipe = features  # the method of that name gives feature vectors
        self.options = options
        self.weights = weights
        self.preset = preset
        self.device = device
        self.random_state = random_state
        self.cache = cache
        self.extract = extract
        self._origin: tuple[Path, str] | None = None  # the model file that was loaded, and its checksum

    # -- learning -------------------------------------------------------------------------------------------

    def fit(self, data: Any, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Forget everything and learn.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet or (items, labels)
            Folders, tables and files as :func:`evergrow.datasets.load_data` takes them, or items with labels: paths,
            PIL images, uint8 arrays, texts or a matrix of features. Of sources with a training and a test part the
            training part is learned; others are learned whole. Labels become class names.
        checkpoint : path-like, optional
            File that is written after every epoch of ``adapt``. If the training is interrupted, the same call goes on
            after the last epoch in it, to the same numbers. It is left there when all is done, and then of no more use.

        Returns
        -------
        self

        Raises
        ------
        CheckpointError
            If the checkpoint is of another training: other images, labels, settings, seed or backbone.

        Warns
        -----
        FewSamplesWarning
            Where classes have fewer than ten samples, and fewer than a fifth of what the others have.
        """
        self._new_head()  # wrong options are refused before anything is read
        config = self._adaptation_config()
        kept = checkpoint_file(checkpoint, config)
        samples = read_labelled(data, "train", self._open_encoder().kind)
        if config is not None:
            check_images(samples)
        encoder = self._open_encoder().begun(samples)
        if config is not None:
            encoder, samples = self._adapted(encoder, samples, config, kept)
        X, labels = self._features_and_labels(samples, encoder)
        head = self._new_head(encoder.widths)
        counts = counted({}, labels)
        warn_alike(np.empty(0, dtype=np.str_), labels)
        warn_few({}, counts)
        head.fit(X, labels).settle()
        calibration = self._calibrated(Calibration(), head, X, labels)
        change = Change.now("fit", len(labels), np.unique(labels).tolist(), data=[fingerprint(X, labels)])
        before = self._snapshot_or_none()  # numbers of revisions go on, so that each stands for one state
        self._encoder = encoder
        self._snapshot = Snapshot(
            head,
            encoder.spec,
            counts,
            calibration,
            (change.numbered(1 if before is None else before.revision + 1),),
            reason=encoder.reason,
            seed=self._seed(),
            adaptation=encoder.adaptation,
            widths=encoder.widths if encoder.spec is None else (),
        )
        return self

    def partial_fit(self, data: Any) -> Self:
        """Learn more: new classes, old ones or both. The first call is the same as :meth:`fit`.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet or (items, labels)
            As for :meth:`fit`. No earlier data is needed.

        Returns
        -------
        self

        Warns
        -----
        FewSamplesWarning
            As for :meth:`fit`, where a class becomes one of those; later batches do not repeat it.
        """
        if self._snapshot_or_none() is None:
            return self.fit(data)
        now, encoder = self._state(), self._encoder
        X, labels = self._features_and_labels(read_labelled(data, "train", encoder.kind), encoder)
        counts = counted(now.counts, labels)
        warn_alike(now.classes, labels)
        warn_few(now.counts, counts)
        calibration = with_new_classes(now.calibration, now.head, X, labels)
        head = now.head.branch() if now.head.can("branch") else now.head
        head.partial_fit(X, labels)  # of other methods the last step that can fail, and it fails whole
        head.settle(cheap_only=True)
        calibration = self._calibrated(calibration, head, X, labels)
        new = np.setdiff1d(labels, now.classes).tolist()
        change = Change.now("update", len(labels), new, data=fingerprints(X, labels, now.history))
        self._snapshot = now.after(change, head=head, counts=counts, calibration=calibration)
        return self

    def settle(self) -> Self:
        """Work out now what answers need, rather than at the first question; a saved learner then answers at once.

        ``fit`` does so, and later changes do where it takes no more than a second. With thousands of units and classes
        it takes several.
        """
        self._state().head.settle()
        return self

    def _calibrated(
        self, before: Calibration, head: IncrementalClassifier, X: NDArray[Any], labels: NDArray[np.str_]
    ) -> Calibration:
        """Return the calibration with a batch that a head has just learned, and let the head answer by it."""
        if not head.can("novelty"):
            return before
        calibration = calibrated(before, head, X, labels, self._seed())
        calibration.apply(head)
        return calibration

    # -- answering ------------------------------------------------------------------------------------------

    def predict(self, items: Any) -> NDArray[np.str_]:
        """Return the most likely class of every item.

        Parameters
        ----------
        items : object
            A path or paths, a folder of images, PIL images, uint8 arrays, texts or features.

        Returns
        -------
        ndarray of str of shape (n,)
        """
        return self._answers_to(self._answerable(items))

    def decision_function(self, items: Any) -> NDArray[np.float64]:
        """Return the score of every class, always one column per entry of ``classes_``; larger means more likely.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        return self._state().head.class_scores(self._answerable(items))

    def predict_proba(self, items: Any) -> NDArray[np.float64]:
        """Return class probabilities; columns follow ``classes_``.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        self._able("probabilities")
        return self._probabilities(self._answerable(items))

    def novelty_score(self, items: Any) -> NDArray[np.float64]:
        """Return how unlike anything learned each item is; higher means more novel.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        return np.asarray(self._able("novelty").novelty_score(self._answerable(items)))

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the novelty above which something is unknown.

        Parameters
        ----------
        false_alarm : float
            Share of known things that may be called unknown.

        Raises
        ------
        NotFittedError
            If no class ever came with two samples at once, so that nothing could be held out.
        """
        self._able("novelty")
        return self._state().calibration.threshold(false_alarm)

    def is_unknown(self, items: Any, false_alarm: float = FALSE_ALARM) -> NDArray[np.bool_]:
        """Return which items belong to no class that was learned, as far as can be told.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float
            Share of known things that may be called unknown; the threshold was calibrated on samples of every batch,
            scored as if they had not been learned.
        """
        threshold = self.threshold(false_alarm)
        return np.asarray(~(self.novelty_score(items) <= threshold))  # what is no number is not known

    def features(self, items: Any) -> Features:
        """Return the feature vectors of items, honouring ``on_error``: all methods take them in the items' place.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        now = self._state()
        if isinstance(items, Features):
            return items
        samples = read_items(items, self._encoder.kind)
        if samples.features is not None:  # a backbone answers for its own
            _check_width(samples.features, now.head.n_features_in_)
        return self._encoder.encode_now(samples, self.extract, self.cache)

    def ask(self, items: Any, *, false_alarm: float | None = None) -> Answers:
        """Return everything about items at once; each goes through the backbone once.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        false_alarm : float, optional
            Share of known things that may be called unknown; None asks nothing about that.

        Returns
        -------
        Answers
        """
        threshold = None if false_alarm is None else self.threshold(false_alarm)
        head, features = self._state().head, self.features(items)
        able = head.can("probabilities")
        values = self._probabilities(features.X) if able else head.class_scores(features.X)
        names, measure = np.asarray(head.classes_, dtype=np.str_), "probability" if able else "score"
        answering = self._state().answering
        chosen = None if answering.is_plain else answering.choose(values, names.tolist())
        answers = Answers(names, values, measure, features.rows, features.failures, chosen=chosen)
        if threshold is None:
            return answers
        novelty = head.novelty_score(features.X)
        return dataclasses.replace(answers, novelty=novelty, unknown=~(novelty <= threshold))  # NaN is not known

    def evaluate(self, data: Any, *, unknown: Any = None, false_alarm: float = FALSE_ALARM) -> Evaluation:
        """Compare answers with labels.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet or (items, labels)
            Labelled data; of sources with two parts the test part. Samples of classes that the model does not know are
            counted apart and serve as unknown ones.
        unknown : path-like, RawSet, FeatureSet, (items, labels) or items, optional
            More things that the model does not know; of labelled data only classes that were not learned count.
        false_alarm : float
            Share of false alarms that the threshold is for.

        Returns
        -------
        Evaluation
        """
        check_number("false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True)
        started, now = time.perf_counter(), self._state()
        if unknown is not None:
            self.threshold(false_alarm)  # raises where there is none, before any work is done
        samples = read_labelled(data, "test", self._encoder.kind)
        encoded = self._encoded(samples, self._encoder)
        labels = samples.required_labels()[encoded.rows]
        result = evaluate_predictions(labels.tolist(), self._answers_to(encoded.X).tolist(), now.classes.tolist())
        known = np.isin(labels, now.classes)
        strange = [encoded.X[~known]] if not known.all() else []
        if unknown is not None:
            strange.append(self._unknown_features(unknown))
        compared = None
        if strange and known.any() and now.head.can("novelty") and now.calibration.n:
            scores = [now.head.novelty_score(X) for X in (encoded.X[known], np.concatenate(strange))]
            compared = open_world(scores[0], scores[1], self.threshold(false_alarm), false_alarm)
        left_out = tuple(name for name, _ in encoded.failures)
        seconds = time.perf_counter() - started
        return dataclasses.replace(result, seconds=seconds, left_out=left_out, unknown=compared)

    def _unknown_features(self, unknown: Any) -> NDArray[Any]:
        """Return features of what the model does not know, out of data with or without labels."""
        now, kind = self._state(), self._encoder.kind
        samples = read_unknown(unknown, kind)
        if samples.labels is not None:
            rows = np.flatnonzero(~np.isin(samples.labels, now.classes))
            if not len(rows):
                raise InputError("unknown must hold classes that the model does not know, got none but known ones")
            samples = samples.take(rows)
        return self._encoded(samples, self._encoder).X

    # -- exact edits ----------------------------------------------------------------------------------------

    def forget_classes(self, names: str | Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again. Needs no data and no backbone.

        Parameters
        ----------
        names : str or iterable of str
            Classes to forget.

        Raises
        ------
        LabelError
            If a class was never learned.
        """
        head, now = self._able("forget"), self._state()
        wanted = [names] if isinstance(names, str) else [str(name) for name in names]
        self._require_known(wanted)
        gone = sorted(set(wanted))
        twin = head.branch().forget_classes(gone)
        counts = {name: n for name, n in now.counts.items() if name not in set(gone)}
        samples = sum(now.counts[name] for name in gone)
        self._snapshot = now.after(Change.now("forget", samples, gone), head=twin, counts=counts)
        return self

    def unlearn(self, data: Any) -> Self:
        """Take samples out again: the learner then equals one that never saw them.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet or (items, labels)
            Samples with the labels they were learned with; of sources with two parts the training part.

        Raises
        ------
        UnlearnError
            If they were never learned.
        """
        head, now = self._able("unlearn"), self._state()
        X, labels = self._features_and_labels(read_labelled(data, "train", self._encoder.kind), self._encoder)
        self._require_known(labels.tolist())
        counts = {name: n - int((labels == name).sum()) for name, n in now.counts.items()}
        short = sorted(name for name, n in counts.items() if n < 0)
        if short:
            raise UnlearnError(
                f"no more samples of a class can be unlearned than were learned, got {-counts[short[0]]} too many of "
                f"{short[0]!r}"
            )
        twin = head.branch().unlearn(X, labels)
        gone = sorted(name for name, n in counts.items() if n == 0)
        change = Change.now("unlearn", len(labels), gone, data=fingerprints(X, labels, now.history))
        kept = {name: n for name, n in counts.items() if n}
        self._snapshot = now.after(change, head=twin, counts=kept)
        return self

    # -- names and borders of classes -----------------------------------------------------------------------

    def rename_class(self, old: Any, new: Any) -> Self:
        """Give a class another name; answers are the same under it. Needs no data and no backbone.

        Parameters
        ----------
        old, new : str
            Its name, and the one that it gets.

        Raises
        ------
        LabelError
            If the class was never learned, or the new name is that of another: :meth:`merge_classes` makes two one.
        """
        return self.rename_classes({old: new})

    def rename_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes other names, all at once, so that two may swap theirs. Needs no data and no backbone.

        Parameters
        ----------
        names : mapping of str to str
            New names by old ones.

        Raises
        ------
        LabelError
            As for :meth:`rename_class`.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow.learner.learner import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> learner.rename_classes({"owl": "barn owl"}).classes_.tolist()
        ['barn owl', 'crow', 'jay', 'rook']
        """
        self._snapshot = renamed(self._state(), names)
        return self

    def merge_classes(self, names: Iterable[Any], into: Any) -> Self:
        """Make several classes one, exactly as if their samples had been learned under one name. Needs no data.

        How sure answers are stays calibrated by the samples as they came.

        Parameters
        ----------
        names : iterable of str
            Classes to merge.
        into : str
            Name of the one that they become: a new one, or that of a class, which then is among those merged.

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
        >>> learner.merge_classes(["crow", "rook"], "corvid").n_samples_
        {'corvid': 20, 'jay': 10, 'owl': 10}
        """
        self._snapshot = with_merged_classes(self._state(), names, into)
        return self

    def set_answering(self, *, prior: Any = None, costs: Any = None, thresholds: Any = None) -> Self:
        """Say how answers follow from probabilities: how common classes are, what mistakes cost, how sure one must be.

        All three are set at once; what is left out is as it was learned. Nothing is learned or forgotten by it, and
        ``predict``, ``predict_proba`` (the prior), ``ask`` and ``evaluate`` follow it from now on.

        Parameters
        ----------
        prior : {"learned", "uniform", "counts"} or mapping of str to float, optional
            How common classes are among what is asked about: as the probabilities assume, all alike, as among the
            samples that were learned, or by weights; classes that these do not name have the mean weight.
        costs : mapping of str to mapping of str to float, optional
            ``costs[true][answer]`` where it is neither 0 for the right answer nor 1 for another; the answer is the one
            of least expected cost.
        thresholds : mapping of str to float, optional
            Probability from which a class is the answer, whatever is likelier, and below which it never is.

        Raises
        ------
        LabelError
            If a class is named that was never learned.
        UnsupportedError
            If the method gives no probabilities.

        Examples
        --------
        >>> import numpy as np
        >>> from evergrow.learner.learner import Learner
        >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.repeat(["crow", "jay", "owl", "rook"], 10)
        >>> learner = Learner(options={"n_units": 20}).fit((X, y))
        >>> sum(learner.predict(X) == "owl") < sum(learner.set_answering(thresholds={"owl": 0.02}).predict(X) == "owl")
        True
        """
        self._able("probabilities")
        now = self._state()
        answering = Answering.checked(now.counts, prior, costs, thresholds)
        self._snapshot = now.after(Change.now("answering", 0, note=answering.summary()), answering=answering)
        return self

    def relabel(self, data: Any, source: Any, target: Any) -> Self:
        """Take samples out of one class and into another, exactly as if they had been learned as the second.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet, (items, labels) or items
            The samples. Of data with labels those of class ``source`` are moved, of data without all.
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
        source, target = check_relabelling(self._state(), source, target)
        samples = samples_to_move(read_movable(data, self._encoder.kind), source)
        encoded = self._encoded(samples, self._encoder, on_error="raise")
        self._snapshot = relabelled(self._state(), encoded.X, source, target)
        return self

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
        if now.head.can("branch"):  # every change then works on a branch of the head
            twin._snapshot = now
        else:
            twin._snapshot, _ = read_snapshot(self.to_archive(), None, "the copy")
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
            widths=now.widths,
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
        self._able("merge" if base is None else "join")
        self._snapshot = merged(self._state(), other._state(), None if base is None else base._state())
        return self

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file, in one step; backbone weights are not in it.

        See also :mod:`evergrow.learner.modelfile`.

        Parameters
        ----------
        path : path-like
            Where to, by custom ending in ``.evg``.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes."""
        return self._state().to_archive(self._recipe())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        backbone: Any = None,
        weights: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
    ) -> Self:
        """Read what :meth:`save` wrote. The backbone is loaded when something first goes through it.

        Parameters
        ----------
        path : path-like
            Where from.
        backbone : Backbone or torch.nn.Module, optional
            The backbone itself, if it was a module of yours.
        weights : str or path-like, optional
            Where the backbone's weights are, if no longer where they came from.
        device : str or torch.device, optional
            Where to compute; by default the best there is.
        cache, extract : optional
            As for the class; they are not part of the file.

        Raises
        ------
        FileFormatError
            If the file is no learner, is damaged or was altered.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        return cls.from_archive(
            read_archive(path),
            name=os.fspath(path),
            backbone=backbone,
            weights=weights,
            device=device,
            cache=cache,
            extract=extract,
        )

    @classmethod
    def from_archive(
        cls,
        archive: Archive,
        *,
        name: str = "the archive",
        backbone: Any = None,
        weights: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
        cache: Any = None,
        extract: Any = None,
    ) -> Self:
        """Return the learner that :meth:`to_archive` described.

        Parameters
        ----------
        archive : Archive
            What a file holds.
        name : str
            What to call the source in messages.
        backbone, weights, device, cache, extract : optional
            As for :meth:`load`.
        """
        snapshot, recipe = read_snapshot(archive, device, name)
        learner = cls(
            backbone="auto" if backbone is None and snapshot.spec is not None else backbone,
            method=recipe.method,
            adapt=None if snapshot.adaptation is None else snapshot.adaptation.config,
            settings=recipe.settings,
            features=_recipe_of(snapshot.spec),
            options=dict(recipe.options or {}) or None,
            weights=weights,
            device="auto" if device is None else device,
            cache=cache,
            extract=extract,
        )
        learner._encoder = learner._open_encoder().settled(snapshot.spec, snapshot.adaptation, snapshot.widths)
        learner._snapshot = snapshot
        return learner

    def info(self, *, numerics: bool = False) -> dict[str, Any]:
        """Return what the learner is, in plain values; loads no backbone.

        Parameters
        ----------
        numerics : bool
            Whether to add rank and conditioning, which take a decomposition: seconds, for wide layers a minute.
        """
        return describe(self._state(), self._recipe(), numerics=numerics)

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def classes_(self) -> NDArray[np.str_]:
        """Classes learned, sorted."""
        return self._state().classes

    @property
    def n_samples_(self) -> dict[str, int]:
        """Samples learned of each class."""
        return dict(self._state().counts)

    @property
    def history_(self) -> list[Change]:
        """All changes so far, the latest last."""
        return list(self._state().history)

    @property
    def revision_(self) -> int:
        """Number of the latest change."""
        return self._state().revision

    @property
    def head_(self) -> IncrementalClassifier:
        """The head on feature vectors; to be looked at, not changed."""
        return self._state().head

    @property
    def kind_(self) -> str:
        """What the samples are: ``"image"``, ``"text"`` or ``"features"``."""
        return self._state().kind

    @property
    def spec_(self) -> BackboneSpec | None:
        """What computes the features; None where samples are features."""
        return self._state().spec

    def backbone_(self) -> Any:
        """Return the backbone, loading it if need be; None where samples are features."""
        return None if self._state().spec is None else self._encoder.backbone()

    @property
    def answering_(self) -> Answering:
        """How answers follow from probabilities."""
        return self._state().answering

    def _snapshot_or_none(self) -> Snapshot | None:
        return getattr(self, "_snapshot", None)

    def _state(self) -> Snapshot:
        now = self._snapshot_or_none()
        if now is None:
            raise NotFittedError("this Learner must learn something first: call fit or partial_fit")
        return now

    def _able(self, ability: str) -> IncrementalClassifier:
        """Return the head, or raise :class:`UnsupportedError` if its method cannot do what is asked."""
        head = self._state().head
        head.require(ability)
        return head

    def _require_known(self, names: list[str]) -> None:
        require_known(names, set(self._state().classes.tolist()))

    def _seed(self) -> int:
        state = self.random_state
        return int(state) if isinstance(state, (int, np.integer)) and not isinstance(state, bool) else 0

    # -- making parts ---------------------------------------------------------------------------------------

    def _new_head(self, widths: tuple[int, ...] = ()) -> IncrementalClassifier:
        return self._recipe().create(device=self.device, random_state=self.random_state, widths=widths)

    def _adaptation_config(self) -> FsaConfig | None:
        if self.adapt is None:  # asked first: what trains takes time to import
            return None
        from evergrow.training.adaptation import adaptation_config

        return adaptation_config(self.adapt)

    def _recipe(self) -> HeadRecipe:
        return HeadRecipe(self.method, self.settings, self.options)

    def _open_encoder(self) -> Encoder:
        return Encoder(self.backbone, weights=self.weights, preset=self.preset, device=self.device, recipe=self.recipe)

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
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        twin = type(self)(**{name: getattr(self, "recipe" if name == "features" else name) for name in names})
        twin._encoder = self._encoder
        return twin

    # -- samples to features --------------------------------------------------------------------------------

    def _encoded(self, samples: Samples, encoder: Encoder, *, on_error: str | None = None) -> Features:
        encoded = encoder.encode(samples, self.extract, cache=self.cache, on_error=on_error)
        now = self._snapshot_or_none()
        width = encoder.spec.n_features if encoder.spec is not None else None
        if now is not None and encoder is self._encoder:
            width = now.head.n_features_in_
        if width is not None:
            _check_width(encoded.X, width)
        return encoded

    def _features_and_labels(self, samples: Samples, encoder: Encoder) -> tuple[NDArray[Any], NDArray[np.str_]]:
        encoded = self._whole_classes(samples, encoder)
        return encoded.X, samples.required_labels()[encoded.rows]

    def _whole_classes(self, samples: Samples, encoder: Encoder) -> Features:
        """Return the features of labelled samples, at least one of every class."""
        labels = samples.required_labels()
        if not len(labels):
            raise InputError("data must hold at least one sample, got none")
        encoded = self._encoded(samples, encoder)
        lost = np.setdiff1d(labels, labels[encoded.rows])
        if len(lost):
            raise InputError(f"every class must keep a sample that can be read, got none of {str(lost[0])!r}")
        return encoded

    def _probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return class probabilities of features under the prior that was asked for."""
        now = self._state()
        likely = np.asarray(now.head.predict_proba(X))
        counts = [now.counts[name] for name in now.classes.tolist()]
        return now.answering.probabilities(likely, now.classes.tolist(), counts, now.head.assumed_prior_)

    def _answers_to(self, X: NDArray[Any]) -> NDArray[np.str_]:
        """Return the answers to features."""
        now = self._state()
        if now.answering.is_plain:
            return np.asarray(now.head.predict(X), dtype=np.str_)
        return now.classes[now.answering.choose(self._probabilities(X), now.classes.tolist())]

    def _answerable(self, items: Any) -> NDArray[Any]:
        """Return the features of items, all of them: answers are in the order of the items."""
        self._state()
        if isinstance(items, Features):
            return items.X
        return self._encoded(read_items(items, self._encoder.kind), self._encoder, on_error="raise").X


def _recipe_of(spec: BackboneSpec | None) -> Any:
    """Return what a saved model's feature vectors are made of, as it is asked for."""
    if spec is None:
        return "auto"
    return "final" if spec.recipe is None else list(spec.recipe.blocks)


def _check_width(X: NDArray[Any], width: int) -> None:
    """Raise :class:`InputError` if a head cannot take features."""
    if X.shape[1] != width:
        raise InputError(f"features must have {width} columns, got {X.shape[1]}")
