"""SCL-MGSM, the method of the paper: a guided layer and recursive ridge regression."""

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
    """The method of the SCL-MGSM paper, with the parameter names of the paper.

    ``fit`` builds a layer of random units on the first batch (MGSM) and freezes it.
    Every later batch is added to the statistics of a ridge regression, so nothing is
    forgotten and no data is kept. The class is a :class:`~evergrow.Classifier` with a
    guided layer, the ridge readout and the defaults of the paper. Prefer
    :class:`~evergrow.Classifier` for data of your own.

    Parameters
    ----------
    alpha : float or "gcv", default=0.01
        Ridge. ``"gcv"`` chooses it from the statistics by generalised
        cross-validation, after every update.
    block_size : int, default=50
        Units added in each step, s.
    n_candidates : int, default=10
        Candidate blocks per step, B_max.
    contraction : float, default=0.99
        Contraction factor r of the residual.
    tol : float, default=0.01
        Residual at which the construction stops, epsilon.
    scales : "paper", "auto" or sequence of float, default="paper"
        Scales of the random weights. ``"paper"`` is made for ViT-B/16 features that are
        not normalised. ``"auto"`` sets them from the first batch.
    activation : str, default="sigmoid"
        Activation function of the units.
    criterion : {"exact", "theorem"}, default="exact"
        When a block is accepted: by the exact decrease of the residual, or by the
        inequality printed in the paper.
    max_units : int, default=20000
        Largest number of units.
    solver : {"auto", "dense", "compact", "recursive"}, default="auto"
        Form of the statistics. ``"recursive"`` is the recursion of the paper.
    device : str or torch.device, default="auto"
        ``"auto"``, ``"cpu"``, ``"cuda"`` or another device.
    random_state : int, numpy generator or None, default=None
        Seed of the layer.
    verbose : int, default=0
        Show the progress of the construction if positive.
    n_units : int or None, default=None
        Exact number of units. The accepted units are filled up with units of the same
        distribution. None keeps the accepted units only.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Learned labels, sorted.
    class_counts_ : ndarray of int of shape (C,)
        Number of learned samples per class.
    n_units_ : int
        Number of units L of the layer.
    status_ : str
        How the construction ended: ``"converged"``, ``"exhausted"`` or ``"capped"``.
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
        verbose = self.verbose
        if isinstance(verbose, bool):
            verbose = int(verbose)
        check_number("verbose", verbose, integer=True)

    def _chosen_layer(self) -> Layer:
        params = self.get_params(deep=False)
        names = field_names(GuidedLayer)
        return GuidedLayer(**{name: params[name] for name in names if name in params})

    def _empty_state(
        self, width: int, floor: float, device: torch.device
    ) -> RidgeStatistics:
        if self.solver == "recursive":
            empty = RidgeStatistics.create(width, 0, device=device)
            return RecursiveState.of(empty, self._fixed_alpha() or floor)
        return RidgeStatistics.create(width, 0, self.solver, floor=floor, device=device)
