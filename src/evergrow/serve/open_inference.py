"""The Open Inference Protocol (version 2), with binary tensors, so that clients of KServe and Triton ask unchanged."""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from evergrow.core.version import __version__
from evergrow.learner.answers import Answers
from evergrow.serve.problems import Problem, problems
from evergrow.serve.requests import JSON, SentImage, SentSamples, parse_body, validated
from evergrow.serve.schemas import reference
from evergrow.serve.service import OpenModel, ServiceDep

HEADER = "Inference-Header-Content-Length"
DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""Number types of the protocol, and numpy's names for them."""
Datatype = Literal[
    "BYTES", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"
]
Elements = NDArray[Any] | list[str] | list[bytes]


class Strict(BaseModel):
    """A part of a request. Clients may send further fields, which are ignored."""

    model_config = ConfigDict(strict=True)


class InputParameters(Strict):
    """How an input tensor is sent."""

    binary_data_size: Annotated[int, Field(ge=0)] | SkipJsonSchema[None] = None


class InputTensor(Strict):
    """An input tensor; its elements are in ``data`` or, binary, behind the JSON."""

    name: Annotated[str, Field(max_length=200)]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=8)]
    data: list[Any] = []
    parameters: InputParameters = InputParameters()


class OutputParameters(Strict):
    """How an output tensor is to be sent."""

    binary_data: bool | SkipJsonSchema[None] = None


class RequestedOutput(Strict):
    """An output tensor that the caller wants."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferenceParameters(Strict):
    """How to answer."""

    false_alarm: Annotated[float, Field(gt=0, lt=1)] = 0.05
    binary_data_output: bool = False


class InferenceRequest(Strict):
    """A request for inference."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {"inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.7, 0.2]}]}
        }
    )

    id: str = ""
    inputs: Annotated[list[InputTensor], Field(min_length=1, max_length=1)]
    outputs: list[RequestedOutput] = []
    parameters: InferenceParameters = InferenceParameters()


_BODY = {"requestBody": {"required": True, "content": {JSON: {"schema": reference(InferenceRequest)}}}}

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
    return {"name": "evergrow", "version": __version__, "extensions": ["binary_tensor_data"]}


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


@router.post("/models/{m}/infer", responses=problems(400, 404, 409, 413, 415), openapi_extra=_BODY)
@router.post("/models/{m}/versions/{v}/infer", responses=problems(400, 404, 409, 413, 415), openapi_extra=_BODY)
async def infer(model: RevisionDep, request: Request, service: ServiceDep) -> Response:
    """Return label, probabilities, novelty and unknown or not, as tensors."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(415, "compressed requests are not taken: send Content-Encoding identity", "MediaType")
    asked, samples = await _read_request(request, model.version.kind)
    answers = await service.answers(model, samples, asked.parameters.false_alarm)
    return _write_response(model, asked, answers)


# -- requests ---------------------------------------------------------------------------------------------------


async def _read_request(request: Request, kind: str) -> tuple[InferenceRequest, SentSamples]:
    """Return a request and its samples, from JSON or from JSON followed by binary tensors."""
    body, stated = await request.body(), request.headers.get(HEADER)
    length = len(body)
    if stated is not None:
        if not (stated.isascii() and stated.isdecimal()) or int(stated[:12]) > length:
            raise Problem(400, f"{HEADER} is not the length of the JSON part: {stated[:20]!r}", "BadHeader")
        length = int(stated)
    asked: InferenceRequest = validated(InferenceRequest, await parse_body(body[:length]))
    tensor = asked.inputs[0]
    return asked, _samples(tensor, _elements(tensor, memoryview(body)[length:]), kind)


def _elements(tensor: InputTensor, binary: memoryview) -> Elements:
    """Return the elements of a tensor: numbers in its shape, or strings (from JSON) or bytes (binary) in a list."""
    name, size, nbytes = tensor.name[:80], math.prod(tensor.shape), tensor.parameters.binary_data_size
    if nbytes is not None:
        if nbytes > len(binary):
            raise _bad(f"binary_data_size of {name!r} is more than what follows the JSON")
        return _from_bytes(tensor, size, binary[:nbytes])
    flat = list(_flat(tensor.data))
    if len(flat) != size:
        raise _bad(f"the shape of {name!r} wants {size} elements, but data has {len(flat)}")
    if tensor.datatype == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise _bad(f"data of {name!r} must be strings")
        return flat
    dtype = np.dtype(DTYPES[tensor.datatype])
    numbers = all(isinstance(value, (int, float)) for value in flat)
    # NumPy 1 would turn -1 into the largest number of a type without a sign; NumPy 2 refuses it.
    whole = dtype.kind in "iu"
    if not numbers or (whole and not all(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max for value in flat)):
        raise _bad(f"data of {name!r} must be numbers of type {tensor.datatype}")
    try:
        return np.asarray(flat, dtype=dtype).reshape(tensor.shape)
    except (ValueError, OverflowError, TypeError) as error:
        raise _bad(f"data of {name!r} must be numbers of type {tensor.datatype}") from error


def _flat(data: list[Any]) -> Iterator[Any]:
    for entry in data:
        if isinstance(entry, list):
            yield from _flat(entry)
        else:
            yield entry


def _from_bytes(tensor: InputTensor, size: int, data: memoryview) -> Elements:
    if tensor.datatype != "BYTES":
        dtype = np.dtype(DTYPES[tensor.datatype])
        if len(data) != size * dtype.itemsize:
            raise _bad(f"{tensor.name[:80]!r} must have {size * dtype.itemsize} bytes, got {len(data)}")
        return np.frombuffer(data, dtype=dtype).reshape(tensor.shape)
    found: list[bytes] = []  # each element is its length in four bytes, and then itself
    place = 0
    while place + 4 <= len(data) and len(found) < size:
        (length,) = struct.unpack_from("<I", data, place)
        found.append(bytes(data[place + 4 : place + 4 + length]))
        place += 4 + length
    if len(found) != size or place != len(data):
        raise _bad(f"{tensor.name[:80]!r} must have {size} strings, each after its length")
    return found


def _samples(tensor: InputTensor, elements: Elements, kind: str) -> SentSamples:
    """Return the elements of a tensor as samples of a kind that a model takes."""
    name = tensor.name[:80]
    if isinstance(elements, np.ndarray):
        if kind == "images" and tensor.datatype == "UINT8" and elements.ndim == 4:
            return SentSamples(images=[SentImage(f"{name}[{i}]", pixels) for i, pixels in enumerate(elements)])
        if elements.ndim != 2 or tensor.datatype == "BOOL":
            raise _bad(f"{name!r} must be numbers of shape (n, d), got {list(tensor.shape)}")
        return SentSamples(rows=elements.astype(np.float64))
    try:
        if kind == "texts":
            return SentSamples(texts=[value if isinstance(value, str) else value.decode() for value in elements])
        if kind == "images":  # in JSON files are base64
            files = [
                value if isinstance(value, bytes) else base64.b64decode(value, validate=True) for value in elements
            ]
            return SentSamples(images=[SentImage(f"{name}[{i}]", data) for i, data in enumerate(files)])
    except (UnicodeDecodeError, binascii.Error, ValueError) as error:
        raise _bad(f"{name!r} must hold {'UTF-8' if kind == 'texts' else 'image files in base64'}") from error
    raise _bad(f"{name!r} must be numbers, since the model takes features")


def _bad(detail: str) -> Problem:
    return Problem(422, detail, "BadField")


# -- answers ----------------------------------------------------------------------------------------------------


def _write_response(model: OpenModel, asked: InferenceRequest, answers: Answers) -> Response:
    outputs = _outputs(answers)
    by_default = asked.parameters.binary_data_output
    wanted = {entry.name: entry.parameters.binary_data for entry in asked.outputs} or dict.fromkeys(outputs)
    entries, blobs = [], []
    for name, binary in wanted.items():
        if name not in outputs:
            raise _bad(f"there is no output {name[:80]!r}; there are {', '.join(sorted(outputs))}")
        datatype, values = outputs[name]
        shape = [len(values)] if isinstance(values, list) else list(values.shape)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if by_default if binary is None else binary:
            blobs.append(_binary(datatype, values))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = values if isinstance(values, list) else values.reshape(-1).tolist()
        entries.append(entry)
    about = {"model_name": model.name, "model_version": str(model.version.revision)}
    head = json.dumps({**about, **({"id": asked.id} if asked.id else {}), "outputs": entries}).encode()
    if not blobs:
        return Response(head, media_type=JSON)
    headers = {HEADER: str(len(head))}
    return Response(b"".join([head, *blobs]), media_type="application/octet-stream", headers=headers)


def _outputs(answers: Answers) -> dict[str, tuple[str, NDArray[Any] | list[str]]]:
    """Return all outputs by name, each with its datatype."""
    names = [str(name) for name in answers.classes]
    found: dict[str, tuple[str, NDArray[Any] | list[str]]] = {
        "label": ("BYTES", [names[i] for i in answers.ranked(1)[:, 0]]),
        "probabilities": ("FP64", answers.values),
        "classes": ("BYTES", names),
    }
    if answers.novelty is not None:
        found["novelty"] = ("FP64", np.nan_to_num(answers.novelty, posinf=1e308, neginf=-1e308))
    if answers.unknown is not None:
        found["unknown"] = ("BOOL", answers.unknown)
    return found


def _binary(datatype: str, values: NDArray[Any] | list[str]) -> bytes:
    if isinstance(values, list):
        words = [word.encode("utf-8", "replace") for word in values]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    return np.ascontiguousarray(values, dtype=np.dtype(DTYPES[datatype])).tobytes()
