"""Small backbones and images, for fast training."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from evergrow.data.items import Images
from evergrow.features import ImageBackbone, create_backbone

VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


def tiny_vit(seed: int = 0, **options: Any) -> ImageBackbone:
    """Return a vision transformer of two blocks for images of 16 x 16."""
    backbone = create_backbone(
        "vit_tiny_patch16_224",
        weights="random",
        preset="pilot",
        device="cpu",
        seed=seed,
        **{**VIT, **options},
    )
    assert isinstance(backbone, ImageBackbone)
    return backbone


def stripes(
    n_classes: int, per_class: int, seed: int = 0, side: int = 16
) -> tuple[Images, np.ndarray]:
    """Return noisy images, one colour gradient per class, and their classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_classes * per_class) % n_classes
    looks = np.random.default_rng(1).uniform(0, 200, size=(n_classes, side, 1, 3))
    pixels = looks[y] + rng.uniform(0, 55, size=(len(y), side, side, 3))
    return Images(pixels.astype(np.uint8)), y


def patch_tokens(model: Any, images: Tensor) -> Tensor:
    """Return the tokens that enter the first block of a vision transformer."""
    return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
