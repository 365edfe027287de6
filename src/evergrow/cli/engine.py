"""``--engine`` of several commands, and ``evergrow engine status``: work on several processes or machines."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

PANEL = "On several processes or machines"


class EngineName(str, Enum):
    """Where work is done that is done shard by shard."""

    LOCAL = "local"
    RAY = "ray"


Address = Annotated[str, Rare("of the Ray cluster: HOST:PORT, ray://HOST:PORT, auto (finds or starts one) or local")]
GpusPerWorker = Annotated[float, Rare("GPUs, or a share of one, of each worker")]


@dataclass(frozen=True)
class Placing(OptionGroup):
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

    def opened(self, folder: Path, *, workers: int | None, quiet: bool = False) -> Engine:
        """Return the engine that was asked for.

        Parameters
        ----------
        folder : Path
            Where manifest and results are kept.
        workers : int or None
            How many work at a time.
        quiet : bool
            Whether a bar is out of place.
        """
        from evergrow.engine.engines import LocalEngine, RayEngine
        from evergrow.engine.manifest import Division

        division = Division(rows=self.shard_rows, size=self.shard_mib << 20, first_rows=self.first_rows)
        common: dict[str, Any] = {
            "folder": folder,
            "division": division,
            "progress": not quiet and sys.stderr.isatty(),
            "share": _share(self.shard),
        }
        if self.engine is EngineName.RAY:
            return RayEngine(
                address=self.address,
                workers=workers,
                gpus_per_worker=self.gpus_per_worker,
                cpus_per_worker=self.cpus_per_worker,
                **common,
            )
        return LocalEngine(workers=1 if workers is None else workers, **common)

    def refuse(self, **given: Any) -> None:
        """Raise :class:`ParameterError` for options that do not go with an engine, by their name without dashes."""
        for name, value in given.items():
            if value:
                option = f"--{name.replace('_', '-')}"
                raise ParameterError(f"{option} must be left out with --engine, got {value}")


@dataclass(frozen=True)
class Spreading(Placing):
    """Where a command does its work, and with how many workers."""

    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Workers at a time.", show_default=False, rich_help_panel=PANEL),
    ] = None

    def engine_in(self, folder: Path, *, quiet: bool = False) -> Engine:
        """Return the engine that was asked for; arguments as for :meth:`opened`."""
        return self.opened(folder, workers=self.workers, quiet=quiet)


HERE = Spreading()
"""Here and at once."""

IN_PLACE = Placing()
"""The same, of a command whose workers are its own."""


def _share(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    place, _, total = text.partition("/")
    if not (place.isdecimal() and total.isdecimal() and int(place) < int(total)):
        raise ParameterError(f"--shard must be I/N with I from 0 to N - 1, such as 0/8, got {text!r}")
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

    columns = {"image_column": reading.image_column, "text_column": reading.text_column}
    named = {**columns, "label_column": reading.label_column, "class_level": reading.class_level}
    options: dict[str, Any] = {name: value for name, value in named.items() if value}
    return read(data, **options, part=part, labelled=labelled)


def job_folder(placing: Placing, model: Path) -> tuple[Path, bool]:
    """Return the folder of a job that ends in a model, and whether it is to go with the job: one that nobody named."""
    named = placing.out_dir
    return (model.with_name(f"{model.name}.engine"), True) if named is None else (named, False)


def drop_folder(folder: Path, passing: bool) -> None:
    """Remove the folder of a job that has come to its end, where nobody named it."""
    if passing:
        shutil.rmtree(folder, ignore_errors=True)


def share_answer(folder: Path, started: float) -> Answer:
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
        Path, typer.Argument(metavar="OUT", help="The folder of --out-dir, or MODEL.engine.", show_default=False)
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
