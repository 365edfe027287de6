import subprocess
import sys

import pytest
import typer
from tests.cli.conftest import NAMES
from typer.testing import CliRunner

from evergrow.cli.commands import register
from evergrow.learner.modelfile import open_model

COMMANDS = (
    "fit",
    "update",
    "predict",
    "evaluate",
    "inspect",
    "forget",
    "unlearn",
    "rollback",
    "spawn",
    "merge",
    "export",
)


def test_everything_is_told(shell, model, later):
    shell.run("update", model, later)
    values = shell.json("inspect", model)
    info = open_model(model).info(numerics=True)
    assert {name: values[name] for name in ("classes", "history", "n_units", "backbone", "revision")} == {
        name: info[name] for name in ("classes", "history", "n_units", "backbone", "revision")
    }
    assert values["numerics"]["effective_rank"] == pytest.approx(info["numerics"]["effective_rank"])
    assert values["bytes"] == model.stat().st_size


def test_lines_for_people(shell, model, later):
    shell.run("update", model, later)
    shell.run("forget", model, "eel")
    shell.run("rollback", model)
    shell.run("forget", model, "fox")
    output = shell.run("inspect", model).stdout
    assert "undid forget" in output
    assert "effective rank" in output
    assert "condition number" in output
    assert "none: samples are feature vectors" in output
    rows = [line.split() for line in output.splitlines()]
    assert ["ant", "20"] in rows
    assert [row[-4:] for row in rows if "-1:" in row] == [["forget", "20", "-1:", "fox"]]
    assert any("+3:" in row and "update" in row for row in rows)
    assert "condition" not in shell.run("inspect", model, "--no-numerics").stdout


def test_images_tell_backbone_and_preprocessing_without_loading_it(shell, image_model, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the backbone must not be loaded")

    monkeypatch.setattr("evergrow.backbones.create.create_backbone", refuse)
    output = shell.run("inspect", image_model).stdout
    assert "test_resnet for images, random weights" in output
    assert "preprocessing" in output


def test_long_lists_are_cut_unless_asked_for(shell, first, monkeypatch):
    monkeypatch.setattr("evergrow.cli.inspect._CLASSES", 2)
    shell.run("fit", first, "-m", "m.evg", "--units", 50)
    assert "(and 1 more: --full)" in shell.run("inspect", "m.evg").stdout
    output = shell.run("inspect", "m.evg", "--full").stdout
    assert "--full" not in output
    assert all(name in output for name in NAMES[:3])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_exit_codes(shell, command):
    output = shell.run(command, "--help").stdout
    assert f"evergrow {command}" in output
    assert "Exit codes: 0" in output
    assert "--json" in output


def test_all_commands_are_registered_once():
    app = typer.Typer()
    register(app)
    assert sorted(command.name for command in app.registered_commands) == sorted(COMMANDS)


def test_shell_completion_offers_the_commands():
    app = typer.Typer(name="evergrow")
    register(app)
    environment = {
        "_EVERGROW_COMPLETE": "complete_bash",
        "COMP_WORDS": "evergrow ev",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_TESTING": "True",
    }
    result = CliRunner().invoke(app, [], env=environment, prog_name="evergrow")
    assert result.stdout.split() == ["evaluate"]


def test_commands_import_nothing_heavy_before_they_run():
    code = (
        "import sys, typer; before = set(sys.modules); from evergrow.cli.commands import register; "
        "register(typer.Typer()); heavy = {'torch', 'timm', 'torchvision', 'PIL', 'pandas', 'matplotlib'}; "
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
