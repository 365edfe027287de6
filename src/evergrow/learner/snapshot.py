"""Everything a learner has learned, as one record: it is replaced as a whole or not at all."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import EvergrowError, FileFormatError
from evergrow.core.fields import Fields
from evergrow.core.record import from_archive, to_archive
from evergrow.core.version import __version__
from evergrow.features.base import BackboneSpec
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.learner import calibration as calibrations
from evergrow.learner.answering import Answering
from evergrow.learner.calibration import FALSE_ALARM, Calibration
from evergrow.learner.changes import Change
from evergrow.learner.labels import KINDS, can_read
from evergrow.learner.recipe import HeadRecipe
from evergrow.learner.reference import Reference

if TYPE_CHECKING:
    from evergrow.adapt.fsa import Adaptation


@dataclass(frozen=True)
class Ancestor:
    """A revision of a model file that led to a later one.

    Parameters
    ----------
    revision : int
        Its number.
    digest : str
        Its checksum; empty in files of version 0.1, which did not write it down.
    """

    revision: int
    digest: str = ""


@dataclass(frozen=True)
class Lineage:
    """Where a model stands among the revisions of its file.

    Parameters
    ----------
    number : int
        The revision that it was written as; 0 for one that never was.
    ancestors : tuple of Ancestor
        The revisions before it, the oldest first. Their checksums vouch for what lies in the history.
    """

    number: int = 0
    ancestors: tuple[Ancestor, ...] = ()

    def next(self, number: int, digest: str) -> Lineage:
        """Return the lineage of the revision that follows this one, whose checksum is given."""
        return Lineage(number, (*self.ancestors, Ancestor(self.number, digest)))

    def to_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "number": self.number,
            "ancestors": [{"revision": entry.revision, "digest": entry.digest} for entry in self.ancestors],
        }

    @classmethod
    def from_fields(cls, fields: Fields) -> Lineage:
        """Return the lineage that :meth:`to_values` described, or raise :class:`FileFormatError`."""
        number = fields.integer("number")
        ancestors = tuple(
            Ancestor(entry.integer("revision", low=1), entry.text("digest", default=""))
            for entry in fields.records("ancestors")
        )
        numbers = [*(entry.revision for entry in ancestors), number]
        fields.require(all(a < b for a, b in pairwise(numbers)), f"its revisions do not ascend: {numbers[-10:]}")
        return cls(number, ancestors)


@dataclass(frozen=True)
class Snapshot:
    """What a learner knows.

    Parameters
    ----------
    head : IncrementalClassifier
        The classifier on feature vectors.
    spec : BackboneSpec or None
        What computes the features; None where samples are features.
    counts : dict of str to int
        Samples learned of each class.
    calibration : Calibration
        Novelty of known things.
    history : tuple of Change
        All changes that led here.
    lineage : Lineage
        Revisions of the model file that led here; see :mod:`evergrow.learner.modelfile`.
    reason : str
        Why the backbone was chosen, where that was automatic.
    seed : int
        Seed of the head and of the adaptation.
    adaptation : Adaptation or None
        What the backbone was adapted with, where it was.
    label_kind : {"name", "integer", "boolean"}
        What the labels were that were learned; the head knows them by their names.
    announced : tuple of str or None
        Classes that ``partial_fit`` was told to expect; others are refused.
    answering : Answering
        How answers follow from probabilities.
    reference : Reference or None
        Test data that it is tested on after every update.
    extra : Extra
        Optional contents of a file that a later evergrow wrote, kept as they were read.
    widths : tuple of int
        Columns of each block, where samples are features of several; with a backbone its description says so.
    columns : tuple of str
        Names of the columns, where samples are features that came in a data frame.
    """

    head: IncrementalClassifier
    spec: BackboneSpec | None
    counts: dict[str, int]
    calibration: Calibration = field(default_factory=Calibration)
    history: tuple[Change, ...] = ()
    lineage: Lineage = field(default_factory=Lineage)
    reason: str = ""
    seed: int = 0
    adaptation: Adaptation | None = None
    label_kind: str = "name"
    announced: tuple[str, ...] | None = None
    answering: Answering = field(default_factory=Answering)
    reference: Reference | None = None
    extra: Extra = field(default_factory=lambda: Extra())
    widths: tuple[int, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def revision(self) -> int:
        """Number of the latest change; 0 before the first."""
        return self.history[-1].revision if self.history else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever learned, so that the head has no layer yet."""
        return not self.head._is_started()

    @property
    def classes(self) -> NDArray[np.str_]:
        """Names of the classes, sorted."""
        return np.asarray([] if self.is_empty else self.head.classes_, dtype=np.str_)

    @property
    def kind(self) -> str:
        """What the samples are: ``"image"``, ``"text"`` or ``"features"``."""
        return "features" if self.spec is None else self.spec.kind

    def after(self, change: Change, **values: Any) -> Snapshot:
        """Return what is known after a change; a class whose name no label of the kind has makes all labels names."""
        history = (*self.history, change.numbered(self.revision + 1))
        after = dataclasses.replace(self, history=history, **values)
        if not all(can_read(after.label_kind, name) for name in after.counts):
            after = dataclasses.replace(after, label_kind="name")
        if after.announced is not None and not set(after.counts) <= set(after.announced):  # got other names
            after = dataclasses.replace(after, announced=tuple(sorted({*after.announced, *after.counts})))
        return dataclasses.replace(after, answering=after.answering.limited(after.counts))

    def to_archive(self, recipe: HeadRecipe) -> Archive:
        """Return what a file holds: numbers, plain settings and never a sample."""
        parts = {"calibration": self.calibration.to_archive()}
        if not self.is_empty:
            parts["head"] = self.head.to_archive()
        solution = None if self.is_empty else self.head.solution()
        if solution is not None:
            parts["solution"] = solution
        if self.adaptation is not None:
            parts["adaptation"] = to_archive(self.adaptation)
        meta = {
            **self.extra.meta,
            "method": recipe.method,
            "options": recipe.plain_options(),
            "backbone": None if self.spec is None else self.spec.to_dict(),
            "reason": self.reason,
            "seed": self.seed,
            "counts": self.counts,
            "history": [change.to_dict() for change in self.history],
            "revision": self.revision,
            "lineage": self.lineage.to_values(),
        }
        if self.label_kind != "name":  # absent in files of models of names, as in all of version 0.1
            meta["label_kind"] = self.label_kind
        if self.announced is not None:
            meta["announced"] = list(self.announced)
        if not self.answering.is_plain or self.answering.extra:
            meta["answering"] = self.answering.to_values()
        if self.reference is not None:
            meta["reference"] = self.reference.to_values()
        if self.widths:
            meta["widths"] = list(self.widths)
        if self.columns:
            meta["columns"] = list(self.columns)
        return KIND.archive(meta, parts={**self.extra.parts, **parts})


@dataclass(frozen=True)
class Extra:
    """What a file has beyond the fields that this version knows."""

    meta: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Archive] = field(default_factory=dict)


def counted(before: dict[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return the samples of each class with a batch added.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.snapshot import counted
    >>> counted({"cat": 2}, np.array(["cat", "ant"]))
    {'ant': 1, 'cat': 3}
    """
    names, counts = np.unique(labels, return_counts=True)
    total = dict(before)
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))


def describe(now: Snapshot, recipe: HeadRecipe, *, numerics: bool = False) -> dict[str, Any]:
    """Return what is known of a learner, in plain values.

    Parameters
    ----------
    now : Snapshot
        What it knows.
    recipe : HeadRecipe
        How its head was made.
    numerics : bool
        Whether to add rank and conditioning, which take a decomposition.

    Returns
    -------
    dict
        ``evergrow`` (version here), ``method``, ``options``, ``kind`` (of the samples), ``backbone``
        (None, or its description with ``reason`` where it was chosen automatically), ``adaptation`` (None, or what the
        backbone was adapted with: tuner, settings, number of parameters, the backbone before, and how the training
        went), ``n_features``, ``blocks`` (None, or columns and weight of each block of features), ``n_units``,
        ``n_classes``, ``n_samples``, ``classes`` (name and samples of each), ``label_kind`` (what the labels
        were: names, integers or booleans), ``novelty`` (None, or the number of calibrated scores and the threshold),
        ``answering`` (prior, costs and thresholds that answers follow),
        ``reference`` (None, or the test data that it remembers), ``revision``, ``history``, and with ``numerics`` the
        head's diagnostics.
    """
    head = now.head
    values = {
        "evergrow": __version__,
        "method": recipe.method,
        "options": dict(recipe.options or {}),
        "kind": now.kind,
        "backbone": None if now.spec is None else {**now.spec.to_dict(), "reason": now.reason},
        "adaptation": None if now.adaptation is None else now.adaptation.describe(),
        "n_features": _n_features(now),
        "blocks": None if now.is_empty else getattr(head, "blocks_", None),
        "n_units": None if now.is_empty else getattr(head, "n_units_", None),
        "n_classes": len(now.classes),
        "n_samples": sum(now.counts.values()),
        "classes": [{"name": name, "samples": now.counts[name]} for name in now.classes.tolist()],
        "label_kind": now.label_kind,
        "novelty": _novelty(now),
        "answering": now.answering.to_values(),
        "reference": None if now.reference is None else now.reference.to_values(),
        "revision": now.revision,
        "history": [change.to_dict() for change in now.history],
    }
    if numerics:
        values["numerics"] = head.diagnostics() if hasattr(head, "diagnostics") and len(now.classes) else None
    return values


def _n_features(now: Snapshot) -> int | None:
    if not now.is_empty:
        return now.head.n_features_in_
    return None if now.spec is None else now.spec.n_features


def _novelty(now: Snapshot) -> dict[str, Any] | None:
    if not hasattr(now.head, "novelty_score") or not now.calibration.n:
        return None
    threshold = now.calibration.threshold(FALSE_ALARM)
    return {"calibrated_on": now.calibration.n, "false_alarm": FALSE_ALARM, "threshold": threshold}


# -- reading ------------------------------------------------------------------------------------------------


def read_snapshot(archive: Archive, device: str | torch.device | None, name: str) -> tuple[Snapshot, HeadRecipe]:
    """Return what a learner knows, and how its head is made, from what :meth:`Snapshot.to_archive` gave.

    Raises
    ------
    FileFormatError
        If the archive is no learner, or its parts do not fit each other.
    """
    fields = archive.open(KIND.name, name=name)
    recipe = HeadRecipe(
        fields.text("method", choices=HEADS.names()),
        fields.mapping("options"),
    )
    seed = fields.integer("seed", low=-(2**63), high=2**64, default=0)
    if fields.has("head"):
        head, counts = _head(fields, recipe.method, device)
        width: int | None = head.n_features_in_
    else:
        head, counts, width = _empty_head(fields, recipe, device, seed), {}, None
        fields.require(not fields.mapping("counts"), "it counts samples and has no head")
    names = sorted(counts)
    spec = BackboneSpec.from_dict(fields.mapping("backbone")) if fields.has("backbone") else None
    history, lineage = read_history(fields)
    if spec is not None:
        fields.require(
            width in (None, spec.n_features),
            f"its backbone has {spec.n_features} features and its head takes {width}",
        )
    widths = tuple(fields.integers("widths", low=1, default=[]))
    fields.require(not widths or (spec is None and sum(widths) == width), "its blocks do not fit its features")
    columns = tuple(fields.texts("columns", []))
    fields.require(len(columns) in (0, width), "it has another number of columns than names for them")
    calibration = Calibration.from_archive(fields.part("calibration"), fields.inside("calibration"))
    if width is not None:
        calibration.apply(head)
    fields.require(spec is not None or not fields.has("adaptation"), "a backbone was adapted that it does not describe")
    snapshot = Snapshot(
        head,
        spec,
        counts,
        calibration,
        history,
        lineage,
        reason=fields.text("reason", default=""),
        seed=seed,
        adaptation=_adaptation(fields) if fields.has("adaptation") else None,
        label_kind=_label_kind(fields, names),
        announced=_announced(fields, names),
        answering=_answering(fields, head, counts) if fields.has("answering") else Answering(),
        reference=Reference.from_fields(fields.fields("reference")) if fields.has("reference") else None,
        widths=widths,
        columns=columns,
    )
    return dataclasses.replace(snapshot, extra=Extra(fields.unknown(), fields.unknown_parts())), recipe


def read_history(fields: Fields) -> tuple[tuple[Change, ...], Lineage]:
    """Return the changes that led to a model, and its place among the revisions, of an opened learner."""
    history = tuple(Change.from_fields(entry) for entry in fields.records("history"))
    numbers = [change.revision for change in history]
    fields.require(numbers == sorted(numbers), "the revisions of its changes do not ascend")
    revision = fields.integer("revision")
    fields.require(revision == (numbers[-1] if numbers else 0), f"its revision is {revision}, not that of its history")
    lineage = Lineage.from_fields(fields.fields("lineage"))
    fields.require(
        not history or lineage.number <= revision, f"it was written as revision {lineage.number} and is {revision}"
    )
    return history, lineage


def _head(
    fields: Fields, method: str, device: str | torch.device | None
) -> tuple[IncrementalClassifier, dict[str, int]]:
    """Return the head, and the samples of each class, which must be those that it has learned."""
    head = HEADS[method].from_archive(fields.part("head"), device, name=fields.inside("head"))
    learned = getattr(head, "class_counts_", None)
    fields.require(head.classes_.dtype.kind == "U", "the labels of its head are no names")
    entries = fields.fields("counts")
    counts = {name: entries.integer(name, low=1) for name in head.classes_.tolist()}
    fields.require(not entries.unknown(), f"it counts samples of {next(iter(entries.unknown()), '')!r}, not learned")
    fields.require(
        learned is None or list(counts.values()) == learned.tolist(), "it counts other samples than its head learned"
    )
    if fields.has("solution"):
        fields.require(hasattr(head, "adopt_solution"), f"heads of method {method!r} have no solution to keep")
        head.adopt_solution(fields.part("solution"), name=fields.inside("solution"))
    return head, dict(sorted(counts.items()))


def _empty_head(
    fields: Fields, recipe: HeadRecipe, device: str | torch.device | None, seed: int
) -> IncrementalClassifier:
    """Return a head that has learned nothing, made as the file says."""
    try:
        return recipe.create(device="auto" if device is None else device, random_state=seed)
    except (EvergrowError, TypeError, ValueError) as error:
        raise FileFormatError(f"{fields.name} must have options that its method takes: {error}") from error


def _label_kind(fields: Fields, names: list[str]) -> str:
    kind = fields.text("label_kind", choices=KINDS, default="name")
    strange = [name for name in names if not can_read(kind, name)]
    fields.require(not strange, f"its labels are of kind {kind!r}, but {(strange or [''])[0]!r} is none")
    return kind


def _announced(fields: Fields, names: list[str]) -> tuple[str, ...] | None:
    found = fields.texts("announced", default=None)
    fields.require(found is None or set(names) <= set(found), "it has a class that was not announced")
    return None if found is None else tuple(found)


def _answering(fields: Fields, head: IncrementalClassifier, counts: dict[str, int]) -> Answering:
    answering = Answering.from_fields(fields.fields("answering"), counts)
    able = answering.is_plain or hasattr(head, "predict_proba")
    fields.require(able, "it says how answers follow from probabilities, and its method has none")
    return answering


def _adaptation(fields: Fields) -> Adaptation:
    from evergrow.adapt.fsa import Adaptation  # most models have none, and it takes time to import

    return from_archive(Adaptation, fields.part("adaptation"), name=fields.inside("adaptation"))


# -- files of version 0.1 -----------------------------------------------------------------------------------


def _from_flat(old: Archive) -> Archive:
    """Return the nested form of a learner of version 0.1, whose tensors all lay in one folder of names."""
    meta, about, settings = old.meta, old.meta["about"], old.meta["settings"]
    tensors = {
        prefix: {name.removeprefix(prefix): value for name, value in old.tensors.items() if name.startswith(prefix)}
        for prefix in ("head.", "solution.", "tuner.")
    }
    if sorted(meta["labels"]) != sorted(meta["counts"]):
        raise FileFormatError("a learner must count the samples of the classes that it lists, got others")
    parts = {
        "head": Archive(meta["head"]["kind"], meta["head"]["meta"], tensors["head."]),
        "calibration": calibrations.KIND.archive({"batches": meta["calibration"]}),
    }
    if meta["solution"]:
        parts["solution"] = Archive("head-solution", meta["solution"], tensors["solution."])
    if meta.get("tuning") is not None:  # files of the first months have no such entry
        parts["adaptation"] = Archive("adaptation", meta["tuning"], tensors["tuner."])
    trail = list(meta["trail"])
    lineage = {
        "number": trail[-1] if trail else 0,
        "ancestors": [{"revision": number} for number in trail[:-1]],
    }
    new = {
        "method": settings["method"],
        "settings": settings["settings"],
        "options": settings["options"],
        "backbone": meta["backbone"],
        "reason": about.get("auto_reason", ""),
        "seed": about.get("seed", 0),
        "counts": meta["counts"],
        "history": meta["history"],
        "revision": meta["revision"],
        "lineage": lineage,
    }
    return Archive("learner", new, parts=parts, version=2)


KIND = register_kind("learner", version=2, migrations={1: _from_flat}, former=("Learner",))
