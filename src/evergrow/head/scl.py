"""SCL-MGSM, the paper's method: a guided layer grown on the first task, and recursive ridge regression on it."""

from __future__ import annotations

from typing import Any

import torch

from evergrow.core.validation import check_choice, check_number, field_names
from evergrow.head.base import HEADS
from evergrow.head.classifier import Classifier
from evergrow.head.layers.feature_map import Layer
from evergrow.head.layers.guided import GuidedLayer, Scales
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.statistics import RidgeStatistics


@HEADS.register("scl-mgsm")
class SCLClassifier(Classifier):
    """The method of the SCL-MGSM paper, under the paper's names.

    ``fit`` grows a layer of random units from the first task (MGSM) and freezes it;
    every later batch only adds to sufficient statistics of a ridge regression, so
    nothing is forgotten and no data is kept. It is a :class:`~evergrow.Classifier` with
    a guided layer and the ridge readout, with the paper's defaults; for data of your
    own take that one.

    Parameters
    ----------
    alpha : float or "gcv"
        Ridge. ``"gcv"`` chooses it by generalised cross-validation on the accumulated
        statistics, anew after every update.
    block_size, n_candidates, contraction, tol : int, int, float, float
        s, B_max, r and epsilon of the construction.
    scales : "paper", "auto" or sequence of float
        Scales of the random weights. ``"paper"`` belongs to un-normalised ViT-B/16
        features; ``"auto"`` is set from the first task.
    activation : str
        Activation of the units.
    criterion : {"exact", "theorem"}
        Acceptance by the true fall of the residual, or by the paper's printed
        inequality.
    max_units : int
        Cap on the width of the layer.
    solver : {"auto", "dense", "compact", "recursive"}
        Form of the statistics; ``"recursive"`` is the paper's recursion.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : int, numpy generator or None
        Seed of the layer.
    verbose : int
        Show the progress of the construction if positive.
    n_units : int or None
        Exact width; the search is filled up with units of the same distribution. None
        keeps what it accepts.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    class_counts_ : ndarray of int
        Samples learned of each.
    n_units_ : int
        Width L of the layer.
    status_ : str
        How its construction ended: ``"converged"``, ``"exhausted"`` or ``"capped"``.
    construction_log_ : list of BlockRecord
        One entry per accepted block.
    alpha_ : float
        The ridge in use.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow import SCLClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = SCLClassifier(max_units=300, random_state=0).fit(X[:1000], y[:1000])
    >>> model.status_, model.n_units_
    ('capped', 300)
    >>> model.score(X[1000:], y[1000:]) > 0.85
    True
    """

    readout = "ridge"
    normalize = "none"
    shape_directions = 0
    blocks = None

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
        max_units: int = 20_000,
        solver: str = "auto",
        device: str | torch.device = "auto",
        random_state: Any = None,
        verbose: int = 0,
        n_units: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.block_size = block_size
        self.n_candidates = n_candidates
        self.contraction = contraction
        self.tol = tol
        self.scales = scales
        self.activation = activation
        self.criterion = criterion
        self.max_units = max_units
        self.solver = solver
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.n_units = n_units

    def _check_params(self) -> None:
        super()._check_params()
        check_choice("solver", self.solver, ("auto", "dense", "compact", "recursive"))
        check_number(
            "verbose",
            int(self.verbose) if isinstance(self.verbose, bool) else self.verbose,
            integer=True,
        )

    def _chosen_layer(self) -> Layer:
        values = self.get_params(deep=False)
        return GuidedLayer(
            **{
                name: values[name]
                for name in field_names(GuidedLayer)
                if name in values
            }
        )

    def _empty_state(
        self, width: int, floor: float, device: torch.device
    ) -> RidgeStatistics:
        if self.solver == "recursive":
            return RecursiveState.of(
                RidgeStatistics.create(width, 0, device=device),
                self._fixed_alpha() or floor,
            )
        return RidgeStatistics.create(width, 0, self.solver, floor=floor, device=device)
