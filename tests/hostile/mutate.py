"""Hostile model files: an intact file with a few changes, mostly re-signed.

A checksum protects against accidents, not against attackers, who can compute it. So the
checksums of these files are valid, and any other field can be wrong. The module
implements the format independently of evergrow, so that a mistake in evergrow is found.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
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
"""Types of safetensors files: name in torch, and bytes per number."""

NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}
"""Types that numpy has too."""

WORDS = re.findall(
    r"\S+",
    """
    dense recursive compact auto mgsm scsm gaussian fourier linked identity uniform
    ridge discriminant denoised none l2 sqrt-l2 gcv holdout task paper recommended
    exact cpu cuda cuda:99 meta mps b i u f U O S sigmoid relu cos tanh fit update
    rollback image text features float32 float16 bundled module random activation
    orthogonal-fourier counts evergrow scl-mgsm ranpac simplecil SCLClassifier
    RanPACClassifier Learner Tuner Training
    """,
)
"""Words that are valid in some field, and wrong in most."""

SIZES = (
    30_000_000,
    2**31 - 1,
    2**31,
    2**40,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    -(2**31),
)
"""Numbers that do harm if they determine an allocation or a loop."""

SIGNED = ("needs", "archive")
"""The two signed texts: requirements of the file, and the description."""

DEEP = 100_000
"""Levels of nesting that exhaust a recursive parser."""

MANY = 2000
"""Repetitions that make a list very long."""


@dataclass(frozen=True)
class Tensor:
    """Type, shape and bytes of a tensor in a file, which need not be consistent."""

    dtype: str
    shape: tuple[Any, ...]
    data: bytes

    def array(self) -> np.ndarray:
        """Return the numbers of a type that numpy has."""
        return np.frombuffer(self.data, dtype=NUMPY[self.dtype]).reshape(self.shape)

    @classmethod
    def of(cls, array: np.ndarray, dtype: str) -> Tensor:
        """Return numbers of a numpy type as a tensor."""
        with np.errstate(all="ignore"):
            return cls(
                dtype,
                array.shape,
                np.ascontiguousarray(array).astype(NUMPY[dtype]).tobytes(),
            )


@dataclass(frozen=True)
class Parts:
    """The parts of a model file.

    Parameters
    ----------
    schema, kind : object
        Layout of the file, and the oldest evergrow that reads it, as stated.
    meta : object
        The parsed description.
    tensors : dict of str to Tensor
        The numbers.
    """

    schema: Any
    kind: Any
    meta: Any
    tensors: dict[str, Tensor]


class Raw(str):
    """JSON text that is written unchanged, for values that Python cannot express."""


SURROGATE = Raw('"\\ud800"')
OVERFLOW = Raw("1e999")
DIGITS = Raw("1" * 5000)
DEEPER = Raw("[" * 1000 + "]" * 1000)
DEEPEST = Raw("[" * DEEP + "]" * DEEP)
DEEPEST_KEYS = Raw('{"a":' * DEEP + "0" + "}" * DEEP)
LONG = "long " * 20_000


# -- taking apart and putting together -------------------------------------------------


def split(data: bytes) -> Parts:
    """Parse an intact file."""
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
    """Write the parts of a file and sign it.

    Parameters
    ----------
    parts : Parts
        The parts.
    meta_text : str, optional
        Text of the description; written from the parts by default.
    **changes
        Entries of the signed head to change after signing; None removes one.
    """
    if meta_text is None:
        text = dump(parts.meta)
    else:
        text = meta_text
    first, second = SIGNED
    head = {
        "schema": parts.schema,
        first: parts.kind,
        second: text,
        "digest": sign(parts.kind, text, parts.tensors),
    }
    head = {
        key: value for key, value in {**head, **changes}.items() if value is not None
    }
    header: dict[str, Any] = {"__metadata__": {"evergrow": dump(head)}}
    body = b""
    for name in sorted(
        parts.tensors, key=lambda name: (-DTYPES[parts.tensors[name].dtype][1], name)
    ):
        tensor = parts.tensors[name]
        offsets = [len(body), len(body) + len(tensor.data)]
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        body += tensor.data
    return frame(dump(header).encode("utf-8", "surrogatepass"), body)


def sign(kind: Any, meta_text: str, tensors: dict[str, Tensor]) -> str:
    """Return the checksum."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(kind).encode("utf-8", "surrogatepass"))
    digest.update(meta_text.encode("utf-8", "surrogatepass"))
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(
            f"{name}:{DTYPES[tensor.dtype][0]}:{tensor.shape}".encode(
                "utf-8", "surrogatepass"
            )
        )
        digest.update(tensor.data)
    return digest.hexdigest()


def frame(header: bytes, body: bytes, length: int | None = None) -> bytes:
    """Return header and body after their length, which can be wrong."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def dump(value: Any) -> str:
    """Return JSON with NaN and infinity like Python, and with raw text unescaped."""
    raw: list[str] = []

    def marked(item: Any) -> Any:
        if isinstance(item, Raw):
            raw.append(str(item))
            return f"@raw {len(raw) - 1} raw@"
        if isinstance(item, dict):
            return {key: marked(inner) for key, inner in item.items()}
        if isinstance(item, (list, tuple)):
            return [marked(inner) for inner in item]
        return item

    text = json.dumps(marked(value), sort_keys=True)
    for number, inner in enumerate(raw):
        text = text.replace(f'"@raw {number} raw@"', inner)
    return text


# -- places in a description -----------------------------------------------------------


Path = tuple[Any, ...]


def walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value of every node of a description, the root first."""
    yield path, node
    if isinstance(node, dict):
        entries = node.items()
    elif isinstance(node, list):
        entries = enumerate(node)
    else:
        entries = ()
    for key, value in entries:
        yield from walk(value, (*path, key))


def at(node: Any, path: Path) -> Any:
    """Return the value at a path."""
    for key in path:
        node = node[key]
    return node


def put(meta: Any, path: Path, value: Any) -> Any:
    """Return a description with another value at a path."""
    if not path:
        return value
    changed = copy.deepcopy(meta)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def spell(path: Path) -> str:
    """Return a path as text."""
    return ".".join(map(str, path)) or "everything"


# -- single changes --------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A change to a file.

    Parameters
    ----------
    group : str
        Sort of change; the sorts take turns.
    words : str
        Description of the change.
    edit : callable
        Function of the parts. It returns parts, which are signed again, or the bytes of
        a file.
    """

    group: str
    words: str
    edit: Callable[[Parts], Parts | bytes]

    def applied(self, parts: Parts) -> bytes:
        """Return the file with this change."""
        made = self.edit(parts)
        if isinstance(made, bytes):
            return made
        return join(made)


def _meta(group: str, path: Path, words: str, value: Any) -> Change:
    """Return the change that sets a value of the description."""
    return Change(
        group,
        f"{spell(path)} {words}",
        lambda parts: dataclasses.replace(parts, meta=put(parts.meta, path, value)),
    )


def _tensors(group: str, words: str, new: dict[str, Tensor | None]) -> Change:
    """Return the change that sets tensors, or removes them if None."""

    def edit(parts: Parts) -> Parts:
        merged = {**parts.tensors, **new}
        return dataclasses.replace(
            parts,
            tensors={name: item for name, item in merged.items() if item is not None},
        )

    return Change(group, words, edit)


def _head(words: str, **changes: Any) -> Change:
    """Return the change of header fields."""
    return Change("head", words, lambda parts: join(parts, **changes))


def replacements(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield replacements of a value: sort of change, description, new value."""
    for other in (
        None,
        True,
        False,
        0,
        1,
        2,
        -1,
        0.5,
        -0.5,
        1e308,
        -1e308,
        1e-320,
        "",
        "x",
        "0",
        "1",
        "nan",
        [],
        {},
    ):
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
        for words, other in (
            ("more", value + 1),
            ("less", value - 1),
            ("negative", -value),
            ("twice", value * 2),
        ):
            yield "number", f"{other!r} ({words})", other
    if isinstance(value, str):
        yield from (("word", repr(word), word) for word in WORDS if word != value)
    yield "nested", "a list nested a thousand deep", DEEPER
    yield "nested", f"a list nested {DEEP} deep", DEEPEST
    yield "nested", f"a dictionary nested {DEEP} deep", DEEPEST_KEYS


def description_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to the description: every value, key and list."""
    for path, value in walk(parts.meta):
        whole = isinstance(value, (dict, list))
        for group, words, other in replacements(None if whole else value):
            yield _meta(
                "container" if whole and group == "leaf" else group,
                path,
                f"becomes {words}",
                other,
            )
        if isinstance(value, dict):
            yield from _key_changes(path, value)
        if isinstance(value, list):
            yield from _list_changes(path, value)


def _key_changes(path: Path, value: dict[str, Any]) -> Iterator[Change]:
    for key in value:
        rest = {name: item for name, item in value.items() if name != key}
        yield _meta("key", path, f"loses {key}", rest)
        yield _meta("key", path, f"has {key} renamed", {**rest, f"{key}_": value[key]})
        yield _meta(
            "key",
            path,
            f"has {key} in capitals",
            {**rest, key.upper() + " ": value[key]},
        )
        for other in list(value)[:3]:
            if other != key:
                exchanged = {**value, key: value[other], other: value[key]}
                yield _meta("key", path, f"has {key} and {other} exchanged", exchanged)
    for name in ("surprise", "", "__class__", "__init__", "self", "device", "path"):
        if name not in value:
            yield _meta("key", path, f"gets {name!r}", {**value, name: 1})


def _list_changes(path: Path, value: list[Any]) -> Iterator[Change]:
    edits = {
        "is cut to half": value[: len(value) // 2],
        "lacks its last": value[:-1],
        "lacks its first": value[1:],
        "is twice as long": value + value,
        "has its last twice": value + value[-1:],
        "has its first everywhere": value[:1] * len(value),
        "is backwards": value[::-1],
        "has mixed kinds": [*value[:-1], "mixed", 3, None],
        "is very long": (value or [0]) * MANY,
        "has numbers for texts": [
            zlib.crc32(str(item).encode()) % 97 for item in value
        ],
        "has texts for numbers": [str(item) for item in value],
        "has lists in it": [[item] for item in value],
        "has truth values in it": [True for _ in value],
        "has NaN in it": [math.nan for _ in value],
        "has huge numbers in it": [2**63 + number for number, _ in enumerate(value)],
    }
    for words, new in edits.items():
        if new != value:
            yield _meta("list", path, words, new)


def tensor_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to names, shapes, types and numbers of tensors."""
    tensors = parts.tensors
    yield _tensors("tensors", "all tensors are removed", dict.fromkeys(tensors))
    for name, tensor in sorted(tensors.items()):
        short = name[name.find(".") + 1 :]
        yield _tensors("tensors", f"{name} is removed", {name: None})
        yield _tensors(
            "tensors", f"{name} is renamed", {name: None, f"{name}2": tensor}
        )
        yield _tensors(
            "tensors", f"{name} loses its prefix", {name: None, short: tensor}
        )
        for other in sorted(tensors)[:4]:
            if other != name:
                yield _tensors("tensors", f"{name} is {other}", {name: tensors[other]})
        for group, words, new in _tensor_variants(tensor):
            yield _tensors(group, f"{name} {words}", {name: new})
    for extra in (
        "surprise",
        "state.surprise",
        "",
        "head.head.head",
        "moments.99",
        "projection.",
        "a" * 5000,
    ):
        more = Tensor("F64", (2,), np.ones(2).tobytes())
        yield _tensors("tensors", f"there is {extra[:20]!r} too", {extra: more})


def _tensor_variants(tensor: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """Yield replacements of a tensor: sort of change, description, new tensor."""
    array = tensor.array()
    yield from (
        ("shape", words, Tensor.of(new, tensor.dtype)) for words, new in _shapes(array)
    )
    for dtype in NUMPY:
        if dtype != tensor.dtype:
            yield "dtype", f"is of type {dtype}", Tensor.of(array, dtype)
    flags = (array != 0).astype("u1")
    yield "dtype", "is of type BOOL", Tensor("BOOL", array.shape, flags.tobytes())
    bits = np.ascontiguousarray(array.astype("<f4")).view("<u4") >> 16
    yield (
        "dtype",
        "is of type BF16",
        Tensor("BF16", array.shape, bits.astype("<u2").tobytes()),
    )
    yield (
        "dtype",
        "is of type F8_E4M3",
        Tensor("F8_E4M3", array.shape, bytes([56]) * array.size),
    )
    for words, new in _fillings(array) if array.size else ():
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
        ("is one number without dimensions", np.resize(array, 1).reshape(())),
        ("is one number", array.reshape(-1)[:1]),
        ("has one row less", array[:-1]),
        ("has its last row twice", np.concatenate([array, array[-1:]])),
        ("is there twice", np.concatenate([array, array])),
        (
            "is 2,000 times as long",
            np.concatenate([array] * 2000)
            if array.size < 50
            else np.concatenate([array] * 50),
        ),
    ]
    if array.ndim == 2:
        changes += [
            ("is transposed", array.T),
            ("has one column less", array[:, :-1]),
            ("has no columns", array[:, :0]),
            (
                "has its last column twice",
                np.concatenate([array, array[:, -1:]], axis=1),
            ),
        ]
    for words, new in changes:
        if new.shape != array.shape:
            yield words, new


def _fillings(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    def one(place: int, value: Any) -> np.ndarray:
        changed = array.copy()
        changed.reshape(-1)[place] = value
        return changed

    for words, number in {"zero": 0, "one": 1, "minus one": -1}.items():
        yield f"is {words}", np.full_like(array, number)
    yield "is negative", -array
    yield (
        "is shuffled",
        np.random.default_rng(0).permutation(array.reshape(-1)).reshape(array.shape),
    )
    if array.dtype.kind == "f":
        largest = float(np.finfo(array.dtype).max)
        odd = {
            "NaN": np.nan,
            "infinite": np.inf,
            "minus infinity": -np.inf,
            "huge": largest,
            "tiny": 5e-324,
        }
        for words, value in odd.items():
            yield f"is {words}", np.full_like(array, value)
            if array.size > 1:
                yield f"has one number that is {words}", one(array.size // 2, value)
        yield "is a thousand times as large", array * 1000
        yield (
            "is 1e200 times as large",
            array * (1e200 if array.dtype.itemsize == 8 else 1e30),
        )
        if array.ndim == 2:
            yield (
                "is not symmetric",
                one(array.shape[1] - 1, array[0, -1] + 1 + abs(array[0, -1])),
            )
        return
    bounds = np.iinfo(array.dtype)
    for number in (30_000_000, 2**31, 2**62, -(2**62), 1000):
        yield (
            f"is {number}",
            np.full_like(array, np.clip(number, bounds.min, bounds.max)),
        )
    if array.size:
        yield "has one negative number", one(0, -5)
        yield "has one zero", one(-1, 0)
        yield "has one number that is larger by one", one(0, array.reshape(-1)[0] + 1)


def head_changes(parts: Parts) -> Iterator[Change]:
    """Yield changes to the header before the description."""
    texts_and_numbers: tuple[Any, ...] = (
        0,
        -1,
        2,
        99,
        2**70,
        1.0,
        1.5,
        math.nan,
        True,
        False,
        "1",
        "",
    )
    for value in (*texts_and_numbers, [1], {"a": 1}, OVERFLOW):
        yield from (
            _head(f"{key} is {value!r}", **{key: value})
            for key in ("schema", "digest", SIGNED[1])
        )
    for kind in (
        "",
        "Learner",
        "SCLClassifier",
        "Tuner",
        "Training",
        "object",
        3,
        ["Learner"],
        {"a": 1},
        "\0",
    ):
        if kind != parts.kind:
            yield Change(
                "head",
                f"kind is {kind!r}",
                functools.partial(dataclasses.replace, kind=kind),
            )
    yield from (
        _head(f"{key} is missing", **{key: None})
        for key in ("schema", "digest", *SIGNED)
    )
    whole = dump(parts.meta)
    texts = {
        "empty": "",
        "null": "null",
        "a list": "[]",
        "a text": '"x"',
        "cut off": whole[:-5],
        "followed by more": whole + " {}",
        "nested too deep": DEEPEST,
        "nested too deep in a key": DEEPEST_KEYS,
        "a lone surrogate": '{"a": "\ud800"}',
    }
    if isinstance(parts.meta, dict):
        texts |= {
            f"{key} twice": f"{whole[:-1]}, {json.dumps(key)}: null}}"
            for key in parts.meta
        }
    for words, text in texts.items():
        yield _head(f"the description is {words}", meta_text=str(text))


def raw_changes(data: bytes) -> Iterator[Change]:
    """Yield changes to bytes that no checksum covers."""
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length]
    body = data[8 + length :]
    for position in range(0, len(data), max(1, len(data) // 150)):
        for bit in (0, 3, 7):
            words = f"bit {bit} of byte {position} is flipped"
            yield Change(
                "bits", words, functools.partial(_flipped, data, position, bit)
            )
    for size in sorted(
        {
            0,
            1,
            7,
            8,
            9,
            8 + length // 2,
            8 + length,
            8 + length + 1,
            len(data) // 2,
            len(data) - 1,
        }
    ):
        yield Change("raw", f"cut to {size} bytes", lambda _, s=size: data[:s])
    for extra in (b"\0", b"x" * 1000):
        yield Change("raw", f"{len(extra)} bytes more", lambda _, e=extra: data + e)
    for lie in (
        0,
        1,
        length - 1,
        length + 1,
        length + 8,
        len(data),
        2**31,
        2**40,
        2**63,
        2**64 - 1,
    ):
        yield Change(
            "raw",
            f"the header's length is {lie}",
            lambda _, v=lie: frame(header, body, v),
        )
    deep = DEEPEST.encode()
    deep_keys = DEEPEST_KEYS.encode()
    texts = {
        "nothing": b"",
        "a list": b"[]",
        "null": b"null",
        "no JSON": b"{" * 10,
        "not UTF-8": header.replace(b"evergrow", b"everg\xff\xfew", 1),
        "a list nested too deep": deep,
        "a dictionary nested too deep": deep_keys,
        "nested too deep beside the rest": header.rstrip()[:-1]
        + b',"x":'
        + deep
        + b"}",
        "twice the same key": header.rstrip()[:-1]
        + b',"__metadata__":{"evergrow":"{}"}}',
        "no metadata": header.replace(b"__metadata__", b"__metadata_", 1),
        "metadata that is a list": b'{"__metadata__": []}',
        "metadata that is null": b'{"__metadata__": null}',
        "metadata of numbers": b'{"__metadata__": {"evergrow": 3}}',
    }
    heads = {
        "a list": b"[]",
        "null": b"null",
        "nested too deep": deep,
        "of digits": b"1" * 5000,
    }
    texts |= {
        f"a head {words}": b'{"__metadata__": {"evergrow": "' + text + b'"}}'
        for words, text in heads.items()
    }
    texts |= _offset_lies(header)
    for words, text in texts.items():
        yield Change("raw", f"the header is {words}", lambda _, t=text: frame(t, body))


def _flipped(data: bytes, position: int, bit: int, _: Parts) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


def _offset_lies(header: bytes) -> dict[str, bytes]:
    """Return headers with wrong positions, sizes and types of tensors."""
    entries = json.loads(header)
    found = {}
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
            found[f"one where {name} {words}"] = json.dumps(
                {**entries, name: {**entry, **lie}}
            ).encode()
    return found


# -- many ------------------------------------------------------------------------------


def changes(data: bytes) -> dict[str, list[Change]]:
    """Return all single changes to a file, by sort."""
    parts = split(data)
    found: dict[str, list[Change]] = {}
    sources = (
        description_changes(parts),
        tensor_changes(parts),
        head_changes(parts),
        raw_changes(data),
    )
    for change in itertools.chain(*sources):
        found.setdefault(change.group, []).append(change)
    return found


def mutations(data: bytes, seed: int, n: int) -> Iterator[tuple[str, bytes]]:
    """Yield hostile variants of an intact file.

    Parameters
    ----------
    data : bytes
        An intact file.
    seed : int
        The same seed gives the same files.
    n : int
        Number of files. All sorts of single changes take turns, and none is repeated.
        Several changes at once are one more sort.

    Yields
    ------
    description : str
        Description of the changes.
    hostile : bytes
        The file.

    Examples
    --------
    >>> from tests.hostile.mutate import Parts, join, mutations
    >>> whole = join(Parts(1, "Toy", {"n": 3, "labels": ["a", "b"]}, {}))
    >>> first, second = mutations(whole, seed=0, n=3), mutations(whole, seed=0, n=3)
    >>> [words for words, _ in first] == [words for words, _ in second]
    True
    """
    rng = np.random.default_rng(seed)
    parts = split(data)
    waiting = changes(data)
    editing = [
        one
        for group, several in waiting.items()
        if group not in ("head", "raw", "bits")
        for one in several
    ]
    for group in sorted(waiting):
        waiting[group] = [
            waiting[group][i] for i in rng.permutation(len(waiting[group]))
        ]
    turns = [*sorted(waiting), "several"]
    made = 0
    while made < n:
        for group in [turns[i] for i in rng.permutation(len(turns))][: n - made]:
            left = waiting.get(group, [])
            if left:
                change = left.pop()
                yield f"{change.group}: {change.words}", change.applied(parts)
            else:
                yield _several(rng, editing, parts)
            made += 1


def _several(
    rng: np.random.Generator, editing: list[Change], parts: Parts
) -> tuple[str, bytes]:
    """Return a file with two or three consecutive changes."""
    words: list[str] = []
    for index in rng.integers(len(editing), size=int(rng.integers(2, 4))):
        change = editing[int(index)]
        try:
            changed = change.edit(parts)
            assert isinstance(changed, Parts)
            join(changed)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            continue  # an earlier change removed its target
        parts = changed
        words.append(change.words)
    return f"several: {'; '.join(words)}", join(parts)


def numbers_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield files in which one integer of the description is a harmful size."""
    parts = split(data)
    for path, value in walk(parts.meta):
        for size in (30_000_000, 2**40) if type(value) is int else ():
            change = _meta("size", path, f"is {size}", size)
            yield change.words, change.applied(parts)
