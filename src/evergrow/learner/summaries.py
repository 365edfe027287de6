"""A learner at a glance, in a line for a terminal and in a table for a notebook."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from evergrow.core.escaping import one_line
from evergrow.core.version import __version__
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.snapshot import Snapshot, read_adaptation

SHOWN_CLASSES = 20
"""Classes that a notebook shows; of more the rest is counted."""

SHOWN_CHANGES = 5
"""Changes that a notebook shows, the latest first."""


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
        booleans), ``novelty`` (None, or the number of calibrated scores and the threshold), ``answering`` (prior, costs
        and thresholds that answers follow), ``reference`` (None, or the test data that it remembers), ``revision``,
        ``history``, and with ``numerics`` the head's diagnostics.
    """
    head, spec = now.head, now.spec
    width = None if spec is None else spec.n_features
    novelty = None
    if hasattr(head, "novelty_score") and now.calibration.n:
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
        "blocks": None if now.is_empty else getattr(head, "blocks_", None),
        "n_units": None if now.is_empty else getattr(head, "n_units_", None),
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
        parts.append(f"accuracy {tested.accuracy:.1%} on {tested.n}{_outdated(info, tested)}")
    return f"Learner({', '.join(parts)})"


def html_of(info: dict[str, Any] | None, method: str, tested: Measured | None) -> str:
    """Return a learner as HTML for a notebook: classes with counts, the latest changes, and the last accuracy.

    Names are strangers' text and are escaped.

    Parameters
    ----------
    info, method, tested
        As for :func:`text_of`.
    """
    if info is None:
        return f"<div><b>Learner</b> ({escape(method)}): nothing learned yet</div>"
    head = escape(text_of(info, method, tested).removeprefix("Learner(").removesuffix(")"))
    classes = sorted(info["classes"], key=lambda entry: -entry["samples"])
    rows = [[entry["name"], f"{entry['samples']:,}"] for entry in classes[:SHOWN_CLASSES]]
    if len(classes) > SHOWN_CLASSES:
        rest = sum(entry["samples"] for entry in classes[SHOWN_CLASSES:])
        rows.append([f"and {len(classes) - SHOWN_CLASSES} more", f"{rest:,}"])
    changes = [
        [
            str(change["revision"]),
            change["when"][:16].replace("T", " "),
            change["what"],
            f"{change['samples']:,}",
            _said(change),
        ]
        for change in reversed(info["history"][-SHOWN_CHANGES:])
    ]
    return (
        f"<div><b>Learner</b> <span>{head}</span>"
        f"{_table(['class', 'samples'], rows)}"
        f"{_table(['revision', 'when', 'change', 'samples', 'classes and note'], changes)}</div>"
    )


def _said(change: dict[str, Any]) -> str:
    names = [one_line(name) for name in change["classes"][:5]] + ["..."] * (len(change["classes"]) > 5)
    return "; ".join(part for part in (", ".join(names), one_line(change["note"])) if part)


def last_tested(info: dict[str, Any]) -> Measured | None:
    """Return the accuracy that the latest tested change ended with."""
    for change in reversed(info["history"]):
        found = change.get("tested") or {}
        if found.get("after") is not None:
            return Measured(found["after"], found["samples"], change["revision"])
    return None


def _outdated(info: dict[str, Any], tested: Measured) -> str:
    return "" if tested.revision == info["revision"] else f" (at revision {tested.revision})"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one_line(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
