"""A job in a folder: what is done with which data, where every result lies, and what failed.

    manifest.json      the data, in shards
    job.json           what is done with them, and all settings that decide the results
    first/             features of the samples that the layer is grown on, one file per shard
    statistics/        what each shard teaches, one file per shard
    merged/            sums of those, until all are one
    failed/            one note per shard that could not be done
    model.evg          the result of a fit or an update

Every result is named by the job's key, a hash of manifest and settings, and written in one step: whatever lies under
its name is whole and right, whoever wrote it and however often.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from evergrow.core.archive import parse_json
from evergrow.core.errors import EngineError, FileFormatError
from evergrow.core.record import from_document, record, write_document
from evergrow.core.version import __version__
from evergrow.engine.manifest import Manifest, check_same_data, digest_of, read_manifest
from evergrow.learner.encoder import encode_config
from evergrow.learner.learner import Learner

Work = Literal["fit", "update", "features", "predict", "evaluate"]

WORKS: tuple[str, ...] = get_args(Work)
"""What a job can do."""


class ShardError(EngineError):
    """A shard cannot be read; the message names it. A job may go on without it."""


@record("engine-job")
@dataclass(frozen=True)
class _JobFile:
    """What ``job.json`` holds."""

    work: Work
    settings: dict[str, Any]
    key: str
    backbone: dict[str, Any] | None = None


@dataclass(frozen=True)
class Job:
    """What is to be done in a folder.

    Parameters
    ----------
    folder : Path
        Where it is done; every worker reaches it by this path.
    manifest : Manifest
        The data.
    work : str
        What is done, one of :data:`WORKS`.
    settings : dict
        Everything else that decides the results. Plain JSON values.
    backbone : dict or None
        Description of the backbone, with where its weights are; None where samples are features or a model says it.
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

    def result(self, stage: str, name: int | str, suffix: str = ".evg") -> Path:
        """Return where a result of a stage lies: that of a shard by its number, others by name."""
        called = f"{name:06d}" if isinstance(name, int) else name
        return self.folder / stage / f"{self.key}-{called}{suffix}"

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

    def finished(self) -> dict[str, Any] | None:
        """Return what was written when everything was done; None before."""
        if not self.finish.is_file():
            return None
        values = parse_json(self.finish.read_bytes(), os.fspath(self.finish))
        return values if isinstance(values, dict) and values.get("key") == self.key else None

    # -- failures -------------------------------------------------------------------------------------------

    def failure(self, stage: str, shard: int) -> Path:
        """Return where the note of a failure lies, while it lasts."""
        return self.folder / "failed" / f"{self.key}-{stage}-{shard:06d}.json"

    def failures(self) -> dict[int, dict[str, Any]]:
        """Return the notes of failures by shard."""
        found: dict[int, dict[str, Any]] = {}
        for path in sorted((self.folder / "failed").glob(f"{self.key}-*.json")):
            values = parse_json(path.read_bytes(), os.fspath(path))
            if isinstance(values, dict) and isinstance(values.get("shard"), int):
                found[values["shard"]] = values
        return found


EXTRACTION = ("on_error", "batch_size", "precision", "decode")
"""Settings of an extraction that a job takes over from a learner; the others are those of the machine."""


def extraction_settings(learner: Learner) -> dict[str, Any]:
    """Return those settings of a learner that decide features, and the version that computes them."""
    config = encode_config(learner.extract, False)
    decisive = {name: getattr(config, name) for name in EXTRACTION}
    return {**decisive, "evergrow": __version__}


def begin_job(job: Job) -> Job:
    """Write what a job is into its folder, or take it up again where it is there.

    Raises
    ------
    EngineError
        If the folder is of other data or another job.
    """
    for stage in ("", "failed"):
        (job.folder / stage).mkdir(parents=True, exist_ok=True)
    path = job.folder / "manifest.json"
    if path.exists():
        check_same_data(read_manifest(path), job.manifest, path)
    job.manifest.write(path)  # also where it is there: data may have moved
    found = _read_values(job.folder)
    if found is not None:
        _check_same_job(found, job)
    write_document(job.folder / "job.json", _JobFile(job.work, job.settings, job.key, job.backbone))
    return job


def read_job(folder: str | os.PathLike[str]) -> Job:
    """Return the job of a folder.

    Raises
    ------
    EngineError
        If there is none.
    FileFormatError
        If its files are damaged or were altered.
    """
    path = Path(folder)
    values = _read_values(path)
    if values is None or not (path / "manifest.json").is_file():
        raise EngineError(f"folder must be that of a job, with manifest.json and job.json, got {path}")
    name = os.fspath(path / "job.json")
    found = from_document(_JobFile, values, name)
    job = Job(path, read_manifest(path / "manifest.json"), found.work, found.settings, found.backbone)
    if job.key != found.key:
        raise FileFormatError(f"{name} was altered: its key is not that of its manifest and settings")
    return job


@lru_cache(maxsize=4)
def known_job(folder: str, key: str) -> Job:
    """Return the job of a folder, read once per process.

    Raises
    ------
    EngineError
        If another job has taken its place.
    """
    job = read_job(folder)
    if job.key != key:
        raise EngineError(f"folder must hold the job {key}, got {job.key}: another job was begun in {folder}")
    return job


def _read_values(folder: Path) -> dict[str, Any] | None:
    path = folder / "job.json"
    if not path.is_file():
        return None
    values = parse_json(path.read_bytes(), os.fspath(path))
    return values if isinstance(values, dict) else {}


def _check_same_job(found: dict[str, Any], job: Job) -> None:
    if found.get("key") == job.key:
        return
    theirs = found.get("settings") if isinstance(found.get("settings"), dict) else {}
    differing = [name for name in {**theirs, **job.settings} if theirs.get(name) != job.settings.get(name)]  # type: ignore[union-attr, dict-item]
    if found.get("work") != job.work:
        differing = ["work"]
    raise EngineError(
        f"folder must be new or hold this job, got {job.folder} with one that differs in "
        f"{', '.join(sorted(differing))}: choose another folder, or delete it"
    )
