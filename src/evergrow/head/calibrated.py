"""Probabilities and novelty of a ridge head, and what they are calibrated by."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import UnsupportedError
from evergrow.core.validation import as_weights, check_number
from evergrow.head.denoised import Choice, estimate_means, solved_scatter
from evergrow.head.derived import Derived
from evergrow.head.editable import EditableRidge
from evergrow.head.fold_outs import FoldOuts, Rows, fold_outs
from evergrow.head.labels import as_labels, known_codes
from evergrow.head.linalg import SolvedScatter
from evergrow.head.novelty import NoveltyScorer, bounded
from evergrow.head.novelty_pool import KnownTerms, NoveltyPool, NoveltyStandard
from evergrow.head.novelty_terms import NoveltyTerms
from evergrow.head.readout import Readout, temperature
from evergrow.head.temperatures import guessed_temperature

_TERM_ROWS = 4096  # rows whose terms of novelty are worked out at once


class CalibratedRidge(EditableRidge):
    """A ridge head that gives probabilities and says how unlike anything learned something is.

    A kind of head implements :meth:`_solved` and keeps what it works out in ``_derived``.
    """

    readout: str
    prior: str
    _derived: Derived

    @abstractmethod
    def _solved(self) -> Readout:
        """Return the linear scores, solving for them where that has not been done."""

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return class probabilities: a softmax of the scores at :attr:`temperature_`.

        Expect them to be honest on data like the learned, not on unknown classes: use :meth:`novelty_score` for those.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C)
            Rows sum to one; columns follow ``classes_``.
        """
        warmth = self.temperature_
        return np.asarray(torch.softmax(torch.from_numpy(self.class_scores(X)) / warmth, dim=1).numpy())

    @property
    def temperature_(self) -> float:
        """Temperature of the softmax that turns scores into probabilities.

        Of the denoised readout the one given to :meth:`calibrate`, else a rough guess from the energy of class means.
        Of the other readouts it corrects the scores on learned rows by their average leave-one-out inflation
        (see :func:`evergrow.head.readout.temperature`).
        """
        self._require_fitted()
        derived, model, calibrated = self._derived, self._model, self._calibrated()[0]
        if calibrated is not None:
            return calibrated
        if derived.temperature is None and self.readout == "denoised":
            self._solved()
            if derived.spread is None:
                derived.spread = estimate_means(self._scatter()[1]).spread
            derived.temperature = guessed_temperature(derived.spread)
        elif derived.temperature is None:
            derived.temperature = temperature(model.state, model.mass, self._solved(), self.readout)
        return derived.temperature

    @property
    def assumed_prior_(self) -> str:
        """How common probabilities take classes to be: ``"uniform"``, or by the ``"counts"`` of their samples.

        Ridge regression on the classes as targets estimates probabilities among samples like those that were learned;
        the discriminants leave the counts out, the denoised one unless it is told otherwise.
        """
        if self.readout == "denoised":
            return self.prior
        return "counts" if self.readout == "ridge" else "uniform"

    def novelty_score(self, X: Any) -> NDArray[np.float64]:
        """Return how unlike anything learned each row is; higher means more novel.

        With the denoised readout a weighted sum of five terms (see :mod:`evergrow.head.novelty_terms`), with mean 0
        and spread 1 on known things once :meth:`calibrate` has been told what these are like, and about so before. With
        the other readouts the one score of :mod:`evergrow.head.novelty`, which is not negative and 0.1 to 0.9 for
        known things. Things of another world have larger ones without bound.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Compare them with those of known data.
        """
        self._require_fitted()
        if self.readout == "denoised":
            return self._novelty_standard().score(self.novelty_terms(X))
        Z = self._features(X, self.device_, reset=False)
        scorer = self._novelty_scorer()
        return np.asarray(torch.cat([scorer.score(H) for _, H in self._model.activations(Z)]).cpu().numpy())

    def novelty_terms(self, X: Any) -> NDArray[np.float64]:
        """Return what novelty is weighed from: five terms, and 1 / count of the nearest class.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, 6)
            Columns as in :data:`~evergrow.head.novelty_terms.TERMS`, each larger for what is less known, and the last.

        Raises
        ------
        UnsupportedError
            If the readout is not denoised.
        """
        self._require_fitted()
        self._require_denoised()
        terms, weights = self._novelty_terms(), self._scatter()[0].weights
        found = []
        for block in torch.split(self._features(X, self.device_, reset=False), _TERM_ROWS):
            rows = Rows.of(self._model, block, weights)
            found.append(bounded(terms.of_rows(rows.reduced, rows.outside), block))
        return np.asarray(torch.cat(found).cpu().numpy())

    def novelty_without(self, X: Any, y: Any, folds: Any = None) -> NDArray[np.float64]:
        """Return the novelty of learned rows as if none of them, or of their fold, had been learned.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Rows that were learned; of each class at least one learned row must not be among those taken out.
        y : array-like of shape (n,)
            The labels they were learned with.
        folds : ndarray of int of shape (n,), optional
            The fold of each; by default all are in one.

        Returns
        -------
        ndarray of shape (n,)
        """
        self._require_fitted()
        if self.readout == "denoised":
            return self._novelty_standard().score(self.fold_outs(X, y, folds).terms)
        Z, codes, parts = self._learned_rows(X, y, folds)
        H = torch.cat([part for _, part in self._model.activations(Z)])
        return np.asarray(self._novelty_scorer().without(H, codes, parts).cpu().numpy())

    def fold_outs(self, X: Any, y: Any, folds: Any = None, sample_weight: Any = None) -> FoldOuts:
        """Return log losses and terms of novelty of learned rows as if they, or their fold, had not been learned.

        Parameters
        ----------
        X, y, folds
            As for :meth:`novelty_without`.
        sample_weight : array-like of shape (n,), optional
            The weights that they were learned with.

        Raises
        ------
        UnsupportedError
            If the readout is not denoised.
        """
        self._require_fitted()
        self._require_denoised()
        Z, codes, parts = self._learned_rows(X, y, folds)
        choice, scatter = self._scatter()
        found = as_weights(sample_weight, len(Z))
        weights = None if found is None else torch.from_numpy(found).to(Z.device)
        folds = torch.zeros_like(codes) if parts is None else parts
        return fold_outs(self._model, scatter, choice, self.prior, Z, codes, folds, weights)

    def calibrate(self, *, temperature: float | None = None, novelty: NoveltyStandard | None = None) -> Self:
        """Set what was found out from rows as if they had not been learned; it stays when more is learned.

        Parameters
        ----------
        temperature : float, optional
            Of the softmax; None for a guess from the statistics.
        novelty : NoveltyStandard, optional
            How terms of novelty become a score; None for default weights and what the statistics say of known rows.

        Returns
        -------
        self

        Raises
        ------
        UnsupportedError
            If the readout is not denoised.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from evergrow import SCLClassifier
        >>> from evergrow.head.temperatures import best_temperature
        >>> X, y = load_digits(return_X_y=True)
        >>> model = SCLClassifier.recommended(n_units=100, random_state=0).fit(X[:900], y[:900])
        >>> found = model.fold_outs(X[:90], y[:90])
        >>> model.calibrate(temperature=best_temperature(found.log_losses)).temperature_ > 1.0
        True
        """
        self._require_started()
        self._require_denoised()
        if temperature is not None:
            check_number("temperature", temperature, low=0, low_open=True)
        self._temperature, self._standard = None if temperature is None else float(temperature), novelty
        return self

    def _calibrated(self) -> tuple[float | None, NoveltyStandard | None]:
        return getattr(self, "_temperature", None), getattr(self, "_standard", None)

    def _novelty_standard(self) -> NoveltyStandard:
        derived, calibrated = self._derived, self._calibrated()[1]
        if calibrated is not None:
            return calibrated
        if derived.expected is None:
            rows = np.asarray(self._novelty_terms().expected_rows().cpu().numpy())
            derived.expected = NoveltyPool((KnownTerms.of(rows, int(self._model.counts.sum())),)).standard()
        return derived.expected

    def _learned_rows(self, X: Any, y: Any, folds: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return rows, their classes and their folds as tensors."""
        Z = self._features(X, self.device_, reset=False)
        codes = torch.from_numpy(known_codes(self.classes_, as_labels(y, Z.shape[0]))).to(Z.device)
        return Z, codes, None if folds is None else torch.from_numpy(np.asarray(folds, dtype=np.int64)).to(Z.device)

    def _require_denoised(self) -> None:
        if not self.is_calibrated_by_rows:
            raise UnsupportedError(f"readout must be 'denoised' to be calibrated by rows, got {self.readout!r}")

    @property
    def takes_weights(self) -> bool:
        """Whether samples may have weights: with the denoised readout, whose every number is a sum over samples."""
        return self.readout == "denoised"

    def require_weights(self) -> None:
        """Raise :class:`UnsupportedError` unless :attr:`takes_weights`."""
        if not self.takes_weights:
            raise UnsupportedError(f"readout must be 'denoised' for samples to have weights, got {self.readout!r}")

    @property
    def is_calibrated_by_rows(self) -> bool:
        """Whether probabilities and novelty are calibrated by rows as if they had not been learned."""
        return self.readout == "denoised"

    def _novelty_scorer(self) -> NoveltyScorer:
        derived, model = self._derived, self._model
        if derived.novelty is None:
            derived.novelty = NoveltyScorer.of(model.state, model.mass)
        return derived.novelty

    # -- what they are worked out from --------------------------------------------------------------------

    def _scatter(self) -> tuple[Choice, SolvedScatter]:
        """Return ridge and strength, and the class means solved at them; factored only where nothing has followed."""
        self._solved()
        derived = self._derived
        if derived.choice is None:
            raise RuntimeError("a denoised readout is always solved at a choice")
        if derived.scatter is not None:
            return derived.choice, derived.scatter
        if derived.terms is not None:
            return derived.choice, derived.terms.scatter
        scatter = solved_scatter(self._model, derived.choice)
        if self._model.state.reduced().basis is None:
            derived.scatter = scatter
        return derived.choice, scatter

    def _novelty_terms(self) -> NoveltyTerms:
        derived = self._derived
        if derived.terms is None:
            derived.terms = NoveltyTerms.of(self._scatter()[1])
        return derived.terms
