"""How routes are described: bodies in two forms, and every problem that a route can answer with."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from evergrow.serve.problems import MEDIA_TYPE, TITLES
from evergrow.serve.schemas import ProblemDocument

_ALWAYS = (401, 403, 413, 421, 429, 503)
"""What the gate answers before any route is reached."""

REF = "#/components/schemas/{model}"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of problems that a route can answer with, and those that all can."""
    return {
        status: {
            "description": TITLES[status],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
        }
        for status in sorted({*statuses, *_ALWAYS})
    }


def JSON_BODY(model: type[BaseModel]) -> dict[str, Any]:  # noqa: N802
    """Return the description of a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inline(model)}}}}


def SAMPLES_BODY(model: type[BaseModel], **fields: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
    """Return the description of a body of texts or rows in JSON, or of images in a form with these fields.

    Parameters
    ----------
    model : type of BaseModel
        The JSON form.
    **fields : dict
        Schemas of the fields beside ``images`` in the form.
    """
    images = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1, "maxItems": 1024}
    form = {
        "type": "object",
        "properties": {"images": images, **fields},
        "required": ["images"],
        "additionalProperties": False,
    }
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _inline(model)},
                "multipart/form-data": {
                    "schema": form,
                    "encoding": {"images": {"contentType": "image/png, image/jpeg"}},
                },
            },
        }
    }


LABEL = {"type": "string", "minLength": 1, "maxLength": 200, "example": "kestrel"}
NOTE = {"type": "string", "maxLength": 500}
TOP_K = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 3}
FALSE_ALARM = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1, "default": 0.05}

CHANGE_HEADERS = [
    {
        "name": "If-Match",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "example": '"7"'},
        "description": "The ETag that the caller saw; another one answers 412.",
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "maxLength": 200, "pattern": "^[!-~]{1,200}$"},
        "description": "A repeated request with the same key counts once, also after a restart.",
    },
]


def _inline(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=REF)
    schema.pop("$defs", None)
    return schema


def problem_schema() -> dict[str, Any]:
    """Return the schema of problem documents."""
    return ProblemDocument.model_json_schema()
