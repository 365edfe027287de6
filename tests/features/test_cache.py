"""The cache is never wrong or half-written, and its errors do not stop an encoding."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.features.extraction_toys import (
    LetterCounter,
    Toy,
    expected_features,
    write_images,
)

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import BusyError, CacheWarning, DataWarning
from evergrow.data.feature_blocks import join_blocks
from evergrow.data.items import Images, Texts
from evergrow.features import Features, create_backbone, encode, encoding
from evergrow.features import cache as cache_module
from evergrow.features.cache import FeatureCache, default_root

SMALL: dict[str, Any] = {"workers": 0, "batch_size": 2}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 4)


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return write_images(tmp_path / "images", 15)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def the_folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def chunk_files(root: Path) -> list[Path]:
    return sorted(the_folder(root).glob("*.safetensors"))


def check(result: Features, images: Images) -> None:
    np.testing.assert_allclose(
        result.X, expected_features(images), rtol=1e-5, atol=1e-6
    )


def destroy(images: Images) -> None:
    """Destroy what is in the files, but not what tells them apart."""
    for name in images.names:
        path = images.root / name
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# -- hits and misses -------------------------------------------------------------------


def test_a_second_run_touches_no_image_and_writes_nothing(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encode(Toy(), images, cache=root, **SMALL)
    destroy(images)
    monkeypatch.setattr(
        "filelock.FileLock", None
    )  # a disk that can only be read is enough
    toy = Toy()
    second = encode(toy, images, cache=root, **SMALL)
    assert (first.computed, second.computed, toy.batches) == (15, 0, [])
    np.testing.assert_array_equal(second.X, first.X)
    assert second.rows.tolist() == first.rows.tolist()


def test_texts_are_kept_too_and_their_words_are_not(root: Path) -> None:
    texts = Texts(("secret", "longer secret", "s", "a secret", "b"))
    first = encode(LetterCounter(), texts, cache=root)
    assert encode(LetterCounter(), texts, cache=root).computed == 0
    assert first.X[:, 0].tolist() == [6, 13, 1, 8, 1]
    assert not any(
        b"secret" in path.read_bytes() for path in the_folder(root).iterdir()
    )


def test_what_does_not_change_features_does_not_miss(
    images: Images, root: Path, tmp_path: Path
) -> None:
    encode(Toy(), images, cache=root, **SMALL)
    assert (
        encode(
            Toy(), images, cache=root, workers=1, batch_size=5, on_error="skip"
        ).computed
        == 0
    )
    assert (
        encode(Toy(weights="file"), images, cache=root).computed == 0
    )  # the same weights from elsewhere
    shutil.move(images.root, tmp_path / "moved")
    assert (
        encode(
            Toy(), Images(images.names, root=tmp_path / "moved"), cache=root, **SMALL
        ).computed
        == 0
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"weights_hash": "01"},
        {"preset": "pilot"},
        {"preprocessing": {"size": [8, 8], "mean": [0.5]}},
        {"options": {"seed": 1}},
    ],
)
def test_the_cache_of_another_backbone_is_not_used(
    images: Images, root: Path, changes: dict[str, Any]
) -> None:
    encode(Toy(), images, cache=root)
    assert encode(Toy(**changes), images, cache=root).computed == 15


def test_the_cache_of_other_images_is_not_used(images: Images, root: Path) -> None:
    encode(Toy(), images, cache=root)
    assert encode(Toy(), images.take(range(14)), cache=root).computed
    assert encode(Toy(), images.take(range(14, -1, -1)), cache=root).computed
    path = images.raw(3)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert encode(Toy(), images, cache=root).computed
    assert encode(Toy(), images, cache=root, precision="float32").computed


def test_an_entry_tells_people_what_it_is_and_nothing_of_this_machine(
    images: Images, root: Path
) -> None:
    (images.root / "odd/001.png").write_text("no image")
    with pytest.warns(DataWarning):
        encode(
            Toy(name=f"sentence:{root}/encoder"), images, cache=root, on_error="skip"
        )
    meta = json.loads((the_folder(root) / "meta.json").read_text())
    assert (meta["n_items"], meta["backbone"]) == (15, "sentence:encoder")
    assert (
        read_archive(chunk_files(root)[0]).meta["failures"][0]["name"] == "odd/001.png"
    )
    assert not any(
        os.fsencode(root.parent) in path.read_bytes()
        for path in the_folder(root).iterdir()
    )


def test_nothing_is_written_without_a_cache(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGROW_CACHE", str(root))
    check(encode(Toy(), images, cache=False), images)
    assert not root.exists()
    encode(Toy(), images)
    assert encode(Toy(), images, cache=root).computed == 0


def test_the_default_root_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("EVERGROW_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "evergrow"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg" / "evergrow"
    monkeypatch.setenv("EVERGROW_CACHE", "~/named")
    assert default_root() == tmp_path / "named"


def test_a_handful_leaves_nothing_behind(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode(Toy(), images, cache=False).X
    monkeypatch.setattr(
        os, "fsync", lambda handle: pytest.fail("a handful went to disk")
    )
    for count in (1, 4):
        few = encode(Toy(), images.take(range(count)), cache=root)
        np.testing.assert_array_equal(few.X, whole[:count])
        assert few.rows.tolist() == list(range(count))
    encode(LetterCounter(), Texts(("a", "bcd")), cache=root)
    assert not root.exists()


# -- recipes ---------------------------------------------------------------------------


def test_what_is_stored_is_raw_and_what_is_handed_on_is_joined(
    images: Images, root: Path
) -> None:
    network = create_backbone("test_resnet", weights="random", device="cpu")
    backbone = network.with_recipe(["final", "mean@-2", "mean@-3", "max@-1"])
    joined = encode(backbone, images, cache=root)
    raw = encode(backbone, images, cache=root, join=False)
    assert joined.widths == raw.widths == backbone.spec.recipe.widths
    assert raw.computed == 0
    np.testing.assert_array_equal(joined.X, join_blocks(raw.X, raw.widths))
    np.testing.assert_array_equal(raw.X[:, :96], encode(network, images, cache=False).X)


# -- damage ----------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def rewrite(path: Path, **changes: Any) -> None:
    """Write other values into a chunk, with a checksum that is right."""
    old = read_archive(path)
    tensors = {
        name: changes.pop(name.removeprefix("blocks."), tensor)
        for name, tensor in old.tensors.items()
    }
    kind = changes.pop("kind", old.kind)
    version = changes.pop("version", old.version)
    write_archive(
        path, Archive(kind, {**old.meta, **changes}, tensors, version=version)
    )


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "cut": cut,
    "other kind": lambda path: rewrite(path, kind="tuner"),
    "other shape": lambda path: rewrite(path, final=torch.zeros(3, 6)),
    "other type": lambda path: rewrite(
        path, final=torch.zeros(4, 6, dtype=torch.float64)
    ),
    "not finite": lambda path: rewrite(path, final=torch.full((4, 6), torch.nan)),
    "strange precision": lambda path: rewrite(path, precision="float8"),
    "failures of other rows": lambda path: rewrite(
        path, failures=[{"row": 99, "name": "a", "reason": "b"}] * 2
    ),
}
"""Ways to damage a chunk. tests/hostile tries random bytes, links and pipes."""


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_chunk_is_noticed_and_made_again_alone(
    images: Images, root: Path, kind: str
) -> None:
    encode(Toy(), images, cache=root, **SMALL)
    path = chunk_files(root)[1]
    DAMAGE[kind](path)
    with pytest.warns(CacheWarning, match="computed again, damaged: "):
        result = encode(Toy(), images, cache=root, **SMALL)
    assert result.computed == 4
    check(result, images)
    assert encode(Toy(), images, cache=root, **SMALL).computed == 0


def test_a_linked_entry_is_neither_listed_nor_cleared_nor_written_to(
    images: Images, root: Path, tmp_path: Path
) -> None:
    encode(Toy(), images, cache=root, **SMALL)
    mine = tmp_path / "mine"
    folder = the_folder(root)
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    shutil.rmtree(folder)
    folder.symlink_to(mine)
    assert FeatureCache(root).list() == []
    FeatureCache(root).remove(folder.name)
    with pytest.warns(CacheWarning, match="is a link"):
        check(encode(Toy(), images, cache=root, **SMALL), images)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_an_entry_of_a_newer_evergrow_is_left_alone(images: Images, root: Path) -> None:
    encode(Toy(), images, cache=root, **SMALL)
    path = chunk_files(root)[1]
    rewrite(path, version=99)
    kept = path.read_bytes()
    with pytest.warns(CacheWarning, match="newer evergrow"):
        check(encode(Toy(), images, cache=root, **SMALL), images)
    assert path.read_bytes() == kept


# -- interruptions ---------------------------------------------------------------------


def interrupted(images: Images, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave an unfinished entry of two chunks."""
    decode = encoding.decode_image

    def stop(source: Any, **options: Any) -> Any:
        if source.name == "011.png":
            raise KeyboardInterrupt
        return decode(source, **options)

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "decode_image", stop)
        with pytest.raises(KeyboardInterrupt):
            encode(Toy(), images, cache=root, **SMALL)
    return the_folder(root)


def test_an_unfinished_entry_is_taken_up(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(images, root, monkeypatch)
    (folder / ".000000008.safetensors.abc.part").write_text("half")
    expected = expected_features(images)
    destroy(images.take(range(8)))  # what is done is not looked at again
    result = encode(Toy(), images, cache=root, **SMALL)
    assert result.computed == 7
    np.testing.assert_allclose(result.X, expected, rtol=1e-5, atol=1e-6)
    assert sorted(path.suffix for path in folder.iterdir()) == [
        ".json",
        *[".safetensors"] * 4,
    ]
    assert encode(Toy(), images, cache=root, **SMALL).computed == 0


# -- disks -----------------------------------------------------------------------------


@pytest.mark.parametrize("allowed", range(5))
def test_a_write_that_fails_at_any_point_loses_nothing(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    replace = os.replace
    count = 0

    def fail(source: Any, target: Any) -> None:
        nonlocal count
        count += 1
        if count > allowed:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.warns(CacheWarning, match="No space left"):
            check(encode(Toy(), images, cache=root, **SMALL), images)
    if allowed < 2:  # not a single chunk
        assert list(root.iterdir()) == []
    else:
        result = encode(Toy(), images, cache=root, **SMALL)
        assert result.computed == 15 - 4 * (allowed - 1)
        check(result, images)


def test_a_cache_that_cannot_be_a_folder(images: Images, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(
        CacheWarning,
        match=r"features are kept in memory only: .*(Not a directory|File exists)",
    ):
        check(encode(Toy(), images, cache=tmp_path / "file" / "cache"), images)


# -- several processes -----------------------------------------------------------------


def test_two_threads_decode_every_image_once(
    images: Images, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks are on open files, so that threads wait for each other as processes do."""
    decode = encoding.decode_image
    seen = []
    begun = threading.Event()
    go_on = threading.Event()

    def slowly(source: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        seen.append(Path(source).name)
        return decode(source, **options)

    monkeypatch.setattr(encoding, "decode_image", slowly)
    monkeypatch.setattr(cache_module._LOG, "warning", lambda *told: go_on.set())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(encode, Toy(), images, cache=root, **SMALL)
        assert begun.wait(60)
        (folder,) = (path for path in root.iterdir() if path.is_dir())
        with pytest.raises(
            BusyError, match="another process"
        ):  # what is in use is not removed
            FeatureCache(root).remove(folder.name)
        second = pool.submit(encode, Toy(), images, cache=root, **SMALL)
        results = [first.result(60), second.result(60)]
    assert [result.computed for result in results] == [15, 0]
    np.testing.assert_array_equal(results[0].X, results[1].X)
    assert sorted(seen) == sorted(Path(name).name for name in images.names)


# -- listing ---------------------------------------------------------------------------


def test_entries_are_listed_and_removed(images: Images, root: Path) -> None:
    cache = FeatureCache(root)
    assert cache.list() == []
    encode(Toy(), images, cache=root)
    encode(LetterCounter(), Texts(tuple("abcde")), cache=root)
    (root / "something else").mkdir()
    (root / ("0" * 32)).write_text("a file, not an entry")
    infos = {info.backbone: info for info in cache.list()}
    assert sorted(infos) == ["letters", "toy"]
    toy = infos["toy"]
    assert (toy.kind, toy.n_items) == ("image", 15)
    assert toy.first == "even/000.png"
    assert toy.bytes == sum(path.stat().st_size for path in (root / toy.key).iterdir())
    assert 0 <= toy.age_seconds < 600
    assert infos["letters"].first == ""
    cache.remove(toy.key)
    cache.remove(toy.key)
    assert [info.backbone for info in cache.list()] == ["letters"]
    assert (root / "something else").is_dir()
    (root / ("a" * 32)).mkdir()
    (root / ("a" * 32) / "meta.json").write_text("{")
    (damaged,) = (info for info in cache.list() if not info.backbone)
    cache.remove(damaged.key)
    assert len(cache.list()) == 1
