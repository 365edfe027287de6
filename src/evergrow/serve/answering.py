"""Versions, answers and changes as the documents of the API."""

from __future__ import annotations

from typing import Any

import numpy as np

from evergrow.learner.answers import Answers
from evergrow.learner.changes import Change
from evergrow.learner.evaluation import Evaluation
from evergrow.serve.drafts import Draft
from evergrow.serve.model import Outcome, ServedModel
from evergrow.serve.versions import Version


def change_values(change: Change) -> dict[str, Any]:
    """Return a change for people and programs; what is kept to notice repetitions stays inside."""
    return {
        "what": change.what,
        "when": change.when,
        "samples": change.samples,
        "classes": list(change.classes),
        "names": dict(change.names),
        "note": change.note,
        "revision": change.revision,
    }


def class_values(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return classes with their samples, sorted by name."""
    return [{"name": name, "samples": n} for name, n in sorted(counts.items())]


def state_of(version: Version) -> str:
    """Return whether a model answers, or has not begun."""
    return "starting" if isinstance(version.known, Draft) else "ready"


def summary_values(name: str, version: Version) -> dict[str, Any]:
    """Return a model for the list."""
    counts = version.counts
    return {
        "name": name,
        "kind": version.kind,
        "state": state_of(version),
        "revision": version.revision,
        "n_classes": len(counts),
        "n_samples": sum(counts.values()),
        "error": None,
    }


def model_values(name: str, model: ServedModel, version: Version) -> dict[str, Any]:
    """Return all about a model but what it computes with; no path of this machine."""
    counts, known = version.counts, version.known
    values = {
        "name": name,
        "kind": version.kind,
        "state": state_of(version),
        "revision": version.revision,
        "classes": class_values(counts),
        "n_samples": sum(counts.values()),
        "n_features": version.n_features,
        "history": [change_values(change) for change in model.history(version)],
        "revisions": model.revisions(),
        "redoable": model.redoable(),
    }
    if isinstance(known, Draft):
        about = {"method": known.method, "options": known.options, "thresholds": None}
        return {**values, **about, "backbone": None if known.spec is None else _backbone(known.spec.to_dict())}
    info = known.info()
    novelty = info["novelty"]
    return {
        **values,
        "method": info["method"],
        "options": info["options"],
        "backbone": None if info["backbone"] is None else _backbone(info["backbone"]),
        "thresholds": None
        if novelty is None
        else {
            "novelty": novelty["threshold"],
            "false_alarm": novelty["false_alarm"],
            "calibrated_on": novelty["calibrated_on"],
        },
    }


def _backbone(described: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "n_features", "weights_hash")
    return {name: described[name] for name in names} | {"reason": described.get("reason", "")}


def prediction_values(name: str, version: Version, answers: Answers, k: int, false_alarm: float) -> dict[str, Any]:
    """Return answers, the likeliest classes of each sample first."""
    values = answers.values
    rows = []
    for row, best in enumerate(answers.ranked(k)):
        top = [{"class": str(answers.classes[column]), "value": float(values[row, column])} for column in best]
        novelty = None if answers.novelty is None else float(answers.novelty[row])
        rows.append(
            {
                "label": top[0]["class"],
                "top": top,
                "novelty": novelty if novelty is None or np.isfinite(novelty) else None,
                "unknown": None if answers.unknown is None else bool(answers.unknown[row]),
            }
        )
    return {
        "model": name,
        "revision": version.revision,
        "measure": answers.measure,
        "threshold": version.threshold(false_alarm),
        "answers": rows,
    }


def outcome_values(name: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a change did."""
    version, counts = outcome.version, outcome.version.counts
    return {
        "model": name,
        "state": state_of(version),
        "revision": version.revision,
        "etag": version.etag,
        "change": change_values(outcome.change),
        "new_classes": sorted(set(counts) - set(outcome.before)),
        "gone_classes": sorted(set(outcome.before) - set(counts)),
        "classes": class_values(counts),
        "n_samples": sum(counts.values()),
        "warnings": outcome.warnings,
        "replayed": outcome.replayed,
    }


def evaluation_values(
    name: str, version: Version, result: Evaluation, labels: list[str], predicted: list[str]
) -> dict[str, Any]:
    """Return how good answers are, and which samples were taken for another class."""
    values = result.to_dict()
    pairs = enumerate(zip(labels, predicted, strict=True))
    kept = (
        "n_samples", "accuracy", "accuracy_all", "balanced_accuracy", "classes", "confusion", "per_class", "confused",
        "unknown_classes", "unknown", "seconds",
    )  # fmt: skip
    return {
        "model": name,
        "revision": version.revision,
        **{key: values[key] for key in kept},
        "predicted": predicted,
        "wrong": [{"sample": i, "label": told, "predicted": said} for i, (told, said) in pairs if told != said],
    }
