"""Jobs: a zip of thousands of images becomes one change. A job that is cancelled leaves the model as it was.

Images that cannot be read are named, counted and left out. Jobs end with the service: a
caller that sends a zip again with the same idempotency key has it learned once, whether
or not the first try was written before the end.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, ImageError, InputError
from evergrow.core.escaping import one_line, printable
from evergrow.core.files import partial_folder
from evergrow.data.archives import DataArchive, TooManyFilesError
from evergrow.data.folders import is_hidden
from evergrow.data.image_suffixes import IMAGE_SUFFIXES
from evergrow.data.storage import Tree
from evergrow.features.backbone import Backbone
from evergrow.serve.backbones import Prepared, cores
from evergrow.serve.config import Limits
from evergrow.serve.monitoring import log
from evergrow.serve.requests import (
    PROBLEMS,
    UPLOAD,
    ChangeRequest,
    ChangeRequestDep,
    Problem,
    problem_of,
    receive_file,
    validated,
)
from evergrow.serve.schemas import ClassNames, JobRecord, SkippedImage
from evergrow.serve.service import ModelDep, OpenModel, Service, check_writable

_REMEMBERED = 100
_NAMED = 100  # images that are left out by name
_PAUSE = 0.2  # seconds between two tries at a full queue
_ZIP_TYPES = (
    "application/zip",
    "application/x-zip-compressed",
    "application/octet-stream",
)


LabelledImages = list[tuple[str, str]]
"""Name and class of each image."""


def open_zip(path: Path, limits: Limits) -> tuple[DataArchive, LabelledImages]:
    """Return a zip of images in folders named by class, and its images; nothing is unpacked to disk.

    A folder around all of them, as many tools pack it, is no class.

    Raises
    ------
    Problem
        413 if there is too much in it; 422 if it is no zip, is meant to do harm, or
        holds no image.
    """
    try:
        archive = DataArchive(Tree(path.parent), path.name, limits.zip_entries)
        too_much = sum(archive.sizes.values()) > limits.zip_bytes
    except TooManyFilesError:
        too_much = True
    except FileFormatError as error:
        raise Problem(
            422, str(error).replace(str(path), "the zip"), "BadZip"
        ) from error
    if too_much:
        most = f"{limits.zip_entries:,} files and {limits.zip_bytes:,} bytes"
        raise Problem(
            413, f"a zip may hold at most {most} once it is unpacked", "TooMany"
        )
    sizes = archive.sizes
    split = [
        name.split("/")
        for name in sizes
        if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
    ]
    found = [
        parts for parts in split if len(parts) > 1 and not any(map(is_hidden, parts))
    ]
    if not found:
        raise Problem(
            422, "the zip holds no images in folders named by class", "BadZip"
        )
    wrapped = len({parts[0] for parts in found}) == 1 and all(
        len(parts) > 2 for parts in found
    )
    images = [("/".join(parts), parts[1 if wrapped else 0]) for parts in found]
    validated(ClassNames, sorted({label for _, label in images}))
    return archive, images


class Jobs:
    """All jobs of the service.

    Parameters
    ----------
    service : Service
        What they work with.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.records: dict[str, JobRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        service.metrics.jobs.set_function(self._n_open)

    def _n_open(self) -> int:
        return sum(not record.has_ended for record in self.records.values())

    def find(self, job_id: str) -> JobRecord:
        """Return a job, whose record changes as it goes on, or raise the problem 404."""
        if job_id not in self.records:
            raise Problem(404, f"no job {job_id[:80]!r} is remembered", "NoJob")
        return self.records[job_id]

    def check_room(self) -> None:
        """Raise the problem 503 if as many jobs are open as may be."""
        if self._n_open() >= self.service.limits.jobs:
            raise Problem(
                503,
                "too many jobs are open: wait for one to end",
                "TooManyJobs",
                retry_after=5,
            )

    async def start(
        self, model: OpenModel, path: Path, request: ChangeRequest, holding: ExitStack
    ) -> JobRecord:
        """Check a zip and begin to learn it; what holds the file is closed at the end."""
        archive, images = await asyncio.to_thread(open_zip, path, self.service.limits)
        self.check_room()
        job = JobRecord(
            id=secrets.token_urlsafe(12), model=model.name, total=len(images)
        )
        while (
            len(self.records) >= _REMEMBERED
            and (oldest := next(iter(self.records.values()))).has_ended
        ):
            del self.records[oldest.id]
        self.records[job.id] = job
        self._tasks[job.id] = task = asyncio.create_task(
            self._learn(job, model, archive, images, request)
        )
        held = holding.pop_all()
        task.add_done_callback(lambda _: held.close())
        return job

    def cancel(self, job_id: str) -> JobRecord:
        """End a job before anything is written, or raise the problem 409."""
        job = self.find(job_id)
        if job.state != "running":
            raise Problem(
                409,
                f"the job is {job.state} and cannot be cancelled any more",
                "JobEnded",
            )
        self._tasks[job_id].cancel()
        job.state = "cancelled"
        return job

    async def close(self) -> None:
        """Cancel what runs, and wait for what is being written."""
        for job_id, task in self._tasks.items():
            if self.records[job_id].state == "running":
                task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _learn(
        self,
        job: JobRecord,
        model: OpenModel,
        archive: DataArchive,
        images: LabelledImages,
        request: ChangeRequest,
    ) -> None:
        try:
            rows, labels = await self._encode(job, model, archive, images)
            job.state = "writing"
            taught = (rows, labels)
            edited = model.file.edit(
                lambda learner: learner.partial_fit(taught),
                model.version,
                request,
                len(rows),
            )
            job.change = await asyncio.shield(edited)
            self.service.metrics.samples.labels("teach").inc(len(rows))
            job.state = "done"
        except Exception as error:
            problem = problem_of(error, self.service.store.without_paths)
            bug = error if problem.status_code == 500 else None
            log("job failed", job=job.id, error=bug, problem=problem.detail)
            job.error = problem.detail
            job.state = "failed"
        finally:
            del self._tasks[job.id]

    async def _encode(
        self,
        job: JobRecord,
        model: OpenModel,
        archive: DataArchive,
        images: LabelledImages,
    ) -> tuple[NDArray[Any], NDArray[np.str_]]:
        """Return features and labels of all images that can be read, each encoded by itself, a few prepared ahead."""
        batcher = await self.service.batcher(model)
        parts: list[NDArray[Any]] = []
        labels: list[str] = []
        ahead = (
            2 * cores()
        )  # so that decoding and the backbone go on side by side, and little is held in memory
        for start in range(0, len(images), ahead):
            some = images[start : start + ahead]
            found = await asyncio.gather(
                *(self._prepare(batcher.backbone, archive, name) for name, _ in some)
            )
            kept: list[Prepared] = []
            for (_, label), sample in zip(some, found, strict=True):
                if isinstance(sample, SkippedImage):
                    job.skipped += 1
                    job.failures = [*job.failures, sample][:_NAMED]
                else:
                    kept.append(sample)
                    labels.append(label)
            if kept:
                while not batcher.has_room(
                    len(kept)
                ):  # a job has time, and those who ask go first
                    await asyncio.sleep(_PAUSE)
                parts.append(
                    await asyncio.wrap_future(batcher.submit(kept, alone=True))
                )
            job.done = start + len(some)
        if not parts:
            raise InputError(
                f"the zip holds no image that can be read; the first one: {job.failures[0].reason}"
            )
        return np.concatenate(parts), np.asarray(labels, dtype=np.str_)

    async def _prepare(
        self, backbone: Backbone, archive: DataArchive, name: str
    ) -> Prepared | SkippedImage:
        """Return an image as the backbone takes it, or why it is left out.

        The memory of the unpacked file counts towards the budget of the service.
        """
        shown = printable(name)[:200]
        size = archive.sizes[name]
        largest = self.service.limits.body_bytes
        if size > largest:
            reason = f"{shown} must have at most {largest:,} bytes, got {size:,}"
            return SkippedImage(name=shown, reason=reason[:300])
        try:
            async with self.service.memory.hold(size):
                data = await self.service.unpacked(archive, name)
                (sample,) = await self.service.prepared(backbone, [(shown, data)])
            return sample
        except (ImageError, FileFormatError) as error:
            if isinstance(error, ImageError):
                reason = str(error)
            else:
                reason = f"{shown} is damaged in the zip"
            return SkippedImage(name=shown, reason=one_line(reason)[:300])


# -- routes ----------------------------------------------------------------------------

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=PROBLEMS)
_ZIP_CONTENT = {"application/zip": {"schema": {"type": "string", "format": "binary"}}}
_ZIP = {
    "requestBody": {
        "required": True,
        "description": "Images in folders named by class.",
        "content": _ZIP_CONTENT,
    }
}


def _jobs(request: Request) -> Any:
    return request.app.state.jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]


@router.post(
    "/models/{m}/jobs",
    status_code=202,
    dependencies=[Depends(check_writable)],
    openapi_extra=_ZIP,
)
async def start_job(
    model: ModelDep,
    request: Request,
    conditions: ChangeRequestDep,
    jobs: JobsDep,
    response: Response,
) -> JobRecord:
    """Learn a zip of images as one change, with progress; nothing is written before all of it was looked at."""
    if model.version.kind != "images":
        raise InputError(
            f"the model takes {model.version.kind}: a zip of images cannot be taught to it"
        )
    jobs.check_room()
    with ExitStack() as holding:
        path = (
            holding.enter_context(partial_folder(jobs.service.store.folder, UPLOAD))
            / "images.zip"
        )
        digest = await receive_file(request, path, *_ZIP_TYPES)
        job = await jobs.start(
            model, path, conditions.with_content(b"job", digest), holding
        )
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.get("/jobs")
async def list_jobs(jobs: JobsDep) -> dict[str, list[JobRecord]]:
    """Return the jobs that are remembered, the oldest first."""
    return {"jobs": list(jobs.records.values())}


@router.get("/jobs/{j}")
async def follow_job(j: str, jobs: JobsDep) -> JobRecord:
    """Return how far a job is."""
    return jobs.find(j)


@router.delete("/jobs/{j}", dependencies=[Depends(check_writable)])
async def cancel_job(j: str, jobs: JobsDep) -> JobRecord:
    """Cancel a job; the model stays as it was."""
    return jobs.cancel(j)
