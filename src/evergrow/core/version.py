"""The version, in one place that imports nothing."""

__version__ = "0.4.0"
