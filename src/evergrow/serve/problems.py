"""Errors as problem documents (RFC 9457): what was wrong, in the words of the request, and never a traceback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from evergrow.core.errors import (
    BusyError,
    EvergrowError,
    FileFormatError,
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

MEDIA_TYPE = "application/problem+json"

TITLES = {
    400: "the request cannot be read",
    401: "a token is missing or wrong",
    403: "not allowed",
    404: "not found",
    405: "no such method here",
    408: "too slow",
    409: "the model is not in a state for that",
    412: "the model was changed meanwhile",
    413: "too large",
    415: "of a type that is not taken",
    421: "addressed under a name that is not served",
    422: "the request does not fit",
    429: "too many requests",
    499: "the caller left",
    500: "an error of the service",
    501: "not installed",
    503: "busy",
    507: "the model could not be written",
}


class Problem(Exception):  # noqa: N818  the name of the thing in RFC 9457
    """A request that cannot be fulfilled.

    Parameters
    ----------
    status : int
        Status of the answer.
    detail : str
        A sentence: which field must be what, and what it is.
    kind : str
        A word for programs.
    retry_after : int, optional
        Seconds after which another try makes sense.
    more : mapping, optional
        Further members of the document.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        kind: str = "",
        *,
        retry_after: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.kind = status, detail, kind
        self.retry_after, self.more = retry_after, dict(more or {})


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
    (FileFormatError, 500),
    (WeightsError, 503),
    (MemoryError, 503),
)


def problem_of(error: BaseException, folder: str = "") -> Problem:
    """Return the problem that an error is to the caller; what is nobody's fault but ours says nothing of the inside.

    Parameters
    ----------
    error : BaseException
        What was raised.
    folder : str
        The folder of the models, which messages leave out.

    Examples
    --------
    >>> from evergrow.core.errors import LabelError
    >>> from evergrow.serve.problems import problem_of
    >>> found = problem_of(LabelError("class must be one that was learned, got 'cow'"))
    >>> found.status, found.kind, found.detail
    (422, 'LabelError', "class must be one that was learned, got 'cow'")
    >>> problem_of(ZeroDivisionError("secret")).detail
    'the service failed; its log says more under the id of this request'
    """
    if isinstance(error, Problem):
        return error
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 500 and not isinstance(error, EvergrowError):
        return Problem(500, "the service failed; its log says more under the id of this request", "InternalError")
    message = one_line(str(error)) or TITLES[status]
    if folder:
        message = message.replace(os.path.join(folder, ""), "")
    return Problem(status, message, type(error).__name__, retry_after=1 if status == 503 else None)


def answer_to(problem: Problem, request_id: str = "", path: str = "") -> JSONResponse:
    """Return the problem document; the Open Inference Protocol wants the message itself under ``error``.

    Parameters
    ----------
    problem : Problem
        What was wrong.
    request_id : str
        Of the request.
    path : str
        What was asked.
    """
    values = {
        "type": "about:blank",
        "title": TITLES.get(problem.status, "error"),
        "status": problem.status,
        "detail": problem.detail,
        "error": problem.detail if path.startswith("/v2") else problem.kind or "Problem",
        **problem.more,
    }
    if request_id:
        values["request_id"] = request_id
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    if problem.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="evergrow"'
    return JSONResponse(values, problem.status, headers, media_type=MEDIA_TYPE)
