"""Small image files, and what the shards of a source hold."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evergrow.data import Samples, Source

LARGE = 1 << 30
NAMES = ["bee", "ant", "cat"]


def jpeg(seed: int, side: int = 24) -> bytes:
    """Return an image file that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG")
    return stream.getvalue()


def images_table(n: int = 20, side: int = 24) -> Any:
    """Return a table as the Hugging Face library writes it: images with their paths, and labels with names."""
    pa = pytest.importorskip("pyarrow")
    cells = [{"bytes": jpeg(row, side), "path": f"{row}.jpg"} for row in range(n)]
    about = {"info": {"features": {"label": {"names": NAMES, "_type": "ClassLabel"}}}}
    image = pa.array(cells, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    ballast = pa.array([np.random.default_rng(row).bytes(5000).hex() for row in range(n)])
    table = pa.table({"image": image, "label": pa.array([row % 3 for row in range(n)]), "ballast": ballast})
    return table.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})


def image_set(n: int, side: int = 24) -> Any:
    """Return a data set of the Hugging Face library: images, and labels with names."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES), "note": datasets.Value("string")}
    )
    rows = {
        "image": [{"bytes": jpeg(row, side), "path": None} for row in range(n)],
        "label": [row % 3 for row in range(n)],
        "note": ["-"] * n,
    }
    return datasets.Dataset.from_dict(rows, features=features)


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
