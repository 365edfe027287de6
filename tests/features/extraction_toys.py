"""A small backbone and small images, for tests and the processes that they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from evergrow.data.items import Images, Items
from evergrow.features.backbone import Backbone, BackboneSpec

SIDE = 8


def pixels_of(image: Any) -> torch.Tensor:
    """Resize to 8 x 8 and scale to [0, 1]."""
    small = np.asarray(
        image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float32
    )
    return torch.from_numpy(small / 255).permute(2, 0, 1).contiguous()


class Toy(Backbone):
    """The mean colour, and three fixed mixtures of it."""

    mixing = torch.tensor([[1.0, -1.0, 0.5], [0.25, 2.0, -3.0], [0.0, 1.0, 1.0]])

    def __init__(self, **changes: Any) -> None:
        values = {
            "name": "toy",
            "kind": "image",
            "n_features": 6,
            "weights": "module",
            "weights_hash": "00",
            "preset": "timm",
            "preprocessing": {"size": [SIDE, SIDE]},
            "options": {},
        }
        self.spec = BackboneSpec(**{**values, **changes})
        self.transform = pixels_of
        self.device = torch.device("cpu")
        self.batches: list[int] = []

    def encode(self, batch: Any) -> torch.Tensor:
        self.batches.append(len(batch))
        mean = batch.mean(dim=(2, 3))
        return torch.cat([mean, mean @ self.mixing], dim=1)

    def to(self, device: Any) -> Toy:
        return self


class LetterCounter(Backbone):
    """Length, number of vowels and first letter of a text."""

    def __init__(self) -> None:
        self.spec = BackboneSpec("letters", "text", 3, "module", "00", "", {}, {})
        self.transform = None
        self.device = torch.device("cpu")
        self.seen: list[list[str]] = []

    def encode(self, batch: Any) -> torch.Tensor:
        self.seen.append(list(batch))
        rows = [
            [len(t), sum(c in "aeiou" for c in t), ord(t[0]) if t else 0] for t in batch
        ]
        return torch.tensor(rows, dtype=torch.float32)

    def to(self, device: Any) -> LetterCounter:
        return self


def synthetic(n: int) -> Images:
    """Return images of one grey each, which take one byte of memory each."""
    greys = (np.arange(n) % 251).astype(np.uint8)
    return Images(np.broadcast_to(greys[:, None, None, None], (n, SIDE, SIDE, 3)))


def write_images(folder: Path, n: int) -> Images:
    """Write small images of random colours into two folders."""
    colours = np.random.default_rng(0).integers(
        0, 256, size=(n, 12, 10, 3), dtype=np.uint8
    )
    names = []
    for row, colour in enumerate(colours):
        name = f"{'even' if row % 2 == 0 else 'odd'}/{row:03d}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(colour).save(folder / name)
        names.append(name)
    return Images(tuple(names), root=folder)


def expected_features(items: Items, rows: Any = None) -> np.ndarray:
    """Compute the toy's features one image at a time, with PIL and numpy alone."""
    found = []
    for row in range(len(items)) if rows is None else rows:
        source = items.raw(row)
        if isinstance(source, np.ndarray):
            image = Image.fromarray(source)
        else:
            image = Image.open(source).convert("RGB")
        small = (
            np.asarray(
                image.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64
            )
            / 255
        )
        mean = small.mean(axis=(0, 1))
        found.append(
            np.concatenate([mean, mean @ Toy.mixing.numpy().astype(np.float64)])
        )
    return np.array(found)
