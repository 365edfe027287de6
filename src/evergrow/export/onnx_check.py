"""Does the graph compute what the model computes? onnxruntime is asked before a file is put in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.optional import require
from evergrow.export.head_maps import ExportError, LayerMap
from evergrow.export.onnx_inputs import GraphInput, random_features
from evergrow.head.base import IncrementalClassifier

AGREEMENT = 1e-4
"""Largest difference between onnxruntime's scores and ours, relative to the spread of the scores."""


@dataclass(frozen=True)
class CheckReport:
    """What running the graph showed.

    Parameters
    ----------
    rows : int
        Samples that went through it, in batches of one and of all.
    difference : float
        Largest difference of a score from what the graph stands for, relative to the spread of the scores.
    from_folding : float
        Largest difference that folding makes on these inputs, on the same scale.
    samples : str
        What the samples were, in words.
    """

    rows: int
    difference: float
    from_folding: float
    samples: str = "random inputs"


def check_graph(
    source: GraphInput, head: IncrementalClassifier, data: bytes, found: LayerMap, exact: LayerMap
) -> CheckReport:
    """Run a graph on samples, one by one and together, and compare its scores with ours.

    Parameters
    ----------
    source : GraphInput
        What the graph takes.
    head : IncrementalClassifier
        What answers.
    data : bytes
        The graph.
    found, exact : LayerMap
        The head as it is in the graph, and before folding; the same object where nothing was folded.

    Raises
    ------
    ExportError
        If the graph does not run, or its scores differ by more than 1e-4 of their spread.
    """
    runtime = require("onnxruntime", extra="onnx", purpose="checking an ONNX file")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common parent but this
        raise ExportError(f"the graph must be one that onnxruntime can run, but {error}") from error
    features = source.features()
    ours = np.asarray(head.class_scores(features))
    wide = torch.from_numpy(features.astype(np.float64))
    wanted = ours if found is exact else found.scores(wide).to(torch.float64).numpy()
    spread = score_spread(wanted)
    taken, worst = {value.name for value in session.get_inputs()}, 0.0
    for inputs, rows in source.batches():
        (scores,) = session.run(["scores"], {name: value for name, value in inputs.items() if name in taken})
        worst = max(worst, float(np.abs(scores - wanted[rows]).max()) / spread)
    if not worst <= AGREEMENT:
        raise ExportError(
            f"onnxruntime's scores must equal ours to {AGREEMENT:g} of their spread, got a difference of {worst:.2g}"
        )
    return CheckReport(len(ours), worst, float(np.abs(wanted - ours).max()) / spread, source.samples)


def score_spread(scores: NDArray[np.float64]) -> float:
    """Return the largest distance between two scores of a row: what differences of scores are compared with."""
    spread = float((scores.max(axis=1) - scores.min(axis=1)).max())
    return max(spread, 1e-6 * float(np.abs(scores).max()), 1e-12)


def needs_double(found: LayerMap, width: int) -> bool:
    """Return whether float32 would round scores by more than 1e-5 of their spread.

    Log-likelihoods of a discriminant share a part that is the same for all classes and may be thousands of times larger
    than what tells classes apart.
    """
    scores = found.scores(torch.from_numpy(random_features(width).astype(np.float64))).to(torch.float64).numpy()
    return float(np.abs(scores).max()) * float(np.finfo(np.float32).eps) > 0.1 * AGREEMENT * score_spread(scores)
