"""Incremental classifiers on feature vectors."""

from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.classifier import Classifier
from evergrow.head.scl import SCLClassifier

__all__ = ["HEADS", "Classifier", "IncrementalClassifier", "SCLClassifier"]
