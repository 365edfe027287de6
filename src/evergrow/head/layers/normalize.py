"""Normalisation of features before the projection."""

from __future__ import annotations

import torch
from torch import Tensor

from evergrow.core.validation import check_choice

NORMALIZATIONS = ("none", "l2", "sqrt-l2")


def resolve_normalization(rule: str, Z: Tensor) -> str:
    """Settle ``"auto"`` on the first task: signed square root where features are non-negative, then L2.

    Pooled activations of most networks are non-negative and heavy-tailed; their square root (the Hellinger
    map) evens that out.
    """
    check_choice("normalize", rule, ("auto", *NORMALIZATIONS))
    if rule != "auto":
        return rule
    return "sqrt-l2" if bool((Z >= 0.0).all()) else "l2"


def normalize(Z: Tensor, rule: str) -> Tensor:
    """Apply a rule to rows, of whatever size they are; a row of zeros stays one.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.layers.normalize import normalize
    >>> normalize(torch.tensor([[3.0, 4.0]]), "l2")
    tensor([[0.6000, 0.8000]])
    """
    if rule == "none":
        return Z
    if rule == "sqrt-l2":
        Z = Z.sign() * Z.abs().sqrt()
    norms: Tensor = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    # Squares of large numbers overflow and those of small ones vanish: such rows are brought to size first.
    limits = torch.finfo(Z.dtype)
    extreme = ~((norms > limits.tiny**0.5 / limits.eps) & (norms < limits.max**0.5 * limits.eps))
    if bool(extreme.any()):
        largest = Z.abs().amax(dim=1, keepdim=True)
        Z = torch.where(extreme & (largest > 0.0), Z / largest, Z)
        norms = torch.linalg.vector_norm(Z, dim=1, keepdim=True)
    return Z / torch.where(norms > 0.0, norms, torch.ones_like(norms))
