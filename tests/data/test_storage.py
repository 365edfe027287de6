"""Storage: equal listings and ranges everywhere, one-line errors without secrets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fsspec
import pytest

from evergrow.core.errors import (
    DatasetNotFoundError,
    EngineError,
    MissingExtraError,
    ParameterError,
)
from evergrow.data import read
from evergrow.data.storage import Tree


@pytest.fixture(params=["disk", "memory"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(
        tmp_path
        if request.param == "disk"
        else f"memory://{tmp_path.name}-{os.getpid()}"
    )


def test_files_are_listed_and_read(tree: Tree) -> None:
    system, root = fsspec.core.url_to_fs(tree.address, auto_mkdir=True)
    system.pipe_file(f"{root}/b/c.bin", b"0123456789")
    system.pipe_file(f"{root}/a.bin", b"newer")
    assert tree.listing() == {"a.bin": 5, "b/c.bin": 10}
    assert tree.listing(deep=False) == {"a.bin": 5}
    assert tree.below("b").listing(deep=False) == {"c.bin": 10}
    assert tree.read("b/c.bin", 3, 6) == b"345"
    assert tree.read("b/c.bin", 8, 20) == b"89"
    assert tree.size("b/c.bin") == 10
    assert tree.is_file("a.bin")
    assert not tree.is_file("b")
    assert not tree.is_file("none")


def test_missing_files_and_folders_are_typed_errors(tree: Tree) -> None:
    for ask in (lambda: tree.size("none"), lambda: tree.read("none", 0, 1)):
        with pytest.raises(DatasetNotFoundError, match="none must exist"):
            ask()
    with pytest.raises(DatasetNotFoundError):
        Tree(f"{tree.address}/none").listing(deep=False)


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    for address in (
        "s3://me:hunter2@bucket/x",
        "https://host/x.npz?X-Amz-Signature=hunter2",
    ):
        with pytest.raises(ParameterError, match="address must not hold") as caught:
            read(address)
        assert "hunter2" not in str(caught.value)


def test_unknown_schemes_and_missing_drivers_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        ParameterError, match="address must be one that fsspec knows, got nowhere://x"
    ):
        read("nowhere://x")
    with pytest.raises(ParameterError, match="address must be a path"):
        read(" ")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'evergrow\[gcs\]'"):
        read("gs://bucket/x")


def test_a_denied_listing_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self: MemoryFileSystem, path: str, **more: object) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    with pytest.raises(
        EngineError,
        match=r"memory://mine must be within reach, .*: Access Denied; credentials",
    ):
        read("memory://mine")
