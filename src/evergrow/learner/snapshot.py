"""Everything a learner knows, as one record: replaced as a whole or not at all, and written to files as it is."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from evergrow.core.archive import Archive
from evergrow.core.errors import EvergrowError, FileFormatError, ParameterError
from evergrow.core.record import NOTHING, Between, Extra, from_archive, record, require, to_archive
from evergrow.core.validation import check_keys
from evergrow.features.base import BackboneSpec
from evergrow.head.base import HEADS, IncrementalClassifier, with_blocks
from evergrow.head.saving import plain_value
from evergrow.learner.answering import Answering
from evergrow.learner.calibration import Calibration
from evergrow.learner.changes import Change, Lineage, check_history
from evergrow.learner.labels import can_read
from evergrow.learner.reference import Reference

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

    def create(self, *, device: Any, random_state: Any, widths: Sequence[int] = ()) -> IncrementalClassifier:
        """Return a fresh head.

        Parameters
        ----------
        device, random_state
            Handed on where the method takes them.
        widths : sequence of int
            Columns of each block of the features, where they have several.
        """
        if not isinstance(self.options, Mapping):
            raise ParameterError(f"options must be a dict or None, got {type(self.options).__name__}")
        head, chosen = HEADS[self.method], dict(self.options)
        accepted = [name for name in inspect.signature(head.__init__).parameters if name != "self"]
        for name, value in (("device", device), ("random_state", random_state)):
            if name in accepted:
                chosen.setdefault(name, value)
        check_keys(chosen, accepted, f"option of method {self.method!r}")
        try:
            made: IncrementalClassifier = head(**with_blocks(head, widths, chosen))
        except TypeError as error:
            raise ParameterError(f"method {self.method!r} needs all options that have no default: {error}") from error
        made._check_params()  # values out of range are refused now, not after all images went through a backbone
        return made

    def plain(self) -> HeadRecipe:
        """Return the recipe with options that JSON holds, or raise :class:`InputError`."""
        return HeadRecipe(self.method, {name: plain_value(name, value) for name, value in self.options.items()})


@record("learner")
@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a learner knows.

    Parameters
    ----------
    recipe : HeadRecipe
        How the head is made.
    counts : dict of str to int
        Samples learned of each class.
    head : IncrementalClassifier
        The classifier on feature vectors. One that has learned nothing is no part of a file.
    spec : BackboneSpec or None
        What computes the features; None where samples are features.
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
    adaptation : Archive or None
        What the backbone was adapted with, where it was: an :class:`~evergrow.adapt.fsa.Adaptation`.
    solution : Archive or None
        What the head has worked out for its answers; only in files.
    label_kind : {"name", "integer", "boolean"}
        What the labels were that were learned; the head knows them by their names.
    announced : tuple of str or None
        Classes that ``partial_fit`` was told to expect; others are refused.
    answering : Answering
        How answers follow from probabilities.
    reference : Reference or None
        Test data that it is tested on after every update.
    widths : tuple of int
        Columns of each block, where samples are features of several; with a backbone its description says so.
    columns : tuple of str
        Names of the columns, where samples are features that came in a data frame.
    extra : Extra
        What others attached to the model, and optional contents of a file that a later evergrow wrote.
    """

    recipe: HeadRecipe
    counts: dict[str, Count]
    head: IncrementalClassifier = field(default=None)  # type: ignore[assignment]
    spec: BackboneSpec | None = None
    calibration: Calibration = field(default_factory=Calibration)
    history: tuple[Change, ...] = ()
    lineage: Lineage = field(default_factory=Lineage)
    reason: str = ""
    seed: Annotated[int, Between(-(2**63), 2**64)] = 0
    adaptation: Archive | None = None
    solution: Archive | None = None
    label_kind: Literal["name", "integer", "boolean"] = "name"
    announced: tuple[str, ...] | None = None
    answering: Answering = field(default_factory=Answering)
    reference: Reference | None = None
    widths: tuple[Count, ...] = ()
    columns: tuple[str, ...] = ()
    extra: Extra = NOTHING

    @property
    def revision(self) -> int:
        """Number of the latest change; 0 before the first."""
        return self.history[-1].revision if self.history else 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is learned, so that the head has no layer."""
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
        """Return what is known after a change.

        If a class name cannot be read as the current label type, all labels become strings.
        """
        history = (*self.history, change.numbered(self.revision + 1))
        after = dataclasses.replace(self, history=history, **values)
        if not all(can_read(after.label_kind, name) for name in after.counts):
            after = dataclasses.replace(after, label_kind="name")
        if after.announced is not None and not set(after.counts) <= set(after.announced):  # got other names
            after = dataclasses.replace(after, announced=tuple(sorted({*after.announced, *after.counts})))
        return dataclasses.replace(after, answering=after.answering.limited(after.counts))

    # -- files ------------------------------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return what a file holds: numbers, plain settings and never a sample."""
        stored = dataclasses.replace(self, recipe=self.recipe.plain(), solution=None)
        if self.is_empty:
            stored = dataclasses.replace(stored, head=None)  # type: ignore[arg-type]
        else:
            stored = dataclasses.replace(stored, solution=self.head.solution())
        return to_archive(stored)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where what a file says does not fit together."""
        check_history(self.history, self.lineage)
        names, width = sorted(self.counts), None
        require(self.recipe.method in HEADS, f"its method {self.recipe.method!r} is unknown here")
        if self.head is None:
            require(not names, "it counts samples and has no head")
        else:
            width = self.head.n_features_in_
            require(type(self.head) is HEADS[self.recipe.method], "its head is of another method")
            require(self.head.classes_.dtype.kind == "U", "the labels of its head are no names")
            require(names == self.head.classes_.tolist(), "it counts samples of other classes than its head learned")
            learned = getattr(self.head, "class_counts_", None)
            own = [self.counts[name] for name in names]
            require(learned is None or own == learned.tolist(), "it counts other samples than its head learned")
            plain = self.answering.is_plain or hasattr(self.head, "predict_proba")
            require(plain, "it says how answers follow from probabilities, and its method has none")
        if self.spec is not None:
            fits = width in (None, self.spec.n_features)
            require(fits, f"its backbone has {self.spec.n_features} features and its head takes {width}")
        require(self.spec is not None or self.adaptation is None, "it adapts a backbone that it does not describe")
        blocks = not self.widths or (self.spec is None and sum(self.widths) == width)
        require(blocks, "its blocks do not fit its features")
        require(len(self.columns) in (0, width), "it has another number of columns than names for them")
        strange = [name for name in names if not can_read(self.label_kind, name)]
        require(not strange, f"its labels are of kind {self.label_kind!r}, but {(strange or [''])[0]!r} is none")
        require(self.announced is None or set(names) <= set(self.announced), "it has a class that was not announced")
        unlearned = sorted(self.answering.named() - set(names))
        require(not unlearned, f"answers name {unlearned[:1]}, which was not learned")


def read_snapshot(archive: Archive, device: str | torch.device | None, name: str) -> Snapshot:
    """Return what a learner knows, from what :meth:`Snapshot.to_archive` gave.

    Raises
    ------
    FileFormatError
        If the archive is no learner, or its parts do not fit each other.
    """
    now = from_archive(Snapshot, archive, device=device, name=name)
    if now.adaptation is not None:
        read_adaptation(now.adaptation, f"{name}: adaptation")
    if now.head is None:
        try:
            head = now.recipe.create(device="auto" if device is None else device, random_state=now.seed)
        except (EvergrowError, TypeError, ValueError) as error:
            raise FileFormatError(f"{name} has options that its method does not take: {error}") from error
        return dataclasses.replace(now, head=head)
    if now.solution is not None:
        if not hasattr(now.head, "adopt_solution"):
            raise FileFormatError(f"{name} has a solution, but heads of method {now.recipe.method!r} keep none")
        now.head.adopt_solution(now.solution, name=f"{name}: solution")
    now.calibration.apply(now.head)
    return dataclasses.replace(now, solution=None)


def read_adaptation(archive: Archive, name: str = "the adaptation") -> Any:
    """Return what a backbone was adapted with; most models have none, and it takes time to import."""
    from evergrow.adapt.fsa import Adaptation

    return from_archive(Adaptation, archive, name=name)


def counted(before: Mapping[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return the samples of each class with a batch added.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.snapshot import counted
    >>> counted({"cat": 2}, np.array(["cat", "ant"]))
    {'ant': 1, 'cat': 3}
    """
    names, counts = np.unique(labels, return_counts=True)
    return summed(before, dict(zip(names.tolist(), counts.tolist(), strict=True)))


def summed(first: Mapping[str, int], second: Mapping[str, int], *less: Mapping[str, int]) -> dict[str, int]:
    """Return the samples of each class of two models together, less those that both have from others."""
    total = dict(first)
    for name, count in second.items():
        total[name] = total.get(name, 0) + count - sum(other.get(name, 0) for other in less)
    return dict(sorted(total.items()))
