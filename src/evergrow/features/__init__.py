"""Frozen backbones: load one, run it unchanged over images or texts, keep the features."""

from evergrow.features.backbones import ImageBackbone, backbone_from_spec, create_backbone
from evergrow.features.base import Backbone, BackboneSpec
from evergrow.features.cache import FeatureCache
from evergrow.features.encoding import EncodeConfig, Features, encode, encode_batch
from evergrow.features.feature_sets import featurize
from evergrow.features.images import decode_image
from evergrow.features.preprocess import PRESETS, Preprocessing
from evergrow.features.recipes import RECIPES, FeatureRecipe
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
