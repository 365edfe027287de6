"""Frozen backbones: load one, run it unchanged over pictures or texts, keep the features."""

from evergrow.backbones.base import Backbone, BackboneSpec

__all__ = ["Backbone", "BackboneSpec"]
