"""Tables of texts and images: CSV, TSV and JSON lines, with line numbers in every complaint."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.data.conftest import Tree

from evergrow.core.errors import FileFormatError, InputError, LabelError
from evergrow.data import load_data
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
        _jsonl(tmp_path / "mail.jsonl", [{"text": text, "label": label} for text, label in ROWS]),
        tmp_path / "mail.tsv",
        tmp_path / "semicolons.csv",
    ]
    paths[2].write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    paths[3].write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label in ROWS))
    sets = [load_data(path) for path in paths]
    assert len({data.fingerprint for data in sets}) == 1
    assert sets[0].kind == "text"
    assert sets[0].class_names == ("ham", "spam")
    assert isinstance(sets[0].test.items, Texts)
    assert sets[0].test_counts.tolist() == [2, 2]
    by_text = dict(ROWS)
    for text, code in zip(sets[0].train.items.texts, sets[0].y_train, strict=True):
        assert sets[0].class_names[code] == by_text[text]


def test_quotes_newlines_blank_lines_and_mark(tmp_path: Path) -> None:
    path = tmp_path / "mail.csv"
    rows = ['"one, two",a', '"first\nsecond",a', '"say ""hi""",b', "", "plain\u2028text,b"] + ["x,a", "y,b"] * 6
    path.write_text("\ufefftext,label\n" + "\n".join(rows), encoding="utf-8")
    data = load_data(path, test_size=0.01)
    texts = {*data.train.items.texts, *data.test.items.texts}
    assert {"one, two", "first\nsecond", 'say "hi"', "plain\u2028text"} <= texts


def test_long_texts_leave_the_module_limit_alone(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    data = load_data(_csv(tmp_path / "long.csv", [("x" * 200_000, "a"), *[("y", "a")] * 9]))
    assert max(map(len, data.train.items.texts + data.test.items.texts)) == 200_000
    assert csv.field_size_limit() == before


def test_split_column(tmp_path: Path) -> None:
    splits = ["train"] * 12 + ["Test"] * 4 + ["validation"] * 4
    rows = [(text, label, split) for (text, label), split in zip(ROWS, splits, strict=True)]
    data = load_data(_csv(tmp_path / "mail.csv", rows, "text,label,split"))
    assert data.test.items.texts == tuple(text for text, _ in ROWS[12:16])
    assert any("validation left out: 4" in note for note in data.notes)
    only = load_data(_csv(tmp_path / "mail.csv", [*rows[:12], *rows[16:]], "text,label,split"))
    assert len(only.y_test) == 4
    drawn = load_data(_csv(tmp_path / "mail.csv", [(*row, "train") for row in ROWS], "text,label,split"))
    assert (len(drawn.y_train), len(drawn.y_test)) == (16, 4)


def test_folder_with_two_tables(tmp_path: Path) -> None:
    folder = tmp_path / "mail"
    folder.mkdir()
    _csv(folder / "train.csv", ROWS[:14])
    _csv(folder / "test.csv", ROWS[14:])
    by_folder, by_file = load_data(folder), load_data(folder / "train.csv")
    assert by_folder.name == by_file.name == "mail"
    assert by_folder.fingerprint == by_file.fingerprint
    assert by_folder.test.items.texts == tuple(text for text, _ in ROWS[14:])


def test_column_names_are_free_and_integer_labels_sort_as_numbers(tmp_path: Path) -> None:
    records = [{"utterance": f"t{row}", "intent": (2, 10)[row % 2], "extra": [1]} for row in range(20)]
    path = _jsonl(tmp_path / "x.jsonl", records)
    assert load_data(path, text_column="utterance", label_column="intent").class_names == ("2", "10")


def test_tables_of_images(tree: Tree) -> None:
    root = tree({"all": 12})
    rows = [(f"all/{row:03d}.png", ("a", "b")[row % 2]) for row in range(12)]
    data = load_data(_csv(root / "index.csv", rows, "image,label"))
    assert data.train.items.root is not None
    assert data.kind == "image"
    assert data.train.items.raw(0).is_file()
    both = _csv(root / "both.csv", [(name, "caption", label) for name, label in rows], "photo,text,label")
    assert load_data(both).kind == "text"
    assert load_data(both, image_column="photo").kind == "image"


def test_flat_folders_with_tables_beside_them(tree: Tree) -> None:
    root = tree({"train": 12, "test": 4})
    _csv(root / "train.csv", [(f"train/{row:03d}.png", "ab"[row % 2]) for row in range(12)], "path,label")
    _csv(root / "test.csv", [(f"test/{row:03d}.png", "ab"[row % 2]) for row in range(4)], "path,label")
    assert load_data(root).train_counts.tolist() == [6, 6]


@pytest.mark.parametrize(
    ("body", "error", "match"),
    [
        ("words,label\nhello,a\n", FileFormatError, "column 'text', .* got 'words', 'label'"),
        ("text,kind\nhello,a\n", FileFormatError, "column 'label'"),
        ("text,label\n", FileFormatError, "at least one row"),
        ("", FileFormatError, "at least one row"),
        ("text,label\nhello,a\nworld\n", FileFormatError, "line 3 must have 2 cells, got 1"),
        ("text,label\nhello, you,a\n", FileFormatError, "line 2 must have 2 cells, got 3.*quotes"),
        ("text,label\nhello,a\n  ,b\n", InputError, "line 3: text must not be empty"),
        ("text,label\nhello,\n", InputError, "line 2: label must not be empty"),
        ('text,label\n"hello,a\n', FileFormatError, "line 2"),
        ("text,text,label\nhello,you,a\n", FileFormatError, "every column once"),
        ("text,label,split\nhello,a,tain\n", FileFormatError, "line 2: split must be.*'tain'"),
        ("text,label,split\nhello,a,test\n", FileFormatError, "split = train, got none"),
        ("text,label,split\nhello,a,train\nworld,b,test\n", LabelError, "'b' in the test set only"),
    ],
)
def test_bad_csv(body: str, error: type[Exception], match: str, tmp_path: Path) -> None:
    path = tmp_path / "mail.csv"
    path.write_text(body)
    with pytest.raises(error, match=match):
        load_data(path)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b'{"text": "a", "label": "x"}\n{"text": \n', "line 2 must be JSON"),
        (b"[1]\n", "line 1 must be a JSON object, got list"),
        (b'{"text": "a", "label": "x"}\n{"text": null, "label": "x"}\n', "line 2 must have 'text' as a string"),
        (b'{"text": "a", "label": 1.5}\n', "column 'label'"),
        (b'{"text": "caf\xe9", "label": "x"}\n', "UTF-8, but line 1"),
        (b"\n\n", "at least one row"),
    ],
)
def test_bad_json_lines(body: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "mail.jsonl"
    path.write_bytes(body)
    with pytest.raises(FileFormatError, match=match):
        load_data(path)
