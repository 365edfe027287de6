"""Everything a learner knows, as one record: replaced as a whole or not at all, and written to files as it is.

The record has the history of the model: one :class:`Change` for everything that was
done to it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import EvergrowError, FileFormatError, ParameterError
from evergrow.core.estimator import plain_value
from evergrow.core.record import (
    NOTHING,
    UNKNOWN,
    UNWRITTEN,
    Between,
    Extra,
    from_archive,
    record,
    require,
    to_archive,
    to_values,
)
from evergrow.core.validation import check_keys, resolve_device
from evergrow.core.version import __version__
from evergrow.features.backbone import BackboneSpec
from evergrow.learner.calibration import FALSE_ALARM, Calibration
from evergrow.learner.label_types import as_labels, can_read
from evergrow.learner.stored_head import StoredHead

if TYPE_CHECKING:
    import torch

    from evergrow.head.base import IncrementalClassifier

    Head = IncrementalClassifier
else:
    Head = Archive  # a file is read without making a head of it, which takes torch

Event = Literal[
    "begin",
    "fit",
    "update",
    "forget",
    "unlearn",
    "merge",
    "rollback",
    "redo",
    "rename",
    "merge-classes",
    "relabel",
    "unlabelled",
    "forget-unlabelled",
    "fade",
]
"""What a change can be."""

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class Tested:
    """Accuracy on test data before and after a change.

    Parameters
    ----------
    samples_before, samples : int
        How many of them are of classes that the model knew before, and knows after.
    before, after : float or None
        Share of right answers to those; None where there are none.
    fell : dict of str to (float, float)
        Classes of which a smaller share is recognised than before, with both shares;
        the largest fall first.
    """

    samples_before: int
    before: Share | None
    samples: int
    after: Share | None
    fell: dict[str, tuple[Share, Share]] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"fell": {}, **to_values(self)}


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Parameters
    ----------
    what : str
        What was done, one of :data:`Event`.
    when : str
        When, as an ISO date in UTC.
    samples : int
        How many samples were learned or removed.
    classes : tuple of str
        Classes that came (or, for ``"forget"`` and ``"unlearn"``, that went).
    note : str
        For people.
    revision : int
        The revision of the model after it.
    data : tuple of str
        Fingerprints of what was learned, to notice what would be counted twice; no
        sample can be found from them.
    names : dict of str to str
        New names of classes by old ones, where classes were renamed, merged or samples
        relabelled.
    who : str
        User under whom it was written to a file; empty where it never was, or nobody
        was to be named.
    tested : Tested or None
        Accuracy on test data before and after it, where there were some.
    influenced_scores : int
        For ``"unlearn"`` and ``"relabel"``: the largest number of held-out scores of
        other samples that were measured while the removed ones were learned. They stay
        in the calibration as they were measured; 0 means that nothing is left.
    extra : dict
        Optional fields of a later evergrow, kept as they were read.

    Examples
    --------
    >>> from evergrow.learner.snapshot import Change
    >>> change = Change.now("fit", 120, ["cat", "dog"])
    >>> change.what, change.samples, change.classes
    ('fit', 120, ('cat', 'dog'))
    """

    what: Event
    when: str
    samples: int
    classes: tuple[str, ...] = ()
    note: str = ""
    revision: int = 0
    data: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict, hash=False)
    who: str = ""
    tested: Tested | None = None
    influenced_scores: int = 0
    extra: dict[str, Any] = field(default_factory=dict, hash=False, metadata=UNKNOWN)

    @classmethod
    def now(
        cls, what: Event, samples: int, classes: Iterable[str] = (), **values: Any
    ) -> Self:
        """Return a change that happens at this moment; ``values`` are further fields."""
        when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return cls(what, when, int(samples), tuple(classes), **values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"classes": [], "note": "", "data": [], **to_values(self)}


@dataclass(frozen=True)
class Ancestor:
    """A revision of a model file that led to a later one.

    Parameters
    ----------
    revision : int
        Its number.
    digest : str
        Its checksum.
    """

    revision: Annotated[int, Between(1, 2**53)]
    digest: str


@dataclass(frozen=True)
class Lineage:
    """Where a model stands among the revisions of its file.

    Parameters
    ----------
    number : int
        The revision that it was written as; 0 for one that never was.
    ancestors : tuple of Ancestor
        The revisions before it, the oldest first. Their checksums vouch for what lies
        in the history.
    """

    number: int = 0
    ancestors: tuple[Ancestor, ...] = ()

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless revisions ascend."""
        numbers = [*(entry.revision for entry in self.ancestors), self.number]
        require(
            all(a < b for a, b in pairwise(numbers)),
            f"its revisions do not ascend: {numbers[-10:]}",
        )


def check_history(history: Sequence[Change], lineage: Lineage) -> None:
    """Raise :class:`FileFormatError` unless the changes of a model go with its place among the revisions."""
    numbers = [change.revision for change in history]
    require(numbers == sorted(numbers), "the revisions of its changes do not ascend")
    written = not numbers or lineage.number <= numbers[-1]
    require(
        written,
        f"it was written as revision {lineage.number} and its last change is {numbers[-1:]}",
    )


def changed_names(history: Iterable[Change]) -> dict[str, str]:
    """Return what classes are called after changes, by the names they had before, where these differ.

    Examples
    --------
    >>> from evergrow.learner.snapshot import Change, changed_names
    >>> changes = [Change.now("rename", 1, names={"a": "b"}), Change.now("rename", 1, names={"b": "c", "x": "y"})]
    >>> changed_names(changes)
    {'a': 'c', 'b': 'c', 'x': 'y'}
    """
    names: dict[str, str] = {}
    for change in history:
        if change.what in ("rename", "merge-classes"):
            moved = {
                former: change.names.get(name, name) for former, name in names.items()
            }
            names = {
                **moved,
                **change.names,
                **moved,
            }  # in the order of their first names
    return names


def fingerprint(X: NDArray[Any], weights: NDArray[np.float64] | None = None) -> str:
    """Identify a batch by its feature vectors and weights, whatever its labels: classes may be renamed or corrected."""
    digest = hashlib.blake2b(
        np.ascontiguousarray(X, dtype=np.float32).data, digest_size=12
    )
    if weights is not None:
        digest.update(np.ascontiguousarray(weights, dtype=np.float64).data)
    return digest.hexdigest()


def learned_data(history: Iterable[Change]) -> frozenset[str]:
    """Return the fingerprints of what was learned and not taken out again."""
    held: set[str] = set()
    for change in history:
        if change.what == "fit":
            held = set(change.data)
        elif change.what == "unlearn":
            held -= set(change.data)
        else:
            held |= set(change.data)
    return frozenset(held)


# -- what is known ---------------------------------------------------------------------

Count = Annotated[int, Between(1, 2**53)]


@dataclass(frozen=True)
class HeadRecipe:
    """What the head of a learner is made from.

    Parameters
    ----------
    method : str
        Its name.
    options : dict
        Options to set otherwise.

    Examples
    --------
    >>> from evergrow.learner.snapshot import HeadRecipe
    >>> HeadRecipe("evergrow", {"n_units": 50}).create(device="cpu", random_state=0).alpha
    'gcv'
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)

    def create(self, *, device: Any, random_state: Any) -> IncrementalClassifier:
        """Return a fresh head.

        Parameters
        ----------
        device, random_state
            Handed on where the method takes them.
        """
        if not isinstance(self.options, Mapping):
            raise ParameterError(
                f"options must be a dict or None, got {type(self.options).__name__}"
            )
        from evergrow.head.base import HEADS

        head = HEADS[self.method]
        chosen = dict(self.options)
        accepted = head.param_names()
        for name, value in (("device", device), ("random_state", random_state)):
            if name in accepted:
                chosen.setdefault(name, value)
        check_keys(chosen, accepted, f"option of method {self.method!r}")
        try:
            made: IncrementalClassifier = head(**chosen)
        except TypeError as error:
            raise ParameterError(
                f"method {self.method!r} needs all options that have no default: {error}"
            ) from error
        # Values out of range are refused now, not after all images went through a
        # backbone
        made.check_params()
        return made

    def plain(self) -> HeadRecipe:
        """Return the recipe with options that JSON holds, or raise :class:`InputError`."""
        return HeadRecipe(
            self.method,
            {name: plain_value(name, value) for name, value in self.options.items()},
        )


@dataclass(frozen=True)
class BlockSummary:
    """Columns of a block of features, and how much it counts."""

    columns: int
    weight: float


@dataclass(frozen=True)
class HeadSummary:
    """What people are told of a head, which a file says without it.

    Parameters
    ----------
    n_units : int or None
        Units of its layer.
    blocks : tuple of BlockSummary or None
        The blocks of features, where there are several.
    guesses : int
        Samples that it learned without labels.
    """

    n_units: int | None = None
    blocks: tuple[BlockSummary, ...] | None = None
    guesses: int = 0

    @classmethod
    def of(cls, head: IncrementalClassifier) -> HeadSummary:
        """Return what there is to tell of a head."""
        blocks = getattr(head, "blocks_", None)
        told = blocks and tuple(BlockSummary(**block) for block in blocks)
        return cls(
            getattr(head, "n_units_", None), told, getattr(head, "n_pseudo_labels_", 0)
        )


@record("learner", version=2)
@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a learner knows.

    Parameters
    ----------
    recipe : HeadRecipe
        How the head is made.
    counts : dict of str to int
        Samples learned of each class.
    head : IncrementalClassifier or StoredHead
        The classifier on feature vectors, or what a file holds of it; None while
        nothing was learned.
    spec : BackboneSpec or None
        What computes the features; None where samples are features.
    calibration : Calibration
        Novelty of known things.
    history : tuple of Change
        All changes that led here.
    lineage : Lineage
        Revisions of the model file that led here; see
        :mod:`evergrow.learner.modelfile`.
    reason : str
        Why the backbone was chosen, where that was automatic.
    seed : int
        Seed of the head and of the adaptation.
    adaptation : Archive or None
        What the backbone was adapted with, where it was: an
        :class:`~evergrow.adapt.fsa.Adaptation`.
    label_kind : {"name", "integer", "boolean"}
        What the labels were that were learned; the head knows them by their names.
    widths : tuple of int
        Columns of each block, where samples are features of several; with a backbone
        its description says so.
    columns : tuple of str
        Names of the columns, where samples are features that came in a data frame.
    told : HeadSummary or None
        What people are told of the head; only in files.
    extra : Extra
        Optional contents of a file that a later evergrow wrote.
    origin : (Path, str) or None
        The model file that this was loaded from or last written to, and its checksum
        then; not written to files.
    """

    recipe: HeadRecipe
    counts: dict[str, Count]
    head: Head = field(default=None)  # type: ignore[assignment]
    spec: BackboneSpec | None = None
    calibration: Calibration = field(default_factory=Calibration)
    history: tuple[Change, ...] = ()
    lineage: Lineage = field(default_factory=Lineage)
    reason: str = ""
    seed: Annotated[int, Between(-(2**63), 2**64)] = 0
    adaptation: Archive | None = None
    label_kind: Literal["name", "integer", "boolean"] = "name"
    widths: tuple[Count, ...] = ()
    columns: tuple[str, ...] = ()
    told: HeadSummary | None = None
    extra: Extra = NOTHING
    origin: tuple[Path, str] | None = field(default=None, metadata=UNWRITTEN)

    @property
    def revision(self) -> int:
        """Number of the latest change; 0 before the first."""
        return self.history[-1].revision if self.history else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was learned, so that there is no head."""
        return self.head is None

    @property
    def classes(self) -> NDArray[np.str_]:
        """Names of the classes, sorted."""
        return np.asarray(
            [] if self.head is None else self.head.classes_, dtype=np.str_
        )

    @property
    def n_features(self) -> int | None:
        """Width of the feature vectors; None while that is open."""
        if self.head is None:
            return None if self.spec is None else self.spec.n_features
        return int(self.head.n_features_in_)

    @property
    def kind(self) -> str:
        """What the samples are: ``"image"``, ``"text"`` or ``"features"``."""
        return "features" if self.spec is None else self.spec.kind

    @property
    def label_counts(self) -> dict[Any, int]:
        """Number of samples learned per class, by label in the type passed to `fit`."""
        labels = np.sort(as_labels(self.classes.tolist(), self.label_kind)).tolist()
        return {label: self.counts[str(label)] for label in labels}

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the novelty score above which a sample is called unknown.

        Parameters
        ----------
        false_alarm : float
            Fraction of known samples that may be called unknown; between 0 and 1.

        Raises
        ------
        UnsupportedError
            If the method has no novelty score.
        NotFittedError
            If no class was ever learned with two samples at once, so that no sample was
            held out for calibration.
        """
        if not isinstance(self.head, StoredHead) and self.head is not None:
            _ = self.head.novelty_score  # raises if the method has none
        return self.calibration.threshold(false_alarm)

    def after(self, change: Change, **values: Any) -> Snapshot:
        """Return what is known after a change.

        If a class name cannot be read as the current label type, all labels become
        strings.
        """
        after = replace(
            self,
            history=(*self.history, replace(change, revision=self.revision + 1)),
            **values,
        )
        kind = "name"
        if all(can_read(after.label_kind, name) for name in after.counts):
            kind = after.label_kind
        return replace(after, label_kind=kind)

    def describe(self) -> dict[str, Any]:
        """Return what was learned in plain values, without loading the backbone.

        Returns
        -------
        dict
            ``evergrow`` (version), ``method``, ``options``, ``kind`` of the samples,
            ``backbone`` (None, or its description with ``reason`` if it was chosen
            automatically), ``adaptation`` (None, or tuner, settings, number of
            parameters, the original backbone and the training record), ``n_features``,
            ``blocks`` (None, or columns and weight per block of features), ``n_units``,
            ``n_classes``, ``n_samples``, ``n_unlabelled`` (learned without labels),
            ``classes`` (name and samples per class), ``label_kind``, ``novelty`` (None,
            or the number of calibrated scores and the threshold), ``revision`` and
            ``history``.
        """
        head = self.head
        spec = self.spec
        if not isinstance(head, StoredHead):
            told = HeadSummary.of(head)
        elif self.told is not None:
            told = self.told
        else:
            told = HeadSummary.of(head.load("cpu"))
        novelty = None
        if self.calibration.n:
            threshold = self.calibration.threshold(FALSE_ALARM)
            novelty = {
                "calibrated_on": self.calibration.n,
                "false_alarm": FALSE_ALARM,
                "threshold": threshold,
            }
        return {
            "evergrow": __version__,
            "method": self.recipe.method,
            "options": dict(self.recipe.plain().options),
            "kind": self.kind,
            "backbone": None
            if spec is None
            else {**spec.to_dict(), "reason": self.reason},
            "adaptation": None
            if self.adaptation is None
            else read_adaptation(self.adaptation).describe(),
            "n_features": self.n_features,
            "blocks": None
            if told.blocks is None
            else [vars(block) for block in told.blocks],
            "n_units": told.n_units,
            "n_classes": len(self.classes),
            "n_samples": sum(self.counts.values()),
            "n_unlabelled": told.guesses,
            "classes": [
                {"name": name, "samples": self.counts[name]}
                for name in self.classes.tolist()
            ],
            "label_kind": self.label_kind,
            "novelty": novelty,
            "revision": self.revision,
            "history": [change.to_dict() for change in self.history],
        }

    # -- files -------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return what a file holds: numbers, plain settings and never a sample."""
        if self.head is None:
            return to_archive(replace(self, recipe=self.recipe.plain()))
        if isinstance(self.head, StoredHead):
            told = self.told
        else:
            told = HeadSummary.of(self.head)
        written: Any = {"head": self.head.to_archive(), "told": told}
        return to_archive(replace(self, recipe=self.recipe.plain(), **written))

    def check(self) -> None:
        """Raise :class:`FileFormatError` where what a file says does not fit together; its head is still an archive."""
        check_history(self.history, self.lineage)
        names = sorted(self.counts)
        width = None
        archive: Any = self.head
        if archive is None:
            require(not names, "it counts samples and has no head")
        else:
            require(
                archive.kind == f"head/{self.recipe.method}",
                "its head is of another method",
            )
            head = StoredHead(self.recipe.method, archive)
            width = head.n_features_in_
            require(
                head.classes_.dtype.kind == "U", "the labels of its head are no names"
            )
            require(
                names == head.classes_.tolist(),
                "it counts samples of other classes than its head learned",
            )
        if self.spec is not None:
            fits = width in (None, self.spec.n_features)
            require(
                fits,
                f"its backbone has {self.spec.n_features} features and its head takes {width}",
            )
        require(
            self.spec is not None or self.adaptation is None,
            "it adapts a backbone that it does not describe",
        )
        blocks = not self.widths or (self.spec is None and sum(self.widths) == width)
        require(blocks, "its blocks do not fit its features")
        require(
            len(self.columns) in (0, width),
            "it has another number of columns than names for them",
        )
        strange = [name for name in names if not can_read(self.label_kind, name)]
        require(
            not strange,
            f"its labels are of kind {self.label_kind!r}, but {(strange or [''])[0]!r} is none",
        )


def read_snapshot(archive: Archive, name: str) -> Snapshot:
    """Return what a learner knows, from what :meth:`Snapshot.to_archive` gave; its head is not read yet.

    Raises
    ------
    FileFormatError
        If the archive is no learner, or its parts do not fit each other.
    """
    now = from_archive(Snapshot, archive, name=name)
    head: Any = now.head
    if head is not None:
        head = StoredHead(now.recipe.method, head, name=f"{name}: head")
    return replace(now, head=head)


def with_head(now: Snapshot, device: str | torch.device | None, name: str) -> Snapshot:
    """Return what :func:`read_snapshot` gave with its head, ready to answer and to learn.

    Raises
    ------
    FileFormatError
        If the head is damaged, or does not fit the rest.
    """
    if device is not None:
        resolve_device(device)  # no fault of the file
    try:
        if now.adaptation is not None:
            read_adaptation(now.adaptation, f"{name}: adaptation")
        stored: Any = now.head
        if stored is None:
            now.recipe.create(
                device="auto" if device is None else device, random_state=now.seed
            )
            return now
        head = stored.load(device)
        learned = getattr(head, "class_counts_", None)
        own = [now.counts[label] for label in head.classes_.tolist()]
        require(
            learned is None or own == learned.tolist(),
            f"{name} counts other samples than its head learned",
        )
    except FileFormatError:
        raise
    except (EvergrowError, TypeError, ValueError) as error:
        raise FileFormatError(f"{name} does not go with its method: {error}") from error
    return replace(now, head=head)


def read_adaptation(archive: Archive, name: str = "the adaptation") -> Any:
    """Return what a backbone was adapted with; most models have none, and it takes time to import."""
    from evergrow.adapt.fsa import Adaptation

    return from_archive(Adaptation, archive, name=name)


def with_widths(
    head: IncrementalClassifier, widths: Sequence[int]
) -> IncrementalClassifier:
    """Tell a fresh head how wide several blocks of features are, where it has a parameter for them."""
    if len(widths) > 1 and getattr(head, "blocks", widths) is None:
        setattr(head, "blocks", tuple(widths))  # noqa: B010 (a parameter that not every head has)
    return head


def counted(before: Mapping[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return the samples of each class with a batch added.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.snapshot import counted
    >>> counted({"cat": 2}, np.array(["cat", "ant"]))
    {'ant': 1, 'cat': 3}
    """
    return summed(before, Counter(labels.tolist()))


def summed(
    first: Mapping[str, int],
    second: Mapping[str, int],
    common: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the samples of each class of two models together; what both have in common counts once."""
    return dict(sorted((Counter(first) + Counter(second) - Counter(common)).items()))
