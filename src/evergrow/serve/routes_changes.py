"""Routes that change classes and revisions: forget, rename, merge-classes, rollback and redo."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from evergrow.serve.answering import outcome_values
from evergrow.serve.bodies import checked, read_body
from evergrow.serve.described import CHANGE_HEADERS, JSON_BODY, problems
from evergrow.serve.edits import Edit, Forget, MergeClasses, Rename
from evergrow.serve.routes_samples import wanted_of
from evergrow.serve.schemas import ChangeAnswer, Forgetting, Merging, Redoing, Renaming, Undoing
from evergrow.serve.service import Service

_ERRORS = (400, 404, 409, 412, 413, 415, 422, 503, 507)


def changes_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api/v1/models/{m}", tags=["changes"])

    @router.post(
        "/forget",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS),
        openapi_extra={**JSON_BODY(Forgetting), "parameters": CHANGE_HEADERS},
    )
    async def forget(m: str, request: Request, response: Response) -> Any:
        """Forget whole classes; no sample is needed."""
        body = await read_body(request, service.limits)
        asked = checked(Forgetting, body.values)
        return await _change(m, request, response, Forget(tuple(asked.names)), body, asked.note)

    @router.post(
        "/rename",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS),
        openapi_extra={**JSON_BODY(Renaming), "parameters": CHANGE_HEADERS},
    )
    async def rename(m: str, request: Request, response: Response) -> Any:
        """Give a class another name; answers are the same under it."""
        body = await read_body(request, service.limits)
        asked = checked(Renaming, body.values)
        return await _change(m, request, response, Rename(asked.old, asked.new), body, asked.note)

    @router.post(
        "/merge-classes",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS),
        openapi_extra={**JSON_BODY(Merging), "parameters": CHANGE_HEADERS},
    )
    async def merge_classes(m: str, request: Request, response: Response) -> Any:
        """Make several classes one, exactly as if their samples had been taught under one name."""
        body = await read_body(request, service.limits)
        asked = checked(Merging, body.values)
        return await _change(m, request, response, MergeClasses(tuple(asked.names), asked.into), body, asked.note)

    @router.post(
        "/rollback",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS),
        openapi_extra={**JSON_BODY(Undoing), "parameters": CHANGE_HEADERS},
    )
    async def roll_back(m: str, request: Request, response: Response) -> Any:
        """Undo the latest changes, or go back to a revision: the file is again what it was, byte for byte."""
        service.check_writable()
        model, _ = await service.open(m)
        body = await read_body(request, service.limits)
        asked = checked(Undoing, body.values)
        outcome = await model.roll_back(asked.n, asked.to, wanted_of(request, "rollback", body), service.writers)
        response.headers["ETag"] = outcome.version.etag
        return outcome_values(m, outcome)

    @router.post(
        "/redo",
        response_model=ChangeAnswer,
        responses=problems(*_ERRORS),
        openapi_extra={**JSON_BODY(Redoing), "parameters": CHANGE_HEADERS},
    )
    async def redo(m: str, request: Request, response: Response) -> Any:
        """Take rollbacks back, as long as nothing else was learned since."""
        service.check_writable()
        model, _ = await service.open(m)
        body = await read_body(request, service.limits)
        asked = checked(Redoing, body.values)
        outcome = await model.redo(asked.n, wanted_of(request, "redo", body), service.writers)
        response.headers["ETag"] = outcome.version.etag
        return outcome_values(m, outcome)

    async def _change(m: str, request: Request, response: Response, edit: Edit, body: Any, note: str) -> dict[str, Any]:
        service.check_writable()
        model, _ = await service.open(m)
        wanted = wanted_of(request, type(edit).__name__, body, note)
        outcome = await service.change(model, edit, wanted)
        response.headers["ETag"] = outcome.version.etag
        return outcome_values(m, outcome)

    return router
