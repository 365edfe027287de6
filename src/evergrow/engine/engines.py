"""Engines run a learner's work in this process, in several processes, or on Ray."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_choice, check_integer
from evergrow.core.version import __version__
from evergrow.data import Source, read
from evergrow.engine.fitting import fit, update
from evergrow.engine.job import (
    SHARD_MIB,
    SHARD_ROWS,
    Job,
    JobReport,
    Manifest,
    begin_job,
    extraction_settings,
    plan,
)
from evergrow.engine.job_steps import (
    EngineRunOptions,
    all_shards,
    model_job,
    portable_description,
)
from evergrow.engine.parquet_out import escape_non_utf8, read_parquet
from evergrow.engine.runners import LocalRunner, Perform, RayRunner, Runner
from evergrow.engine.worker_tasks import perform as shard_task
from evergrow.features.backbone import Backbone
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.learner import Learner, seed_of
from evergrow.learner.learning import BLOCK
from evergrow.tools.strictness import STRICTNESS, USUAL


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """Base class of engines.

    Parameters
    ----------
    folder : path-like, optional
        Folder for the manifest and the results. The same call continues an interrupted
        job there. Every worker must reach it by this path. By default a temporary
        folder, deleted afterwards.
    shard_rows, shard_mib : int
        Maximum samples and MiB of a shard. The same numbers give the same shards.
    first_rows : int
        Maximum number of samples that a first fit draws for the layer, and that a
        model is calibrated on.
    progress : bool, default=False
        Whether to show a progress bar.
    """

    folder: str | os.PathLike[str] | None = None
    shard_rows: int = SHARD_ROWS
    shard_mib: int = SHARD_MIB
    first_rows: int = BLOCK
    progress: bool = False

    def __post_init__(self) -> None:
        for name, low in (("shard_rows", 1), ("shard_mib", 1), ("first_rows", 2)):
            check_integer(name, getattr(self, name), low=low)

    @abstractmethod
    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return a new runner of tasks, which the caller closes.

        Parameters
        ----------
        perform : callable
            Runs a task on a worker, which imports it by module and name.
        """

    @contextmanager
    def open(
        self, device: Any, weights: Any = None, *, lasting: bool = False
    ) -> Iterator[tuple[Path, EngineRunOptions]]:
        """Start workers for a job. They stop at the end of the block.

        Parameters
        ----------
        device : str or torch.device
            Device that workers compute on.
        weights : str or path-like, optional
            Path of the backbone's weights on the workers, if it differs from the path
            in the model.
        lasting : bool, default=False
            Whether the folder will hold the result.

        Yields
        ------
        folder : Path
            Folder of the job. A temporary one is deleted at the end of the block.
        options : EngineRunOptions
            How to run the job, with the runner.

        Raises
        ------
        ParameterError
            If `lasting` is true and the engine has no folder.
        """
        if lasting and self.folder is None:
            raise ParameterError(
                "folder must be given, because the results are written there, got None"
            )
        weights_path = None if weights is None else os.fspath(weights)
        with (
            tempfile.TemporaryDirectory(prefix="evergrow-") as temporary,
            closing(self.runner()) as runner,
        ):
            folder = Path(temporary if self.folder is None else self.folder).absolute()
            options = EngineRunOptions(runner, str(device), self.progress, weights_path)
            yield folder, options

    def fit(self, learner: Learner, data: Any) -> JobReport:
        """Fit a learner from scratch, in place.

        Parameters
        ----------
        learner : Learner
            The learner. Everything it knew is replaced.
        data : str, path-like or Source
            Labelled data.

        Returns
        -------
        JobReport
            The samples that were learned and those left out.
        """
        manifest = self.manifest(
            data, seed_of(learner), skip=_skips_unreadable(learner)
        )
        with self.open(learner.device) as (folder, options):
            return fit(learner, manifest, folder, options)

    def partial_fit(self, learner: Learner, data: Any) -> JobReport:
        """Learn more data with a fitted learner, in place.

        Parameters
        ----------
        learner : Learner
            The learner.
        data : str, path-like or Source
            Labelled data.

        Returns
        -------
        JobReport
            The samples that were learned and those left out.
        """
        manifest = self.manifest(data, skip=_skips_unreadable(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            return update(learner, manifest, folder, options)

    def evaluate(
        self, learner: Learner, data: Any, *, false_alarm: float = FALSE_ALARM
    ) -> tuple[Evaluation, JobReport]:
        """Evaluate a model on labelled data.

        Parameters
        ----------
        learner : Learner
            The model.
        data : str, path-like or Source
            Labelled data.
        false_alarm : float, default=0.05
            Fraction of known samples that may be rejected as unknown. Ignored if the
            model is not calibrated for unknown samples.

        Returns
        -------
        Evaluation
            Accuracy, per-class results and novelty.
        JobReport
            The samples that were evaluated and those left out.
        """
        started = time.perf_counter()
        manifest = self.manifest(data, skip=_skips_unreadable(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            # Workers write novelty scores, which do not depend on the rate. With a
            # fixed rate, a job resumes also if `false_alarm` changes.
            file_rate = None
            if learner.state_.describe()["novelty"] is not None:
                file_rate = FALSE_ALARM
            job = model_job(
                learner, manifest, folder, "evaluate", top=1, false_alarm=file_rate
            )
            report = all_shards(job, options)
            tables = [
                read_parquet(job.result("evaluate", shard))
                for shard in sorted(map(int, report.shards))
            ]
        labels = np.concatenate([table["true_label"] for table in tables])
        predicted = np.concatenate([table["label"] for table in tables])
        novelty: dict[str, Any] = {}
        if file_rate is not None:
            novelty = {
                "novelty": np.concatenate([table["novelty"] for table in tables]),
                "threshold": learner.state_.threshold(false_alarm),
                "false_alarm": false_alarm,
            }
        class_names = escape_non_utf8(learner.state_.classes.tolist())
        result = evaluate_predictions(labels, predicted, class_names, **novelty)
        left_out = tuple(name for name, _ in report.samples_left_out())
        seconds = time.perf_counter() - started
        return replace(result, seconds=seconds, left_out=left_out), report

    def predict(
        self,
        learner: Learner,
        data: Any,
        *,
        top: int = 1,
        false_alarm: float | None = None,
        strangers: str = USUAL,
    ) -> JobReport:
        """Write predictions to ``folder/predict``, one Parquet file per shard.

        Parameters
        ----------
        learner : Learner
            The model.
        data : str, path-like or Source
            The data. Labels are optional and copied to the files.
        top : int, default=1
            Number of classes to report per sample.
        false_alarm : float, optional
            Fraction of known samples that may be rejected as unknown. By default no
            sample is rejected.
        strangers : {"few", "some", "many"}, default="some"
            How many samples of unknown classes to expect. It sets the limits of novelty
            and probability beyond which a prediction is unsure.

        Returns
        -------
        JobReport
            The samples that were predicted and those left out.
        """
        check_integer("top", top)
        check_choice("strangers", strangers, STRICTNESS)
        if false_alarm is not None:
            # Raises for a model without novelty detection, before any work is done.
            learner.state_.threshold(false_alarm)
        manifest = self.manifest(data, skip=_skips_unreadable(learner))
        with self.open(learner.device, learner.weights, lasting=True) as (
            folder,
            options,
        ):
            job = model_job(
                learner,
                manifest,
                folder,
                "predict",
                top=top,
                false_alarm=false_alarm,
                strangers=strangers,
            )
            return all_shards(job, options)

    def features(
        self,
        backbone: Backbone,
        data: Any,
        *,
        on_error: str = "raise",
        batch_size: int | None = None,
    ) -> JobReport:
        """Write features to ``folder/features``, one Parquet file per shard.

        Parameters
        ----------
        backbone : Backbone
            The backbone. Every worker loads it by name.
        data : str, path-like or Source
            Images or texts.
        on_error : {"raise", "skip"}, default="raise"
            What to do with unreadable items.
        batch_size : int, optional
            Items per batch.

        Returns
        -------
        JobReport
            The samples that were encoded and those left out.
        """
        spec = backbone.spec
        manifest = self.manifest(data, skip=on_error == "skip")
        with self.open(backbone.device, lasting=True) as (folder, options):
            if manifest.kind != spec.kind:
                raise ParameterError(
                    f"data must be {spec.kind}s for {spec.name}, got {manifest.kind}"
                )
            settings: dict[str, Any] = {
                "on_error": on_error,
                "batch_size": batch_size,
                "backbone": spec.decisive(),
                "evergrow": __version__,
            }
            job = Job(
                folder, manifest, "features", settings, portable_description(spec)
            )
            return all_shards(begin_job(job), options)

    def manifest(self, data: Any, seed: int = 0, *, skip: bool = False) -> Manifest:
        """Split a data set into shards.

        Parameters
        ----------
        data : str, path-like or Source
            The data.
        seed : int
            Seed of the draw of samples for the layer.
        skip : bool
            Whether unreadable files are left out.

        Raises
        ------
        InputError
            If `data` is data in memory, which workers cannot read, or has no samples.
        """
        if isinstance(data, (str, os.PathLike)):
            source = read(data)
        else:
            source = data
        if not isinstance(source, Source):
            raise InputError(
                "data must be an address or a Source with an engine, because every "
                f"worker reads its own shards, got {type(data).__name__}"
            )
        sizes = {
            "shard_rows": self.shard_rows,
            "shard_mib": self.shard_mib,
            "first_rows": self.first_rows,
        }
        return plan(source, **sizes, seed=seed, skip=skip)


@dataclass(frozen=True, kw_only=True)
class LocalEngine(Engine):
    """Run on processes of this machine.

    Parameters
    ----------
    workers : int, default=1
        Number of processes. With 1 everything runs in the calling process.

    See Also
    --------
    Engine : Describes the other parameters.
    """

    workers: int = 1

    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return the runner of local processes."""
        return LocalRunner(perform, self.workers)


@dataclass(frozen=True, kw_only=True)
class RayEngine(Engine):
    """Run on a Ray cluster.

    Parameters
    ----------
    address : str, default="auto"
        Address of the cluster. ``"auto"`` joins a cluster running on this machine or
        starts one; ``"local"`` always starts one.
    workers : int, optional
        Number of concurrent workers. By default as many as fit on the cluster.
    gpus_per_worker : float, default=0
        GPUs per worker. Fractions share a GPU.
    cpus_per_worker : int, default=1
        CPU cores per worker. One core computes, the others decode images.

    See Also
    --------
    Engine : Describes the other parameters.
    """

    address: str = "auto"
    workers: int | None = None
    gpus_per_worker: float = 0.0
    cpus_per_worker: int = 1

    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return the runner of Ray tasks."""
        return RayRunner(
            perform,
            self.address,
            self.workers,
            self.gpus_per_worker,
            self.cpus_per_worker,
        )


def _skips_unreadable(learner: Learner) -> bool:
    """Return whether the learner leaves out samples that cannot be read."""
    return bool(extraction_settings(learner)["on_error"] == "skip")
