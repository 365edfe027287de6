"""Frozen backbones: load one, run it unchanged over pictures or texts, keep the features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evergrow.backbones.base import Backbone, BackboneSpec

if TYPE_CHECKING:
    from evergrow.backbones.augment import TrainTransform, train_transform
    from evergrow.backbones.cache import FeatureCache
    from evergrow.backbones.catalog import BackboneChoice, BackboneInfo, best_backbone, list_backbones
    from evergrow.backbones.create import backbone_from_spec, create_backbone
    from evergrow.backbones.extraction import Extraction, extract
    from evergrow.backbones.images import decode_image
    from evergrow.backbones.preprocess import PRESETS, Preprocessing
    from evergrow.backbones.settings import ExtractConfig
    from evergrow.backbones.text import TextBackbone
    from evergrow.backbones.vision import ImageBackbone
    from evergrow.backbones.weights import hash_weights, load_weights, read_weights

_LAZY = {
    "BackboneChoice": "catalog",
    "BackboneInfo": "catalog",
    "ExtractConfig": "settings",
    "Extraction": "extraction",
    "FeatureCache": "cache",
    "ImageBackbone": "vision",
    "PRESETS": "preprocess",
    "Preprocessing": "preprocess",
    "TextBackbone": "text",
    "TrainTransform": "augment",
    "backbone_from_spec": "create",
    "best_backbone": "catalog",
    "create_backbone": "create",
    "decode_image": "images",
    "extract": "extraction",
    "hash_weights": "weights",
    "list_backbones": "catalog",
    "load_weights": "weights",
    "read_weights": "weights",
    "train_transform": "augment",
}

__all__ = [
    "PRESETS",
    "Backbone",
    "BackboneChoice",
    "BackboneInfo",
    "BackboneSpec",
    "ExtractConfig",
    "Extraction",
    "FeatureCache",
    "ImageBackbone",
    "Preprocessing",
    "TextBackbone",
    "TrainTransform",
    "backbone_from_spec",
    "best_backbone",
    "create_backbone",
    "decode_image",
    "extract",
    "hash_weights",
    "list_backbones",
    "load_weights",
    "read_weights",
    "train_transform",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that importing this package costs nothing."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"evergrow.backbones.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'evergrow.backbones' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
