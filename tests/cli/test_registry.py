"""The registry of commands: help, completion, exit codes, errors and imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.commands import evergrow
from typer.testing import CliRunner

from evergrow.cli.console import Answer
from evergrow.cli.options import Json
from evergrow.cli.registry import COMMANDS, build_app, command
from evergrow.core.errors import BusyError, CacheWarning, ParameterError
from evergrow.learner.modelfile import open_model

build_app()  # fills the list
NAMES = tuple(COMMANDS)
CHANGING = (
    "fit",
    "update",
    "forget",
    "unlearn",
    "rollback",
    "merge",
    "cache clear",
    "lab run",
    "lab mechanism",
)


@pytest.mark.parametrize("name", NAMES)
def test_help_lists_exit_codes(name: str) -> None:
    output = evergrow(*name.split(), "--help").stdout
    assert "--json" in output
    if name not in ("demo", "lab methods"):  # which can only succeed
        assert "Exit codes: 0" in output
    if name in CHANGING:
        assert " 3 " in output.partition("Exit codes")[2]  # busy


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_no_value_for_flags(name: str) -> None:
    assert "<bool>" not in evergrow(*name.split(), "--help").stdout


def test_shell_completion_offers_the_commands() -> None:
    environment = {
        "_EVERGROW_COMPLETE": "complete_bash",
        "COMP_WORDS": "evergrow ev",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_TESTING": "True",
    }
    result = CliRunner().invoke(build_app(), [], env=environment, prog_name="evergrow")
    assert result.stdout.split() == ["evaluate"]


def test_commands_import_nothing_heavy_before_they_run() -> None:
    code = (
        "import sys, typer; before = set(sys.modules); "
        "from evergrow.cli.registry import build_app; build_app(); "
        "heavy = {'torch', 'timm', 'torchvision', 'PIL', 'pandas', 'matplotlib', "
        "'numpy', 'sklearn'}; "
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_version_option():
    from evergrow.core.version import __version__

    assert evergrow("--version").stdout == f"{__version__}\n"


# -- exit codes and errors ----


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes ``evergrow fail`` raise an error."""
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))
    errors: list[BaseException] = []

    @command("fail")
    def fail(as_json: Json = False) -> Answer:
        """Fail."""
        raise errors[-1]

    return errors.append


@pytest.mark.parametrize(
    ("error", "code", "kind", "line"),
    [
        (
            ParameterError("n must be\n1, got 2"),
            2,
            "ParameterError",
            "error: n must be 1, got 2",
        ),
        (
            BusyError("m.evg must not be in use"),
            3,
            "BusyError",
            "error: m.evg must not be in use",
        ),
        (
            FileNotFoundError(2, "No such file", "a"),
            2,
            "FileNotFoundError",
            "error: [Errno 2] No such file: 'a'",
        ),
        (
            MemoryError(),
            2,
            "MemoryError",
            "error: This machine has too little memory for that.",
        ),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt", "error: Interrupted."),
        (
            ZeroDivisionError("by zero"),
            70,
            "ZeroDivisionError",
            "error: this is a bug in evergrow: ZeroDivisionError: by zero; "
            "set EVERGROW_DEBUG=1 to see the traceback",
        ),
        (RecursionError("too deep"), 70, "RecursionError", None),
    ],
)
def test_every_error_is_one_line_and_one_object(
    raising: Any, error: BaseException, code: int, kind: str, line: str | None
) -> None:
    raising(error)
    result = evergrow("fail")
    assert result.exit_code == code
    assert result.stdout == ""
    (said,) = result.stderr.splitlines()
    assert line is None or said == line
    told = evergrow("fail", "--json")
    assert told.exit_code == code
    values = json.loads(told.stdout)
    assert values["command"] == "fail"
    assert values["exit_code"] == code
    assert values["error"] == {"type": kind, "message": said.removeprefix("error: ")}
    assert told.stderr == result.stderr


def test_a_bug_shows_its_traceback_on_request(
    raising: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(ZeroDivisionError("by zero"))
    monkeypatch.setenv("EVERGROW_DEBUG", "1")
    result = evergrow("fail", "--json")
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert result.stderr.endswith(
        "error: this is a bug in evergrow: ZeroDivisionError: by zero\n"
    )
    assert json.loads(result.stdout)["exit_code"] == 70


@pytest.mark.parametrize(
    "arguments",
    [
        ("lab", "run", "absent.toml"),
        ("lab", "show", "absent"),
        ("lab", "mechanism", "absent.toml"),
        ("cache", "clear", "--json"),
        ("lab", "report", "absent", "-o", "out"),
        ("fit", "absent", "-m", "m.evg", "--units", "none"),
        ("fit", "--modle", "m.evg"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = evergrow(*arguments, "--json")
    assert result.exit_code == 2
    *notes, line = result.stderr.splitlines()
    assert all(note.startswith("left out: ") for note in notes)
    values = json.loads(result.stdout)
    assert values["exit_code"] == 2
    assert arguments[: len(values["command"].split())] == tuple(
        values["command"].split()
    )
    assert line == f"error: {values['error']['message']}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "meant"), [("fitt", "fit"), ("learn", "Did you mean 'fit' or 'update'?")]
)
def test_unknown_commands_get_a_suggestion(word: str, meant: str) -> None:
    result = evergrow(word, "--json")
    assert result.exit_code == 2
    assert meant in json.loads(result.stdout)["error"]["message"]


def test_warnings_are_printed_and_in_the_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evergrow.cli.registry.COMMANDS", dict(COMMANDS))

    @command("cautious")
    def cautious(as_json: Json = False) -> Answer:
        """Warn."""
        import warnings

        warnings.warn("no cache\nhere", CacheWarning, stacklevel=1)
        return Answer({"n": 1}, ["\x1b[31mred"], ["look\x1b[2J"])

    result = evergrow("cautious", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["warnings"] == ["no cache here", "look\\x1b[2J"]
    assert result.stderr == "warning: no cache here\nwarning: look\\x1b[2J\n"
    assert evergrow("cautious").stdout == "\\x1b[31mred\n"


# -- imports of commands that need no network ----


RUN = """
import json, sys
from evergrow.cli.main import app
outcome = []
for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments)
    except SystemExit as leaving:
        heavy = {"torch", "timm", "scipy", "sklearn"} & set(sys.modules)
        outcome.append([arguments, leaving.code, sorted(heavy)])
print(json.dumps(outcome))
"""

WRONG = [
    ["predict", "absent.evg", "image.png"],
    ["predict", "there.evg", "absent.png"],
    ["predict", "there.evg", "a text that is no file"],
    ["evaluate", "absent.evg", "one"],
    ["evaluate", "there.evg", "absent/data"],
    ["update", "there.evg", "absent.csv"],
    ["unlearn", "there.evg", "no-such-name"],
    ["inspect", "absent.evg"],
    ["merge", "there.evg", "absent.evg", "-o", "new.evg"],
    ["export", "absent.evg", "--onnx", "new.onnx"],
    ["rollback", "absent.evg"],
    ["fit", "absent/data", "-m", "new.evg"],
    ["fit", "no-such-name", "-m", "new.evg"],
    ["fit", "one", "-m", "absent/new.evg"],
    ["features", "absent/data", "-o", "new.npz"],
    ["data", "absent/data"],
    ["predict"],
    ["fit", "--no-such-option"],
    ["prdict", "there.evg"],
]


LIGHT = [
    ["log", "m.evg"],
    ["inspect", "m.evg"],
    ["rename", "m.evg", "ant", "wasp"],
    ["diff", "m.evg@1", "m.evg"],
    ["rollback", "m.evg"],
    ["redo", "m.evg"],
    ["merge-classes", "m.evg", "wasp", "bee", "--into", "insect"],
    ["--help"],
    *(
        [name, "--help"]
        for name in ("predict", "evaluate", "update", "rename", "serve")
    ),
]


def run_all(commands: list[list[str]], folder: Path) -> tuple[list[Any], list[str]]:
    """Run commands in one process.

    Return arguments, exit code and heavy modules of each, and the lines of errors.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr.splitlines()


def test_light_commands_import_no_torch(shell, model):
    outcome, _ = run_all(LIGHT, Path.cwd())
    assert outcome == [[arguments, 0, []] for arguments in LIGHT]
    assert open_model(model).classes_.tolist() == ["cat", "insect"]  # the file is whole
    assert open_model(model).state_.revision == 3


def test_wrong_paths_fail_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "there.evg").write_bytes(b"any file: nobody gets as far as reading it")
    outcome, errors = run_all(WRONG, tmp_path)
    assert outcome == [[arguments, 2, []] for arguments in WRONG]
    assert len(errors) == len(WRONG)
    assert all(line.startswith("error: ") for line in errors)
    assert not list(tmp_path.glob("new*"))


def test_a_text_in_place_of_a_file_suggests_the_option(shell, model):
    assert '--text "where is it"' in shell.error("predict", model, "where is it")
    assert "--text" not in shell.error("predict", model, "photo.jpg")
