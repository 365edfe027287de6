"""Jobs: a zip of thousands of images becomes one change; cancelled before that, it leaves the model as it was.

An image that cannot be read is named, counted and left out. Jobs are remembered over a restart: the change that one
makes bears its id, so that it is known whether one that was cut short while it wrote had written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import EvergrowError, ImageError, InputError
from evergrow.core.escaping import one_line
from evergrow.serve.answering import outcome_values
from evergrow.serve.batching import Batcher, Prepared
from evergrow.serve.bodies import SentImage, checked
from evergrow.serve.edits import Teach
from evergrow.serve.job_records import JobRecords
from evergrow.serve.logs import log
from evergrow.serve.model import JOB, ServedModel, Wanted
from evergrow.serve.problems import Problem, problem_of
from evergrow.serve.schemas import LabelList
from evergrow.serve.service import Service
from evergrow.serve.threads import cores
from evergrow.serve.versions import Version
from evergrow.serve.zips import ImageZip, ZippedImage

_REMEMBERED = 100
_ENDED = ("done", "failed", "cancelled", "interrupted")
_NAMED = 100  # images that are left out by name
_PAUSE = 0.2  # seconds between two tries at a full queue
_INTERRUPTED = "the service ended before the job did; nothing was changed"


@dataclass(eq=False)
class Job:
    """One job.

    Parameters
    ----------
    id : str
        A name that cannot be guessed.
    model : str
        Name of the model.
    total : int
        Images in the zip.
    """

    id: str
    model: str
    total: int
    state: str = "running"
    done: int = 0
    skipped: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    error: str | None = None
    change: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self) -> dict[str, Any]:
        """Return the job for callers."""
        names = ("id", "model", "state", "done", "total", "skipped", "failures", "error", "change")
        return {name: getattr(self, name) for name in names}

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in _ENDED

    def tell(self, **values: Any) -> None:
        """Set what changed and wake those who listen."""
        for name, value in values.items():
            setattr(self, name, value)
        self._changed.set()
        self._changed = asyncio.Event()

    def skip(self, name: str, reason: str) -> None:
        """Take note of an image that is left out; of many the first are named."""
        self.skipped += 1
        if len(self.failures) < _NAMED:
            self.failures.append({"name": name, "reason": one_line(reason)[:300]})

    async def records(self, closing: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
        """Yield the job as it is now and whenever it changes, until it has ended or the service does."""
        end = asyncio.ensure_future(closing.wait())
        try:
            while True:
                changed = asyncio.ensure_future(self._changed.wait())
                yield self.record()
                if self.has_ended or closing.is_set():
                    changed.cancel()
                    return
                await asyncio.wait((changed, end), return_when=asyncio.FIRST_COMPLETED, timeout=15)
                changed.cancel()
        finally:
            end.cancel()


class Jobs:
    """All jobs of the service.

    Parameters
    ----------
    service : Service
        What they work with.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._records = JobRecords(service.store.folder)
        self._closing = False
        if not service.config.read_only:
            self._remember()

    def _remember(self) -> None:
        """Read the jobs of before; those that had not ended then never will."""
        for values in self._records.read()[-_REMEMBERED:]:
            job = Job(**values)
            if job.state == "writing" and self._was_written(job):
                job.state = "done"
            elif not job.has_ended:
                job.state, job.error = "interrupted", _INTERRUPTED
            self._jobs[job.id] = job

    def _was_written(self, job: Job) -> bool:
        try:
            model = self._service.store.model(job.model)
            return any(change.extra.get(JOB) == job.id for change in model.history(model.current()))
        except EvergrowError:  # the model is gone, or damaged
            return False

    def _tell(self, job: Job, **values: Any) -> None:
        """Say that a job came to another state, here and on disk."""
        job.tell(**values)
        self._write()

    def _write(self) -> None:
        self._records.write(job.record() for job in self._jobs.values())

    def list(self) -> list[Job]:
        """Return the jobs that are remembered, the oldest first."""
        return [*self._jobs.values()]

    def find(self, job_id: str) -> Job:
        """Return a job, or raise the problem 404."""
        if job_id not in self._jobs:
            raise Problem(404, f"job must be one that is remembered, got {job_id[:80]!r}", "NoJob")
        return self._jobs[job_id]

    def check_room(self) -> None:
        """Raise the problem 503 where as many jobs are open as may be."""
        if sum(not job.has_ended for job in self._jobs.values()) >= self._service.limits.jobs:
            raise Problem(503, "jobs must be fewer at one moment: wait for one to end", "TooManyJobs", retry_after=5)

    async def start(self, name: str, model: ServedModel, file: IO[bytes], wanted: Wanted) -> Job:
        """Check a zip and begin to learn it; the file is closed at the end."""
        archive = await self._service.run(ImageZip, file, self._service.limits)
        try:
            checked(LabelList, {"labels": sorted({image.label for image in archive.images})})
            self.check_room()
        except BaseException:
            archive.close()
            raise
        job = Job(secrets.token_urlsafe(12), name, len(archive.images))
        self._jobs[job.id] = job
        while len(self._jobs) > _REMEMBERED and next(iter(self._jobs.values())).has_ended:
            self._jobs.popitem(last=False)
        self._write()
        wanted = dataclasses.replace(wanted, job=job.id)
        job.task = asyncio.create_task(self._work(job, model, archive, wanted))
        self._note_open()
        return job

    def cancel(self, job_id: str) -> Job:
        """End a job before anything is written, or raise the problem 409."""
        job = self.find(job_id)
        if job.state != "running" or job.task is None:
            raise Problem(409, f"job must be running to be cancelled, got one that is {job.state}", "JobEnded")
        job.task.cancel()
        self._tell(job, state="cancelled")
        return job

    async def close(self) -> None:
        """Cancel what runs, and wait for what is being written."""
        self._closing = True
        for job in self.list():
            if job.state == "running" and job.task is not None:
                job.task.cancel()
        tasks = [job.task for job in self.list() if job.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note_open(self) -> None:
        self._service.metrics.jobs.set(sum(not job.has_ended for job in self._jobs.values()))

    async def _work(self, job: Job, model: ServedModel, archive: ImageZip, wanted: Wanted) -> None:
        try:
            with archive:
                version = await self._service.run(model.current)
                rows, labels = await self._encoded(job, model, version, archive)
            self._tell(job, state="writing")
            outcome = await asyncio.shield(self._service.change(model, Teach(rows, labels), wanted))
            self._service.metrics.samples.labels("teach").inc(len(rows))
            self._tell(job, state="done", change=outcome_values(job.model, outcome))
        except asyncio.CancelledError:
            if self._closing:
                self._tell(job, state="interrupted", error=_INTERRUPTED)
            elif not job.has_ended:
                self._tell(job, state="cancelled")
            raise
        except Exception as error:
            problem = problem_of(error, str(self._service.store.folder))
            log("job failed", job=job.id, error=error if problem.status == 500 else None, problem=problem.detail)
            self._tell(job, state="failed", error=problem.detail)
        finally:
            self._note_open()

    async def _encoded(
        self, job: Job, model: ServedModel, version: Version, archive: ImageZip
    ) -> tuple[NDArray[Any], NDArray[np.str_]]:
        """Return features and labels of all images that can be read, each encoded by itself, a few prepared ahead."""
        if version.kind != "images":
            raise InputError(f"{version.kind} must be taught, since the model takes them, got a zip of images")
        batcher = await self._service.batcher(model, version)
        parts: list[NDArray[Any]] = []
        labels: list[str] = []
        ahead = 2 * cores()  # so that decoding and the backbone go on side by side, and little is held in memory
        for start in range(0, len(archive.images), ahead):
            some = archive.images[start : start + ahead]
            found = await asyncio.gather(*(self._prepared(batcher, archive, image) for image in some))
            kept = []
            for image, sample in zip(some, found, strict=True):
                if isinstance(sample, _Unreadable):
                    job.skip(image.name, sample.reason)
                else:
                    kept.append(sample)
                    labels.append(image.label)
            if kept:
                await _announce(batcher, len(kept))
                parts.append(await asyncio.wrap_future(batcher.submit(kept, alone=True)))
            job.tell(done=start + len(some))
        if not parts:
            raise InputError(f"zip must hold an image that can be read, got none: {job.failures[0]['reason']}")
        return np.concatenate(parts), np.asarray(labels, dtype=np.str_)

    async def _prepared(self, batcher: Batcher, archive: ImageZip, image: ZippedImage) -> Prepared | _Unreadable:
        """Return an image as the backbone takes it, or why it cannot be read."""
        try:
            sent = SentImage(image.name, await self._service.run(archive.read, image))
            (sample,) = await self._service.prepared(batcher.backbone, [sent])
            return sample
        except ImageError as error:
            return _Unreadable(str(error))
        except Problem as problem:
            if problem.kind != "BadZip":  # an entry that is larger than it says is meant to do harm
                raise
            return _Unreadable(problem.detail)


@dataclass(frozen=True)
class _Unreadable:
    """Why an image is left out."""

    reason: str


async def _announce(batcher: Batcher, n: int) -> None:
    """Wait for room in the queue of a backbone: a job has time, and those who ask go first."""
    while not _announced(batcher, n):
        await asyncio.sleep(_PAUSE)


def _announced(batcher: Batcher, n: int) -> bool:
    try:
        batcher.announce(n)
    except Problem:
        return False
    return True
