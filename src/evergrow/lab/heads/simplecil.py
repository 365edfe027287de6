"""SimpleCIL: the nearest class mean by cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evergrow.core.errors import NumericalError
from evergrow.core.record import Spec, require
from evergrow.head.base import HEADS, IncrementalClassifier
from evergrow.head.label_set import ClassChange, LabelUpdate
from evergrow.head.layers.feature_map import normalize
from evergrow.head.linalg.statistics import sum_columns
from evergrow.head.ridge_model import LayerMap
from evergrow.lab.heads.prototypes import check_counts


@dataclass(frozen=True, eq=False)
class _Learned:
    counts: Annotated[Tensor, Spec(("C",), "int64")]
    sums: Annotated[Tensor, Spec(("d", "C"))]


@HEADS.register("simplecil")
class SimpleCILClassifier(IncrementalClassifier):
    """Cosine nearest class mean (Zhou, Cai, Ye, Zhan and Liu, IJCV 2024).

    From "Revisiting class-incremental learning". The prototype of a class is the plain
    mean of its features, not normalised before averaging (RevisitingCIL and PILOT
    repositories). The predicted class is that of the prototype with the largest cosine.
    There are no hyperparameters and no randomness.

    Parameters
    ----------
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    random_state : object
        Unused; present because every method accepts it.

    Attributes
    ----------
    classes_ : ndarray
        Labels learned, sorted.
    prototypes_ : ndarray of shape (C, d)
        Class means.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> model = SimpleCILClassifier().fit([[1.0, 0.0], [3.0, 0.0]], ["east", "east"])
    >>> _ = model.partial_fit([[0.0, 2.0]], ["north"])
    >>> model.predict([[5.0, 1.0], [1.0, 5.0]]).tolist()
    ['east', 'north']
    """

    learned_as: ClassVar[type] = _Learned

    _sums: Tensor
    _counts: Tensor

    def __init__(
        self, device: str | torch.device = "auto", random_state: Any = None
    ) -> None:
        self.device = device
        self.random_state = random_state

    def _check_params(self) -> None:
        """Do nothing: there are no parameters to check."""

    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        codes = labels.codes
        n_classes = len(labels.classes)
        sums = Z.new_zeros(n_classes, Z.shape[1])
        counts = torch.bincount(codes, minlength=n_classes)
        if "_sums" in vars(self):
            old_codes = torch.tensor(
                [group[0] if group else -1 for group in labels.groups], device=Z.device
            )
            known = old_codes >= 0
            sums[known] = self._sums[old_codes[known]]
            counts[known] += self._counts[old_codes[known]]
        sums = sums.index_add_(0, codes, Z)
        if not bool(torch.isfinite(sums).all()):
            raise NumericalError(
                "sums of features must be finite: scale the features down"
            )
        self._sums = sums
        self._counts = counts

    def _regroup(self, change: ClassChange) -> None:
        self._sums = sum_columns(self._sums, change.groups, dim=0).contiguous()
        self._counts = sum_columns(self._counts, change.groups, dim=0)

    def _scores(self, Z: Tensor) -> Tensor:
        # The cosine ignores the length of the prototype, so sums serve as means.
        return normalize(Z, "l2") @ normalize(self._sums, "l2").T

    def linear_map(self) -> LayerMap:
        """Return the head as plain matrices on the CPU."""
        self._require_fitted()
        linear = normalize(self._sums, "l2").T.cpu()
        return LayerMap("l2", None, None, linear, linear.new_zeros(linear.shape[1]))

    def _contents(self) -> _Learned:
        return _Learned(self._counts, self._sums.T)

    def _restore(self, learned: _Learned) -> None:
        check_counts(learned.counts, len(self.classes_))
        require(
            len(learned.sums) == self.n_features_in_,
            "'sums' are of features of another width",
        )
        self._sums = learned.sums.T.contiguous()
        self._counts = learned.counts

    @property
    def class_counts_(self) -> NDArray[np.int64]:
        """Number of samples learned per class."""
        self._require_fitted()
        return np.asarray(self._counts.cpu().numpy())

    @property
    def prototypes_(self) -> Any:
        """Class means, one row per entry of ``classes_``."""
        self._require_fitted()
        return (self._sums / self._counts[:, None]).cpu().numpy()
