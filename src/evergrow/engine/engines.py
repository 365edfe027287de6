"""Engines: where a learner's work is done. A learner takes one by name, or an object with settings of its own."""

from __future__ import annotations

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_number
from evergrow.core.version import __version__
from evergrow.data import Source, read
from evergrow.engine.fitting import (
    EngineRunOptions,
    all_shards,
    fit,
    model_job,
    portable,
    update,
)
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
from evergrow.engine.parquet_out import escaped, read_table
from evergrow.engine.runners import LocalRunner, Perform, RayRunner, Runner
from evergrow.engine.worker_tasks import perform as shard_task
from evergrow.features.base import Backbone
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.evaluation import Evaluation, evaluate_predictions
from evergrow.learner.learner import Learner, seed_of
from evergrow.learner.learning import BLOCK


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """What every engine has.

    Parameters
    ----------
    folder : path-like, optional
        Where manifest and results are kept, so that the same call goes on after an
        interruption; every worker must reach it by this path. By default a temporary
        one, which is gone afterwards.
    shard_rows, shard_mib : int
        Most samples and MiB of a shard; the same numbers give the same shards.
    first_rows : int
        Most samples that the layer of a first fit is grown on, and that a model is
        calibrated on.
    progress : bool
        Whether to show a bar.
    """

    folder: str | os.PathLike[str] | None = None
    shard_rows: int = SHARD_ROWS
    shard_mib: int = SHARD_MIB
    first_rows: int = BLOCK
    progress: bool = False

    def __post_init__(self) -> None:
        for name, low in (("shard_rows", 1), ("shard_mib", 1), ("first_rows", 2)):
            check_number(name, getattr(self, name), low=low, integer=True)

    @abstractmethod
    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return the runner of tasks; workers import ``perform`` by its module and name."""

    @contextmanager
    def open(
        self, device: Any, weights: Any = None, *, lasting: bool = False
    ) -> Iterator[tuple[Path, EngineRunOptions]]:
        """Yield a folder and running workers, which end with the block.

        Parameters
        ----------
        device : str or torch.device
            Where workers compute.
        weights : str or path-like, optional
            Where they find the backbone's weights, if not where they were.
        lasting : bool
            Whether the folder holds the result, so that a temporary one would not do.
        """
        if lasting and self.folder is None:
            raise ParameterError(
                "folder must be given, since the result is written there"
            )
        with tempfile.TemporaryDirectory(prefix="evergrow-") as temporary:
            folder = Path(temporary if self.folder is None else self.folder).absolute()
            runner = self.runner()
            try:
                found = None
                if weights is not None:
                    found = os.fspath(weights)
                yield (
                    folder,
                    EngineRunOptions(runner, str(device), self.progress, found),
                )
            finally:
                runner.close()

    def fit(self, learner: Learner, data: Any) -> JobReport:
        """Let a learner forget everything and learn data; see :func:`evergrow.engine.fitting.fit`."""
        manifest = self.manifest(data, seed_of(learner), skip=_skips(learner))
        with self.open(learner.device) as (folder, options):
            return fit(learner, manifest, folder, options)

    def partial_fit(self, learner: Learner, data: Any) -> JobReport:
        """Let a learner learn more data; see :func:`evergrow.engine.fitting.update`."""
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            return update(learner, manifest, folder, options)

    def evaluate(
        self, learner: Learner, data: Any, *, false_alarm: float = FALSE_ALARM
    ) -> tuple[Evaluation, JobReport]:
        """Compare a model's answers with labels.

        Parameters
        ----------
        learner : Learner
            The model.
        data : str, path-like or Source
            Labelled data.
        false_alarm : float
            Share of false alarms that the threshold of novelty is for.
        """
        started = time.perf_counter()
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            asked = None
            if learner.state_.describe()["novelty"] is not None:
                asked = FALSE_ALARM
            job = model_job(
                learner, manifest, folder, "evaluate", top=1, false_alarm=asked
            )
            report = all_shards(job, options)
            found = [
                read_table(job.result("evaluate", shard))
                for shard in sorted(map(int, report.shards))
            ]
        labels, answers = (
            np.concatenate([table[name] for table in found])
            for name in ("true_label", "label")
        )
        told: dict[str, Any] = {}
        if asked is not None:
            novelty = np.concatenate([table["novelty"] for table in found])
            told = {
                "novelty": novelty,
                "threshold": learner.state_.threshold(false_alarm),
                "false_alarm": false_alarm,
            }
        result = evaluate_predictions(
            labels, answers, escaped(learner.state_.classes.tolist()), **told
        )
        left_out = tuple(name for name, _ in report.samples_left_out())
        return replace(
            result, seconds=time.perf_counter() - started, left_out=left_out
        ), report

    def predict(
        self,
        learner: Learner,
        data: Any,
        *,
        top: int = 1,
        false_alarm: float | None = None,
    ) -> JobReport:
        """Write a model's answers about a data set into ``folder/predict``, one Parquet file per shard.

        Parameters
        ----------
        learner : Learner
            The model.
        data : str, path-like or Source
            The data; labels are not needed, and written beside the answers where they
            are there.
        top : int
            How many classes to give of each.
        false_alarm : float, optional
            Share of known things that may be called unknown; None rejects nothing.

        Returns
        -------
        JobReport
            What was written.
        """
        check_number("top", top, low=1, integer=True)
        if false_alarm is not None:
            learner.state_.threshold(
                false_alarm
            )  # raises where there is none, before any work is done
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights, lasting=True) as (
            folder,
            options,
        ):
            job = model_job(
                learner, manifest, folder, "predict", top=top, false_alarm=false_alarm
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
        """Write the features of a data set into ``folder/features``, one Parquet file per shard.

        Parameters
        ----------
        backbone : Backbone
            What computes them; every worker loads it by its name.
        data : str, path-like or Source
            Images or texts.
        on_error : {"raise", "skip"}
            What to do about what cannot be read.
        batch_size : int, optional
            Items per batch.

        Returns
        -------
        JobReport
            What was written.
        """
        spec = backbone.spec
        manifest = self.manifest(data, skip=on_error == "skip")
        with self.open(backbone.device, lasting=True) as (folder, options):
            if manifest.kind != spec.kind:
                raise ParameterError(
                    f"data must be {spec.kind}s for {spec.name}, got {manifest.kind}"
                )
            settings: dict[str, Any] = {"on_error": on_error, "batch_size": batch_size}
            settings |= {"backbone": spec.decisive(), "evergrow": __version__}
            return all_shards(
                begin_job(Job(folder, manifest, "features", settings, portable(spec))),
                options,
            )

    def manifest(self, data: Any, seed: int = 0, *, skip: bool = False) -> Manifest:
        """Return the manifest of data: an address, or a source.

        Parameters
        ----------
        data : str, path-like or Source
            The data.
        seed : int
            Of the draw of the samples that a layer is grown on.
        skip : bool
            Whether files that cannot be read are left out.
        """
        if isinstance(data, (str, os.PathLike)):
            source = read(data)
        else:
            source = data
        if not isinstance(source, Source):
            raise InputError(
                f"data must be the address of data or a source with engine, since every worker reads "
                f"its shards for itself, got {type(data).__name__}"
            )
        sizes = {
            "shard_rows": self.shard_rows,
            "shard_mib": self.shard_mib,
            "first_rows": self.first_rows,
        }
        return plan(source, **sizes, seed=seed, skip=skip)


@dataclass(frozen=True, kw_only=True)
class LocalEngine(Engine):
    """The processes of this machine.

    Parameters
    ----------
    workers : int
        How many; 1 does everything in this process.

    See Also
    --------
    Engine : for the other parameters.
    """

    workers: int = 1

    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return the processes."""
        return LocalRunner(perform, self.workers)


@dataclass(frozen=True, kw_only=True)
class RayEngine(Engine):
    """A Ray cluster.

    Parameters
    ----------
    address : str
        Where it listens; ``"auto"`` finds one that runs on this machine or starts one,
        ``"local"`` starts one.
    workers : int or None
        Workers at a time; as many as the cluster has room for by default.
    gpus_per_worker : float
        GPUs, or shares of one, of each worker.
    cpus_per_worker : int
        Cores of each worker: one computes, the others decode images beside it.

    See Also
    --------
    Engine : for the other parameters.
    """

    address: str = "auto"
    workers: int | None = None
    gpus_per_worker: float = 0.0
    cpus_per_worker: int = 1

    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return the cluster's workers."""
        return RayRunner(
            perform,
            self.address,
            self.workers,
            self.gpus_per_worker,
            self.cpus_per_worker,
        )


def _skips(learner: Learner) -> bool:
    return bool(extraction_settings(learner)["on_error"] == "skip")
