"""Fit and update a model shard by shard.

A fit has four steps. Workers encode a sample of the data (the first samples). This
process, the driver, grows the layer on them. Workers compute the statistics of every
shard. The statistics are summed; see :mod:`evergrow.engine.shard_merge`. An update
skips the second step, because it uses the layer of the model. Both calibrate the model
on the first samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import EngineError, InputError
from evergrow.core.files import locked
from evergrow.core.progress import meter
from evergrow.data import source_from
from evergrow.engine.double_labels import compare_shard_digests
from evergrow.engine.job import (
    Job,
    JobReport,
    Manifest,
    begin_job,
    extraction_settings,
)
from evergrow.engine.job_steps import (
    EngineRunOptions,
    finish_job,
    model_job,
    portable_description,
    run_shards,
)
from evergrow.engine.shard_merge import FAN_IN, ShardMerge
from evergrow.engine.worker_tasks import (
    ShardFeatures,
    existing_first_features,
    read_or_none,
    release_opened,
)
from evergrow.learner import empty_copy
from evergrow.learner.encoder import Encoder
from evergrow.learner.learner import Learner
from evergrow.learner.learning import LabelledRows
from evergrow.learner.sharded_fit import (
    adopt,
    check_mergeable,
    complete_fit,
    complete_update,
    deciding_settings,
    encoder_for,
    with_layer,
)


def fit(
    learner: Learner, manifest: Manifest, folder: Path, options: EngineRunOptions
) -> JobReport:
    """Fit a learner from scratch on a data set, or resume an interrupted fit.

    Parameters
    ----------
    learner : Learner
        The learner. Changed in place at the end; everything it knew is replaced.
    manifest : Manifest
        The data.
    folder : Path
        Folder of the job. If it has a finished job of the same data and settings, only
        the result is loaded.
    options : EngineRunOptions
        How the job is run.

    Returns
    -------
    JobReport
        The samples that were learned and those left out.

    Raises
    ------
    UnsupportedError
        If learners of this method cannot be merged.
    EngineError
        If the folder holds another job, or a task fails. Finished results are kept.
    InputError
        If a class has no readable sample.
    """
    check_mergeable(learner, fresh=True)
    encoder = encoder_for(
        learner,
        manifest.kind,
        manifest.widths,
        lambda: source_from(manifest.source).read(manifest.shards[0]),
    )
    decisive = None
    backbone = None
    if encoder.spec is not None:
        decisive = encoder.spec.decisive()
        backbone = portable_description(encoder.spec)
    settings = {
        **deciding_settings(learner),
        **extraction_settings(learner),
        "backbone": decisive,
        "fan_in": FAN_IN,
    }
    job = begin_job(Job(folder, manifest, "fit", settings, backbone))
    return _learn(learner, job, options, encoder)


def update(
    learner: Learner, manifest: Manifest, folder: Path, options: EngineRunOptions
) -> JobReport:
    """Learn more data with a fitted learner, in place, or resume an interrupted update.

    Parameters, result and errors are the same as for :func:`fit`.
    """
    check_mergeable(learner, fresh=False)
    if learner.state_.spec is not None:
        # Raises for a backbone that workers cannot load.
        portable_description(learner.state_.spec)
    job = model_job(learner, manifest, folder, "update", fan_in=FAN_IN)
    has_template = read_or_none(read_archive, job.template_file) is not None
    if _report_if_complete(job) is None and not has_template:
        template = empty_copy(learner)
        n_samples = sum(learner.state_.label_counts.values()) + manifest.rows
        template.head_.expect_rows(n_samples)
        write_archive(job.template_file, template.state_.to_archive())
    return _learn(learner, job, options, None)


def _report_if_complete(job: Job) -> JobReport | None:
    """Return the final report of a job, or None unless report and model are whole."""
    if read_or_none(read_archive, job.model_file) is None:
        return None
    return job.final_report()


def _learn(
    learner: Learner, job: Job, options: EngineRunOptions, encoder: Encoder | None
) -> JobReport:
    """Complete a job and copy the result to the learner.

    Parameters
    ----------
    learner : Learner
        Changed in place.
    job : Job
        A fit or an update.
    options : EngineRunOptions
        How the job is run.
    encoder : Encoder or None
        Encoder of the layer's template. None if the job has the template already.
    """
    report = _report_if_complete(job)
    if report is not None:
        adopt(learner, _load(job.model_file, options))
        return report
    try:
        with locked(job.folder):
            _make_template(learner, job, options, encoder)
            report = JobReport(job.key, unreadable=dict(job.manifest.unreadable))
            n_shards = len(job.manifest.shards)
            with meter("learning", n_shards, enabled=options.progress) as tick:
                path = ShardMerge(job, report, options).run(tick)
            total = _load(path, options)
            _check_counts(job, total, report)
            sample = _layer_sample(job, skipped=report.failed)
            unexpected = sorted({*sample.labels} - {*total.state_.counts})
            if unexpected:
                raise EngineError(
                    f"{job.folder / 'first'} was changed: "
                    f"no shard has its class {unexpected[0]!r:.60}"
                )
            if job.work == "fit":
                complete_fit(learner, total, sample)
            else:
                complete_update(learner, total, sample)
            _report_double_labels(job, report)
            learner.save(job.model_file)
            finish_job(job, report, ("first", "statistics", "digests", "merged"))
            return report
    finally:
        release_opened()


def _report_double_labels(job: Job, report: JobReport) -> None:
    """Record in the report how many samples have two labels, and an example."""
    found = compare_shard_digests(job)
    if found is None:
        return
    source = source_from(job.manifest.source)
    names = [
        source.read(job.manifest.shards[shard]).names()[row]
        for shard, row in (found.first, found.second)
    ]
    report.n_double_labels = found.count
    report.double_labels = tuple(names)


def _load(path: Path, options: EngineRunOptions) -> Learner:
    """Load a model of the job on the device of the job."""
    return Learner.load(path, device=options.model_device, cache=False)


def _make_template(
    learner: Learner, job: Job, options: EngineRunOptions, encoder: Encoder | None
) -> None:
    """Write missing features of first samples, and the template if it is missing."""
    missing = [
        shard
        for shard in _shards_with_first(job)
        if existing_first_features(job, shard) is None
    ]
    report = run_shards(job, "first", missing, options, "first samples")
    if read_or_none(read_archive, job.template_file) is None:
        assert encoder is not None
        sample = _layer_sample(job, skipped=report.failed)
        template = with_layer(learner, encoder, sample)
        template.head_.expect_rows(job.manifest.rows)
        template.save(job.template_file)


def _shards_with_first(job: Job) -> list[int]:
    """Return the shards that have some of the first samples."""
    return [
        shard.number
        for shard in job.manifest.shards
        if len(job.manifest.first_of(shard))
    ]


def _layer_sample(job: Job, skipped: Iterable[str]) -> LabelledRows:
    """Return features and labels of the first samples, in the order of the shards.

    Parameters
    ----------
    job : Job
        The job. The features of the first samples are written.
    skipped : iterable of str
        Numbers of shards that could not be read.

    Raises
    ------
    EngineError
        If a file is missing or damaged, or the shards have different widths.
    InputError
        If no first sample could be read.
    """
    parts: dict[int, ShardFeatures] = {}
    for shard in sorted(set(_shards_with_first(job)).difference(map(int, skipped))):
        part = existing_first_features(job, shard)
        path = job.result("first", shard)
        # With skipping, the shard may have been unreadable when the file was due.
        if part is None and (path.is_file() or not job.skips):
            raise EngineError(
                f"{path} is gone, damaged or of another shard: was the folder "
                "changed? Run it again."
            )
        if part is not None and len(part):
            parts[shard] = part
    if not parts:
        raise InputError(
            "data must have at least one sample that can be read, got none"
        )
    _check_widths(parts)
    X = np.concatenate([part.X for part in parts.values()])
    labels = np.concatenate([part.labels for part in parts.values()])
    return LabelledRows(X, labels)


def _check_widths(parts: dict[int, ShardFeatures]) -> None:
    """Raise :class:`EngineError` unless all shards have the same number of features."""
    first_shard_of_width: dict[int, int] = {}
    for shard, part in parts.items():
        first_shard_of_width.setdefault(part.X.shape[1], shard)
    if len(first_shard_of_width) > 1:
        listed = " and ".join(
            f"{width} in shard {shard}" for width, shard in first_shard_of_width.items()
        )
        raise EngineError(f"shards must have the same number of features, got {listed}")


def _check_counts(job: Job, total: Learner, report: JobReport) -> None:
    """Check that every sample was counted once and every class has a readable one.

    Parameters
    ----------
    job : Job
        The job.
    total : Learner
        Sum of all shards.
    report : JobReport
        Samples and shards that were left out.

    Raises
    ------
    EngineError
        If the sum has more or fewer samples than the report.
    InputError
        If all samples of a class are unreadable.
    """
    learned = sum(total.state_.counts.values())
    wanted = sum(
        shard.rows
        for shard in job.manifest.shards
        if str(shard.number) not in report.failed
    )
    left_out = len(report.samples_left_out())
    if learned != report.rows or report.rows + left_out != wanted:
        raise EngineError(
            f"every sample must be counted once, but of {wanted} samples {left_out} "
            f"were left out and {learned} learned: delete {job.folder} and start again"
        )
    unreadable = {name for shard in report.shards.values() for name in shard.lost}
    lost = sorted(unreadable - set(total.state_.counts))
    if lost:
        raise InputError(
            f"every class must keep a sample that can be read, got none of {lost[0]!r}"
        )
