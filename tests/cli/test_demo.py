"""The demonstration, and its images to play with."""

from __future__ import annotations

import json
from pathlib import Path

from tests.commands import evergrow

from evergrow.data import load_data


def test_demo_as_json_and_for_people() -> None:
    result = evergrow("demo", "--units", "200", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert figures["accuracy"] > 0.85
    assert figures["predicted_after_forgetting"] == 0
    assert figures["unknown_auroc"] > 0.75
    assert figures["largest_difference_to_joint_training"] < 1e-6
    assert len(figures["tasks"]) == 5
    output = evergrow("demo", "--units", "100").output
    assert "all seen" in output
    assert "points" in output


def test_it_writes_images_that_the_other_commands_take(tmp_path: Path) -> None:
    result = evergrow("demo", "--pictures", str(tmp_path / "digits"), "--json")
    assert json.loads(result.output)["first"] == 60
    data = load_data(tmp_path / "digits" / "first")
    assert data.class_names == tuple(f"digit {n}" for n in range(5))
    assert len(list((tmp_path / "digits" / "test").glob("*/*.png"))) == 32
    again = evergrow("demo", "--pictures", str(tmp_path / "digits"))
    assert again.exit_code == 2
    assert "new or empty folder" in again.stderr
