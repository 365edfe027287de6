"""``evergrow data``: what it prints and how it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.commands import evergrow


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERGROW_DATA", raising=False)


def _run(*arguments: str) -> Any:
    return evergrow("data", *arguments)


def _images(root: Path, test: int = 2) -> Path:
    for part, count in (("train", 6), ("test", test)):
        for name in ("cat", "dög"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").write_bytes(b"x")
    (root / "train/cat/notes.txt").write_text("x")
    return root


def test_a_good_folder(tmp_path: Path) -> None:
    result = _run(str(_images(tmp_path / "pets")))
    assert result.exit_code == 0
    for part in ("pets", "image", "train-test", "12 training, 4 test", "dög (6 + 2)", "not images (.txt): 1"):
        assert part in result.output


def test_json_is_all_of_the_output(tmp_path: Path) -> None:
    result = _run(str(_images(tmp_path / "pets")), "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["n_classes"], report["n_train"], report["n_test"]) == (2, 12, 4)
    assert report["largest"][0] == ["dög", 6, 2]


def test_what_cannot_be_loaded_leaves_with_two(tmp_path: Path) -> None:
    assert _run("no/such/folder").exit_code == 2
    root = _images(tmp_path / "pets")
    (root / "train/empty").mkdir()
    assert "train/empty" in _run(str(root)).output
    assert _run(str(root)).exit_code == 2
    assert _run(str(root), "--allow-empty").exit_code == 0
    assert _run(str(root), "--layout", "nonsense").exit_code == 2


def test_features(tmp_path: Path) -> None:
    y = np.repeat([0, 1], 6)
    np.savez(tmp_path / "toy.npz", X_train=np.eye(12), y_train=y, X_test=np.eye(12), y_test=y)
    result = _run("toy.npz")
    assert result.exit_code == 0
    assert "features, 12 wide" in result.output
