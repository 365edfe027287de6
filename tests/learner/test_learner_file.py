"""The file of a learner: fields that fit each other, fields of later versions, and files of version 0.1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import FileFormatError
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, locked_model

Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def learner(blobs: Data) -> Learner:
    X, y = blobs
    return Learner(None, options={"n_units": 20}).fit((X[y < 2], y[y < 2])).partial_fit((X[y == 2], y[y == 2]))


def changed(archive: Archive, change: Callable[[dict[str, Any]], Any]) -> Archive:
    meta = copy.deepcopy(archive.meta)
    change(meta)
    return replace(archive, meta=meta)


def test_parts_have_kinds_of_their_own(learner: Learner) -> None:
    archive = learner.to_archive()
    assert (archive.kind, archive.version) == ("learner", 1)
    assert {name: part.kind for name, part in archive.parts.items()} == {
        "head": "head/evergrow",
        "solution": "head-solution",
    }


def test_the_same_learner_gives_the_same_bytes(learner: Learner, tmp_path: Path) -> None:
    learner.save(tmp_path / "a.evg")
    Learner.load(tmp_path / "a.evg").save(tmp_path / "b.evg")
    assert (tmp_path / "a.evg").read_bytes() == (tmp_path / "b.evg").read_bytes()


def test_what_a_later_version_added_is_kept(learner: Learner, blobs: Data, tmp_path: Path) -> None:
    def add(meta: dict[str, Any]) -> None:
        meta["colour"] = "green"
        meta["history"][0]["place"] = "here"

    archive = changed(learner.to_archive(), add)
    archive.parts["later"] = Archive("kind-of-later", {"n": 1})
    write_archive(tmp_path / "m.evg", archive)
    loaded = Learner.load(tmp_path / "m.evg").forget_classes("0")
    written = loaded.to_archive()
    assert written.meta["colour"] == "green"
    assert written.meta["history"][0]["place"] == "here"
    assert written.parts["later"].meta == {"n": 1}
    assert loaded.predict(blobs[0][:3]).shape == (3,)


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *places, key, value = path

    def change(meta: dict[str, Any]) -> None:
        node: Any = meta
        for place in places:
            node = node[place]
        node[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("counts", "0", 51), "counts other samples"),
        (_set("counts", "0", 0), "integer from 1"),
        (_set("counts", "fox", 3), "samples of other classes"),
        (lambda meta: meta["counts"].pop("0"), "samples of other classes"),
        (_set("history", 0, "revision", 9), "do not ascend"),
        (_set("history", 0, "what", "magic"), "'what' should be one of"),
        (_set("history", 0, "samples", -1), "'samples' should be an integer"),
        (_set("history", 0, 3), "should be an object"),
        (_set("lineage", {"number": 5, "ancestors": []}), "written as revision 5"),
        (_set("lineage", {"number": 1, "ancestors": [{"revision": r, "digest": ""} for r in (3, 2)]}), "do not ascend"),
        (_set("lineage", {"number": 1, "ancestors": [{"revision": 3}]}), "lacks 'digest'"),
        (_set("recipe", "method", "magic"), "method 'magic' is unknown here"),
        (_set("recipe", "method", "ranpac"), "of another method"),
        (_set("recipe", "options", []), "'options' should be an object"),
        (_set("seed", "x"), "'seed' should be an integer"),
        (_set("label_kind", "colour"), "'label_kind' should be one of"),
        (_set("label_kind", "boolean"), "its labels are of kind 'boolean', but '0' is none"),
        (_set("spec", {}), "'spec' lacks 'name'"),
        (_set("calibration", "parts", 0, "points", 0, 10**400), "finite number"),
    ],
)
def test_what_does_not_fit_is_a_file_error(
    learner: Learner, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    write_archive(tmp_path / "m.evg", changed(learner.to_archive(), change))
    with pytest.raises(FileFormatError, match=message):
        Learner.load(tmp_path / "m.evg")


def test_each_file_vouches_for_those_before_it(learner: Learner, blobs: Data, tmp_path: Path) -> None:
    path = tmp_path / "m.evg"
    commit(path, learner)
    digests = [read_archive(path).digest]
    for name in ("0", "1"):
        with locked_model(path) as current:
            commit(path, current.forget_classes(name))
        digests.append(read_archive(path).digest)
    lineage = read_archive(path).meta["lineage"]
    assert lineage["number"] == 3
    assert lineage["ancestors"] == [{"revision": number, "digest": digests[number - 1]} for number in (1, 2)]
