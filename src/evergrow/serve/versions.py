"""What a model is at one moment: never changed, so that those who ask never wait for those who teach."""

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
from evergrow.features.base import BackboneSpec
from evergrow.learner.answers import Answers
from evergrow.learner.changes import Change
from evergrow.learner.evaluation import Evaluation
from evergrow.learner.learner import Learner
from evergrow.serve.drafts import Draft
from evergrow.serve.schemas import SAMPLE_KINDS, SampleKind

Signature = tuple[int, int, int]


def signature_of(path: Path) -> Signature | None:
    """Return what tells one state of a file from another; None where there is none."""
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
    known : Learner or Draft
        What it knows.
    signature : tuple or None
        Of the file it was read from or written to; None asks for it to be read again.
    """

    known: Learner | Draft
    signature: Signature | None
    _asking: threading.Lock = field(default_factory=threading.Lock)  # what heads work out once, they work out once

    @property
    def learner(self) -> Learner:
        """The learner, or :class:`NotFittedError` where the model has not begun."""
        if isinstance(self.known, Draft):
            raise NotFittedError(f"the model must know two classes to answer, got {len(self.known.counts)}: teach more")
        return self.known

    @property
    def revision(self) -> int:
        """The revision of the model file; 0 where there is none yet."""
        return 0 if isinstance(self.known, Draft) else self.known.revision_

    @property
    def etag(self) -> str:
        """The entity tag: the revision, and for a model that has not begun the number of changes too."""
        return f'"0.{self.known.revision}"' if isinstance(self.known, Draft) else f'"{self.revision}"'

    @property
    def kind(self) -> SampleKind:
        """What samples are, in the words of requests: ``"images"``, ``"texts"`` or ``"features"``."""
        return SAMPLE_KINDS[self.known.kind if isinstance(self.known, Draft) else self.known.kind_]

    @property
    def state(self) -> Literal["ready", "starting"]:
        """Whether the model answers, or has not begun."""
        return "starting" if isinstance(self.known, Draft) else "ready"

    @property
    def counts(self) -> dict[str, int]:
        """Samples of each class."""
        return self.known.counts if isinstance(self.known, Draft) else self.known.n_samples_

    @property
    def changes(self) -> list[Change]:
        """What led here, the oldest first."""
        return list(self.known.history) if isinstance(self.known, Draft) else self.known.history_

    @property
    def spec(self) -> BackboneSpec | None:
        """What computes the features; None where samples are features."""
        return self.known.spec if isinstance(self.known, Draft) else self.known.spec_

    @property
    def n_features(self) -> int | None:
        """Width of feature vectors; None where that is open."""
        if isinstance(self.known, Draft):
            if self.known.spec is not None:
                return self.known.spec.n_features
            return self.known.features.shape[1] if len(self.known.labels) else None
        return int(self.known.head_.n_features_in_)

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
        learner, features = self.learner, Features(rows, np.arange(len(rows)))
        with self._asking:
            answers = learner.ask(features)
            if not hasattr(learner.head_, "novelty_score"):
                return answers
            return dataclasses.replace(answers, novelty=learner.novelty_score(features))

    def judged(self, answers: Answers, false_alarm: float) -> Answers:
        """Return answers that say what is unknown, where that was calibrated.

        Parameters
        ----------
        answers : Answers
            From :meth:`ask`.
        false_alarm : float
            Share of known things that may be called unknown.
        """
        threshold = self.threshold(false_alarm)
        if threshold is None or answers.novelty is None:
            return answers
        unknown = ~(answers.novelty <= threshold)  # NaN is not known
        return dataclasses.replace(answers, unknown=unknown, threshold=np.full(len(unknown), threshold))

    def threshold(self, false_alarm: float) -> float | None:
        """Return the novelty above which something is unknown; None where it was never calibrated."""
        learner = self.learner
        if not hasattr(learner.head_, "novelty_score"):
            return None
        try:
            return learner.threshold(false_alarm)
        except NotFittedError:
            return None

    def evaluate(
        self, rows: NDArray[Any], labels: NDArray[np.str_], false_alarm: float
    ) -> tuple[Evaluation, list[str]]:
        """Return how good the answers about labelled features are, and the answers."""
        with self._asking:
            result = self.learner.evaluate((rows, labels), false_alarm=false_alarm)
            said = self.learner.predict(Features(rows, np.arange(len(rows)))).tolist()
        return result, said
