"""The state of a learner: one immutable record, which model files store.

A change of the model makes a new :class:`Snapshot` with one more :class:`Change` in its
history.
"""

from __future__ import annotations

import copy
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
    read_fields,
    record,
    require,
    to_archive,
    to_values,
)
from evergrow.core.validation import check_keys, resolve_device
from evergrow.core.version import __version__
from evergrow.data.inputs import as_labels, can_read
from evergrow.features.backbone import BackboneSpec
from evergrow.head.label_set import ClassChange, NamedClasses, SavedHead, StoredLabels
from evergrow.learner.calibration import FALSE_ALARM, Calibration

if TYPE_CHECKING:
    import torch

    from evergrow.head.base import IncrementalClassifier
    from evergrow.learner.learner import Learner

    Head = IncrementalClassifier
else:
    Head = Archive  # a file is read without creating the head, which imports torch

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
"""Kinds of changes."""

Share = Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class Tested:
    """Accuracy on test data before and after a change.

    Parameters
    ----------
    samples_before, samples : int
        Number of test samples of classes known before the change, and after it.
    before, after : float or None
        Accuracy on these samples; None if there are none.
    fell : dict of str to (float, float)
        Classes whose recall fell, with recall before and after; the largest fall first.
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
class Erased:
    """What unlearning for good removed besides the samples in the model.

    Earlier revisions are removed too, when the model is written.

    Parameters
    ----------
    cache_files : int
        Number of removed files of the feature cache.
    unsearched_entries : int
        Number of cache entries that may hold features of the samples and could not be
        searched, because another network computed them.
    """

    cache_files: int = 0
    unsearched_entries: int = 0


@dataclass(frozen=True)
class Change:
    """One change of a model.

    Parameters
    ----------
    what : str
        Kind of change, one of :data:`Event`.
    when : str
        Time, as an ISO date in UTC.
    samples : int
        Number of samples learned or removed.
    classes : tuple of str
        Classes added; for ``"forget"`` and ``"unlearn"``, classes removed.
    note : str
        A comment of the user.
    revision : int
        Revision of the model after the change.
    data : tuple of str
        Fingerprints of the learned batches, to detect batches learned twice. Samples
        cannot be recovered from them.
    names : dict of str to str
        New class names by old names, if classes were renamed or merged, or samples
        relabelled.
    who : str
        User who wrote the change to a file; empty if it was not written or the user is
        not to be named.
    tested : Tested or None
        Accuracy on test data before and after, if it was measured.
    influenced_scores : int
        For ``"unlearn"`` and ``"relabel"``: the largest possible number of held-out
        scores of other samples that were measured while the removed samples were
        learned. They stay in the calibration unchanged.
    erased : Erased or None
        For ``"unlearn"``, set if the samples were removed for good: no earlier revision
        is kept when the model is written.
    extra : dict
        Fields written by a later evergrow, kept unchanged.

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
    erased: Erased | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False, metadata=UNKNOWN)

    @property
    def for_good(self) -> bool:
        """Whether samples were removed for good."""
        return self.erased is not None

    @classmethod
    def now(
        cls, what: Event, samples: int, classes: Iterable[str] = (), **values: Any
    ) -> Self:
        """Return a change with the current time; ``values`` are further fields."""
        when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return cls(what, when, int(samples), tuple(classes), **values)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"classes": [], "note": "", "data": [], **to_values(self)}


@dataclass(frozen=True)
class Ancestor:
    """An earlier revision of a model file.

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
    """The revisions of a model file up to this one.

    Parameters
    ----------
    number : int
        Revision under which the model was written; 0 if it was not written.
    ancestors : tuple of Ancestor
        Earlier revisions, oldest first. Their checksums protect the history folder
        against replaced files.
    """

    number: int = 0
    ancestors: tuple[Ancestor, ...] = ()

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless revision numbers ascend."""
        numbers = [*(entry.revision for entry in self.ancestors), self.number]
        require(
            all(a < b for a, b in pairwise(numbers)),
            f"its revisions do not ascend: {numbers[-10:]}",
        )


def check_history(history: Sequence[Change], lineage: Lineage) -> None:
    """Raise :class:`FileFormatError` unless changes and revisions agree."""
    numbers = [change.revision for change in history]
    require(numbers == sorted(numbers), "the revisions of its changes do not ascend")
    # The latest change may be newer than the last commit, see `Learner.save`.
    require(
        not numbers or lineage.number <= numbers[-1],
        f"it was written as revision {lineage.number} "
        f"and its last change is {numbers[-1:]}",
    )


def changed_names(history: Iterable[Change]) -> dict[str, str]:
    """Return the current names of renamed and merged classes, by their former names.

    Examples
    --------
    >>> from evergrow.learner.snapshot import Change, changed_names
    >>> first = Change.now("rename", 1, names={"a": "b"})
    >>> second = Change.now("rename", 1, names={"b": "c", "x": "y"})
    >>> changed_names([first, second])
    {'a': 'c', 'b': 'c', 'x': 'y'}
    """
    names: dict[str, str] = {}
    for change in history:
        if change.what in ("rename", "merge-classes"):
            moved = {
                former: change.names.get(name, name) for former, name in names.items()
            }
            # `moved` comes first for the order of keys, and last for the values.
            names = {**moved, **change.names, **moved}
    return names


def fingerprint(X: NDArray[Any], weights: NDArray[np.float64] | None = None) -> str:
    """Return a hash of feature vectors and weights; labels do not enter."""
    digest = hashlib.blake2b(
        np.ascontiguousarray(X, dtype=np.float32).data, digest_size=12
    )
    if weights is not None:
        digest.update(np.ascontiguousarray(weights, dtype=np.float64).data)
    return digest.hexdigest()


def learned_data(history: Iterable[Change]) -> frozenset[str]:
    """Return the fingerprints of batches learned and not unlearned since."""
    learned: set[str] = set()
    for change in history:
        if change.what == "fit":  # everything before was forgotten
            learned = set(change.data)
        elif change.what == "unlearn":
            learned -= set(change.data)
        else:
            learned |= set(change.data)
    return frozenset(learned)


Count = Annotated[int, Between(1, 2**53)]


@dataclass(frozen=True)
class HeadRecipe:
    """Method and options of a head.

    Parameters
    ----------
    method : str
        Name of the method.
    options : dict
        Options that override the defaults.

    Examples
    --------
    >>> from evergrow.learner.snapshot import HeadRecipe
    >>> recipe = HeadRecipe("evergrow", {"n_units": 50})
    >>> recipe.create(device="cpu", random_state=0).alpha
    'gcv'
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, learner: Learner) -> HeadRecipe:
        """Return the recipe of the head that the next `fit` of a learner creates."""
        return cls(learner.method, {} if learner.options is None else learner.options)

    def create(self, *, device: Any, random_state: Any) -> IncrementalClassifier:
        """Return an untrained head, with its options checked.

        Parameters
        ----------
        device, random_state
            Passed on if the method takes them and the options do not set them.

        Raises
        ------
        ParameterError
            If an option is unknown, missing or not valid.
        """
        if not isinstance(self.options, Mapping):
            raise ParameterError(
                f"options must be a dict or None, got {type(self.options).__name__}"
            )
        from evergrow.head.base import HEADS

        head_class = HEADS[self.method]
        chosen = dict(self.options)
        accepted = head_class.param_names()
        for name, value in (("device", device), ("random_state", random_state)):
            if name in accepted:
                chosen.setdefault(name, value)
        check_keys(chosen, accepted, f"option of method {self.method!r}")
        try:
            head: IncrementalClassifier = head_class(**chosen)
        except TypeError as error:
            raise ParameterError(
                f"method {self.method!r} needs options without a default: {error}"
            ) from error
        head.check_params()  # before all images are encoded
        return head

    def plain(self) -> HeadRecipe:
        """Return the recipe with JSON values, or raise :class:`InputError`."""
        return HeadRecipe(
            self.method,
            {name: plain_value(name, value) for name, value in self.options.items()},
        )


@dataclass(frozen=True)
class BlockSummary:
    """Number of columns and weight of a feature block."""

    columns: int
    weight: float


@dataclass(frozen=True)
class HeadSummary:
    """Facts about a head that can be shown without loading it.

    Parameters
    ----------
    n_units : int or None
        Units of its layer.
    blocks : tuple of BlockSummary or None
        The feature blocks, if there are several.
    guesses : int
        Number of samples learned without labels.
    """

    n_units: int | None = None
    blocks: tuple[BlockSummary, ...] | None = None
    guesses: int = 0

    @classmethod
    def of(cls, head: IncrementalClassifier) -> HeadSummary:
        """Summarise a head."""
        blocks = getattr(head, "blocks_", None)
        if blocks:
            blocks = tuple(BlockSummary(**block) for block in blocks)
        n_units = getattr(head, "n_units_", None)
        return cls(n_units, blocks, getattr(head, "n_pseudo_labels_", 0))


class StoredHead(NamedClasses):
    """A head in its archive: classes can be renamed and merged before :meth:`load`.

    Parameters
    ----------
    method : str
        Name of the head.
    archive : Archive
        Written by :meth:`~evergrow.head.base.IncrementalClassifier.to_archive`.
    name : str
        Name of the model in messages.

    Examples
    --------
    >>> from evergrow import Classifier
    >>> from evergrow.learner.snapshot import StoredHead
    >>> head = Classifier(n_units=5, random_state=0)
    >>> head = head.fit([[1.0], [2.0], [3.0]], ["east", "north", "west"])
    >>> stored = StoredHead("evergrow", head.to_archive())
    >>> stored = stored.merge_classes(["east", "west"], "level")
    >>> stored.classes_.tolist(), stored.load().classes_.tolist()
    (['level', 'north'], ['level', 'north'])
    """

    def __init__(
        self, method: str, archive: Archive, *, name: str = "the archive"
    ) -> None:
        saved = read_fields(SavedHead, archive, name=name)
        self.method = method
        self.name = name
        self._archive = archive
        # Current name of each column of the stored head. Merged classes have one name.
        self._columns = saved.labels.table()
        self.classes_ = np.unique(self._columns)
        self.n_features_in_ = saved.n_features

    def _require_fitted(self) -> None:
        """Do nothing: a stored head has learned."""

    def _change_classes(self, change: ClassChange) -> Self:
        new_names = {
            self.classes_[index]: name
            for name, group in zip(change.classes.tolist(), change.groups, strict=True)
            for index in group
        }
        columns = [new_names[name] for name in self._columns]
        self._columns = np.array(columns, dtype=change.classes.dtype)
        self.classes_ = change.classes
        return self

    def branch(self) -> Self:
        """Return a copy with independent class names."""
        return copy.copy(self)

    def settle(self, *, cheap_only: bool = False) -> Self:
        """Do nothing: nothing can be computed before the head is loaded."""
        return self

    def to_archive(self) -> Archive:
        """Return the archive with the current class names."""
        labels = to_values(StoredLabels.of(self._columns))
        return replace(self._archive, meta={**self._archive.meta, "labels": labels})

    def load(self, device: str | torch.device | None = None) -> IncrementalClassifier:
        """Return the head, with classes of equal name merged.

        Parameters
        ----------
        device : str or torch.device, optional
            Device of the head; by default the one in its settings.
        """
        from evergrow.head.base import HEADS

        require(self.method in HEADS, f"its method {self.method!r} is unknown here")
        return HEADS[self.method].from_archive(
            self.to_archive(), device, name=self.name
        )


@record("learner", version=2)
@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything a learner has learned.

    Parameters
    ----------
    recipe : HeadRecipe
        Method and options of the head.
    counts : dict of str to int
        Number of samples learned per class name.
    head : IncrementalClassifier, StoredHead or None
        The classifier on feature vectors; a StoredHead while it is still in the file;
        None if nothing was learned.
    spec : BackboneSpec or None
        Description of the backbone; None if samples are feature vectors.
    calibration : Calibration
        Held-out scores, which give the temperature and the novelty threshold.
    history : tuple of Change
        All changes, the latest last.
    lineage : Lineage
        Revisions of the model file; see :mod:`evergrow.learner.modelfile`.
    reason : str
        Why the backbone was chosen, if it was chosen automatically.
    seed : int
        Seed of the head and of the adaptation.
    adaptation : Archive or None
        The :class:`~evergrow.adapt.adapted.Adaptation` of the backbone, if any.
    label_kind : {"name", "integer", "boolean"}
        Type of the labels. The head knows them by name.
    widths : tuple of int
        Columns of each feature block, if samples are feature vectors of several blocks.
        With a backbone, its description has them.
    columns : tuple of str
        Column names of the data frame, if there was one.
    told : HeadSummary or None
        Summary of the head, written to files so that it can be shown without loading
        the head; None in memory unless the state was read from a file.
    extra : Extra
        Optional file contents written by a later evergrow.
    origin : (Path, str) or None
        The model file that this was loaded from or last written to, with its checksum;
        not written to files.
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
        """Number of features; None if not known yet."""
        if self.head is None:
            return None if self.spec is None else self.spec.n_features
        return int(self.head.n_features_in_)

    @property
    def kind(self) -> str:
        """Type of the samples: ``"image"``, ``"text"`` or ``"features"``."""
        return "features" if self.spec is None else self.spec.kind

    @property
    def label_counts(self) -> dict[Any, int]:
        """Number of samples learned per class, by label in the type passed to `fit`."""
        labels = np.sort(as_labels(self.classes.tolist(), self.label_kind)).tolist()
        return {label: self.counts[str(label)] for label in labels}

    @property
    def measure(self) -> str:
        """Meaning of the values of predictions, as in :class:`Predictions`.

        A model of one class has nothing to compare with, so a probability would always
        be 1. Its values are familiarities, or scores before it is calibrated.
        """
        if not hasattr(self.head, "predict_proba"):
            return "score"
        if len(self.classes) > 1:
            return "probability"
        return "familiarity" if self.calibration.n else "score"

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
        """Return the state after a change, with new values for some fields.

        The change gets the next revision number. If a class name cannot be read as the
        current label type, all labels become strings.

        Parameters
        ----------
        change : Change
            The change, appended to the history.
        **values
            New values by field name.
        """
        after = replace(
            self,
            history=(*self.history, replace(change, revision=self.revision + 1)),
            **values,
        )
        if all(can_read(after.label_kind, name) for name in after.counts):
            return after
        return replace(after, label_kind="name")

    def describe(self) -> dict[str, Any]:
        """Describe the model in plain values, without loading the backbone.

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
        summary = self._head_summary()
        backbone = None
        if self.spec is not None:
            backbone = {**self.spec.to_dict(), "reason": self.reason}
        adaptation = None
        if self.adaptation is not None:
            adaptation = read_adaptation(self.adaptation).describe()
        blocks = None
        if summary.blocks is not None:
            blocks = [vars(block) for block in summary.blocks]
        novelty = None
        if self.calibration.n:
            novelty = {
                "calibrated_on": self.calibration.n,
                "false_alarm": FALSE_ALARM,
                "threshold": self.calibration.threshold(FALSE_ALARM),
            }
        return {
            "evergrow": __version__,
            "method": self.recipe.method,
            "options": dict(self.recipe.plain().options),
            "kind": self.kind,
            "backbone": backbone,
            "adaptation": adaptation,
            "n_features": self.n_features,
            "blocks": blocks,
            "n_units": summary.n_units,
            "n_classes": len(self.classes),
            "n_samples": sum(self.counts.values()),
            "n_unlabelled": summary.guesses,
            "classes": [
                {"name": name, "samples": self.counts[name]}
                for name in self.classes.tolist()
            ],
            "label_kind": self.label_kind,
            "novelty": novelty,
            "revision": self.revision,
            "history": [change.to_dict() for change in self.history],
        }

    def _head_summary(self) -> HeadSummary:
        """Return the summary of the head; a stored head without one is loaded."""
        if not isinstance(self.head, StoredHead):
            return HeadSummary.of(self.head)
        if self.told is not None:
            return self.told
        return HeadSummary.of(self.head.load("cpu"))

    # -- files -------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return the contents of a model file; it has no samples."""
        plain = replace(self, recipe=self.recipe.plain())
        if self.head is None:
            return to_archive(plain)
        summary = self.told
        if not isinstance(self.head, StoredHead):
            summary = HeadSummary.of(self.head)
        head: Any = self.head.to_archive()
        return to_archive(replace(plain, head=head, told=summary))

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the fields agree; loads no head."""
        check_history(self.history, self.lineage)
        names = sorted(self.counts)
        width = None
        archive: Any = self.head
        if archive is None:
            require(not names, "it counts samples and has no head")
        else:
            require(
                archive.kind == f"head/{self.recipe.method}",
                "its head has another method",
            )
            head = StoredHead(self.recipe.method, archive)
            width = head.n_features_in_
            require(
                head.classes_.dtype.kind == "U",
                "the labels of its head are not strings",
            )
            require(
                names == head.classes_.tolist(),
                "its sample counts and its head have different classes",
            )
        if self.spec is not None:
            fits = width in (None, self.spec.n_features)
            require(
                fits,
                f"its backbone has {self.spec.n_features} features "
                f"and its head takes {width}",
            )
        require(
            self.spec is not None or self.adaptation is None,
            "it has an adaptation but no backbone",
        )
        adds_up = not self.widths or (self.spec is None and sum(self.widths) == width)
        require(
            adds_up, "the widths of its feature blocks do not add up to its features"
        )
        require(
            len(self.columns) in (0, width),
            "the number of its column names is not that of its features",
        )
        for name in names:
            require(
                can_read(self.label_kind, name),
                f"its labels are of type {self.label_kind!r}, but {name!r} is not",
            )


def read_snapshot(archive: Archive, name: str) -> Snapshot:
    """Return the state in an archive; the head is not loaded yet.

    Raises
    ------
    FileFormatError
        If the archive is not a learner, or its parts do not agree.
    """
    state = from_archive(Snapshot, archive, name=name)
    head: Any = state.head
    if head is not None:
        head = StoredHead(state.recipe.method, head, name=f"{name}: head")
    return replace(state, head=head)


def with_head(
    state: Snapshot, device: str | torch.device | None, name: str
) -> Snapshot:
    """Return a state from :func:`read_snapshot` with its head loaded.

    Parameters
    ----------
    state : Snapshot
        The state, with a head in its archive or without a head. The recipe of a missing
        head is only checked.
    device : str or torch.device or None
        Device of the head; None chooses the best one.
    name : str
        Name of the model in messages.

    Raises
    ------
    FileFormatError
        If the head is damaged, or does not agree with the rest.
    """
    if device is not None:
        resolve_device(device)  # an error here is not one of the file
    try:
        if state.adaptation is not None:
            read_adaptation(state.adaptation, f"{name}: adaptation")
        if state.is_empty:
            state.recipe.create(
                device="auto" if device is None else device, random_state=state.seed
            )
            return state
        stored: Any = state.head
        head = stored.load(device)
        in_head = getattr(head, "class_counts_", None)
        in_state = [state.counts[label] for label in head.classes_.tolist()]
        require(
            in_head is None or in_state == in_head.tolist(),
            f"the sample counts of {name} differ from those of its head",
        )
    except FileFormatError:
        raise
    except (EvergrowError, TypeError, ValueError) as error:
        raise FileFormatError(f"{name} does not fit its method: {error}") from error
    return replace(state, head=head)


def read_adaptation(archive: Archive, name: str = "the adaptation") -> Any:
    """Return the adaptation of a backbone, read from its archive."""
    from evergrow.adapt.adapted import Adaptation  # slow to import

    return from_archive(Adaptation, archive, name=name)


def with_widths(
    head: IncrementalClassifier, widths: Sequence[int]
) -> IncrementalClassifier:
    """Set the widths of feature blocks in place, and return the head.

    A head whose parameter ``blocks`` is missing or set is not changed.
    """
    if len(widths) > 1 and getattr(head, "blocks", widths) is None:
        setattr(head, "blocks", tuple(widths))  # noqa: B010 (a parameter that not every head has)
    return head


def add_labels(counts: Mapping[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return sample counts per class with the labels of a batch added.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.snapshot import add_labels
    >>> add_labels({"cat": 2}, np.array(["cat", "ant"]))
    {'ant': 1, 'cat': 3}
    """
    return add_counts(counts, Counter(labels.tolist()))


def add_counts(
    first: Mapping[str, int],
    second: Mapping[str, int],
    common: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the sum of two sample counts per class, with `common` subtracted."""
    return dict(sorted((Counter(first) + Counter(second) - Counter(common)).items()))
