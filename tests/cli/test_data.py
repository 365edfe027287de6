"""``evergrow data``: what it prints and how it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Shell


@pytest.fixture
def pets(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EVERGROW_DATA", raising=False)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dög"):
            folder = Path("pets", part, name)
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").write_bytes(b"x")
    Path("pets/train/cat/notes.txt").write_text("x")
    return Path("pets")


def test_a_good_folder(shell: Shell, pets: Path) -> None:
    said = shell.run("data", pets).stdout
    for part in ("pets", "image", "train-test", "12 training, 4 test", "dög (6 + 2)", "not images (.txt): 1"):
        assert part in said
    report = shell.json("data", pets)
    assert (report["n_classes"], report["n_train"], report["n_test"]) == (2, 12, 4)
    assert report["largest"][0] == ["dög", 6, 2]


def test_what_cannot_be_loaded_leaves_with_two(shell: Shell, pets: Path) -> None:
    shell.error("data", "no/such/folder")
    (pets / "train/empty").mkdir()
    assert "train/empty" in shell.run("data", pets).stdout
    shell.error("data", pets, "--layout", "nonsense")


def test_features(shell: Shell, first: Path) -> None:
    assert "features, 16 wide" in shell.run("data", first).stdout
