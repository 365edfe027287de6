"""Jobs: a zip of thousands of images becomes one change; cancelled before that, it leaves the model as it was."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError
from evergrow.serve.answering import outcome_values
from evergrow.serve.bodies import SentImage, checked
from evergrow.serve.edits import Teach
from evergrow.serve.logs import log
from evergrow.serve.model import ServedModel, Wanted
from evergrow.serve.problems import Problem, problem_of
from evergrow.serve.schemas import LabelList
from evergrow.serve.service import Service
from evergrow.serve.versions import Version
from evergrow.serve.zips import ImageZip

_REMEMBERED = 100
_ENDED = ("done", "failed", "cancelled")


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
    error: str | None = None
    change: dict[str, Any] | None = None
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self) -> dict[str, Any]:
        """Return the job for callers."""
        names = ("id", "model", "state", "done", "total", "error", "change")
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
        job.task = asyncio.create_task(self._work(job, model, archive, wanted))
        self._note_open()
        return job

    def cancel(self, job_id: str) -> Job:
        """End a job before anything is written, or raise the problem 409."""
        job = self.find(job_id)
        if job.state != "running" or job.task is None:
            raise Problem(409, f"job must be running to be cancelled, got one that is {job.state}", "JobEnded")
        job.task.cancel()
        job.tell(state="cancelled")
        return job

    async def close(self) -> None:
        """Cancel what runs, and wait for what is being written."""
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
                rows = await self._encoded(job, model, version, archive)
            labels = np.asarray([image.label for image in archive.images], dtype=np.str_)
            job.tell(state="writing")
            outcome = await asyncio.shield(self._service.change(model, Teach(rows, labels), wanted))
            self._service.metrics.samples.labels("teach").inc(len(rows))
            job.tell(state="done", change=outcome_values(job.model, outcome))
        except asyncio.CancelledError:
            job.tell(state="cancelled")
            raise
        except Exception as error:
            problem = problem_of(error, str(self._service.store.folder))
            log("job failed", job=job.id, error=error if problem.status == 500 else None, problem=problem.detail)
            job.tell(state="failed", error=problem.detail)
        finally:
            self._note_open()

    async def _encoded(self, job: Job, model: ServedModel, version: Version, archive: ImageZip) -> NDArray[Any]:
        """Return the features of all images, each encoded by itself, a few prepared ahead."""
        if version.kind != "images":
            raise InputError(f"{version.kind} must be taught, since the model takes them, got a zip of images")
        batcher = await self._service.batcher(model, version)
        parts: list[NDArray[Any]] = []
        ahead = 4  # so that decoding and the backbone go on side by side, and little is held in memory
        for start in range(0, len(archive.images), ahead):
            some = archive.images[start : start + ahead]
            images = [SentImage(image.name, await self._service.run(archive.read, image)) for image in some]
            parts.append(await self._service.encoded(batcher, images, None, alone=True))
            job.tell(done=start + len(some))
        return np.concatenate(parts)
