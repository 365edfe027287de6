"""Tables of a whole data set, one Parquet file per shard: features, and a model's answers.

The folder of the files is one table for whatever reads Parquet. Beside it, ``told/`` says of every file how many bytes
it has, their checksum and what was left out: a file is whole if it agrees.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, ParameterError
from evergrow.core.validation import check_number
from evergrow.core.version import __version__
from evergrow.engine.asking import ask_shards, asked_model, asking_job
from evergrow.engine.job import Job, begin_job
from evergrow.engine.manifest import Manifest, write_json
from evergrow.engine.parquet_out import write_answers, write_features
from evergrow.engine.shard_features import ShardFeatures
from evergrow.engine.stages import Running, Tally
from evergrow.engine.works import features_of, prepared, register_work
from evergrow.features import Features
from evergrow.features.base import BackboneSpec
from evergrow.learner.learner import Learner


def extract_features(
    spec: BackboneSpec,
    manifest: Manifest,
    folder: Path,
    running: Running,
    *,
    on_error: str = "raise",
    batch_size: int | None = None,
    decode: str = "cpu",
) -> Tally | None:
    """Write the features of a data set into ``folder/features``.

    Parameters
    ----------
    spec : BackboneSpec
        What computes them; every worker loads it by its name.
    manifest : Manifest
        Images or texts.
    folder : Path
        Where results are kept.
    running : Running
        How it is run.
    on_error : {"raise", "skip"}
        What to do about what cannot be read.
    batch_size : int, optional
        Items per batch.
    decode : {"cpu", "gpu"}
        What decodes JPEG files.

    Returns
    -------
    Tally or None
        What was written; None where this was a share of the work.
    """
    if manifest.kind != spec.kind:
        raise ParameterError(f"data must be {spec.kind}s for {spec.name}, got {manifest.kind}")
    if spec.weights == "module":
        raise ParameterError("backbone must be one that workers can load by its name, got a module")
    settings = {
        "backbone": spec.decisive(),
        "on_error": on_error,
        "batch_size": batch_size,
        "decode": decode,
        "evergrow": __version__,
    }
    return ask_shards(begin_job(Job(folder, manifest, "features", settings, spec.to_dict())), running)


def predict(
    learner: Learner,
    manifest: Manifest,
    folder: Path,
    running: Running,
    *,
    top: int = 1,
    false_alarm: float | None = None,
) -> Tally | None:
    """Write a model's answers about a data set into ``folder/predict``.

    Parameters
    ----------
    learner : Learner
        The model.
    manifest : Manifest
        The data; labels are not needed, and written beside the answers where they are there.
    folder : Path
        Where results are kept.
    running : Running
        How it is run.
    top : int
        How many classes to give of each.
    false_alarm : float, optional
        Share of known things that may be called unknown; None rejects nothing.

    Returns
    -------
    Tally or None
        What was written; None where this was a share of the work.
    """
    check_number("top", top, low=1, integer=True)
    if false_alarm is not None:
        learner.threshold(false_alarm)  # raises where there is none, before any work is done
    job = asking_job(learner, manifest, folder, "predict", top=top, false_alarm=false_alarm)
    return ask_shards(job, running)


@register_work("features")
def features_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the features of a shard."""
    widths = BackboneSpec.from_dict(job.backbone or {}).blocks.widths

    def write(folder: Path, file: str, found: ShardFeatures) -> None:
        write_features(folder, file, names=found.names, features=found.X, labels=found.labels, widths=widths)

    return _written(job, about, write)


@register_work("predict")
def predict_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write the answers about a shard."""

    def write(folder: Path, file: str, found: ShardFeatures) -> None:
        features = Features(found.X, np.arange(len(found)))
        answers = asked_model(job, about).ask(features, false_alarm=job.settings["false_alarm"])
        top = int(job.settings["top"])
        write_answers(folder, file, names=found.names, answers=answers, labels=found.labels, top=top)

    return _written(job, about, write)


def _written(job: Job, about: dict[str, Any], write: Callable[[Path, str, ShardFeatures], None]) -> dict[str, Any]:
    """Write the file of a shard unless it is there and whole, and then what there is to tell of it."""
    target = prepared(job.result(job.work, about["number"], ".parquet"))
    note = prepared(job.result("told", about["number"], ".json"))
    there = _whole(target, note)
    if there is not None:
        return there
    found = features_of(job, about)
    write(target.parent, target.name, found)
    write_json(note, {"told": found.told(), **_mark(target)})
    return found.told()


def _whole(target: Path, note: Path) -> dict[str, Any] | None:
    """Return what was told of a file that is whole; None where it is not, or not there."""
    try:
        values = parse_json(note.read_bytes(), os.fspath(note))
        mark = _mark(target)
    except (OSError, FileFormatError):
        return None
    right = isinstance(values, dict) and isinstance(values.get("told"), dict)
    return dict(values["told"]) if right and {**values, **mark} == values else None


def _mark(path: Path) -> dict[str, Any]:
    """Return the size and the checksum of a file."""
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "checksum": digest.hexdigest()}
