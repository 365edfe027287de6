"""How requests are read: JSON and forms within limits, samples in either, and the headers of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from fastapi import Depends, Header, Request, Response
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, LabelError
from evergrow.serve.config import Limits
from evergrow.serve.idempotency import IdempotencyKey
from evergrow.serve.problems import Problem, validation_problem
from evergrow.serve.schemas import ImageForm, JsonSamples, LabelFields, reference

IfMatch = Annotated[str, Header(description="The ETag that the caller saw; another one answers 412.", examples=['"7"'])]
KeyText = Annotated[str, Field(min_length=1, max_length=200, pattern="^[ -~]+$")]
JSON, FORM = "application/json", "multipart/form-data"
_SMALL = 2**18  # bytes of JSON that are parsed without keeping others waiting

Fields = TypeVar("Fields")


def media_type(request: Request) -> str:
    """Return the content type of a request without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class BoundedRequest(Request):
    """A request whose JSON has a bounded depth and finite numbers."""

    async def json(self) -> Any:
        """Return the JSON value of the body."""
        if media_type(self) != JSON:
            raise Problem(415, f"send {JSON}, not {media_type(self)[:80]!r}", "MediaType")
        return await parse_body(await self.body())


async def parse_body(raw: bytes) -> Any:
    """Return the value of a JSON body; a large one is parsed in a thread, so that others need not wait."""
    return _parsed(raw) if len(raw) < _SMALL else await asyncio.to_thread(_parsed, raw)


def _parsed(raw: bytes) -> Any:
    try:
        return parse_json(raw, "body")
    except FileFormatError as error:
        raise Problem(400, f"the body is not valid JSON: {error.__cause__}", "BadJson") from error


class BoundedRoute(APIRoute):
    """A route that reads its body as a :class:`BoundedRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            bounded = BoundedRequest(request.scope, request.receive)
            if self.body_field is not None and media_type(request) != JSON:
                raise Problem(415, f"send {JSON}, not {media_type(request)[:80]!r}", "MediaType")
            return await handle(bounded)

        return handle_bounded


def validated(kind: Any, value: Any, *, strict: bool | None = None) -> Any:
    """Return a value as a pydantic type, or raise the problem 422 that names the wrong fields."""
    try:
        return TypeAdapter(kind).validate_python(value, strict=strict)
    except ValidationError as error:
        raise validation_problem(error.errors()) from error


# -- samples ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentImage:
    """An image as it was sent.

    Parameters
    ----------
    name : str
        Name for messages.
    data : bytes or ndarray
        The content of the file, or pixels.
    """

    name: str
    data: bytes | NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SentSamples:
    """The samples of a request, in one of three forms.

    Parameters
    ----------
    images : list of SentImage, optional
        Images.
    texts : list of str, optional
        Texts.
    rows : list of list of float, or ndarray of shape (n, d), optional
        Feature vectors.
    """

    images: list[SentImage] | None = None
    texts: list[str] | None = None
    rows: list[list[float]] | NDArray[Any] | None = None

    def __len__(self) -> int:
        return max(len(part) for part in (self.images or (), self.texts or (), () if self.rows is None else self.rows))


@dataclass(frozen=True, eq=False)
class SampleBody(Generic[Fields]):
    """A body of samples: JSON, or a form of images.

    Parameters
    ----------
    fields : RequestModel
        The fields beside the samples.
    samples : SentSamples
        The samples.
    content : tuple of bytes
        What identifies the request, for its idempotency key.
    """

    fields: Fields
    samples: SentSamples
    content: tuple[bytes, ...]

    def labels(self) -> NDArray[np.str_]:
        """Return the class of every sample, from one for all or one for each."""
        assert isinstance(self.fields, LabelFields)
        label, labels, n = self.fields.label, self.fields.labels, len(self.samples)
        if (label is None) == (labels is None):
            both = "both were given" if label else "neither was given"
            raise LabelError(f"label must be given for all samples, or labels for each; {both}")
        if labels is not None and len(labels) != n:
            raise LabelError(f"labels must be one for each of {n} samples, got {len(labels)}")
        return np.asarray([label] * n if labels is None else labels, dtype=np.str_)


def sample_body(json_model: type[JsonSamples], form_model: type[ImageForm]) -> Any:
    """Return the dependency that reads a :class:`SampleBody` of these models, in a :class:`BoundedRoute`."""

    async def read(request: Request) -> SampleBody[Any]:
        if media_type(request) == FORM:
            form = await _read_form(request, request.app.state.service.limits)
            fields: ImageForm = validated(form_model, form, strict=False)
            files = [await image.read() for image in fields.images]
            images = [SentImage(f"images[{i}]", data) for i, data in enumerate(files)]
            content = fields.model_dump_json(exclude={"images"}).encode()
            return SampleBody(fields, SentSamples(images=images), (content, *files))
        checked: JsonSamples = validated(json_model, await request.json())
        content = checked.model_dump_json().encode()
        return SampleBody(checked, SentSamples(texts=checked.texts, rows=checked.rows), (content,))

    return Depends(read)


def sample_content(json_model: type[JsonSamples], form_model: type[ImageForm]) -> dict[str, Any]:
    """Return the OpenAPI description of what :func:`sample_body` reads, from the same models."""
    form = {"schema": reference(form_model), "encoding": {"images": {"contentType": "image/png, image/jpeg"}}}
    content = {JSON: {"schema": reference(json_model)}, FORM: form}
    return {"requestBody": {"required": True, "content": content}}


async def _read_form(request: Request, limits: Limits) -> dict[str, Any]:
    """Return the fields of a form; ``images`` and ``labels`` may come several times."""
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=limits.samples,
        max_fields=2 * limits.samples + 100,
        max_part_size=limits.text_characters * 4,
    )
    parser.spool_max_size = limits.body_bytes  # in memory: no sample is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 413 if error.message.startswith(("Too many", "Part exceeded")) else 400
        raise Problem(status, f"the form cannot be read: {error.message}", "BadForm") from error
    except (KeyError, UnicodeDecodeError, ValueError) as error:  # no boundary, or a name that is not UTF-8
        raise Problem(400, "the form cannot be read: it is damaged", "BadForm") from error
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) != (name == "images"):
            raise Problem(422, f"files belong into the field 'images', and nothing else does: {name[:80]!r}", "BadForm")
        if name in ("images", "labels"):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Problem(422, f"{name[:80]} was given twice", "BadForm")
        else:
            values[name] = value
    return values


# -- changes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeRequest:
    """The conditions of a change.

    Parameters
    ----------
    if_match : str
        The caller's ``If-Match``; empty for none.
    key : IdempotencyKey
        Makes a repeated request count once.
    note : str
        A note for people, kept in the history.
    who : str, optional
        Author of the change; by default the user that the service runs as.
    job : str
        Id of the job that makes the change; empty for none.
    """

    if_match: str = ""
    key: IdempotencyKey = field(default_factory=IdempotencyKey)
    note: str = ""
    who: str | None = None
    job: str = ""


@dataclass(frozen=True)
class ChangeHeaders:
    """The headers of a request for a change.

    Parameters
    ----------
    if_match : str
        The ETag that the caller saw; empty for none.
    idempotency_key : str or None
        The key of the request.
    who : str or None
        Name of the caller's token.
    """

    if_match: str
    idempotency_key: str | None
    who: str | None

    def change(self, work: str, *content: bytes, note: str = "") -> ChangeRequest:
        """Return the conditions of a change that does some work with some content."""
        key = IdempotencyKey.of(self.idempotency_key, work.encode(), *content)
        return ChangeRequest(self.if_match, key, note, self.who)


def _change_headers(
    request: Request,
    if_match: IfMatch = "",
    idempotency_key: Annotated[
        KeyText | SkipJsonSchema[None],
        Header(description="A repeated request with the same key counts once, also after a restart."),
    ] = None,
) -> ChangeHeaders:
    return ChangeHeaders(if_match, idempotency_key, getattr(request.state, "token", "") or None)


ChangeHeadersDep = Annotated[ChangeHeaders, Depends(_change_headers)]
