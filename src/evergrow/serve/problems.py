"""Errors as problem documents (RFC 9457). A document says what was wrong and never shows a traceback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from evergrow.core.errors import (
    BusyError,
    EvergrowError,
    InputError,
    MergeError,
    MissingExtraError,
    NotFittedError,
    ParameterError,
    UnlearnError,
    WeightsError,
)
from evergrow.core.escaping import one_line
from evergrow.learner.modelfile import ModelNotFoundError, ModelWriteError
from evergrow.serve.schemas import ProblemDocument, reference

MEDIA_TYPE = "application/problem+json"
_ALWAYS = (401, 403, 413, 421, 422, 429, 503)
"""Statuses that any route can answer with: those of the access middleware, and 422 for parameters."""
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ModelNotFoundError, 404),
    (ModelWriteError, 507),
    (BusyError, 503),
    (MissingExtraError, 501),
    (NotFittedError, 409),
    (InputError, 422),
    (ParameterError, 422),
    (UnlearnError, 422),
    (MergeError, 422),
    (WeightsError, 503),
    (MemoryError, 503),
)
_NO_ROUTE = {404: "nothing is served under this path", 405: "the path does not take this method"}
_LISTED = 20  # validation errors in one document


class Problem(HTTPException):
    """A request that cannot be fulfilled.

    Parameters
    ----------
    status_code : int
        Status of the answer.
    detail : str
        What was wrong and what to do, in a sentence.
    kind : str
        A word for programs.
    retry_after : int, optional
        Seconds after which another try makes sense.
    headers : mapping, optional
        Further headers of the answer.
    **members
        Further members of the document.
    """

    def __init__(
        self,
        status_code: int,
        detail: str,
        kind: str = "Problem",
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        known = dict(headers or {})
        if retry_after is not None:
            known["Retry-After"] = str(retry_after)
        if status_code == 401:
            known["WWW-Authenticate"] = 'Bearer realm="evergrow"'
        super().__init__(status_code, detail, known)
        self.kind, self.members = kind, members


def problem_of(error: BaseException, folder: str = "") -> Problem:
    """Map an exception to a problem. Internal errors reveal nothing.

    Parameters
    ----------
    error : BaseException
        What was raised.
    folder : str
        The folder of the models, which is removed from messages.

    Examples
    --------
    >>> from evergrow.core.errors import LabelError
    >>> from evergrow.serve.problems import problem_of
    >>> found = problem_of(LabelError("class must be one that was learned, got 'cow'"))
    >>> found.status_code, found.kind, found.detail
    (422, 'LabelError', "class must be one that was learned, got 'cow'")
    >>> problem_of(ZeroDivisionError("secret")).detail
    'the service failed; its log says more under the id of this request'
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return validation_problem(error.errors())
    if isinstance(error, HTTPException):
        detail = _NO_ROUTE.get(error.status_code, str(error.detail))
        return Problem(error.status_code, detail, "HttpError", headers=error.headers)
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 500 and not isinstance(error, EvergrowError):
        return Problem(500, "the service failed; its log says more under the id of this request", "InternalError")
    message = one_line(str(error)) or HTTPStatus(status).phrase
    if folder:
        message = message.replace(os.path.join(folder, ""), "").replace(folder, "the folder of the models")
    return Problem(status, message, type(error).__name__, retry_after=1 if status == 503 else None)


def validation_problem(errors: Any) -> Problem:
    """Return the problem 422 for errors that pydantic found, each with its field."""
    listed = [{"field": _field(entry["loc"]), "message": entry["msg"]} for entry in errors[:_LISTED]]
    first = listed[0]
    detail = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    return Problem(422, detail, "BadField", errors=listed)


def _field(location: tuple[int | str, ...]) -> str:
    """Return a field as people write it: ``rows[0][3]``."""
    parts = location[1:] if location and location[0] in ("body", "query", "header", "path") else location
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:200]


def problem_response(problem: Problem, path: str, request_id: str = "") -> JSONResponse:
    """Return the problem document.

    Parameters
    ----------
    problem : Problem
        What was wrong.
    path : str
        The path that was asked for. The Open Inference Protocol (``/v2``) wants the message under ``error``.
    request_id : str
        Id of the request.
    """
    document = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status_code).phrase,
        "status": problem.status_code,
        "detail": problem.detail,
        "error": problem.detail if path.startswith("/v2") else problem.kind,
        **problem.members,
        **({"request_id": request_id} if request_id else {}),
    }
    return JSONResponse(document, problem.status_code, problem.headers, media_type=MEDIA_TYPE)


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the problem that an exception stands for; the exception handler of the application."""
    folder = str(request.app.state.service.store.folder)
    return problem_response(problem_of(error, folder), request.url.path, getattr(request.state, "request_id", ""))


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of problems that a route can answer with, and of those that all routes can."""
    schema = reference(ProblemDocument)
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*statuses, *_ALWAYS})
    }
