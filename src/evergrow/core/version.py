"""The version, in one place that imports nothing."""

__version__ = "0.2.0.dev0"
