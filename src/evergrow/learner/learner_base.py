"""What the parts of a Learner share: its arguments, what it knows, and the way from samples to feature vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NotFittedError
from evergrow.core.wording import action
from evergrow.data.frames import check_columns
from evergrow.data.intake import Samples
from evergrow.features import Features
from evergrow.head.base import IncrementalClassifier
from evergrow.head.estimator import Estimator
from evergrow.learner.answering import Answering
from evergrow.learner.changes import Change
from evergrow.learner.encoder import Encoder
from evergrow.learner.labels import as_labels
from evergrow.learner.learning import Block, gathered
from evergrow.learner.recipe import HeadRecipe
from evergrow.learner.snapshot import Snapshot
from evergrow.learner.summaries import Measured

if TYPE_CHECKING:
    from evergrow.features.base import BackboneSpec


class LearnerBase(Estimator):
    """Arguments and state of a :class:`~evergrow.learner.learner.Learner`, which sets them.

    The learner's methods are grouped in classes on this one: :mod:`~evergrow.learner.asking`,
    :mod:`~evergrow.learner.editing` and :mod:`~evergrow.learner.keeping`. None of them is used alone.
    """

    backbone: Any
    method: str
    adapt: Any
    recipe: Any
    options: dict[str, Any] | None
    weights: str | os.PathLike[str] | None
    preset: Any
    device: str | torch.device
    random_state: Any
    cache: Any
    extract: Any
    _origin: tuple[Path, str] | None
    _encoder: Encoder  # there from the first fit on, as what is known
    _snapshot: Snapshot
    _measured: Measured  # there once accuracy was measured

    @property
    def classes_(self) -> NDArray[Any]:
        """Classes learned, sorted, of the kind that they came as."""
        now = self._state()
        return np.sort(as_labels(now.classes.tolist(), now.label_kind))

    @property
    def class_names_(self) -> NDArray[np.str_]:
        """Names of the classes, sorted as names, whatever kind their labels are of."""
        return self._state().classes

    @property
    def n_samples_(self) -> dict[Any, int]:
        """Samples learned of each class, whatever they count for."""
        counts = self._state().counts
        return {label: counts[str(label)] for label in self.classes_.tolist()}

    @property
    def samples_by_name_(self) -> dict[str, int]:
        """Samples learned of each class, by name."""
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
    def n_features_in_(self) -> int:
        """Width of the feature vectors: those that were learned, or those of the backbone."""
        return int(self._taught().head.n_features_in_)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns that were learned; only there where they came in a data frame."""
        names = self._state().columns
        if not names:
            raise AttributeError("feature_names_in_ is only there where a data frame with named columns was learned")
        return np.array(names, dtype=object)

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

    def __sklearn_is_fitted__(self) -> bool:
        now = self._snapshot_or_none()
        return now is not None and not now.is_empty

    def _snapshot_or_none(self) -> Snapshot | None:
        return getattr(self, "_snapshot", None)

    def _state(self) -> Snapshot:
        now = self._snapshot_or_none()
        if now is None:
            raise NotFittedError(f"this Learner must learn something first: call {action('fit')}")
        return now

    def _taught(self) -> Snapshot:
        """Return what is known, or raise :class:`NotFittedError` where nothing was learned yet."""
        now = self._state()
        if now.is_empty:
            raise NotFittedError("this model has learned nothing yet: teach it a class first")
        return now

    def _able(self, method: str) -> IncrementalClassifier:
        """Return the head, or raise :class:`UnsupportedError` if its method cannot do what is asked."""
        head = self._taught().head
        getattr(head, method)
        return head

    def _seed(self) -> int:
        state = self.random_state
        return int(state) if isinstance(state, (int, np.integer)) and not isinstance(state, bool) else 0

    # -- making parts ---------------------------------------------------------------------------------------

    def _recipe(self) -> HeadRecipe:
        return HeadRecipe(self.method, self.options)

    def _open_encoder(self) -> Encoder:
        return Encoder(
            self.backbone,
            weights=self.weights,
            preset=self.preset,
            device=self.device,
            recipe=self.recipe,
            automatic="final" if self.method == "scl-mgsm" else "auto",
        )

    # -- samples to features --------------------------------------------------------------------------------

    def _encoded(self, samples: Samples, encoder: Encoder, *, on_error: str | None = None) -> Features:
        now = self._snapshot_or_none()
        if now is not None and encoder is self._encoder:
            check_columns(samples.columns, now.columns)
        encoded = encoder.encode(samples, self.extract, cache=self.cache, on_error=on_error)
        width = encoder.spec.n_features if encoder.spec is not None else None
        if now is not None and not now.is_empty and encoder is self._encoder:
            width = now.head.n_features_in_
        if width is not None:
            check_width(encoded.X, width)
        return encoded

    def _blocks(self, chunks: Iterable[Samples], encoder: Encoder) -> Iterator[Block]:
        """Yield labelled samples as features, in blocks of bounded size where there are several chunks."""
        wanted: set[str] = set()
        kept: set[str] = set()

        def encoded() -> Iterator[Block]:
            for samples in chunks:
                labels, found = samples.required_labels(), self._encoded(samples, encoder)
                wanted.update(labels.tolist())
                kept.update(labels[found.rows].tolist())
                weights = None if samples.weights is None else samples.weights[found.rows]
                yield Block(found.X, labels[found.rows], weights, samples.label_kind).weighed()

        for block in gathered(encoded()):
            if len(block.labels):
                yield block
        lost = sorted(wanted - kept)
        if lost:
            raise InputError(f"every class must keep a sample that can be read, got none of {lost[0]!r}")


def check_width(X: NDArray[Any], width: int) -> None:
    """Raise :class:`InputError` if a head cannot take features."""
    if X.shape[1] != width:
        raise InputError(f"features must have {width} columns, got {X.shape[1]}")
