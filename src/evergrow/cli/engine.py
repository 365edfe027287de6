"""``--engine`` of several commands: work on several processes or machines."""

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

PANEL = "On several processes or machines"


@dataclass(frozen=True)
class WorkerOptions(OptionGroup):
    """Where work is done that several workers share.

    Parameters
    ----------
    address
        Of the Ray cluster: HOST:PORT, ray://HOST:PORT, auto (finds or starts one) or
        local.
    gpus_per_worker
        GPUs, or a share of one, of each worker.
    """

    engine: Annotated[
        Literal["local", "ray"] | None, typer.Option(rich_help_panel=PANEL)
    ] = None
    workers: Annotated[int | None, typer.Option(min=1, rich_help_panel=PANEL)] = None
    address: Rare[str] = "auto"
    gpus_per_worker: Rare[float] = 0.0


@dataclass(frozen=True)
class EngineOptions(WorkerOptions):
    """Where a command does its work: here and at once, or shard by shard on an engine.

    Parameters
    ----------
    engine
        Work shard by shard, on processes of this machine or a Ray cluster; DATA may
        then be an address such as s3://bucket/train/ too.
    workers
        Workers at a time.
    cpus_per_worker
        Cores of each worker on a cluster: those beside the first decode images.
    out_dir
        Folder of manifest and results, which an interrupted command goes on from.
    shard_rows
        Most samples of a shard.
    shard_mib
        Most bytes of a shard, in MiB.
    first_rows
        Most samples that the layer is grown on.
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
        """Run a job on the engine that was asked for, and return its result.

        Parameters
        ----------
        job : callable
            Does the work.
        model : Path, optional
            The model of the job: its folder lies beside it, and goes with the job
            unless the user named one.
        folder : Path, optional
            The folder of a job whose results stay there.
        quiet : bool
            Whether to show no progress bar.
        """
        from evergrow.engine.engines import LocalEngine, RayEngine

        named = folder or self.out_dir
        used = named or Path(f"{model}.engine")
        common: dict[str, Any] = {
            "folder": used,
            "progress": not quiet and sys.stderr.isatty(),
        }
        common |= {
            name: getattr(self, name)
            for name in ("shard_rows", "shard_mib", "first_rows")
        }
        if self.engine == "ray":
            cluster = {
                name: getattr(self, name)
                for name in ("address", "gpus_per_worker", "cpus_per_worker")
            }
            result = job(RayEngine(workers=self.workers or None, **cluster, **common))
        else:
            result = job(LocalEngine(workers=self.workers or 1, **common))
        if named is None:
            shutil.rmtree(used, ignore_errors=True)
        return result

    def refuse(self, **given: Any) -> None:
        """Raise :class:`ParameterError` for options that do not go with an engine, by their name without dashes."""
        for name, value in given.items():
            if value:
                raise ParameterError(
                    f"--{name.replace('_', '-')} does not work with --engine; leave one of them out."
                )


HERE = EngineOptions()
"""Here and at once."""
