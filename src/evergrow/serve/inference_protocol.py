"""The Open Inference Protocol (V2) over HTTP, as KServe, Triton and Seldon speak it.

A request becomes :class:`RequestSamples` and is predicted like any other. Tensors are
JSON or, by the extension ``binary_tensor_data``, bytes after the JSON. A model has one
version, its current revision.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import struct
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from evergrow.core.errors import InputError, NotFittedError, UnsupportedError
from evergrow.core.registry import nearest
from evergrow.core.version import __version__
from evergrow.learner.calibration import FALSE_ALARM, Calibration
from evergrow.learner.predictions import Predictions
from evergrow.serve.bodies import (
    BINARY,
    FILE,
    IMAGES_IN_JSON,
    JSON,
    JSON_LENGTH,
    RequestSamples,
    check_media_type,
    media_type,
    parse_body,
    validated,
)
from evergrow.serve.config import Limits
from evergrow.serve.model_store import Version
from evergrow.serve.open_model import ModelDep, OpenModel
from evergrow.serve.problems import PROTOCOL_ERRORS, PROTOCOL_PATH, Problem
from evergrow.serve.schemas import SampleKind, Texts
from evergrow.tools.strictness import STRICTNESS, USUAL, unsure_predictions

_EXTENSIONS = ["binary_tensor_data"]
_PLATFORM = "evergrow_evg"
_LENGTH = struct.Struct("<I")
"""Length of an element of a binary tensor of BYTES, before the element."""
_DTYPES = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_INPUT_TYPES: dict[SampleKind, str] = {
    "images": "BYTES",
    "texts": "BYTES",
    "features": "FP64",
}


# -- messages --------------------------------------------------------------------------


class _ProtocolModel(BaseModel):
    """A part of a request. Members that are not used here are ignored."""

    model_config = ConfigDict(strict=True)


Parameters = Annotated[
    dict[str, str | int | float | bool],
    Field(max_length=100),
    BeforeValidator(lambda value: {} if value is None else value),
]
Dimensions = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=8)
]
TensorName = Annotated[str, Field(max_length=200)]


class InferInput(_ProtocolModel):
    """An input tensor. Without data, its data follow the JSON."""

    name: TensorName = Field(examples=["rows"])
    shape: Dimensions = Field(examples=[[1, 3]])
    datatype: Literal[
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "FP32",
        "FP64",
        "BYTES",
    ]
    parameters: Parameters = {}
    data: list[Any] | None = Field(
        None,
        description="Elements in row-major order, flat or nested. Elements of BYTES "
        "are texts, or image files in base64.",
        examples=[[0.1, 0.7, 0.2]],
    )


class InferRequestedOutput(_ProtocolModel):
    """An output tensor to return."""

    name: TensorName
    parameters: Parameters = {}


class InferRequest(_ProtocolModel):
    """Samples to predict, as one input tensor."""

    id: str | None = Field(None, max_length=200)
    parameters: Parameters = Field(
        {},
        description="false_alarm: fraction of known samples that may be reported as "
        "unknown. strangers: how many samples of unknown classes to expect (few, some "
        "or many), which sets the limits of unsure. Other parameters are ignored.",
    )
    inputs: list[InferInput] = Field(min_length=1, max_length=100)
    outputs: list[InferRequestedOutput] | None = Field(None, max_length=100)


class InferOutput(BaseModel):
    """An output tensor. Without data, its data follow the JSON."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, int] | None = None
    data: list[Any] | None = None


class InferResponse(BaseModel):
    """Predictions, one element of every output per sample."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[InferOutput]


class TensorMetadata(BaseModel):
    """Name, type and shape of a tensor. -1 is any length."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(BaseModel):
    """Name and version of the service."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(BaseModel):
    """Whether the service answers requests."""

    live: bool


class ServerReady(BaseModel):
    """Whether the service accepts requests."""

    ready: bool


class ModelReady(BaseModel):
    """Whether a model can predict."""

    name: str
    ready: bool


# -- inputs ----------------------------------------------------------------------------


def split_body(
    body: bytes, json_length: str | None, limits: Limits
) -> tuple[InferRequest, bytes]:
    """Return the request in a body, and the binary tensor after it.

    Parameters
    ----------
    body : bytes
        The body of the request.
    json_length : str or None
        Value of the header :data:`JSON_LENGTH`.
    limits : Limits
        Limits of the JSON.

    Raises
    ------
    Problem
        400 if the body is malformed, 413 if the JSON is too large.
    RequestValidationError
        If the request does not follow the protocol.
    """
    n = len(body)
    if json_length is not None:
        if not (json_length.isascii() and json_length.isdecimal()):
            raise Problem(400, f"{JSON_LENGTH} must be a number", "BadLength")
        n = int(json_length[:20])
    if n > len(body):
        raise Problem(
            400,
            f"{JSON_LENGTH} is {n}, but the body has {len(body)} bytes",
            "BadLength",
        )
    max_bytes = IMAGES_IN_JSON * limits.json_bytes
    if n > max_bytes:
        raise Problem(413, f"the JSON may have at most {max_bytes:,} bytes", "TooLarge")
    request = validated(InferRequest, parse_body(body[:n], limits.json_values))
    return request, body[n:]


def memory_for(tensor: InferInput, binary: bytes) -> int:
    """Return how many bytes the samples in a binary tensor take at most."""
    if tensor.datatype == "BYTES" or _is_pixels(tensor):
        return len(binary)
    # Feature vectors become 64-bit numbers.
    return len(binary) * 8 // _DTYPES[tensor.datatype].itemsize


def _is_pixels(tensor: InferInput) -> bool:
    """Return whether a tensor is of images of shape (n, height, width, 3)."""
    return tensor.datatype == "UINT8" and len(tensor.shape) == 4


def samples_of(
    request: InferRequest, binary: bytes, kind: SampleKind
) -> RequestSamples:
    """Return the samples in the one input tensor of a request.

    Parameters
    ----------
    request : InferRequest
        The request.
    binary : bytes
        Binary tensor after the JSON.
    kind : {"images", "texts", "features"}
        Kind of samples that the model takes.

    Raises
    ------
    InputError
        If there are several tensors, or the tensor does not fit its type and shape.

    Examples
    --------
    >>> from evergrow.serve.inference_protocol import InferRequest, samples_of
    >>> tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
    >>> samples_of(InferRequest(inputs=[tensor]), b"", "features").rows
    array([[1., 2.]])
    """
    if len(request.inputs) != 1:
        raise InputError(
            f"inputs must have one tensor with all samples, got {len(request.inputs)}"
        )
    (tensor,) = request.inputs
    if tensor.shape[0] == 0:
        raise InputError(f"{tensor.name} must contain at least one sample, got none")
    if tensor.datatype == "BYTES":
        return _byte_samples(tensor, binary, kind)
    array = _array(tensor, binary)
    if _is_pixels(tensor):
        return RequestSamples(images=_image_files(tensor.name, array))
    if array.ndim != 2:
        raise InputError(
            f"{tensor.name} must have the shape [samples, features], or for images "
            f"[samples, height, width, 3] and the type UINT8, got {tensor.shape} and "
            f"{tensor.datatype}"
        )
    return RequestSamples(rows=array.astype(np.float64))


def _array(tensor: InferInput, binary: bytes) -> NDArray[Any]:
    """Return a tensor of numbers as an array of its type and shape."""
    dtype = _DTYPES[tensor.datatype]
    values: NDArray[Any]
    if _is_binary(tensor, binary):
        if len(binary) % dtype.itemsize:
            raise InputError(
                f"{tensor.name} must have {dtype.itemsize} bytes per element, "
                f"got {len(binary)} bytes"
            )
        values = np.frombuffer(binary, dtype)
    else:
        values = _json_array(tensor, dtype)
    _check_count(tensor, values.size)
    return values.reshape(tensor.shape)


def _json_array(tensor: InferInput, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the JSON data of a tensor of numbers as an array of its type."""
    try:
        values = np.asarray(tensor.data)
    except ValueError as error:
        raise InputError(
            f"data of {tensor.name} must be flat or have the shape of the tensor"
        ) from error
    if values.size and values.dtype.kind not in "biuf":
        raise InputError(f"data of {tensor.name} must be numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
    is_float = dtype.kind == "f"
    fits = np.isfinite(converted) if is_float else converted == values
    if not fits.all():
        raise InputError(f"data of {tensor.name} must be values of {tensor.datatype}")
    return converted


def _byte_samples(
    tensor: InferInput, binary: bytes, kind: SampleKind
) -> RequestSamples:
    """Return the texts or image files in a tensor of BYTES."""
    if kind == "features":
        raise InputError(
            f"{tensor.name} must be a tensor of numbers, since the model takes "
            "features, got BYTES"
        )
    elements: list[Any]
    if _is_binary(tensor, binary):
        elements = _binary_elements(tensor.name, binary)
    else:
        elements = np.asarray(tensor.data, dtype=object).ravel().tolist()
    _check_count(tensor, len(elements))
    if len(elements) != tensor.shape[0]:
        raise InputError(
            f"{tensor.name} must have the shape [samples], got {tensor.shape}"
        )
    if kind == "texts":
        texts = [_text(tensor.name, element) for element in elements]
        return RequestSamples(texts=validated(Texts, texts, strict=True))
    files = [_file(tensor.name, element) for element in elements]
    names = [f"{tensor.name}[{i}]" for i in range(len(files))]
    return RequestSamples(images=list(zip(names, files, strict=True)))


def _text(name: str, element: Any) -> str:
    """Return an element of a tensor of BYTES as a text."""
    if isinstance(element, str):
        return element
    try:
        return bytes(element).decode()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must contain texts in UTF-8") from error


def _file(name: str, element: Any) -> bytes:
    """Return an element of a tensor of BYTES as a file. A text is base64."""
    if isinstance(element, bytes):
        return element
    try:
        return base64.b64decode(element, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InputError(f"{name} must contain image files in base64") from error


def _binary_elements(name: str, binary: bytes) -> list[bytes]:
    """Return the elements of a binary tensor of BYTES, each after its length."""
    elements = []
    start = 0
    while start < len(binary):
        if start + _LENGTH.size > len(binary):
            raise InputError(f"the binary data of {name} end within a length")
        (n,) = _LENGTH.unpack_from(binary, start)
        start += _LENGTH.size
        if start + n > len(binary):
            raise InputError(f"the binary data of {name} end within an element")
        elements.append(binary[start : start + n])
        start += n
    return elements


def _is_binary(tensor: InferInput, binary: bytes) -> bool:
    """Return whether the data of a tensor follow the JSON. Check that they are there.

    Raises :class:`InputError` if the data are missing, or their size is not as stated.
    """
    size = tensor.parameters.get("binary_data_size")
    if size is None and tensor.data is not None and not binary:
        return False
    if size != len(binary) or isinstance(size, bool) or tensor.data is not None:
        raise InputError(
            f"{tensor.name} must have either data, or the parameter binary_data_size "
            f"with the number of bytes after the JSON, which are {len(binary)}"
        )
    return True


def _check_count(tensor: InferInput, n: int) -> None:
    """Raise :class:`InputError` if the number of elements contradicts the shape."""
    expected = math.prod(tensor.shape)
    if n != expected:
        raise InputError(
            f"{tensor.name} must have {expected} elements by its shape, got {n}"
        )


def _image_files(name: str, pixels: NDArray[np.uint8]) -> list[tuple[str, bytes]]:
    """Return images as uncompressed files (PPM), which have the limits of other files.

    Parameters
    ----------
    name : str
        Name of the tensor, for messages.
    pixels : ndarray of shape (n, height, width, 3)
        Red, green and blue of every pixel.
    """
    height, width, channels = pixels.shape[1:]
    if channels != 3:
        raise InputError(
            f"{name} must have the shape [samples, height, width, 3], "
            f"got {list(pixels.shape)}"
        )
    head = f"P6\n{width} {height}\n255\n".encode()
    return [(f"{name}[{i}]", head + image.tobytes()) for i, image in enumerate(pixels)]


# -- outputs ---------------------------------------------------------------------------


def output_types(version: Version) -> dict[str, str]:
    """Return the type of every output of a model, by name.

    Raises :class:`NotFittedError` while the model has no class.
    """
    version.require_ready()
    measure = version.learner.state_.measure
    types = {"label": "BYTES", "nearest": "BYTES", measure: "FP64"}
    try:
        version.learner.state_.threshold(FALSE_ALARM)
    except (NotFittedError, UnsupportedError):
        return types
    types.update(novelty="FP64", unknown="BOOL")
    if measure != "score":
        types["unsure"] = "BOOL"
    return types


def outputs_of(
    predictions: Predictions, calibration: Calibration, strangers: str
) -> dict[str, list[Any]]:
    """Return the elements of every output, by name. An unknown sample has no label.

    Parameters
    ----------
    predictions : Predictions
        Predictions of the model.
    calibration : Calibration
        The held-out rows of the model.
    strangers : {"few", "some", "many"}
        How many samples of unknown classes to expect.
    """
    best = predictions.ranked(1)
    classes = predictions.classes[best[:, 0]].tolist()
    values = np.take_along_axis(predictions.values, best, axis=1)[:, 0]
    outputs = {
        "label": classes,
        "nearest": classes,
        predictions.measure: values.tolist(),
    }
    if predictions.novelty is not None and predictions.unknown is not None:
        pairs = zip(classes, predictions.unknown, strict=True)
        outputs["label"] = ["" if unknown else name for name, unknown in pairs]
        # A sample without a finite novelty is unknown, but JSON has finite numbers.
        largest = np.finfo(np.float64).max
        outputs["novelty"] = np.nan_to_num(predictions.novelty, nan=largest).tolist()
        outputs["unknown"] = predictions.unknown.tolist()
        unsure = unsure_predictions(calibration, predictions, strangers)
        if unsure is not None:
            outputs["unsure"] = unsure.tolist()
    return outputs


def _requested(request: InferRequest, names: list[str]) -> dict[str, bool]:
    """Return which outputs to send, and whether as binary data.

    Raises :class:`InputError` if the model has no output of a requested name.
    """
    as_binary = request.parameters.get("binary_data_output") is True
    if request.outputs is None:
        return dict.fromkeys(names, as_binary)
    wanted = {}
    for output in request.outputs:
        if output.name not in names:
            raise InputError(
                f"the model has no output {output.name!r}: "
                f"request {nearest(output.name, names)}"
            )
        wanted[output.name] = output.parameters.get("binary_data", as_binary) is True
    return wanted


def _to_binary(datatype: str, elements: list[Any]) -> bytes:
    """Return the elements of an output as binary data."""
    if datatype != "BYTES":
        return np.asarray(elements, _DTYPES[datatype]).tobytes()
    encoded = [element.encode() for element in elements]
    return b"".join(_LENGTH.pack(len(element)) + element for element in encoded)


def infer_response(
    model: OpenModel, request: InferRequest, predictions: Predictions, strangers: str
) -> Response:
    """Return the requested outputs as JSON, with binary tensors after it."""
    types = output_types(model.version)
    calibration = model.version.learner.state_.calibration
    found = outputs_of(predictions, calibration, strangers)
    outputs = []
    binary = b""
    wanted = _requested(request, list(found))
    for name, as_binary in wanted.items():
        output = InferOutput(
            name=name, shape=[len(found[name])], datatype=types[name], data=found[name]
        )
        if as_binary:
            data = _to_binary(types[name], found[name])
            output.data = None
            output.parameters = {"binary_data_size": len(data)}
            binary += data
        outputs.append(output)
    document = InferResponse(
        model_name=model.name,
        model_version=str(model.version.revision),
        id=request.id,
        outputs=outputs,
    )
    content = document.model_dump_json(exclude_none=True).encode()
    headers = {"ETag": model.version.etag}
    if not any(wanted.values()):
        return Response(content, media_type=JSON, headers=headers)
    headers[JSON_LENGTH] = str(len(content))
    return Response(content + binary, media_type=FILE, headers=headers)


# -- routes ----------------------------------------------------------------------------

router = APIRouter(
    prefix=PROTOCOL_PATH, tags=["open inference protocol"], responses=PROTOCOL_ERRORS
)
_INFER_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/InferRequest"}},
            **BINARY,
        },
    }
}


def _served_version(model: ModelDep, request: Request) -> OpenModel:
    """Return the model, if the path names no version or the current one."""
    version = request.path_params.get("v")
    current = str(model.version.revision)
    if version not in (None, current):
        raise Problem(
            404,
            f"the model {model.name!r} has version {current} only: leave out the "
            "version, or request this one",
            "NoVersion",
        )
    return model


VersionDep = Annotated[OpenModel, Depends(_served_version)]


@router.get("/", include_in_schema=False)
@router.get("")
async def describe_server() -> ServerMetadata:
    """Return name, version and protocol extensions. Requires no token."""
    return ServerMetadata(name="evergrow", version=__version__, extensions=_EXTENSIONS)


@router.get("/health/live")
async def server_live() -> ServerLive:
    """Return 200 while the service answers requests. Requires no token."""
    return ServerLive(live=True)


@router.get("/health/ready")
async def server_ready() -> ServerReady:
    """Return 200 while the service accepts requests. Requires no token."""
    return ServerReady(ready=True)


@router.get("/models/{m}/versions/{v}", include_in_schema=False)
@router.get("/models/{m}")
def describe_tensors(model: VersionDep) -> ModelMetadata:
    """Return the input and output tensors of a model."""
    kind = model.version.kind
    shape = [-1]
    name: str = kind
    if kind == "features":
        name = "rows"
        shape = [-1, model.version.n_features or -1]
    outputs = [
        TensorMetadata(name=output, datatype=datatype, shape=[-1])
        for output, datatype in output_types(model.version).items()
    ]
    return ModelMetadata(
        name=model.name,
        versions=[str(model.version.revision)],
        platform=_PLATFORM,
        inputs=[TensorMetadata(name=name, datatype=_INPUT_TYPES[kind], shape=shape)],
        outputs=outputs,
    )


@router.get("/models/{m}/versions/{v}/ready", include_in_schema=False)
@router.get("/models/{m}/ready")
def model_ready(model: VersionDep) -> ModelReady:
    """Return 200 if the model has a class and can predict."""
    model.version.require_ready()
    return ModelReady(name=model.name, ready=True)


@router.post("/models/{m}/versions/{v}/infer", include_in_schema=False)
@router.post(
    "/models/{m}/infer",
    response_model=InferResponse,
    response_model_exclude_none=True,
    openapi_extra=_INFER_BODY,
)
async def infer(model: VersionDep, request: Request) -> Response:
    """Predict the samples in one tensor: label, class, probability and novelty.

    Numbers of shape [n, d] are feature vectors, UINT8 of shape [n, height, width, 3]
    are images, and BYTES of shape [n] are texts or image files. The output label is
    empty for unknown samples; nearest is their most likely class. The output unsure
    marks samples of a low probability, and samples that may be of an unknown class.
    """
    if media_type(request):
        # Some clients send none.
        check_media_type(request, JSON, FILE)
    body = await request.body()
    limits = model.service.limits
    length = request.headers.get(JSON_LENGTH)
    document, binary = await asyncio.to_thread(split_body, body, length, limits)
    request.state.hold_memory(memory_for(document.inputs[0], binary))
    samples = await asyncio.to_thread(samples_of, document, binary, model.version.kind)
    strangers = _strangers(document)
    predictions = await model.predict(samples, _false_alarm(document))
    return await asyncio.to_thread(
        infer_response, model, document, predictions, strangers
    )


def _false_alarm(request: InferRequest) -> float:
    """Return the parameter ``false_alarm``, or its default."""
    value = request.parameters.get("false_alarm", FALSE_ALARM)
    if isinstance(value, (str, bool)) or not 0 < value < 1:
        raise InputError(f"false_alarm must be between 0 and 1, got {value!r}")
    return float(value)


def _strangers(request: InferRequest) -> str:
    """Return the parameter ``strangers``, or its default."""
    value = request.parameters.get("strangers", USUAL)
    if value not in STRICTNESS:
        raise InputError(f"strangers must be few, some or many, got {value!r}")
    return str(value)
