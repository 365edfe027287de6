"""``evergrow cache``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.commands import evergrow
from tests.features.extraction_toys import LetterCounter, Toy, write_images

from evergrow.data.items import Texts
from evergrow.features import encode
from evergrow.features.cache import CacheEntry, CacheInfo, FeatureCache
from evergrow.features.encoding import Chunk


def cache(*args: object, stdin: str | None = None):
    return evergrow("cache", *args, stdin=stdin)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default cache with entries of images, texts and an unfinished one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EVERGROW_CACHE", str(folder))
    encode(Toy(), write_images(tmp_path / "images", 5))
    encode(LetterCounter(), Texts(tuple("abcde")))
    unfinished = CacheEntry(folder / ("f" * 32))
    unfinished.begin(CacheInfo("image", 40, backbone="half"))
    unfinished.store(
        range(16),
        Chunk(("final",), "float32", (), {"final": np.ones((16, 6), np.float32)}),
    )
    os.utime(unfinished.folder, (0, 0))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(info.backbone for info in FeatureCache(folder).list())


def test_list_prints_every_entry(root: Path) -> None:
    result = cache("list")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["key", "what", "items", "size", "age", "backbone"]
    (toy,) = [line for line in lines if " toy" in line]
    assert "images from even/000.png" in toy
    (half,) = [line for line in lines if " half" in line]
    assert half.startswith("ffffffffffff ")
    assert lines[-1].startswith("3 entries, ")
    assert lines[-1].endswith(str(root))
    found = json.loads(cache("list", "--json").stdout)
    assert found["folder"] == str(root)
    assert {entry["backbone"]: entry["n_items"] for entry in found["entries"]} == {
        "toy": 5,
        "letters": 5,
        "half": 40,
    }


def test_an_empty_cache_is_listed_and_cleared(tmp_path: Path) -> None:
    result = cache("list", "--folder", tmp_path / "nowhere")
    assert result.stdout == f"0 entries, 0 bytes in {tmp_path / 'nowhere'}\n"
    assert (
        cache("clear", "--folder", tmp_path / "nowhere").stdout
        == "removed 0, 0 bytes\n"
    )
    assert not (tmp_path / "nowhere").exists()


def test_clear_asks_for_confirmation(root: Path) -> None:
    refused = cache("clear", stdin="n\n")
    assert refused.exit_code == 1
    assert "letters" in refused.stdout
    assert names(root) == ["half", "letters", "toy"]
    assert cache("clear", stdin="").exit_code == 1  # nobody there to ask
    assert names(root) == ["half", "letters", "toy"]
    agreed = cache("clear", stdin="y\n")
    assert agreed.exit_code == 0
    assert names(root) == []


def test_clear_older_than_keeps_newer_entries(root: Path) -> None:
    outcome = json.loads(cache("clear", "--older-than", 30, "--yes", "--json").stdout)
    assert outcome["removed"] == ["f" * 32]
    assert outcome["in_use"] == []
    assert names(root) == ["letters", "toy"]


def test_clear_keeps_entries_in_use(root: Path) -> None:
    busy = next(
        info.key for info in FeatureCache(root).list() if info.backbone == "toy"
    )
    with FeatureCache(root).entry(busy).writing():
        result = cache("clear", "--yes")
    assert result.exit_code == 3
    assert f"{busy[:12]} is in use" in result.stderr
    assert "removed 2" in result.stdout
    assert names(root) == ["toy"]


def test_clear_with_json_requires_yes(root: Path) -> None:
    result = cache("clear", "--json")
    assert result.exit_code == 2
    assert "add --yes to --json" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert names(root) == ["half", "letters", "toy"]
