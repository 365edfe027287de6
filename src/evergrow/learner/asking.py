"""What a learner answers about items: classes, scores, probabilities, novelty, features, accuracy."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.core.validation import check_number
from evergrow.core.wording import setting
from evergrow.data.frames import check_columns, is_pandas
from evergrow.data.intake import Samples, read_items, read_unknown
from evergrow.data.streams import is_stream, labelled_chunks, read_chunks
from evergrow.features import Features
from evergrow.learner.answers import Answers
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.encoder import Encoder
from evergrow.learner.evaluation import Compared, Evaluation, evaluate_predictions, kept_answers, open_world
from evergrow.learner.labels import as_labels, column_order
from evergrow.learner.learner_base import LearnerBase, check_width
from evergrow.learner.summaries import Measured


class Asking(LearnerBase):
    """The methods of a learner that answer; none changes what it knows."""

    def predict(self, items: Any) -> NDArray[Any]:
        """Return the most likely class of every item.

        Parameters
        ----------
        items : object
            A path or paths, a folder of images, PIL images, uint8 arrays, texts or features; or a generator, a torch
            dataset or loader of such, whose labels are passed over.

        Returns
        -------
        ndarray of shape (n,)
            Labels of the kind that was learned: names, integers or booleans.
        """
        names = self._asked(items, self._answers_to)
        return as_labels(names.tolist(), self._taught().label_kind)

    def decision_function(self, items: Any) -> NDArray[np.float64]:
        """Return the score of every class, one column per entry of ``classes_``; larger means more likely.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.

        Returns
        -------
        ndarray of shape (n, C), or (n,) for two classes
            Of two classes the score of the second less that of the first, as scikit-learn's tools take it.
        """
        scores = self.class_scores(items)
        return np.asarray(scores[:, 1] - scores[:, 0]) if scores.shape[1] == 2 else scores

    def class_scores(self, items: Any) -> NDArray[np.float64]:
        """Return the score of every class, one column per entry of ``classes_`` whatever their number.

        Parameters
        ----------
        items : object
            As for :meth:`predict`.
        """
        return self._by_class(self._asked(items, self._taught().head.class_scores))

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
        self._able("novelty_score")
        return self._taught().calibration.threshold(false_alarm)

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
        if is_stream(items):
            chunks = [self._encoded(samples, self._encoder) for samples in self._item_chunks(items)]
            starts = np.cumsum([0, *(len(part) + len(part.failures) for part in chunks)])
            rows = np.concatenate([part.rows + start for part, start in zip(chunks, starts[:-1], strict=True)])
            failures = tuple(failure for part in chunks for failure in part.failures)
            return Features(np.concatenate([part.X for part in chunks]), rows, failures)
        samples = read_items(items, self._encoder.kind)
        check_columns(samples.columns, now.columns)
        if samples.features is not None and not now.is_empty:  # a backbone answers for its own
            check_width(samples.features, now.head.n_features_in_)
        return self._encoder.encode(samples, self.extract, cache=self.cache)

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
        head, features = self._taught().head, self.features(items)
        able = hasattr(head, "predict_proba")
        values = self._probabilities(features.X) if able else head.class_scores(features.X)
        names, measure = np.asarray(head.classes_, dtype=np.str_), "probability" if able else "score"
        answering = self._taught().answering
        chosen = None if answering.is_plain else answering.choose(values, names.tolist())
        answers = Answers(
            names,
            values,
            measure,
            features.rows,
            features.failures,
            chosen=chosen,
            label_kind=self._taught().label_kind,
            index=getattr(items, "index", None) if is_pandas(items) else None,
        )
        if threshold is None:
            return answers
        novelty = head.novelty_score(features.X)
        unknown = ~(novelty <= threshold)  # NaN is not known
        return dataclasses.replace(
            answers, novelty=novelty, unknown=unknown, threshold=np.full(len(novelty), threshold)
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
        data : path-like, RawSet, FeatureSet, (items, labels), items, iterator, Dataset or DataLoader
            Labelled data; of sources with two parts the test part. Samples of classes that the model does not know are
            counted apart and serve as unknown ones. Labels are compared by their names, whatever their kind.
        y : array-like of shape (n,), optional
            Labels of ``data``.
        unknown : path-like, RawSet, FeatureSet, (items, labels) or items, optional
            More things that the model does not know; of labelled data only classes that were not learned count.
        false_alarm : float
            Share of false alarms that the threshold is for.
        keep_samples : bool
            Whether to keep what was answered about each sample, with its certainty and novelty.

        Returns
        -------
        Evaluation
        """
        check_number("false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True)
        started, now = time.perf_counter(), self._taught()
        if unknown is not None:
            self.threshold(false_alarm)  # raises where there is none, before any work is done
        opens = hasattr(now.head, "novelty_score") and bool(now.calibration.n)
        asked = [
            self._compared(samples, opens=opens, keep=keep_samples)
            for samples in labelled_chunks(data, y, None, "test", self._encoder.kind)
        ]
        labels = np.concatenate([part.labels for part in asked])
        answers = np.concatenate([part.answers for part in asked])
        result = evaluate_predictions(labels.tolist(), answers.tolist(), now.classes.tolist())
        known, novelty = np.isin(labels, now.classes), np.concatenate([part.novelty for part in asked])
        others: NDArray[np.float64] = np.empty(0)
        compared, kept = None, None
        if opens:
            if unknown is not None:
                others = now.head.novelty_score(self._unknown_features(unknown))
            strange = np.concatenate([novelty[~known], others])
            if known.any() and len(strange):
                compared = open_world(novelty[known], strange, self.threshold(false_alarm), false_alarm)
        if keep_samples:
            kept = kept_answers(asked)
            if opens:
                threshold = self.threshold(false_alarm)
                kept = dataclasses.replace(kept, novelty=novelty, strange=others, threshold=threshold)
        left_out = tuple(name for part in asked for name in part.left_out)
        seconds = time.perf_counter() - started
        if result.n_known:
            self._measured = Measured(result.accuracy, result.n_known, now.revision)
        return dataclasses.replace(result, seconds=seconds, left_out=left_out, unknown=compared, samples=kept)

    def score(self, data: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the share of right answers; samples of classes that were never learned count as wrong.

        Parameters
        ----------
        data, y
            As for :meth:`evaluate`.
        sample_weight : array-like of shape (n,), optional
            What each sample counts for.
        """
        right, weights = [], []
        for samples in labelled_chunks(data, y, sample_weight, "test", self._encoder_of_state().kind):
            part = self._compared(samples, opens=False, on_error="raise")
            right.append(part.labels == part.answers)
            weights.append(np.ones(len(samples)) if samples.weights is None else samples.weights)
        found = np.concatenate(right)
        accuracy = float(np.average(found, weights=np.concatenate(weights)))
        self._measured = Measured(accuracy, len(found), self.revision_)
        return accuracy

    def _compared(self, samples: Samples, *, opens: bool, keep: bool = False, on_error: str | None = None) -> Compared:
        """Return labels and answers of samples, with ``opens`` their novelty, with ``keep`` all there is to show."""
        now = self._taught()
        encoded = self._encoded(samples, self._encoder, on_error=on_error)
        labels, answers = samples.required_labels()[encoded.rows], self._answers_to(encoded.X)
        novelty = now.head.novelty_score(encoded.X) if opens else np.empty(0)
        left_out = tuple(name for name, _ in encoded.failures)
        if not keep:
            return Compared(labels, answers, novelty, left_out)
        certainty = None
        if hasattr(now.head, "predict_proba"):
            columns = np.searchsorted(now.classes, answers)
            certainty = np.take_along_axis(self._probabilities(encoded.X), columns[:, None], axis=1)[:, 0]
        return Compared(labels, answers, novelty, left_out, samples.items, encoded.rows, len(samples), certainty)

    def _unknown_features(self, unknown: Any) -> NDArray[Any]:
        """Return features of what the model does not know, out of data with or without labels."""
        now, kind = self._taught(), self._encoder.kind
        samples = read_unknown(unknown, kind)
        if samples.labels is not None:
            rows = np.flatnonzero(~np.isin(samples.labels, now.classes))
            if not len(rows):
                raise InputError(
                    f"{setting('unknown')} must hold classes that the model does not know, got none but known ones"
                )
            samples = samples.take(rows)
        return self._encoded(samples, self._encoder).X

    def _encoder_of_state(self) -> Encoder:
        self._taught()
        return self._encoder

    def _item_chunks(self, items: Any) -> Iterator[Samples]:
        yielded = False
        for samples in read_chunks(items, self._encoder.kind, labelled=False):
            yielded = True
            yield samples
        if not yielded:
            raise InputError("items must hold at least one item, got none")

    def _asked(self, items: Any, question: Callable[[NDArray[Any]], Any]) -> NDArray[Any]:
        """Return the answers to a question about items; of streams in bounded memory."""
        if not is_stream(items):
            return np.asarray(question(self._answerable(items)))
        self._taught()
        found = [
            question(self._encoded(samples, self._encoder, on_error="raise").X) for samples in self._item_chunks(items)
        ]
        return np.concatenate(found)

    def _by_class(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return columns of the head in the order of ``classes_``."""
        now = self._taught()
        return values if now.label_kind == "name" else values[:, column_order(now.classes, now.label_kind)]

    def _probabilities(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return class probabilities of features under the prior that was asked for."""
        now = self._taught()
        likely = np.asarray(now.head.predict_proba(X))
        counts = [now.counts[name] for name in now.classes.tolist()]
        return now.answering.probabilities(likely, now.classes.tolist(), counts, now.head.assumed_prior_)

    def _answers_to(self, X: NDArray[Any]) -> NDArray[np.str_]:
        """Return the answers to features."""
        now = self._taught()
        if now.answering.is_plain:
            return np.asarray(now.head.predict(X), dtype=np.str_)
        return now.classes[now.answering.choose(self._probabilities(X), now.classes.tolist())]

    def _answerable(self, items: Any) -> NDArray[Any]:
        """Return the features of items, all of them: answers are in the order of the items."""
        self._taught()
        if isinstance(items, Features):
            return items.X
        return self._encoded(read_items(items, self._encoder.kind), self._encoder, on_error="raise").X
