"""A small vision transformer and images that it can tell apart by their colours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evergrow.data.items import Images
from evergrow.features import Preprocessing, create_backbone, decode_image
from evergrow.features.image_backbone import ImageBackbone

timm = pytest.importorskip("timm")

SIDE = 16
PALETTE = np.array(
    [
        [220, 30, 30],
        [30, 220, 30],
        [40, 40, 230],
        [230, 220, 30],
        [220, 30, 220],
        [30, 220, 220],
        [240, 240, 240],
    ]
)


def small_backbone(seed: int = 0, depth: int = 2) -> ImageBackbone:
    """Return a random vision transformer of width 24 for images of 16 pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = {
            "img_size": SIDE,
            "patch_size": 8,
            "embed_dim": 24,
            "num_heads": 3,
            "depth": depth,
            "num_classes": 0,
        }
        model = timm.create_model("vit_tiny_patch16_224", **sizes)
        # Norms and biases start at 1 and 0, which would hide mistakes.
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
    half = (0.5, 0.5, 0.5)
    backbone = create_backbone(
        model.eval(),
        preset=Preprocessing(
            (SIDE, SIDE), (SIDE, SIDE), "center", "bicubic", half, half
        ),
        device="cpu",
    )
    assert isinstance(backbone, ImageBackbone)
    return backbone


def colours(
    classes: list[int], each: int, seed: int = 0
) -> tuple[Images, NDArray[np.int64]]:
    """Return noisy images of one colour per class, in mixed order."""
    draw = np.random.default_rng([seed, *classes])
    labels = draw.permutation(np.repeat(classes, each))
    pixels = PALETTE[labels][:, None, None, :] + draw.normal(
        0, 25, (len(labels), SIDE, SIDE, 3)
    )
    return Images(pixels.clip(0, 255).astype(np.uint8)), labels


def tasks(
    sizes: list[int], each: int = 12, seed: int = 0
) -> Iterator[tuple[Images, NDArray[np.int64]]]:
    """Yield tasks of so many new classes each."""
    first = 0
    for size in sizes:
        yield colours(list(range(first, first + size)), each, seed)
        first += size


def taught(model: Any, sizes: list[int]) -> Any:
    """Return a method after tasks of so many new classes each."""
    for items, labels in tasks(sizes):
        model.partial_fit(items, labels)
    return model


def shown(backbone: ImageBackbone, items: Images) -> torch.Tensor:
    """Return images as the backbone sees them in evaluation."""
    return torch.stack(
        [backbone.transform(decode_image(items.raw(row))) for row in range(len(items))]
    )
