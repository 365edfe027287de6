"""Errors of trainings."""

from __future__ import annotations

from evergrow.core.errors import EvergrowError, NumericalError


class TrainingError(NumericalError):
    """Training left the finite numbers, even in float32; the message says when."""


class CheckpointError(EvergrowError, ValueError):
    """A checkpoint belongs to another training than the one that wants to go on from it."""
