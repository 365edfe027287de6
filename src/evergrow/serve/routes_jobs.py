"""Routes of jobs: begin one with a zip, watch it, cancel it."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import AsyncIterator
from typing import IO, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from evergrow.serve.bodies import Body
from evergrow.serve.described import CHANGE_HEADERS, problems
from evergrow.serve.jobs import Job, Jobs
from evergrow.serve.problems import Problem
from evergrow.serve.routes_samples import wanted_of
from evergrow.serve.schemas import JobList, JobRecord
from evergrow.serve.service import Service

_ZIP = {
    "requestBody": {
        "required": True,
        "description": "A zip of images in folders named by class.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    },
    "parameters": CHANGE_HEADERS,
}
_TYPES = ("application/zip", "application/x-zip-compressed", "application/octet-stream")


def jobs_router(service: Service, jobs: Jobs) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api/v1", tags=["jobs"])

    @router.post(
        "/models/{m}/jobs",
        response_model=JobRecord,
        status_code=202,
        responses=problems(400, 404, 409, 413, 415, 422, 503),
        openapi_extra=_ZIP,
    )
    async def start_job(m: str, request: Request, response: Response) -> Any:
        """Learn a zip of images as one change, with progress; nothing is written before all of it was looked at."""
        service.check_writable()
        model, version = await service.open(m)
        if request.headers.get("content-type", "").partition(";")[0].strip() not in _TYPES:
            raise Problem(415, "Content-Type must be application/zip", "MediaType")
        if version.kind != "images":
            raise Problem(422, f"{version.kind} must be taught, since the model takes them, got a zip", "InputError")
        jobs.check_room()
        file, digest = await _received(request)
        try:
            wanted = wanted_of(request, "job", Body({}, raw=(digest,)))
        except BaseException:
            file.close()
            raise
        job = await jobs.start(m, model, file, wanted)
        response.headers["Location"] = f"/api/v1/jobs/{job.id}"
        return job.record()

    @router.get("/jobs", response_model=JobList, responses=problems())
    async def list_jobs() -> Any:
        """Return the jobs that are remembered, the oldest first."""
        return {"jobs": [job.record() for job in jobs.list()]}

    @router.get(
        "/jobs/{j}",
        response_model=JobRecord,
        responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **problems(404)},
    )
    async def watch_job(j: str, request: Request) -> Any:
        """Return a job; asked for ``text/event-stream``, its progress as server-sent events until it ends."""
        job = jobs.find(j)
        if "text/event-stream" not in request.headers.get("accept", ""):
            return job.record()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_events(job, service), media_type="text/event-stream", headers=headers)

    @router.delete("/jobs/{j}", response_model=JobRecord, responses=problems(404, 409))
    async def cancel_job(j: str) -> Any:
        """Cancel a job; the model stays as it was."""
        service.check_writable()
        return jobs.cancel(j).record()

    return router


async def _received(request: Request) -> tuple[IO[bytes], bytes]:
    """Return the body as a file without a name, which is gone however this process ends, and its hash."""
    file = tempfile.TemporaryFile(prefix="evergrow-")  # noqa: SIM115  closed by who gets it
    digest = hashlib.blake2b(digest_size=16)
    try:
        async for chunk in request.stream():
            digest.update(chunk)
            file.write(chunk)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file, digest.digest()


async def _events(job: Job, service: Service) -> AsyncIterator[str]:
    async for record in job.records(service.closing):
        kind = "progress" if record["state"] in ("running", "writing") else record["state"]
        yield f"event: {kind}\ndata: {json.dumps(record)}\n\n"
