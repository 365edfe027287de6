"""Jobs: learn a zip of thousands of images as one change.

A cancelled job leaves the model unchanged. Images that cannot be read are listed and
left out. Jobs end with the service. A client can then send the zip again with the same
idempotency key: it is learned once, even if the first job had already been saved.
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
from evergrow.data.items import IMAGE_SUFFIXES
from evergrow.data.storage import Tree
from evergrow.features.backbone import Backbone
from evergrow.serve.backbones import Prepared, cores
from evergrow.serve.bodies import UPLOAD, receive_file, validated
from evergrow.serve.change_requests import ChangeRequest, ChangeRequestDep
from evergrow.serve.config import Limits
from evergrow.serve.monitoring import log
from evergrow.serve.open_model import ModelDep, OpenModel
from evergrow.serve.problems import PROBLEMS, Problem, problem_of
from evergrow.serve.schemas import ClassNames, JobList, JobRecord, SkippedImage
from evergrow.serve.service import Service, check_writable

_MAX_JOBS = 100
"""Number of jobs that are remembered."""
_MAX_FAILURES = 100
"""Number of unreadable images that are listed by name."""
_RETRY_SECONDS = 0.2
"""Pause before another attempt at a full queue."""
_ZIP_TYPES = (
    "application/zip",
    "application/x-zip-compressed",
    "application/octet-stream",
)

LabelledImages = list[tuple[str, str]]
"""Name and class of each image."""


def open_image_zip(path: Path, limits: Limits) -> tuple[DataArchive, LabelledImages]:
    """Open a zip with one folder of images per class. Nothing is unpacked.

    Returns
    -------
    archive : DataArchive
        The open zip.
    images : list of (str, str)
        Name and class of each image.

    Raises
    ------
    Problem
        413 if the zip has too many files or its files are too large together; 422 if it
        is not a valid zip or has no images.
    RequestValidationError
        If a name of a class is not allowed.
    """
    try:
        archive = DataArchive(Tree(path.parent), path.name, limits.zip_entries)
        too_large = sum(archive.sizes.values()) > limits.zip_bytes
    except TooManyFilesError:
        too_large = True
    except FileFormatError as error:
        message = str(error).replace(str(path), "the zip")
        raise Problem(422, message, "BadZip") from error
    if too_large:
        raise Problem(
            413,
            f"a zip may have at most {limits.zip_entries:,} files and "
            f"{limits.zip_bytes:,} bytes unpacked: split it",
            "TooMany",
        )
    images = _labelled_images(list(archive.sizes))
    if not images:
        raise Problem(
            422,
            "the zip has no images in folders named by class",
            "BadZip",
        )
    validated(ClassNames, sorted({label for _, label in images}))
    return archive, images


def _labelled_images(names: list[str]) -> LabelledImages:
    """Return the images in a list of files, with the outermost folder as the class.

    Hidden files and folders are left out. If all images are in subfolders of a single
    folder, which many tools add, the subfolders are the classes.
    """
    paths = []
    for name in names:
        parts = name.split("/")
        is_image = os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
        if is_image and len(parts) > 1 and not any(map(is_hidden, parts)):
            paths.append(parts)
    outer_folders = {parts[0] for parts in paths}
    has_outer_folder = len(outer_folders) == 1 and all(len(p) > 2 for p in paths)
    depth = 1 if has_outer_folder else 0
    return [("/".join(parts), parts[depth]) for parts in paths]


class Jobs:
    """All jobs of the service.

    Parameters
    ----------
    service : Service
        The service.

    Attributes
    ----------
    records : dict of str to JobRecord
        Jobs by id, the oldest first.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.records: dict[str, JobRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        service.metrics.jobs.set_function(self._n_open)

    def _n_open(self) -> int:
        """Return the number of jobs that have not ended."""
        return sum(not record.has_ended for record in self.records.values())

    def find(self, job_id: str) -> JobRecord:
        """Return the record of a job, which is updated as it runs.

        Raises
        ------
        Problem
            404 if there is no such job.
        """
        if job_id not in self.records:
            raise Problem(404, f"there is no job {job_id[:80]!r}", "NoJob")
        return self.records[job_id]

    def check_room(self) -> None:
        """Raise a 503 problem if too many jobs are open."""
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
        """Check a zip and start a task that learns it.

        Parameters
        ----------
        model : OpenModel
            The model.
        path : Path
            The zip.
        request : ChangeRequest
            Conditions of the change.
        holding : ExitStack
            Resources of the zip. The job takes them over and closes them at its end.

        Returns
        -------
        JobRecord
            The record of the new job, which is updated as it runs.

        Raises
        ------
        Problem
            As :func:`open_image_zip`, or 503 if too many jobs are open.
        """
        archive, images = await asyncio.to_thread(
            open_image_zip, path, self.service.limits
        )
        # Other jobs may have begun meanwhile.
        self.check_room()
        job = JobRecord(
            id=secrets.token_urlsafe(12), model=model.name, total=len(images)
        )
        self._drop_old_records()
        self.records[job.id] = job
        work = self._learn(job, model, archive, images, request)
        self._tasks[job.id] = task = asyncio.create_task(work)
        held = holding.pop_all()
        task.add_done_callback(lambda _: held.close())
        return job

    def _drop_old_records(self) -> None:
        """Make room for one more record, unless the oldest job is still open."""
        while len(self.records) >= _MAX_JOBS:
            oldest = next(iter(self.records.values()))
            if not oldest.has_ended:
                return
            del self.records[oldest.id]

    def cancel(self, job_id: str) -> JobRecord:
        """Cancel a job. Raise a 409 problem if it is being saved or has ended."""
        job = self.find(job_id)
        if job.state != "running":
            raise Problem(
                409,
                f"the job is {job.state} and can no longer be cancelled",
                "JobEnded",
            )
        self._tasks[job_id].cancel()
        job.state = "cancelled"
        return job

    async def close(self) -> None:
        """Cancel running jobs, and wait for changes that are being saved."""
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
        """Encode all images and learn them as one change. Errors go to the record."""
        try:
            rows, labels = await self._encode(job, model, archive, images)
            job.state = "writing"
            change = model.file.edit(
                lambda learner: learner.partial_fit((rows, labels)),
                model.version,
                request,
                len(rows),
            )
            job.change = await asyncio.shield(change)
            self.service.metrics.samples.labels("teach").inc(len(rows))
            job.state = "done"
        except Exception as error:
            problem = problem_of(error, self.service.store.without_paths)
            # Only for a bug, the log gets the traceback.
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
        """Return features and labels of all readable images, each encoded alone.

        The images are taken in chunks, so that memory use stays small. Progress and
        skipped images go to the record.

        Raises
        ------
        InputError
            If no image can be read.
        """
        batcher = await self.service.batcher(model.version.learner)
        features: list[NDArray[Any]] = []
        labels: list[str] = []
        size = 2 * cores()
        for start in range(0, len(images), size):
            chunk = images[start : start + size]
            work = [self._prepare(batcher.backbone, archive, name) for name, _ in chunk]
            found = await asyncio.gather(*work)
            samples: list[Prepared] = []
            for (_, label), sample in zip(chunk, found, strict=True):
                if isinstance(sample, SkippedImage):
                    job.skipped += 1
                    job.failures = [*job.failures, sample][:_MAX_FAILURES]
                else:
                    samples.append(sample)
                    labels.append(label)
            if samples:
                # Predictions have priority over jobs.
                while not batcher.has_room(len(samples)):
                    await asyncio.sleep(_RETRY_SECONDS)
                encoded = batcher.submit(samples, alone=True)
                features.append(await asyncio.wrap_future(encoded))
            job.done = start + len(chunk)
        if not features:
            raise InputError(
                "no image in the zip can be read; the first error: "
                f"{job.failures[0].reason}"
            )
        return np.concatenate(features), np.asarray(labels, dtype=np.str_)

    async def _prepare(
        self, backbone: Backbone, archive: DataArchive, name: str
    ) -> Prepared | SkippedImage:
        """Return a preprocessed image, or the reason why it is skipped.

        The memory of the unpacked file counts towards the budget of the service.
        """
        shown = printable(name)[:200]
        size = archive.sizes[name]
        max_size = self.service.limits.body_bytes
        if size > max_size:
            reason = f"{shown} must have at most {max_size:,} bytes, got {size:,}"
            return SkippedImage(name=shown, reason=reason[:300])
        try:
            async with self.service.memory.hold(size):
                data = await self.service.read_archive_file(archive, name)
                images = [(shown, data)]
                (sample,) = await self.service.prepare_images(backbone, images)
            return sample
        except ImageError as error:
            reason = str(error)
        except FileFormatError:
            reason = f"{shown} is damaged in the zip"
        return SkippedImage(name=shown, reason=one_line(reason)[:300])


# -- routes ----------------------------------------------------------------------------

router = APIRouter(prefix="/api/v1", tags=["jobs"], responses=PROBLEMS)
_ZIP_CONTENT = {"application/zip": {"schema": {"type": "string", "format": "binary"}}}
_ZIP_BODY = {
    "requestBody": {
        "required": True,
        "description": "A zip with one folder of images per class.",
        "content": _ZIP_CONTENT,
    }
}


def _jobs(request: Request) -> Any:
    """Return the jobs of the service. A dependency of routes."""
    return request.app.state.jobs


JobsDep = Annotated[Jobs, Depends(_jobs)]


@router.post(
    "/models/{m}/jobs",
    status_code=202,
    dependencies=[Depends(check_writable)],
    openapi_extra=_ZIP_BODY,
)
async def start_job(
    model: ModelDep,
    request: Request,
    conditions: ChangeRequestDep,
    jobs: JobsDep,
    response: Response,
) -> JobRecord:
    """Start to learn a zip of images as one change, written once all are encoded."""
    if model.version.kind != "images":
        raise InputError(
            f"the model takes {model.version.kind}: only models of images can learn a "
            "zip of images"
        )
    jobs.check_room()
    with ExitStack() as holding:
        upload = partial_folder(jobs.service.store.folder, UPLOAD)
        path = holding.enter_context(upload) / "images.zip"
        digest = await receive_file(request, path, *_ZIP_TYPES)
        change = conditions.with_content(b"job", digest)
        job = await jobs.start(model, path, change, holding)
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return job


@router.get("/jobs")
async def list_jobs(jobs: JobsDep) -> JobList:
    """Return the latest jobs, the oldest first."""
    return JobList(jobs=list(jobs.records.values()))


@router.get("/jobs/{j}")
async def follow_job(j: str, jobs: JobsDep) -> JobRecord:
    """Return the state and progress of a job."""
    return jobs.find(j)


@router.delete("/jobs/{j}", dependencies=[Depends(check_writable)])
async def cancel_job(j: str, jobs: JobsDep) -> JobRecord:
    """Cancel a job. The model is not changed."""
    return jobs.cancel(j)
