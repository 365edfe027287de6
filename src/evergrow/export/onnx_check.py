"""Does the graph compute what the model computes? onnxruntime is asked before a file is put in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.backbones.base import Backbone
from evergrow.core.feature_blocks import join_blocks
from evergrow.core.optional import require
from evergrow.core.seeding import generator
from evergrow.export.head_maps import ExportError, HeadMap
from evergrow.export.onnx_backbone import FEATURES, PIXELS, check_exportable
from evergrow.heads.base import IncrementalClassifier

AGREEMENT = 1e-4
"""Largest difference between onnxruntime's scores and ours, relative to the spread of the scores."""

_ROWS = 4


@dataclass(frozen=True)
class CheckReport:
    """What running the graph showed.

    Parameters
    ----------
    rows : int
        Random inputs that went through it, in batches of one and of all.
    difference : float
        Largest difference of a score from what the graph stands for, relative to the spread of the scores.
    from_folding : float
        Largest difference that folding makes on these inputs, on the same scale.
    """

    rows: int
    difference: float
    from_folding: float


def check_graph(
    backbone: Backbone | None, head: IncrementalClassifier, data: bytes, found: HeadMap, exact: HeadMap
) -> CheckReport:
    """Run a graph on random inputs, one by one and together, and compare its scores with ours.

    Parameters
    ----------
    backbone : Backbone or None
        What the graph's input goes through first.
    head : IncrementalClassifier
        What answers.
    data : bytes
        The graph.
    found, exact : LayerMap, VoteMap or ContrastMap
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
    inputs = _random_images(backbone) if backbone is not None else random_features(head.n_features_in_)
    features = _encoded(backbone, inputs)
    ours = np.asarray(head.class_scores(features))
    wide = torch.from_numpy(features.astype(np.float64))
    wanted = ours if found is exact else found.scores(wide).to(torch.float64).numpy()
    spread = score_spread(wanted)
    name = PIXELS if backbone is not None else FEATURES
    worst = 0.0
    for rows in (slice(0, _ROWS), *(slice(row, row + 1) for row in range(_ROWS))):
        (scores,) = session.run(["scores"], {name: inputs[rows]})
        worst = max(worst, float(np.abs(scores - wanted[rows]).max()) / spread)
    if not worst <= AGREEMENT:
        raise ExportError(
            f"onnxruntime's scores must equal ours to {AGREEMENT:g} of their spread, got a difference of {worst:.2g}"
        )
    return CheckReport(_ROWS, worst, float(np.abs(wanted - ours).max()) / spread)


def _random_images(backbone: Backbone) -> NDArray[np.uint8]:
    """Return noise of every scale: fine grain, and patches of colour."""
    height, width = check_exportable(backbone).transform.size
    stream = generator(0, "export", "images")
    coarse = torch.rand(_ROWS, 3, 6, 6, generator=stream)
    smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    grain = torch.rand(_ROWS, 3, height, width, generator=stream)
    share = torch.linspace(0.0, 1.0, _ROWS).view(-1, 1, 1, 1)
    return np.asarray((255 * (share * grain + (1 - share) * smooth)).round().to(torch.uint8).numpy())


def random_features(width: int) -> NDArray[np.float32]:
    """Return a few rows of standard normal numbers."""
    return np.asarray(torch.randn(_ROWS, width, generator=generator(0, "export", "features")).numpy())


def score_spread(scores: NDArray[np.float64]) -> float:
    """Return the largest distance between two scores of a row: what differences of scores are compared with."""
    spread = float((scores.max(axis=1) - scores.min(axis=1)).max())
    return max(spread, 1e-6 * float(np.abs(scores).max()), 1e-12)


def needs_double(found: HeadMap, width: int) -> bool:
    """Return whether float32 would round scores by more than 1e-5 of their spread.

    Log-likelihoods of a discriminant share a part that is the same for all classes and may be thousands of times larger
    than what tells classes apart.
    """
    scores = found.scores(torch.from_numpy(random_features(width).astype(np.float64))).to(torch.float64).numpy()
    return float(np.abs(scores).max()) * float(np.finfo(np.float32).eps) > 0.1 * AGREEMENT * score_spread(scores)


def _encoded(backbone: Backbone | None, inputs: NDArray[Any]) -> NDArray[Any]:
    """Return features as evergrow computes them."""
    if backbone is None:
        return inputs
    transform = check_exportable(backbone).transform
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (transform.mean, transform.std))
    images = (torch.from_numpy(inputs).to(torch.float32) / 255 - mean) / std
    return join_blocks(np.asarray(backbone.encode(images).cpu().numpy()), backbone.spec.blocks.widths)
