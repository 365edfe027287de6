"""Small data sets, a counter of storage requests, and a real S3 server."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.data.sources.samples import jpeg
from tests.engine.object_storage import s3, s3_server

__all__ = ["s3", "s3_server"]  # fixtures


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 3 classes of 4 images: in folders, in a table, and with metadata."""
    root = tmp_path_factory.mktemp("image-sets")
    rows = [
        (f"{('ant', 'bee', 'cat')[row // 4]}/{row % 4}.jpg", row) for row in range(12)
    ]
    for folder in ("classes", "named"):
        for name, row in rows:
            (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(jpeg(row))
    (root / "list.csv").write_text(
        "path,label\n"
        + "".join(f"classes/{name},{name[0].upper()}\n" for name, _ in rows)
    )
    (root / "named/metadata.csv").write_text(
        "file_name,label\n" + "".join(f"{name},{row % 2}\n" for name, row in rows)
    )
    return root


@dataclass
class Traffic:
    """Bytes and requests that were read from ``memory://``."""

    sizes: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.sizes)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Count bytes read from an empty ``memory://``; fail if whole files are opened."""
    from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    counted = Traffic()
    original = MemoryFileSystem.cat_file

    def cat_file(
        self: MemoryFileSystem,
        path: str,
        start: int | None = None,
        end: int | None = None,
        **more: object,
    ):
        assert start is not None, "a source must ask for ranges"
        assert end is not None, "a source must ask for ranges"
        before = len(counted.sizes)
        body = original(
            self, path, start=start, end=end, **more
        )  # which opens and reads the file
        counted.sizes[before:] = [len(body)]
        return body

    def read(self: MemoryFile, size: int | None = -1) -> bytes:
        body = io.BytesIO.read(self, size)
        counted.sizes.append(len(body))
        return body

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    monkeypatch.setattr(MemoryFile, "read", read)
    return counted
