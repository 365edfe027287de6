"""Matrices only: safe Cholesky, ridge states, the lambda path, the discriminant."""

from evergrow.head.linalg.auto import AutoState, create_state
from evergrow.head.linalg.block_weights import BlockChoice, choose_block_weights
from evergrow.head.linalg.cholesky import CholeskyFactor, safe_cholesky
from evergrow.head.linalg.class_shapes import ClassShapes, ShapeScores
from evergrow.head.linalg.compact import CompactState
from evergrow.head.linalg.dense import DenseState
from evergrow.head.linalg.discriminant import ClassGeometry, Discriminant, at_least_some
from evergrow.head.linalg.eigen import symmetric_eigh
from evergrow.head.linalg.joining import join_states
from evergrow.head.linalg.mean_estimates import MeanEstimates
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.ridge_search import RidgeChoice, choose_ridge
from evergrow.head.linalg.solved_scatter import SolvedScatter
from evergrow.head.linalg.spectrum import (
    GCV_REACH,
    PAPER_ALPHAS,
    AlphaChoice,
    Spectrum,
    alpha_grid,
    choose_by_cholesky,
    choose_by_gcv,
    choose_by_holdout,
    gcv_by_cholesky,
)
from evergrow.head.linalg.state import (
    RIDGE_FORMS,
    ReducedStatistics,
    RidgeSolution,
    RidgeState,
    Totals,
    read_state,
    take_columns,
)

__all__ = [
    "GCV_REACH",
    "PAPER_ALPHAS",
    "RIDGE_FORMS",
    "AlphaChoice",
    "AutoState",
    "BlockChoice",
    "CholeskyFactor",
    "ClassGeometry",
    "ClassShapes",
    "CompactState",
    "DenseState",
    "Discriminant",
    "MeanEstimates",
    "RecursiveState",
    "ReducedStatistics",
    "RidgeChoice",
    "RidgeSolution",
    "RidgeState",
    "ShapeScores",
    "SolvedScatter",
    "Spectrum",
    "Totals",
    "alpha_grid",
    "at_least_some",
    "choose_block_weights",
    "choose_by_cholesky",
    "choose_by_gcv",
    "choose_by_holdout",
    "choose_ridge",
    "create_state",
    "gcv_by_cholesky",
    "join_states",
    "read_state",
    "safe_cholesky",
    "symmetric_eigh",
    "take_columns",
]
