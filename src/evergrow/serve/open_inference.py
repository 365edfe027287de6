"""The Open Inference Protocol (version 2) in JSON, so that clients of KServe and Triton can ask."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evergrow.core.version import __version__
from evergrow.learner.answers import Answers
from evergrow.serve.requests import JSON, Problem, SentImage, SentSamples, parse_body, problems
from evergrow.serve.schemas import reference
from evergrow.serve.service import OpenModel, ServiceDep

DTYPES = {
    "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1", "INT16": "i2", "INT32": "i4",
    "INT64": "i8", "FP16": "f2", "FP32": "f4", "FP64": "f8",
}  # fmt: skip
"""Number types of the protocol, and numpy's names for them."""
Datatype = Literal[
    "BYTES", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"
]


class Strict(BaseModel):
    """A part of a request. Clients may send further fields, which are ignored."""

    model_config = ConfigDict(strict=True)


class InputTensor(Strict):
    """An input tensor."""

    name: Annotated[str, Field(max_length=200)]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=8)]
    data: list[Any]


class RequestedOutput(Strict):
    """An output tensor that the caller wants."""

    name: str


class InferenceParameters(Strict):
    """How to answer."""

    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 0.05


class InferenceRequest(Strict):
    """A request for inference."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.7, 0.2]}]}
        }
    )

    id: str = ""
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=100)] = []
    parameters: InferenceParameters = InferenceParameters()


_BODY = {"requestBody": {"required": True, "content": {JSON: {"schema": reference(InferenceRequest)}}}}
_INFER: dict[str, Any] = {"responses": problems(400, 404, 409, 415), "openapi_extra": _BODY}

router = APIRouter(prefix="/v2", tags=["open inference"], responses=problems())


async def _revision(service: ServiceDep, m: str, v: str = "") -> OpenModel:
    """Return a model; the version of a model in the protocol is its revision."""
    opened = await service.open(m)
    if v and v != str(opened.version.revision):
        raise Problem(404, f"the model is at revision {opened.version.revision}, not {v[:20]!r}", "NoVersion")
    return opened


RevisionDep = Annotated[OpenModel, Depends(_revision)]


@router.get("")
async def server_metadata() -> dict[str, Any]:
    """Return what answers here."""
    return {"name": "evergrow", "version": __version__, "extensions": []}


@router.get("/health/live")
async def live() -> dict[str, bool]:
    """Return 200 as long as the service runs."""
    return {"live": True}


@router.get("/health/ready")
async def ready(service: ServiceDep) -> dict[str, bool]:
    """Return 200 as long as questions are taken."""
    if service.closing.is_set():
        raise Problem(503, "the service is shutting down", "ShuttingDown", retry_after=5)
    return {"ready": True}


@router.get("/models/{m}/ready", responses=problems(404, 409))
@router.get("/models/{m}/versions/{v}/ready", responses=problems(404, 409))
async def model_ready(model: RevisionDep) -> dict[str, Any]:
    """Return 200 if the model answers."""
    model.version.require_ready()
    return {"name": model.name, "ready": True}


@router.get("/models/{m}", responses=problems(404))
@router.get("/models/{m}/versions/{v}", responses=problems(404))
async def model_metadata(model: RevisionDep) -> dict[str, Any]:
    """Return the tensors that the model takes and gives."""
    version = model.version
    n, width = len(version.counts), version.n_features
    numbers = version.kind == "features"
    shape = [-1, -1 if width is None else width] if numbers else [-1]
    outputs = (
        ("label", "BYTES", [-1]),
        ("probabilities", "FP64", [-1, n]),
        ("novelty", "FP64", [-1]),
        ("unknown", "BOOL", [-1]),
        ("classes", "BYTES", [n]),
    )
    return {
        "name": model.name,
        "versions": [str(version.revision)],
        "platform": "evergrow",
        "inputs": [{"name": version.kind, "datatype": "FP64" if numbers else "BYTES", "shape": shape}],
        "outputs": [{"name": name, "datatype": datatype, "shape": size} for name, datatype, size in outputs],
        "parameters": {"state": version.state},
    }


@router.post("/models/{m}/infer", **_INFER)
@router.post("/models/{m}/versions/{v}/infer", **_INFER)
async def infer(model: RevisionDep, request: Request, service: ServiceDep) -> dict[str, Any]:
    """Return label, probabilities, novelty and unknown or not, as tensors."""
    if "inference-header-content-length" in request.headers or "content-encoding" in request.headers:
        raise Problem(415, "send all tensors as plain JSON: binary and compressed data are not read", "MediaType")
    asked: InferenceRequest = await parse_body(await request.body(), service.limits, InferenceRequest)
    samples = await service.run(_samples, asked.inputs[0], model.version.kind)
    answers = await service.answers(model, samples, asked.parameters.false_alarm)
    outputs = _outputs(answers)
    wanted = [entry.name for entry in asked.outputs] or list(outputs)
    missing = next((name for name in wanted if name not in outputs), None)
    if missing is not None:
        raise _bad(f"there is no output {missing[:80]!r}; there are {', '.join(sorted(outputs))}")
    about = {"model_name": model.name, "model_version": str(model.version.revision)}
    return {**about, **({"id": asked.id} if asked.id else {}), "outputs": [outputs[name] for name in wanted]}


def _samples(tensor: InputTensor, kind: str) -> SentSamples:
    """Return the elements of a tensor as samples of the kind that a model takes."""
    name, flat, size = tensor.name[:80], list(_flat(tensor.data)), math.prod(tensor.shape)
    if len(flat) != size:
        raise _bad(f"the shape of {name!r} wants {size} elements, but data has {len(flat)}")
    if tensor.datatype != "BYTES":
        numbers = _numbers(tensor, flat)
        if kind == "images" and tensor.datatype == "UINT8" and numbers.ndim == 4:
            return SentSamples(images=[SentImage(f"{name}[{i}]", pixels) for i, pixels in enumerate(numbers)])
        if numbers.ndim != 2:
            raise _bad(f"{name!r} must be numbers of shape (n, d), got {list(tensor.shape)}")
        return SentSamples(rows=numbers.astype(np.float64))
    if kind == "features" or not all(isinstance(value, str) for value in flat):
        raise _bad(f"{name!r} must be {'numbers' if kind == 'features' else 'strings'}: the model takes {kind}")
    if kind == "texts":
        return SentSamples(texts=flat or None)
    try:
        files = [base64.b64decode(value, validate=True) for value in flat]
    except (binascii.Error, ValueError) as error:
        raise _bad(f"{name!r} must hold image files in base64") from error
    return SentSamples(images=[SentImage(f"{name}[{i}]", data) for i, data in enumerate(files)])


def _numbers(tensor: InputTensor, flat: list[Any]) -> NDArray[Any]:
    dtype = np.dtype(DTYPES[tensor.datatype])
    # NumPy 1 would turn -1 into the largest number of a type without a sign; NumPy 2 refuses it.
    least, most = (-math.inf, math.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not all(type(value) in (int, float) and least <= value <= most for value in flat):
        raise _bad(f"data of {tensor.name[:80]!r} must be numbers of type {tensor.datatype}")
    try:
        return np.asarray(flat, dtype=dtype).reshape(tensor.shape)
    except (ValueError, OverflowError) as error:
        raise _bad(f"data of {tensor.name[:80]!r} must be numbers of type {tensor.datatype}") from error


def _flat(data: list[Any]) -> Iterator[Any]:
    for entry in data:
        if isinstance(entry, list):
            yield from _flat(entry)
        else:
            yield entry


def _bad(detail: str) -> Problem:
    return Problem(422, detail, "BadField")


def _outputs(answers: Answers) -> dict[str, dict[str, Any]]:
    """Return all outputs by name."""
    names = [str(name) for name in answers.classes]
    found: dict[str, tuple[str, Any]] = {
        "label": ("BYTES", np.asarray([names[i] for i in answers.ranked(1)[:, 0]], dtype=object)),
        "probabilities": ("FP64", answers.values),
        "classes": ("BYTES", np.asarray(names, dtype=object)),
    }
    if answers.novelty is not None:
        found["novelty"] = ("FP64", np.nan_to_num(answers.novelty, posinf=1e308, neginf=-1e308))
    if answers.unknown is not None:
        found["unknown"] = ("BOOL", answers.unknown)
    return {
        name: {"name": name, "datatype": datatype, "shape": list(values.shape), "data": values.reshape(-1).tolist()}
        for name, (datatype, values) in found.items()
    }
