"""How requests are read within limits, and how errors are answered: as problem documents (RFC 9457)."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import io
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import SkipJsonSchema
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.routing import Route

from evergrow.core import errors
from evergrow.core.archive import parse_json
from evergrow.core.escaping import one_line
from evergrow.learner.modelfile import ModelWriteError
from evergrow.learner.snapshot import Change
from evergrow.serve.config import Limits
from evergrow.serve.schemas import (
    WIDEST,
    JsonSamples,
    ProblemDocument,
    RequestModel,
    SampleForm,
)

JSON = "application/json"
FORM = "multipart/form-data"
PROBLEM = "application/problem+json"
FILE = "application/octet-stream"
BINARY: dict[str, Any] = {FILE: {"schema": {"type": "string", "format": "binary"}}}
"""The OpenAPI description of a file."""
UPLOAD = "upload"
"""Name of the folders of files that are being received."""
_STATUS: tuple[tuple[int, tuple[type[Exception], ...]], ...] = (
    (404, (errors.ModelNotFoundError,)),
    (507, (ModelWriteError,)),
    (501, (errors.MissingExtraError,)),
    (
        409,
        (errors.NotFittedError, errors.FileFormatError, errors.PathError),
    ),  # a model's file must be mended first
    (503, (errors.BusyError, errors.WeightsError, MemoryError)),
    (
        422,
        (
            errors.InputError,
            errors.ParameterError,
            errors.UnlearnError,
            errors.MergeError,
        ),
    ),
)
_PROBLEM_CONTENT = {
    PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What was wrong", "content": _PROBLEM_CONTENT}
}
"""The OpenAPI description of answers that are problems, the same for all routes."""
_NO_ROUTE = {
    404: "nothing is served under this path",
    405: "the path does not take this method",
}
_ERRORS = 20  # validation errors in one document
_FIELDS = (
    100  # fields of a JSON object at the top: each unknown one would make an error
)
_PARTS = 10  # values that cost as much as a list
_PIECE = 2**14  # bytes of a form that are parsed at once
_SMALL = 2**16  # bytes of JSON that are read without keeping others waiting
_REQUESTS = "requests"  # field of a change: the request that it fulfilled, in a list

# -- problems --------------------------------------------------------------------------


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
        **members: Any,
    ) -> None:
        if retry_after is None:
            headers = {}
        else:
            headers = {"Retry-After": str(retry_after)}
        if status_code == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="evergrow"'
        super().__init__(status_code, detail, headers)
        self.kind = kind
        self.members = members


def problem_of(
    error: BaseException, without_paths: Callable[[str], str] = str
) -> Problem:
    """Map an exception to a problem. Internal errors reveal nothing.

    Parameters
    ----------
    error : BaseException
        What was raised.
    without_paths : callable
        Removes the paths of the models from a message.

    Examples
    --------
    >>> from evergrow.core.errors import LabelError
    >>> from evergrow.serve.requests import problem_of
    >>> found = problem_of(LabelError("class must be one that was learned, got 'cow'"))
    >>> found.status_code, found.kind, found.detail
    (422, 'LabelError', "class must be one that was learned, got 'cow'")
    >>> problem_of(ZeroDivisionError("secret")).detail
    'the service failed; its log says more under the id of this request'
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        listed = [
            {
                "field": _field(entry["loc"]),
                "message": entry["msg"].removeprefix("Value error, "),
            }
            for entry in error.errors()[:_ERRORS]
        ]
        first = listed[0]
        if first["field"]:
            detail = f"{first['field']}: {first['message']}"
        else:
            detail = first["message"]
        return Problem(422, detail, "BadField", errors=listed)
    if isinstance(error, HTTPException):
        detail = _NO_ROUTE.get(error.status_code, str(error.detail))
        problem = Problem(error.status_code, detail, "HttpError")
        problem.headers = error.headers
        return problem
    status = next(
        (status for status, kinds in _STATUS if isinstance(error, kinds)), 500
    )
    if status == 500 and not isinstance(error, errors.EvergrowError):
        return Problem(
            500,
            "the service failed; its log says more under the id of this request",
            "InternalError",
        )
    message = one_line(without_paths(str(error))) or HTTPStatus(status).phrase
    return Problem(
        status, message, type(error).__name__, retry_after=1 if status == 503 else None
    )


def _field(location: tuple[int | str, ...]) -> str:
    """Return a field as people write it: ``rows[0][3]``."""
    if location and location[0] in ("body", "query", "header", "path"):
        parts = location[1:]
    else:
        parts = location
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts
    ).removeprefix(".")[:200]


def problem_response(problem: Problem, request_id: str) -> JSONResponse:
    """Return the problem document of a request."""
    known = {
        "status": problem.status_code,
        "detail": problem.detail,
        "error": problem.kind,
        "request_id": request_id,
    }
    document = ProblemDocument.model_validate(
        {"title": HTTPStatus(problem.status_code).phrase, **known}
    ).model_dump()
    return JSONResponse(
        document | problem.members,
        problem.status_code,
        problem.headers,
        media_type=PROBLEM,
    )


async def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with the problem that an exception stands for; the exception handler of the application."""
    if isinstance(error, HTTPException) and not isinstance(error, Problem):
        # The files of the page lie under every path, so they answer what no route of
        # the path takes.
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        fitting = [
            route for route in routes if route.path_regex.match(request.url.path)
        ]
        fitting = [
            route for route in fitting if not route.param_convertors
        ] or fitting  # the path itself, not a model
        allowed = {method for route in fitting for method in route.methods or ()}
        if error.status_code == 405:
            allowed = allowed or {
                "GET",
                "HEAD",
            }  # the files themselves: not every Starlette says so
        if allowed:
            error = HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    problem = problem_of(error, request.app.state.service.store.without_paths)
    return problem_response(problem, request.state.request_id)


# -- bodies ----------------------------------------------------------------------------


def media_type(request: Request) -> str:
    """Return the content type of a request without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def validated(kind: Any, value: Any, *, strict: bool | None = None) -> Any:
    """Return a value as a pydantic type, or raise the error that becomes the problem 422 with the wrong fields."""
    try:
        return TypeAdapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


class BoundedRequest(Request):
    """A request whose JSON is read within limits."""

    async def json(self) -> Any:
        """Return the JSON value of the body."""
        return await self.checked_json()

    async def checked_json(self, kind: Any = None) -> Any:
        """Return the JSON value of the body; a large one is read in a thread, so that others need not wait.

        Parameters
        ----------
        kind : type, optional
            The pydantic model that it is validated as; by default the plain value is
            returned.

        Raises
        ------
        Problem
            400 if it is no JSON, 413 if it holds too many values, 422 if it does not
            fit the model.
        """
        raw = await self.body()
        most = self.app.state.service.limits.json_values

        def parse() -> Any:
            parts = sum(
                map(raw.count, (b"[", b"{", b":"))
            )  # which cost most: each is an object for the parser
            if max(raw.count(b","), _PARTS * parts) > most:
                said = f"{most:,} values and {most // _PARTS:,} keys and lists"
                raise Problem(
                    413,
                    f"JSON may hold at most {said}: send samples as files",
                    "TooMany",
                )
            try:
                value = parse_json(raw, "body")
            except errors.FileFormatError as error:
                raise Problem(
                    400, f"the body is not valid JSON: {error.__cause__}", "BadJson"
                ) from error
            if isinstance(value, dict) and len(value) > _FIELDS:
                raise Problem(
                    422,
                    f"a request has at most {_FIELDS} fields, not {len(value):,}",
                    "BadField",
                )
            if kind is None:
                return value
            return validated(kind, value)

        if len(raw) < _SMALL:
            return parse()
        return await asyncio.to_thread(parse)


class BoundedRoute(APIRoute):
    """A route that takes JSON alone, as a :class:`BoundedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            if self.body_field is not None and media_type(request) != JSON:
                raise Problem(
                    415, f"send {JSON}, not {media_type(request)[:80]!r}", "MediaType"
                )
            return await handle(BoundedRequest(request.scope, request.receive))

        return handle_bounded


async def receive_file(request: Request, path: Path, *media_types: str) -> bytes:
    """Write a body of one of some types to a new file, and return its hash."""
    if media_type(request) not in media_types:
        raise Problem(
            415,
            f"send it as {media_types[0]}, not {media_type(request)[:80]!r}",
            "MediaType",
        )
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "xb") as file:
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())  # seconds on a slow disk
    except OSError as error:
        raise ModelWriteError(
            f"what was sent cannot be written: {error.strerror}"
        ) from error
    return digest.digest()


# -- samples ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SentSamples:
    """The samples of a request, in one of three forms.

    Parameters
    ----------
    images : list of (str, bytes), optional
        Image files, each with a name for messages.
    texts : list of str, optional
        Texts.
    rows : list of list of float, or ndarray of shape (n, d), optional
        Feature vectors.
    fields : JsonSamples or SampleForm, optional
        The fields that came with them.
    content : tuple of bytes
        What identifies the request, for its idempotency key.
    """

    images: list[tuple[str, bytes]] | None = None
    texts: list[str] | None = None
    rows: list[list[float]] | NDArray[Any] | None = None
    fields: Any = None
    content: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return max(
            (
                len(part)
                for part in (self.images, self.texts, self.rows)
                if part is not None
            ),
            default=0,
        )

    def labels(self) -> NDArray[np.str_]:
        """Return the class of every sample, from one for all or one for each."""
        label = self.fields.label
        labels = self.fields.labels
        n = len(self)
        if (label is None) == (labels is None):
            both = "both were given" if label else "neither was given"
            raise errors.LabelError(
                f"label must be given for all samples, or labels for each; {both}"
            )
        if labels is not None and len(labels) != n:
            raise errors.LabelError(
                f"labels must be one for each of {n} samples, got {len(labels)}"
            )
        return np.asarray([label] * n if labels is None else labels, dtype=np.str_)


class SampleBody:
    """A dependency that reads samples, from JSON or from a form of files, with the same fields beside them.

    Parameters
    ----------
    fields : type of RequestModel
        The fields.
    """

    def __init__(self, fields: type[RequestModel]) -> None:
        self._json = create_model(
            f"{fields.__name__}Json", __base__=(JsonSamples, fields)
        )
        self._form = create_model(
            f"{fields.__name__}Form", __base__=(SampleForm, fields)
        )

    async def __call__(self, request: BoundedRequest) -> SentSamples:
        """Return the samples of a request."""
        limits = request.app.state.service.limits
        if media_type(request) == FORM:
            fields = await read_form(request, self._form)
            files = [
                await file.read()
                for file in (
                    *(fields.images or ()),
                    *([fields.rows] if fields.rows else ()),
                )
            ]
            images = [
                (f"images[{i}]", data)
                for i, data in enumerate(files[: len(fields.images or ())])
            ] or None
            rows = None
            if fields.rows is not None:
                rows = await _read_rows(request, files[-1], limits.samples)
            content = fields.model_dump_json(exclude={"images", "rows"}).encode()
            return SentSamples(images, None, rows, fields, (content, *files))
        if media_type(request) != JSON:
            raise Problem(
                415,
                f"send {JSON} or {FORM}, not {media_type(request)[:80]!r}",
                "MediaType",
            )
        fields = await request.checked_json(self._json)
        return SentSamples(
            None, fields.texts, fields.rows, fields, (await request.body(),)
        )

    def described(self) -> dict[str, Any]:
        """Return the OpenAPI description of what it reads."""
        schemas = [model.model_json_schema() for model in (self._json, self._form)]
        for schema in schemas:  # one sort of samples, and where there are labels one of two ways to give them
            sorts = ("images", "texts", "rows"), ("label", "labels")
            groups = [set(names) & set(schema["properties"]) for names in sorts]
            schema["allOf"] = [
                {"oneOf": [{"required": [name]} for name in sorted(group)]}
                for group in groups
                if group
            ]
        return {
            "requestBody": {
                "required": True,
                "content": {JSON: {"schema": schemas[0]}, FORM: _form(schemas[1])},
            }
        }


def _form(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": schema,
        "encoding": {"images": {"contentType": "image/png, image/jpeg"}},
    }


def described_form(kind: type[RequestModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a form that :func:`read_form` reads."""
    return {
        "requestBody": {
            "required": True,
            "content": {FORM: _form(kind.model_json_schema())},
        }
    }


async def _pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield a body in small pieces, and let others have their turn after each: a form is parsed on the event loop."""
    async for chunk in request.stream():
        for start in range(0, len(chunk), _PIECE):
            yield chunk[start : start + _PIECE]
            await asyncio.sleep(0)


_LISTS = ("images", "labels", "unknown")


async def read_form(request: Request, kind: type[RequestModel]) -> Any:
    """Return a form as a pydantic model.

    The fields ``images``, ``labels`` and ``unknown`` may come several times.
    """
    if media_type(request) != FORM:
        raise Problem(
            415, f"send {FORM}, not {media_type(request)[:80]!r}", "MediaType"
        )
    limits: Limits = request.app.state.service.limits
    parser = MultiPartParser(
        request.headers,
        _pieces(request),
        max_files=limits.samples,
        max_fields=2 * limits.samples + 100,
        max_part_size=limits.text_characters * 4,
    )
    parser.spool_max_size = limits.body_bytes  # in memory: no sample is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 400
        if error.message.startswith(("Too many", "Part exceeded")):
            status = 413
        raise Problem(
            status, f"the form cannot be read: {error.message}", "BadForm"
        ) from error
    except (
        KeyError,
        UnicodeDecodeError,
        ValueError,
    ) as error:  # no boundary, or a name that is not UTF-8
        raise Problem(
            400, "the form cannot be read: it is damaged", "BadForm"
        ) from error
    # A field that comes twice stays a list, which its type refuses.
    found = ((name, form.getlist(name)) for name in form)
    fields = {
        name: got if name in _LISTS or len(got) > 1 else got[0] for name, got in found
    }
    return validated(kind, fields, strict=False)


async def _read_rows(request: Request, data: bytes, most: int) -> NDArray[np.float64]:
    """Return the matrix in a ``.npy`` file in float64, which may take eight times the file.

    Its memory counts towards the budget of the service until the request ends.
    """
    table = _read_table(data, most)
    request.state.hold_memory(8 * table.size)
    return await asyncio.to_thread(table.astype, np.float64)


def _read_table(data: bytes, most: int) -> NDArray[Any]:
    """Return the matrix of numbers in a ``.npy`` file, as a view of the file."""
    try:
        file = io.BytesIO(data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is no .npy file of version 1")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        if len(shape) != 2 or by_columns or dtype.kind not in "fiu":
            raise ValueError("it holds no matrix of numbers in C order")
        if shape[0] > most:
            raise Problem(
                413,
                f"a request may hold at most {most} samples, not {shape[0]}",
                "TooMany",
            )
        if shape[1] > WIDEST:
            raise ValueError(f"it has more than {WIDEST:,} columns")
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.InputError(
            f"rows must be a .npy file with a matrix of numbers: {error}"
        ) from error


# -- changes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeRequest:
    """A change that was asked for, and its conditions.

    The key of a request is written into the model file with the change that fulfils it,
    so that a repeated request counts once, also after a restart and after a rollback,
    whose log tells what it undid.

    Parameters
    ----------
    model : str
        Name of the model.
    if_match : str
        The ETag that the caller saw; empty for none.
    key : str
        Hash of the caller's ``Idempotency-Key``; empty without one.
    content : str
        Hash of what was asked, to notice a key that is used for two requests.
    note : str
        A note for people, kept in the history.
    who : str, optional
        Author of the change; by default the user that the service runs as.
    """

    model: str
    if_match: str = ""
    key: str = ""
    content: str = ""
    note: str = ""
    who: str | None = None

    def with_content(self, *content: bytes, note: str = "") -> ChangeRequest:
        """Return the request with what it asks for.

        Examples
        --------
        >>> from evergrow.serve.requests import ChangeRequest
        >>> request = ChangeRequest("birds", key="k")
        >>> request.with_content(b"teach", b"a").content == request.with_content(b"teacha").content
        False
        """
        digest = hashlib.blake2b(digest_size=12)
        for part in content if self.key else ():
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return dataclasses.replace(
            self, content=digest.hexdigest() if self.key else "", note=note
        )

    def extra(self) -> dict[str, Any]:
        """Return further fields of the change that fulfils the request."""
        if self.key:
            return {_REQUESTS: [{"key": self.key, "content": self.content}]}
        return {}

    def fulfilled_by(self, change: Change) -> bool:
        """Return whether a change fulfilled the request before.

        Raises
        ------
        Problem
            If it fulfilled another one with the same key.
        """
        entries = None
        if self.key:
            entries = change.extra.get(_REQUESTS)
        if isinstance(entries, list):
            listed = entries
        else:
            listed = []
        same = [
            e.get("content")
            for e in listed
            if isinstance(e, dict) and e.get("key") == self.key
        ]
        if same and self.content not in same:
            raise Problem(
                422,
                "this Idempotency-Key was used for another request: take a new one",
                "KeyReused",
            )
        return bool(same)


IfMatch = Annotated[
    str,
    Header(
        description="The ETag that the caller saw; another one answers 412.",
        examples=['"7-3f9c1a"'],
    ),
]


def _check_key(key: str) -> str:
    if not (key.isascii() and key.isprintable()):
        raise ValueError(
            "an Idempotency-Key has plain letters, digits and signs only (ASCII)"
        )
    return key


KeyText = Annotated[
    str,
    Field(min_length=1, max_length=200, json_schema_extra={"pattern": "^[ -~]+$"}),
    AfterValidator(_check_key),
]


def _change_request(
    request: Request,
    if_match: IfMatch = "",
    idempotency_key: Annotated[
        KeyText | SkipJsonSchema[None],
        Header(
            description="A repeated request with the same key counts once, also after a restart."
        ),
    ] = None,
) -> ChangeRequest:
    key = ""
    if idempotency_key:
        key = hashlib.blake2b(idempotency_key.encode(), digest_size=12).hexdigest()
    return ChangeRequest(
        request.path_params["m"],
        if_match,
        key,
        who=getattr(request.state, "token", "") or None,
    )


ChangeRequestDep = Annotated[ChangeRequest, Depends(_change_request)]
