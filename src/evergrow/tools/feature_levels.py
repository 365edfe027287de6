"""Compare the feature levels ``fast``, ``rich`` and ``best`` on some of the data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import cross_val_predict

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.seeding import generator
from evergrow.data.items import Items, Samples
from evergrow.features import Backbone, best_backbone, create_backbone, encode
from evergrow.features.images import median_side
from evergrow.head import Classifier

LEVELS = ("fast", "rich", "best")
"""Feature levels, the cheapest first."""

BUDGET = 60.0
"""Default seconds for encoding with all levels. A trial takes about twice as long."""

_RELATIVE_COST = 10.0
"""Cost of encoding with all levels, relative to the level ``fast``."""

_N_FOLDS = 3
"""Folds of the cross-validation; classes with fewer samples are left out."""

_MAX_SAMPLES = 1000

_N_TIMED = 16
"""Samples for measuring the speed of the machine."""

_N_UNITS = 500
"""Random units of the classifiers: fewer than the default, for speed."""


@dataclass(frozen=True)
class LevelTrial:
    """Accuracy and cost of a feature level.

    Parameters
    ----------
    level : str
        One of :data:`LEVELS`.
    accuracy : float
        Cross-validated accuracy.
    error : float
        Standard error of the accuracy.
    seconds : float
        Time per sample on this machine.
    samples, classes : int
        Number of samples and classes of the trial.
    blocks : tuple of str
        Feature blocks of the level.
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
    """Cross-validate each feature level on some of the samples.

    Parameters
    ----------
    samples : Samples
        Labelled images or texts.
    backbone : str or Backbone, default="auto"
        The backbone, or its name. By default the best available one.
    device : str or torch.device, default="auto"
        Device to compute on.
    budget : float, default=60
        Seconds for encoding with all levels. It limits the number of samples, which is
        at most 1,000.
    seed : int, default=0
        Seed of the draw of samples.

    Returns
    -------
    list of LevelTrial
        The cheapest level first. Levels with the same features as the level before are
        left out, for example for texts.

    Raises
    ------
    InputError
        If the samples are feature vectors, or fewer than two classes have three
        samples.
    """
    if samples.kind == "features":
        raise InputError(
            "Feature levels need images or texts; these are feature vectors already."
        )
    labels = samples.required_labels()
    items = samples.raw_items()
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    usable = np.flatnonzero(counts[codes] >= _N_FOLDS)
    if len(np.unique(codes[usable])) < 2:
        raise InputError(
            f"Two classes with {_N_FOLDS} samples each are needed to compare levels. "
            "Label more samples."
        )
    if isinstance(backbone, str):
        name = backbone
        if backbone == "auto":
            name = best_backbone(items.kind).name
        backbone = create_backbone(name, device=device)
    order = torch.randperm(len(usable), generator=generator(seed, "levels"))
    shuffled = usable[order.numpy()]
    # The speed of this machine decides how many samples fit into the budget.
    seconds = _seconds_per_sample(backbone.with_recipe("fast"), items, shuffled)
    n_affordable = int(budget / (_RELATIVE_COST * seconds))
    n_samples = max(_N_FOLDS * 2, min(_MAX_SAMPLES, n_affordable))
    rows = _draw_balanced(shuffled, codes, n_samples)
    side = None
    if items.kind == "image":
        side = median_side(items)
    trials: list[LevelTrial] = []
    for level in LEVELS:
        try:
            network = backbone.with_recipe("auto" if level == "rich" else level, side)
        except ParameterError:
            # The network has no hidden states, so only the level "fast" exists.
            continue
        if not trials or trials[-1].blocks != network.spec.blocks.blocks:
            trials.append(_try_level(level, network, items.take(rows), codes[rows]))
    return trials


def _seconds_per_sample(backbone: Backbone, items: Items, rows: Any) -> float:
    """Return the seconds for encoding one sample, after a warm-up with two of them."""
    timed_rows = rows[:_N_TIMED]
    encode(backbone, items.take(rows[:2]), cache=False, on_error="skip")
    started = time.perf_counter()
    encode(backbone, items.take(timed_rows), cache=False, on_error="skip")
    seconds = time.perf_counter() - started
    return seconds / len(timed_rows)


def _draw_balanced(shuffled: Any, codes: Any, n: int) -> Any:
    """Return about `n` rows, with equal numbers per class, and at least three.

    Parameters
    ----------
    shuffled : ndarray of int
        Rows to take from, in random order.
    codes : ndarray of int
        Class numbers of all rows. Of many classes, only the first n / 3 are taken.
    n : int
        Number of rows.
    """
    chosen = np.unique(codes[shuffled])[: max(2, n // _N_FOLDS)]
    n_per_class = max(_N_FOLDS, n // len(chosen))
    return np.concatenate(
        [shuffled[codes[shuffled] == code][:n_per_class] for code in chosen]
    )


def _try_level(level: str, network: Backbone, items: Items, codes: Any) -> LevelTrial:
    """Cross-validate a classifier on the features of one level."""
    blocks = network.spec.blocks
    found = encode(network, items, cache=False, on_error="skip")
    head = Classifier(
        n_units=_N_UNITS,
        random_state=0,
        blocks=blocks.widths if len(blocks.widths) > 1 else None,
    )
    y = codes[found.rows]
    is_right = cross_val_predict(head, found.X, y, cv=_N_FOLDS) == y
    n = len(is_right)
    accuracy = float(is_right.mean())
    variance = max(accuracy * (1 - accuracy), 1 / n / 4)
    return LevelTrial(
        level,
        accuracy,
        float(np.sqrt(variance / n)),
        found.seconds / len(items),
        n,
        len(np.unique(codes)),
        blocks.blocks,
    )
