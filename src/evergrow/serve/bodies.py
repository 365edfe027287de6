"""Read request bodies within limits: JSON, forms, files and samples."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError, create_model
from starlette.formparsers import MultiPartException, MultiPartParser

from evergrow.core import errors
from evergrow.core.archive import parse_json
from evergrow.data.arrays import read_npy_header
from evergrow.learner.modelfile import ModelWriteError
from evergrow.serve.config import Limits
from evergrow.serve.problems import Problem
from evergrow.serve.schemas import WIDEST, JsonSamples, RequestModel, SampleForm

JSON = "application/json"
FORM = "multipart/form-data"
FILE = "application/octet-stream"
BINARY: dict[str, Any] = {FILE: {"schema": {"type": "string", "format": "binary"}}}
"""OpenAPI description of a file."""
JSON_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON, if binary tensors follow it."""
IMAGES_IN_JSON = 8
"""JSON that contains image files may be this many times larger than other JSON."""
UPLOAD = "upload"
"""Prefix of temporary folders for uploaded files."""
_MAX_FIELDS = 100
"""Fields of a JSON object. Every unknown field would add a validation error."""
_CONTAINER_COST = 10
"""A key or a list counts as this many values: the parser creates an object for each."""
_FORM_PIECE = 2**14
"""Bytes of a form that are parsed before other requests get a turn."""
_SMALL_JSON = 2**16
"""Bytes of JSON that are parsed on the event loop."""
_LIST_FIELDS = ("images", "labels", "unknown")
"""Form fields that may be repeated."""


def media_type(request: Request) -> str:
    """Return the content type of a request without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_media_type(request: Request, *supported: str) -> None:
    """Raise a 415 problem for other content types."""
    if media_type(request) not in supported:
        raise Problem(
            415,
            f"the Content-Type must be {' or '.join(supported)}, "
            f"got {media_type(request)[:80]!r}",
            "MediaType",
        )


def validated(kind: Any, value: Any, *, strict: bool | None = None) -> Any:
    """Convert a value to a type with pydantic.

    Parameters
    ----------
    kind : type
        The type, such as a pydantic model.
    value : object
        The value.
    strict : bool, optional
        Whether values of other types are rejected. Default: as the type says.

    Raises
    ------
    RequestValidationError
        If the value does not fit. Becomes a 422 problem that lists the fields.
    """
    try:
        return TypeAdapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


# -- JSON ------------------------------------------------------------------------------


class BoundedRequest(Request):
    """A request whose JSON body is read within limits."""

    async def json(self) -> Any:
        """Return the JSON value of the body."""
        return await self.checked_json()

    async def checked_json(self, kind: Any = None) -> Any:
        """Return the JSON value of the body. A large body is parsed in a thread.

        Parameters
        ----------
        kind : type, optional
            Pydantic model of the value. Default: no validation.

        Raises
        ------
        Problem
            400 if the body is not valid JSON, 413 if it has too many values.
        RequestValidationError
            If it does not match the model.
        """
        body = await self.body()
        max_values = self.app.state.service.limits.json_values

        def parse() -> Any:
            value = parse_body(body, max_values)
            return value if kind is None else validated(kind, value)

        if len(body) < _SMALL_JSON:
            return parse()
        return await asyncio.to_thread(parse)


def parse_body(body: bytes, max_values: int) -> Any:
    """Parse JSON.

    Raises a 413 problem for more than `max_values` values, estimated from punctuation
    before it is parsed, 400 if it is malformed, and 422 for too many fields.
    """
    n_containers = sum(map(body.count, (b"[", b"{", b":")))
    if max(body.count(b","), _CONTAINER_COST * n_containers) > max_values:
        raise Problem(
            413,
            f"JSON may contain at most {max_values:,} values and "
            f"{max_values // _CONTAINER_COST:,} keys and lists: "
            "send samples as files",
            "TooMany",
        )
    try:
        value = parse_json(body, "body")
    except errors.FileFormatError as error:
        raise Problem(
            400, f"the body is not valid JSON: {error.__cause__}", "BadJson"
        ) from error
    if isinstance(value, dict) and len(value) > _MAX_FIELDS:
        raise Problem(
            422,
            f"a request has at most {_MAX_FIELDS} fields, got {len(value):,}",
            "BadField",
        )
    return value


class BoundedRoute(APIRoute):
    """A route that accepts only JSON bodies and reads them within limits."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the request handler of the route."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            # Pages of other sites may send other types without asking the service.
            if self.body_field is not None:
                check_media_type(request, JSON)
            return await handle(BoundedRequest(request.scope, request.receive))

        return handle_bounded


# -- files and forms -------------------------------------------------------------------


async def receive_file(request: Request, path: Path, *media_types: str) -> bytes:
    """Write the body of a request to a new file and return its hash.

    Parameters
    ----------
    request : Request
        The request.
    path : Path
        The file, which must not exist.
    *media_types : str
        Accepted content types.

    Raises
    ------
    Problem
        415 for another content type.
    ModelWriteError
        If the file cannot be written.
    """
    check_media_type(request, *media_types)
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "xb") as file:
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            # This can take seconds on a slow disk.
            await asyncio.to_thread(os.fsync, file.fileno())
    except OSError as error:
        raise ModelWriteError(
            f"the uploaded file cannot be written: {error.strerror}"
        ) from error
    return digest.digest()


async def read_form(request: Request, kind: type[RequestModel]) -> Any:
    """Read a form and return it as a pydantic model.

    The fields ``images``, ``labels`` and ``unknown`` may be repeated. Files stay in
    memory.

    Parameters
    ----------
    request : Request
        The request.
    kind : type of RequestModel
        The model, whose fields are those of the form.

    Raises
    ------
    Problem
        415 for another content type, 400 if the form is malformed, 413 if it has too
        many or too large fields.
    RequestValidationError
        If the fields do not match the model.
    """
    check_media_type(request, FORM)
    limits: Limits = request.app.state.service.limits
    parser = MultiPartParser(
        request.headers,
        _small_chunks(request),
        max_files=limits.samples,
        # Two lists, such as labels and unknown, and a few other fields.
        max_fields=2 * limits.samples + 100,
        # A character has at most four bytes.
        max_part_size=4 * limits.text_characters,
    )
    # All files stay in memory: no sample is written to disk.
    parser.spool_max_size = limits.body_bytes
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 400
        if error.message.startswith(("Too many", "Part exceeded")):
            status = 413
        raise Problem(
            status, f"the form cannot be read: {error.message}", "BadForm"
        ) from error
    except (KeyError, UnicodeDecodeError, ValueError) as error:
        # The boundary is missing, or a name is not UTF-8.
        raise Problem(
            400, "the form cannot be read: it is malformed", "BadForm"
        ) from error
    fields = {}
    for name in form:
        values = form.getlist(name)
        # Other fields that are repeated become lists too, which validation rejects.
        is_list = name in _LIST_FIELDS or len(values) > 1
        fields[name] = values if is_list else values[0]
    # All values of a form are texts or files, so numbers must be converted.
    return validated(kind, fields, strict=False)


async def _small_chunks(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield the body in small chunks and let other requests run after each one.

    A form is parsed on the event loop.
    """
    async for chunk in request.stream():
        for start in range(0, len(chunk), _FORM_PIECE):
            yield chunk[start : start + _FORM_PIECE]
            await asyncio.sleep(0)


def describe_form(kind: type[RequestModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a form."""
    content = {FORM: _form_content(kind.model_json_schema())}
    return {"requestBody": {"required": True, "content": content}}


def _form_content(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI description of the content of a form."""
    return {
        "schema": schema,
        "encoding": {"images": {"contentType": "image/png, image/jpeg"}},
    }


# -- samples ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RequestSamples:
    """The samples of a request: images, texts or feature vectors.

    A request may give several kinds or none, which the model then refuses.

    Parameters
    ----------
    images : list of (str, bytes), optional
        Names for messages and contents of image files.
    texts : list of str, optional
        Texts.
    rows : list of list of float, or ndarray of shape (n, d), optional
        Feature vectors.
    fields : JsonSamples or SampleForm, optional
        The whole request, with the fields that :class:`SampleBody` adds.
    content : tuple of bytes
        The raw request, for the hash of :meth:`ChangeRequest.with_content`.
    """

    images: list[tuple[str, bytes]] | None = None
    texts: list[str] | None = None
    rows: list[list[float]] | NDArray[Any] | None = None
    fields: Any = None
    content: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        parts = (self.images, self.texts, self.rows)
        return max((len(part) for part in parts if part is not None), default=0)

    def labels(self) -> NDArray[np.str_]:
        """Return the label of every sample, from the field ``label`` or ``labels``.

        Raises
        ------
        LabelError
            If both or neither are given, or ``labels`` has another length.
        """
        label = self.fields.label
        labels = self.fields.labels
        n = len(self)
        if (label is None) == (labels is None):
            given = "both" if label else "neither"
            raise errors.LabelError(
                "give either label (one class for all samples) or labels (one class "
                f"per sample), got {given}"
            )
        if labels is None:
            labels = [label] * n
        if len(labels) != n:
            raise errors.LabelError(
                f"labels must have one entry per sample ({n}), got {len(labels)}"
            )
        return np.asarray(labels, dtype=np.str_)


class SampleBody:
    """A dependency that reads samples and further fields from JSON or from a form.

    Parameters
    ----------
    fields : type of RequestModel
        The further fields. They become attributes of ``RequestSamples.fields``.
    """

    def __init__(self, fields: type[RequestModel]) -> None:
        name = fields.__name__
        self._json = create_model(f"{name}Json", __base__=(JsonSamples, fields))
        self._form = create_model(f"{name}Form", __base__=(SampleForm, fields))

    async def __call__(self, request: BoundedRequest) -> RequestSamples:
        """Return the samples of a request. Called by FastAPI."""
        check_media_type(request, JSON, FORM)
        if media_type(request) == FORM:
            return await self._read_form(request)
        fields = await request.checked_json(self._json)
        content = (await request.body(),)
        return RequestSamples(None, fields.texts, fields.rows, fields, content)

    async def _read_form(self, request: BoundedRequest) -> RequestSamples:
        """Return the samples in a form. In `content`, the fields precede the files."""
        fields = await read_form(request, self._form)
        files = [await file.read() for file in fields.images or ()]
        images = [(f"images[{i}]", data) for i, data in enumerate(files)]
        rows = None
        if fields.rows is not None:
            files.append(await fields.rows.read())
            rows = await _read_rows(request, files[-1])
        content = fields.model_dump_json(exclude={"images", "rows"}).encode()
        return RequestSamples(images or None, None, rows, fields, (content, *files))

    def describe(self) -> dict[str, Any]:
        """Return the OpenAPI description of the body."""
        json_schema = self._json.model_json_schema()
        form_schema = self._form.model_json_schema()
        for schema in (json_schema, form_schema):
            _require_one_of_each(
                schema, ("images", "texts", "rows"), ("label", "labels")
            )
        content = {
            JSON: {"schema": json_schema},
            FORM: _form_content(form_schema),
        }
        return {"requestBody": {"required": True, "content": content}}


def _require_one_of_each(schema: dict[str, Any], *groups: tuple[str, ...]) -> None:
    """Add to an OpenAPI schema that exactly one field of each group is required.

    Fields that the schema does not have are left out of their group.
    """
    schema["allOf"] = []
    for group in groups:
        names = sorted(set(group) & set(schema["properties"]))
        if names:
            alternatives = [{"required": [name]} for name in names]
            schema["allOf"].append({"oneOf": alternatives})


async def _read_rows(request: Request, data: bytes) -> NDArray[np.float64]:
    """Return the matrix in a ``.npy`` file as float64.

    It can take eight times the memory of the file, which counts towards the memory
    budget until the request ends. Raises the errors of :func:`_parse_npy` and of
    :meth:`MemoryBudget.take`.
    """
    limits: Limits = request.app.state.service.limits
    table = _parse_npy(data, limits.samples)
    request.state.hold_memory(table.size * np.dtype(np.float64).itemsize)
    return await asyncio.to_thread(table.astype, np.float64)


def _parse_npy(data: bytes, max_rows: int) -> NDArray[Any]:
    """Return the matrix of numbers in a ``.npy`` file, as a view of the file.

    Raises :class:`InputError` for other contents, and a 413 problem for too many rows.
    """
    try:
        header = read_npy_header(io.BytesIO(data), "the file", len(data))
        shape = header.shape
        if len(shape) != 2 or header.is_fortran or header.dtype.kind not in "fiu":
            raise ValueError("the file has no matrix of numbers in C order")
        if shape[1] > WIDEST:
            raise ValueError(f"the matrix has more than {WIDEST:,} columns")
    except ValueError as error:
        raise errors.InputError(
            f"rows must be a .npy file with a matrix of numbers: {error}"
        ) from error
    if shape[0] > max_rows:
        raise Problem(
            413,
            f"a request may contain at most {max_rows} samples, got {shape[0]}",
            "TooMany",
        )
    return np.frombuffer(data, header.dtype, offset=header.length).reshape(shape)
