"""The samples of a request: images in a form, texts or feature rows in JSON; everything has a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from evergrow.core.documents import parse_json
from evergrow.core.errors import FileFormatError, InputError, LabelError
from evergrow.serve.config import Limits
from evergrow.serve.problems import Problem

Model = TypeVar("Model", bound=BaseModel)

_SMALL = 2**18  # bytes of JSON that are parsed at once, without keeping others waiting
LISTS = ("labels", "names")
"""Fields of a form that may come several times."""


@dataclass(frozen=True)
class SentImage:
    """An image as it was sent.

    Parameters
    ----------
    name : str
        What messages call it.
    data : bytes or ndarray
        The content of the file, or pixels.
    """

    name: str
    data: bytes | NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Body:
    """A request after reading, before anything is known about the model.

    Parameters
    ----------
    values : dict
        Plain fields.
    images : tuple of SentImage
        Files of the field ``images``.
    raw : bytes
        What identifies the content: the body, or the files one after the other.
    """

    values: dict[str, Any]
    images: tuple[SentImage, ...] = ()
    raw: tuple[bytes, ...] = field(default=())


async def read_body(request: Request, limits: Limits) -> Body:
    """Return the fields of a JSON object or of a form, and its images.

    Raises
    ------
    Problem
        415 for another type, 400 for one that cannot be read, 413 for too many parts.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        raw = await request.body()
        values = _json_object(raw) if len(raw) < _SMALL else await asyncio.to_thread(_json_object, raw)
        return Body(values, raw=(raw,))
    if kind == "multipart/form-data":
        return await _read_form(request, limits)
    raise Problem(415, f"Content-Type must be application/json or multipart/form-data, got {kind[:80]!r}", "MediaType")


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        values = parse_json(raw, "body")
    except FileFormatError as error:
        raise Problem(400, f"body must be a JSON object: {error.__cause__}", "BadJson") from error
    if not isinstance(values, dict):
        raise Problem(422, f"body must be a JSON object, got {type(values).__name__}", "BadJson")
    return values


async def _read_form(request: Request, limits: Limits) -> Body:
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=limits.samples,
        max_fields=2 * limits.samples + 100,
        max_part_size=limits.text_characters * 4,
    )
    parser.spool_max_size = limits.body_bytes  # in memory: nothing of a sample is written to disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        status = 413 if error.message.startswith(("Too many", "Part exceeded")) else 400
        raise Problem(status, f"form must be one that can be read: {error.message}", "BadForm") from error
    except (KeyError, UnicodeDecodeError, ValueError) as error:  # no boundary, a name that is no UTF-8
        raise Problem(400, "form must be one that can be read, got a damaged one", "BadForm") from error
    values: dict[str, Any] = {}
    images: list[SentImage] = []
    files: list[bytes] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != "images":
                raise Problem(422, f"files must be in the field 'images', got {name[:80]!r}", "BadForm")
            files.append(await value.read())
            images.append(SentImage(f"images[{len(images)}]", files[-1]))
        elif name in LISTS:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Problem(422, f"{name[:80]} must be given once", "BadForm")
        else:
            values[name] = value
    await form.close()
    if len(values.get("labels", [])) == 1 and values["labels"][0].startswith("["):
        values["labels"] = _json_list(values["labels"][0])
    raw = (json.dumps(values, sort_keys=True).encode(), *files)
    return Body(values, tuple(images), raw)


def _json_list(text: str) -> Any:
    try:
        return parse_json(text, "labels")
    except FileFormatError as error:
        raise Problem(422, f"labels must be a JSON list: {error.__cause__}", "BadJson") from error


def checked(model: type[Model], values: Mapping[str, Any], *, loose: bool = False) -> Model:
    """Return fields as a model, or raise the problem 422 that names each field and what it must be.

    Parameters
    ----------
    model : type of BaseModel
        What the fields must be.
    values : mapping
        The fields.
    loose : bool
        Whether numbers may be written as text, as in a form.
    """
    try:
        return model.model_validate(dict(values), strict=False if loose else None)
    except ValidationError as error:
        entries = [{"field": _place(entry["loc"]), "message": entry["msg"]} for entry in error.errors()[:20]]
        first = entries[0]
        where = f"{first['field']}: " if first["field"] else ""
        raise Problem(422, f"{where}{first['message']}", "BadField", more={"errors": entries}) from error


def _place(location: tuple[int | str, ...]) -> str:
    """Return a field as people write it: ``rows[0][3]``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:200]


def rows_of(rows: list[list[float]]) -> NDArray[np.float64]:
    """Return feature rows as a matrix of finite numbers."""
    widths = {len(row) for row in rows}
    if len(widths) != 1 or 0 in widths:
        raise InputError(f"rows must all have the same number of columns, at least one, got {sorted(widths)[:5]}")
    array = np.asarray(rows, dtype=np.float64)
    if not np.isfinite(array).all():
        raise InputError(
            f"rows must be finite, got NaN or infinity in row {int((~np.isfinite(array)).any(1).argmax())}"
        )
    return array


def labels_of(label: str | None, labels: list[str] | None, n: int) -> NDArray[np.str_]:
    """Return the class of every sample, from one for all or one for each."""
    if (label is None) == (labels is None):
        raise LabelError(
            "label must be given for all samples, or labels for each; got " + ("both" if label else "neither")
        )
    if labels is not None and len(labels) != n:
        raise LabelError(f"labels must be one for each of {n} samples, got {len(labels)}")
    return np.asarray([label] * n if labels is None else labels, dtype=np.str_)
