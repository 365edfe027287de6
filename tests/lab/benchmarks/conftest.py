"""Tiny data sets on disk."""

from tests.data.conftest import alone, tree

__all__ = ["alone", "tree"]
