"""The state of a fitted classifier: its model, its solved results and pseudo-labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evergrow.core.record import require
from evergrow.core.threads import threads_for
from evergrow.head.pseudo_labels import PseudoLabels
from evergrow.head.ridge_model import RidgeModel
from evergrow.head.solved_cache import (
    Locked,
    Solution,
    SolvedCache,
    SolvedChoice,
    solved_once,
)


class BlendedCache(Locked):
    """The cache of labelled samples and pseudo-labels together.

    Their statistics are added when the cache is first used.

    Parameters
    ----------
    model : RidgeModel
        The labelled samples.
    pseudo_labels : PseudoLabels
        The pseudo-labels.
    before : SolvedCache
        The search for settings starts at its settings.
    fixed : float or None
        The ridge. None chooses it from the statistics.
    """

    def __init__(
        self,
        model: RidgeModel,
        pseudo_labels: PseudoLabels,
        before: SolvedCache,
        fixed: float | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.pseudo_labels = pseudo_labels
        self.kind = before.kind
        self.fixed = fixed
        self._known = SolvedChoice(before.choice)

    @solved_once
    def cache(self) -> SolvedCache:
        """The cache of the sum."""
        return SolvedCache(
            self.pseudo_labels.blended(self.model),
            self.kind,
            self.fixed,
            self._known,
            shape_masses=self.model.masses,
        )

    @property
    def is_used(self) -> bool:
        """Whether the statistics have been added."""
        return "cache" in vars(self)

    def with_cache(self, cache: SolvedCache) -> BlendedCache:
        """Return the same samples and pseudo-labels with another cache."""
        made = BlendedCache(self.model, self.pseudo_labels, cache, self.fixed)
        vars(made)["cache"] = cache
        return made


@dataclass(frozen=True, eq=False)
class ClassifierState:
    """Everything that predictions are computed from. Each change makes a new state.

    Parameters
    ----------
    model : RidgeModel
        Layer and statistics of the labelled samples.
    solved : SolvedCache
        Results solved from the labelled samples.
    pseudo_labels : PseudoLabels or None
        Rows learned without labels.
    blended : BlendedCache or None
        Results solved from labelled samples and pseudo-labels. None without
        pseudo-labels.
    """

    model: RidgeModel
    solved: SolvedCache
    pseudo_labels: PseudoLabels | None = None
    blended: BlendedCache | None = None

    @classmethod
    def start(
        cls, model: RidgeModel, kind: str, alpha: float | None
    ) -> ClassifierState:
        """Return the state of a model for which nothing is solved.

        Parameters
        ----------
        model : RidgeModel
            Layer and statistics.
        kind : {"denoised", "ridge"}
            The readout.
        alpha : float or None
            The ridge. None chooses it from the statistics.
        """
        return cls(model, SolvedCache(model, kind, alpha))

    @property
    def answering(self) -> SolvedCache:
        """The results that predictions use: with pseudo-labels if there are any."""
        if self.blended is None:
            return self.solved
        return self.blended.cache

    # -- changes -----------------------------------------------------------------------

    def after(
        self,
        model: RidgeModel,
        alpha: float | None,
        *,
        solved: SolvedCache | None = None,
        pseudo_labels: PseudoLabels | None = None,
    ) -> ClassifierState:
        """Return the state of a changed model.

        Parameters
        ----------
        model : RidgeModel
            The changed model.
        alpha : float or None
            The ridge. None chooses it from the statistics.
        solved : SolvedCache, optional
            Results of the changed model. By default everything is solved again when
            needed.
        pseudo_labels : PseudoLabels, optional
            Pseudo-labels, with the classes of the changed model.
        """
        if solved is None:
            solved = self.solved.after(model, alpha)
        changed = replace(self, model=model, solved=solved)
        return changed.with_pseudo_labels(pseudo_labels, alpha)

    def with_pseudo_labels(
        self, pseudo_labels: PseudoLabels | None, alpha: float | None
    ) -> ClassifierState:
        """Return the state with other pseudo-labels, or without any."""
        if not pseudo_labels:
            return replace(self, pseudo_labels=None, blended=None)
        before = self.solved
        if self.blended is not None and self.blended.is_used:
            before = self.blended.cache
        blended = BlendedCache(self.model, pseudo_labels, before, alpha)
        return replace(self, pseudo_labels=pseudo_labels, blended=blended)

    def settled(self) -> ClassifierState:
        """Return the state with readout and temperature solved for its statistics."""
        solved = self.solved.refreshed()
        solved.temperature()
        if self.blended is None:
            return replace(self, solved=solved)
        cache = self.blended.cache.refreshed()
        cache.temperature()
        return replace(self, solved=solved, blended=self.blended.with_cache(cache))

    def restored(
        self,
        solution: Solution | None,
        pseudo_labels: PseudoLabels | None,
        blended_solution: Solution | None,
    ) -> ClassifierState:
        """Return the state with the other contents of a file.

        Parameters
        ----------
        solution : Solution or None
            Results solved from the labelled samples.
        pseudo_labels : PseudoLabels or None
            The pseudo-labels.
        blended_solution : Solution or None
            Results solved from labelled samples and pseudo-labels.

        Raises
        ------
        FileFormatError
            If the contents do not fit each other.
        """
        state = replace(self, solved=self.solved.restored(solution))
        state = state.with_pseudo_labels(pseudo_labels, self.solved.fixed)
        if state.blended is None or state.pseudo_labels is None:
            return state
        added = state.pseudo_labels.state
        own = self.model.state
        require(
            (added.n_features, added.n_targets) == (own.n_features, own.n_targets),
            "its pseudo-labels are of another layer or of other classes",
        )
        cache = state.blended.cache.restored(blended_solution)
        return replace(state, blended=state.blended.with_cache(cache))

    # -- results -----------------------------------------------------------------------

    def work(self, n_rows: int) -> float:
        """Return the approximate operations to learn or predict rows, and to solve.

        That is n k^2 for n rows and k columns of the statistics, and k^3 to solve.
        """
        order = float(self.model.state.order)
        return (n_rows + order) * order**2

    def class_scores(self, Z: Tensor) -> Tensor:
        """Return class scores (n, C) of features (n, d)."""
        with threads_for(self.work(len(Z))):
            readout = self.answering.readout()
            scores = Z.new_empty(Z.shape[0], readout.weights.shape[1])
            for rows, H in self.model.activations(Z):
                scores[rows] = torch.addmm(readout.offset, H, readout.weights)
            shapes = self.answering.shapes
            if shapes is None or self.model.shapes is None:
                return scores
            return shapes.add(self.model.shapes.rows(self.model.inputs(Z)), scores)

    def temperature(self, calibrated: float | None) -> float:
        """Return the softmax temperature.

        Parameters
        ----------
        calibrated : float or None
            Temperature calibrated on labelled samples. None estimates it from the
            statistics. Pseudo-labels scale it, because they change the scores.
        """
        with threads_for(self.work(0)):
            temperature = calibrated
            if temperature is None:
                temperature = self.solved.temperature()
            if self.pseudo_labels is not None:
                ratio = self.answering.temperature() / self.solved.temperature()
                temperature *= ratio
            return temperature
