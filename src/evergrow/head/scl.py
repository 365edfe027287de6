"""SCL: a guided random layer and an exactly incremental ridge classifier on top of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, register_kind
from evergrow.core.errors import ParameterError
from evergrow.core.fields import Fields
from evergrow.core.progress import meter
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import check_choice, check_number
from evergrow.head.abilities import ABILITIES
from evergrow.head.base import HEADS
from evergrow.head.calibrated import CalibratedRidge
from evergrow.head.classifier import SEEDS, Contents
from evergrow.head.denoised import (
    CHOICE,
    PRIORS,
    Choice,
    column_scale,
    follow,
    shape_scores,
    solve_model,
)
from evergrow.head.derived import Derived
from evergrow.head.diagnostics import describe
from evergrow.head.feature_blocks import FeatureBlocks, check_blocks
from evergrow.head.growing import UNITS, Grower, LayerSpec
from evergrow.head.labels import LabelUpdate
from evergrow.head.layers import ACTIVATIONS, LAYERS, BlockRecord, FeatureMap, Scales, check_scales
from evergrow.head.linalg import LARGEST_WEIGHT, SOLVERS, ShapeScores, SolvedScatter
from evergrow.head.maps import LayerMap, ShapeMap, layer_map
from evergrow.head.migrations import model_part
from evergrow.head.novelty_pool import STANDARD, NoveltyStandard
from evergrow.head.readout import Readout, solve_readout
from evergrow.head.regrouping import Regrouping
from evergrow.head.ridge_model import RidgeModel

_DRAWN = ("gaussian", "fourier", "uniform")
"""Layers that are drawn without a look at the labels, so that a first task of one class serves as well."""

READOUTS = ("ridge", "discriminant", "denoised")

SOLUTION = register_kind("head-solution")
"""What follows from the statistics: class weights, offset, ridge and temperature; the layout that 0.1 had too."""


@HEADS.register("scl-mgsm", version=2, former=("SCLClassifier",), migrations={1: model_part})
class SCLClassifier(CalibratedRidge):
    """A classifier that learns new classes batch by batch, exactly as if it saw everything at once.

    ``fit`` grows a layer of random units from the first task (MGSM) and freezes it; every later batch only adds
    to sufficient statistics of a ridge regression, so nothing is forgotten and no data is kept. The defaults
    are the paper's; :meth:`recommended` gives the settings for users.

    Parameters
    ----------
    alpha : float, "holdout" or "gcv"
        Ridge. ``"holdout"`` chooses from the paper's grid on a tenth of the first task; ``"gcv"`` by generalised
        cross-validation on the accumulated statistics, anew after every update.
    block_size, n_candidates, contraction, tol : int, int, float, float
        s, B_max, r and epsilon of the construction.
    scales : "paper", "auto" or sequence of float
        Scales of the random weights. ``"paper"`` belongs to un-normalised ViT-B/16 features; ``"auto"`` is set
        from the first task.
    activation : str
        Activation of the units.
    criterion : {"exact", "theorem"}
        Acceptance by the true fall of the residual, or by the paper's printed inequality.
    direct_link : bool
        Put the features themselves beside the units.
    readout : {"ridge", "discriminant", "denoised"}
        Class scores by ridge regression, by a shrunk linear discriminant from the same statistics, or by one that
        takes class means as the estimates they are, so that a class of a few samples beside others of many is
        recognised too.
    max_units : int
        Cap on the width of the layer.
    projection : {"mgsm", "scsm", "gaussian", "fourier", "uniform"}
        Kind of layer, or another one that is registered (:data:`~evergrow.head.layers.LAYERS`).
    solver : {"auto", "dense", "recursive", "compact"}
        Form of the statistics; ``"auto"`` is compact while that is cheaper, then dense.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None
        Seed of the layer.
    verbose : int
        Progress bars if positive.
    n_units : int or None
        Exact width; the guided search is filled up with units of the same distribution. None keeps what
        the search accepts (and 10,000 for kinds that do not search).
    normalize : {"none", "l2", "sqrt-l2", "auto"}
        What is done to features first.
    class_moments : bool
        Keep the second moments of every class, so that :meth:`forget_classes` is exact. Takes up to
        ``8 L sum_c min(n_c, L)`` bytes, about as much as keeping the activations of all samples.
    units : {"activation", "fourier", "orthogonal-fourier"}
        Family of the units of a guided ("mgsm") or drawn ("gaussian") layer: ``activation`` at ``scales``, or cosines
        of one bandwidth that the spread of the first task sets, with independent or orthogonal directions.
    shape_directions : int
        Directions of the first task in which the second moments of every class are kept, so that the denoised
        readout knows the shape of each class; 0 keeps none. Takes ``4 k (k + 3)`` bytes a class.
    prior : {"uniform", "counts"}
        Whether the denoised readout takes classes with more samples to be likelier beforehand.
    blocks : tuple of int or None
        Columns of each block of features that were joined side by side, each of equal energy, as those of several
        depths of a backbone are. The denoised readout chooses from the statistics how much each counts.
    max_features : int or None
        Budget of width: features of more columns are reduced, block by block, to directions that the first task fixes.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    class_counts_ : ndarray of int
        Samples learned of each.
    n_units_ : int
        Width L of the layer.
    status_ : str
        How its construction ended: ``"converged"``, ``"exhausted"``, ``"capped"`` or ``"drawn"`` for unguided ones.
    construction_log_ : list of BlockRecord
        One entry per accepted block.
    alpha_ : float
        The ridge in use.
    block_weights_ : ndarray or None
        How much each block of features counts.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import SCLClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = SCLClassifier.recommended(n_units=300, random_state=0)
    >>> for first in range(0, 10, 2):            # two new classes at a time
    ...     task = (y[:1000] == first) | (y[:1000] == first + 1)
    ...     _ = model.partial_fit(X[:1000][task], y[:1000][task])
    >>> model.score(X[1000:], y[1000:]) > 0.93
    True
    """

    later_params: ClassVar[Mapping[str, Any]] = {
        "units": "activation",
        "shape_directions": 0,
        "prior": "uniform",
        "blocks": None,
        "max_features": None,
    }
    min_first_classes: ClassVar[int] = 2
    abilities: ClassVar[frozenset[str]] = frozenset(ABILITIES)

    def __init__(
        self,
        alpha: float | str = 0.01,
        block_size: int = 50,
        n_candidates: int = 10,
        contraction: float = 0.99,
        tol: float = 0.01,
        scales: Scales = "paper",
        activation: str = "sigmoid",
        criterion: str = "exact",
        direct_link: bool = False,
        readout: str = "ridge",
        max_units: int = 20_000,
        projection: str = "mgsm",
        solver: str = "auto",
        device: str | torch.device = "auto",
        random_state: Any = None,
        verbose: int = 0,
        n_units: int | None = None,
        normalize: str = "none",
        class_moments: bool = False,
        units: str = "activation",
        shape_directions: int = 0,
        prior: str = "uniform",
        blocks: tuple[int, ...] | None = None,
        max_features: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.block_size = block_size
        self.n_candidates = n_candidates
        self.contraction = contraction
        self.tol = tol
        self.scales = scales
        self.activation = activation
        self.criterion = criterion
        self.direct_link = direct_link
        self.readout = readout
        self.max_units = max_units
        self.projection = projection
        self.solver = solver
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.n_units = n_units
        self.normalize = normalize
        self.class_moments = class_moments
        self.units = units
        self.shape_directions = shape_directions
        self.prior = prior
        self.blocks = blocks
        self.max_features = max_features

    @classmethod
    def recommended(cls, **overrides: Any) -> Self:
        """Return a classifier with the settings for users rather than the paper's.

        Orthogonal Fourier units of a bandwidth set from the first task, a direct link, features brought to comparable
        length, and the denoised readout with the shapes of classes in 128 directions; 3,000 units, or with
        ``n_units=0`` the link alone.

        Parameters
        ----------
        **overrides
            Constructor arguments to set otherwise, for example ``n_units=1000``; ``max_units=200`` makes it 200 units.

        Examples
        --------
        >>> from evergrow import SCLClassifier
        >>> SCLClassifier.recommended(n_units=1000).alpha, SCLClassifier.recommended(max_units=200).n_units
        ('gcv', 200)
        """
        settings: dict[str, Any] = {
            "alpha": "gcv",
            "projection": "gaussian",
            "units": "orthogonal-fourier",
            "direct_link": True,
            "normalize": "auto",
            "readout": "denoised",
            "shape_directions": 128,
            "n_units": min(3000, overrides["max_units"]) if isinstance(overrides.get("max_units"), int) else 3000,
        }
        if overrides.get("blocks") is not None:
            settings["normalize"] = "none"  # each block has been brought to equal energy by itself
        return cls(**{**settings, **overrides})

    # -- hooks of the base ------------------------------------------------------------------------------

    def _check_params(self) -> None:
        if isinstance(self.alpha, str):
            check_choice("alpha", self.alpha, ("holdout", "gcv"))
        else:
            check_number("alpha", self.alpha, low=0, low_open=True)
        for name in ("block_size", "n_candidates", "max_units"):
            check_number(name, getattr(self, name), low=1, integer=True)
        check_blocks(self.blocks)
        if self.max_features is not None:
            check_number("max_features", self.max_features, low=len(self.blocks or (0,)), integer=True)
        if self.n_units is not None:
            check_number("n_units", self.n_units, low=0, high=self.max_units, integer=True)
        check_number("contraction", self.contraction, low=0, high=1, low_open=True, high_open=True)
        check_number("tol", self.tol, low=0)
        check_scales(self.scales)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("criterion", self.criterion, ("exact", "theorem"))
        check_choice("readout", self.readout, READOUTS)
        check_choice("units", self.units, UNITS)
        check_choice("prior", self.prior, PRIORS)
        check_number("shape_directions", self.shape_directions, low=0, high=4096, integer=True)
        check_choice("solver", self.solver, SOLVERS)
        check_choice("normalize", self.normalize, ("none", "l2", "sqrt-l2", "auto"))
        if self.blocks is not None and len(self.blocks) > 1 and self.normalize != "none":
            raise ParameterError(f"normalize must be 'none' where features have blocks, got {self.normalize!r}")
        check_number("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, integer=True)
        check_choice("projection", self.projection, ("mgsm", *LAYERS.names()))

    def _reset(self) -> None:
        for name in ("_model", "_derived", "_holdout_alpha", "_temperature", "_standard"):
            self.__dict__.pop(name, None)

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = torch.from_numpy(labels.codes).to(Z.device)
        model = self._current() if self._is_started() else self._first_model(Z, codes)
        with meter("learning", Z.shape[0], enabled=self.verbose > 0) as tick:
            weights = None if labels.weights is None else torch.from_numpy(labels.weights).to(Z.device)
            learned = model.learn(Z, codes, labels.columns, tick, weights)
        self._commit(learned, self._following(learned, Z, codes, list(labels.columns), weights))

    def least_first_classes(self) -> int:
        """Return one where the layer is drawn and not guided by the classes, and means are all that is solved for."""
        drawn = self.projection in _DRAWN
        return 1 if drawn and self.readout == "denoised" else self.min_first_classes

    def _first_model(self, Z: Tensor, codes: Tensor) -> RidgeModel:
        """Grow the layer on the first task."""
        self._seed = resolve_seed(self.random_state)
        model, chosen = self._grower().first_model(Z, codes)
        if chosen is not None:
            self._holdout_alpha = chosen
        return model

    def _scores(self, Z: Tensor) -> Tensor:
        readout = self._solved()
        out = Z.new_empty(Z.shape[0], readout.weights.shape[1])
        for rows, H in self._model.activations(Z):
            out[rows] = torch.addmm(readout.offset, H, readout.weights)
        shapes, model = self._shape_scores(), self._model
        if shapes is None or model.shapes is None:
            return out
        return shapes.add(model.shapes.rows(model.inputs(Z)), out)

    def _contents(self) -> Contents:
        meta = {"seed": self._seed, "holdout_alpha": self._holdout()}
        parts, temperature, standard = {"model": self._model.to_archive()}, *self._calibrated()
        if temperature is not None:
            meta["temperature"] = temperature
        if standard is not None:
            parts["novelty"] = standard.to_archive()
        return Contents(meta, parts=parts)

    def _restore(self, fields: Fields) -> None:
        self._seed = fields.integer("seed", **SEEDS)
        chosen = fields.optional_number("holdout_alpha", low=0.0)
        fields.require(chosen != 0.0, "its ridge is zero")
        if chosen is not None:
            self._holdout_alpha = chosen
        self._commit(self._read_model(fields, "model"))
        warmth = fields.optional_number("temperature", low=0.0)
        fields.require(warmth != 0.0, "its temperature is zero")
        standard = None
        if fields.has("novelty"):
            standard = NoveltyStandard.from_archive(fields.open_part("novelty", STANDARD.name))
        self._temperature, self._standard = warmth, standard

    def _grower(self) -> Grower:
        guidance: dict[str, Any] = {
            "block_size": self.block_size,
            "n_candidates": self.n_candidates,
            "contraction": self.contraction,
            "tol": self.tol,
            "criterion": self.criterion,
        }
        layer = LayerSpec(
            self.projection,
            self.n_units,
            self.max_units,
            self.scales,
            self.activation,
            self.units,
            self.direct_link,
            guidance,
        )
        return Grower(
            layer,
            self.alpha,
            self.normalize,
            self.solver,
            self.class_moments,
            self.shape_directions,
            self._seed,
            self.verbose > 0,
            None if self.blocks is None else tuple(self.blocks),
            self.max_features,
        )

    # -- what is solved only when asked for -------------------------------------------------------------

    def _commit(self, model: RidgeModel, scatter: SolvedScatter | None = None) -> None:
        """Make a new model the current one; whatever was derived from the old is solved anew when needed.

        A solution that has followed the change is kept, and with it nothing of large order is solved again.
        """
        before: Derived | None = getattr(self, "_derived", None)
        kept = Derived() if before is None else Derived(last_alpha=before.hint(), choice=before.choice)
        kept.scatter = scatter
        self._derived, self._model = kept, model

    def _commit_without(self, model: RidgeModel, Z: Tensor, codes: Tensor, weights: Tensor | None) -> None:
        self._commit(model, self._following(model, Z, codes, None, weights))

    def _commit_regrouped(self, model: RidgeModel, change: Regrouping) -> None:
        if change.is_permutation:
            self._derived, self._model = self._derived.reordered(change.order), model
        else:
            super()._commit_regrouped(model, change)

    def _choose_anew(self) -> None:
        self._derived.choice = None

    def _following(
        self, model: RidgeModel, Z: Tensor, codes: Tensor, columns: list[int] | None, weights: Tensor | None
    ) -> SolvedScatter | None:
        """Return the solution of before after a change to another model, where it can follow."""
        derived: Derived | None = getattr(self, "_derived", None)
        if derived is None or derived.choice is None:
            return None
        return follow(derived.scatter, model, Z, codes, columns, derived.choice.weights, weights)

    def _current(self) -> RidgeModel:
        """Return the model that the next one is made from."""
        return self._model

    def _fixed_alpha(self) -> float | None:
        """Return the ridge where it is settled, None where it is chosen from the statistics."""
        if isinstance(self.alpha, str):
            return self._holdout() if self.alpha == "holdout" else None
        return float(self.alpha)

    def _inherit(self, parent: Self) -> None:
        self._seed = parent._seed
        if parent._holdout() is not None:
            self._holdout_alpha = parent._holdout_alpha

    def _holdout(self) -> float | None:
        return getattr(self, "_holdout_alpha", None)

    def _solved(self) -> Readout:
        derived, model, fixed = self._derived, self._model, self._fixed_alpha()
        if derived.readout is None and self.readout == "denoised":
            solved = solve_model(model, fixed, self.prior, derived.choice, derived.scatter)
            derived.settled = derived.settled or solved.choice is not derived.choice
            derived.choice, derived.scatter, derived.readout = solved.choice, solved.scatter, solved.readout
            derived.spread = solved.spread
        elif derived.readout is None:
            derived.readout = solve_readout(model.state, model.mass, fixed, self.readout, derived.last_alpha)
        return derived.readout

    def _shape_scores(self) -> ShapeScores | None:
        derived = self._derived
        if derived.shapes is None and derived.choice is not None and self.readout == "denoised":
            derived.shapes = shape_scores(self._model, derived.choice)
        return derived.shapes

    def _solve_order(self) -> float:
        return self._model.state.order

    def _settle(self) -> None:
        derived = self._derived
        if derived.choice is not None and not derived.settled:
            # The ridge of an answer may be that of somewhat other rows; who settles wants the one of just these.
            self._derived = Derived(last_alpha=derived.hint(), choice=replace(derived.choice, rows=0))
        self._solved()
        _ = self.temperature_

    def solution(self) -> Archive | None:
        """Return what has been worked out from the statistics, so that a saved model answers without solving.

        None where nothing has been. An archive of kind ``"head-solution"``: ``last_ridge``, and once class weights
        have been solved for ``weights`` (L, C), ``offset`` (C,), ``alpha``, ``minimiser``, ``jitter`` and
        ``temperature``.
        """
        self._require_started()
        derived, solved = self._derived, self._derived.readout
        meta: dict[str, Any] = {"last_ridge": self.last_ridge_}
        if solved is None:
            return None if self.last_ridge_ is None else SOLUTION.archive(meta)
        meta |= {"alpha": solved.alpha, "minimiser": solved.minimiser, "jitter": solved.jitter}
        meta |= {"temperature": derived.temperature}  # a calibrated one is no matter of the statistics
        parts = {} if derived.choice is None else {"choice": derived.choice.to_archive()}
        return SOLUTION.archive(meta, {"weights": solved.weights, "offset": solved.offset}, parts)

    def adopt_solution(self, archive: Archive, *, name: str = "the solution") -> None:
        """Take over what :meth:`solution` gave for the same statistics; see the base class."""
        self._require_started()
        fields, classes = archive.open(SOLUTION.name, name=name), len(self.classes_)
        last = fields.optional_number("last_ridge", low=0.0)
        solved, warmth = None, None
        if fields.has("weights") or fields.has("offset"):
            solved = Readout(
                fields.tensor("weights", (self._model.projection.n_outputs, classes)).to(self.device_),
                fields.tensor("offset", (classes,)).to(self.device_),
                fields.number("alpha", low=0.0),
                fields.number("minimiser", low=0.0),
                fields.number("jitter", low=0.0),
            )
            largest = max(float(part.abs().max()) for part in (solved.weights, solved.offset) if part.numel())
            fields.require(largest < LARGEST_WEIGHT, "its class weights are larger than any data can make them")
            warmth = fields.optional_number("temperature", low=0.0)
        fields.require(last != 0.0 and warmth != 0.0, "a ridge or a temperature is zero")
        choice = Choice.from_archive(fields.open_part("choice", CHOICE.name)) if fields.has("choice") else None
        fields.require(
            self.readout != "denoised" or solved is None or choice is not None, "it does not say how it was chosen"
        )
        wanted = 0 if self._model.blocks is None else len(self._model.blocks.kept)
        fields.require(
            choice is None or len(choice.weights) in (0, wanted), "it has weights of another number of blocks"
        )
        settled = choice is not None and choice.rows == round(float(self._model.mass.sum()))
        self._derived = Derived(last, solved, warmth, choice=choice, settled=settled)

    def linear_map(self) -> LayerMap:
        """Return what the head computes as plain matrices, on the CPU."""
        self._require_fitted()
        solved = self._solved()
        found, shapes, scores = (
            layer_map(self._model, solved.weights, solved.offset),
            self._model.shapes,
            self._shape_scores(),
        )
        if shapes is None or scores is None or not scores.has_terms:
            return found
        return replace(found, shape=ShapeMap.of(shapes, scores, self._model.blocks))

    # -- looking inside ---------------------------------------------------------------------------------

    @property
    def last_ridge_(self) -> float | None:
        """The ridge chosen last, by this head or the one that it was branched from; None where none was."""
        self._require_started()
        return self._derived.hint()

    @property
    def layer_(self) -> FeatureMap:
        """The frozen layer."""
        self._require_started()
        return self._model.projection

    @property
    def n_units_(self) -> int:
        """Width L of the layer."""
        return self.layer_.n_units

    @property
    def alpha_(self) -> float:
        """The ridge in use."""
        self._require_fitted()
        return self._solved().alpha

    @property
    def block_weights_(self) -> NDArray[np.float64] | None:
        """How much each block of features counts, with a mean square of one; None where features have no blocks.

        What the first task fixed times what the statistics say now.
        """
        self._require_fitted()
        if self._model.blocks is None:
            return None
        self._solved()
        return self._block_weights(self._model.blocks)

    @property
    def blocks_(self) -> list[dict[str, Any]] | None:
        """What is known of every block of features, by the choice made last; nothing is solved for it."""
        self._require_started()
        blocks = self._model.blocks
        if blocks is None:
            return None
        columns = zip(blocks.sizes, blocks.kept, self._block_weights(blocks).tolist(), strict=True)
        return [{"columns": size, "kept": kept, "weight": weight} for size, kept, weight in columns]

    def _block_weights(self, blocks: FeatureBlocks) -> NDArray[np.float64]:
        weights, choice = np.asarray(blocks.weights), self._derived.choice
        if choice is not None and choice.weights:
            weights = weights * np.asarray(choice.weights)
        return np.asarray(weights / np.sqrt(np.mean(weights**2)))

    @property
    def construction_log_(self) -> list[BlockRecord]:
        """One entry per accepted block; empty for layers that are drawn."""
        return list(self.layer_.log)

    @property
    def status_(self) -> str:
        """How the construction ended."""
        return self.layer_.status

    def diagnostics(self) -> dict[str, Any]:
        """Return what the layer is, numerically: rank, conditioning, form and size of the statistics.

        Returns
        -------
        dict
            ``n_units``, ``n_guided``, ``status``, ``classes``, ``samples``, ``alpha``, ``effective_rank`` (degrees of
            freedom at alpha), ``condition_number`` of the regularised Gram matrix, ``common_mode`` (share of the energy
            in its largest direction), ``solver``, ``error_bound`` and ``state_bytes``. Costs one decomposition.
        """
        self._require_fitted()
        solved, choice = self._solved(), self._derived.choice
        return describe(self._model, solved, None if choice is None else column_scale(self._model, choice.weights))
