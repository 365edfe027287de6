"""A learner at a glance: all of it in plain values, and in one line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from evergrow.core.version import __version__
from evergrow.head.labels import StoredHead
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.snapshot import Snapshot, Told, read_adaptation


@dataclass(frozen=True)
class Measured:
    """What an evaluation found.

    Parameters
    ----------
    accuracy : float
        Share of right answers.
    n : int
        On so many samples.
    revision : int
        Of the model that was asked.
    """

    accuracy: float
    n: int
    revision: int


def describe(now: Snapshot, *, numerics: bool = False) -> dict[str, Any]:
    """Return what is known of a learner, in plain values.

    Parameters
    ----------
    now : Snapshot
        What it knows.
    numerics : bool
        Whether to add rank and conditioning, which take a decomposition.

    Returns
    -------
    dict
        ``evergrow`` (version here), ``method``, ``options``, ``kind`` (of the samples), ``backbone`` (None, or its
        description with ``reason`` where it was chosen automatically), ``adaptation`` (None, or what the backbone was
        adapted with: tuner, settings, number of parameters, the backbone before, and how the training went),
        ``n_features``, ``blocks`` (None, or columns and weight of each block of features), ``n_units``, ``n_classes``,
        ``n_samples``, ``classes`` (name and samples of each), ``label_kind`` (what the labels were: names, integers or
        booleans), ``novelty`` (None, or the number of calibrated scores and the threshold), ``answering`` (prior
        and thresholds that answers follow), ``reference`` (None, or the test data that it remembers), ``revision``,
        ``history``, and with ``numerics`` the head's diagnostics.
    """
    head, spec = now.head, now.spec
    width = None if spec is None else spec.n_features
    told = now.told if isinstance(head, StoredHead) else Told.of(head)
    novelty = None
    if now.calibration.n:
        threshold = now.calibration.threshold(FALSE_ALARM)
        novelty = {"calibrated_on": now.calibration.n, "false_alarm": FALSE_ALARM, "threshold": threshold}
    values = {
        "evergrow": __version__,
        "method": now.recipe.method,
        "options": dict(now.recipe.plain().options),
        "kind": now.kind,
        "backbone": None if spec is None else {**spec.to_dict(), "reason": now.reason},
        "adaptation": None if now.adaptation is None else read_adaptation(now.adaptation).describe(),
        "n_features": width if now.is_empty else head.n_features_in_,
        "blocks": None if told.blocks is None else [vars(block) for block in told.blocks],
        "n_units": told.n_units,
        "n_classes": len(now.classes),
        "n_samples": sum(now.counts.values()),
        "classes": [{"name": name, "samples": now.counts[name]} for name in now.classes.tolist()],
        "label_kind": now.label_kind,
        "novelty": novelty,
        "answering": now.answering.to_dict(),
        "reference": None if now.reference is None else dataclasses.asdict(now.reference),
        "revision": now.revision,
        "history": [change.to_dict() for change in now.history],
    }
    if numerics:
        values["numerics"] = head.diagnostics() if hasattr(head, "diagnostics") and len(now.classes) else None
    return values


def text_of(info: dict[str, Any] | None, method: str, tested: Measured | None) -> str:
    """Return a learner in one line.

    Parameters
    ----------
    info : dict or None
        As :meth:`evergrow.Learner.info` gives it; None before anything is learned.
    method : str
        The method.
    tested : Measured or None
        The last evaluation; where there is none, that of the latest change that was tested counts.

    Examples
    --------
    >>> from evergrow.learner.summaries import text_of
    >>> text_of(None, "scl-mgsm", None)
    "Learner(method='scl-mgsm', nothing learned yet)"
    """
    if info is None:
        return f"Learner(method={method!r}, nothing learned yet)"
    backbone = info["backbone"]["name"] if info["backbone"] else None
    parts = [
        f"method={method!r}",
        f"kind={info['kind']!r}",
        *([f"backbone={backbone!r}"] if backbone else []),
        f"{info['n_classes']} class{'es' * (info['n_classes'] != 1)}",
        f"{info['n_samples']} sample{'s' * (info['n_samples'] != 1)}",
        f"revision {info['revision']}",
    ]
    tested = tested or last_tested(info)
    if tested is not None:
        when = "" if tested.revision == info["revision"] else f" (at revision {tested.revision})"
        parts.append(f"accuracy {tested.accuracy:.1%} on {tested.n}{when}")
    return f"Learner({', '.join(parts)})"


def last_tested(info: dict[str, Any]) -> Measured | None:
    """Return the accuracy that the latest tested change ended with."""
    for change in reversed(info["history"]):
        found = change.get("tested") or {}
        if found.get("after") is not None:
            return Measured(found["after"], found["samples"], change["revision"])
    return None
