"""Foreign entries in writable folders cause no escape, no hang and no crash."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapt.tiny import tiny_vit
from tests.altered import WRONG
from tests.hostile.mutate import mutations
from tests.hostile.samples import pictures, rows
from tests.hostile.trial import limited
from tests.serve.conftest import api, folder, serve  # noqa: F401

from evergrow.data.items import Images
from evergrow.features import encode
from evergrow.features.cache import FeatureCache

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="needs a POSIX system: links and pipes"
)

ODD: dict[str, Callable[[Path, Path], None]] = {
    "folder": lambda path, outside: path.mkdir(),
    "pipe": lambda path, outside: os.mkfifo(path),
    "link to a file": lambda path, outside: path.symlink_to(outside / "precious"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link in a circle": lambda path, outside: path.symlink_to(path),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "empty file": lambda path, outside: path.write_bytes(b"") and None,
}


@pytest.fixture
def outside(tmp_path: Path) -> Any:
    """A folder that is the target of links and must not change."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_bytes(b"precious")
    yield place
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [
        ("precious", b"precious")
    ]


def placed(path: Path, kind: str, outside: Path) -> None:
    """Replace a file or folder by a foreign entry."""
    if path.exists():
        path.rename(outside.parent / "moved")
    path.parent.mkdir(parents=True, exist_ok=True)
    ODD[kind](path, outside)


# -- the feature cache -----------------------------------------------------------------


class Cached:
    """A cache with features of a few images, and their expected values."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.backbone = tiny_vit()
        self.items = Images(pictures()["first"])
        self.features = self.encoded()
        (self.chunk,) = root.rglob("*.safetensors")

    def encoded(self) -> np.ndarray:
        return encode(self.backbone, self.items, cache=self.root).X

    def check(self, words: str) -> None:
        with limited(20), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that it computes again
            json.dumps([vars(entry) for entry in FeatureCache(self.root).list()])
            features = self.encoded()
        assert features.shape == self.features.shape, words
        assert np.isfinite(features).all(), words


def test_damaged_chunks_are_computed_again(tmp_path: Path) -> None:
    cached = Cached(tmp_path)
    for words, hostile in mutations(cached.chunk.read_bytes(), seed=0, n=60):
        cached.chunk.write_bytes(hostile)
        cached.check(words)


def test_the_cache_works_with_any_description(
    tmp_path: Path,
) -> None:
    cached = Cached(tmp_path)
    meta = cached.chunk.with_name("meta.json")
    body = json.loads(meta.read_text())
    for key in body:
        for value in (*WRONG, "2026-13-45", "a\x1b[2J", 2**70, float("nan")):
            meta.write_text(json.dumps({**body, key: value}))
            cached.check(f"{key} is {value!r:.30}")


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["chunk", "meta.json", "entry"])
def test_foreign_entries_in_a_cache_are_harmless(
    name: str, kind: str, tmp_path: Path, outside: Path
) -> None:
    cached = Cached(tmp_path / "cache")
    entry = cached.chunk.parent
    placed(
        {"chunk": cached.chunk, "entry": entry}.get(name, entry / name), kind, outside
    )
    cached.check(f"{kind} as {name}")


# -- the folder of the models ----------------------------------------------------------


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(
    "name", ["odd.evg", "m.evg.history", "odd.evg.history", ".odd.evg.part"]
)
def test_foreign_entries_among_the_models_are_harmless(
    name: str,
    kind: str,
    api: Any,  # noqa: F811
    folder: Path,  # noqa: F811
    outside: Path,
) -> None:
    api.taught()
    placed(folder / name, kind, outside)
    with limited(20):
        listed = api.client.get("/api/v1/models")
        assert listed.status_code == 200
        assert "m" in [entry["name"] for entry in listed.json()["models"]]
        answers = [
            api.get(),
            api.post("teach", {"rows": rows()["query"][:1, :4].tolist(), "label": "0"}),
        ]
        if name == "odd.evg":
            answers.append(api.get("odd"))
            assert answers[-1].status_code >= 400
        for answer in (
            listed,
            *answers,
        ):  # a history that is none is named, until somebody mends it
            assert answer.status_code < 500
            assert not [
                word
                for word in (str(folder), str(outside), "precious")
                if word in answer.text
            ]
