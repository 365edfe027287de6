"""Which level of features to take: ``fast``, ``rich`` and ``best`` tried on a sample of labelled data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import cross_val_predict

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.seeding import generator
from evergrow.data.items import Samples
from evergrow.features import Backbone, best_backbone, create_backbone, encode
from evergrow.features.images import median_side
from evergrow.head import Classifier

LEVELS = ("fast", "rich", "best")
"""Levels of features, the cheapest first."""

BUDGET = 60.0
"""Seconds that the passes of all levels may take; what comes before and after fits into two minutes with them."""

_PASSES = 10.0  # of the network at its own size, for all levels together
_FOLDS = 3
_MOST = 1000  # samples
_FIRST = 16  # samples that tell how fast the machine is
_UNITS = 500


@dataclass(frozen=True)
class LevelTrial:
    """How a level did on a sample.

    Parameters
    ----------
    level : str
        Its name, one of :data:`LEVELS`.
    accuracy : float
        Share of held-out samples that were recognised; every sample was held out once.
    error : float
        Standard error of the accuracy.
    seconds : float
        Time for one sample on this machine.
    samples, classes : int
        What it was tried on.
    blocks : tuple of str
        What the features were made of.
    """

    level: str
    accuracy: float
    error: float
    seconds: float
    samples: int
    classes: int
    blocks: tuple[str, ...]


def try_levels(
    samples: Samples,
    backbone: str | Backbone = "auto",
    *,
    device: str | torch.device = "auto",
    budget: float = BUDGET,
    seed: int = 0,
) -> list[LevelTrial]:
    """Return how each level of features does on some of the samples, a third of them held out at a time.

    Parameters
    ----------
    samples : Samples
        Labelled images or texts.
    backbone : str or Backbone
        A name, or the best one at hand.
    device : str or torch.device
        Where to compute.
    budget : float
        Seconds for all passes; as many samples are taken as fit, at most 1,000.
    seed : int
        Of the draw of samples.

    Returns
    -------
    list of LevelTrial
        The cheapest first; a level that is the same as the one before it is left out,
        as for texts.

    Raises
    ------
    InputError
        If samples are feature vectors, or fewer than two classes have three samples.
    """
    if samples.kind == "features":
        raise InputError(
            "Levels are of features of images and texts; these are feature vectors already."
        )
    labels = samples.required_labels()
    items = samples.raw_items()
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    usable = np.flatnonzero(counts[codes] >= _FOLDS)
    if len(np.unique(codes[usable])) < 2:
        raise InputError(
            f"Two classes with {_FOLDS} samples each are needed to try levels; there are fewer."
        )
    if isinstance(backbone, str):
        if backbone == "auto":
            name = best_backbone(items.kind).name
        else:
            name = backbone
        backbone = create_backbone(name, device=device)
    shuffled = usable[
        torch.randperm(len(usable), generator=generator(seed, "levels")).numpy()
    ]
    fast = backbone.with_recipe("fast")
    encode(
        fast, items.take(shuffled[:2]), cache=False, on_error="skip"
    )  # what is set up once is not timed
    started = time.perf_counter()
    encode(fast, items.take(shuffled[:_FIRST]), cache=False, on_error="skip")
    each = (time.perf_counter() - started) / min(_FIRST, len(shuffled))
    rows = _drawn(
        shuffled, codes, max(_FOLDS * 2, min(_MOST, int(budget / (_PASSES * each))))
    )
    side = None
    if items.kind == "image":
        side = median_side(items)
    trials: list[LevelTrial] = []
    for level in LEVELS:
        try:
            network = backbone.with_recipe("auto" if level == "rich" else level, side)
        except ParameterError:  # a network without depths has its own vector only
            continue
        blocks = network.spec.blocks
        if trials and trials[-1].blocks == blocks.blocks:
            continue
        found = encode(network, items.take(rows), cache=False, on_error="skip")
        right = _held_out(found.X, codes[rows][found.rows], blocks.widths)
        share = float(right.mean())
        n = len(right)
        error = float(np.sqrt(max(share * (1 - share), 1 / n / 4) / n))
        kinds = len(np.unique(codes[rows]))
        trials.append(
            LevelTrial(
                level, share, error, found.seconds / len(rows), n, kinds, blocks.blocks
            )
        )
    return trials


def _drawn(shuffled: Any, codes: Any, most: int) -> Any:
    """Return rows of as many classes as have three samples among so many, as many of each class."""
    chosen = np.unique(codes[shuffled])[: max(2, most // _FOLDS)]
    return np.concatenate(
        [
            shuffled[codes[shuffled] == code][: max(_FOLDS, most // len(chosen))]
            for code in chosen
        ]
    )


def _held_out(X: Any, y: Any, widths: tuple[int, ...]) -> Any:
    """Return which rows were recognised by a classifier that had learned the other folds."""
    head = Classifier(
        n_units=_UNITS, random_state=0, blocks=widths if len(widths) > 1 else None
    )
    return cross_val_predict(head, X, y, cv=_FOLDS) == y
