"""Matrices only: safe Cholesky, ridge states, the lambda path, the discriminant."""

from evergrow.linalg.auto import AutoState, create_state
from evergrow.linalg.block_weights import BlockChoice, choose_block_weights
from evergrow.linalg.cholesky import CholeskyFactor, safe_cholesky
from evergrow.linalg.class_shapes import ClassShapes, ShapeScores
from evergrow.linalg.compact import CompactState
from evergrow.linalg.dense import DenseState
from evergrow.linalg.discriminant import ClassGeometry, Discriminant, at_least_some
from evergrow.linalg.eigen import symmetric_eigh
from evergrow.linalg.joining import join_states
from evergrow.linalg.mean_estimates import MeanEstimates
from evergrow.linalg.recursive import RecursiveState
from evergrow.linalg.ridge_search import RidgeChoice, choose_ridge
from evergrow.linalg.solved_scatter import SolvedScatter
from evergrow.linalg.spectrum import (
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
from evergrow.linalg.state import (
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
