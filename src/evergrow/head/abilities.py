"""What a head can do beyond learning and answering, and how to ask it.

Everything here is optional. A head names what it can do in ``abilities``, has the methods that go with it, and whoever
works with heads of any kind asks :meth:`Abilities.can` first. A method that a head lacks is not there for ``hasattr``,
as scikit-learn's tools expect it, and asking for it all the same raises
:class:`~evergrow.core.errors.UnsupportedError`, which names the methods that can.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.errors import UnknownNameError, UnsupportedError
from evergrow.core.registry import nearest
from evergrow.core.wording import setting

if TYPE_CHECKING:
    from evergrow.head.fold_outs import FoldOuts
    from evergrow.head.linalg import RidgeState
    from evergrow.head.maps import HeadMap
    from evergrow.head.novelty_pool import NoveltyStandard
    from evergrow.head.ridge_model import RidgeModel

ABILITIES = {
    "branch": "be copied at no cost, since what is learned is a record",
    "spawn": "start an empty learner with the same layer",
    "merge": "add what another learner knows",
    "join": "add what another learner knows that began as a copy of the same one",
    "unlearn": "take samples out again",
    "weights": "let samples count for more or less than one",
    "forget": "remove whole classes",
    "rename": "give classes other names",
    "merge_classes": "make several classes one",
    "regularize": "change the ridge without data",
    "novelty": "say how unlike anything learned something is",
    "probabilities": "give class probabilities",
    "calibrate": "be calibrated by rows as if they had not been learned",
    "settle": "work out in advance what answers need",
    "solution": "keep what was worked out in a file",
    "linear-map": "say what it computes as plain matrices",
    "diagnostics": "describe its statistics numerically",
}
"""Every ability by name, and what it means."""

EASY_ORDER = 1200
"""Systems of up to this order are solved in about a second, which an update can afford."""


class Lacking:
    """Stands for a method that a head lacks, until a kind of head has it.

    Parameters
    ----------
    ability : str
        The ability that goes with it.
    """

    def __init__(self, ability: str) -> None:
        self.ability = ability

    def __get__(self, head: Any, kind: type[Abilities]) -> Any:
        raise unsupported(kind, self.ability)


class Abilities:
    """The optional part of a head: what is behind an ability is lacking unless a head has it and names the ability.

    Attributes
    ----------
    abilities : frozenset of str
        Names out of :data:`ABILITIES`.

    Examples
    --------
    >>> from evergrow.head import SCLClassifier
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> SCLClassifier.can("merge"), SimpleCILClassifier.can("merge")
    (True, False)
    >>> SimpleCILClassifier().spawn()
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnsupportedError: method must be able to start an empty learner with the same layer (scl-mgsm
    can), got 'simplecil'
    """

    abilities: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def can(cls, ability: str) -> bool:
        """Return whether heads of this kind have an ability, one of :data:`ABILITIES`."""
        if ability not in ABILITIES:
            raise UnknownNameError(
                f"ability must be a known one, got {ability!r}; nearest: {nearest(ability, ABILITIES)}"
            )
        return ability in cls.abilities

    @classmethod
    def require(cls, ability: str) -> None:
        """Raise :class:`UnsupportedError` unless heads of this kind have an ability."""
        if not cls.can(ability):
            raise unsupported(cls, ability)

    # -- what goes with an ability --------------------------------------------------------------------------

    if TYPE_CHECKING:

        def spawn(self) -> Self:
            """Return an empty learner with the same frozen layer, for another site."""

        def expecting(self, rows: int) -> Self:
            """Say how many samples will be learned in all by spawned learners that are merged."""

        def numbered(self, place: int) -> Self:
            """Say which part of a whole this learner has learned."""

        def merge(self, other: Any) -> Self:
            """Add everything that another learner with the same layer has learned."""

        def join(self, other: Any, base: Any) -> Self:
            """Return a head that knows what both know, with what both have from ``base`` counted once."""

        def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
            """Take samples out again that were learned before."""

        def forget_classes(self, labels: Iterable[Any]) -> Self:
            """Remove whole classes."""

        def rename_classes(self, names: Mapping[Any, Any]) -> Self:
            """Give classes other labels."""

        def merge_classes(self, labels: Iterable[Any], into: Any) -> Self:
            """Make several classes one."""

        def regularize(self, alpha: float | str) -> Self:
            """Change the ridge without data."""

        def predict_proba(self, X: Any) -> NDArray[np.float64]:
            """Return class probabilities."""

        def novelty_score(self, X: Any) -> NDArray[np.float64]:
            """Return how unlike anything learned each row is."""

        def novelty_without(self, X: Any, y: Any, folds: Any = None) -> NDArray[np.float64]:
            """Return the novelty of learned rows as if none of them, or of their fold, had been learned."""

        def novelty_terms(self, X: Any) -> NDArray[np.float64]:
            """Return what novelty is weighed from."""

        def fold_outs(self, X: Any, y: Any, folds: Any = None, sample_weight: Any = None) -> FoldOuts:
            """Return log losses and terms of novelty of learned rows as if their fold had not been learned."""

        def calibrate(self, *, temperature: float | None = None, novelty: NoveltyStandard | None = None) -> Self:
            """Set what was found out from rows as if they had not been learned."""

        def diagnostics(self) -> dict[str, Any]:
            """Return rank, conditioning, form and size of the statistics."""
    else:
        spawn, merge, join, unlearn = (Lacking(ability) for ability in ("spawn", "merge", "join", "unlearn"))
        forget_classes, regularize, predict_proba = Lacking("forget"), Lacking("regularize"), Lacking("probabilities")
        novelty_score, novelty_without, diagnostics = Lacking("novelty"), Lacking("novelty"), Lacking("diagnostics")
        rename_classes, merge_classes = Lacking("rename"), Lacking("merge_classes")
        novelty_terms, fold_outs, calibrate = (Lacking("calibrate") for _ in range(3))

    # -- copies ---------------------------------------------------------------------------------------------

    def branch(self) -> Self:
        """Return a copy that learns on its own.

        It costs nothing where the head :meth:`can` ``"branch"``: what is learned is then a record that both may hold,
        and learning replaces it. Other heads are copied whole.
        """
        return copy.copy(self) if self.can("branch") else copy.deepcopy(self)

    @property
    def temperature_(self) -> float | None:
        """Temperature of the softmax that turns scores into probabilities; None for heads that have none."""
        return None

    @property
    def assumed_prior_(self) -> str:
        """How common probabilities take classes to be: ``"uniform"``, or by the ``"counts"`` of their samples."""
        return "uniform"

    @property
    def is_calibrated_by_rows(self) -> bool:
        """Whether probabilities and novelty are calibrated by rows as if they had not been learned."""
        return False

    @property
    def takes_weights(self) -> bool:
        """Whether samples may count for more or less than one with the settings of this head."""
        return self.can("weights")

    def require_weights(self) -> None:
        """Raise :class:`UnsupportedError` unless :attr:`takes_weights`."""
        self.require("weights")

    # -- what answers need ----------------------------------------------------------------------------------

    def settle(self, *, cheap_only: bool = False) -> Self:
        """Work out now what answers need, rather than at the first question.

        Parameters
        ----------
        cheap_only : bool
            Whether to leave it where it would take more than about a second.

        Returns
        -------
        self
        """
        if self._has_answers() and (not cheap_only or self._solve_order() <= EASY_ORDER):
            self._settle()
        return self

    def _has_answers(self) -> bool:
        """Whether there is anything to work out."""
        return len(getattr(self, "classes_", ())) > 0

    def _solve_order(self) -> float:
        """Return the order of the largest system that answers need; infinite for what takes longer than a solve."""
        return 0.0

    def _settle(self) -> None:
        """Work out what answers need, as far as it is not there yet."""

    def solution(self) -> Archive | None:
        """Return what has been worked out from the statistics, so that a saved model answers without solving.

        None where nothing has been, or where the head is not able to keep a ``"solution"``.
        """
        return None

    def adopt_solution(self, archive: Archive, *, name: str = "the solution") -> None:
        """Take over what :meth:`solution` gave for the same statistics.

        Parameters
        ----------
        archive : Archive
            Of kind ``"head-solution"``.
        name : str
            What messages call it.

        Raises
        ------
        FileFormatError
            If it does not fit the classes and the layer of the head, or holds numbers that are not finite.
        """
        raise unsupported(type(self), "solution")

    def linear_map(self) -> HeadMap:
        """Return what the head computes as plain matrices, on the CPU (ability ``"linear-map"``)."""
        raise unsupported(type(self), "linear-map")

    # -- looking inside -------------------------------------------------------------------------------------

    @property
    def model_(self) -> RidgeModel | None:
        """The layer and the statistics behind it as a record that nobody changes; None where there is no such one."""
        return None

    @property
    def state_(self) -> RidgeState | None:
        """The statistics of the ridge regression as a record that nobody changes; None where there are none."""
        model = self.model_
        return None if model is None else model.state

    @property
    def class_counts_(self) -> NDArray[np.int64] | None:
        """Samples learned of each class; None where they are not counted."""
        model = self.model_
        return None if model is None else np.asarray(model.counts.cpu().numpy())

    @property
    def last_ridge_(self) -> float | None:
        """The ridge chosen last, by this head or the one that it was branched from; None where none was."""
        return None

    @property
    def blocks_(self) -> list[dict[str, Any]] | None:
        """What is known of every block of features, in plain values; None where features have no blocks.

        ``columns``, ``kept`` (columns that a budget of width left) and ``weight`` (how much it counts, with a mean
        square of one over the blocks, by the choice made last).
        """
        return None

    @property
    def n_units_(self) -> int | None:
        """Units of the layer; None where there is no layer, or nothing was learned."""
        model = self.model_
        return None if model is None else model.projection.n_units


def unsupported(kind: type[Abilities], ability: str) -> UnsupportedError:
    """Return the error for heads of a kind that lack an ability."""
    from evergrow.head.base import HEADS

    names = [name for name in HEADS.names() if HEADS[name] is kind]
    able = [name for name in HEADS.names() if HEADS[name].can(ability)]
    return UnsupportedError(
        f"{setting('method')} must be able to {ABILITIES[ability]} ({', '.join(able)} can), got "
        f"{(names or [kind.__name__])[0]!r}"
    )
