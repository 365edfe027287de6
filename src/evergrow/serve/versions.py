"""A model at one moment. It never changes, so that those who ask never wait for those who teach."""

from __future__ import annotations

import dataclasses
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NotFittedError
from evergrow.features import Features
from evergrow.learner.answers import Answers
from evergrow.learner.evaluation import Evaluation
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import Change
from evergrow.serve.schemas import SAMPLE_KINDS, SampleKind

Signature = tuple[int, int, int]


def signature_of(path: Path) -> Signature | None:
    """Return what tells one state of a file from another, or None if there is no file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True, eq=False)
class Version:
    """A model at one moment.

    Parameters
    ----------
    learner : Learner
        What it knows.
    signature : tuple or None
        Signature of its file; None asks for the file to be read again.
    """

    learner: Learner
    signature: Signature | None
    _asking: threading.Lock = field(default_factory=threading.Lock)  # a head computes some things at the first question

    @property
    def state(self) -> Literal["ready", "starting"]:
        """Whether the model answers, or has no class yet."""
        return "ready" if self.counts else "starting"

    @property
    def revision(self) -> int:
        """The revision of the model file."""
        return self.learner.revision_

    @property
    def etag(self) -> str:
        """The entity tag."""
        return f'"{self.revision}"'

    @property
    def kind(self) -> SampleKind:
        """What samples are, in the words of the API."""
        return SAMPLE_KINDS[self.learner.kind_]

    @property
    def counts(self) -> dict[str, int]:
        """Samples of each class."""
        return self.learner.n_samples_

    @property
    def changes(self) -> list[Change]:
        """The changes that led here, the oldest first."""
        return self.learner.history_

    @property
    def n_features(self) -> int | None:
        """Width of feature vectors; None while a model of features has no class."""
        if self.counts:
            return int(self.learner.head_.n_features_in_)
        return None if self.learner.spec_ is None else self.learner.spec_.n_features

    def require_ready(self) -> None:
        """Raise :class:`NotFittedError` while the model has no class."""
        if not self.counts:
            raise NotFittedError("the model has learned nothing yet: teach it a class first")

    def checked_rows(self, rows: list[list[float]] | NDArray[Any]) -> NDArray[np.float64]:
        """Return feature vectors as a matrix of finite numbers, as wide as those that were learned."""
        widths = {len(row) for row in rows}
        if len(widths) != 1 or 0 in widths:
            raise InputError(f"rows must all have the same number of columns, at least one, got {sorted(widths)[:5]}")
        array = np.asarray(rows, dtype=np.float64)
        if not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).any(1).argmax())
            raise InputError(f"rows must be finite, got NaN or infinity in row {bad}")
        if self.n_features is not None and array.shape[1] != self.n_features:
            raise InputError(f"rows must have {self.n_features} columns, got {array.shape[1]}")
        return array

    def ask(self, rows: NDArray[Any]) -> Answers:
        """Return answers about feature vectors, with their novelty; :meth:`judged` says which are unknown."""
        features = Features(rows, np.arange(len(rows)))
        with self._asking:
            answers = self.learner.ask(features)
            if not hasattr(self.learner.head_, "novelty_score"):
                return answers
            return dataclasses.replace(answers, novelty=self.learner.novelty_score(features))

    def judged(self, answers: Answers, false_alarm: float) -> Answers:
        """Return answers that say what is unknown, if that was calibrated.

        Parameters
        ----------
        answers : Answers
            Answers of :meth:`ask`.
        false_alarm : float
            Share of known things that may be called unknown.
        """
        threshold = self.threshold(false_alarm)
        if threshold is None or answers.novelty is None:
            return answers
        unknown = ~(answers.novelty <= threshold)  # NaN is not known
        return dataclasses.replace(answers, unknown=unknown, threshold=np.full(len(unknown), threshold))

    def threshold(self, false_alarm: float) -> float | None:
        """Return the novelty above which something is unknown, or None if it was never calibrated."""
        if not hasattr(self.learner.head_, "novelty_score"):
            return None
        try:
            return self.learner.threshold(false_alarm)
        except NotFittedError:
            return None

    def evaluate(
        self, rows: NDArray[Any], labels: NDArray[np.str_], false_alarm: float
    ) -> tuple[Evaluation, list[str]]:
        """Return how good the answers about labelled features are, and the answers."""
        with self._asking:
            result = self.learner.evaluate((rows, labels), false_alarm=false_alarm)
            predicted = self.learner.predict(Features(rows, np.arange(len(rows)))).tolist()
        return result, predicted
