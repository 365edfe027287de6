"""A command from outside the package: in the help, run by its name, and leaving as all others do."""

from __future__ import annotations

import json

import pytest
from tests.commands import evergrow

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import COMMANDS, build_app, command, command_group
from evergrow.core.errors import BusyError

build_app()  # fills the list


def test_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
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
