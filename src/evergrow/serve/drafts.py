"""A model that has not begun: its settings and, until there are two classes, the features of the first one.

A head begins with two classes at least, and people show one after the other. What was taught before waits here, as
feature vectors and never as samples, in a file of its own that is replaced in one step; the model file takes its place.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, read_archive, register_kind, write_archive
from evergrow.core.errors import LabelError, ParameterError, UnlearnError
from evergrow.core.fields import Fields
from evergrow.core.record import from_values
from evergrow.core.registry import nearest
from evergrow.core.seeding import generator
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.learner.changes import Change, fingerprint
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import counted

KIND = register_kind("serve/draft")
SUFFIX = ".draft"


@dataclass(frozen=True, eq=False)
class Draft:
    """A model that has learned less than two classes.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What it takes.
    spec : BackboneSpec or None
        The backbone it will be made with.
    method : str
        The head.
    options : dict
        Its options.
    features : ndarray of shape (n, d)
        What was taught so far.
    labels : ndarray of str of shape (n,)
        Its class.
    history : tuple of Change
        What happened so far; revisions of a draft count on their own.
    parts : dict of str to Archive
        What others keep with it, handed on to the model.
    """

    kind: str
    spec: BackboneSpec | None
    method: str = "evergrow"
    options: dict[str, Any] = field(default_factory=dict)
    features: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    labels: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, dtype=np.str_))
    history: tuple[Change, ...] = ()
    parts: dict[str, Archive] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Samples of each class."""
        return counted({}, self.labels)

    @property
    def revision(self) -> int:
        """Number of the latest change."""
        return self.history[-1].revision if self.history else 0

    @property
    def is_ready(self) -> bool:
        """Whether there is enough to begin with."""
        return len(self.counts) >= 2

    def taught(self, X: NDArray[Any], labels: NDArray[np.str_]) -> Draft:
        """Return the draft with more samples."""
        if len(self.labels) and X.shape[1] != self.features.shape[1]:
            raise ParameterError(f"rows must have {self.features.shape[1]} columns, got {X.shape[1]}")
        features = np.concatenate([self.features.reshape(-1, X.shape[1]), X]).astype(X.dtype)
        new = np.setdiff1d(labels, self.labels).tolist()
        change = Change.now("update", len(labels), new, data=[fingerprint(X, labels)])
        return self.after(change, features, np.concatenate([self.labels, labels]))

    def unlearned(self, X: NDArray[Any], labels: NDArray[np.str_]) -> Draft:
        """Return the draft without samples that are in it."""
        self._require_known(labels.tolist())
        left = list(range(len(self.labels)))
        for row, label in zip(X, labels, strict=True):
            same = (i for i in left if self.labels[i] == label and np.array_equal(self.features[i], row))
            place = next(same, None)
            if place is None:
                raise UnlearnError(
                    f"samples must have been learned to be unlearned, got one of {str(label)!r} that was not"
                )
            left.remove(place)
        gone = sorted(set(labels.tolist()) - set(self.labels[left].tolist()))
        return self.after(Change.now("unlearn", len(labels), gone), self.features[left], self.labels[left])

    def forgotten(self, names: Iterable[str]) -> Draft:
        """Return the draft without whole classes."""
        gone = sorted(set(names))
        self._require_known(gone)
        kept = ~np.isin(self.labels, gone)
        change = Change.now("forget", int((~kept).sum()), gone)
        return self.after(change, self.features[kept], self.labels[kept])

    def renamed(self, names: Mapping[str, str], what: Any) -> Draft:
        """Return the draft with other names of classes."""
        self._require_known(names)
        labels = np.array([names.get(name, name) for name in self.labels.tolist()], dtype=np.str_)
        moved = int(np.isin(self.labels, list(names)).sum())
        change = Change.now(what, moved, sorted(set(names.values())), names=dict(names))
        return self.after(change, self.features, labels)

    def noted(self, extra: Mapping[str, Any], note: str = "") -> Draft:
        """Return the draft with further fields of its latest change."""
        last = self.history[-1]
        last = dataclasses.replace(last, extra={**last.extra, **extra}, note=note or last.note)
        return dataclasses.replace(self, history=(*self.history[:-1], last))

    def after(self, change: Change, features: NDArray[Any], labels: NDArray[np.str_]) -> Draft:
        """Return the draft after a change."""
        history = (*self.history, change.numbered(self.revision + 1))
        return dataclasses.replace(self, features=features, labels=labels, history=history)

    def _require_known(self, names: Iterable[str]) -> None:
        known = set(self.labels.tolist())
        for name in names:
            if name not in known:
                raise LabelError(f"class must be one that was learned, got {name!r}; nearest: {nearest(name, known)}")

    def begun(self, backbone: Backbone | None, device: str) -> Learner:
        """Return a learner that has learned what was taught so far."""
        learner = Learner(
            backbone,
            self.method,
            options=dict(self.options) or None,
            device=device,
            cache=False,
        )
        learner.fit((self.features, self.labels))
        for name, part in self.parts.items():
            learner.attach(name, part)
        return learner

    def rehearse(self, device: str) -> None:
        """Begin with noise and keep nothing of it but the random directions, which are the same for every sample."""
        if self.spec is None:  # the width is open
            return
        noise = generator(0, "rehearsal")
        rows = torch.rand(4, self.spec.n_features, generator=noise).numpy()
        dataclasses.replace(self, spec=None, features=rows, labels=np.asarray(list("aabb")), parts={}).begun(
            None, device
        )

    # -- files --------------------------------------------------------------------------------------------------

    def write(self, path: Path) -> None:
        """Write the file in one step; it is on disk when this returns."""
        meta = {
            "sample_kind": self.kind,
            "backbone": None if self.spec is None else self.spec.to_dict(),
            "method": self.method,
            "options": self.options,
            "labels": self.labels.tolist(),
            "history": [change.to_dict() for change in self.history],
        }
        tensors = {"features": torch.from_numpy(np.ascontiguousarray(self.features))}
        write_archive(path, KIND.archive(meta, tensors, self.parts))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Draft:
        """Read what :meth:`write` wrote, or raise :class:`FileFormatError`."""
        fields: Fields = read_archive(path).open(KIND.name, name=os.fspath(path))
        labels = fields.texts("labels")
        features = fields.tensor("features", dtype=None).numpy()
        fields.require(features.ndim == 2 and len(features) == len(labels), "it has other features than labels")
        return cls(
            fields.text("sample_kind", choices=("image", "text", "features")),
            BackboneSpec.from_dict(fields.mapping("backbone")) if fields.has("backbone") else None,
            fields.text("method"),
            fields.mapping("options"),
            features,
            np.asarray(labels, dtype=np.str_),
            tuple(from_values(Change, entry, "a change") for entry in fields.values("history")),
            fields.unknown_parts(),
        )
