"""The cache: never wrong, never half-written, shared by processes, and no reason to fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.backbones.extraction_toys import LetterCounter, Toy, expected_features, write_images

from evergrow.backbones import cache as cache_module
from evergrow.backbones import extraction, shard_writer
from evergrow.backbones import images as decoding
from evergrow.backbones.cache import FeatureCache, default_root, feature_key
from evergrow.backbones.cache_entry import CacheEntry, npy_header
from evergrow.backbones.extraction import Extraction, extract
from evergrow.backbones.shard_writer import ShardWriter
from evergrow.core.errors import BusyError, CacheWarning, DataWarning, ImageError, ParameterError, UnknownNameError
from evergrow.core.items import ImageFiles, Texts

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {"workers": 0, "batch_size": 2, "shard_size": 4}


@pytest.fixture
def images(tmp_path: Path) -> ImageFiles:
    return write_images(tmp_path / "images", 15)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Any, **options: Any) -> Any:
        raise AssertionError(f"{source} was looked at")

    monkeypatch.setattr(decoding, "decode_image", refuse)


def the_folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def check(result: Extraction, images: ImageFiles) -> None:
    np.testing.assert_allclose(result.features, expected_features(images), rtol=1e-5, atol=1e-6)


# -- hits and misses ------------------------------------------------------------------------------------


def test_a_second_run_touches_no_image(images: ImageFiles, root: Path) -> None:
    first = extract(Toy(), images, cache=root, **SMALL)
    for name in images.names:  # what is in the files is destroyed, what tells them apart is not
        path = images.root / name
        status = path.stat()
        path.write_bytes(bytes(status.st_size))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    toy = Toy()
    second = extract(toy, images, cache=root, **SMALL)
    assert second.from_cache
    assert toy.batches == []
    assert second.images_per_second == 0
    np.testing.assert_array_equal(second.features, first.features)
    assert second.rows.tolist() == first.rows.tolist()
    assert isinstance(second.features, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        second.features[0, 0] = 1


@pytest.mark.usefixtures("no_decoding")
def test_texts_are_kept_too_and_their_words_are_not(root: Path) -> None:
    texts = Texts(("secret", "longer secret", "s"))
    first = extract(LetterCounter(), texts, cache=root, keep_from=1)
    assert extract(LetterCounter(), texts, cache=root).from_cache
    assert first.features[:, 0].tolist() == [6, 13, 1]
    assert "secret" not in (the_folder(root) / "meta.json").read_text()


def test_a_folder_may_move(images: ImageFiles, root: Path, tmp_path: Path) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    shutil.move(images.root, tmp_path / "moved")
    assert extract(Toy(), ImageFiles(tmp_path / "moved", images.names), cache=root, **SMALL).from_cache


def test_settings_that_do_not_change_features_do_not_miss(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    assert extract(Toy(), images, cache=root, workers=1, batch_size=5, on_error="skip").from_cache
    assert extract(Toy(weights="file"), images, cache=root).from_cache  # the same weights from elsewhere


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
def test_another_backbone_misses(images: ImageFiles, root: Path, changes: dict[str, Any]) -> None:
    extract(Toy(), images, cache=root)
    assert not extract(Toy(**changes), images, cache=root).from_cache


def test_other_images_miss(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root)
    assert not extract(Toy(), images.take(range(14)), cache=root).from_cache
    assert not extract(Toy(), images.take(range(14, -1, -1)), cache=root).from_cache
    path = images.raw(3)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert not extract(Toy(), images, cache=root).from_cache
    assert not extract(Toy(), images, cache=root, precision="float32").from_cache


def test_the_key_does_not_depend_on_the_order_of_settings() -> None:
    one = Toy(preprocessing={"a": 1, "b": 2}).spec
    two = Toy(preprocessing={"b": 2, "a": 1}).spec
    assert feature_key("00", one, "auto") == feature_key("00", two, "auto")


def test_meta_tells_people_what_it_is_and_nothing_of_this_machine(images: ImageFiles, root: Path) -> None:
    (images.root / "odd/001.png").write_text("no image")
    with pytest.warns(DataWarning):
        extract(Toy(name=f"sentence:{root}/encoder"), images, cache=root, on_error="skip")
    text = (the_folder(root) / "meta.json").read_text()
    meta = json.loads(text)
    assert (meta["n_items"], meta["n_read"], meta["n_features"]) == (15, 14, 6)
    assert meta["backbone"]["name"] == "sentence:encoder"
    assert meta["bytes"] == (the_folder(root) / "features.npy").stat().st_size
    assert meta["failures"][0][:2] == [1, "odd/001.png"]
    assert str(root.parent) not in text
    assert sorted(path.name for path in the_folder(root).iterdir()) == ["features.npy", "meta.json"]


def test_no_cache_writes_nothing(images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERGROW_CACHE", str(root))
    check(extract(Toy(), images, cache=False), images)
    assert not root.exists()
    extract(Toy(), images)
    assert extract(Toy(), images, cache=root).from_cache


def test_default_roots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EVERGROW_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for platform, expected in (
        ("linux", ".cache/evergrow"),
        ("darwin", "Library/Caches/evergrow"),
        ("win32", "AppData/Local/evergrow/cache"),
    ):
        monkeypatch.setattr(cache_module.sys, "platform", platform)
        assert default_root() == tmp_path / expected
    monkeypatch.setattr(cache_module.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_root() == tmp_path / "xdg/evergrow"
    monkeypatch.setenv("EVERGROW_CACHE", str(tmp_path / "named"))
    assert default_root() == tmp_path / "named"


# -- damage ---------------------------------------------------------------------------------------------


def cut(folder: Path) -> None:
    with open(folder / "features.npy", "r+b") as file:
        file.truncate(200)


def flip(folder: Path) -> None:
    with open(folder / "features.npy", "r+b") as file:
        file.seek(150)
        byte = file.read(1)[0]
        file.seek(150)
        file.write(bytes([byte ^ 1]))


def other_header(folder: Path) -> None:
    with open(folder / "features.npy", "r+b") as file:
        head = file.read(128)
        file.seek(0)
        file.write(head.replace(b"(15, 6)", b"(6, 15)"))


def change_meta(folder: Path, **changes: Any) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **changes}))


def rewrite(folder: Path, rows: np.ndarray) -> None:
    """Put other rows into the entry, with a checksum that is right."""
    head = (folder / "features.npy").read_bytes()[:128]
    (folder / "features.npy").write_bytes(head + rows.tobytes())
    change_meta(folder, crc32=zlib.crc32(rows.tobytes()))


def replace_head(folder: Path, head: bytes) -> None:
    body = (folder / "features.npy").read_bytes()
    (folder / "features.npy").write_bytes(head + body[len(head) :])


def link(folder: Path, name: str) -> None:
    """Put a link to a file outside in place of a file of the entry."""
    outside = folder.parent.parent / f"outside-{name}"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)


DAMAGE = {
    "cut": cut,
    "flip": flip,
    "header": other_header,
    "gone": lambda folder: (folder / "features.npy").unlink(),
    "no json": lambda folder: (folder / "meta.json").write_text('{"finished": tr'),
    "a list": lambda folder: (folder / "meta.json").write_text("[]"),
    "lines missing": lambda folder: (folder / "meta.json").write_text('{"finished": true}'),
    "nested": lambda folder: (folder / "meta.json").write_text('{"a":' * 100_000),
    "endless": lambda folder: change_meta(folder, n_read=10**30),
    "no number": lambda folder: change_meta(folder, n_features="six"),
    "NaN": lambda folder: change_meta(folder, crc32=float("nan")),
    "other kind": lambda folder: change_meta(folder, schema="learner"),
    "no version": lambda folder: change_meta(folder, schema_version="two"),
    "strange precision": lambda folder: change_meta(folder, precision="float8"),
    "failures": lambda folder: change_meta(folder, failures=[[99, "a", "b", False]] * 2),
    "garbled failures": lambda folder: change_meta(folder, failures=[["a"]]),
    "no failures": lambda folder: change_meta(folder, failures=7),
    "not finite": lambda folder: rewrite(folder, np.full((15, 6), np.nan, dtype="<f4")),
    "a zip": lambda folder: replace_head(folder, b"PK\x03\x04"),
    "a link": lambda folder: link(folder, "features.npy"),
    "a linked meta": lambda folder: link(folder, "meta.json"),
}
"""Ways to spoil a finished entry, by accident or on purpose."""


@pytest.mark.parametrize("kind", sorted(DAMAGE))
def test_a_damaged_entry_is_noticed_and_made_again(images: ImageFiles, root: Path, kind: str) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    DAMAGE[kind](the_folder(root))
    with pytest.warns(CacheWarning, match="extracted again, damaged: .* must"):
        result = extract(Toy(), images, cache=root, **SMALL)
    assert not result.from_cache
    check(result, images)
    assert extract(Toy(), images, cache=root, **SMALL).from_cache


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    folder = the_folder(root)
    link(folder, "features.npy")
    outside = root.parent / "outside-features.npy"
    kept = outside.read_bytes()
    with pytest.warns(CacheWarning, match="extracted again"):
        extract(Toy(), images, cache=root, **SMALL)
    assert outside.read_bytes() == kept
    assert not (folder / "features.npy").is_symlink()


def test_a_linked_entry_is_neither_listed_nor_cleared(images: ImageFiles, root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    root.mkdir(exist_ok=True)
    key = "ab" * 16
    (root / key).symlink_to(mine)
    cache = FeatureCache(root)
    assert cache.list() == []
    cache.remove(key)
    with pytest.raises(OSError, match="got a link"):
        cache.entry(key).clear()
    assert (mine / "thesis.txt").exists()


def test_features_of_other_items_do_not_pass(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    folder = the_folder(root)
    rows = np.frombuffer((folder / "features.npy").read_bytes()[128:], dtype="<f4").reshape(15, 6)
    (folder / "features.npy").write_bytes(npy_header(10, 9) + rows.tobytes())
    change_meta(folder, n_read=10, n_features=9)
    with pytest.warns(CacheWarning, match="of other items"):
        check(extract(Toy(), images, cache=root, **SMALL), images)


def test_an_entry_of_a_newer_evergrow_is_left_alone(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root, **SMALL)
    change_meta(the_folder(root), schema_version=99, evergrow="7.0")
    kept = (the_folder(root) / "meta.json").read_bytes()
    with pytest.warns(CacheWarning, match=r"newer evergrow \(7\.0\)"):
        check(extract(Toy(), images, cache=root, **SMALL), images)
    assert (the_folder(root) / "meta.json").read_bytes() == kept
    assert [info.state for info in FeatureCache(root).list()] == ["newer"]


def test_unknown_fields_of_an_unfinished_entry_are_written_again(
    images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = interrupted(images, root, monkeypatch)
    change_meta(folder, licence="CC0")
    assert extract(Toy(), images, cache=root, **SMALL).resumed == 8
    assert json.loads((folder / "meta.json").read_text())["licence"] == "CC0"


@pytest.mark.parametrize(
    "line",
    [
        {"stop": 10**30},
        {"n_read": -4},
        {"n_read": -1, "failures": [[row, "a", "b", True] for row in range(5)]},
        {"n_read": 3, "failures": [[99, "a", "b", True]]},
        {"crc32": "x"},
        {"precision": "float8"},
        {"failures": 3},
    ],
)
def test_hostile_lines_of_shards_count_for_nothing(
    images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch, line: dict[str, Any]
) -> None:
    folder = interrupted(images, root, monkeypatch)
    lines = (folder / "shards.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **line})
    (folder / "shards.jsonl").write_text("\n".join([*lines, "[" * 50_000]) + "\n")
    result = extract(Toy(), images, cache=root, **SMALL)
    assert result.resumed == 0
    check(result, images)


# -- a handful ------------------------------------------------------------------------------------------


def test_a_handful_leaves_nothing_behind(images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = extract(Toy(), images, cache=False).features
    for count in (1, 4):
        few = extract(Toy(), images.take(range(count)), cache=root)
        np.testing.assert_array_equal(few.features, whole[:count])
        assert (few.from_cache, few.resumed, few.rows.tolist()) == (False, 0, list(range(count)))
    assert not root.exists()
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("a handful went to disk"))
    extract(LetterCounter(), Texts(("a", "bcd")), cache=root)


def test_a_handful_uses_what_is_there_and_goes_on_with_what_was_begun(images: ImageFiles, root: Path) -> None:
    few = images.take(range(3))
    kept = extract(Toy(), few, cache=root, keep_from=1)
    assert not kept.from_cache
    again = extract(Toy(), few, cache=root)
    assert again.from_cache
    np.testing.assert_array_equal(again.features, kept.features)
    DAMAGE["flip"](the_folder(root))
    with pytest.warns(CacheWarning, match="extracted again"):
        extract(Toy(), few, cache=root)
    assert extract(Toy(), few, cache=root).from_cache


def test_a_handful_is_judged_like_many(images: ImageFiles, root: Path) -> None:
    broken = images.root / images.names[1]
    broken.write_bytes(b"no image")
    few = images.take(range(3))
    with pytest.raises(ImageError, match="on_error='skip'"):
        extract(Toy(), few, cache=root)
    with pytest.warns(DataWarning, match="1 of 3"):
        result = extract(Toy(), few, cache=root, on_error="skip")
    assert result.rows.tolist() == [0, 2]
    with pytest.raises(ImageError, match="at least one image must be readable"):
        extract(Toy(), images.take([1]), cache=root, on_error="skip")


def test_a_handful_of_several_batches_is_batched_as_asked(images: ImageFiles, root: Path) -> None:
    toy = Toy()
    extract(toy, images.take(range(4)), cache=False, batch_size=3)
    assert toy.batches == [3, 1]


def interrupted(images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave an unfinished entry of two shards."""
    decode = decoding.decode_image

    def stop(source: Any, **options: Any) -> Any:
        if source.name == "011.png":
            raise KeyboardInterrupt
        return decode(source, **options)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode_image", stop)
        with pytest.raises(KeyboardInterrupt):
            extract(Toy(), images, cache=root, **SMALL)
    return the_folder(root)


@pytest.mark.parametrize("kind", ["as it is", "torn line", "torn rows", "flipped", "no rows", "leftover"])
def test_an_unfinished_entry_is_taken_up_as_far_as_it_is_whole(
    images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = interrupted(images, root, monkeypatch)
    features, lines = folder / "features.npy", folder / "shards.jsonl"
    assert len(lines.read_text().splitlines()) == 2
    with pytest.raises(ValueError, match=r"magic|pickle"):
        np.load(features)  # half a file does not pass for a whole one
    resumed = 8
    if kind == "torn line":
        lines.write_bytes(lines.read_bytes()[:-5])
        resumed = 4
    elif kind == "torn rows":
        os.truncate(features, features.stat().st_size - 10)
        resumed = 4
    elif kind == "flipped":
        flip(folder)
        resumed = 0
    elif kind == "no rows":
        features.unlink()
        resumed = 0
    elif kind == "leftover":
        (folder / ".meta.json.abc.part").write_text("half")
        with open(features, "ab") as file:
            file.write(b"rows without a line")
    result = extract(Toy(), images, cache=root, **SMALL)
    assert result.resumed == resumed
    check(result, images)
    assert sorted(path.name for path in folder.iterdir()) == ["features.npy", "meta.json"]
    assert extract(Toy(), images, cache=root, **SMALL).from_cache


def test_an_unfinished_entry_of_another_precision_is_begun_anew(images: ImageFiles, root: Path) -> None:
    probe = extract(Toy(), images.take(range(4)), cache=root, keep_from=1)  # learn the layout from a real entry
    entry = CacheEntry(the_folder(root))
    meta = json.loads((entry.folder / "meta.json").read_text())
    with entry.hold():
        entry.empty()
        writer = ShardWriter(entry, meta, n_items=4, n_features=6)
        writer.append(2, np.full((2, 6), 7, dtype=np.float32), [], "float16")
        writer.close()
    again = extract(Toy(), images.take(range(4)), cache=root)
    assert again.resumed == 0
    np.testing.assert_array_equal(again.features, probe.features)


# -- disks ----------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 16 kB, or skip where that is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs root: mounts a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing(images: ImageFiles, tiny_disk: Path) -> None:
    many = ImageFiles(images.root, images.names * 60)
    with pytest.warns(CacheWarning, match="No space left on device.*EVERGROW_CACHE"):
        result = extract(Toy(), many, cache=tiny_disk, **SMALL)
    check(result, many)
    assert list(tiny_disk.iterdir()) == []


def test_a_disk_that_is_full_from_the_start(images: ImageFiles, tiny_disk: Path) -> None:
    (tiny_disk / "filler").write_bytes(bytes(shutil.disk_usage(tiny_disk).free))
    with pytest.raises(OSError, match="No space left"):
        (tiny_disk / "more").write_bytes(bytes(1))
    (tiny_disk / "more").unlink(missing_ok=True)
    with pytest.warns(CacheWarning, match="No space left on device"):
        result = extract(Toy(), images, cache=tiny_disk, **SMALL)
    check(result, images)
    assert [path.name for path in tiny_disk.iterdir()] == ["filler"]


def test_a_read_only_disk(images: ImageFiles, tiny_disk: Path) -> None:
    kept = images.take(range(5))
    extract(Toy(), kept, cache=tiny_disk, **SMALL)
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    assert extract(Toy(), kept, cache=tiny_disk, **SMALL).from_cache
    with pytest.warns(CacheWarning, match="Read-only file system"):
        result = extract(Toy(), images, cache=tiny_disk, **SMALL)
    check(result, images)


@pytest.mark.parametrize("allowed", range(12))
def test_a_write_that_fails_at_any_point_loses_nothing(
    images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    write, count = shard_writer._write, 0

    def fail(file: Any, data: Any) -> None:
        nonlocal count
        count += 1
        if count > allowed:
            write(file, memoryview(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)

    monkeypatch.setattr(shard_writer, "_write", fail)
    if allowed < 10:  # a header, four shards of rows and a line each, and a header
        with pytest.warns(CacheWarning, match="No space left"):
            result = extract(Toy(), images, cache=root, **SMALL)
        assert list(root.iterdir()) == []
    else:
        result = extract(Toy(), images, cache=root, **SMALL)
    check(result, images)


def test_a_meta_file_that_cannot_be_written_at_the_end(
    images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ShardWriter._write_meta

    def fail(self: ShardWriter, state: dict[str, Any]) -> None:
        if state["finished"]:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        write(self, state)

    monkeypatch.setattr(ShardWriter, "_write_meta", fail)
    with pytest.warns(CacheWarning, match="Disk quota exceeded"):
        check(extract(Toy(), images, cache=root, **SMALL), images)
    assert list(root.iterdir()) == []


def test_a_cache_that_cannot_be_a_folder(images: ImageFiles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(CacheWarning, match=r"features are kept in memory only: .*Not a directory"):
        check(extract(Toy(), images, cache=tmp_path / "file" / "cache"), images)


# -- several processes ----------------------------------------------------------------------------------


def start(images: ImageFiles, root: Path, log: Path, pause: float) -> subprocess.Popen[str]:
    code = (
        "from pathlib import Path\n"
        "from tests.backbones.extraction_toys import *\n"
        "from evergrow.backbones.extraction import extract\n"
        f"log_decoding(Path({str(log)!r}), pause={pause})\n"
        f"files = ImageFiles(Path({str(images.root)!r}), {images.names!r})\n"
        f"result = extract(Toy(), files, cache={str(root)!r}, workers=0, batch_size=2, shard_size=4)\n"
        "print(result.from_cache, result.features.tobytes().hex())\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_entry(root: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = FeatureCache(root).list()
        if found and found[0].done:
            return found[0].key
        time.sleep(0.01)
    raise AssertionError("no entry appeared")


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: locks")
def test_two_threads_decode_every_image_once(images: ImageFiles, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are on open files, so that threads wait for each other as processes do."""
    decode, seen = decoding.decode_image, []
    begun, go_on = threading.Event(), threading.Event()

    def slowly(source: Any, **options: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        seen.append(Path(source).name)
        return decode(source, **options)

    monkeypatch.setattr(decoding, "decode_image", slowly)
    monkeypatch.setattr(extraction, "_tell_waiting", lambda entry: go_on.set())
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(extract, Toy(), images, cache=root, **SMALL)
        assert begun.wait(60)
        with pytest.raises(BusyError, match="another process"):  # what is in use is not removed
            FeatureCache(root).remove(the_folder(root).name)
        second = pool.submit(extract, Toy(), images, cache=root, **SMALL)
        results = [first.result(60), second.result(60)]
    assert [result.from_cache for result in results] == [False, True]
    np.testing.assert_array_equal(results[0].features, results[1].features)
    assert sorted(seen) == sorted(Path(name).name for name in images.names)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: locks")
def test_two_processes_decode_every_image_once(images: ImageFiles, root: Path, tmp_path: Path) -> None:
    processes = [start(images, root, tmp_path / "log", pause=0.25) for _ in range(2)]
    key = wait_for_entry(root)
    with pytest.raises(BusyError, match="another process"):  # what is in use is not removed
        FeatureCache(root).remove(key)
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    decoded = sorted((tmp_path / "log").read_text().split())
    assert decoded == sorted(Path(name).name for name in images.names)
    outs = sorted(out.split() for out, _ in answers)
    assert [out[0] for out in outs] == ["False", "True"]
    assert outs[0][1] == outs[1][1]
    assert sum("waiting for another process" in errors for _, errors in answers) == 1
    FeatureCache(root).remove(key)
    assert FeatureCache(root).list() == []


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system: locks")
def test_who_waits_for_a_removed_entry_holds_the_new_one(tmp_path: Path) -> None:
    entry = CacheEntry(tmp_path / "key")
    waiting, held = threading.Event(), threading.Event()
    release = threading.Event()

    def second() -> None:
        with CacheEntry(entry.folder).hold(wait=waiting.set):
            held.set()
            release.wait(60)

    thread = threading.Thread(target=second)
    with entry.hold():
        thread.start()
        assert waiting.wait(60)
        entry.clear()
    assert held.wait(60)
    assert entry.folder.is_dir()
    with pytest.raises(BusyError), entry.hold():
        pass
    release.set()
    thread.join()


def test_a_second_writer_where_there_are_no_locks_gives_way(tmp_path: Path) -> None:
    entry = CacheEntry(tmp_path / "key")
    block = np.ones((2, 3), dtype=np.float32)
    entry.folder.mkdir()
    one = ShardWriter(entry, {}, n_items=4, n_features=3)
    two = ShardWriter(entry, {}, n_items=4, n_features=3)
    one.append(2, block, [], "float32")
    with pytest.raises(OSError, match="another process writes"):
        two.append(2, block, [], "float32")


# -- listing --------------------------------------------------------------------------------------------


def test_entries_are_listed_found_and_removed(images: ImageFiles, root: Path) -> None:
    cache = FeatureCache(root)
    assert cache.list() == []
    extract(Toy(), images, cache=root)
    extract(LetterCounter(), Texts(("a", "b")), cache=root, keep_from=1)
    (root / "something else").mkdir()
    (root / ("0" * 32)).write_text("a file, not an entry")
    infos = {info.backbone: info for info in cache.list()}
    assert sorted(infos) == ["letters", "toy"]
    toy = infos["toy"]
    assert (toy.state, toy.kind, toy.n_items, toy.done, toy.preset) == ("finished", "image", 15, 15, "timm")
    assert toy.first == "even/000.png"
    assert toy.bytes == sum(path.stat().st_size for path in (root / toy.key).iterdir())
    assert 0 <= toy.age_seconds < 600
    assert infos["letters"].first == ""
    assert cache.find(toy.key[:10]) == toy
    with pytest.raises(UnknownNameError, match="'zzzz'"):
        cache.find("zzzz")
    with pytest.raises(ParameterError, match="at least 4"):
        cache.find("a")
    cache.remove(toy.key)
    cache.remove(toy.key)
    assert [info.backbone for info in cache.list()] == ["letters"]
    assert (root / "something else").is_dir()


def test_two_entries_with_one_beginning_must_be_told_apart(root: Path) -> None:
    for end in "01":
        (root / ("a" * 31 + end)).mkdir(parents=True)
    with pytest.raises(ParameterError, match="must stand for one entry"):
        FeatureCache(root).find("aaaa")


def test_a_damaged_entry_is_listed_and_can_be_removed(images: ImageFiles, root: Path) -> None:
    extract(Toy(), images, cache=root)
    (the_folder(root) / "meta.json").write_text("{")
    cache = FeatureCache(root)
    (info,) = cache.list()
    assert info.state == "damaged"
    cache.remove(info.key)
    assert list(root.iterdir()) == []
