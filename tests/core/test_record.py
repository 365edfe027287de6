"""Records survive a round trip, and all other content is rejected."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeAliasType

from evergrow.core.archive import Archive, parse_json, read_archive
from evergrow.core.errors import FileFormatError, NewerSchemaError, ParameterError
from evergrow.core.record import (
    NOTHING,
    UNWRITTEN,
    Between,
    Extra,
    Spec,
    from_archive,
    from_document,
    read_record,
    record,
    require,
    to_archive,
    to_document,
    to_values,
    write_document,
    write_record,
)


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@record("tests/square")
@dataclass(frozen=True)
class Square(Shape):
    side: Annotated[float, Between(above=0.0)]

    def area(self) -> float:
        return self.side**2


@record("tests/frame")
@dataclass(frozen=True)
class Frame(Shape):
    inner: Shape
    edge: float = 1.0

    def area(self) -> float:
        return self.inner.area() + self.edge


@dataclass(frozen=True)
class Owner:
    name: str
    age: Annotated[int, Between(0, 150)] = 30
    extra: Extra = NOTHING

    def __post_init__(self) -> None:
        if self.name == "nobody":
            raise ParameterError("somebody must own it")


@record("tests/everything")
@dataclass(frozen=True, eq=False)
class Everything:
    flag: bool
    count: int
    number: float
    text: str
    choice: Literal["a", "b", 3]
    owner: Owner
    owners: tuple[Owner, ...]
    table: dict[str, list[float]]
    words: frozenset[str]
    pair: tuple[int, str]
    mixed: float | Literal["auto"]
    anything: Any
    shape: Shape
    shapes: tuple[Shape, ...]
    by_name: dict[str, Square]
    gram: Annotated[Tensor, Spec(("L", "L"))]
    cross: Annotated[Tensor, Spec(("L", None), largest=100.0)]
    rows: Annotated[NDArray[np.float32], Spec((None, 2), dtype="float32")]
    factors: tuple[Annotated[Tensor, Spec((None, "L"))], ...] = ()
    named: dict[str, Annotated[Tensor, Spec(dtype=None)]] = field(default_factory=dict)
    raw: Archive | None = None
    bias: Annotated[Tensor, Spec(("L",))] | None = None
    seed: int | None = None
    cache: list[int] = field(default_factory=list, metadata=UNWRITTEN)
    extra: Extra = NOTHING

    def check(self) -> None:
        require(self.count != 13, "it counts thirteen")


@pytest.fixture
def item() -> Everything:
    return Everything(
        flag=True,
        count=3,
        number=0.1,
        text="ä",
        choice=3,
        owner=Owner("ann"),
        owners=(Owner("bob", 5),),
        table={"x": [1.0, 2.5]},
        words=frozenset({"b", "a"}),
        pair=(1, "one"),
        mixed="auto",
        anything={"deep": [1, None]},
        shape=Frame(Square(2.0)),
        shapes=(Square(1.0), Frame(Frame(Square(3.0)))),
        by_name={"first": Square(5.0)},
        gram=torch.eye(3, dtype=torch.float64),
        cross=torch.ones(3, 2, dtype=torch.float64),
        rows=np.arange(4, dtype=np.float32).reshape(2, 2),
        factors=(
            torch.zeros(1, 3, dtype=torch.float64),
            torch.zeros(0, 3, dtype=torch.float64),
        ),
        named={"block.1": torch.tensor([1, 2])},
        raw=to_archive(Square(7.0)),
        cache=[1],
    )


def test_record_round_trip_is_exact_and_reproducible(
    tmp_path: Path, item: Everything
) -> None:
    digest = write_record(tmp_path / "a.evg", item)
    back = read_record(Everything, tmp_path / "a.evg")
    for name in set(vars(item)) - {
        "cache",
        "raw",
        "gram",
        "cross",
        "factors",
        "named",
        "rows",
    }:
        assert getattr(back, name) == getattr(item, name)
    assert back.cache == []
    assert back.raw is not None
    assert from_archive(Square, back.raw) == Square(7.0)
    assert torch.equal(back.gram, item.gram)
    assert [tuple(factor.shape) for factor in back.factors] == [(1, 3), (0, 3)]
    assert torch.equal(back.named["block.1"], item.named["block.1"])
    assert np.array_equal(back.rows, item.rows)
    assert write_record(tmp_path / "b.evg", back) == digest
    assert (tmp_path / "a.evg").read_bytes() == (tmp_path / "b.evg").read_bytes()


IMPOSSIBLE: dict[str, list[Any]] = {
    "flag": [1],
    "count": [-1, True, 1.0, 10**400, 13],
    "number": ["1", 10**400],
    "text": [None],
    "choice": ["c", 3.0, [3]],
    "owner": [[], {"name": "ann", "age": 200}, {}, {"name": "nobody"}],
    "owners": [{}, [1]],
    "table": [{"x": [True]}],
    "words": [[["a"]]],
    "pair": [[1]],
    "mixed": ["other"],
    "seed": ["x"],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key in IMPOSSIBLE for value in IMPOSSIBLE[key]]
)
def test_from_values_rejects_invalid_values(
    item: Everything, key: str, value: object
) -> None:
    archive = to_archive(item)
    archive.meta[key] = value
    with pytest.raises(FileFormatError, match=r"model\.evg"):
        from_archive(Everything, archive, name="model.evg")


@pytest.mark.parametrize("key", ["flag", "owner", "gram", "rows", "shape"])
def test_missing_models_and_servers_are_reported(item: Everything, key: str) -> None:
    archive = to_archive(item)
    for kept in (archive.meta, archive.tensors, archive.parts):
        kept.pop(key, None)  # type: ignore[attr-defined]
    with pytest.raises(FileFormatError, match=f"lacks '{key}'"):
        from_archive(Everything, archive)


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("gram", torch.eye(3)),
        ("gram", torch.ones(3, 2, dtype=torch.float64)),
        ("gram", torch.full((3, 3), torch.nan, dtype=torch.float64)),
        ("cross", torch.ones(2, 2, dtype=torch.float64)),
        ("cross", torch.full((3, 2), 101.0, dtype=torch.float64)),
        ("factors.1", torch.zeros(1, 4, dtype=torch.float64)),
        ("factors.7", torch.zeros(1, 3, dtype=torch.float64)),
        ("bias", torch.zeros(4, dtype=torch.float64)),
        ("rows", torch.zeros(2, 2, 2)),
    ],
)
def test_from_archive_rejects_tensors_that_violate_their_spec(
    item: Everything, key: str, tensor: Tensor
) -> None:
    archive = to_archive(item)
    archive.tensors[key] = tensor
    with pytest.raises(FileFormatError, match=key.partition(".")[0]):
        from_archive(Everything, archive)


def test_unknown_fields_survive_a_round_trip(item: Everything) -> None:
    archive = to_archive(item)
    archive.meta["later"] = {"x": 1}
    archive.meta["owner"]["later"] = 2
    archive.tensors["later"] = torch.zeros(1)
    archive.parts["later"] = Archive("tests/of-a-later-version", {}, version=9)
    again = to_archive(from_archive(Everything, archive))
    assert again.meta["later"] == {"x": 1}
    assert again.meta["owner"]["later"] == 2
    assert torch.equal(again.tensors["later"], torch.zeros(1))
    assert again.parts["later"].version == 9


def test_from_archive_rejects_other_kinds_and_newer_versions(
    item: Everything,
) -> None:
    archive = to_archive(item)
    with pytest.raises(
        FileFormatError,
        match="holds 'tests/everything', not 'tests/frame' or 'tests/square'",
    ):
        from_archive(Shape, archive)  # type: ignore[type-abstract]
    with pytest.raises(
        FileFormatError,
        match="'tests/squere', which is unknown here; nearest: 'tests/square'",
    ):
        from_archive(Square, Archive("tests/squere", {}))
    with pytest.raises(
        NewerSchemaError, match=r"version 2 of 'tests/square'.*pip install -U evergrow"
    ):
        from_archive(Square, replace(to_archive(Square(1.0)), version=2))
    archive.parts["by_name.first"] = to_archive(Frame(Square(1.0)))
    with pytest.raises(
        FileFormatError, match=r"by_name\.first holds 'tests/frame', not 'tests/square'"
    ):
        from_archive(Everything, archive)


def test_files_of_older_versions_are_rejected_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schema in (1, 2):
        monkeypatch.setattr("evergrow.core.archive.SCHEMA_VERSION", schema)
        write_record(tmp_path / "old.evg", Square(1.0))
        monkeypatch.undo()
        with pytest.raises(
            FileFormatError, match=rf"was written by evergrow 0\.{schema}; fit it again"
        ):
            read_archive(tmp_path / "old.evg")


@record("tests/note")
@dataclass(frozen=True)
class Note:
    text: str
    tags: tuple[str, ...] = ()
    extra: Extra = NOTHING


def test_is_numpy_accepts_the_alias_of_numpy_2_5() -> None:
    T = TypeVar("T", bound=np.generic)
    alias = TypeAliasType(
        "alias", np.ndarray[Any, np.dtype[T]], type_params=(T,)
    )  # NDArray from 2.5 on
    entry = ("rows", Annotated[alias[np.float32], Spec(("n",), "float32")])
    Rows = record("docs/rows")(make_dataclass("Rows", [entry], frozen=True))
    archive = to_archive(Rows(np.arange(3, dtype=np.float32)))
    assert from_archive(Rows, archive).rows.tolist() == [0.0, 1.0, 2.0]


def test_documents_keep_unknown_fields(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    write_document(path, Note("hello"))
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "later": 1}))
    note = from_document(Note, json.loads(path.read_text()), path.name)
    assert note.text == "hello"
    assert to_document(note)["later"] == 1
    assert to_values(Note("x", ("a",))) == {"text": "x", "tags": ["a"]}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"version": True},
        {"schema": "other"},
        {"schema": []},
        {"text": 3},
    ],
)
def test_from_document_rejects_invalid_headers(change: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match=r"note\.json"):
        from_document(Note, {**to_document(Note("x")), **change}, "note.json")
    with pytest.raises(FileFormatError, match="should be an object"):
        from_document(Note, [change], "note.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        "NaN",
        "[Infinity]",
        "1e999",
        "9" * 5000,
        b"\xff\xfe",
        "\ud800x",
    ],
)
def test_parse_json_rejects_invalid_json(text: str | bytes) -> None:
    with pytest.raises(FileFormatError, match=r"note\.json is not valid JSON"):
        parse_json(text, "note.json")
