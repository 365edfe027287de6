"""A job in a folder: its data in shards, what is done with them, where every result lies, and what failed.

    job.json           the data in shards, what is done with them, and all settings that
    decide the results first/             features of the samples that the layer is
    grown on, one file per shard statistics/        what each shard teaches, one file
    per shard merged/            sums of those, until all are one model.evg          the
    result of a fit or an update

The manifest depends on the data, the sizes of shards and a seed, not on workers,
machine or time. Every result is named by the job's key, a hash of manifest and
settings, and written in one step: a file under its name is whole and right, whoever
wrote it and however often.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import EngineError, FileFormatError
from evergrow.core.record import (
    Between,
    from_document,
    record,
    require,
    to_values,
    write_document,
)
from evergrow.core.seeding import derive_seed
from evergrow.core.version import __version__
from evergrow.data import Shard, Source
from evergrow.engine.runners import TaskResult
from evergrow.learner.encoder import encode_config
from evergrow.learner.learner import Learner
from evergrow.learner.learning import BLOCK

SHARD_ROWS = 4096
SHARD_MIB = 256
"""Default size of a shard, whichever is reached first."""


@dataclass(frozen=True)
class Manifest:
    """A data set in shards.

    Parameters
    ----------
    source : dict
        From which the source is made again; where the data lie is no part of the hash.
    kind : {"image", "text", "features"}
        What the samples are.
    identity : str
        Hash of the data, by the source.
    shard_rows, shard_mib : int
        Most samples and MiB of a shard.
    first_rows : int
        Most samples that the layer of a first fit is grown on, and that a model is
        calibrated on.
    shards : tuple of Shard
        The shards, numbered from 0.
    first : tuple of int or None
        The samples that a layer is grown on, ascending, counted through all shards;
        None for all.
    widths : tuple of int
        Columns of each block, where samples are features of several.
    unreadable : dict of str to str
        Files of which not even the contents could be listed, with the reason, where
        such are left out.

    Examples
    --------
    >>> from evergrow.engine.job import Manifest
    >>> from evergrow.data import Shard
    >>> shards = (Shard(0, 60, 0), Shard(1, 40, 0))
    >>> manifest = Manifest({}, "features", "0123", 4096, 256, 3, shards, first=(5, 59, 61))
    >>> [manifest.first_of(shard).tolist() for shard in shards]
    [[5, 59], [1]]
    """

    source: dict[str, Any] = field(compare=False)
    kind: str
    identity: str
    shard_rows: int
    shard_mib: int
    first_rows: int
    shards: tuple[Shard, ...]
    first: tuple[int, ...] | None = None
    widths: tuple[Annotated[int, Between(1, 2**53)], ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where the shards of a file cannot be, or its first samples are not theirs."""
        require(
            self.kind in ("image", "text", "features"),
            f"its 'kind' of samples is {self.kind!r:.60}",
        )
        require(bool(self.shards), "it has no shards")
        numbered = [shard.number for shard in self.shards] == list(
            range(len(self.shards))
        )
        require(
            numbered and all(shard.rows > 0 for shard in self.shards),
            "its shards are empty or not in order",
        )
        if self.first is not None:
            ascending = bool(self.first) and all(a < b for a, b in pairwise(self.first))
            inside = ascending and self.first[-1] < self.rows
            require(inside, "its first samples are not ascending rows of its shards")

    @property
    def rows(self) -> int:
        """Samples in all shards."""
        return sum(shard.rows for shard in self.shards)

    def first_of(self, shard: Shard) -> NDArray[np.int64]:
        """Return the rows of a shard that are among the first, counted from its beginning."""
        if self.first is None:
            return np.arange(shard.rows)
        return self._first_rows[shard.number]

    @cached_property
    def _first_rows(self) -> list[NDArray[np.int64]]:
        starts = np.cumsum([0, *(shard.rows for shard in self.shards)])
        first = np.array(self.first, dtype=np.int64)
        pieces = np.split(first, np.searchsorted(first, starts[1:-1]))
        return [piece - start for piece, start in zip(pieces, starts, strict=False)]

    @cached_property
    def key(self) -> str:
        """A hash of everything but where the data lie."""
        return digest_of(
            {name: value for name, value in to_values(self).items() if name != "source"}
        )


def plan(
    source: Source,
    *,
    shard_rows: int = SHARD_ROWS,
    shard_mib: int = SHARD_MIB,
    first_rows: int = BLOCK,
    seed: int = 0,
    skip: bool = False,
) -> Manifest:
    """Return the manifest of a data set.

    Parameters
    ----------
    source : Source
        The data.
    shard_rows, shard_mib : int
        Most samples and MiB of a shard.
    first_rows : int
        Most samples that a layer is grown on.
    seed : int
        Of the draw of the first samples.
    skip : bool
        Whether files of which not even the contents can be listed are left out, and
        named in the manifest.

    Raises
    ------
    InputError
        If it has no samples.
    FileFormatError
        If a file is damaged, and such are not to be left out.
    """
    identity = source.identity()
    unreadable: dict[str, str] = {}
    shards = tuple(
        source.shards(shard_rows, shard_mib << 20, unreadable if skip else None)
    )
    rows = sum(shard.rows for shard in shards)
    first = None  # all of them
    if rows > first_rows:
        draw = np.random.default_rng(derive_seed(seed, "engine", "first rows"))
        first = tuple(
            np.sort(
                draw.choice(rows, size=first_rows, replace=False, shuffle=False)
            ).tolist()
        )
    sizes = (shard_rows, shard_mib, first_rows)
    widths = tuple(source.widths)
    return Manifest(
        source.describe(),
        source.kind,
        identity,
        *sizes,
        shards,
        first,
        widths,
        unreadable,
    )


def digest_of(values: dict[str, Any] | Sequence[Any]) -> str:
    """Return a short hash of plain values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


# -- the job ---------------------------------------------------------------------------

Work = Literal["fit", "update", "features", "predict", "evaluate"]
"""What a job can do."""

STAGES = ("first", "statistics", "merged", "features", "predict", "evaluate")
"""Folders of results."""


@record("engine-job")
@dataclass(frozen=True)
class _JobFile:
    """What ``job.json`` holds."""

    manifest: Manifest
    work: Work
    settings: dict[str, Any]
    key: str
    backbone: dict[str, Any] | None = None


NAMED = 5
"""Failures that a message names."""


@dataclass(frozen=True)
class ShardReport:
    """What the result of a shard says of itself.

    Parameters
    ----------
    rows : int
        Samples in it.
    shard : str
        The shard, as :meth:`Job.fingerprint` names it.
    left_out : tuple of (str, str)
        Name of every sample that could not be read, and why.
    lost : tuple of str
        Classes all of whose samples in the shard could not be read.
    """

    rows: Annotated[int, Between(0, 2**53)]
    shard: str
    left_out: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()


@record("engine-finished")
@dataclass
class JobReport:
    """What a job has done so far; in the end ``finished.json`` holds it.

    Parameters
    ----------
    key : str
        The job's.
    shards : dict of str to ShardReport
        Reports of the shards that are done, by their numbers.
    failed : dict of str to str
        Shards that could not be done, by their numbers, and why.
    unreadable : dict of str to str
        Files that have no shards, since not even their contents could be listed, and
        why.
    """

    key: str
    shards: dict[str, ShardReport] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a file has shards without a number."""
        require(
            all(name.isdecimal() for name in (*self.shards, *self.failed)),
            "its shards are not numbered",
        )

    @property
    def rows(self) -> int:
        """Samples of all shards that are done."""
        return sum(report.rows for report in self.shards.values())

    def see(self, result: TaskResult) -> None:
        """Count the shard of a task, as done or as failed."""
        shard = str(result.task.number)
        if result.state == "done":
            self.shards[shard] = result.report
        else:
            self.failed[shard] = result.error

    def progress(self) -> tuple[int, str]:
        """Return the shards that are done or failed, and a note for the bar."""
        if self.failed:
            failed = f", {len(self.failed)} shards failed"
        else:
            failed = ""
        return len(self.shards) + len(self.failed), f"{self.rows:,} samples{failed}"

    def samples_left_out(self) -> list[tuple[str, str]]:
        """Return name and reason of samples that could not be read, in the order of the shards."""
        return [
            pair
            for shard in sorted(self.shards, key=int)
            for pair in self.shards[shard].left_out
        ]

    def summary(self) -> list[str]:
        """Return what was left out, in lines for people; none where nothing was."""
        samples = [f"{name}: {why}" for name, why in self.samples_left_out()]
        found = {
            "files could not be read and": list(self.unreadable.values()),
            "shards": [self.failed[shard] for shard in sorted(self.failed, key=int)],
            "samples could not be read and": samples,
        }
        lines = []
        for what, reasons in found.items():
            if reasons:
                if len(reasons) > NAMED:
                    more = [f"and {len(reasons) - NAMED} more"]
                else:
                    more = []
                lines.append(
                    f"{len(reasons)} {what} were left out: {'; '.join([*reasons[:NAMED], *more])}"
                )
        return lines

    def to_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        left_out = [list(pair) for pair in self.samples_left_out()]
        about = {
            "failed": self.failed,
            "left_out": left_out,
            "unreadable": self.unreadable,
        }
        return {"rows": self.rows, "shards": len(self.shards), **about}


_SIZES = ("shard_rows", "shard_mib", "first_rows")
_TABLES = ("features", "predict", "evaluate")


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be done in a folder.

    Parameters
    ----------
    folder : Path
        Where it is done; every worker reaches it by this path.
    manifest : Manifest
        The data.
    work : str
        What is done.
    settings : dict
        Everything else that decides the results. Plain JSON values.
    backbone : dict or None
        Description of the backbone, with where its weights are; None where samples are
        features or a model says it.
    """

    folder: Path
    manifest: Manifest
    work: Work
    settings: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] | None = None

    @cached_property
    def key(self) -> str:
        """A hash of data, work and settings."""
        return digest_of([self.manifest.key, self.work, self.settings])

    @property
    def skips(self) -> bool:
        """Whether what cannot be read is left out."""
        return bool(self.settings.get("on_error") == "skip")

    def result(self, stage: str, name: int | str) -> Path:
        """Return where a result of a stage lies: that of a shard by its number, others by name."""
        called = f"{name:06d}" if isinstance(name, int) else name
        return (
            self.folder
            / stage
            / f"{self.key}-{called}{'.parquet' if stage in _TABLES else '.evg'}"
        )

    def fingerprint(self, shard: int) -> str:
        """Return a hash of the job and of one of its shards; results hold it, so that none is taken for another's."""
        return digest_of([self.key, to_values(self.manifest.shards[shard])])

    @property
    def template(self) -> Path:
        """The empty model whose layer all shards are learned with."""
        return self.folder / f"{self.key}-template.evg"

    @property
    def start(self) -> Path:
        """The model that the job began with, where it did with one."""
        return self.folder / "start.evg"

    @property
    def model(self) -> Path:
        """The model that comes out."""
        return self.folder / "model.evg"

    @property
    def finish(self) -> Path:
        """What is written last."""
        return self.folder / "finished.json"

    def finished(self) -> JobReport | None:
        """Return what was done in the end; None before, and where what says so is damaged."""
        try:
            found = from_document(
                JobReport,
                parse_json(self.finish.read_bytes(), str(self.finish)),
                str(self.finish),
            )
        except (FileNotFoundError, FileFormatError):
            return None
        return found if found.key == self.key else None


EXTRACTION = ("on_error", "batch_size", "precision")
"""Settings of an extraction that a job takes over from a learner; the others are those of the machine."""


def extraction_settings(learner: Learner) -> dict[str, Any]:
    """Return those settings of a learner that decide features, and the version that computes them."""
    config = encode_config(learner.extract, False)
    return {
        "evergrow": __version__,
        **{name: getattr(config, name) for name in EXTRACTION},
    }


def begin_job(job: Job) -> Job:
    """Write what a job is into its folder, or take it up again where it is there.

    Raises
    ------
    EngineError
        If the folder is of other data or another job.
    """
    _check_folder(job)
    path = job.folder / "job.json"
    if path.exists():
        _check_same(read_job(job.folder), job)
    # Also where it is there: data may have moved.
    write_document(
        path, _JobFile(job.manifest, job.work, job.settings, job.key, job.backbone)
    )
    return job


def _check_folder(job: Job) -> None:
    """Make the folder of a job, or raise :class:`EngineError` where something in it would lead or write elsewhere."""
    folder = job.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [
            folder / ".lock",
            folder / "job.json",
            job.template,
            job.start,
            job.model,
            job.finish,
        ]
        stages = [folder / stage for stage in STAGES]
        for stage in stages:
            if stage.is_dir() and not stage.is_symlink():
                files += stage.glob(f"{job.key}-*")
        for path in (*files, *stages):
            if path in stages:
                is_right = path.is_dir()
            else:
                is_right = path.is_file()
            if path.is_symlink() or (path.exists() and not is_right):
                raise EngineError(
                    f"{path} is nothing that a job writes: remove it, or choose another folder."
                )
    except OSError as error:
        raise EngineError(
            f"{folder} cannot be the folder of a job: {error.strerror or error}"
        ) from error


def read_job(folder: str | os.PathLike[str]) -> Job:
    """Return the job of a folder.

    Raises
    ------
    EngineError
        If there is none.
    FileFormatError
        If its file is damaged or was altered.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    path = Path(folder, "job.json")
    if not path.is_file():
        raise EngineError(
            f"{os.fspath(folder)} is no folder of a job: it has no job.json."
        )
    found = from_document(
        _JobFile, parse_json(path.read_bytes(), os.fspath(path)), os.fspath(path)
    )
    job = Job(Path(folder), found.manifest, found.work, found.settings, found.backbone)
    if job.key != found.key:
        raise FileFormatError(
            f"{path} was altered: its key is not that of its data and settings"
        )
    return job


def _check_same(found: Job, job: Job) -> None:
    """Raise :class:`EngineError` where a folder has a job on other data, or on the same with other settings."""
    if found.key == job.key:
        return
    before, now = (
        {
            "data": f"{each.manifest.rows:,} samples of kind {each.manifest.kind}, {each.manifest.identity[:8]}",
            **{name: getattr(each.manifest, name) for name in _SIZES},
            "work": each.work,
            **each.settings,
        }
        for each in (found, job)
    )
    differing = [
        f"{name} ({before.get(name)})"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    listed = ", ".join(differing) or "the seed, or in files that cannot be read"
    raise EngineError(
        f"{job.folder} holds a job that differs in {listed}. Choose another folder, or delete this one."
    )
