"""Routes that change classes and revisions: forget, rename, merge-classes, rollback and redo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from evergrow.serve.answering import outcome_values
from evergrow.serve.bodies import checked, read_body
from evergrow.serve.described import CHANGE_HEADERS, JSON_BODY, problems
from evergrow.serve.edits import Edit, Forget, MergeClasses, Rename
from evergrow.serve.model import Outcome
from evergrow.serve.routes_samples import wanted_of
from evergrow.serve.schemas import ChangeAnswer, Forgetting, Merging, Redoing, Renaming, Undoing
from evergrow.serve.service import Service

Route = TypeVar("Route", bound=Callable[..., Any])

_ERRORS = (400, 404, 409, 412, 413, 415, 422, 503, 507)


def changes_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/api/v1/models/{m}", tags=["changes"])

    def changing(path: str, body: type[BaseModel]) -> Callable[[Route], Route]:
        described = {**JSON_BODY(body), "parameters": CHANGE_HEADERS}
        return router.post(path, response_model=ChangeAnswer, responses=problems(*_ERRORS), openapi_extra=described)

    @changing("/forget", Forgetting)
    async def forget(m: str, request: Request, response: Response) -> Any:
        """Forget whole classes; no sample is needed."""
        body = await read_body(request, service.limits)
        asked = checked(Forgetting, body.values)
        return await _change(m, request, response, Forget(tuple(asked.names)), body, asked.note)

    @changing("/rename", Renaming)
    async def rename(m: str, request: Request, response: Response) -> Any:
        """Give a class another name; answers are the same under it."""
        body = await read_body(request, service.limits)
        asked = checked(Renaming, body.values)
        return await _change(m, request, response, Rename(asked.old, asked.new), body, asked.note)

    @changing("/merge-classes", Merging)
    async def merge_classes(m: str, request: Request, response: Response) -> Any:
        """Make several classes one, exactly as if their samples had been taught under one name."""
        body = await read_body(request, service.limits)
        asked = checked(Merging, body.values)
        return await _change(m, request, response, MergeClasses(tuple(asked.names), asked.into), body, asked.note)

    @changing("/rollback", Undoing)
    async def roll_back(m: str, request: Request, response: Response) -> Any:
        """Undo the latest changes, or go back to a revision: the file is again what it was, byte for byte."""
        service.check_writable()
        model, _ = await service.open(m)
        body = await read_body(request, service.limits)
        asked = checked(Undoing, body.values)
        wanted = wanted_of(request, "rollback", body)
        return _told(m, response, await model.roll_back(asked.n, asked.to, wanted, service.writers))

    @changing("/redo", Redoing)
    async def redo(m: str, request: Request, response: Response) -> Any:
        """Take rollbacks back, as long as nothing else was learned since."""
        service.check_writable()
        model, _ = await service.open(m)
        body = await read_body(request, service.limits)
        asked = checked(Redoing, body.values)
        wanted = wanted_of(request, "redo", body)
        return _told(m, response, await model.redo(asked.n, wanted, service.writers))

    async def _change(m: str, request: Request, response: Response, edit: Edit, body: Any, note: str) -> dict[str, Any]:
        service.check_writable()
        model, _ = await service.open(m)
        wanted = wanted_of(request, type(edit).__name__, body, note)
        return _told(m, response, await service.change(model, edit, wanted))

    return router


def _told(m: str, response: Response, outcome: Outcome) -> dict[str, Any]:
    """Return what a change came to, its revision in the response's header."""
    response.headers["ETag"] = outcome.version.etag
    return outcome_values(m, outcome)
