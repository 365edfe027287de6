"""Changes of a model as records: each works on a learner, or on a draft that has not begun."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError
from evergrow.learner.learner import Learner
from evergrow.serve.annotations import PART, without_forgotten
from evergrow.serve.drafts import Draft


class Edit(Protocol):
    """A change that can be made."""

    @property
    def size(self) -> int:
        """Samples that come with it."""

    def on_learner(self, learner: Learner) -> None:
        """Change a learner that nobody else holds."""

    def on_draft(self, draft: Draft) -> Draft:
        """Return a draft after the change."""


@dataclass(frozen=True, eq=False)
class Teach:
    """Learn samples.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Their features.
    labels : ndarray of str of shape (n,)
        Their classes.
    """

    X: NDArray[Any]
    labels: NDArray[np.str_]

    @property
    def size(self) -> int:
        """Samples that come with it."""
        return len(self.labels)

    def on_learner(self, learner: Learner) -> None:
        """Learn them."""
        learner.partial_fit((self.X, self.labels))

    def on_draft(self, draft: Draft) -> Draft:
        """Keep their features until there are two classes."""
        return draft.taught(self.X, self.labels)


@dataclass(frozen=True, eq=False)
class Unlearn:
    """Take samples out again, exactly.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Their features, the same as when they were taught.
    labels : ndarray of str of shape (n,)
        The classes they were taught as.
    """

    X: NDArray[Any]
    labels: NDArray[np.str_]

    @property
    def size(self) -> int:
        """Samples that come with it."""
        return len(self.labels)

    def on_learner(self, learner: Learner) -> None:
        """Unlearn them."""
        learner.unlearn((self.X, self.labels))

    def on_draft(self, draft: Draft) -> Draft:
        """Drop them."""
        return draft.unlearned(self.X, self.labels)


@dataclass(frozen=True)
class Forget:
    """Forget whole classes.

    Parameters
    ----------
    names : tuple of str
        The classes.
    """

    names: tuple[str, ...]
    size: ClassVar[int] = 0

    def on_learner(self, learner: Learner) -> None:
        """Forget them, and what was kept of their annotations."""
        learner.forget_classes(self.names)
        kept = without_forgotten(learner.attached(PART), learner.history_)
        if kept is not None:
            learner.attach(PART, kept)

    def on_draft(self, draft: Draft) -> Draft:
        """Drop their samples, and what was kept of their annotations."""
        after = draft.forgotten(self.names)
        kept = without_forgotten(after.parts.get(PART), after.history)
        return after if kept is None else dataclasses.replace(after, parts={**after.parts, PART: kept})


@dataclass(frozen=True)
class Rename:
    """Give a class another name.

    Parameters
    ----------
    old, new : str
        Its name, and the one it gets.
    """

    old: str
    new: str
    size: ClassVar[int] = 0

    def on_learner(self, learner: Learner) -> None:
        """Rename it."""
        learner.rename_class(self.old, self.new)

    def on_draft(self, draft: Draft) -> Draft:
        """Rename it."""
        if self.new in draft.counts:
            raise LabelError(f"new must be a name that no class has, got {self.new!r}: merge-classes makes two one")
        return draft.renamed({self.old: self.new}, "rename")


@dataclass(frozen=True)
class MergeClasses:
    """Make several classes one.

    Parameters
    ----------
    names : tuple of str
        The classes.
    into : str
        Name of the one that they become.
    """

    names: tuple[str, ...]
    into: str
    size: ClassVar[int] = 0

    def on_learner(self, learner: Learner) -> None:
        """Merge them."""
        learner.merge_classes(self.names, self.into)

    def on_draft(self, draft: Draft) -> Draft:
        """Refuse: there is one class at most."""
        raise LabelError(f"names must be two classes at least that were learned, got {len(draft.counts)} in the model")
