"""Registers the heads, layers and tuners of the lab, when first looked up by name."""

from evergrow.lab import heads, layers, tuners  # noqa: F401
