"""Engines: where a learner's work is done. A learner takes one by name, or an object with settings of its own."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergrow.core.errors import InputError, ParameterError
from evergrow.data import Source
from evergrow.engine.fitting import fit, update
from evergrow.engine.job import extraction_settings
from evergrow.engine.manifest import Division, Manifest, plan
from evergrow.engine.runners import PERFORM, LocalRunner, RayRunner, Runner
from evergrow.engine.stages import Running, Tally
from evergrow.features.base import Backbone
from evergrow.learner.evaluation import Evaluation
from evergrow.learner.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """What every engine has.

    Parameters
    ----------
    folder : path-like, optional
        Where manifest and results are kept, so that the same call goes on after an interruption; every worker must
        reach it by this path. By default a temporary one, which is gone afterwards.
    division : Division
        How data are divided into shards, and how many samples the layer is grown on.
    decoders : int, "auto" or None
        Processes beside each worker that decode images; None suits the engine.
    progress : bool
        Whether to show a bar.
    share : tuple of int, optional
        ``(i, n)``: only the shards whose number is i modulo n.
    """

    folder: str | os.PathLike[str] | None = None
    division: Division = field(default_factory=Division)
    decoders: Any = None
    progress: bool = False
    share: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.share is not None:
            place, total = self.share
            if not 0 <= place < total:
                raise ParameterError(f"shard must be i/n with 0 <= i < n, got {place}/{total}")
            if self.folder is None:
                raise ParameterError("folder must be given where a share of the shards is done")

    @abstractmethod
    def runner(self, perform: str = PERFORM) -> Runner:
        """Return what runs the tasks, each done by the function that ``"module:function"`` names."""

    @contextmanager
    def open(self, device: Any, weights: Any = None, *, lasting: bool = False) -> Iterator[tuple[Path, Running]]:
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
                yield folder, Running(runner, str(device), self.decoders, self.progress, self.share, found)
            finally:
                runner.close()

    def fit(self, learner: Learner, data: Any) -> Tally | None:
        """Let a learner forget everything and learn data; see :func:`evergrow.engine.fitting.fit`."""
        manifest = self.manifest(data, learner._seed(), skip=_skips(learner))
        with self.open(learner.device) as (folder, running):
            return fit(learner, manifest, folder, running)

    def partial_fit(self, learner: Learner, data: Any) -> Tally | None:
        """Let a learner learn data beside what it knows; see :func:`evergrow.engine.fitting.update`."""
        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, running):
            return update(learner, manifest, folder, running)

    def evaluate(self, learner: Learner, data: Any, **settings: Any) -> tuple[Evaluation, Tally] | None:
        """Compare a model's answers with labels; see :func:`evergrow.engine.asking.evaluate`."""
        from evergrow.engine.asking import evaluate

        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights) as (folder, running):
            return evaluate(learner, manifest, folder, running, **settings)

    def predict(self, learner: Learner, data: Any, **settings: Any) -> Tally | None:
        """Write a model's answers as Parquet, into the folder; see :func:`evergrow.engine.tables.predict`."""
        from evergrow.engine.tables import predict

        manifest = self.manifest(data, skip=_skips(learner))
        with self.open(learner.device, learner.weights, lasting=True) as (folder, running):
            return predict(learner, manifest, folder, running, **settings)

    def features(self, backbone: Backbone, data: Any, **settings: Any) -> Tally | None:
        """Write features as Parquet, into the folder; see :func:`evergrow.engine.tables.extract_features`."""
        from evergrow.engine.tables import extract_features

        manifest = self.manifest(data, skip=settings.get("on_error") == "skip")
        with self.open(backbone.device, lasting=True) as (folder, running):
            return extract_features(backbone.spec, manifest, folder, running, **settings)

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
        return plan(_source(data), self.division, seed, skip=skip)


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

    def runner(self, perform: str = PERFORM) -> Runner:
        """Return the processes."""
        return LocalRunner(self.workers, perform)


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

    def runner(self, perform: str = PERFORM) -> Runner:
        """Return the cluster's workers."""
        return RayRunner(
            self.address,
            self.workers,
            gpus_per_worker=self.gpus_per_worker,
            cpus_per_worker=self.cpus_per_worker,
            perform=perform,
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
