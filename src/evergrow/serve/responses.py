"""Response documents with predictions and evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import Response

from evergrow.learner.answers import Answers
from evergrow.learner.learner import Learner
from evergrow.serve import schemas
from evergrow.serve.bodies import JSON, RequestSamples
from evergrow.serve.service import OpenModel, Service

MAX_CONFUSION_CLASSES = 500
"""Models with more classes get no confusion matrix."""


def predictions_json(model: OpenModel, answers: Answers, k: int) -> str:
    """Return predictions as JSON, each with its `k` most likely classes.

    An unknown sample has no label, only a nearest class.
    """
    samples = [
        _sample_answer(answers, row, best) for row, best in enumerate(answers.ranked(k))
    ]
    threshold = None
    if answers.threshold is not None:
        threshold = float(answers.threshold[0])
    document = schemas.Predictions(
        model=model.name,
        revision=model.version.revision,
        measure=answers.measure,
        threshold=threshold,
        answers=samples,
    )
    return document.model_dump_json(by_alias=True)


def _sample_answer(answers: Answers, row: int, best: Any) -> schemas.SampleAnswer:
    """Return the prediction of one sample; `best` are the indices of its classes."""
    top = [
        schemas.LikelyClass(
            name=str(answers.classes[i]), value=float(answers.values[row, i])
        )
        for i in best
    ]
    novelty = None
    if answers.novelty is not None and np.isfinite(answers.novelty[row]):
        novelty = float(answers.novelty[row])
    unknown = None
    if answers.unknown is not None:
        unknown = bool(answers.unknown[row])
    return schemas.SampleAnswer(
        label=None if unknown else top[0].name,
        nearest=top[0],
        top=top,
        novelty=novelty,
        unknown=unknown,
    )


async def evaluation_response(
    service: Service,
    model: OpenModel,
    samples: RequestSamples,
    labels: list[str],
    false_alarm: float,
    record: type[schemas.EvaluationRecord],
    **fields: Any,
) -> Response:
    """Evaluate a model on labelled samples.

    Parameters
    ----------
    service : Service
        The service.
    model : OpenModel
        The model.
    samples : RequestSamples
        Samples.
    labels : list of str
        True classes.
    false_alarm : float
        Fraction of known samples that may be reported as unknown.
    record : type of EvaluationRecord
        Type of the response document.
    **fields
        Further fields of the document.
    """

    def work(learner: Learner, rows: Any) -> str:
        result = learner.evaluate(
            (rows, np.asarray(labels, dtype=np.str_)),
            false_alarm=false_alarm,
            keep_samples=True,
        )
        predicted = []
        if result.samples is not None:
            predicted = result.samples.predicted.tolist()
        pairs = enumerate(zip(labels, predicted, strict=True))
        wrong = [
            {"sample": i, "label": label, "predicted": name}
            for i, (label, name) in pairs
            if label != name
        ]
        few_classes = len(result.classes) <= MAX_CONFUSION_CLASSES
        document = record(
            **result.to_dict(with_confusion=few_classes),
            model=model.name,
            revision=model.version.revision,
            predicted=predicted,
            wrong=wrong,
            **fields,
        )
        return document.model_dump_json()

    document = await service.analyze(model, samples, work)
    service.metrics.samples.labels("evaluate").inc(len(labels))
    return Response(document, media_type=JSON)
