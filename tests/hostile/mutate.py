"""Hostile model files: a whole evergrow file, changed in one place or a few, mostly with its checksum made right again.

A checksum protects against accidents, not against people: whoever makes a file can make its checksum. The files that
come from here are therefore sound as far as any checksum can tell, and everything in them may lie. The module knows the
format by heart and imports nothing of evergrow, so that a mistake there cannot hide here.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = {
    "F64": ("torch.float64", 8),
    "F32": ("torch.float32", 4),
    "F16": ("torch.float16", 2),
    "BF16": ("torch.bfloat16", 2),
    "F8_E4M3": ("torch.float8_e4m3fn", 1),
    "I64": ("torch.int64", 8),
    "I32": ("torch.int32", 4),
    "I16": ("torch.int16", 2),
    "I8": ("torch.int8", 1),
    "U8": ("torch.uint8", 1),
    "BOOL": ("torch.bool", 1),
}
"""Types of a safetensors file: what torch calls them, and bytes of a number."""

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
"""Those that numpy has too."""

WORDS = re.findall(
    r"\S+",
    """
    dense recursive compact auto mgsm scsm gaussian fourier linked identity uniform ridge discriminant denoised
    none l2 sqrt-l2 gcv holdout task paper recommended exact cpu cuda cuda:99 meta mps b i u f U O S sigmoid relu
    cos tanh fit update rollback image text features float32 float16 bundled module random activation
    orthogonal-fourier counts evergrow scl-mgsm ranpac simplecil SCLClassifier RanPACClassifier Learner Tuner
    Training
    """,
)
"""Words that mean something in some place, and are wrong in most."""

SIZES = (30_000_000, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**31))
"""Numbers that, where they decide how much is allocated or looped over, do harm."""

SIGNED = ("needs", "archive")
"""The two texts that are signed: what the file needs, and the description."""

DEEP = 100_000
"""Levels of nesting that end a recursive parser."""

MANY = 2000
"""Times that a list is repeated to be very long."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file has it: type, shape and bytes, which need not agree."""

    dtype: str
    shape: tuple[Any, ...]
    data: bytes

    def array(self) -> np.ndarray:
        """Return the numbers, of types that numpy has."""
        return np.frombuffer(self.data, dtype=NUMPY[self.dtype]).reshape(self.shape)

    @classmethod
    def of(cls, array: np.ndarray, dtype: str) -> Tensor:
        """Return numbers as a tensor of a type that numpy has."""
        with np.errstate(all="ignore"):
            return cls(dtype, array.shape, np.ascontiguousarray(array).astype(NUMPY[dtype]).tobytes())


@dataclass(frozen=True)
class Parts:
    """A file, taken apart.

    Parameters
    ----------
    schema, kind : object
        The layout of the file and the oldest evergrow that reads it, as the file says.
    meta : object
        The description, parsed.
    tensors : dict of str to Tensor
        The numbers.
    """

    schema: Any
    kind: Any
    meta: Any
    tensors: dict[str, Tensor]


class Raw(str):
    """JSON text that is put in as it is, to say what no Python value says."""


SURROGATE, OVERFLOW, DIGITS = Raw('"\\ud800"'), Raw("1e999"), Raw("1" * 5000)
DEEPER, DEEPEST = Raw("[" * 1000 + "]" * 1000), Raw("[" * DEEP + "]" * DEEP)
DEEPEST_KEYS = Raw('{"a":' * DEEP + "0" + "}" * DEEP)
LONG = "long " * 20_000


# -- taking apart and putting together ----------------------------------------------------------------------


def split(data: bytes) -> Parts:
    """Take a whole file apart."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    head = json.loads(header.pop("__metadata__")["evergrow"])
    body = data[8 + length :]
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), body[start:stop])
    first, second = SIGNED
    return Parts(head["schema"], head[first], json.loads(head[second]), tensors)


def join(parts: Parts, *, meta_text: str | None = None, **changes: Any) -> bytes:
    """Put a file together and sign it.

    Parameters
    ----------
    parts : Parts
        What goes in.
    meta_text : str, optional
        The description as text, instead of that of the parts.
    **changes
        Entries of the signed head to set otherwise, after signing; None leaves one out.
    """
    text = dump(parts.meta) if meta_text is None else meta_text
    first, second = SIGNED
    head = {"schema": parts.schema, first: parts.kind, second: text, "digest": sign(parts.kind, text, parts.tensors)}
    head = {key: value for key, value in {**head, **changes}.items() if value is not None}
    return assemble(dump(head), parts.tensors)


def sign(kind: Any, meta_text: str, tensors: dict[str, Tensor]) -> str:
    """Return the checksum."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(kind).encode("utf-8", "surrogatepass"))
    digest.update(meta_text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{DTYPES[tensor.dtype][0]}:{tensor.shape}".encode("utf-8", "surrogatepass"))
        digest.update(tensor.data)
    return digest.hexdigest()


def assemble(head_text: str, tensors: dict[str, Tensor], header_text: Callable[[str], str] | None = None) -> bytes:
    """Return the bytes of a safetensors file; ``header_text`` may have the last word on its header."""
    names = sorted(tensors, key=lambda name: (-DTYPES[tensors[name].dtype][1], name))
    header: dict[str, Any] = {"__metadata__": {"evergrow": head_text}}
    body, start = [], 0
    for name in names:
        tensor = tensors[name]
        stop = start + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
        body.append(tensor.data)
        start = stop
    text = dump(header)
    if header_text is not None:
        text = header_text(text)
    return frame(text.encode("utf-8", "surrogatepass"), b"".join(body))


def frame(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return header and body with their length before them, or with a length that lies."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def dump(value: Any) -> str:
    """Return JSON with NaN and infinity as Python writes them, and with raw text as it is."""
    raw: list[str] = []

    def marked(item: Any) -> Any:
        if isinstance(item, Raw):
            raw.append(str(item))
            return f"@raw {len(raw) - 1} raw@"
        if isinstance(item, dict):
            return {key: marked(inner) for key, inner in item.items()}
        return [marked(inner) for inner in item] if isinstance(item, (list, tuple)) else item

    text = json.dumps(marked(value), sort_keys=True)
    for number, inner in enumerate(raw):
        text = text.replace(f'"@raw {number} raw@"', inner)
    return text


# -- places in a description --------------------------------------------------------------------------------


Path = tuple[Any, ...]


def walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield all places in a description with what is there, the whole first."""
    yield path, node
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        yield from walk(value, (*path, key))


def at(node: Any, path: Path) -> Any:
    """Return what is in a place."""
    for key in path:
        node = node[key]
    return node


def put(meta: Any, path: Path, value: Any) -> Any:
    """Return a description with something else in a place."""
    if not path:
        return value
    changed = copy.deepcopy(meta)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def spell(path: Path) -> str:
    """Return a place in words."""
    return ".".join(map(str, path)) or "everything"


# -- single changes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """One thing that is done to a file.

    Parameters
    ----------
    group : str
        The sort of change; all sorts get their turn.
    words : str
        What is done.
    edit : callable or None
        From parts to parts that are signed again.
    write : callable or None
        From parts and the whole file's bytes to bytes, for what parts cannot say.
    """

    group: str
    words: str
    edit: Callable[[Parts], Parts] | None = None
    write: Callable[[Parts, bytes], bytes] | None = None


def _meta(group: str, words: str, change: Callable[[Any], Any]) -> Change:
    return Change(group, words, edit=lambda parts: dataclasses.replace(parts, meta=change(parts.meta)))


def _tensors(group: str, words: str, change: Callable[[dict[str, Tensor]], None]) -> Change:
    def edit(parts: Parts) -> Parts:
        tensors = dict(parts.tensors)
        change(tensors)
        return dataclasses.replace(parts, tensors=tensors)

    return Change(group, words, edit=edit)


def replacements(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what to put in the place of a value: the sort of change, what it is in words, and the new value."""
    for other in (None, True, False, 0, 1, 2, -1, 0.5, -0.5, 1e308, -1e308, 1e-320, "", "x", "0", "1", "nan", [], {}):
        if type(other) is not type(value) or other != value:
            yield "leaf", repr(other), other
    yield "leaf", "itself in a list", [value]
    yield "leaf", "itself in a dictionary", {"a": value}
    yield "leaf", "a list of nothing", [None]
    yield "leaf", "a number as text", json.dumps(value)
    yield "leaf", "a lone surrogate", SURROGATE
    yield "leaf", "a zero byte", "a\0b"
    yield "leaf", "a path", "../../../../etc/passwd"
    yield "leaf", "a long text", LONG
    for other in (math.nan, math.inf, -math.inf):
        yield "number", repr(other), other
    yield "number", "a float that overflows", OVERFLOW
    yield "number", "five thousand digits", DIGITS
    for size in SIZES:
        yield "size", str(size), size
    yield "size", "30000000.0", 30_000_000.0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for words, other in (("more", value + 1), ("less", value - 1), ("negative", -value), ("twice", value * 2)):
            yield "number", f"{other!r} ({words})", other
    if isinstance(value, str):
        yield from (("word", repr(word), word) for word in WORDS if word != value)
    yield "nested", "a list nested a thousand deep", DEEPER
    yield "nested", f"a list nested {DEEP} deep", DEEPEST
    yield "nested", f"a dictionary nested {DEEP} deep", DEEPEST_KEYS


def description_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to the description: every value, key and list."""
    for path, value in walk(parts.meta):
        place = spell(path)
        whole = isinstance(value, (dict, list))
        for group, words, other in replacements(None if whole else value):
            group = "container" if whole and group == "leaf" else group
            yield _meta(group, f"{place} becomes {words}", lambda meta, p=path, o=other: put(meta, p, o))
        if isinstance(value, dict):
            yield from _key_changes(path, value)
        if isinstance(value, list):
            yield from _list_changes(path, value)


def _key_changes(path: Path, value: dict[str, Any]) -> Iterator[Change]:
    place = spell(path)
    for key in value:
        rest = {name: item for name, item in value.items() if name != key}
        edits: list[tuple[str, Any]] = [
            ("is removed", rest),
            ("is renamed", {**rest, f"{key}_": value[key]}),
            ("is in capitals", {**rest, key.upper() + " ": value[key]}),
        ]
        edits += [
            (f"and {other} change places", {**value, key: value[other], other: value[key]})
            for other in list(value)[:3]
            if other != key
        ]
        for words, new in edits:
            yield _meta("key", f"{place}.{key} {words}", lambda meta, p=path, n=new: put(meta, p, copy.deepcopy(n)))
    for name in ("surprise", "", "__class__", "__init__", "self", "device", "path"):
        if name not in value:
            more = {**value, name: 1}
            yield _meta("key", f"{place} gets {name!r}", lambda meta, p=path, n=more: put(meta, p, copy.deepcopy(n)))


def _list_changes(path: Path, value: list[Any]) -> Iterator[Change]:
    place = spell(path)
    edits = [
        ("is cut to half", value[: len(value) // 2]),
        ("lacks its last", value[:-1]),
        ("lacks its first", value[1:]),
        ("is twice as long", value + value),
        ("has its last twice", value + value[-1:]),
        ("has its first everywhere", value[:1] * len(value)),
        ("is backwards", value[::-1]),
        ("has mixed kinds", [*value[:-1], "mixed", 3, None]),
        ("is very long", (value or [0]) * MANY),
        ("has numbers for texts", [zlib.crc32(str(item).encode()) % 97 for item in value]),
        ("has texts for numbers", [str(item) for item in value]),
        ("has lists in it", [[item] for item in value]),
        ("has truth values in it", [True for _ in value]),
        ("has NaN in it", [math.nan for _ in value]),
        ("has huge numbers in it", [2**63 + number for number, _ in enumerate(value)]),
    ]
    for words, new in edits:
        if new != value:
            yield _meta("list", f"{place} {words}", lambda meta, p=path, n=new: put(meta, p, copy.deepcopy(n)))


def tensor_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to the tensors: which there are, their shapes, types and numbers."""
    names = sorted(parts.tensors)
    yield _tensors("tensors", "all tensors are removed", lambda tensors: tensors.clear())
    for name in names:
        tensor = parts.tensors[name]
        yield _tensors("tensors", f"{name} is removed", lambda tensors, n=name: tensors.pop(n))
        yield _tensors(
            "tensors", f"{name} is renamed", lambda tensors, n=name: tensors.update({f"{n}2": tensors.pop(n)})
        )
        short = name[name.find(".") + 1 :]
        yield _tensors("tensors", f"{name} loses its prefix", lambda tensors, n=name, s=short: _move(tensors, n, s))
        for other in names[:4]:
            if other != name:
                yield _tensors("tensors", f"{name} is {other}", lambda tensors, n=name, o=other: _copy(tensors, o, n))
        for group, words, new in _tensor_variants(tensor):
            yield _tensors(group, f"{name} {words}", lambda tensors, n=name, t=new: tensors.update({n: t}))
    for extra in ("surprise", "state.surprise", "", "head.head.head", "moments.99", "projection.", "a" * 5000):
        more = Tensor("F64", (2,), np.ones(2).tobytes())
        yield _tensors(
            "tensors", f"there is {extra[:20]!r} too", lambda tensors, e=extra, m=more: tensors.update({e: m})
        )


def _move(tensors: dict[str, Tensor], source: str, target: str) -> None:
    tensors[target] = tensors.pop(source)


def _copy(tensors: dict[str, Tensor], source: str, target: str) -> None:
    tensors[target] = tensors[source]


def _tensor_variants(tensor: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Yield what to put in the place of a tensor: the sort of change, what it is in words, and the new tensor."""
    array = tensor.array()
    yield from (("shape", words, Tensor.of(new, tensor.dtype)) for words, new in _shapes(array))
    for dtype in NUMPY:
        if dtype != tensor.dtype:
            yield "dtype", f"is of type {dtype}", Tensor.of(array, dtype)
    flags = (array != 0).astype("u1")
    yield "dtype", "is of type BOOL", Tensor("BOOL", array.shape, flags.tobytes())
    bits = np.ascontiguousarray(array.astype("<f4")).view("<u4") >> 16
    yield "dtype", "is of type BF16", Tensor("BF16", array.shape, bits.astype("<u2").tobytes())
    yield "dtype", "is of type F8_E4M3", Tensor("F8_E4M3", array.shape, bytes([56]) * array.size)
    for words, new in _fillings(array):
        yield "filling", words, Tensor.of(new, tensor.dtype)


def _shapes(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    changes: list[tuple[str, np.ndarray]] = [
        ("is flat", array.reshape(-1)),
        ("is a column", array.reshape(-1, 1)),
        ("is a row", array.reshape(1, -1)),
        ("has one dimension more", array[None]),
        ("has one dimension more at the end", array[..., None]),
        ("is empty", array.reshape(-1)[:0]),
        ("has no rows", array[:0]),
        ("is one number without dimensions", array.reshape(-1)[:1].reshape(())),
        ("is one number", array.reshape(-1)[:1]),
        ("has one row less", array[:-1]),
        ("has its last row twice", np.concatenate([array, array[-1:]])),
        ("is there twice", np.concatenate([array, array])),
        ("is 2,000 times as long", np.concatenate([array] * 2000) if array.size < 50 else np.concatenate([array] * 50)),
    ]
    if array.ndim == 2:
        changes += [
            ("is transposed", array.T),
            ("has one column less", array[:, :-1]),
            ("has no columns", array[:, :0]),
            ("has its last column twice", np.concatenate([array, array[:, -1:]], axis=1)),
        ]
    for words, new in changes:
        if new.shape != array.shape:
            yield words, new


def _fillings(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    whole = {"is zero": 0, "is one": 1, "is minus one": -1}
    for words, number in whole.items():
        yield words, np.full_like(array, number)
    yield "is negative", -array
    yield "is shuffled", np.random.default_rng(0).permutation(array.reshape(-1)).reshape(array.shape)
    if array.dtype.kind == "f":
        largest = float(np.finfo(array.dtype).max)
        odd = {"NaN": np.nan, "infinite": np.inf, "minus infinity": -np.inf, "huge": largest, "tiny": 5e-324}
        for words, value in odd.items():
            yield f"is {words}", np.full_like(array, value)
            if array.size > 1:
                one = array.copy()
                one.reshape(-1)[array.size // 2] = value
                yield f"has one number that is {words}", one
        yield "is a thousand times as large", array * 1000
        yield "is 1e200 times as large", array * (1e200 if array.dtype.itemsize == 8 else 1e30)
        if array.ndim == 2:
            crooked = array.copy()
            crooked[0, -1] += 1 + abs(crooked[0, -1])
            yield "is not symmetric", crooked
    else:
        for number in (30_000_000, 2**31, 2**62, -(2**62), 1000):
            yield (
                f"is {number}",
                np.full_like(array, np.clip(number, np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)),
            )
        if array.size:
            one = array.copy()
            one.reshape(-1)[0] = -5
            yield "has one negative number", one
            one = array.copy()
            one.reshape(-1)[-1] = 0
            yield "has one zero", one
            one = array.copy()
            one.reshape(-1)[0] += 1
            yield "has one number that is larger by one", one


def head_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to what a file says of itself before its description."""
    texts_and_numbers: tuple[Any, ...] = (0, -1, 2, 99, 2**70, 1.0, 1.5, math.nan, True, False, "1", "")
    for value in (*texts_and_numbers, [1], {"a": 1}, OVERFLOW):
        yield Change("head", f"schema is {value!r}", write=lambda parts, _, v=value: join(parts, schema=v))
        yield Change("head", f"digest is {value!r}", write=lambda parts, _, v=value: join(parts, digest=v))
        yield Change("head", f"meta is {value!r}", write=lambda parts, _, v=value: join(parts, archive=v))
    for kind in ("", "Learner", "SCLClassifier", "Tuner", "Training", "object", 3, ["Learner"], {"a": 1}, "\0"):
        if kind != parts.kind:
            yield Change("head", f"kind is {kind!r}", edit=lambda parts, k=kind: dataclasses.replace(parts, kind=k))
    for key in ("schema", "digest", *SIGNED):
        yield Change("head", f"{key} is missing", write=lambda parts, _, k=key: join(parts, **{k: None}))
    texts = {
        "empty": "",
        "null": "null",
        "a list": "[]",
        "a text": '"x"',
        "cut off": dump(parts.meta)[:-5],
        "followed by more": dump(parts.meta) + " {}",
        "nested too deep": "[" * DEEP + "]" * DEEP,
        "nested too deep in a key": '{"a":' * DEEP + "1" + "}" * DEEP,
        "a lone surrogate": '{"a": "\ud800"}',
    }
    for words, text in texts.items():
        yield Change("head", f"the description is {words}", write=lambda parts, _, t=text: join(parts, meta_text=t))
    if isinstance(parts.meta, dict):
        for key in parts.meta:
            twice = f"{dump(parts.meta)[:-1]}, {json.dumps(key)}: null}}"
            words = f"the description has {key} twice"
            yield Change("head", words, write=lambda parts, _, t=twice: join(parts, meta_text=t))


def raw_changes(data: bytes) -> Iterator[Change]:
    """Yield changes to the bytes that no checksum is made for."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = data[8 : 8 + length], data[8 + length :]
    for position in range(0, len(data), max(1, len(data) // 150)):
        for bit in (0, 3, 7):
            yield Change("bits", f"bit {bit} of byte {position} is flipped", write=_flipped(position, bit))
    for size in sorted({0, 1, 7, 8, 9, 8 + length // 2, 8 + length, 8 + length + 1, len(data) // 2, len(data) - 1}):
        yield Change("raw", f"cut to {size} bytes", write=lambda _, data, s=size: data[:s])
    for extra in (b"\0", b"x" * 1000):
        yield Change("raw", f"{len(extra)} bytes more", write=lambda _, data, e=extra: data + e)
    for lie in (0, 1, length - 1, length + 1, length + 8, len(data), 2**31, 2**40, 2**63, 2**64 - 1):
        yield Change("raw", f"the header's length is {lie}", write=lambda *_, v=lie: frame(header, body, v))
    texts = {
        "nothing": b"",
        "a list": b"[]",
        "null": b"null",
        "no JSON": b"{" * 10,
        "not UTF-8": header.replace(b"evergrow", b"everg\xff\xfew", 1),
        "a list nested too deep": b"[" * DEEP + b"]" * DEEP,
        "a dictionary nested too deep": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        "nested too deep beside the rest": header.rstrip()[:-1] + b',"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
        "twice the same key": header.rstrip()[:-1] + b',"__metadata__":{"evergrow":"{}"}}',
        "no metadata": header.replace(b"__metadata__", b"__metadata_", 1),
        "metadata that is a list": b'{"__metadata__": []}',
        "metadata that is null": b'{"__metadata__": null}',
        "metadata of numbers": b'{"__metadata__": {"evergrow": 3}}',
        "a head that is a list": b'{"__metadata__": {"evergrow": "[]"}}',
        "a head that is null": b'{"__metadata__": {"evergrow": "null"}}',
        "a head nested too deep": b'{"__metadata__": {"evergrow": "' + b"[" * DEEP + b"]" * DEEP + b'"}}',
        "a head of digits": b'{"__metadata__": {"evergrow": "' + b"1" * 5000 + b'"}}',
    }
    for words, text in texts.items():
        yield Change("raw", f"the header is {words}", write=lambda *_, t=text: frame(t, body))
    yield from _offset_changes(header, body)


def _flipped(position: int, bit: int) -> Callable[[Parts, bytes], bytes]:
    def write(_: Parts, data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position] ^= 1 << bit
        return bytes(changed)

    return write


def _offset_changes(header: bytes, body: bytes) -> Iterator[Change]:
    """Yield headers that lie about where tensors are, how large and of what type."""
    entries = json.loads(header)
    for name in [name for name in entries if name != "__metadata__"][:6]:
        entry = entries[name]
        start, stop = entry["data_offsets"]
        lies: dict[str, dict[str, Any]] = {
            "begins elsewhere": {"data_offsets": [start + 8, stop + 8]},
            "ends beyond the file": {"data_offsets": [start, stop + 2**40]},
            "ends before it begins": {"data_offsets": [stop, start]},
            "begins before the file": {"data_offsets": [-8, stop]},
            "is where another is": {"data_offsets": [0, stop - start]},
            "has a negative shape": {"shape": [-1]},
            "has a huge shape": {"shape": [2**40, 2**40]},
            "has a shape of nothing": {"shape": None},
            "has a shape of texts": {"shape": ["3"]},
            "is of no known type": {"dtype": "F512"},
            "is BF16": {"dtype": "BF16"},
            "is BOOL": {"dtype": "BOOL", "shape": [stop - start]},
        }
        for words, lie in lies.items():
            text = json.dumps({**entries, name: {**entry, **lie}}).encode()
            yield Change("raw", f"{name} {words}", write=lambda *_, t=text: frame(t, body))


# -- many ---------------------------------------------------------------------------------------------------


def changes(data: bytes) -> dict[str, list[Change]]:
    """Return all single changes to a file, by their sort."""
    parts = split(data)
    found: dict[str, list[Change]] = {}
    sources = (description_changes(parts), tensor_changes(parts), head_changes(parts))
    for source in (*sources, raw_changes(data)):
        for change in source:
            found.setdefault(change.group, []).append(change)
    return found


def mutations(data: bytes, seed: int, n: int) -> Iterator[tuple[str, bytes]]:
    """Yield hostile files made from a whole one.

    Parameters
    ----------
    data : bytes
        A whole file.
    seed : int
        The same seed gives the same files.
    n : int
        How many. All sorts of single changes take turns, none comes twice; several at once are one more sort.

    Yields
    ------
    description : str
        What was done.
    hostile : bytes
        The file.

    Examples
    --------
    >>> from tests.hostile.mutate import Parts, join, mutations
    >>> whole = join(Parts(1, "Toy", {"n": 3, "labels": ["a", "b"]}, {}))
    >>> [words for words, _ in mutations(whole, seed=0, n=3)] == [words for words, _ in mutations(whole, 0, 3)]
    True
    """
    rng = np.random.default_rng(seed)
    parts, waiting = split(data), changes(data)
    editing = [change for several in waiting.values() for change in several if change.edit is not None]
    for group in sorted(waiting):
        waiting[group] = [waiting[group][i] for i in rng.permutation(len(waiting[group]))]
    turns = [*sorted(waiting), "several"]
    made = 0
    while made < n:
        for group in (turns[i] for i in rng.permutation(len(turns))):
            if made == n:
                return
            left = waiting.get(group, [])
            if left:
                change = left.pop()
                yield f"{change.group}: {change.words}", apply(change, parts, data)
            else:
                yield _several(rng, editing, parts)
            made += 1


def apply(change: Change, parts: Parts, data: bytes) -> bytes:
    """Return a file with one change."""
    if change.edit is not None:
        return join(change.edit(parts))
    assert change.write is not None
    return change.write(parts, data)


def _several(rng: np.random.Generator, editing: list[Change], parts: Parts) -> tuple[str, bytes]:
    """Return a file with two or three changes that can be made one after the other."""
    words: list[str] = []
    for index in rng.integers(len(editing), size=int(rng.integers(2, 4))):
        change = editing[int(index)]
        assert change.edit is not None
        try:
            changed = change.edit(parts)
            join(changed)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            continue  # what it was to change is no longer there
        parts = changed
        words.append(change.words)
    return f"several: {'; '.join(words)}", join(parts)


def numbers_of(data: bytes, sizes: tuple[int, ...] = (30_000_000, 2**40)) -> Iterator[tuple[str, bytes]]:
    """Yield files in which one whole number of the description, each in its turn, says a size that does harm."""
    parts = split(data)
    for path, value in walk(parts.meta):
        if isinstance(value, int) and not isinstance(value, bool):
            for size in sizes:
                changed = dataclasses.replace(parts, meta=put(parts.meta, path, size))
                yield f"{spell(path)} is {size}", join(changed)
