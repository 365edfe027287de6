"""Routes of samples: predict, evaluate, teach and unlearn."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from evergrow.serve.answering import evaluation_values, outcome_values, prediction_values
from evergrow.serve.bodies import Body, checked, labels_of, read_body
from evergrow.serve.described import CHANGE_HEADERS, FALSE_ALARM, LABEL, NOTE, SAMPLES_BODY, TOP_K, problems
from evergrow.serve.edits import Teach, Unlearn
from evergrow.serve.model import Wanted
from evergrow.serve.once import Once
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import ChangeAnswer, EvaluationRecord, Exam, Lesson, Predictions, Question
from evergrow.serve.service import Service

_LABELS: dict[str, Any] = {
    "label": LABEL,
    "labels": {"type": "array", "items": LABEL, "description": "Once for each image, or one JSON list."},
}
_ERRORS = (400, 404, 409, 413, 415, 422, 503)


def samples_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api/v1/models/{m}", tags=["samples"])

    @router.post(
        "/predict",
        response_model=Predictions,
        responses=problems(*_ERRORS),
        openapi_extra=SAMPLES_BODY(Question, k=TOP_K, false_alarm=FALSE_ALARM),
    )
    async def predict(m: str, request: Request, response: Response) -> Any:
        """Return the likeliest classes of each sample, and whether it is unknown."""
        model, version = await service.open(m)
        body = await read_body(request, service.limits)
        asked = checked(Question, body.values, loose=bool(body.images))
        answers = await service.answers(
            model, version, asked.false_alarm, images=body.images, texts=asked.texts, rows=asked.rows
        )
        service.metrics.samples.labels("predict").inc(len(answers.values))
        response.headers["ETag"] = version.etag
        return prediction_values(m, version, answers, asked.k, asked.false_alarm)

    @router.post(
        "/evaluate",
        response_model=EvaluationRecord,
        responses=problems(*_ERRORS),
        openapi_extra=SAMPLES_BODY(Exam, **_LABELS, false_alarm=FALSE_ALARM),
    )
    async def evaluate(m: str, request: Request) -> Any:
        """Compare answers with labels: accuracy, confusion, and which samples were wrong."""
        model, version = await service.open(m)
        body = await read_body(request, service.limits)
        exam = checked(Exam, body.values, loose=bool(body.images))
        _ = version.learner
        labels = labels_of(exam.label, exam.labels, _count(body, exam))
        rows = await service.features(model, version, images=body.images, texts=exam.texts, rows=exam.rows)
        result, said = await service.run(version.evaluate, rows, labels, exam.false_alarm)
        service.metrics.samples.labels("evaluate").inc(len(rows))
        return evaluation_values(m, version, result, [str(label) for label in labels], said)

    @router.post(
        "/teach",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS, 412, 507),
        openapi_extra={**SAMPLES_BODY(Lesson, **_LABELS, note=NOTE), "parameters": CHANGE_HEADERS},
    )
    async def teach(m: str, request: Request, response: Response) -> Any:
        """Learn samples of new classes or old ones; the answer comes once they are on disk."""
        return await _learn(service, m, request, response, Teach)

    @router.post(
        "/unlearn",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS, 412, 507),
        openapi_extra={**SAMPLES_BODY(Lesson, **_LABELS, note=NOTE), "parameters": CHANGE_HEADERS},
    )
    async def unlearn(m: str, request: Request, response: Response) -> Any:
        """Take samples out again, exactly: send the same bytes and the label they were taught with."""
        return await _learn(service, m, request, response, Unlearn)

    return router


async def _learn(
    service: Service, m: str, request: Request, response: Response, edit: type[Teach] | type[Unlearn]
) -> dict[str, Any]:
    service.check_writable()
    model, version = await service.open(m)
    body = await read_body(request, service.limits)
    lesson = checked(Lesson, body.values, loose=bool(body.images))
    labels = labels_of(lesson.label, lesson.labels, _count(body, lesson))
    wanted = wanted_of(request, edit.__name__, body, lesson.note)
    rows = await service.features(model, version, images=body.images, texts=lesson.texts, rows=lesson.rows, alone=True)
    outcome = await service.change(model, edit(rows, labels), wanted)
    if not outcome.replayed:
        service.metrics.samples.labels(edit.__name__.lower()).inc(len(rows))
    response.headers["ETag"] = outcome.version.etag
    return outcome_values(m, outcome)


def wanted_of(request: Request, work: str, body: Body, note: str = "") -> Wanted:
    """Return under which condition a request wants its change."""
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= 200 and key.isascii() and key.isprintable()):
        raise Problem(422, "Idempotency-Key must be 1 to 200 characters that can be printed", "BadKey")
    who = getattr(request.state, "token", "") or None
    return Wanted(request.headers.get("if-match", ""), Once.of(key, work.encode(), *body.raw), note, who)


def _count(body: Body, lesson: Lesson | Exam) -> int:
    """Return how many samples a request holds."""
    return len(body.images or lesson.texts or lesson.rows or ())
