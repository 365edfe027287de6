"""From a shard to labelled features, in a worker: source and backbone are opened once per process and kept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, DataWarning, FileFormatError, ImageError, InputError
from evergrow.core.record import Spec, read_record, record, require, write_record
from evergrow.data import Samples, Shard, Source
from evergrow.engine.job import EXTRACTION, Job, ShardError, known_job
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.learner.learner import Learner

Failures = tuple[tuple[str, str], ...]
"""Names of samples that could not be read, and why."""


@dataclass(frozen=True, eq=False)
class ShardFeatures:
    """Features of the samples of a shard that could be read.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The features.
    names : tuple of str
        Names of the samples.
    labels : ndarray of str of shape (n,) or None
        Their classes.
    left_out : tuple of (str, str)
        Name of every sample that could not be read, and why.
    lost : tuple of str
        Classes all of whose samples in the shard could not be read.
    """

    X: NDArray[np.float32]
    names: tuple[str, ...]
    labels: NDArray[np.str_] | None
    left_out: Failures = ()
    lost: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.X)

    def required_labels(self) -> NDArray[np.str_]:
        """Return the classes, or raise :class:`InputError` where there are none."""
        if self.labels is None:
            raise InputError("data must have labels, got none")
        return self.labels

    def told(self) -> dict[str, Any]:
        """Return what a work tells of it."""
        return {
            "rows": len(self),
            "left_out": [list(pair) for pair in self.left_out],
            "lost": list(self.lost),
        }

    def and_more(self, other: ShardFeatures) -> ShardFeatures:
        """Return these samples with others of the same shard after them."""
        labels = None
        if self.labels is not None and other.labels is not None:
            labels = np.concatenate([self.labels, other.labels])
        kept = set() if labels is None else set(labels.tolist())
        return ShardFeatures(
            np.concatenate([self.X, other.X]),
            (*self.names, *other.names),
            labels,
            (*self.left_out, *other.left_out),
            tuple(sorted({*self.lost, *other.lost} - kept)),
        )


def shard_features(
    job: Job,
    shard: Shard,
    rows: NDArray[np.int64] | None = None,
    *,
    device: str = "auto",
    decoders: Any = None,
    weights: str | None = None,
) -> ShardFeatures:
    """Return the features of a shard, or of some rows of it.

    Parameters
    ----------
    job : Job
        Data, backbone and settings.
    shard : Shard
        The part.
    rows : ndarray of int, optional
        Rows of it, ascending; all by default.
    device : str
        Where to compute.
    decoders : int, "auto" or None
        Processes that decode images; None: in this one, but for a GPU in as many as it has use for.
    weights : str, optional
        Where the backbone's weights are, if not where they were.

    Raises
    ------
    ShardError
        If the shard cannot be read, or, unless the job skips such, an item of it.
    """
    try:
        data = _source(str(job.folder), job.key).read(shard)
        if len(data) != shard.rows:
            raise InputError(f"it must have {shard.rows} samples as in the manifest, got {len(data)}")
        chosen = _Chosen(data, np.arange(shard.rows) if rows is None else rows)
        if data.features is not None:
            return chosen.vectors(data.features)
        return _encoded(job, chosen, backbone_of(str(job.folder), job.key, device, weights), decoders)
    except (InputError, FileFormatError, DatasetNotFoundError) as error:
        raise ShardError(f"shard {shard.number}{_place(shard)} cannot be read: {error}") from error


def _place(shard: Shard) -> str:
    """Return the file of a shard, where it has one, for messages."""
    named = shard.where.get("file")
    return f" ({named})" if isinstance(named, str) else ""


class _Chosen:
    """Some rows of the data of a shard."""

    def __init__(self, data: Samples, rows: NDArray[np.int64]) -> None:
        self.items = None if data.items is None else data.items.take(rows)
        self.rows = rows
        names = data.names()
        self.names = tuple(names[int(row)] for row in rows)
        self.labels = None if data.labels is None else np.asarray(data.labels, dtype=np.str_)[rows]

    def vectors(self, features: NDArray[Any]) -> ShardFeatures:
        """Return rows that are features already."""
        X = np.asarray(features[self.rows], dtype=np.float32)
        if not np.isfinite(X).all():
            bad = self.names[int(np.isfinite(X).all(axis=1).argmin())]
            raise InputError(f"features must be finite, got NaN or infinity, first in {bad}")
        return ShardFeatures(X, self.names, self.labels)

    def kept(self, X: NDArray[np.float32], rows: NDArray[np.int64], failures: Failures) -> ShardFeatures:
        """Return the features of those rows that could be read."""
        names = tuple(self.names[int(row)] for row in rows)
        if self.labels is None:
            return ShardFeatures(X, names, None, failures)
        labels = self.labels[rows]
        lost = tuple(np.setdiff1d(self.labels, labels).tolist())
        return ShardFeatures(X, names, labels, failures, lost)


def _encoded(job: Job, chosen: _Chosen, backbone: Backbone, decoders: Any) -> ShardFeatures:
    from evergrow.features import encode

    if chosen.items is None:
        raise InputError("it must hold images, texts or features, got none of them")
    nothing, no_rows = np.empty((0, backbone.n_features), dtype=np.float32), np.empty(0, dtype=np.int64)
    if not len(chosen.rows):
        return chosen.kept(nothing, no_rows, ())
    if decoders is None:
        decoders = 0 if backbone.device.type == "cpu" else "auto"
    settings = {name: job.settings[name] for name in EXTRACTION if name in job.settings}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the job tells in the end what was left out
            done = encode(backbone, chosen.items, cache=False, workers=decoders, **settings)
    except ImageError as error:
        if not job.skips:
            raise
        return chosen.kept(nothing, no_rows, tuple((name, str(error)) for name in chosen.names))  # none can be read
    return chosen.kept(np.ascontiguousarray(done.X), done.rows, done.failures)


# -- what a process opens once --------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _source(folder: str, key: str) -> Source:
    from evergrow.data import source_from

    return source_from(known_job(folder, key).manifest.source)


@lru_cache(maxsize=2)
def backbone_of(folder: str, key: str, device: str, weights: str | None = None) -> Backbone:
    """Return the backbone of a job: that of the model that it began with, or the one that it describes."""
    job = known_job(folder, key)
    if job.start.is_file():
        found = loaded_model(str(job.start), key, device, weights).backbone_()
        if found is not None:
            return found  # type: ignore[no-any-return]
    if job.backbone is None:
        raise InputError("samples must be feature vectors, since the job has no backbone, got images or texts")
    from evergrow.features.backbones import backbone_from_spec

    return backbone_from_spec(BackboneSpec.from_dict(job.backbone), weights=weights, device=device)


@lru_cache(maxsize=4)
def loaded_model(path: str, key: str, device: str, weights: str | None = None) -> Learner:
    """Return a model of a job; it is not to be changed."""
    return Learner.load(path, weights=weights, device=None if device == "auto" else device, cache=False)


def forget_opened() -> None:
    """Let go of sources, backbones and models, for a process that goes on to something else."""
    for opened in (_source, backbone_of, loaded_model, known_job):
        opened.cache_clear()


# -- files ----------------------------------------------------------------------------------------------------


@record("engine-features")
@dataclass(frozen=True, eq=False)
class _FeaturesFile:
    X: Annotated[NDArray[np.float32], Spec(("n", None), "float32")]
    codes: Annotated[NDArray[np.int64], Spec(("n",), "int64")]
    classes: tuple[str, ...]
    names: tuple[str, ...]
    left_out: Failures
    lost: tuple[str, ...]

    def check(self) -> None:
        require(bool(((self.codes >= 0) & (self.codes < len(self.classes))).all()), "a class has no name")
        require(len(self.names) == len(self.X), "its samples are not as many as their names")


def write_features(path: Path, found: ShardFeatures) -> None:
    """Write features to a file; the same ones give the same bytes."""
    classes, codes = np.unique(found.required_labels(), return_inverse=True)
    held = _FeaturesFile(
        found.X, codes.astype(np.int64), tuple(classes.tolist()), found.names, found.left_out, found.lost
    )
    write_record(path, held)


def read_features(path: Path) -> ShardFeatures:
    """Return the features of a file, or raise :class:`FileFormatError`."""
    held = read_record(_FeaturesFile, path)
    labels = np.array(held.classes, dtype=np.str_)[held.codes] if held.classes else np.empty(0, dtype=np.str_)
    return ShardFeatures(held.X, held.names, labels, held.left_out, held.lost)
