"""A fitted head as an export sees it: plain matrices, and the temperature of its probabilities."""

from __future__ import annotations

from evergrow.core.errors import EvergrowError, UnsupportedError
from evergrow.head.base import IncrementalClassifier
from evergrow.head.layers.feature_map import Units
from evergrow.head.maps import LayerMap, ShapeMap

__all__ = ["ExportError", "LayerMap", "ShapeMap", "Units", "read_head"]


class ExportError(EvergrowError, RuntimeError):
    """A model cannot be written in the wanted form; nothing was written."""


def read_head(head: IncrementalClassifier) -> tuple[LayerMap, float | None]:
    """Return what a fitted head computes, and the temperature of its probabilities where it has them.

    Parameters
    ----------
    head : IncrementalClassifier
        A fitted head; solved if it was not yet, otherwise left as it is.

    Raises
    ------
    ExportError
        If the head cannot say what it computes as plain matrices.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> from evergrow.export.head_maps import read_head
    >>> found, temperature = read_head(SimpleCILClassifier().fit([[2.0, 0.0], [0.0, 3.0]], ["a", "b"]))
    >>> found.scores(torch.tensor([[5.0, 0.0]], dtype=torch.float64)).tolist(), temperature
    ([[1.0, 0.0]], None)
    """
    try:
        return head.linear_map(), getattr(head, "temperature_", None)
    except UnsupportedError as error:
        raise ExportError(f"head must be of a kind that can be exported: {error}") from error
