"""What a learner is, in plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evergrow.core.errors import NotFittedError
from evergrow.core.version import __version__
from evergrow.heads.scl import SCLClassifier
from evergrow.learner.snapshot import Snapshot

_ALARM = 0.05


def describe(
    now: Snapshot, method: str, settings: str, options: Mapping[str, Any], *, numerics: bool = False
) -> dict[str, Any]:
    """Return what is known of a learner.

    Parameters
    ----------
    now : Snapshot
        What it knows.
    method, settings, options
        How its head was made.
    numerics : bool
        Whether to add rank and conditioning, which take a decomposition.

    Returns
    -------
    dict
        ``evergrow`` (version here), ``method``, ``settings``, ``options``, ``kind`` (of the samples), ``backbone``
        (None, or its description with ``reason`` where it was chosen automatically), ``adaptation`` (None, or what the
        backbone was adapted with: tuner, settings, number of parameters, the backbone before, and how the training
        went), ``n_features``, ``n_units``,
        ``n_classes``, ``n_samples``, ``classes`` (name and samples of each), ``novelty`` (None, or the number of
        calibrated scores and the threshold), ``revision``, ``history``, and with ``numerics`` the head's diagnostics.
    """
    head, scl = now.head, isinstance(now.head, SCLClassifier)
    backbone = None
    if now.spec is not None:
        backbone = {**now.spec.to_dict(), "reason": now.reason}
    values = {
        "evergrow": __version__,
        "method": method,
        "settings": settings,
        "options": dict(options),
        "kind": "features" if now.spec is None else now.spec.kind,
        "backbone": backbone,
        "adaptation": None if now.tuning is None else now.tuning.describe(),
        "n_features": head.n_features_in_,
        "n_units": int(head.n_units_) if isinstance(head, SCLClassifier) else None,
        "n_classes": len(now.classes),
        "n_samples": sum(now.counts.values()),
        "classes": [{"name": name, "samples": now.counts[name]} for name in now.classes.tolist()],
        "novelty": _novelty(now) if scl else None,
        "revision": now.revision,
        "history": [change.to_dict() for change in now.history],
    }
    if numerics:
        values["numerics"] = head.diagnostics() if isinstance(head, SCLClassifier) and len(now.classes) else None
    return values


def _novelty(now: Snapshot) -> dict[str, Any] | None:
    try:
        threshold = now.calibration.threshold(_ALARM)
    except NotFittedError:
        return None
    return {"calibrated_on": now.calibration.n, "false_alarm": _ALARM, "threshold": threshold}
