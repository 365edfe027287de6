"""Frozen backbones: load one, run it unchanged over images or texts, keep the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names
from evergrow.features import bundles, hub  # noqa: F401 - sources of weights, which register themselves
from evergrow.features.base import Backbone, BackboneSpec

if TYPE_CHECKING:
    from evergrow.features.augment import TrainTransform, train_transform
    from evergrow.features.cache import FeatureCache
    from evergrow.features.catalog import BackboneChoice, BackboneInfo, best_backbone, list_backbones
    from evergrow.features.create import backbone_from_spec, create_backbone
    from evergrow.features.encoding import EncodeConfig, Features, encode, encode_batch, encode_chunks
    from evergrow.features.images import decode_image
    from evergrow.features.preprocess import PRESETS, Preprocessing, register_preset
    from evergrow.features.recipes import RECIPES, FeatureRecipe
    from evergrow.features.sources import WeightSource, register_weight_source
    from evergrow.features.text import TextBackbone
    from evergrow.features.vision import ImageBackbone
    from evergrow.features.weights import hash_weights, load_weights, read_weights

__all__ = [
    "PRESETS",
    "RECIPES",
    "Backbone",
    "BackboneChoice",
    "BackboneInfo",
    "BackboneSpec",
    "EncodeConfig",
    "FeatureCache",
    "FeatureRecipe",
    "Features",
    "ImageBackbone",
    "Preprocessing",
    "TextBackbone",
    "TrainTransform",
    "WeightSource",
    "backbone_from_spec",
    "best_backbone",
    "create_backbone",
    "decode_image",
    "encode",
    "encode_batch",
    "encode_chunks",
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
        "BackboneChoice": "evergrow.features.catalog",
        "BackboneInfo": "evergrow.features.catalog",
        "EncodeConfig": "evergrow.features.encoding",
        "FeatureCache": "evergrow.features.cache",
        "FeatureRecipe": "evergrow.features.recipes",
        "Features": "evergrow.features.encoding",
        "ImageBackbone": "evergrow.features.vision",
        "PRESETS": "evergrow.features.preprocess",
        "RECIPES": "evergrow.features.recipes",
        "Preprocessing": "evergrow.features.preprocess",
        "TextBackbone": "evergrow.features.text",
        "TrainTransform": "evergrow.features.augment",
        "WeightSource": "evergrow.features.sources",
        "backbone_from_spec": "evergrow.features.create",
        "best_backbone": "evergrow.features.catalog",
        "create_backbone": "evergrow.features.create",
        "decode_image": "evergrow.features.images",
        "encode": "evergrow.features.encoding",
        "encode_batch": "evergrow.features.encoding",
        "encode_chunks": "evergrow.features.encoding",
        "hash_weights": "evergrow.features.weights",
        "list_backbones": "evergrow.features.catalog",
        "load_weights": "evergrow.features.weights",
        "read_weights": "evergrow.features.weights",
        "register_preset": "evergrow.features.preprocess",
        "register_weight_source": "evergrow.features.sources",
        "train_transform": "evergrow.features.augment",
    },
)
