"""Fit and update of a model, shard by shard: a layer from a sample, statistics of every shard, their sum."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from evergrow.core.archive import archive_digest, read_archive, write_archive
from evergrow.core.errors import EngineError, InputError
from evergrow.core.files import locked
from evergrow.core.progress import meter
from evergrow.engine.job import Job, Manifest, begin_job, extraction_settings
from evergrow.engine.job_steps import JobReport, RunOptions, finish, finished_report, portable, run_shards
from evergrow.engine.merge import FAN_IN, ShardMerge
from evergrow.engine.shard_features import forget_opened
from evergrow.engine.worker_tasks import if_whole, read_features
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
    with_layer,
)


def fit(learner: Learner, manifest: Manifest, folder: Path, options: RunOptions) -> JobReport | None:
    """Let a learner forget everything and learn a data set.

    Parameters
    ----------
    learner : Learner
        What learns.
    manifest : Manifest
        The data.
    folder : Path
        Where results are kept.
    options : RunOptions
        How it is run.

    Returns
    -------
    JobReport or None
        What was learned; None where this was a share of the work and there is more to do.
    """
    check_mergeable(learner, fresh=True)
    encoder = encoder_for(learner, manifest.kind, manifest.widths)
    decisive = None if encoder.spec is None else encoder.spec.decisive()
    settings = {**deciding_settings(learner), **extraction_settings(learner), "backbone": decisive, "fan_in": FAN_IN}
    backbone = None if encoder.spec is None else portable(encoder.spec)
    job = begin_job(Job(folder, manifest, "fit", settings, backbone))
    return _learned(learner, job, options, encoder)


def update(learner: Learner, manifest: Manifest, folder: Path, options: RunOptions) -> JobReport | None:
    """Let a learner learn a data set beside what it knows; arguments and result are those of :func:`fit`."""
    check_mergeable(learner, fresh=False)
    if learner.spec_ is not None:
        portable(learner.spec_)
    start = learner.to_archive()
    settings = {"model": archive_digest(start), **extraction_settings(learner), "fan_in": FAN_IN}
    job = begin_job(Job(folder, manifest, "update", settings))
    template = learner.spawn()
    template.head_.expecting(sum(learner.n_samples_.values()) + manifest.rows)
    for path, archive in ((job.start, start), (job.template, template.to_archive())):
        if not _is_done(job) and if_whole(read_archive, path) is None:
            write_archive(path, archive)
    return _learned(learner, job, options, None)


def _is_done(job: Job) -> bool:
    return job.finished() is not None and job.model.is_file()


def _learned(learner: Learner, job: Job, options: RunOptions, encoder: Encoder | None) -> JobReport | None:
    if _is_done(job):
        adopt(learner, _loaded(job.model, options))
        return finished_report(job)
    try:
        if options.share is None:
            with locked(job.folder):
                return _whole(learner, job, options, encoder)
        report = _first_samples(job, options)
        if _template_is_there(learner, job, encoder, report):  # else other shares have to come first
            run_shards(job, "statistics", ShardMerge(job, report, options).missing(), options, "learning")
        return None
    finally:
        forget_opened()


def _whole(learner: Learner, job: Job, options: RunOptions, encoder: Encoder | None) -> JobReport:
    report = _first_samples(job, options)
    if not _template_is_there(learner, job, encoder, report):
        raise EngineError(
            "first samples of every shard must be there by now, but some are gone: was the folder changed?"
        )
    report = JobReport(unreadable=dict(job.manifest.unreadable))
    merge = ShardMerge(job, report, options)
    with meter("learning", len(job.manifest.shards), enabled=options.progress) as tick:
        path = merge.run(tick)
    total = _loaded(path, options)
    _check_counted(job, total, report)
    complete = complete_fit if job.work == "fit" else complete_update
    complete(learner, total, _sample(job, skipped=report.failed))
    learner.save(job.model)
    finish(job, report, ("first", "statistics", "merged"))
    return report


def _loaded(path: Path, options: RunOptions) -> Learner:
    return Learner.load(path, device=None if options.device == "auto" else options.device, cache=False)


def _first_samples(job: Job, options: RunOptions) -> JobReport:
    """Compute the features of the first samples, shard by shard, where they are not there yet."""
    wanted = [shard.number for shard in job.manifest.shards if len(job.manifest.first_of(shard))]
    missing = [number for number in wanted if if_whole(read_features, job.result("first", number)) is None]
    return run_shards(job, "first", missing, options, "first samples")


def _template_is_there(learner: Learner, job: Job, encoder: Encoder | None, report: JobReport) -> bool:
    """Return whether there is a layer to learn with, growing it where all first samples are there."""
    if if_whole(read_archive, job.template) is not None:
        return True
    unread = {*report.failed, *job.failures()} if job.skips else set()
    wanted = [
        shard for shard in job.manifest.shards if len(job.manifest.first_of(shard)) and shard.number not in unread
    ]
    if not all(job.result("first", shard.number).is_file() for shard in wanted):
        return False
    assert encoder is not None
    sample = _sample(job, skipped=unread)
    template = with_layer(learner, encoder, sample)
    template.head_.expecting(job.manifest.rows)
    template.save(job.template)
    return True


def _sample(job: Job, skipped: Iterable[int]) -> Block:
    """Return the first samples of all shards but those that were left out."""
    numbers = sorted({shard.number for shard in job.manifest.shards}.difference(skipped))
    paths = {number: job.result("first", number) for number in numbers}
    found = {number: read_features(path) for number, path in paths.items() if path.is_file()}
    found = {number: part for number, part in found.items() if len(part)}
    if not found:
        raise InputError("data must have at least one sample that can be read, got none")
    first, width = next((number, part.X.shape[1]) for number, part in found.items())
    for number, part in found.items():
        if part.X.shape[1] != width:
            raise EngineError(
                f"shards must have features of one width, got {width} in shard {first} and {part.X.shape[1]} in "
                f"shard {number}"
            )
    labels = np.concatenate([part.required_labels() for part in found.values()])
    return Block(np.concatenate([part.X for part in found.values()]), labels)


def _check_counted(job: Job, total: Learner, report: JobReport) -> None:
    """Raise unless every sample was counted once, and every class has one that could be read."""
    learned, told = sum(total.samples_by_name_.values()), sum(report.rows.values())
    wanted = sum(shard.rows for shard in job.manifest.shards if shard.number not in report.failed)
    left_out = len(report.samples_left_out())
    if learned != told or told + left_out != wanted:
        raise EngineError(
            f"every sample must be counted once, but of {wanted} samples {left_out} were left out and "
            f"{learned} learned: delete {job.folder} and begin anew"
        )
    lost = sorted({name for names in report.lost.values() for name in names} - set(total.samples_by_name_))
    if lost:
        raise InputError(f"every class must keep a sample that can be read, got none of {lost[0]!r}")
