"""Frozen backbones: load one, run it unchanged over images or texts, keep the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.features.backbones import ImageBackbone, backbone_from_spec, create_backbone
    from evergrow.features.base import RECIPES, Backbone, BackboneSpec, FeatureRecipe
    from evergrow.features.cache import FeatureCache
    from evergrow.features.encoding import EncodeConfig, Features, encode, encode_batch
    from evergrow.features.feature_sets import featurize
    from evergrow.features.images import decode_image
    from evergrow.features.preprocess import PRESETS, Preprocessing
    from evergrow.features.sources import (
        BackboneChoice,
        BackboneInfo,
        WeightSource,
        best_backbone,
        list_backbones,
        register_weight_source,
    )
    from evergrow.features.text import TextBackbone
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
    "WeightSource",
    "backbone_from_spec",
    "best_backbone",
    "create_backbone",
    "decode_image",
    "encode",
    "encode_batch",
    "featurize",
    "hash_weights",
    "list_backbones",
    "load_weights",
    "read_weights",
    "register_weight_source",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backbone": "evergrow.features.base",
        "BackboneChoice": "evergrow.features.sources",
        "BackboneInfo": "evergrow.features.sources",
        "BackboneSpec": "evergrow.features.base",
        "EncodeConfig": "evergrow.features.encoding",
        "FeatureCache": "evergrow.features.cache",
        "FeatureRecipe": "evergrow.features.base",
        "Features": "evergrow.features.encoding",
        "ImageBackbone": "evergrow.features.backbones",
        "PRESETS": "evergrow.features.preprocess",
        "Preprocessing": "evergrow.features.preprocess",
        "RECIPES": "evergrow.features.base",
        "TextBackbone": "evergrow.features.text",
        "WeightSource": "evergrow.features.sources",
        "backbone_from_spec": "evergrow.features.backbones",
        "best_backbone": "evergrow.features.sources",
        "create_backbone": "evergrow.features.backbones",
        "decode_image": "evergrow.features.images",
        "encode": "evergrow.features.encoding",
        "encode_batch": "evergrow.features.encoding",
        "featurize": "evergrow.features.feature_sets",
        "hash_weights": "evergrow.features.weights",
        "list_backbones": "evergrow.features.sources",
        "load_weights": "evergrow.features.weights",
        "read_weights": "evergrow.features.weights",
        "register_weight_source": "evergrow.features.sources",
    },
)
