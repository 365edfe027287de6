"""Ask anything that evergrow has read back for all its answers, and compare them with those of another version.

Only public names are used, so that the questions outlive moves inside the library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

OPTIONAL = ("predict_proba", "novelty_score")
"""Answers that not every method gives."""

FACTS = ("n_units_", "alpha_", "status_")
"""What a head with a layer says of itself, in single values."""


def plain(value: Any) -> Any:
    """Return values as JSON would give them back."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return value


def ask_head(model: Any, X: Any) -> dict[str, Any]:
    """Return everything that a head says about rows of features, and about itself."""
    found = {
        "classes": model.classes_,
        "label_kind": model.classes_.dtype.kind,
        "n_features": model.n_features_in_,
        "predict": model.predict(X),
        "decision_function": model.decision_function(X),
    }
    found |= {name: getattr(model, name)(X) for name in OPTIONAL if hasattr(model, name)}
    found |= {name: getattr(model, name) for name in FACTS if hasattr(model, name)}
    if hasattr(model, "class_counts_") and hasattr(model, "construction_log_"):
        found["class_counts"] = model.class_counts_
        found["n_blocks"] = len(model.construction_log_)
    return plain(found)


def ask_learner(learner: Any, items: Any) -> dict[str, Any]:
    """Return everything that a learner says about items, and about itself."""
    info = {key: value for key, value in learner.info().items() if key not in ("evergrow", "history")}
    found = {
        "classes": learner.classes_,
        "n_samples": learner.n_samples_,
        "revision": learner.revision_,
        "history": [change.to_dict() for change in learner.history_],
        "info": info,
        **answers(learner, items),
    }
    return plain(found)


def answers(learner: Any, items: Any) -> dict[str, Any]:
    """Return what a learner says about items; a learner that is not calibrated gives no opinion on the unknown."""
    scores = getattr(learner, "class_scores", learner.decision_function)  # version 0.1 had a column per class there
    found = {"predict": learner.predict(items), "decision_function": scores(items)}
    if hasattr(learner.head_, "predict_proba"):
        found |= {name: getattr(learner, name)(items) for name in OPTIONAL}
        if learner.info()["novelty"] is not None:
            found |= {"threshold": learner.threshold(), "threshold_20": learner.threshold(0.2)}
            found |= {"is_unknown": learner.is_unknown(items), "is_unknown_20": learner.is_unknown(items, 0.2)}
    return plain(found)


def ask_pictures(model: Any, pixels: Any) -> dict[str, Any]:
    """Return everything that a method that trains a network says about pictures, and about itself."""
    found = {
        "classes": model.classes_,
        "arrival": model.arrival_,
        "label_kind": model.classes_.dtype.kind,
        "cost": model.cost_.to_dict(),
        "predict": model.predict(pixels),
        "decision_function": model.decision_function(pixels),
    }
    return plain(found)


def check(found: Any, expected: Any, tolerance: float, place: str = "") -> None:
    """Fail unless everything expected was found; new entries of dictionaries are no fault.

    Parameters
    ----------
    found, expected : object
        Plain values. Numbers in lists are compared with the largest of the list as the scale.
    tolerance : float
        Relative difference of floats that is let pass.
    place : str
        Where in the answers this is, for messages.
    """
    if isinstance(expected, dict):
        assert isinstance(found, dict), f"{place} must be a dictionary, got {found!r}"
        for key, value in expected.items():
            assert key in found, f"{place} must have {key!r}, got {sorted(found)}"
            check(found[key], value, tolerance, f"{place}.{key}")
    elif isinstance(expected, list) and _is_numeric(expected):
        mine, theirs = np.asarray(found, dtype=float), np.asarray(expected, dtype=float)
        assert mine.shape == theirs.shape, f"{place} must have shape {theirs.shape}, got {mine.shape}"
        scale = float(np.abs(theirs).max(initial=0.0))
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=place)
    elif isinstance(expected, list):
        assert isinstance(found, list), f"{place} must be a list, got {found!r}"
        assert len(found) == len(expected), f"{place} must have {len(expected)} entries, got {len(found)}"
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            check(mine, theirs, tolerance, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert isinstance(found, (int, float)), f"{place} must be a number, got {found!r}"
        assert math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * 1e-3), (place, found, expected)
    else:
        assert found == expected, f"{place} must be {expected!r}, got {found!r}"


def _is_numeric(values: Any) -> bool:
    """Return whether a list, nested or not, holds floats and nothing else."""
    if isinstance(values, list):
        return bool(values) and all(_is_numeric(item) for item in values)
    return isinstance(values, float)
