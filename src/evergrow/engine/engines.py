"""Engines: where a learner's work is done. A learner takes one by name, or an object with settings of its own."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.validation import check_number
from evergrow.data import Source
from evergrow.engine.fitting import fit, update
from evergrow.engine.job import SHARD_MIB, SHARD_ROWS, Manifest, extraction_settings, plan
from evergrow.engine.job_steps import JobReport, RunOptions, evaluate, extract_features, predict
from evergrow.engine.runners import LocalRunner, Perform, RayRunner, Runner
from evergrow.engine.worker_tasks import perform as shard_task
from evergrow.features.base import Backbone
from evergrow.learner.evaluation import Evaluation
from evergrow.learner.learner import Learner
from evergrow.learner.learning import BLOCK


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """What every engine has.

    Parameters
    ----------
    folder : path-like, optional
        Where manifest and results are kept, so that the same call goes on after an interruption; every worker must
        reach it by this path. By default a temporary one, which is gone afterwards.
    shard_rows, shard_mib : int
        Most samples and MiB of a shard; the same numbers give the same shards.
    first_rows : int
        Most samples that the layer of a first fit is grown on, and that a model is calibrated on.
    decoders : int, "auto" or None
        Processes beside each worker that decode images; None suits the engine.
    progress : bool
        Whether to show a bar.
    share : tuple of int, optional
        ``(i, n)``: only the shards whose number is i modulo n.
    """

    folder: str | os.PathLike[str] | None = None
    shard_rows: int = SHARD_ROWS
    shard_mib: int = SHARD_MIB
    first_rows: int = BLOCK
    decoders: Any = None
    progress: bool = False
    share: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, low in (("shard_rows", 1), ("shard_mib", 1), ("first_rows", 2)):
            check_number(name, getattr(self, name), low=low, integer=True)
        if self.share is not None:
            place, total = self.share
            if not 0 <= place < total:
                raise ParameterError(f"shard must be i/n with 0 <= i < n, got {place}/{total}")
            if self.folder is None:
                raise ParameterError("folder must be given where a share of the shards is done")

    @abstractmethod
    def runner(self, perform: Perform = shard_task) -> Runner:
        """Return what runs the tasks, each done by ``perform``, which workers import by its module and name."""

    @contextmanager
    def open(self, device: Any, weights: Any = None, *, lasting: bool = False) -> Iterator[tuple[Path, RunOptions]]:
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
            raise ParameterError("folder must be given, since the result is written there")
        with tempfile.TemporaryDirectory(prefix="evergrow-") as temporary:
            folder = Path(temporary if self.folder is None else self.folder).absolute()
            runner = self.runner()
            try:
                found = None if weights is None else os.fspath(weights)
                yield folder, RunOptions(runner, str(device), self.decoders, self.progress, self.share, found)
            finally:
                runner.close()

    def fit(self, learner: Learner, data: Any) -> JobReport | None:
        """Let a learner forget everything and learn data; see :func:`evergrow.engine.fitting.fit`."""
        manifest = self.manifest(data, learner._seed(), skip=_skips(learner))
        with self.open(learner.device) as (folder, options):
            return fit(learner, manifest, folder, options)

    def partial_fit(self, learner: Learner, data: Any) -> JobReport | None:
        """Let a learner learn data beside what it knows; see :func:`evergrow.engine.fitting.update`."""
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            return update(learner, manifest, folder, options)

    def evaluate(self, learner: Learner, data: Any, **settings: Any) -> tuple[Evaluation, JobReport] | None:
        """Compare a model's answers with labels; see :func:`evergrow.engine.job_steps.evaluate`."""
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, options):
            return evaluate(learner, manifest, folder, options, **settings)

    def predict(self, learner: Learner, data: Any, **settings: Any) -> JobReport | None:
        """Write a model's answers as Parquet, into the folder; see :func:`evergrow.engine.job_steps.predict`."""
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights, lasting=True) as (folder, options):
            return predict(learner, manifest, folder, options, **settings)

    def features(self, backbone: Backbone, data: Any, **settings: Any) -> JobReport | None:
        """Write features as Parquet, into the folder; see :func:`evergrow.engine.job_steps.extract_features`."""
        manifest = self.manifest(data, skip=settings.get("on_error") == "skip")
        with self.open(backbone.device, lasting=True) as (folder, options):
            return extract_features(backbone.spec, manifest, folder, options, **settings)

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
        sizes = {"shard_rows": self.shard_rows, "shard_mib": self.shard_mib, "first_rows": self.first_rows}
        return plan(_source(data), **sizes, seed=seed, skip=skip)


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
        Where it listens; ``"auto"`` finds one that runs on this machine or starts one, ``"local"`` starts one.
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
            gpus_per_worker=self.gpus_per_worker,
            cpus_per_worker=self.cpus_per_worker,
        )


def _skips(learner: Learner) -> bool:
    return bool(extraction_settings(learner)["on_error"] == "skip")


def _source(data: Any) -> Source:
    if isinstance(data, (str, os.PathLike)):
        from evergrow.data import read

        return read(data)
    if all(hasattr(data, name) for name in ("describe", "identity", "shards", "read")):
        return data  # type: ignore[no-any-return]
    raise InputError(
        f"data must be the address of data or a source with engine, since every worker reads "
        f"its shards for itself, got {type(data).__name__}"
    )
