"""Compute features of images and texts with frozen backbones, and cache them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.features.backbone import (
        RECIPES,
        Backbone,
        BackboneSpec,
        FeatureRecipe,
    )
    from evergrow.features.cache import FeatureCache
    from evergrow.features.catalog import backbone_from_spec, create_backbone
    from evergrow.features.encoding import (
        EncodeConfig,
        Features,
        encode,
        encode_batch,
        featurize,
    )
    from evergrow.features.image_backbone import ImageBackbone
    from evergrow.features.images import decode_image
    from evergrow.features.joined_backbone import JoinedBackbone
    from evergrow.features.preprocess import PRESETS, Preprocessing
    from evergrow.features.text_backbone import TextBackbone
    from evergrow.features.weights import (
        BackboneInfo,
        best_backbone,
        hash_weights,
        list_backbones,
        load_weights,
        read_weights,
    )

__all__ = [
    "PRESETS",
    "RECIPES",
    "Backbone",
    "BackboneInfo",
    "BackboneSpec",
    "EncodeConfig",
    "FeatureCache",
    "FeatureRecipe",
    "Features",
    "ImageBackbone",
    "JoinedBackbone",
    "Preprocessing",
    "TextBackbone",
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
]

_HOMES = {
    "backbone": ("RECIPES", "Backbone", "BackboneSpec", "FeatureRecipe"),
    "cache": ("FeatureCache",),
    "catalog": ("backbone_from_spec", "create_backbone"),
    "encoding": ("EncodeConfig", "Features", "encode", "encode_batch", "featurize"),
    "image_backbone": ("ImageBackbone",),
    "images": ("decode_image",),
    "joined_backbone": ("JoinedBackbone",),
    "preprocess": ("PRESETS", "Preprocessing"),
    "text_backbone": ("TextBackbone",),
    "weights": (
        "BackboneInfo",
        "best_backbone",
        "hash_weights",
        "list_backbones",
        "load_weights",
        "read_weights",
    ),
}
"""Public names by module. A module is imported when one of its names is used."""

_MODULES = {
    name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names
}
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
