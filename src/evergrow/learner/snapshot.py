"""Everything a learner has learned, as one record: it is replaced as a whole or not at all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.backbones.base import BackboneSpec
from evergrow.core.archive import Archive
from evergrow.core.errors import FileFormatError
from evergrow.heads.base import HEADS, IncrementalClassifier
from evergrow.learner.calibration import Calibration
from evergrow.learner.changes import Change
from evergrow.learner.tuning import Tuning, from_meta, to_meta

KIND = "Learner"
_HEAD, _SOLUTION, _TUNER = "head.", "solution.", "tuner."


@dataclass(frozen=True)
class Snapshot:
    """What a learner knows.

    Parameters
    ----------
    head : IncrementalClassifier
        The classifier on feature vectors.
    spec : BackboneSpec or None
        What computes the features; None where samples are features.
    counts : dict of str to int
        Samples learned of each class.
    calibration : Calibration
        Novelty of known things.
    history : tuple of Change
        All changes that led here.
    trail : tuple of int
        Revisions of the model file that led here, the latest last; see :mod:`evergrow.learner.modelfile`.
    about : dict
        The method and the settings that the head was made with.
    tuning : Tuning or None
        What the backbone was adapted with, where it was.
    """

    head: IncrementalClassifier
    spec: BackboneSpec | None
    counts: dict[str, int]
    calibration: Calibration = field(default_factory=Calibration)
    history: tuple[Change, ...] = ()
    trail: tuple[int, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None

    @property
    def revision(self) -> int:
        """Number of the latest change; 0 before the first."""
        return self.history[-1].revision if self.history else 0

    @property
    def classes(self) -> NDArray[np.str_]:
        """Names of the classes, sorted."""
        return np.asarray(self.head.classes_, dtype=np.str_)

    def after(self, change: Change, **values: Any) -> Snapshot:
        """Return what is known after a change."""
        history = (*self.history, change.numbered(self.revision + 1))
        return dataclasses.replace(self, history=history, **values)

    def to_archive(self, settings: dict[str, Any]) -> Archive:
        """Return what a file holds: numbers, plain settings and never a sample."""
        parts = {"head": self.head.to_archive()}
        solution = self.head.solution()
        if solution is not None:
            parts["solution"] = solution
        tensors = {}
        if self.tuning is not None:
            tensors = {f"{_TUNER}{name}": tensor for name, tensor in self.tuning.tuner.tensors.items()}
        meta = {
            "settings": settings,
            "about": self.about,
            "backbone": None if self.spec is None else self.spec.to_dict(),
            "tuning": None if self.tuning is None else to_meta(self.tuning),
            "labels": self.classes.tolist(),
            "counts": self.counts,
            "calibration": self.calibration.to_list(),
            "history": [change.to_dict() for change in self.history],
            "revision": self.revision,
            "trail": list(self.trail),
        }
        return Archive(KIND, meta, tensors, parts)

    @classmethod
    def from_archive(cls, archive: Archive, device: str | torch.device | None, name: str) -> Snapshot:
        """Return what :meth:`to_archive` wrote, or raise :class:`FileFormatError`."""
        try:
            meta = archive.meta
            spec = None if meta["backbone"] is None else BackboneSpec.from_dict(meta["backbone"])
            parts, inside = _split(archive.tensors), dict(archive.parts)
            if "head" in meta:  # as 0.1 wrote it
                inside["head"] = Archive(meta["head"]["kind"], meta["head"]["meta"], parts[_HEAD])
                inside["solution"] = Archive("head-solution", meta["solution"], parts[_SOLUTION])
            head = HEADS[meta["settings"]["method"]].from_archive(inside["head"], device, name=name)
            if head.can("solution") and "solution" in inside:
                head.adopt_solution(inside["solution"], name=f"{name}: solution")
            tuned = meta.get("tuning")  # files of versions that did not adapt have no such entry
            return cls(
                head=head,
                spec=spec,
                counts={str(key): int(value) for key, value in meta["counts"].items()},
                calibration=Calibration.from_list(meta["calibration"]),
                history=tuple(Change.from_dict(values) for values in meta["history"]),
                trail=tuple(int(number) for number in meta["trail"]),
                about=dict(meta["about"]),
                tuning=None if tuned is None else from_meta(tuned, parts[_TUNER]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{name} must be a whole model, but it lacks or garbles {error}") from error


def _split(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    return {
        prefix: {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in (_HEAD, _SOLUTION, _TUNER)
    }
