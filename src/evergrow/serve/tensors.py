"""Tensors of the Open Inference Protocol: as JSON, and as the binary extension that Triton's clients speak."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.documents import parse_json
from evergrow.core.errors import FileFormatError
from evergrow.serve.problems import Problem

HEADER = "inference-header-content-length"

DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""Types of numbers in the protocol, and numpy's names of them."""


@dataclass(frozen=True, eq=False)
class InputTensor:
    """One input.

    Parameters
    ----------
    name : str
        What the caller calls it.
    datatype : str
        A type of the protocol.
    shape : tuple of int
        Its shape.
    values : ndarray, or list of str or bytes
        Numbers, or the elements of a BYTES tensor.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: NDArray[Any] | list[str | bytes]


@dataclass(frozen=True, eq=False)
class OutputTensor:
    """One output; a list is a BYTES tensor."""

    name: str
    datatype: str
    values: NDArray[Any] | list[str]

    @property
    def shape(self) -> list[int]:
        """Its shape."""
        return [len(self.values)] if isinstance(self.values, list) else list(self.values.shape)


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """A request for inference."""

    id: str
    inputs: list[InputTensor]
    outputs: dict[str, bool]
    parameters: Mapping[str, Any]
    binary: bool


def read_request(body: bytes, header_length: str | None) -> InferenceRequest:
    """Return a request, from JSON or JSON followed by binary tensors.

    Parameters
    ----------
    body : bytes
        The body.
    header_length : str or None
        The header that says where the JSON ends; None where there is nothing but JSON.

    Raises
    ------
    Problem
        400 or 422 if it is none.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal()) or int(header_length[:12]) > len(body):
            raise Problem(400, f"{HEADER} must be the length of the JSON part, got {header_length[:20]!r}", "BadHeader")
        length = int(header_length)
    try:
        values = parse_json(body[:length], "body")
    except FileFormatError as error:
        raise Problem(400, f"body must begin with a JSON object: {error.__cause__}", "BadJson") from error
    given = values.get("inputs") if isinstance(values, dict) else None
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise Problem(422, "inputs must be a list of tensors", "BadField")
    rest, inputs = memoryview(body)[length:], []
    for entry in given:
        tensor, used = _read_input(entry, rest)
        inputs.append(tensor)
        rest = rest[used:]
    wanted = _mapping(values.get("parameters"))
    default = wanted.get("binary_data_output") is True
    outputs = _outputs(values.get("outputs"), default)
    name = values.get("id", "")
    return InferenceRequest(name if isinstance(name, str) else "", inputs, outputs, wanted, default)


def _outputs(entries: Any, default: bool) -> dict[str, bool]:
    """Return the names of outputs that are wanted, and which of them as binary."""
    if entries is None:
        return {}
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("name"), str) for e in entries
    ):
        raise Problem(422, "outputs must be a list of objects with a name", "BadField")
    return {entry["name"]: _mapping(entry.get("parameters")).get("binary_data", default) is True for entry in entries}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_input(entry: dict[str, Any], rest: memoryview) -> tuple[InputTensor, int]:
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str) or not isinstance(datatype, str) or datatype not in ("BYTES", *DTYPES):
        raise Problem(422, "inputs must have a name and a datatype of the protocol", "BadField")
    plain = isinstance(shape, list) and 0 < len(shape) <= 8
    if not plain or not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**31 for n in shape or ()):
        raise Problem(422, f"shape of {name[:80]!r} must be a list of sizes", "BadField")
    dims = tuple(shape or ())
    size = 1
    for n in dims:
        size *= n
    nbytes = _mapping(entry.get("parameters")).get("binary_data_size")
    if nbytes is None:
        return InputTensor(name, datatype, dims, _from_json(name, datatype, dims, size, entry.get("data"))), 0
    if not isinstance(nbytes, int) or isinstance(nbytes, bool) or not 0 <= nbytes <= len(rest):
        raise Problem(422, f"binary_data_size of {name[:80]!r} must be what follows the JSON", "BadField")
    return InputTensor(name, datatype, dims, _from_bytes(name, datatype, dims, size, rest[:nbytes])), nbytes


def _from_json(
    name: str, datatype: str, dims: tuple[int, ...], size: int, data: Any
) -> NDArray[Any] | list[str | bytes]:
    flat = list(_flat(data))
    if len(flat) != size:
        raise Problem(422, f"data of {name[:80]!r} must have {size} elements, got {len(flat)}", "BadField")
    if datatype == "BYTES":
        if not all(isinstance(value, str) for value in flat):
            raise Problem(422, f"data of {name[:80]!r} must be strings", "BadField")
        return flat
    try:
        if not all(isinstance(value, (int, float)) for value in flat):
            raise ValueError("no numbers")
        dtype = np.dtype(DTYPES[datatype])
        # NumPy 1 would turn -1 into the largest number of a type without a sign; NumPy 2 refuses it.
        if dtype.kind in "iu" and not all(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max for value in flat):
            raise ValueError("out of range")
        return np.asarray(flat, dtype=dtype).reshape(dims)
    except (ValueError, OverflowError, TypeError) as error:
        raise Problem(422, f"data of {name[:80]!r} must be numbers of type {datatype}", "BadField") from error


def _flat(data: Any) -> Any:
    if isinstance(data, list):
        for entry in data:
            yield from _flat(entry)
    elif data is not None:
        yield data


def _from_bytes(
    name: str, datatype: str, dims: tuple[int, ...], size: int, data: memoryview
) -> NDArray[Any] | list[str | bytes]:
    if datatype == "BYTES":
        return _strings(name, size, data)
    kind = np.dtype(DTYPES[datatype])
    if len(data) != size * kind.itemsize:
        raise Problem(422, f"data of {name[:80]!r} must be {size * kind.itemsize} bytes, got {len(data)}", "BadField")
    return np.frombuffer(data, dtype=kind).reshape(dims)


def _strings(name: str, size: int, data: memoryview) -> list[str | bytes]:
    """Return the elements of a BYTES tensor: each its length in four bytes, and then itself."""
    found: list[str | bytes] = []
    place = 0
    while place + 4 <= len(data) and len(found) < size:
        (length,) = struct.unpack_from("<I", data, place)
        place += 4
        if place + length > len(data):
            break
        found.append(bytes(data[place : place + length]))
        place += length
    if len(found) != size or place != len(data):
        raise Problem(422, f"data of {name[:80]!r} must be {size} strings with their lengths", "BadField")
    return found


def write_response(
    values: dict[str, Any], outputs: Sequence[OutputTensor], binary: Mapping[str, bool]
) -> tuple[bytes, int]:
    """Return the body of an answer, and the length of its JSON part; 0 where there is nothing else."""
    blobs: list[bytes] = []
    entries = []
    for tensor in outputs:
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if binary.get(tensor.name, False):
            blobs.append(_encoded(tensor))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            flat = tensor.values if isinstance(tensor.values, list) else tensor.values.reshape(-1).tolist()
            entry["data"] = flat
        entries.append(entry)
    head = json.dumps({**values, "outputs": entries}).encode()
    return (head + b"".join(blobs), len(head)) if blobs else (head, 0)


def _encoded(tensor: OutputTensor) -> bytes:
    if isinstance(tensor.values, list):
        words = [word.encode("utf-8", "replace") for word in tensor.values]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    return np.ascontiguousarray(tensor.values, dtype=np.dtype(DTYPES[tensor.datatype])).tobytes()
