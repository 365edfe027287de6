"""Routes that change a model: teach, unlearn, forget, rename, merge classes, roll back and redo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from evergrow.learner.learner import Learner
from evergrow.serve.annotations import forget_classes
from evergrow.serve.models import ChangeResult
from evergrow.serve.problems import problems
from evergrow.serve.requests import (
    BoundedRoute,
    ChangeHeaders,
    ChangeHeadersDep,
    SampleBody,
    sample_body,
    sample_content,
)
from evergrow.serve.schemas import (
    ChangeAnswer,
    ChangeRecord,
    ClassCount,
    ForgetRequest,
    ImageLesson,
    Lesson,
    LessonFields,
    MergeRequest,
    RedoRequest,
    RenameRequest,
    RequestModel,
    RollbackRequest,
)
from evergrow.serve.service import ModelDep, OpenModel, Service, ServiceDep, check_writable

LessonBody = Annotated[SampleBody[LessonFields], sample_body(Lesson, ImageLesson)]

router = APIRouter(
    prefix="/api/v1/models/{m}",
    tags=["changes"],
    route_class=BoundedRoute,
    dependencies=[Depends(check_writable)],
    responses=problems(400, 404, 409, 412, 413, 415, 507),
)


@router.post("/teach", openapi_extra=sample_content(Lesson, ImageLesson))
async def teach(
    model: ModelDep, body: LessonBody, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Learn samples of new classes or old ones; the answer comes once they are on disk."""
    return await _learn("teach", Learner.partial_fit, model, body, headers, service, response)


@router.post("/unlearn", openapi_extra=sample_content(Lesson, ImageLesson))
async def unlearn(
    model: ModelDep, body: LessonBody, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Take samples out again, exactly: send the same bytes and the label they were taught with."""
    return await _learn("unlearn", Learner.unlearn, model, body, headers, service, response)


async def _learn(
    work: str,
    learn: Callable[..., Learner],
    model: OpenModel,
    body: LessonBody,
    headers: ChangeHeaders,
    service: Service,
    response: Response,
) -> ChangeAnswer:
    labels = body.labels()
    request = headers.change(work, *body.content, note=body.fields.note)
    rows = await service.features(model, body.samples, alone=True)
    result = await service.change(model, lambda learner: learn(learner, (rows, labels)), request, len(rows))
    if not result.replayed:
        service.metrics.samples.labels(work).inc(len(rows))
    return _answer(model, result, response)


@router.post("/forget")
async def forget(
    model: ModelDep, asked: ForgetRequest, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Forget whole classes; no sample is needed."""
    request = headers.change("forget", _content(asked), note=asked.note)
    result = await service.change(model, lambda learner: forget_classes(learner, asked.names), request)
    return _answer(model, result, response)


@router.post("/rename")
async def rename(
    model: ModelDep, asked: RenameRequest, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Give a class another name; answers are the same under it."""
    request = headers.change("rename", _content(asked), note=asked.note)
    result = await service.change(model, lambda learner: learner.rename_class(asked.old, asked.new), request)
    return _answer(model, result, response)


@router.post("/merge-classes")
async def merge_classes(
    model: ModelDep, asked: MergeRequest, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Make several classes one, exactly as if their samples had been taught under one name."""
    request = headers.change("merge-classes", _content(asked), note=asked.note)
    result = await service.change(model, lambda learner: learner.merge_classes(asked.names, asked.into), request)
    return _answer(model, result, response)


@router.post("/rollback")
async def roll_back(
    model: ModelDep, asked: RollbackRequest, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Undo the latest changes, or go back to a revision: the file is again what it was, byte for byte."""
    request = headers.change("rollback", _content(asked))
    return _answer(model, await model.model.roll_back(asked.n, asked.to, request, service.writers), response)


@router.post("/redo")
async def redo(
    model: ModelDep, asked: RedoRequest, headers: ChangeHeadersDep, service: ServiceDep, response: Response
) -> ChangeAnswer:
    """Take rollbacks back, as long as nothing else was learned since."""
    request = headers.change("redo", _content(asked))
    return _answer(model, await model.model.redo(asked.n, request, service.writers), response)


def _content(asked: RequestModel) -> bytes:
    return asked.model_dump_json().encode()


def _answer(model: OpenModel, result: ChangeResult, response: Response) -> ChangeAnswer:
    response.headers["ETag"] = result.version.etag
    return change_answer(model.name, result)


def change_answer(name: str, result: ChangeResult) -> ChangeAnswer:
    """Return what a change did to the model of a name."""
    version, counts = result.version, result.version.counts
    return ChangeAnswer(
        model=name,
        state=version.state,
        revision=version.revision,
        etag=version.etag,
        change=ChangeRecord.model_validate(result.change),
        new_classes=sorted(set(counts) - set(result.before)),
        gone_classes=sorted(set(result.before) - set(counts)),
        classes=class_counts(counts),
        n_samples=sum(counts.values()),
        warnings=result.warnings,
        replayed=result.replayed,
    )


def class_counts(counts: dict[str, int]) -> list[ClassCount]:
    """Return classes with their samples, sorted by name."""
    return [ClassCount(name=name, samples=n) for name, n in sorted(counts.items())]
