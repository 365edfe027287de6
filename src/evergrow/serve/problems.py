"""Error responses: exceptions become problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from evergrow.core import errors
from evergrow.core.escaping import one_line
from evergrow.learner.modelfile import ModelWriteError
from evergrow.serve.schemas import UNKNOWN_FIELD, ProblemDocument, ProtocolError

PROBLEM = "application/problem+json"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Error",
        "content": {
            PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
        },
    }
}
"""OpenAPI description of error responses."""
PROTOCOL_PATH = "/v2"
"""Path of the Open Inference Protocol, which has its own error documents."""
PROTOCOL_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "Error", "model": ProtocolError}
}
"""OpenAPI description of error responses of the Open Inference Protocol."""
_STATUS: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (
    (404, (errors.ModelNotFoundError,)),
    (507, (ModelWriteError,)),
    (501, (errors.MissingExtraError,)),
    # The model file must be repaired first.
    (409, (errors.NotFittedError, errors.FileFormatError, errors.PathError)),
    (503, (errors.BusyError, errors.WeightsError, MemoryError)),
    (422, (errors.InputError, errors.ParameterError)),
    (422, (errors.UnlearnError, errors.MergeError)),
)
_ROUTING_DETAILS = {
    404: "nothing is served under this path",
    405: "this path does not support this method",
}
_MAX_ERRORS = 20
"""Maximum number of validation errors in one document."""


class Problem(HTTPException):
    """A request that cannot be fulfilled.

    Parameters
    ----------
    status_code : int
        HTTP status of the response.
    detail : str
        What happened and what to do, in one sentence.
    kind : str
        Fixed word for programs, the member ``error`` of the document.
    retry_after : int, default=1
        Seconds after which a request with status 429 or 503 can be repeated.
    **members
        Further members of the problem document.
    """

    def __init__(
        self,
        status_code: int,
        detail: str,
        kind: str = "Problem",
        *,
        retry_after: int = 1,
        **members: Any,
    ) -> None:
        headers = {}
        if status_code in (429, 503):
            headers["Retry-After"] = str(retry_after)
        if status_code == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="evergrow"'
        super().__init__(status_code, detail, headers)
        self.kind = kind
        self.members = members


def problem_of(
    error: BaseException, without_paths: Callable[[str], str] = str
) -> Problem:
    """Return the problem for an exception.

    Errors of the library keep their message. All others become an internal error, which
    reveals no details.

    Parameters
    ----------
    error : BaseException
        The exception.
    without_paths : callable, default=str
        Removes the paths of model files from a message. The default removes nothing.

    Examples
    --------
    >>> from evergrow.core.errors import LabelError
    >>> from evergrow.serve.problems import problem_of
    >>> problem = problem_of(LabelError("class 'cow' is unknown"))
    >>> problem.status_code, problem.kind, problem.detail
    (422, 'LabelError', "class 'cow' is unknown")
    >>> problem_of(ZeroDivisionError("secret")).detail
    'internal error: see the log of the service for this request id'
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_problem(error)
    if isinstance(error, HTTPException):
        detail = _ROUTING_DETAILS.get(error.status_code, str(error.detail))
        problem = Problem(error.status_code, detail, "HttpError")
        problem.headers = error.headers
        return problem
    statuses = [status for status, kinds in _STATUS if isinstance(error, kinds)]
    status = statuses[0] if statuses else 500
    if status == 500 and not isinstance(error, errors.EvergrowError):
        return Problem(
            500,
            "internal error: see the log of the service for this request id",
            "InternalError",
        )
    message = one_line(without_paths(str(error))) or HTTPStatus(status).phrase
    return Problem(status, message, type(error).__name__)


def _validation_problem(error: RequestValidationError) -> Problem:
    """Return the 422 problem that lists the invalid fields."""
    entries = error.errors()[:_MAX_ERRORS]
    fields = [
        {
            "field": _field_path(entry["loc"]),
            "message": entry["msg"].removeprefix("Value error, "),
        }
        for entry in entries
    ]
    detail = fields[0]["message"]
    if fields[0]["field"] and entries[0]["type"] != UNKNOWN_FIELD:
        detail = f"{fields[0]['field']}: {detail}"
    return Problem(422, detail, "BadField", errors=fields)


def _field_path(location: tuple[int | str, ...]) -> str:
    """Return the location of a validation error in the form ``rows[0][3]``."""
    if location and location[0] in ("body", "query", "header", "path"):
        location = location[1:]
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")[:200]


def problem_response(problem: Problem, request_id: str, path: str) -> JSONResponse:
    """Return the problem document as a response to a request for a path."""
    if path == PROTOCOL_PATH or path.startswith(f"{PROTOCOL_PATH}/"):
        # The protocol has one status for invalid requests.
        status = 400 if problem.status_code == 422 else problem.status_code
        error = ProtocolError(error=problem.detail)
        return JSONResponse(error.model_dump(), status, problem.headers)
    document = ProblemDocument(
        title=HTTPStatus(problem.status_code).phrase,
        status=problem.status_code,
        detail=problem.detail,
        error=problem.kind,
        request_id=request_id,
    )
    return JSONResponse(
        document.model_dump() | problem.members,
        problem.status_code,
        problem.headers,
        media_type=PROBLEM,
    )


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response for an exception. An exception handler of the application."""
    if isinstance(error, HTTPException) and not isinstance(error, Problem):
        # The static files of the page are mounted at "/" and answer all requests that
        # match no route, including those with an unsupported method.
        allowed = _allowed_methods(request)
        if error.status_code == 405:
            # Some versions of Starlette do not name the methods of static files.
            allowed = allowed or {"GET", "HEAD"}
        if allowed:
            error = HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    problem = problem_of(error, request.app.state.service.store.without_paths)
    return problem_response(problem, request.state.request_id, request.url.path)


def _allowed_methods(request: Request) -> set[str]:
    """Return the methods of the routes with the path of a request. Empty if none."""
    matching = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.path_regex.match(request.url.path)
    ]
    # "/models/upload" also matches the route of a model named "upload".
    fixed = [route for route in matching if not route.param_convertors]
    return {method for route in fixed or matching for method in route.methods or ()}
