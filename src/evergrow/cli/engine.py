"""The options ``--engine`` and ``--workers``: work on several processes or machines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from evergrow.cli.options import OptionGroup, Rare
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.engine.engines import Engine

Result = TypeVar("Result")

PANEL = "Several processes or machines"


@dataclass(frozen=True)
class WorkerOptions(OptionGroup):
    """Workers of an engine.

    Parameters
    ----------
    address
        Address of the Ray cluster: HOST:PORT, ray://HOST:PORT, auto (find a running one
        or start one) or local (start one).
    gpus_per_worker
        GPUs of each worker; a fraction shares a GPU.
    """

    engine: Annotated[
        Literal["local", "ray"] | None, typer.Option(rich_help_panel=PANEL)
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, rich_help_panel=PANEL)] = None
    address: Rare[str] = "auto"
    gpus_per_worker: Rare[float] = 0.0

    def create_engine(self, cpus_per_worker: int = 1, **settings: Any) -> Engine:
        """Return the selected engine with settings of :class:`Engine`."""
        from evergrow.engine.engines import LocalEngine, RayEngine

        if self.engine == "local":
            return LocalEngine(workers=self.workers or 1, **settings)
        return RayEngine(
            address=self.address,
            workers=self.workers,
            gpus_per_worker=self.gpus_per_worker,
            cpus_per_worker=cpus_per_worker,
            **settings,
        )


@dataclass(frozen=True)
class EngineOptions(WorkerOptions):
    """Whether a command works shard by shard, and how.

    Parameters
    ----------
    engine
        Work on parts of the data (shards) in parallel, on processes of this machine
        (local) or a Ray cluster (ray). The data may then be an address such as
        s3://bucket/train/.
    workers
        Number of workers. By default 1 (local) or as many as fit on the cluster (ray).
    cpus_per_worker
        Cores of each worker of ray; cores after the first decode images.
    out_dir
        Folder in which fit, update and evaluate keep finished shards; the same command
        resumes an interrupted job from it.
    shard_rows
        Maximum number of samples in a shard.
    shard_mib
        Maximum size of a shard in MiB.
    first_rows
        Maximum number of samples from which fit builds the layer, and on which fit and
        update calibrate.
    """

    cpus_per_worker: Rare[int] = 1
    out_dir: Rare[Path | None] = None
    shard_rows: Rare[int] = 4096
    shard_mib: Rare[int] = 256
    first_rows: Rare[int] = 20_000

    def run(
        self,
        job: Callable[[Engine], Result],
        *,
        model: Path | None = None,
        folder: Path | None = None,
        quiet: bool = False,
    ) -> Result:
        """Run a job on the selected engine and return its result.

        Parameters
        ----------
        job : callable
            Called with the engine.
        model : Path, optional
            Model file of the job. Without `folder` and `out_dir` the job uses the
            folder ``MODEL.engine`` and removes it at the end.
        folder : Path, optional
            Folder of the job, which is kept.
        quiet : bool, default=False
            Show no progress bar.
        """
        kept_folder = folder or self.out_dir
        job_folder = kept_folder or Path(f"{model}.engine")
        engine = self.create_engine(
            self.cpus_per_worker,
            folder=job_folder,
            progress=not quiet and sys.stderr.isatty(),
            shard_rows=self.shard_rows,
            shard_mib=self.shard_mib,
            first_rows=self.first_rows,
        )
        result = job(engine)
        if kept_folder is None:
            shutil.rmtree(job_folder, ignore_errors=True)
        return result

    def reject(self, **options: Any) -> None:
        """Raise :class:`ParameterError` for options that do not work with an engine.

        Parameters
        ----------
        **options
            Values by option name. False, None and 0 count as not given.
        """
        for name, value in options.items():
            if value:
                option = name.replace("_", "-")
                raise ParameterError(
                    f"--{option} does not work with --engine; leave one of them out."
                )


NO_ENGINE = EngineOptions()
