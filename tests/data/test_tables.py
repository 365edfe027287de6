"""Tables of texts and images: CSV, TSV, JSON lines; errors name the line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import PNG, Tree, contents_of
from tests.data.sources.samples import counts

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    InputError,
    LabelError,
)
from evergrow.data import load_data
from evergrow.data.inputs import read_parts
from evergrow.data.items import Texts

pytestmark = pytest.mark.usefixtures("alone")

ROWS = [(f"message {row}", ("ham", "spam")[row % 2]) for row in range(20)]


def _csv(path: Path, rows: list[tuple[str, ...]], header: str = "text,label") -> Path:
    body = "".join(",".join(row) + "\n" for row in rows)
    path.write_text(f"{header}\n{body}", encoding="utf-8")
    return path


def _jsonl(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_csv_tsv_and_json_lines_agree(tmp_path: Path) -> None:
    paths = [
        _csv(tmp_path / "mail.csv", ROWS),
        _jsonl(
            tmp_path / "mail.jsonl",
            [{"text": text, "label": label} for text, label in ROWS],
        ),
        tmp_path / "mail.tsv",
        tmp_path / "semicolons.csv",
    ]
    paths[2].write_text(
        "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS)
    )
    paths[3].write_text(
        "text;label\n" + "".join(f"{text};{label}\n" for text, label in ROWS)
    )
    sets = [load_data(path) for path in paths]
    assert len({contents_of(data) for data in sets}) == 1
    assert sets[0].kind == "text"
    assert sets[0].class_names == ("ham", "spam")
    assert isinstance(sets[0].test.items, Texts)
    assert counts(sets[0], "test") == [2, 2]
    by_text = dict(ROWS)
    for text, code in zip(sets[0].train.items.texts, sets[0].y_train, strict=True):
        assert sets[0].class_names[code] == by_text[text]


def test_quotes_newlines_blank_lines_and_byte_order_mark_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mail.csv"
    rows = [
        '"one, two",a',
        '"first\nsecond",a',
        '"say ""hi""",b',
        "",
        "plain\u2028text,b",
    ] + ["x,a", "y,b"] * 6
    path.write_text("\ufefftext,label\n" + "\n".join(rows), encoding="utf-8")
    data = load_data(path, test_size=0.01)
    texts = {*data.train.items.texts, *data.test.items.texts}
    assert {"one, two", "first\nsecond", 'say "hi"', "plain\u2028text"} <= texts


def test_long_texts_do_not_change_the_limit_of_the_csv_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limit(*arguments: int) -> int:
        assert not arguments, "the limit belongs to the whole process"
        return original()

    original = csv.field_size_limit
    before = original()
    monkeypatch.setattr(csv, "field_size_limit", limit)
    data = load_data(
        _csv(tmp_path / "long.csv", [("x" * 200_000, "a"), *[("y", "a")] * 9])
    )
    assert max(map(len, data.train.items.texts + data.test.items.texts)) == 200_000
    assert csv.field_size_limit() == before


def test_the_split_column_divides_rows_into_parts(tmp_path: Path) -> None:
    splits = ["train"] * 12 + ["Test"] * 4 + ["validation"] * 4
    rows = [
        (text, label, split) for (text, label), split in zip(ROWS, splits, strict=True)
    ]
    data = load_data(_csv(tmp_path / "mail.csv", rows, "text,label,split"))
    assert data.test.items.texts == tuple(text for text, _ in ROWS[12:16])
    assert any("validation left out: 4" in note for note in data.notes)
    only = load_data(
        _csv(tmp_path / "mail.csv", [*rows[:12], *rows[16:]], "text,label,split")
    )
    assert len(only.y_test) == 4
    drawn = load_data(
        _csv(
            tmp_path / "mail.csv", [(*row, "train") for row in ROWS], "text,label,split"
        )
    )
    assert (len(drawn.y_train), len(drawn.y_test)) == (16, 4)


def test_a_folder_with_two_tables_has_two_parts(tmp_path: Path) -> None:
    folder = tmp_path / "mail"
    folder.mkdir()
    _csv(folder / "train.csv", ROWS[:14])
    _csv(folder / "test.csv", ROWS[14:])
    by_folder = load_data(folder)
    by_file = load_data(folder / "train.csv")
    assert by_folder.name == by_file.name == "mail"
    assert contents_of(by_folder) == contents_of(by_file)
    assert by_folder.test.items.texts == tuple(text for text, _ in ROWS[14:])


def test_columns_can_be_named_and_integer_labels_sort_by_value(
    tmp_path: Path,
) -> None:
    records = [
        {"utterance": f"t{row}", "intent": (2, 10)[row % 2], "extra": [1]}
        for row in range(20)
    ]
    path = _jsonl(tmp_path / "x.jsonl", records)
    assert load_data(
        path, text_column="utterance", label_column="intent"
    ).class_names == ("2", "10")


def test_tables_of_images_are_read(tree: Tree) -> None:
    root = tree({"all": 12})
    rows = [(f"all/{row:03d}.png", ("a", "b")[row % 2]) for row in range(12)]
    data = load_data(_csv(root / "index.csv", rows, "image,label"))
    assert data.train.items.root is not None
    assert data.kind == "image"
    assert data.train.items.raw(0).is_file()
    both = _csv(
        root / "both.csv",
        [(name, "caption", label) for name, label in rows],
        "photo,text,label",
    )
    assert load_data(both).kind == "text"
    assert load_data(both, image_column="photo").kind == "image"


NAMED = [
    (f"n{code + 1:02d}/{row:03d}.png", str(code)) for code in (0, 1) for row in range(5)
]


def test_images_named_from_elsewhere_are_found(tree: Tree) -> None:
    root = tree({"data/imagenet/n01": 7, "data/imagenet/n02": 7})
    (root / "splits").mkdir()
    rows = [(f"data/imagenet/{name}", label) for name, label in NAMED]
    table = _csv(root / "splits" / "imagenet_train.csv", rows, "path,label")
    assert (
        load_data(table, test_size=0).train.items.raw(0)
        == root / "data/imagenet/n01/000.png"
    )
    assert (
        load_data(table, test_size=0, root=root / "data" / "imagenet").train.items.name(
            0
        )
        == "n01/000.png"
    )


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        ([*NAMED, NAMED[0]], InputError, "'n01/000.png' twice in train.csv"),
        (
            [*NAMED, ("./n01//000.png", "1")],
            InputError,
            "'n01/000.png' twice in train.csv",
        ),
        (
            [("n01/006.png", "0")],
            InputError,
            "'n01/006.png' twice in train.csv and test.csv",
        ),
        (
            [("n01/gone.png", "0"), *NAMED],
            DatasetNotFoundError,
            "1 of 11 images of .* are missing: 'n01/gone.png'",
        ),
        (
            [("x/gone.png", "0"), ("x/lost.png", "1")],
            DatasetNotFoundError,
            "2 of 2 images .* are missing.*as root",
        ),
    ],
)
def test_missing_and_repeated_images_are_refused(
    rows: list[tuple[str, ...]], error: type[Exception], match: str, tree: Tree
) -> None:
    root = tree({"n01": 7, "n02": 7})
    _csv(root / "train.csv", rows, "path,label")
    _csv(root / "test.csv", [("n01/006.png", "0"), ("n02/006.png", "1")], "path,label")
    with pytest.raises(error, match=match):
        load_data(root)


def test_flat_folders_with_tables_are_read(tree: Tree) -> None:
    root = tree({"train": 12, "test": 4})
    _csv(
        root / "train.csv",
        [(f"train/{row:03d}.png", "ab"[row % 2]) for row in range(12)],
        "path,label",
    )
    _csv(
        root / "test.csv",
        [(f"test/{row:03d}.png", "ab"[row % 2]) for row in range(4)],
        "path,label",
    )
    assert counts(load_data(root), "train") == [6, 6]


@pytest.mark.parametrize(
    ("body", "error", "match"),
    [
        (
            "words,label\nhello,a\n",
            FileFormatError,
            "column 'text', .* besides the labels in 'label', got 'words'",
        ),
        ("text,kind\nhello,a\n", FileFormatError, "column 'label'"),
        ("text,label\n", FileFormatError, "at least one row"),
        ("", FileFormatError, "at least one row"),
        (
            "text,label\nhello,a\nworld\n",
            FileFormatError,
            "line 3 must have 2 cells, got 1",
        ),
        (
            "text,label\nhello, you,a\n",
            FileFormatError,
            "line 2 must have 2 cells, got 3.*quotes",
        ),
        ("text,label\nhello,a\n  ,b\n", InputError, "line 3: text must not be empty"),
        ("text,label\nhello,\n", InputError, "line 2: label must not be empty"),
        ('text,label\n"hello,a\n', FileFormatError, "line 2"),
        ("text,text,label\nhello,you,a\n", FileFormatError, "every column once"),
        (
            "text,label,split\nhello,a,tain\n",
            FileFormatError,
            "line 2: split must be.*'tain'",
        ),
        (
            "text,label,split\nhello,a,test\n",
            FileFormatError,
            "split = train, got none",
        ),
        (
            "text,label,split\nhello,a,train\nworld,b,test\n",
            LabelError,
            "'b' in the test set only",
        ),
    ],
)
def test_malformed_csv_is_refused(
    body: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    path = tmp_path / "mail.csv"
    path.write_text(body)
    with pytest.raises(error, match=match):
        load_data(path)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b'{"text": "a", "label": "x"}\n{"text": \n', "line 2 must be JSON"),
        (b"[1]\n", "line 1 must be a JSON object, got list"),
        (
            b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n",
            "line 1 must be JSON: Exceeds the limit",
        ),
        (
            b'{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n',
            "line 2 must have 'text' as a string",
        ),
        (b'{"text": "a", "label": 1.5}\n', "column 'label'"),
        (b'{"text": "caf\xe9", "label": "x"}\n', "UTF-8, but line 1"),
        ("{}".encode("utf-16"), "line 1 is not; it looks like UTF-16"),
        (b"\n\n", "at least one row"),
    ],
)
def test_malformed_json_lines_are_refused(
    body: bytes, match: str, tmp_path: Path
) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_bytes(body)
    with pytest.raises(FileFormatError, match=match):
        load_data(path)


# -- exports of Label Studio -----------------------------------------------------------


def task(
    reference: str, choices: list[str], kind: str = "image", **more: Any
) -> dict[str, Any]:
    result = [
        {"type": "choices", "value": {"choices": choices}},
        {"type": "rectanglelabels", "value": {"x": 1}},
    ]
    return {
        "id": 1,
        "data": {kind: reference},
        "annotations": [{"result": result, **more}],
    }


def write_export(path: Path, content: Any, *images: str) -> Path:
    for name in images:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).write_bytes(PNG)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_exported_images_without_exactly_one_class_are_counted(tmp_path: Path) -> None:
    tasks = [
        task("/data/upload/3/ab-1.png", ["cat"]),
        task("/data/local-files/?d=birds/2.png", ["dog"]),
        task("3.png", ["cat", "dog"]),
        task("4.png", []),
        task("4.png", ["cat"], was_cancelled=True),
        task("s3://bucket/5.png", ["cat"]),
    ]
    path = write_export(
        tmp_path / "export.json",
        tasks,
        "data/upload/3/ab-1.png",
        "birds/2.png",
        "3.png",
        "4.png",
    )
    words = "images on another machine: 1, of several classes: 1, without a class: 2"
    with pytest.warns(DataWarning, match=words):
        data = read_parts(path)
    assert (data.layout, data.train.labels.tolist()) == ("label-studio", ["cat", "dog"])


def test_exported_texts_and_json_min_are_read(tmp_path: Path) -> None:
    data = read_parts(
        write_export(
            tmp_path / "x.json",
            [task("hello", ["ham"], "text"), task("buy", ["spam"], "text")],
        )
    )
    assert (data.train.items.texts, data.train.labels.tolist()) == (
        ("hello", "buy"),
        ["ham", "spam"],
    )
    small = [
        {"id": 1, "text": "hello", "choice": "ham"},
        {"id": 2, "text": "buy", "choice": {"choices": ["spam"]}},
    ]
    assert read_parts(
        write_export(tmp_path / "y.json", small)
    ).train.labels.tolist() == ["ham", "spam"]


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ({"images": []}, FileFormatError, "not an export of Label Studio"),
        ([1, 2], FileFormatError, "not an export of Label Studio"),
        ([], FileFormatError, "no sample of one class"),
        (
            [task("a.png", [])],
            FileFormatError,
            r"no sample of one class \(without a class: 1\)",
        ),
        ([{"id": 1}], FileFormatError, "task 1 has neither"),
        (
            [task("a.png", ["x"]), task("hello", ["y"], "text")],
            FileFormatError,
            "both kinds",
        ),
        ([task("a.png", ["x"]), task("a.png", ["y"])], InputError, "named once"),
        (
            [task("../../secret.png", ["x"])],
            DatasetNotFoundError,
            "1 of 1 images of .* are missing",
        ),
    ],
)
def test_malformed_exports_are_refused(
    content: Any, error: type[Exception], match: str, tmp_path: Path
) -> None:
    write_export(tmp_path / "x.json", content, "secret.png", "deep/down/set/a.png")
    with pytest.raises(error, match=match):
        read_parts(write_export(tmp_path / "deep/down/set/x.json", content))


@pytest.mark.parametrize(
    ("raw", "match"), [(b"[" * 200_000, "not JSON"), (b"\xff\xfe[]", "UTF-8")]
)
def test_damaged_exports_are_refused(raw: bytes, match: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(raw)
    with pytest.raises(FileFormatError, match=match):
        read_parts(tmp_path / "x.json")
