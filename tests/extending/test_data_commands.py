"""A layout, a file format and a command from outside the package, used by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.commands import evergrow
from tests.data.conftest import contents_of

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import COMMANDS, build_app, command, command_group
from evergrow.core.errors import BusyError
from evergrow.data import (
    DataOptions,
    Dataset,
    list_readers,
    load_data,
    read,
    register_reader,
)
from evergrow.data.items import Texts
from evergrow.data.readers import READERS
from evergrow.data.storage import Tree

# -- data ------------------------------------------------------------------------------


@pytest.fixture
def haiku(tmp_path: Path) -> Iterator[Path]:
    """A folder in a layout that evergrow does not know, and its reader."""

    @register_reader(
        "haiku", suffixes=(".haiku",), fits=lambda tree: tree.is_file("poems.haiku")
    )
    def read_haiku(tree: Tree, name: str, options: DataOptions) -> Dataset:
        texts = tree.text(name or "poems.haiku").splitlines()
        return Dataset.of(
            Texts(tuple(texts)), [text.split()[0] for text in texts], layout="haiku"
        )

    folder = tmp_path / "poems"
    folder.mkdir()
    (folder / "poems.haiku").write_text(
        "old pond\nold frog\nnew splash\nnew rain\n" * 3
    )
    yield folder
    READERS.remove("haiku")


def test_a_layout_is_recognised_named_listed_and_read(
    haiku: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "haiku" in list_readers()
    for options in ({}, {"layout": "haiku"}):
        data = load_data(haiku, **options)
        assert (data.layout, data.class_names) == ("haiku", ("new", "old"))
    result = evergrow("data", haiku, "--layout", "haiku", "--json")
    assert json.loads(result.stdout)["layout"] == "haiku"
    by_path = load_data(haiku / "poems.haiku")
    monkeypatch.setenv("EVERGROW_DATA", str(haiku))
    assert contents_of(load_data("poems")) == contents_of(by_path)


def test_a_reader_can_return_features(tmp_path: Path) -> None:
    @register_reader("digits", suffixes=(".digits",))
    def read_digits(tree: Tree, name: str, options: DataOptions) -> Dataset:
        rows = [line.split() for line in tree.text(name).splitlines()]
        features = np.array([row[1:] for row in rows], dtype=np.float64)
        return Dataset.of(features, [row[0] for row in rows])

    path = tmp_path / "two.digits"
    path.write_text("a 1 2\nb 3 4\na 5 6\n")
    try:
        source = read(path)
        shards = list(source.shards(2, 1 << 20))
        parts = [source.read(shard) for shard in shards]
        identity = source.identity()
        path.write_text("a 1 2\nb 3 4\na 5 7\n")
        assert read(path).identity() != identity
    finally:
        READERS.remove("digits")
    assert [part.features.tolist() for part in parts] == [[[1, 2], [3, 4]], [[5, 6]]]
    assert [part.labels.tolist() for part in parts] == [["a", "b"], ["a"]]


# -- commands --------------------------------------------------------------------------


build_app()  # fills the list


def test_an_added_command_has_help_json_and_exit_codes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))

    @command("greet", panel="Ask")
    def greet(who: str, as_json: Json = False) -> Answer:
        """Say hello to somebody."""
        if who == "nobody":
            raise BusyError("nobody must not be in use")
        return Answer({"who": who}, [f"hello {who}"])

    assert "Say hello to somebody." in evergrow("--help").stdout
    assert evergrow("greet", "Ada").stdout == "hello Ada\n"
    assert json.loads(evergrow("greet", "Ada", "--json").stdout)["who"] == "Ada"
    assert "error: Missing argument" in evergrow("greet").stderr
    assert evergrow("greet", "nobody").exit_code == 3
    with pytest.raises(ValueError, match="'greet' is registered twice"):
        command("greet")(lambda: Answer({}))


def test_a_command_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))
    monkeypatch.setattr("evergrow.cli.registry.GROUPS", {})
    command_group("zoo", "Look at animals.")

    @command("zoo feed")
    def feed(animal: str, as_json: Json = False) -> Answer:
        """Feed an animal."""
        return Answer({"animal": animal}, [f"fed the {animal}"])

    assert "Look at animals." in evergrow("--help").stdout
    assert "Feed an animal." in evergrow("zoo", "--help").stdout
    assert evergrow("zoo", "feed", "owl").stdout == "fed the owl\n"
    assert json.loads(evergrow("zoo", "feed", "--json").stdout)["command"] == "zoo feed"
