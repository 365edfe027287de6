"""The version, in one place that imports nothing."""

__version__ = "0.3.0.dev0"
