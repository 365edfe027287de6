"""A job: data in shards, the work to do, and the files of its folder.

::

    job.json           manifest of the data, the work, and the settings that decide
                       results
    KEY-template.evg   empty model with the layer that all shards share
    start.evg          model that an update, a prediction or an evaluation starts from
    first/             features of the samples that the layer is grown on, per shard
    statistics/        statistics of each shard
    merged/            partial sums of the statistics
    features/          features of each shard, as Parquet
    predict/           predictions of each shard, as Parquet
    evaluate/          the same, with true labels
    model.evg          result of a fit or an update
    finished.json      report of the finished job

The manifest depends on the data, the shard sizes and a seed, not on workers, machine or
time. Every result file is named by the job's key, a hash of manifest and settings, and
is written atomically. A file that exists under its name is complete.
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
"""Default maximum size of a shard; the smaller of the two applies."""


@dataclass(frozen=True)
class Manifest:
    """A data set in shards.

    Parameters
    ----------
    source : dict
        Description from which the source is reopened. The location of the data is not
        part of the hash.
    kind : {"image", "text", "features"}
        Kind of the samples.
    identity : str
        Hash of the data, computed by the source.
    shard_rows, shard_mib : int
        Maximum samples and MiB of a shard.
    first_rows : int
        Maximum number of samples that a first fit draws for the layer, and that a
        model is calibrated on.
    shards : tuple of Shard
        The shards, numbered from 0.
    first : tuple of int, optional
        Ascending row numbers, over all shards, of the samples that the layer is grown
        on. None selects all.
    widths : tuple of int
        Number of columns per block, for features of several blocks.
    unreadable : dict of str to str
        Reasons, by file name, of files whose contents could not be listed and that are
        left out.

    Examples
    --------
    >>> from evergrow.engine.job import Manifest
    >>> from evergrow.data import Shard
    >>> shards = (Shard(0, 60, 0), Shard(1, 40, 0))
    >>> sizes = (4096, 256, 3)
    >>> manifest = Manifest({}, "features", "0123", *sizes, shards, first=(5, 59, 61))
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
        """Raise :class:`FileFormatError` if the shards or first samples are invalid."""
        require(
            self.kind in ("image", "text", "features"),
            f"its 'kind' of samples is {self.kind!r:.60}",
        )
        require(bool(self.shards), "it has no shards")
        numbers = [shard.number for shard in self.shards]
        require(
            numbers == list(range(len(numbers)))
            and all(shard.rows > 0 for shard in self.shards),
            "its shards are empty or out of order",
        )
        if self.first is not None:
            ascending = bool(self.first) and all(a < b for a, b in pairwise(self.first))
            inside = ascending and self.first[-1] < self.rows
            require(inside, "its first samples are not ascending rows of its shards")

    @property
    def rows(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.rows for shard in self.shards)

    def first_of(self, shard: Shard) -> NDArray[np.int64]:
        """Return the rows of a shard that are among the first samples."""
        if self.first is None:
            return np.arange(shard.rows)
        return self._first_rows[shard.number]

    @cached_property
    def _first_rows(self) -> list[NDArray[np.int64]]:
        """`first` as rows of each shard, in the order of the shards."""
        first = np.array(self.first, dtype=np.int64)
        ends = np.cumsum([shard.rows for shard in self.shards])
        starts = [0, *ends[:-1].tolist()]
        pieces = np.split(first, np.searchsorted(first, starts[1:]))
        return [piece - start for piece, start in zip(pieces, starts, strict=True)]

    @cached_property
    def key(self) -> str:
        """Hash of everything except the location of the data."""
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
    """Split a data set into shards, and draw the first samples.

    The first samples are a random sample of the data. The layer is set on them (it is
    *grown*), and the model is calibrated on them; see :mod:`evergrow.engine.fitting`.

    Parameters
    ----------
    source : Source
        The data.
    shard_rows, shard_mib : int
        Maximum samples and MiB of a shard.
    first_rows : int
        Maximum number of first samples. If the data has no more, all are taken.
    seed : int
        Seed of this draw.
    skip : bool
        Whether files whose contents cannot be listed are left out and recorded in the
        manifest.

    Returns
    -------
    Manifest

    Raises
    ------
    InputError
        If the data has no samples.
    FileFormatError
        If a file is damaged and `skip` is false.
    """
    identity = source.identity()
    unreadable: dict[str, str] = {}
    shards = tuple(
        source.shards(shard_rows, shard_mib << 20, unreadable if skip else None)
    )
    rows = sum(shard.rows for shard in shards)
    first = None
    if rows > first_rows:
        draw = np.random.default_rng(derive_seed(seed, "engine", "first rows"))
        drawn = draw.choice(rows, size=first_rows, replace=False, shuffle=False)
        first = tuple(np.sort(drawn).tolist())
    return Manifest(
        source=source.describe(),
        kind=source.kind,
        identity=identity,
        shard_rows=shard_rows,
        shard_mib=shard_mib,
        first_rows=first_rows,
        shards=shards,
        first=first,
        widths=tuple(source.widths),
        unreadable=unreadable,
    )


def digest_of(values: dict[str, Any] | Sequence[Any]) -> str:
    """Return a hash of JSON values, 16 hexadecimal digits."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


# -- the job and its report

Work = Literal["fit", "update", "features", "predict", "evaluate"]
"""Kinds of jobs."""

STAGES = (
    "first",
    "statistics",
    "digests",
    "merged",
    "features",
    "predict",
    "evaluate",
)
"""Folders of result files in the folder of a job."""

_TABLES = ("features", "predict", "evaluate")
"""Stages whose results are Parquet files. The others are archives."""


@record("engine-job")
@dataclass(frozen=True)
class _JobFile:
    """Content of ``job.json``. The fields are the same as in :class:`Job`."""

    manifest: Manifest
    work: Work
    settings: dict[str, Any]
    key: str
    backbone: dict[str, Any] | None = None


MAX_LISTED_FAILURES = 5
"""Number of failures that a message lists."""


@dataclass(frozen=True)
class ShardReport:
    """Summary of a shard, stored in its result file.

    Parameters
    ----------
    rows : int
        Number of samples in the file.
    shard : str
        Fingerprint of the shard; see :meth:`Job.fingerprint`.
    left_out : tuple of (str, str)
        Name and reason of every unreadable sample.
    lost : tuple of str
        Classes whose samples in this shard are all unreadable.
    """

    rows: Annotated[int, Between(0, 2**53)]
    shard: str
    left_out: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()


@record("engine-finished")
@dataclass
class JobReport:
    """Which shards of a job are finished, failed or left out.

    It grows while the job runs. ``finished.json`` holds the final state.

    Parameters
    ----------
    key : str
        Key of the job.
    shards : dict of str to ShardReport
        Reports of finished shards, by shard number.
    failed : dict of str to str
        Reasons of failed shards, by shard number.
    unreadable : dict of str to str
        Reasons, by file name, of files whose contents could not be listed.
    n_double_labels : int
        Samples whose label differs from that of an identical sample.
    double_labels : tuple of str
        Names of two identical samples with different labels, if there are any.
    """

    key: str
    shards: dict[str, ShardReport] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    n_double_labels: Annotated[int, Between(0, 2**53)] = 0
    double_labels: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise :class:`FileFormatError` if a shard has no number."""
        require(
            all(name.isdecimal() for name in (*self.shards, *self.failed)),
            "its shards are not numbered",
        )

    @property
    def rows(self) -> int:
        """Number of samples in finished shards."""
        return sum(report.rows for report in self.shards.values())

    def add(self, result: TaskResult) -> None:
        """Record the result of a shard's task."""
        shard = str(result.task.number)
        if result.state == "done":
            self.shards[shard] = result.report
        else:
            self.failed[shard] = result.error

    def progress(self) -> tuple[int, str]:
        """Return the number of finished and failed shards, and a note for the meter."""
        note = f"{self.rows:,} samples"
        if self.failed:
            note += f", {len(self.failed)} shards failed"
        return len(self.shards) + len(self.failed), note

    def samples_left_out(self) -> list[tuple[str, str]]:
        """Return (name, reason) of unreadable samples, in the order of the shards."""
        return [
            pair
            for shard in sorted(self.shards, key=int)
            for pair in self.shards[shard].left_out
        ]

    def summary(self) -> list[str]:
        """Return a line per kind of data that was left out: files, shards, samples."""
        samples = [f"{name}: {why}" for name, why in self.samples_left_out()]
        shards = [self.failed[shard] for shard in sorted(self.failed, key=int)]
        reasons_of = {
            "files could not be read and": list(self.unreadable.values()),
            "shards": shards,
            "samples could not be read and": samples,
        }
        lines = []
        for what, reasons in reasons_of.items():
            if not reasons:
                continue
            listed = reasons[:MAX_LISTED_FAILURES]
            if len(reasons) > MAX_LISTED_FAILURES:
                listed.append(f"and {len(reasons) - MAX_LISTED_FAILURES} more")
            lines.append(f"{len(reasons)} {what} were left out: {'; '.join(listed)}")
        return lines

    def to_values(self) -> dict[str, Any]:
        """Return plain values for JSON, with ``shards`` as their number."""
        return {
            "rows": self.rows,
            "shards": len(self.shards),
            "failed": self.failed,
            "left_out": [list(pair) for pair in self.samples_left_out()],
            "unreadable": self.unreadable,
        }


@dataclass(frozen=True, eq=False)
class Job:
    """Work to do in a folder.

    Parameters
    ----------
    folder : Path
        The folder. Every worker reaches it by this path.
    manifest : Manifest
        The data.
    work : str
        Kind of the job.
    settings : dict
        Everything else that decides the results, as plain JSON values.
    backbone : dict, optional
        Description of the backbone, including the path of its weights. None if the
        samples are features or the backbone is described by the start model.
    """

    folder: Path
    manifest: Manifest
    work: Work
    settings: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] | None = None

    @cached_property
    def key(self) -> str:
        """Hash of data, work and settings."""
        return digest_of([self.manifest.key, self.work, self.settings])

    @property
    def skips(self) -> bool:
        """Whether unreadable samples and shards are left out instead of failing."""
        return bool(self.settings.get("on_error") == "skip")

    def result(self, stage: str, name: int | str) -> Path:
        """Return the path of a result file.

        Parameters
        ----------
        stage : str
            Its folder, one of :data:`STAGES`.
        name : int or str
            Number of the shard, or the name of a sum of shards.
        """
        if isinstance(name, int):
            name = f"{name:06d}"
        if stage in _TABLES:
            suffix = ".parquet"
        else:
            suffix = ".evg"
        return self.folder / stage / f"{self.key}-{name}{suffix}"

    def fingerprint(self, shard: int) -> str:
        """Return a hash of the job and a shard. Result files store it."""
        return digest_of([self.key, to_values(self.manifest.shards[shard])])

    @property
    def template_file(self) -> Path:
        """The empty model whose layer all shards share."""
        return self.folder / f"{self.key}-template.evg"

    @property
    def start_file(self) -> Path:
        """The model that the job starts from. A fit and an extraction have none."""
        return self.folder / "start.evg"

    @property
    def model_file(self) -> Path:
        """The resulting model of a fit or an update."""
        return self.folder / "model.evg"

    @property
    def report_file(self) -> Path:
        """The final report. Written last, so the job is finished if it exists."""
        return self.folder / "finished.json"

    def final_report(self) -> JobReport | None:
        """Return the final report, or None if the job is not finished.

        A report that is damaged or of another job counts as missing.
        """
        name = str(self.report_file)
        try:
            values = parse_json(self.report_file.read_bytes(), name)
            report = from_document(JobReport, values, name)
        except (FileNotFoundError, FileFormatError):
            return None
        if report.key != self.key:
            return None
        return report


EXTRACTION = ("on_error", "batch_size", "precision")
"""Encoding settings that a job takes from a learner. Others belong to the machine."""


def extraction_settings(learner: Learner) -> dict[str, Any]:
    """Return evergrow's version and the settings :data:`EXTRACTION` of a learner.

    With another value of any of them, a job computes other features.
    """
    config = encode_config(learner.extract, False)
    return {
        "evergrow": __version__,
        **{name: getattr(config, name) for name in EXTRACTION},
    }


def begin_job(job: Job) -> Job:
    """Create the folder of a job and write ``job.json``. Return the job.

    If the folder already has the same job, its results are kept, so that the job is
    resumed.

    Raises
    ------
    EngineError
        If the folder holds another job, or something else under the name of a job file.
    """
    _prepare_folder(job)
    path = job.folder / "job.json"
    if path.exists():
        _check_same(read_job(job.folder), job)
    # Written even if it exists, because the data may have moved.
    write_document(
        path, _JobFile(job.manifest, job.work, job.settings, job.key, job.backbone)
    )
    return job


def _prepare_folder(job: Job) -> None:
    """Create the folder of a job, and check the files and folders that are there.

    Links, and folders in place of files, are rejected: a job would write through them.
    """
    folder = job.folder
    files = [
        folder / ".lock",
        folder / "job.json",
        job.template_file,
        job.start_file,
        job.model_file,
        job.report_file,
    ]
    stages = [folder / stage for stage in STAGES]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stage in stages:
            if stage.is_dir() and not stage.is_symlink():
                files += stage.glob(f"{job.key}-*")
        wrong = [path for path in files if path.exists() and not path.is_file()]
        wrong += [path for path in stages if path.exists() and not path.is_dir()]
        wrong += [path for path in (*files, *stages) if path.is_symlink()]
    except OSError as error:
        raise EngineError(
            f"{folder} cannot be the folder of a job: {error.strerror or error}"
        ) from error
    if wrong:
        raise EngineError(
            f"{wrong[0]} was not written by a job. Remove it, or choose another folder."
        )


def read_job(folder: str | os.PathLike[str]) -> Job:
    """Return the job of a folder.

    Raises
    ------
    EngineError
        If the folder has no job.
    FileFormatError
        If ``job.json`` is damaged or was altered.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    path = Path(folder, "job.json")
    if not path.is_file():
        raise EngineError(
            f"{os.fspath(folder)} is not the folder of a job: it has no job.json."
        )
    found = from_document(
        _JobFile, parse_json(path.read_bytes(), os.fspath(path)), os.fspath(path)
    )
    job = Job(Path(folder), found.manifest, found.work, found.settings, found.backbone)
    if job.key != found.key:
        raise FileFormatError(
            f"{path} was altered: its key does not match its data and settings"
        )
    return job


def _check_same(found: Job, job: Job) -> None:
    """Raise :class:`EngineError` if the job of a folder is not the job to begin.

    The message names the settings that differ.
    """
    if found.key == job.key:
        return
    before = _described(found)
    now = _described(job)
    differing = [
        f"{name} ({before.get(name)})"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    listed = ", ".join(differing) or "the seed, or in unreadable files"
    raise EngineError(
        f"{job.folder} holds a job that differs in {listed}. "
        "Choose another folder, or delete this one."
    )


def _described(job: Job) -> dict[str, Any]:
    """Return values by name that describe what decides a job's results."""
    manifest = job.manifest
    data = f"{manifest.rows:,} samples of kind {manifest.kind}"
    return {
        "data": f"{data}, {manifest.identity[:8]}",
        "shard_rows": manifest.shard_rows,
        "shard_mib": manifest.shard_mib,
        "first_rows": manifest.first_rows,
        "work": job.work,
        **job.settings,
    }
