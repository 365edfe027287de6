"""``--engine`` of several commands, and ``evergrow engine status``: work on several processes or machines."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from evergrow.cli.console import Answer, Finished, facts
from evergrow.cli.exits import ExitCode
from evergrow.cli.options import AS_FOUND, Json, OptionGroup, Rare, Reading
from evergrow.cli.registry import command, command_group
from evergrow.core.errors import ParameterError

if TYPE_CHECKING:
    from evergrow.data import Source
    from evergrow.engine.engines import Engine
    from evergrow.engine.status import Status

Result = TypeVar("Result")

PANEL = "On several processes or machines"


@dataclass(frozen=True)
class WorkerOptions(OptionGroup):
    """Where work is done that several workers share.

    Parameters
    ----------
    address
        Of the Ray cluster: HOST:PORT, ray://HOST:PORT, auto (finds or starts one) or local.
    gpus_per_worker
        GPUs, or a share of one, of each worker.
    """

    engine: Annotated[Literal["local", "ray"] | None, typer.Option(rich_help_panel=PANEL)] = None
    workers: Annotated[int | None, typer.Option(min=1, rich_help_panel=PANEL)] = None
    address: Rare[str] = "auto"
    gpus_per_worker: Rare[float] = 0.0


@dataclass(frozen=True)
class EngineOptions(WorkerOptions):
    """Where a command does its work: here and at once, or shard by shard on an engine.

    Parameters
    ----------
    engine
        Work shard by shard, on processes of this machine or a Ray cluster; DATA may then be an address such as
        s3://bucket/train/ too.
    workers
        Workers at a time.
    cpus_per_worker
        Cores of each worker on a cluster: those beside the first decode images.
    out_dir
        Folder of manifest and results, which an interrupted command goes on from.
    shard
        I/N: only every N-th shard, from the I-th, for a batch system without Ray.
    shard_rows
        Most samples of a shard.
    shard_mib
        Most bytes of a shard, in MiB.
    first_rows
        Most samples that the layer is grown on.
    """

    cpus_per_worker: Rare[int] = 1
    out_dir: Rare[Path | None] = None
    shard: Rare[str] = ""
    shard_rows: Rare[int] = 4096
    shard_mib: Rare[int] = 256
    first_rows: Rare[int] = 20_000

    def run(
        self,
        job: Callable[[Engine], Result | None],
        *,
        model: Path | None = None,
        folder: Path | None = None,
        quiet: bool = False,
    ) -> Result:
        """Run a job on the engine that was asked for, and return its result.

        Parameters
        ----------
        job : callable
            Does the work; returns None where only a share of it was done.
        model : Path, optional
            The model of the job: its folder lies beside it, and goes with the job unless the user named one.
        folder : Path, optional
            The folder of a job whose results stay there.
        quiet : bool
            Whether to show no progress bar.

        Raises
        ------
        Finished
            If only a share was done, with how far the job has come.
        """
        from evergrow.engine.engines import LocalEngine, RayEngine
        from evergrow.engine.status import status

        started = time.perf_counter()
        named = folder or self.out_dir
        used = named or Path(f"{model}.engine")
        common: dict[str, Any] = {"folder": used, "progress": not quiet and sys.stderr.isatty(), "share": self._share()}
        common |= {name: getattr(self, name) for name in ("shard_rows", "shard_mib", "first_rows")}
        if self.engine == "ray":
            cluster = {name: getattr(self, name) for name in ("address", "gpus_per_worker", "cpus_per_worker")}
            result = job(RayEngine(workers=self.workers or None, **cluster, **common))
        else:
            result = job(LocalEngine(workers=self.workers or 1, **common))
        if result is None:
            found = status(used)
            values = {"folder": str(used), **found.to_dict(), "seconds": time.perf_counter() - started}
            if found.first is not None:
                step = "run every --shard once more when the first samples of all are there: the layer is grown on them"
            else:
                done = "when the other shares are done" if found.left else "all shards are done"
                step = f"{done}{',' if found.left else ':'} the same command without --shard finishes"
            raise Finished(Answer(values, [*_lines(found), step]))
        if named is None:
            shutil.rmtree(used, ignore_errors=True)
        return result

    def _share(self) -> tuple[int, int] | None:
        if not self.shard:
            return None
        place, _, total = self.shard.partition("/")
        if not (place.isdecimal() and total.isdecimal() and int(place) < int(total)):
            raise ParameterError(f"Give shard as I/N with I from 0 to N - 1, such as 0/8, not {self.shard!r}.")
        return int(place), int(total)

    def refuse(self, **given: Any) -> None:
        """Raise :class:`ParameterError` for options that do not go with an engine, by their name without dashes."""
        for name, value in given.items():
            if value:
                raise ParameterError(f"--{name.replace('_', '-')} does not work with --engine; leave one of them out.")


HERE = EngineOptions()
"""Here and at once."""


def source_of(data: str, reading: Reading = AS_FOUND, *, part: str = "train", labelled: bool = True) -> Source:
    """Return data as an engine reads them.

    Parameters
    ----------
    data : str
        A path or an address.
    reading : Reading
        Columns of tables, and how deep the folders of classes lie.
    part : {"train", "test"}
        Which part, where there are two.
    labelled : bool
        Whether labels are wanted.
    """
    from evergrow.data import read

    return read(data, reading.options(), part=part, labelled=labelled)


command_group("engine", "Look after work on several processes or machines.")


@command("engine status")
def status_command(folder: Annotated[Path, typer.Argument(metavar="OUT")], as_json: Json = False) -> Answer:
    """Say what of a job is done, failed and left. Nothing has to run for it, and nothing is changed.

    For example:

      evergrow engine status birds.evg.engine

      evergrow engine status /shared/features --json

    Exit codes: 0 said, 1 said and shards have failed, 2 no such job, 130 interrupted.

    Parameters
    ----------
    folder
        MODEL.engine, or the folder that --set out_dir=... named.
    """
    from evergrow.engine.status import status

    found = status(folder)
    code = ExitCode.LOOK if found.failed else None
    return Answer({"folder": str(folder), **found.to_dict()}, _lines(found), code=code)


def _lines(found: Status) -> list[str]:
    """Return how far a job is, for people."""
    shards = f"{found.done:,} of {found.shards:,} done, {len(found.failed):,} failed, {found.left:,} left"
    entries = [("job", f"{found.work}, {'finished' if found.finished else 'not finished'}"), ("shards", shards)]
    if found.first is not None:
        entries.append(("first samples", f"computed of {found.first[0]:,} of {found.first[1]:,} shards"))
    entries.append(("samples", f"{found.samples:,}" + (f", {found.left_out:,} left out" if found.left_out else "")))
    if found.unreadable:
        entries.append(("left out", f"{len(found.unreadable):,} files that cannot be read: {found.unreadable[0]}, ..."))
    return facts(entries) + [f"failed: {why}" for _, why in sorted(found.failed.items())[:10]]
