"""Questions about a data set of any size, shard by shard: how good a model is on it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import archive_digest, write_archive
from evergrow.core.errors import EngineError
from evergrow.core.files import locked
from evergrow.core.record import Spec, read_record, record, require, write_record
from evergrow.engine.job import Job, Work, begin_job, extraction_settings
from evergrow.engine.manifest import Manifest
from evergrow.engine.shard_features import forget_opened, loaded_model
from evergrow.engine.stages import Running, Tally, check_workers, finish, run_shards
from evergrow.engine.works import features_of, prepared, register_work, whole_archive
from evergrow.features import Features
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.evaluation import Evaluation, evaluate_predictions, open_world
from evergrow.learner.learner import Learner


def evaluate(
    learner: Learner, manifest: Manifest, folder: Path, running: Running, *, false_alarm: float = FALSE_ALARM
) -> tuple[Evaluation, Tally] | None:
    """Compare a model's answers with labels.

    Parameters
    ----------
    learner : Learner
        The model.
    manifest : Manifest
        Labelled data.
    folder : Path
        Where results are kept.
    running : Running
        How it is run.
    false_alarm : float
        Share of false alarms that the threshold of novelty is for.

    Returns
    -------
    tuple of (Evaluation, Tally) or None
        None where this was a share of the work.
    """
    started = time.perf_counter()
    job = asking_job(learner, manifest, folder, "evaluate")
    tally = ask_shards(job, running)
    if tally is None:
        return None
    found = [read_record(_Compared, job.result("evaluate", shard)) for shard in sorted(tally.rows)]
    labels, answers = np.concatenate([np.array(part.names, dtype=np.str_)[part.codes] for part in found], axis=1)
    novelty = np.concatenate([np.empty(0) if part.novelty is None else part.novelty for part in found])
    result = evaluate_predictions(labels.tolist(), answers.tolist(), learner.class_names_.tolist())
    known, compared = np.isin(labels, learner.class_names_), None
    if len(novelty) == len(labels) and known.any() and not known.all():
        compared = open_world(novelty[known], novelty[~known], learner.threshold(false_alarm), false_alarm)
    left_out = tuple(tally.names_left_out())
    seconds = time.perf_counter() - started
    return replace(result, seconds=seconds, left_out=left_out, unknown=compared), tally


@record("engine-compared")
@dataclass(frozen=True, eq=False)
class _Compared:
    """Labels and answers of a shard, by their place among the names."""

    names: tuple[str, ...]
    codes: Annotated[NDArray[np.int64], Spec((2, "n"), "int64")]
    engine: dict[str, Any]
    novelty: Annotated[NDArray[np.float64], Spec(("n",))] | None = None

    def check(self) -> None:
        require(bool(((self.codes >= 0) & (self.codes < len(self.names))).all()), "a class has no name")


@register_work("evaluate")
def evaluate_work(job: Job, about: dict[str, Any]) -> dict[str, Any]:
    """Write labels and answers of a shard, and the novelty of its samples where the model knows that."""
    target = job.result("evaluate", about["number"])
    there = whole_archive(target)
    if there is not None:
        return dict(there.meta.get("engine", {}))
    model, found = asked_model(job, about), features_of(job, about)
    labels, opens = found.required_labels(), model.info()["novelty"] is not None
    answered = model.ask(Features(found.X, np.arange(len(found))), false_alarm=FALSE_ALARM if opens else None)
    answers = answered.classes[answered.ranked(1)[:, 0]]
    names, codes = np.unique(np.concatenate([labels, answers]), return_inverse=True)
    novelty = None if answered.novelty is None else np.asarray(answered.novelty, dtype=np.float64)
    held = _Compared(tuple(names.tolist()), codes.astype(np.int64).reshape(2, -1), found.told(), novelty)
    write_record(prepared(target), held)
    return found.told()


# -- what questions share -------------------------------------------------------------------------------------


def asking_job(learner: Learner, manifest: Manifest, folder: Path, work: Work, **settings: Any) -> Job:
    """Begin a job that asks a model, or take it up again.

    Parameters
    ----------
    learner : Learner
        The model.
    manifest : Manifest
        The data.
    folder : Path
        Where results are kept.
    work : str
        What is asked.
    **settings
        What else decides the answers.
    """
    model = learner.to_archive()
    decisive = {"model": archive_digest(model), **extraction_settings(learner), **settings}
    job = begin_job(Job(folder, manifest, work, decisive))
    if whole_archive(job.start) is None:
        write_archive(job.start, model)
    return job


def asked_model(job: Job, about: dict[str, Any]) -> Learner:
    """Return the model that a task asks."""
    return loaded_model(str(job.start), job.key, about.get("device", "auto"))


def ask_shards(job: Job, running: Running) -> Tally | None:
    """Ask about all shards; return what was answered, or None where this was a share of the work."""
    numbers = range(len(job.manifest.shards))
    try:
        if running.share is not None:
            run_shards(job, job.work, numbers, running, job.work)
            return None
        with locked(job.folder):
            check_workers(job, running)
            tally = run_shards(job, job.work, numbers, running, job.work)
            if not tally.rows:
                why = next(iter(tally.failed.values()))
                raise EngineError(f"data must have a shard that can be read, got none: {why}")
            finish(job, tally)
            return tally
    finally:
        forget_opened()
