"""What changes a learner without being learned: classes forgotten, renamed or merged, samples taken out or moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import UnlearnError
from evergrow.data.streams import labelled_chunks
from evergrow.learner.answering import Answering
from evergrow.learner.changes import Change, fingerprints
from evergrow.learner.edits import (
    check_relabelling,
    read_movable,
    relabelled,
    renamed,
    require_known,
    samples_to_move,
    with_merged_classes,
)
from evergrow.learner.learner_base import LearnerBase


class Editing(LearnerBase):
    """The methods of a learner that edit what it knows, each exact and whole or not at all."""

    # -- exact edits ----------------------------------------------------------------------------------------

    def forget_classes(self, names: str | int | Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again. Needs no data and no backbone.

        Parameters
        ----------
        names : label or iterable of labels
            Classes to forget.

        Raises
        ------
        LabelError
            If a class was never learned.
        """
        head, now = self._able("forget_classes"), self._taught()
        wanted = [str(name) for name in ([names] if isinstance(names, (str, int)) else names)]
        self._require_known(wanted)
        gone = sorted(set(wanted))
        twin = head.branch().forget_classes(gone)
        counts = {name: n for name, n in now.counts.items() if name not in set(gone)}
        samples = sum(now.counts[name] for name in gone)
        self._snapshot = now.after(Change.now("forget", samples, gone), head=twin, counts=counts)
        return self

    def unlearn(self, data: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Take samples out again: the learner then equals one that never saw them.

        Parameters
        ----------
        data : path-like, RawSet, FeatureSet, (items, labels), items, iterator, Dataset or DataLoader
            Samples with the labels they were learned with; of sources with two parts the training part.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Raises
        ------
        UnlearnError
            If they were never learned, or with other weights.
        """
        head, now = self._able("unlearn"), self._taught()
        chunks = labelled_chunks(data, y, sample_weight, "train", self._encoder.kind)
        data_seen: list[str] = []
        twin, counts, samples = head.branch(), dict(now.counts), 0
        for block in self._blocks(chunks, self._encoder):
            self._require_known(block.labels.tolist())
            counts = _less(counts, block.labels)
            twin.unlearn(block.X, block.labels, sample_weight=block.weights)
            data_seen += fingerprints(block.X, block.labels, now.history, block.weights)
            samples += len(block.labels)
        gone = sorted(name for name, n in counts.items() if n == 0)
        change = Change.now("unlearn", samples, gone, data=data_seen)
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
        self._snapshot = renamed(self._taught(), names)
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
        self._snapshot = with_merged_classes(self._taught(), names, into)
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
        >>> before = (learner.predict(X) == "owl").sum()
        >>> bool((learner.set_answering(thresholds={"owl": 0.02}).predict(X) == "owl").sum() > before)
        True
        """
        self._able("predict_proba")
        now = self._taught()
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
        source, target = check_relabelling(self._taught(), source, target)
        samples = samples_to_move(read_movable(data, self._encoder.kind), source)
        encoded = self._encoded(samples, self._encoder, on_error="raise")
        self._snapshot = relabelled(self._taught(), encoded.X, source, target)
        return self

    def _require_known(self, names: list[str]) -> None:
        require_known(names, set(self._taught().classes.tolist()))


def _less(counts: dict[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return counts without samples, or raise :class:`UnlearnError` where there were not as many."""
    left = {name: n - int((labels == name).sum()) for name, n in counts.items()}
    short = sorted(name for name, n in left.items() if n < 0)
    if short:
        raise UnlearnError(
            f"no more samples of a class can be unlearned than were learned, got {-left[short[0]]} too many of "
            f"{short[0]!r}"
        )
    return left
