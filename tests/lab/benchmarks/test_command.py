"""``evergrow lab data``: what it prints and how it leaves."""

from __future__ import annotations

from pathlib import Path

from tests.commands import evergrow
from tests.data.conftest import PNG


def test_differences_leave_with_one(alone: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        folder = alone / "data" / "imagenet-r" / part / "cat"
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / f"{number}.png").write_bytes(PNG)
    for arguments in (("inr",), ("inr", "--json"), ("data/imagenet-r",), ("inr", "--root", "data")):
        result = evergrow("lab", "data", *arguments)
        assert result.exit_code == 1
        assert "expected 24000" in result.output
    result = evergrow("lab", "data", "inr", "--benchmark", "cub")
    assert result.exit_code == 1
    assert "CUB-200: training samples: 6, expected 9430" in result.output


def test_what_cannot_be_loaded_leaves_with_two(alone: Path) -> None:
    result = evergrow("lab", "data", "omnibenchmark")
    assert result.exit_code == 2
    assert "OmniBenchmark must be on disk" in result.output
