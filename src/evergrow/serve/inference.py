"""Routes that ask a model: predict and evaluate."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Response

from evergrow.learner.answers import Answers
from evergrow.serve.problems import problems
from evergrow.serve.requests import BoundedRoute, SampleBody, sample_body, sample_content
from evergrow.serve.schemas import (
    EvaluationRecord,
    Exam,
    ExamFields,
    ImageExam,
    ImageQuestion,
    LikelyClass,
    Predictions,
    Question,
    QuestionFields,
    SampleAnswer,
    WrongSample,
)
from evergrow.serve.service import ModelDep, OpenModel, ServiceDep

router = APIRouter(
    prefix="/api/v1/models/{m}",
    tags=["samples"],
    route_class=BoundedRoute,
    responses=problems(400, 404, 409, 413, 415),
)


@router.post("/predict", openapi_extra=sample_content(Question, ImageQuestion))
async def predict(
    model: ModelDep,
    body: Annotated[SampleBody[QuestionFields], sample_body(Question, ImageQuestion)],
    service: ServiceDep,
    response: Response,
) -> Predictions:
    """Return the likeliest classes of each sample, and whether it is unknown."""
    answers = await service.answers(model, body.samples, body.fields.false_alarm)
    response.headers["ETag"] = model.version.etag
    return predictions(model, answers, body.fields)


@router.post("/evaluate", openapi_extra=sample_content(Exam, ImageExam))
async def evaluate(
    model: ModelDep, body: Annotated[SampleBody[ExamFields], sample_body(Exam, ImageExam)], service: ServiceDep
) -> EvaluationRecord:
    """Compare answers with labels: accuracy, confusion, and which samples were wrong."""
    version = model.version
    version.require_ready()
    labels = body.labels()
    rows = await service.features(model, body.samples)
    result, predicted = await service.run(version.evaluate, rows, labels, body.fields.false_alarm)
    service.metrics.samples.labels("evaluate").inc(len(rows))
    values = result.to_dict()
    pairs = enumerate(zip(labels.tolist(), predicted, strict=True))
    wrong = [WrongSample(sample=i, label=label, predicted=said) for i, (label, said) in pairs if label != said]
    about = {"model": model.name, "revision": version.revision, "predicted": predicted, "wrong": wrong}
    return EvaluationRecord.model_validate({**values, **about})


def predictions(model: OpenModel, answers: Answers, asked: QuestionFields) -> Predictions:
    """Return answers with the likeliest classes of each sample first."""
    values, novelty = answers.values, answers.novelty
    found = []
    for row, best in enumerate(answers.ranked(asked.k)):
        top = [LikelyClass(name=str(answers.classes[i]), value=float(values[row, i])) for i in best]
        strange = None if novelty is None or not np.isfinite(novelty[row]) else float(novelty[row])
        unknown = None if answers.unknown is None else bool(answers.unknown[row])
        found.append(SampleAnswer(label=top[0].name, top=top, novelty=strange, unknown=unknown))
    return Predictions(
        model=model.name,
        revision=model.version.revision,
        measure=answers.measure,
        threshold=model.version.threshold(asked.false_alarm),
        answers=found,
    )
