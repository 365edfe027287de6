"""Errors of tuners."""

from __future__ import annotations

from evergrow.core.errors import EvergrowError


class TunerError(EvergrowError, RuntimeError):
    """A tuner was asked for something that its state does not allow."""


class UnsupportedModelError(TunerError, TypeError):
    """A tuner cannot serve this architecture; the message says which part is missing or unknown."""


class ArchitectureError(TunerError, ValueError):
    """Saved parameters belong to a backbone of another architecture."""


class UnmergeableError(TunerError):
    """What a tuner computes cannot be folded into the weights of the backbone."""
