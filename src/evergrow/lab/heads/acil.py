"""ACIL and G-ACIL: recursive least squares on a random ReLU buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from evergrow.core.bounds import MOST_ROUNDS
from evergrow.core.validation import check_integer
from evergrow.head.base import HEADS
from evergrow.lab.heads.random_layer import RandomLayerRidge
from evergrow.lab.layers import UniformLayer


class _AnalyticBuffer(RandomLayerRidge):
    """Layer that ACIL and G-ACIL share: Kaiming-uniform ReLU units without bias."""

    def _layer(self) -> UniformLayer:
        return UniformLayer(self.n_units)


@HEADS.register("acil")
@dataclass(eq=False, repr=False)
class ACILClassifier(_AnalyticBuffer):
    """Analytic class-incremental learning (Zhuang et al., NeurIPS 2022).

    A random buffer ``h = ReLU(z W)`` and recursive ridge regression on the inverse
    autocorrelation matrix, in float64 as in the authors' repository
    (Analytic-continual-learning). The recursion equals joint ridge regression,
    so the statistics are kept in their cheapest form. The backbone stays frozen: the
    base training of the original is not part of a head.

    Parameters
    ----------
    n_units : int
        Buffer size. The default, 8192, is that of the repository's command line (16384
        for ImageNet-1k).
    alpha : float
        Ridge, called gamma there. The default, 0.1, is that of the repository's command
        line (the ACIL class itself has 1e-3).
    random_state : int, numpy generator or None
        Seed of the buffer.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    alpha_ : float
        Ridge in use.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import ACILClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = ACILClassifier(n_units=500, random_state=0)
    >>> for first in (0, 5):
    ...     task = (y // 5 * 5 == first)
    ...     _ = model.partial_fit(X[task] / 16, y[task])
    >>> model.score(X / 16, y) > 0.97
    True
    """

    n_units: int = 8192
    alpha: float = 0.1
    random_state: Any = None
    device: str | torch.device = "auto"


@HEADS.register("g-acil")
@dataclass(eq=False, repr=False)
class GACILClassifier(_AnalyticBuffer):
    """G-ACIL, also GACL (Zhuang et al., NeurIPS 2024).

    Generalised analytic class-incremental learning: the algebra of
    :class:`ACILClassifier`, for streams in which classes recur. The authors' script
    passes every batch ``n_passes`` times, which multiplies both statistics and so
    equals a ridge of ``alpha / n_passes``. Here that ridge is used.

    Parameters
    ----------
    n_units : int
        Buffer size. The default, 5000, is that of the GACL repository (ViT; CIFAR-100,
        ImageNet-R, Tiny-ImageNet).
    alpha : float
        Ridge, called gamma there. The default, 100, is that of the GACL repository.
    n_passes : int
        Number of passes over a batch. The default, 3, is that of the repository's
        script (``ONLINE_ITER=3``); its effective ridge is 33.3.
    random_state : int, numpy generator or None
        Seed of the buffer.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    alpha_ : float
        Ridge in use, ``alpha / n_passes``.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from evergrow.lab.heads import GACILClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> model = GACILClassifier(n_units=500, random_state=0)
    >>> for start in range(0, len(X), 300):      # classes mixed, batch after batch
    ...     _ = model.partial_fit(X[start : start + 300], y[start : start + 300])
    >>> round(model.alpha_, 1), model.score(X, y) > 0.95
    (33.3, True)
    """

    n_units: int = 5000
    alpha: float = 100.0
    n_passes: int = 3
    random_state: Any = None
    device: str | torch.device = "auto"

    def _check_params(self) -> None:
        super()._check_params()
        check_integer("n_passes", self.n_passes, high=MOST_ROUNDS)

    def _ridge(self) -> float:
        return float(self.alpha) / self.n_passes
