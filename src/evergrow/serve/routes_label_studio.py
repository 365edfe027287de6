"""Routes of a Label Studio ML backend: health, setup, predict, and a webhook that teaches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from evergrow.learner.calibration import FALSE_ALARM
from evergrow.serve.annotations import Annotate, Annotation, deletions
from evergrow.serve.answering import outcome_values
from evergrow.serve.bodies import SentImage, checked, read_body
from evergrow.serve.described import problems
from evergrow.serve.label_studio import (
    Fetcher,
    Names,
    annotation_key,
    choice_of,
    keys_of,
    names_of,
    prediction,
    sample_of,
)
from evergrow.serve.model import ServedModel, Wanted
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import LabelList
from evergrow.serve.service import Service
from evergrow.serve.versions import Version

_OBJECT = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
_ERRORS = (400, 404, 409, 413, 415, 422, 503)
_TASKS = 1000


def label_studio_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/label-studio/{m}", tags=["label studio"])
    config = service.config
    fetcher = Fetcher(config.label_studio, config.label_studio_token, service.limits.body_bytes)

    @router.get("/health", responses=problems(404))
    async def health(m: str) -> dict[str, Any]:
        """Return that the model is there."""
        await service.open(m)
        return {"status": "UP", "model_class": "evergrow"}

    @router.post("/setup", responses=problems(*_ERRORS), openapi_extra=_OBJECT)
    async def setup(m: str, request: Request) -> dict[str, Any]:
        """Take note of a project: nothing is kept of it, since every message says what it needs."""
        _, version = await service.open(m)
        await read_body(request, service.limits)
        return {"model_version": str(version.revision)}

    @router.post("/predict", responses=problems(*_ERRORS), openapi_extra=_OBJECT)
    async def predict(m: str, request: Request) -> dict[str, Any]:
        """Return a class for each task; none where it is unknown, or the model has not begun."""
        model, version = await service.open(m)
        values = (await read_body(request, service.limits)).values
        tasks = values.get("tasks")
        if not isinstance(tasks, list) or len(tasks) > _TASKS:
            raise Problem(422, f"tasks must be a list of at most {_TASKS} tasks", "BadField")
        told = str(version.revision)
        if version.revision == 0 or not tasks:
            return {
                "results": [{"result": [], "score": 0.0, "model_version": told} for _ in tasks],
                "model_version": told,
            }
        names = names_of(values.get("label_config"), version.kind)
        samples = await _samples(version, [sample_of(task, version.kind, names) for task in tasks])
        answers = await service.answers(model, version, FALSE_ALARM, **samples)
        service.metrics.samples.labels("predict").inc(len(answers.values))
        best = answers.ranked(1)[:, 0]
        results = [
            prediction(
                str(answers.classes[column]),
                float(answers.values[row, column]),
                None if answers.unknown is None else bool(answers.unknown[row]),
                names,
                told,
            )
            for row, column in enumerate(best)
        ]
        return {"results": results, "model_version": told}

    @router.post("/webhook", responses=problems(*_ERRORS, 412, 507), openapi_extra=_OBJECT)
    async def webhook(m: str, request: Request) -> dict[str, Any]:
        """Learn from an annotation that was created, updated or deleted; each counts once however often it comes."""
        service.check_writable()
        model, version = await service.open(m)
        values = (await read_body(request, service.limits)).values
        action = values.get("action")
        annotations: tuple[Annotation, ...]
        if action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
            annotations = (await _annotation(model, version, values),)
        elif action in ("ANNOTATIONS_DELETED", "ANNOTATION_DELETED"):
            gone = values.get("annotations", values.get("annotation"))
            annotations = deletions(keys_of(values.get("project"), gone))
        else:
            return {"status": "ignored", "action": str(action)[:80]}
        outcome = await service.change(
            model, Annotate(annotations), Wanted(note=f"Label Studio: {action}", who="Label Studio")
        )
        return {"status": "ok", **outcome_values(m, outcome)}

    async def _annotation(model: ServedModel, version: Version, values: Mapping[str, Any]) -> Annotation:
        annotation, project = values.get("annotation"), values.get("project")
        if not isinstance(annotation, Mapping):
            raise Problem(422, "annotation must be an object", "BadField")
        key, label = annotation_key(project, annotation), choice_of(annotation)
        moment = str(annotation.get("updated_at") or "")[:40]
        if label is None:
            return Annotation(key, None, moment=moment)
        checked(LabelList, {"labels": [label]})
        config = project.get("label_config") if isinstance(project, Mapping) else None
        names: Names = names_of(config, version.kind)
        samples = await _samples(version, [sample_of(values.get("task"), version.kind, names)])
        rows = await service.features(model, version, alone=True, **samples)
        return Annotation(key, label, rows[0], moment=moment)

    async def _samples(version: Version, samples: list[str]) -> dict[str, Any]:
        """Return samples of tasks as the service takes them; images that lie elsewhere are fetched."""
        if version.kind == "texts":
            return {"texts": samples}
        where = enumerate(samples)
        return {"images": [SentImage(f"tasks[{i}]", await service.run(fetcher.image, place)) for i, place in where]}

    return router
