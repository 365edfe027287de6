"""Fit and update of a model, shard by shard: a layer from a sample, statistics of every shard, their sum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.archive import archive_digest, write_archive
from evergrow.core.errors import EngineError, InputError, ParameterError
from evergrow.core.files import locked
from evergrow.core.progress import meter
from evergrow.engine.job import Job, begin_job, extraction_settings
from evergrow.engine.manifest import Manifest
from evergrow.engine.reduction import Reduction, total_of
from evergrow.engine.shard_features import forget_opened, read_features
from evergrow.engine.stages import Running, Tally, check_workers, finish, finished_tally, run_shards
from evergrow.engine.tree import FAN_IN
from evergrow.engine.works import whole_archive, whole_features
from evergrow.features.base import BackboneSpec
from evergrow.learner.encoder import Encoder
from evergrow.learner.learner import Learner
from evergrow.learner.learning import Block
from evergrow.learner.sharded_fit import (
    adopt,
    check_mergeable,
    complete_fit,
    complete_update,
    deciding_settings,
    encoder_for,
    expecting,
    with_layer,
)


def fit(learner: Learner, manifest: Manifest, folder: Path, running: Running) -> Tally | None:
    """Let a learner forget everything and learn a data set.

    Parameters
    ----------
    learner : Learner
        What learns.
    manifest : Manifest
        The data.
    folder : Path
        Where results are kept.
    running : Running
        How it is run.

    Returns
    -------
    Tally or None
        What was learned; None where this was a share of the work and there is more to do.
    """
    check_mergeable(learner, fresh=True)
    encoder = encoder_for(learner, manifest.kind, manifest.widths)
    decisive = None if encoder.spec is None else encoder.spec.decisive()
    settings = {**deciding_settings(learner), **extraction_settings(learner), "backbone": decisive, "fan_in": FAN_IN}
    backbone = None if encoder.spec is None else _portable(encoder.spec)
    job = begin_job(Job(folder, manifest, "fit", settings, backbone))
    return _learned(learner, job, running, encoder)


def update(learner: Learner, manifest: Manifest, folder: Path, running: Running) -> Tally | None:
    """Let a learner learn a data set beside what it knows; arguments and result are those of :func:`fit`."""
    check_mergeable(learner, fresh=False)
    if learner.spec_ is not None:
        _portable(learner.spec_)
    start = learner.to_archive()
    settings = {"model": archive_digest(start), **extraction_settings(learner), "fan_in": FAN_IN}
    job = begin_job(Job(folder, manifest, "update", settings))
    template = expecting(learner.spawn(), sum(learner.n_samples_.values()) + manifest.rows)
    for path, archive in ((job.start, start), (job.template, template.to_archive())):
        if not _is_done(job) and whole_archive(path) is None:
            write_archive(path, archive)
    return _learned(learner, job, running, None)


def _portable(spec: BackboneSpec) -> dict[str, Any]:
    """Return the description of a backbone that any worker can load, or raise :class:`ParameterError`."""
    if spec.weights == "module":
        raise ParameterError(
            f"backbone must be one that workers can load by its name with engine, got the module {spec.name}"
        )
    return spec.to_dict()


def _is_done(job: Job) -> bool:
    return job.finished() is not None and job.model.is_file()


def _learned(learner: Learner, job: Job, running: Running, encoder: Encoder | None) -> Tally | None:
    if _is_done(job):
        adopt(learner, total_of(job.model, running.device))
        return finished_tally(job)
    try:
        if running.share is not None:
            _share(learner, job, running, encoder)
            return None
        with locked(job.folder):
            return _whole(learner, job, running, encoder)
    finally:
        forget_opened()


def _share(learner: Learner, job: Job, running: Running, encoder: Encoder | None) -> None:
    """Do the shards of a share, as far as the others allow: the layer needs the samples of all."""
    tally = _first_stage(job, running)
    if _template_is_there(learner, job, encoder, tally):
        run_shards(job, "statistics", Reduction(job, tally, running).missing(), running, "learning")


def _whole(learner: Learner, job: Job, running: Running, encoder: Encoder | None) -> Tally:
    check_workers(job, running)
    tally = _first_stage(job, running)
    if not _template_is_there(learner, job, encoder, tally):
        raise EngineError(
            "first samples of every shard must be there by now, but some are gone: was the folder changed?"
        )
    tally = Tally(unreadable=dict(job.manifest.unreadable))
    reduction = Reduction(job, tally, running)
    with meter("learning", len(job.manifest.shards), enabled=running.progress) as tick:
        path = reduction.run(tick)
    total = total_of(path, running.device)
    _check_counted(job, total, tally)
    sample = _sample(job, skipped=tally.failed)
    complete = complete_fit if job.work == "fit" else complete_update
    complete(learner, total, sample)
    learner.save(job.model)
    finish(job, tally, ("first", "statistics", "merged"))
    return tally


# -- the first samples ----------------------------------------------------------------------------------------


def _first_stage(job: Job, running: Running) -> Tally:
    """Compute the features of the first samples, shard by shard, where they are not there yet."""
    wanted = [shard.number for shard in job.manifest.shards if len(job.manifest.first_of(shard))]
    missing = [number for number in wanted if whole_features(job.result("first", number)) is None]
    return run_shards(job, "first", missing, running, "first samples")


def _template_is_there(learner: Learner, job: Job, encoder: Encoder | None, tally: Tally) -> bool:
    """Return whether there is a layer to learn with, growing it where all first samples are there."""
    if whole_archive(job.template) is not None:
        return True
    unread = {*tally.failed, *job.failures()} if job.skips else set()
    wanted = [
        shard for shard in job.manifest.shards if len(job.manifest.first_of(shard)) and shard.number not in unread
    ]
    if not all(job.result("first", shard.number).is_file() for shard in wanted):
        return False
    assert encoder is not None
    sample = _sample(job, skipped=unread)
    expecting(with_layer(learner, encoder, sample), job.manifest.rows).save(job.template)
    return True


def _sample(job: Job, skipped: Iterable[int]) -> Block:
    """Return the first samples of all shards but those that were left out."""
    found, out = [], set(skipped)
    for shard in job.manifest.shards:
        path = job.result("first", shard.number)
        if shard.number not in out and path.is_file():
            found.append((shard.number, read_features(path)))
    found = [(number, part) for number, part in found if len(part)]
    if not found:
        raise InputError("data must have at least one sample that can be read, got none")
    first, width = found[0][0], found[0][1].X.shape[1]
    for number, part in found:
        if part.X.shape[1] != width:
            raise EngineError(
                f"shards must have features of one width, got {width} in shard {first} and {part.X.shape[1]} in "
                f"shard {number}"
            )
    parts = [part for _, part in found]
    return Block(np.concatenate([part.X for part in parts]), np.concatenate([part.required_labels() for part in parts]))


# -- the end --------------------------------------------------------------------------------------------------


def _check_counted(job: Job, total: Learner, tally: Tally) -> None:
    """Raise unless every sample was counted once, and every class has one that could be read."""
    learned, told = sum(total.samples_by_name_.values()), sum(tally.rows.values())
    wanted = sum(shard.rows for shard in job.manifest.shards if shard.number not in tally.failed)
    if learned != told or told + tally.n_left_out != wanted:
        raise EngineError(
            f"every sample must be counted once, but of {wanted} samples {tally.n_left_out} were left out and "
            f"{learned} learned: delete {job.folder} and begin anew"
        )
    lost = sorted({name for names in tally.lost.values() for name in names} - set(total.samples_by_name_))
    if lost:
        raise InputError(f"every class must keep a sample that can be read, got none of {lost[0]!r}")
