"""``--engine`` of several commands, and ``evergrow engine status``: work on several processes or machines."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from evergrow.cli.console import Answer, facts
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


class EngineName(str, Enum):
    """Where work is done that is done shard by shard."""

    LOCAL = "local"
    RAY = "ray"


Address = Annotated[str, Rare("of the Ray cluster: HOST:PORT, ray://HOST:PORT, auto (finds or starts one) or local")]
GpusPerWorker = Annotated[float, Rare("GPUs, or a share of one, of each worker")]


@dataclass(frozen=True)
class EngineOptions(OptionGroup):
    """Where a command does its work: here and at once, or shard by shard on an engine."""

    engine: Annotated[
        EngineName | None,
        typer.Option(
            "--engine",
            help="Work shard by shard, on processes of this machine or a Ray cluster; DATA may then be an address such "
            "as s3://bucket/train/ too.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Workers at a time.", show_default=False, rich_help_panel=PANEL),
    ] = None
    address: Address = "auto"
    gpus_per_worker: GpusPerWorker = 0.0
    cpus_per_worker: Annotated[int, Rare("cores of each worker on a cluster: those beside the first decode images")] = 1
    out_dir: Annotated[
        Path | None, Rare("folder of manifest and results, which an interrupted command goes on from")
    ] = None
    shard: Annotated[str, Rare("I/N: only every N-th shard, from the I-th, for a batch system without Ray")] = ""
    shard_rows: Annotated[int, Rare("most samples of a shard")] = 4096
    shard_mib: Annotated[int, Rare("most bytes of a shard, in MiB")] = 256
    first_rows: Annotated[int, Rare("most samples that the layer is grown on")] = 20_000

    def run(
        self,
        job: Callable[[Engine], Result | None],
        *,
        model: Path | None = None,
        folder: Path | None = None,
        quiet: bool = False,
    ) -> Result | Answer:
        """Run a job on the engine that was asked for, and return its result; of a share, how far the job has come.

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
        """
        started = time.perf_counter()
        named = folder or self.out_dir
        used = named or Path(f"{model}.engine")
        result = job(self._engine(used, quiet))
        if result is None:
            return _share_answer(used, started)
        if named is None:
            shutil.rmtree(used, ignore_errors=True)
        return result

    def _engine(self, folder: Path, quiet: bool) -> Engine:
        from evergrow.engine.engines import LocalEngine, RayEngine

        common: dict[str, Any] = {
            "folder": folder,
            "shard_rows": self.shard_rows,
            "shard_mib": self.shard_mib,
            "first_rows": self.first_rows,
            "progress": not quiet and sys.stderr.isatty(),
            "share": _share(self.shard),
        }
        if self.engine is EngineName.RAY:
            return RayEngine(
                address=self.address,
                workers=self.workers or None,
                gpus_per_worker=self.gpus_per_worker,
                cpus_per_worker=self.cpus_per_worker,
                **common,
            )
        return LocalEngine(workers=self.workers or 1, **common)

    def refuse(self, **given: Any) -> None:
        """Raise :class:`ParameterError` for options that do not go with an engine, by their name without dashes."""
        for name, value in given.items():
            if value:
                raise ParameterError(f"--{name.replace('_', '-')} does not work with --engine; leave one of them out.")


HERE = EngineOptions()
"""Here and at once."""


def _share(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    place, _, total = text.partition("/")
    if not (place.isdecimal() and total.isdecimal() and int(place) < int(total)):
        raise ParameterError(f"Give shard as I/N with I from 0 to N - 1, such as 0/8, not {text!r}.")
    return int(place), int(total)


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


def _share_answer(folder: Path, started: float) -> Answer:
    """Return what a share of the work has come to."""
    from evergrow.engine.status import status

    found = status(folder)
    seconds = time.perf_counter() - started
    lines = [*status_lines(found), _next_step(found)]
    return Answer({"folder": str(folder), **found.to_dict(), "seconds": seconds}, lines)


def _next_step(found: Status) -> str:
    if found.first is not None:
        return "run every --shard once more when the first samples of all are there: the layer is grown on them"
    if found.left:
        return "when the other shares are done, the same command without --shard finishes"
    return "all shards are done: the same command without --shard finishes"


command_group("engine", "Look after work on several processes or machines.")


@command("engine status")
def status_command(
    folder: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="MODEL.engine, or the folder that --set out_dir=... named."),
    ],
    as_json: Json = False,
) -> Answer:
    """Say what of a job is done, failed and left. Nothing has to run for it, and nothing is changed.

    For example:

      evergrow engine status birds.evg.engine

      evergrow engine status /shared/features --json

    Exit codes: 0 said, 1 said and shards have failed, 2 no such job, 130 interrupted.
    """
    from evergrow.engine.status import status

    found = status(folder)
    code = ExitCode.LOOK if found.failed else None
    return Answer({"folder": str(folder), **found.to_dict()}, status_lines(found), code=code)


def status_lines(found: Status) -> list[str]:
    """Return how far a job is, for people."""
    shards = f"{found.done:,} of {found.shards:,} done, {len(found.failed):,} failed, {found.left:,} left"
    entries = [("job", f"{found.work}, {'finished' if found.finished else 'not finished'}"), ("shards", shards)]
    if found.first is not None:
        entries.append(("first samples", f"computed of {found.first[0]:,} of {found.first[1]:,} shards"))
    entries.append(("samples", f"{found.samples:,}" + (f", {found.left_out:,} left out" if found.left_out else "")))
    if found.unreadable:
        entries.append(("left out", f"{len(found.unreadable):,} files that cannot be read: {found.unreadable[0]}, ..."))
    lines = facts(entries)
    return lines + [f"failed: {why}" for _, why in sorted(found.failed.items())[:10]]
