"""What an SCL head has worked out from its statistics, so that a saved model answers without solving again.

The statistics are what a head is; class weights, ridge and temperature follow from them, but for wide layers that takes
longer than anything else. This is the one place that reaches into a head for them.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from evergrow.heads import SCLClassifier
from evergrow.heads.base import IncrementalClassifier
from evergrow.heads.novelty import NoveltyScorer
from evergrow.heads.readout import Readout
from evergrow.heads.ridge_model import RidgeModel

EASY_ORDER = 1200
"""Statistics of up to this order are solved in about a second, which an update can afford."""


def branch(head: IncrementalClassifier) -> SCLClassifier:
    """Return a copy of an SCL head that can learn on its own; what was learned is a record that both may hold."""
    if not isinstance(head, SCLClassifier):
        raise TypeError(f"only an SCL head can be branched, got {type(head).__name__}")
    return copy.copy(head)


def model_of(head: SCLClassifier) -> RidgeModel:
    """Return what a head has learned, as a record that nobody changes."""
    return head.model_


def last_ridge(head: SCLClassifier) -> float | None:
    """Return the ridge that was chosen last, by this head or the one that it was branched from."""
    return head.last_ridge_


def novelty_scorer(head: SCLClassifier) -> NoveltyScorer:
    """Return what scores novelty, working it out if need be; the head keeps it for its answers."""
    return head._novelty_scorer()


def settle(head: IncrementalClassifier, *, at_any_cost: bool) -> None:
    """Solve for the class weights now rather than at the first question, if that is wanted or cheap."""
    if not isinstance(head, SCLClassifier) or len(head.classes_) == 0:
        return
    if at_any_cost or model_of(head).state.reduced().gram.shape[0] <= EASY_ORDER:
        head.predict_proba([[0.0] * head.n_features_in_])


def export_solution(head: IncrementalClassifier) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what has been worked out, as tensors and plain values; both empty where nothing has."""
    if not isinstance(head, SCLClassifier):
        return {}, {}
    derived, meta = head._derived, {"last_ridge": last_ridge(head)}
    if derived.readout is None:
        return {}, meta
    solved = derived.readout
    tensors = {"weights": solved.weights.contiguous(), "offset": solved.offset.contiguous()}
    rest = {"alpha": solved.alpha, "minimiser": solved.minimiser, "jitter": solved.jitter}
    return tensors, {**meta, **rest, "temperature": derived.temperature}


def import_solution(head: IncrementalClassifier, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Give a head that was just restored what :func:`export_solution` took from it."""
    if not isinstance(head, SCLClassifier):
        return
    derived = head._derived
    derived.last_alpha = meta["last_ridge"]
    if tensors:
        weights, offset = (tensors[name].to(head.device_) for name in ("weights", "offset"))
        derived.readout = Readout(weights, offset, meta["alpha"], meta["minimiser"], meta["jitter"])
        derived.temperature = meta["temperature"]
