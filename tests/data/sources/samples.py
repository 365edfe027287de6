"""Small image files, and the contents of shards."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evergrow.data import Dataset, Samples, Source

LARGE = 1 << 30
NAMES = ["bee", "ant", "cat"]

Members = Sequence[tuple[str, bytes]]


def counts(data: Dataset, part: str) -> list[int]:
    """Return the samples of every class in a part."""
    codes = data.y_train if part == "train" else data.y_test
    return np.bincount(codes, minlength=data.n_classes).tolist()


def jpeg(seed: int, side: int = 24) -> bytes:
    """Return an image file that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(
        0, 256, (side, side, 3), dtype=np.uint8
    )
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def images_table(n: int = 20, side: int = 24) -> Any:
    """Return a table of Hugging Face: images with paths, and named labels."""
    pa = pytest.importorskip("pyarrow")
    cells = [{"bytes": jpeg(row, side), "path": f"{row}.jpg"} for row in range(n)]
    about = {"info": {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}}
    image = pa.array(
        cells, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )
    ballast = pa.array(
        [np.random.default_rng(row).bytes(5000).hex() for row in range(n)]
    )
    table = pa.table(
        {
            "image": image,
            "label": pa.array([row % 3 for row in range(n)]),
            "ballast": ballast,
        }
    )
    return table.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})


def image_set(n: int, side: int = 24) -> Any:
    """Return a data set of the Hugging Face library: images, and labels with names."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=NAMES),
            "note": datasets.Value("string"),
        }
    )
    rows = {
        "image": [{"bytes": jpeg(row, side), "path": None} for row in range(n)],
        "label": [row % 3 for row in range(n)],
        "note": ["-"] * n,
    }
    return datasets.Dataset.from_dict(rows, features=features)


def write_tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def labelled(first: int, count: int, side: int = 24) -> list[tuple[str, bytes]]:
    members = []
    for row in range(first, first + count):
        members += [
            (f"{row:06d}.jpg", jpeg(row, side)),
            (f"{row:06d}.cls", str(row % 3).encode()),
        ]
    return members


def write_parquet(path: Path) -> None:
    """Write a table of six images in two groups."""
    pytest.importorskip("pyarrow.parquet").write_table(
        images_table(6), path, row_group_size=3
    )


def write_arrow(path: Path) -> None:
    """Write five images as one file of the Hugging Face library."""
    image_set(5).save_to_disk(path.parent / "whole")
    next((path.parent / "whole").glob("*.arrow")).rename(path)


ROWS = {
    "X": np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32),
    "y": np.arange(60),
}
FILES: dict[str, Callable[[Path], object]] = {
    "a.npz": lambda path: np.savez(path, **ROWS),
    "b.npz": lambda path: np.savez_compressed(path, **ROWS),
    "a.parquet": write_parquet,
    "a.arrow": write_arrow,
    "a.tar": lambda path: write_tar(path, labelled(0, 10)),
}
"""Names of small files of every format, and what writes them."""


def parts_of(source: Source, rows: int = 99, size: int = LARGE) -> list[Samples]:
    """Return every shard of a source."""
    return [source.read(shard) for shard in source.shards(rows, size)]


def bodies(*parts: Samples) -> list[bytes]:
    """Return the image files of shards, however they hold them."""
    raw = [part.items.raw(row) for part in parts for row in range(len(part))]
    return [item.read_bytes() if isinstance(item, Path) else item for item in raw]


def labels_of(parts: Iterable[Samples]) -> list[str]:
    """Return the labels of all shards."""
    return [label for part in parts for label in part.labels.tolist()]


def names_of(parts: Iterable[Samples]) -> list[str]:
    """Return the names of all samples."""
    return [name for part in parts for name in part.names()]
