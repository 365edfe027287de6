"""Frozen backbones: load one, run it unchanged over images or texts, keep the features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.features.backbones import (
        ImageBackbone,
        TextBackbone,
        backbone_from_spec,
        create_backbone,
    )
    from evergrow.features.base import RECIPES, Backbone, BackboneSpec, FeatureRecipe
    from evergrow.features.cache import FeatureCache
    from evergrow.features.encoding import (
        EncodeConfig,
        Features,
        encode,
        encode_batch,
        featurize,
    )
    from evergrow.features.images import decode_image
    from evergrow.features.preprocess import PRESETS, Preprocessing
    from evergrow.features.weight_sources import (
        BackboneInfo,
        best_backbone,
        list_backbones,
    )
    from evergrow.features.weights import hash_weights, load_weights, read_weights

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
    "backbones": (
        "ImageBackbone",
        "TextBackbone",
        "backbone_from_spec",
        "create_backbone",
    ),
    "base": ("RECIPES", "Backbone", "BackboneSpec", "FeatureRecipe"),
    "cache": ("FeatureCache",),
    "encoding": ("EncodeConfig", "Features", "encode", "encode_batch", "featurize"),
    "images": ("decode_image",),
    "preprocess": ("PRESETS", "Preprocessing"),
    "weight_sources": ("BackboneInfo", "best_backbone", "list_backbones"),
    "weights": ("hash_weights", "load_weights", "read_weights"),
}
"""Public names by the module that is imported when one of them is first used."""

_PLACES = {
    name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names
}
__getattr__, __dir__ = lazy_names(__name__, _PLACES)
