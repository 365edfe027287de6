"""Jobs: a zip of thousands of images becomes one change. A job that is cancelled leaves the model as it was.

Images that cannot be read are named, counted and left out. Jobs are remembered over a restart: the change that a job
makes bears its id, so that it is known whether a job that was killed while writing had written.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import secrets
import tempfile
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from evergrow.core.errors import EvergrowError, FileFormatError, ImageError, InputError
from evergrow.core.escaping import one_line, printable
from evergrow.core.files import atomic_path
from evergrow.data.archives import Archive
from evergrow.data.folders import is_hidden
from evergrow.data.items import IMAGE_SUFFIXES
from evergrow.data.storage import Tree
from evergrow.serve.backbones import Batcher, Prepared, cores
from evergrow.serve.config import Limits
from evergrow.serve.models import UPLOAD
from evergrow.serve.monitoring import log
from evergrow.serve.requests import (
    ChangeRequest,
    ChangeRequestDep,
    Problem,
    SentImage,
    media_type,
    problem_of,
    problems,
    validated,
)
from evergrow.serve.schemas import ClassName, JobList, JobRecord, SkippedImage
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep, check_writable

FILE_NAME = ".jobs.json"
_REMEMBERED = 100
_NAMED = 100  # images that are left out by name
_PAUSE = 0.2  # seconds between two tries at a full queue
_POLL, _KEEP_ALIVE = 0.1, 15.0  # seconds between two looks at a job, and between two events of one that stands still
_INTERRUPTED = "the service ended before the job did; nothing was changed"
_ZIP_TYPES = ("application/zip", "application/x-zip-compressed", "application/octet-stream")


class JobFile(BaseModel):
    """The file in the folder of the models that remembers jobs."""

    version: Literal[1] = 1
    jobs: list[JobRecord]

    @classmethod
    def read(cls, folder: Path) -> list[JobRecord]:
        """Return the jobs that are remembered, the oldest first; none if the file is missing or damaged."""
        try:
            return cls.model_validate_json((folder / FILE_NAME).read_bytes()).jobs[-_REMEMBERED:]
        except FileNotFoundError:
            return []
        except (ValidationError, OSError) as error:
            log("jobs are forgotten", problem=str(error))
            return []

    def write(self, folder: Path) -> None:
        """Write the file in one step; if that fails, jobs are known until the service ends."""
        # What a job changed is in the history of its model.
        text = self.model_dump_json(exclude={"jobs": {"__all__": {"change"}}})
        try:
            with atomic_path(folder / FILE_NAME) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except (EvergrowError, OSError) as error:
            log("jobs are not written down", problem=str(error))


@dataclass(eq=False)
class Job:
    """One job.

    Parameters
    ----------
    record : JobRecord
        What callers see of it, replaced at every change.
    task : asyncio.Task, optional
        Its work; None after a restart.
    """

    record: JobRecord
    task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.record.state not in ("running", "writing")

    def update(self, **values: Any) -> None:
        """Change the record."""
        self.record = self.record.model_copy(update=values)

    def skip(self, name: str, reason: str) -> None:
        """Count an image that is left out; the first ones are named."""
        failures = [*self.record.failures, SkippedImage(name=name, reason=one_line(reason)[:300])]
        self.update(skipped=self.record.skipped + 1, failures=failures[:_NAMED])


class UploadedZip:
    """A zip of images in folders named by class, in a file of its own; nothing is unpacked to disk.

    Parameters
    ----------
    path : Path
        The file, which is removed at the end.
    limits : Limits
        How much may be in it.

    Raises
    ------
    Problem
        413 if there is too much in it; 422 if it is no zip, is meant to do harm, or holds no image.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        try:
            self._archive = Archive(Tree(path.parent), path.name)
            self.images = self._labelled(limits)
        except FileFormatError as error:
            path.unlink()
            raise Problem(422, str(error).replace(str(path), "the zip"), "BadZip") from error
        except BaseException:
            path.unlink()
            raise

    def _labelled(self, limits: Limits) -> list[tuple[str, str]]:
        """Return the name and class of each image. A folder around all of them, as many tools pack it, is no class."""
        sizes = self._archive.sizes
        if len(sizes) > limits.zip_entries or sum(sizes.values()) > limits.zip_bytes:
            most = f"{limits.zip_entries:,} files and {limits.zip_bytes:,} bytes"
            raise Problem(413, f"a zip may hold at most {most} once it is unpacked", "TooMany")
        split = [name.split("/") for name in sizes if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES]
        found = [parts for parts in split if len(parts) > 1 and not any(map(is_hidden, parts))]
        if not found:
            raise Problem(422, "the zip holds no images in folders named by class", "BadZip")
        wrapped = len({parts[0] for parts in found}) == 1 and all(len(parts) > 2 for parts in found)
        return [("/".join(parts), parts[1 if wrapped else 0]) for parts in found]

    def read(self, name: str) -> bytes:
        """Return the content of an image."""
        try:
            return self._archive.read(name)
        except FileFormatError as error:
            raise ImageError(f"{printable(name)[:200]} is damaged in the zip") from error

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


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
        self._closing = False
        for record in [] if service.config.read_only else JobFile.read(service.store.folder):
            job = Job(record)
            if record.state == "writing" and self._was_written(record):
                job.update(state="done")
            elif not job.has_ended:
                job.update(state="interrupted", error=_INTERRUPTED)
            self._jobs[record.id] = job

    def _was_written(self, record: JobRecord) -> bool:
        try:
            model = self._service.store.model(record.model)
            return any(change.extra.get("job") == record.id for change in model.history())
        except EvergrowError:  # the model is gone, or damaged
            return False

    def records(self) -> list[JobRecord]:
        """Return the jobs that are remembered, the oldest first."""
        return [job.record for job in self._jobs.values()]

    def find(self, job_id: str) -> Job:
        """Return a job, or raise the problem 404."""
        if job_id not in self._jobs:
            raise Problem(404, f"no job {job_id[:80]!r} is remembered", "NoJob")
        return self._jobs[job_id]

    def check_room(self) -> None:
        """Raise the problem 503 if as many jobs are open as may be."""
        if self._count_open() >= self._service.limits.jobs:
            raise Problem(503, "too many jobs are open: wait for one to end", "TooManyJobs", retry_after=5)

    async def start(self, model: OpenModel, path: Path, request: ChangeRequest) -> Job:
        """Check a zip and begin to learn it; the file is removed at the end."""
        archive = await self._service.run(UploadedZip, path, self._service.limits)
        try:
            validated(list[ClassName], sorted({label for _, label in archive.images}))
            self.check_room()
        except BaseException:
            archive.close()
            raise
        job = Job(JobRecord(id=secrets.token_urlsafe(12), model=model.name, total=len(archive.images)))
        self._jobs[job.record.id] = job
        while len(self._jobs) > _REMEMBERED and next(iter(self._jobs.values())).has_ended:
            self._jobs.popitem(last=False)
        self._write()
        request = dataclasses.replace(request, job=job.record.id)
        job.task = asyncio.create_task(self._work(job, model, archive, request))
        return job

    def cancel(self, job_id: str) -> Job:
        """End a job before anything is written, or raise the problem 409."""
        job = self.find(job_id)
        if job.record.state != "running" or job.task is None:
            raise Problem(409, f"the job is {job.record.state} and cannot be cancelled any more", "JobEnded")
        job.task.cancel()
        self._update(job, state="cancelled")
        return job

    async def close(self) -> None:
        """Cancel what runs, and wait for what is being written."""
        self._closing = True
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for job in self._jobs.values():
            if job.record.state == "running" and job.task is not None:
                job.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _count_open(self) -> int:
        return sum(not job.has_ended for job in self._jobs.values())

    def _update(self, job: Job, **values: Any) -> None:
        """Change the record of a job, here and on disk."""
        job.update(**values)
        self._write()

    def _write(self) -> None:
        self._service.metrics.jobs.set(self._count_open())
        JobFile(jobs=self.records()).write(self._service.store.folder)

    async def _work(self, job: Job, model: OpenModel, archive: UploadedZip, request: ChangeRequest) -> None:
        try:
            with closing(archive):
                rows, labels = await self._encode(job, model, archive)
            self._update(job, state="writing")
            taught = self._service.change(
                model, lambda learner: learner.partial_fit((rows, labels)), request, len(rows)
            )
            result = await asyncio.shield(taught)
            self._service.metrics.samples.labels("teach").inc(len(rows))
            self._update(job, state="done", change=result.answer(model.name))
        except asyncio.CancelledError:
            if self._closing:
                self._update(job, state="interrupted", error=_INTERRUPTED)
            elif not job.has_ended:
                self._update(job, state="cancelled")
            raise
        except Exception as error:
            problem = problem_of(error, str(self._service.store.folder))
            bug = error if problem.status_code == 500 else None
            log("job failed", job=job.record.id, error=bug, problem=problem.detail)
            self._update(job, state="failed", error=problem.detail)

    async def _encode(self, job: Job, model: OpenModel, archive: UploadedZip) -> tuple[NDArray[Any], NDArray[np.str_]]:
        """Return features and labels of all images that can be read, each encoded by itself, a few prepared ahead."""
        batcher = await self._service.batcher(model)
        parts: list[NDArray[Any]] = []
        labels: list[str] = []
        ahead = 2 * cores()  # so that decoding and the backbone go on side by side, and little is held in memory
        for start in range(0, len(archive.images), ahead):
            some = archive.images[start : start + ahead]
            found = await asyncio.gather(*(self._prepare(batcher, archive, name) for name, _ in some))
            kept = []
            for (name, label), sample in zip(some, found, strict=True):
                if isinstance(sample, ImageError):
                    job.skip(printable(name)[:200], str(sample))
                else:
                    kept.append(sample)
                    labels.append(label)
            if kept:
                while not batcher.has_room(len(kept)):  # a job has time, and those who ask go first
                    await asyncio.sleep(_PAUSE)
                parts.append(await asyncio.wrap_future(batcher.submit(kept, alone=True)))
            job.update(done=start + len(some))
        if not parts:
            reason = job.record.failures[0].reason
            raise InputError(f"the zip holds no image that can be read; the first one: {reason}")
        return np.concatenate(parts), np.asarray(labels, dtype=np.str_)

    async def _prepare(self, batcher: Batcher, archive: UploadedZip, name: str) -> Prepared | ImageError:
        """Return an image as the backbone takes it, or the error if it cannot be read."""
        try:
            sent = SentImage(printable(name)[:200], await self._service.run(archive.read, name))
            (sample,) = await self._service.prepared(batcher.backbone, [sent])
            return sample
        except ImageError as error:
            return error


# -- routes -----------------------------------------------------------------------------------------------------

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=problems())
_ZIP = {
    "requestBody": {
        "required": True,
        "description": "A zip of images in folders named by class.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]


@router.post(
    "/models/{m}/jobs",
    status_code=202,
    dependencies=[Depends(check_writable)],
    responses=problems(400, 404, 409, 413, 415),
    openapi_extra=_ZIP,
)
async def start_job(
    model: ModelDep,
    request: Request,
    conditions: ChangeRequestDep,
    jobs: JobsDep,
    service: ServiceDep,
    response: Response,
) -> JobRecord:
    """Learn a zip of images as one change, with progress; nothing is written before all of it was looked at."""
    if media_type(request) not in _ZIP_TYPES:
        raise Problem(415, "send a zip as application/zip", "MediaType")
    if model.version.kind != "images":
        raise InputError(f"the model takes {model.version.kind}: a zip of images cannot be taught to it")
    jobs.check_room()
    path, digest = await _received(request, service.store.folder)
    job = await jobs.start(model, path, conditions.asking(b"job", digest))
    response.headers["Location"] = f"/api/v1/jobs/{job.record.id}"
    return job.record


@router.get("/jobs")
async def list_jobs(jobs: JobsDep) -> JobList:
    """Return the jobs that are remembered, the oldest first."""
    return JobList(jobs=jobs.records())


@router.get(
    "/jobs/{j}",
    response_model=JobRecord,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **problems(404)},
)
async def follow_job(j: str, request: Request, jobs: JobsDep, service: ServiceDep) -> Any:
    """Return a job; asked for ``text/event-stream``, its progress as server-sent events until it ends."""
    job = jobs.find(j)
    if "text/event-stream" not in request.headers.get("accept", ""):
        return job.record
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(job, service.closing), media_type="text/event-stream", headers=headers)


@router.delete("/jobs/{j}", dependencies=[Depends(check_writable)], responses=problems(404, 409))
async def cancel_job(j: str, jobs: JobsDep) -> JobRecord:
    """Cancel a job; the model stays as it was."""
    return jobs.cancel(j).record


async def _received(request: Request, folder: Path) -> tuple[Path, bytes]:
    """Write the body to a file beside the models, and return its path and its hash."""
    digest = hashlib.blake2b(digest_size=16)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=UPLOAD, suffix=".zip", delete=False) as file:
        path = Path(file.name)
        try:
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
        except BaseException:
            path.unlink()
            raise
    return path, digest.digest()


async def _events(job: Job, closing: asyncio.Event) -> AsyncIterator[str]:
    """Yield the record now, whenever it changes, and now and then for proxies, until the job or the service ends."""
    sent, at = None, 0.0
    while True:
        record, has_ended = job.record, job.has_ended
        if record is not sent or time.monotonic() - at > _KEEP_ALIVE:
            kind = record.state if has_ended else "progress"
            yield f"event: {kind}\ndata: {record.model_dump_json()}\n\n"
            sent, at = record, time.monotonic()
        if has_ended or closing.is_set():
            return
        await asyncio.sleep(_POLL)
