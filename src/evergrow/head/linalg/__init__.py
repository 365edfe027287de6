"""Statistics of ridge regression, and what is solved and chosen from them."""

from __future__ import annotations

import torch

from evergrow.core.validation import check_choice
from evergrow.head.linalg.block_weights import LARGEST_BLOCK_WEIGHT, choose_block_weights
from evergrow.head.linalg.class_shapes import LIKELIEST, ClassShapes, ShapeScores
from evergrow.head.linalg.factor import CholeskyFactor, safe_cholesky, symmetric_eigh
from evergrow.head.linalg.mean_estimates import MeanEstimates
from evergrow.head.linalg.recursive import LARGEST_WEIGHT, RecursiveState
from evergrow.head.linalg.ridge_choice import (
    PAPER_ALPHAS,
    AlphaChoice,
    Spectrum,
    alpha_grid,
    choose_by_gcv,
    choose_by_holdout,
    choose_ridge,
)
from evergrow.head.linalg.scatter import ClassGeometry, SolvedScatter, at_least_some
from evergrow.head.linalg.statistics import (
    LARGEST,
    RidgeSolution,
    RidgeState,
    RidgeStatistics,
    check_gram,
    check_size,
    sum_columns,
    take_columns,
)

__all__ = [
    "LARGEST",
    "LARGEST_BLOCK_WEIGHT",
    "LARGEST_WEIGHT",
    "LIKELIEST",
    "PAPER_ALPHAS",
    "SOLVERS",
    "AlphaChoice",
    "CholeskyFactor",
    "ClassGeometry",
    "ClassShapes",
    "MeanEstimates",
    "RecursiveState",
    "RidgeSolution",
    "RidgeState",
    "RidgeStatistics",
    "ShapeScores",
    "SolvedScatter",
    "Spectrum",
    "alpha_grid",
    "at_least_some",
    "check_gram",
    "check_size",
    "choose_block_weights",
    "choose_by_gcv",
    "choose_by_holdout",
    "choose_ridge",
    "create_state",
    "safe_cholesky",
    "sum_columns",
    "symmetric_eigh",
    "take_columns",
]

SOLVERS = ("auto", "dense", "compact", "recursive")
"""Forms of the statistics that users choose from."""


def create_state(
    solver: str,
    n_features: int,
    n_targets: int,
    *,
    alpha: float | None,
    floor: float,
    device: torch.device | str = "cpu",
) -> RidgeState:
    """Return statistics of no rows.

    Parameters
    ----------
    solver : {"auto", "dense", "compact", "recursive"}
        Form; ``"auto"`` is compact while that is cheaper, then dense.
    n_features, n_targets : int
        Shape.
    alpha : float or None
        The ridge of the recursion; None takes the smallest.
    floor : float
        The smallest ridge that will be asked for.
    device : torch.device or str
        Where the statistics live.

    Examples
    --------
    >>> from evergrow.head.linalg import create_state
    >>> create_state("auto", 4, 2, alpha=0.1, floor=0.1).form
    'dense'
    """
    check_choice("solver", solver, SOLVERS)
    if solver == "recursive":
        return RecursiveState.create(n_features, n_targets, alpha=floor if alpha is None else alpha, device=device)
    return RidgeStatistics.create(n_features, n_targets, solver, floor=floor, device=device)
