"""The Open Inference Protocol (version 2), so that KServe's and Triton's clients ask models unchanged."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from evergrow.core.version import __version__
from evergrow.learner.answers import Answers
from evergrow.serve.bodies import SentImage
from evergrow.serve.described import problems
from evergrow.serve.drafts import Draft
from evergrow.serve.problems import Problem
from evergrow.serve.service import Service
from evergrow.serve.tensors import HEADER, InferenceRequest, InputTensor, OutputTensor, read_request, write_response
from evergrow.serve.versions import Version

_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"type": "string", "enum": ["BYTES", "UINT8", "FP32", "FP64"]},
        "data": {"type": "array", "items": {}},
    },
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string"},
                        "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _TENSOR},
                        "outputs": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"name": {"type": "string"}},
                            },
                        },
                    },
                    "example": {
                        "inputs": [{"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [0.1, 0.7, 0.2]}]
                    },
                }
            }
        },
    }
}


def inference_router(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v2", tags=["open inference"])

    @router.get("", responses=problems())
    async def server_metadata() -> dict[str, Any]:
        """Return what answers here."""
        return {"name": "evergrow", "version": __version__, "extensions": ["binary_tensor_data"]}

    @router.get("/health/live", responses=problems())
    async def live() -> dict[str, bool]:
        """Return 200 as long as the service runs."""
        return {"live": True}

    @router.get("/health/ready", responses=problems(503))
    async def ready() -> dict[str, bool]:
        """Return 200 as long as questions are taken."""
        if service.closing.is_set():
            raise Problem(503, "the service is shutting down", "ShuttingDown", retry_after=5)
        return {"ready": True}

    @router.get("/models/{m}/ready", responses=problems(404, 409))
    @router.get("/models/{m}/versions/{v}/ready", responses=problems(404, 409))
    async def model_ready(m: str, v: str = "") -> dict[str, Any]:
        """Return 200 if the model answers."""
        _, version = await _asked(service, m, v)
        _ = version.learner
        return {"name": m, "ready": True}

    @router.get("/models/{m}", responses=problems(404))
    @router.get("/models/{m}/versions/{v}", responses=problems(404))
    async def model_metadata(m: str, v: str = "") -> dict[str, Any]:
        """Return the tensors that the model takes and gives."""
        _, version = await _asked(service, m, v)
        return _metadata(m, version)

    @router.post("/models/{m}/infer", responses=problems(400, 404, 409, 413, 422), openapi_extra=_BODY)
    @router.post("/models/{m}/versions/{v}/infer", responses=problems(400, 404, 409, 413, 422), openapi_extra=_BODY)
    async def infer(m: str, request: Request, v: str = "") -> Response:
        """Return label, probabilities, novelty and unknown or not, as tensors."""
        model, version = await _asked(service, m, v)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Problem(415, "Content-Encoding must be identity", "MediaType")
        asked = read_request(await request.body(), request.headers.get(HEADER))
        _ = version.learner
        answers = await service.answers(model, version, _false_alarm(asked), **_samples(asked, version))
        service.metrics.samples.labels("predict").inc(len(answers.values))
        return _answer(m, version, asked, answers)

    return router


async def _asked(service: Service, m: str, v: str) -> Any:
    model, version = await service.open(m)
    if v and v != str(version.revision):
        raise Problem(
            404, f"version must be the revision of the model, {version.revision}, got {v[:20]!r}", "NoVersion"
        )
    return model, version


def _metadata(m: str, version: Version) -> dict[str, Any]:
    n, width = len(version.counts), version.n_features
    inputs = {
        "images": [{"name": "images", "datatype": "BYTES", "shape": [-1]}],
        "texts": [{"name": "texts", "datatype": "BYTES", "shape": [-1]}],
        "features": [{"name": "features", "datatype": "FP64", "shape": [-1, -1 if width is None else width]}],
    }[version.kind]
    outputs = [
        {"name": "label", "datatype": "BYTES", "shape": [-1]},
        {"name": "probabilities", "datatype": "FP64", "shape": [-1, n]},
        {"name": "novelty", "datatype": "FP64", "shape": [-1]},
        {"name": "unknown", "datatype": "BOOL", "shape": [-1]},
        {"name": "classes", "datatype": "BYTES", "shape": [n]},
    ]
    state = "starting" if isinstance(version.known, Draft) else "ready"
    return {
        "name": m,
        "versions": [str(version.revision)],
        "platform": "evergrow",
        "inputs": inputs,
        "outputs": outputs,
        "parameters": {"state": state},
    }


def _samples(asked: InferenceRequest, version: Version) -> dict[str, Any]:
    """Return the samples of a request as the service takes them."""
    if len(asked.inputs) != 1:
        raise Problem(422, f"inputs must be one tensor of {version.kind}, got {len(asked.inputs)}", "BadField")
    tensor = asked.inputs[0]
    if isinstance(tensor.values, np.ndarray):
        if version.kind == "images" and tensor.datatype == "UINT8" and tensor.values.ndim == 4:
            return {"images": [SentImage(f"{tensor.name[:40]}[{i}]", pixels) for i, pixels in enumerate(tensor.values)]}
        if tensor.values.ndim != 2 or tensor.datatype == "BOOL":
            raise Problem(422, f"shape of {tensor.name[:80]!r} must be (n, d), got {list(tensor.shape)}", "BadField")
        return {"rows": tensor.values.astype(np.float64).tolist()}
    if version.kind == "texts":
        return {"texts": [_text(tensor.name, value) for value in tensor.values]}
    if version.kind != "images":
        raise Problem(
            422, f"datatype of {tensor.name[:80]!r} must be a number, since the model takes features", "BadField"
        )
    return {
        "images": [SentImage(f"{tensor.name[:40]}[{i}]", _file(tensor, value)) for i, value in enumerate(tensor.values)]
    }


def _text(name: str, value: str | bytes) -> str:
    try:
        return value if isinstance(value, str) else value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(422, f"data of {name[:80]!r} must be UTF-8", "BadField") from error


def _file(tensor: InputTensor, value: str | bytes) -> bytes:
    """Return the bytes of an image; JSON holds none, so there they are in base64."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, f"data of {tensor.name[:80]!r} must be image files in base64", "BadField") from error


def _false_alarm(asked: InferenceRequest) -> float:
    value = asked.parameters.get("false_alarm", 0.05)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise Problem(422, "false_alarm must be a number between 0 and 1", "BadField")
    return float(value)


def _answer(m: str, version: Version, asked: InferenceRequest, answers: Answers) -> Response:
    names = [str(name) for name in answers.classes]
    there = {
        "label": OutputTensor("label", "BYTES", [names[i] for i in answers.ranked(1)[:, 0]]),
        "probabilities": OutputTensor("probabilities", "FP64", answers.values),
        "classes": OutputTensor("classes", "BYTES", names),
    }
    if answers.novelty is not None:
        there["novelty"] = OutputTensor("novelty", "FP64", np.nan_to_num(answers.novelty, posinf=1e308, neginf=-1e308))
    if answers.unknown is not None:
        there["unknown"] = OutputTensor("unknown", "BOOL", answers.unknown)
    missing = [name for name in asked.outputs if name not in there]
    if missing:
        raise Problem(422, f"outputs must be among {', '.join(sorted(there))}, got {missing[0][:80]!r}", "BadField")
    chosen = [there[name] for name in (asked.outputs or there)]
    binary = asked.outputs or dict.fromkeys(there, asked.binary)
    about = {"model_name": m, "model_version": str(version.revision), **({"id": asked.id} if asked.id else {})}
    body, length = write_response(about, chosen, binary)
    if not length:
        return Response(body, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(length)}
    return Response(body, media_type="application/octet-stream", headers=headers)
