import json

from typer.testing import CliRunner

from evergrow import __version__
from evergrow.cli.main import app

runner = CliRunner()


def test_demo_as_json():
    result = runner.invoke(app, ["demo", "--units", "200", "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert figures["accuracy"] > 0.95
    assert figures["predicted_after_forgetting"] == 0
    assert figures["unknown_auroc"] > 0.85
    assert figures["largest_difference_to_joint_training"] < 1e-6
    assert len(figures["tasks"]) == 5


def test_demo_as_tables():
    result = runner.invoke(app, ["demo", "--units", "100"])
    assert result.exit_code == 0
    assert "all seen" in result.output
    assert "points" in result.output


def test_version():
    assert runner.invoke(app, ["version"]).output.strip() == __version__
