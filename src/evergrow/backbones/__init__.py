"""Frozen backbones: load one, run it unchanged over images or texts, keep the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.backbones import bundles, hub  # noqa: F401 - sources of weights, which register themselves
from evergrow.backbones.base import Backbone, BackboneSpec
from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.backbones.augment import TrainTransform, train_transform
    from evergrow.backbones.cache import FeatureCache
    from evergrow.backbones.catalog import BackboneChoice, BackboneInfo, best_backbone, list_backbones
    from evergrow.backbones.create import backbone_from_spec, create_backbone
    from evergrow.backbones.extraction import Extraction, extract
    from evergrow.backbones.images import decode_image
    from evergrow.backbones.preprocess import PRESETS, Preprocessing, register_preset
    from evergrow.backbones.recipes import RECIPES, FeatureRecipe
    from evergrow.backbones.settings import ExtractConfig
    from evergrow.backbones.sources import WeightSource, register_weight_source
    from evergrow.backbones.text import TextBackbone
    from evergrow.backbones.vision import ImageBackbone
    from evergrow.backbones.weights import hash_weights, load_weights, read_weights

__all__ = [
    "PRESETS",
    "RECIPES",
    "Backbone",
    "BackboneChoice",
    "BackboneInfo",
    "BackboneSpec",
    "ExtractConfig",
    "Extraction",
    "FeatureCache",
    "FeatureRecipe",
    "ImageBackbone",
    "Preprocessing",
    "TextBackbone",
    "TrainTransform",
    "WeightSource",
    "backbone_from_spec",
    "best_backbone",
    "create_backbone",
    "decode_image",
    "extract",
    "hash_weights",
    "list_backbones",
    "load_weights",
    "read_weights",
    "register_preset",
    "register_weight_source",
    "train_transform",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BackboneChoice": "evergrow.backbones.catalog",
        "BackboneInfo": "evergrow.backbones.catalog",
        "ExtractConfig": "evergrow.backbones.settings",
        "Extraction": "evergrow.backbones.extraction",
        "FeatureCache": "evergrow.backbones.cache",
        "FeatureRecipe": "evergrow.backbones.recipes",
        "ImageBackbone": "evergrow.backbones.vision",
        "PRESETS": "evergrow.backbones.preprocess",
        "RECIPES": "evergrow.backbones.recipes",
        "Preprocessing": "evergrow.backbones.preprocess",
        "TextBackbone": "evergrow.backbones.text",
        "TrainTransform": "evergrow.backbones.augment",
        "WeightSource": "evergrow.backbones.sources",
        "backbone_from_spec": "evergrow.backbones.create",
        "best_backbone": "evergrow.backbones.catalog",
        "create_backbone": "evergrow.backbones.create",
        "decode_image": "evergrow.backbones.images",
        "extract": "evergrow.backbones.extraction",
        "hash_weights": "evergrow.backbones.weights",
        "list_backbones": "evergrow.backbones.catalog",
        "load_weights": "evergrow.backbones.weights",
        "read_weights": "evergrow.backbones.weights",
        "register_preset": "evergrow.backbones.preprocess",
        "register_weight_source": "evergrow.backbones.sources",
        "train_transform": "evergrow.backbones.augment",
    },
)
