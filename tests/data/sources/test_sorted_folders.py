"""A folder that sort made, corrected by hand, is read without unchecked images."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.data.conftest import Tree
from tests.data.test_archives import pack

from evergrow.core.errors import DataWarning, InputError
from evergrow.data.inputs import read_parts
from evergrow.tools.sorting import SortedFile, write_table

pytestmark = pytest.mark.usefixtures("alone")


def write_sorted(tree: Tree) -> Path:
    """Return a sorted folder: a class with a slash in its name, and doubtful images."""
    root = tree({"cat": 3, "a_b": 2, "others": 4, "unsure": 5, "owl": 1})
    rows = [
        SortedFile(f"/in/{place}", answer, 0.9, place, "copy", "done", 1, note, "/in")
        for place, answer, note in (
            ("cat/000.png", "cat", ""),
            ("a_b/000.png", "a/b", ""),
            ("others/000.png", "", "unknown, most like cat"),
            ("unsure/000.png", "cat", "unsure"),
        )
    ]
    write_table(root / "sorted.csv", rows)
    return root


def test_classes_have_their_names_and_doubtful_images_are_left_out(tree: Tree) -> None:
    root = write_sorted(tree)
    with pytest.warns(DataWarning, match=r"'others' left out.* 4 images.*'unsure'"):
        data = read_parts(root)
    assert data.layout == "sorted"
    assert Counter(data.train.labels.tolist()) == {"cat": 3, "a/b": 2, "owl": 1}
    with pytest.warns(DataWarning, match="'unsure' left out"):
        packed = read_parts(pack(root, root.with_suffix(".zip")))
    assert packed.train.labels.tolist() == data.train.labels.tolist()


@pytest.mark.parametrize(
    "table", ["answer;destination;note\n1;2;3\n", "answer,destination,note\n1"]
)
def test_with_a_damaged_table_the_usual_folders_are_left_out(
    tree: Tree, table: str
) -> None:
    root = write_sorted(tree)
    (root / "sorted.csv").write_text(table)
    with pytest.warns(DataWarning, match="'unsure' left out"):
        data = read_parts(root)
    assert set(data.class_names) == {"cat", "a_b", "others", "owl"}


def test_without_a_class_the_message_says_what_to_do(tree: Tree) -> None:
    root = tree({"unknown": 2})
    (root / "sorted.csv").write_text("answer,destination,note\n")
    with pytest.raises(InputError, match="Move images out of 'unknown' into folders"):
        read_parts(root)


def test_another_table_of_this_name_does_not_make_a_sorted_folder(tree: Tree) -> None:
    root = tree({"cat": 2, "unsure": 2})
    (root / "sorted.csv").write_text("name,price\na,1\n")
    assert read_parts(root).layout == "class-folders"
