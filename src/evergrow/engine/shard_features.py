"""From a shard to labelled features, in a worker: source and backbone are opened once per process and kept."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, DataWarning, FileFormatError, ImageError, InputError
from evergrow.core.record import Spec, record, require
from evergrow.data import Samples, Shard, Source
from evergrow.engine.job import EXTRACTION, Job, known_job
from evergrow.engine.runners import ShardError
from evergrow.features import Features
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.learner.learner import Learner


@record("engine-features")
@dataclass(frozen=True, eq=False)
class ShardFeatures:
    """Features of the samples of a shard that could be read; what the files in ``first/`` hold.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The features.
    names : tuple of str
        Names of the samples.
    classes : tuple of str or None
        Their classes.
    left_out : tuple of (str, str)
        Name of every sample that could not be read, and why.
    lost : tuple of str
        Classes all of whose samples in the shard could not be read.
    """

    X: Annotated[NDArray[np.float32], Spec(("n", None), "float32")]
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    left_out: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a file has not one name and class for every row."""
        labelled = self.classes is None or len(self.classes) == len(self.X)
        require(labelled and len(self.names) == len(self.X), "its samples are not as many as their names or classes")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def labels(self) -> NDArray[np.str_] | None:
        """Their classes as an array."""
        return None if self.classes is None else np.array(self.classes, dtype=np.str_)

    def required_labels(self) -> NDArray[np.str_]:
        """Return the classes, or raise :class:`InputError` where there are none."""
        if self.labels is None:
            raise InputError("data must have labels, got none")
        return self.labels

    def report(self) -> dict[str, Any]:
        """Return what a task reports of it."""
        return {"rows": len(self), "left_out": [list(pair) for pair in self.left_out], "lost": list(self.lost)}

    def and_more(self, other: ShardFeatures) -> ShardFeatures:
        """Return these labelled samples with others of the same shard after them."""
        classes = (*(self.classes or ()), *(other.classes or ()))
        return ShardFeatures(
            np.concatenate([self.X, other.X]),
            (*self.names, *other.names),
            classes,
            (*self.left_out, *other.left_out),
            tuple(sorted({*self.lost, *other.lost}.difference(classes))),
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
        Processes that decode images. By default this process on a CPU, and as many as are of use on a GPU.
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
        data = replace(data, row_names=tuple(data.names()))
        if rows is not None:
            data = data.take(rows)
        if data.features is not None:
            encoded = Features(data.features, np.arange(len(data)))
            finite = np.isfinite(encoded.X).all(axis=1)
            if not finite.all():
                bad = data.row_names[int(finite.argmin())]
                raise InputError(f"features must be finite, got NaN or infinity, first in {bad}")
        else:
            encoded = _encoded(job, data, backbone_of(str(job.folder), job.key, device, weights), decoders)
    except (InputError, FileFormatError, DatasetNotFoundError) as error:
        file = shard.where.get("file")
        place = f" ({file})" if isinstance(file, str) else ""
        raise ShardError(f"shard {shard.number}{place} cannot be read: {error}") from error
    classes, lost = None, set[str]()
    if data.labels is not None:
        classes = tuple(map(str, data.labels[encoded.rows].tolist()))
        lost = set(map(str, data.labels.tolist())).difference(classes)
    names = tuple(data.row_names[row] for row in encoded.rows)
    X = np.ascontiguousarray(encoded.X, dtype=np.float32)
    return ShardFeatures(X, names, classes, encoded.failures, tuple(sorted(lost)))


def _encoded(job: Job, data: Samples, backbone: Backbone, decoders: Any) -> Features:
    from evergrow.features import encode

    if decoders is None:
        decoders = 0 if backbone.device.type == "cpu" else "auto"
    settings = {name: job.settings[name] for name in EXTRACTION if name in job.settings}
    failures: tuple[tuple[str, str], ...] = ()
    if len(data):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # the job names in the end what was left out
                return encode(backbone, data.raw_items(), cache=False, workers=decoders, **settings)
        except ImageError as error:
            if not job.skips:
                raise
            failures = tuple((name, str(error)) for name in data.row_names)  # none can be read
    return Features(np.empty((0, backbone.n_features), dtype=np.float32), np.empty(0, dtype=np.int64), failures)


# -- what a process opens once --------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _source(folder: str, key: str) -> Source:
    from evergrow.data import source_from

    return source_from(known_job(folder, key).manifest.source)


@lru_cache(maxsize=2)
def backbone_of(folder: str, key: str, device: str, weights: str | None = None) -> Backbone:
    """Return the start model's backbone, or else the one described in job.json."""
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
