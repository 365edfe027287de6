"""Places: the same listing and ranges whatever the storage, errors in one line, and no secret in any of them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import fsspec
import pytest

from evergrow.core.errors import DatasetNotFoundError, EngineError, MissingExtraError, ParameterError
from evergrow.data.places import Place, open_place, public_storage
from evergrow.data.ranged_file import RangedFile
from evergrow.data.sources import open_source, source_from


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return open_place(tmp_path if request.param == "disk" else f"memory://{tmp_path.name}-{os.getpid()}")


def test_files_are_listed_read_and_replaced(place: Place) -> None:
    place.write("b/c.bin", b"0123456789")
    place.write("a.bin", b"old")
    place.write("a.bin", b"newer")
    assert place.listing(deep=True) == {"a.bin": 5, "b/c.bin": 10}
    assert place.listing(deep=False) == {"a.bin": 5}
    assert place.below("b").listing(deep=False) == {"c.bin": 10}
    assert place.read("b/c.bin", 3, 6) == b"345"
    assert place.read("b/c.bin", 8, 20) == b"89"
    assert place.size("b/c.bin") == 10
    assert place.exists("a.bin")
    assert not place.exists("b")
    assert not place.exists("none")


def test_several_ranges_with_one_that_is_not_there(place: Place) -> None:
    place.write("a", b"0123456789")
    first, second, third = place.read_all([("a", 0, 2), ("none", 0, 2), ("a", 4, 4)])
    assert first == b"01"
    assert isinstance(second, DatasetNotFoundError)
    assert "none" in str(second)
    assert third == b""


def test_what_is_not_there(place: Place) -> None:
    for read in (lambda: place.size("none"), lambda: place.read("none", 0, 1)):
        with pytest.raises(DatasetNotFoundError, match="none must exist"):
            read()
    with pytest.raises(DatasetNotFoundError):
        open_place(f"{place.address}/none").listing(deep=False)


@pytest.mark.parametrize("window", [0, 16, 1000])
def test_a_ranged_file_reads_like_any_other(place: Place, window: int) -> None:
    body = bytes(range(256)) * 4
    place.write("a", body)
    file, plain = RangedFile(place, "a", len(body), window), io.BytesIO(body)
    for position, count in ((0, 10), (5, 3), (500, 40), (490, 600), (1020, 100), (2000, 5), (0, -1)):
        assert file.seek(position) == plain.seek(position)
        assert file.read(count) == plain.read(count)
        assert file.tell() == plain.tell()
    assert file.seek(-4, io.SEEK_END) == len(body) - 4
    buffer = bytearray(10)
    assert file.readinto(buffer) == 4
    with pytest.raises(OSError, match="must not be negative"):
        file.seek(-1)


def test_secrets_are_not_written_down(tmp_path: Path) -> None:
    storage = {
        "key": "AKIA-KEY", "secret": "s3cr3t-value", "token": "t0ken", "anon": False, "profile": "me",
        "endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "x", "aws_session_token": "t0ken"},
    }  # fmt: skip
    assert public_storage(storage) == {
        "anon": False,
        "client_kwargs": {"region_name": "x"},
        "endpoint_url": "http://127.0.0.1:9",
    }
    assert public_storage({"endpoint_url": "http://me:pass@host"}) == {}
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    source = open_source(tmp_path / "a.csv", options={"storage": storage})
    assert not any(word in str(source.describe()) for word in ("AKIA", "s3cr3t", "t0ken"))
    assert not any(word in repr(source.options) for word in ("AKIA", "s3cr3t", "t0ken"))
    assert source_from(source.describe()).identity() == source.identity()


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    for address in ("s3://me:hunter2@bucket/x", "https://host/x.npz?X-Amz-Signature=hunter2"):
        with pytest.raises(ParameterError, match="address must hold no") as caught:
            open_source(address)
        assert "hunter2" not in str(caught.value)


def test_messages_of_drivers_lose_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self: MemoryFileSystem, path: str, **more: object) -> None:
        raise RuntimeError("key s3cr3t-value is\nnot known")

    place = open_place("memory://refusing", {"secret_thing": "s3cr3t-value"})
    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(EngineError, match=r"memory://refusing/a must be within reach, but: key \*\*\* is not known$"):
        place.read("a", 0, 1)


def test_an_address_of_no_known_scheme_or_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParameterError, match="address must be one that fsspec knows, got nowhere://x"):
        open_source("nowhere://x")
    with pytest.raises(ParameterError, match="address must be a path"):
        open_source(" ")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[gcs\]'"):
        open_source("gs://bucket/x")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[engine\]'"):
        open_source("s3://bucket/x")


def test_a_storage_without_one_step_uploads_is_written_under_another_name_first(tmp_path: Path) -> None:
    class Renaming(fsspec.AbstractFileSystem):
        """A folder on disk whose uploads can be seen half-done."""

        protocol = "renaming"
        cachable = False
        steps: list[str] = []  # noqa: RUF012

        def pipe_file(self, path: str, value: bytes, **more: object) -> None:
            self.steps.append(f"pipe {Path(path).suffix}")
            if value == b"fail":
                Path(path).write_bytes(b"fa")
                raise OSError("gone")
            Path(path).write_bytes(value)

        def mv(self, path1: str, path2: str, **more: object) -> None:
            self.steps.append(f"move {Path(path2).name}")
            os.replace(path1, path2)

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            os.makedirs(path, exist_ok=exist_ok)

        def exists(self, path: str, **more: object) -> bool:
            return os.path.exists(path)

        def rm_file(self, path: str) -> None:
            os.remove(path)

    fsspec.register_implementation("renaming", Renaming, clobber=True)
    place = open_place(f"renaming://{tmp_path}/out")
    place.write("a.bin", b"whole")
    assert Renaming.steps == ["pipe .part", "move a.bin"]
    with pytest.raises(EngineError, match="gone"):
        place.write("a.bin", b"fail")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["a.bin"]
    assert (tmp_path / "out/a.bin").read_bytes() == b"whole"


def test_a_listing_that_is_refused_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self: MemoryFileSystem, path: str, **more: object) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    with pytest.raises(
        EngineError, match=r"memory://mine must be open to this machine, .*: Access Denied; credentials"
    ):
        open_source("memory://mine")
