"""Registers what the laboratory adds to the product's registries; loaded when a name is not found there."""

from evergrow.lab import heads, layers, tuners  # noqa: F401
